from headrace.server.monitoring.throttle_times import MOST_CLIENTS, OTHERS, ThrottleTimes


def test_names_that_clients_make_up_are_counted_together() -> None:
    times = ThrottleTimes()
    for number in range(MOST_CLIENTS + 50):
        times.add("u", str(number), 0.5)
    times.add("u", "0", 0.25)
    assert times.clients[("u", "0")] == (2, 0.75)
    assert times.clients[OTHERS] == (50, 25.0)
    assert len(times.clients) == MOST_CLIENTS + 1
