"""A process that stood still knows it before it answers anyone."""

from headrace.cluster.pulse import Pulse


def test_only_a_pause_longer_than_a_session_is_a_stall_and_it_is_told_once() -> None:
    now = [10.0]
    stalls: list[float] = []
    pulse = Pulse(lambda: now[0], 2.0, stalls.append)
    for now[0] in (11.0, 13.0, 13.0, 15.5, 16.0, 18.0):
        pulse.beat()
    assert stalls == [2.5]
