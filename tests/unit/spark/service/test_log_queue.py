"""Lines of pipelines on their way to the topic."""

from headrace.spark.service.log_queue import BURST, LINES_PER_SECOND, MOST_WAITING, LogQueue


class Clock:
    now = 1_000

    def __call__(self) -> int:
        return self.now


def test_a_pipeline_that_prints_without_end_is_cut_short_and_others_are_not() -> None:
    clock = Clock()
    queue = LogQueue("one", clock)
    for number in range(BURST + 500):
        queue.add("loud", str(number))
    queue.add("quiet", "hello")
    taken = queue.take(MOST_WAITING)
    assert [line.text for line in taken][:2] == ["0", "1"]
    assert len(taken) == BURST + 1
    assert taken[-1].text == "hello"
    clock.now += 1_000
    queue.add("loud", "later")
    assert [line.text for line in queue.take()] == [
        f"... 500 lines left out: more than {LINES_PER_SECOND} a second, or no broker took them",
        "later",
    ]


def test_lines_wait_in_order_while_no_broker_takes_them_and_memory_is_bounded() -> None:
    clock = Clock()
    queue = LogQueue("one", clock)
    for number in range(3):
        queue.add("p", str(number))
    taken = queue.take(2)
    queue.give_back(taken)
    assert [line.text for line in queue.take()] == ["0", "1", "2"]
    for _ in range(MOST_WAITING * 2):
        clock.now += 1_000
        queue.add("p", "x")
    assert len(queue.take(MOST_WAITING * 3)) == MOST_WAITING
    assert "10,000 lines left out" in queue.take()[0].text
