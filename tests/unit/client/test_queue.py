"""Queues: each message to one worker, acknowledged by itself."""

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from headrace.client import AsyncQueue, ClientError, ClusterUnreachable, Message, Producer, Queue
from headrace.testing import Broker

pytestmark = pytest.mark.slow
_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"auto.create.topics.enable": False}) as running:
        yield running


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.create_topic(f"jobs-{next(_numbers)}")


def fill(broker: Broker, topic: str, count: int) -> None:
    with Producer(broker.bootstrap) as producer:
        for number in range(count):
            producer.send(topic, number)


def received(queue: Queue[int]) -> Message[int]:
    message = queue.receive(60)
    assert message is not None
    return message


def test_a_job_that_was_left_with_an_error_goes_to_another_worker_and_others_do_not(broker: Broker, topic: str) -> None:
    fill(broker, topic, 3)
    with pytest.raises(ZeroDivisionError), Queue(topic, group=topic, value=int, bootstrap=broker.bootstrap) as queue:  # noqa: PT012
        assert received(queue).value == 0
        assert received(queue).value == 1
        _ = 1 / 0
    with Queue(topic, group=topic, value=int, bootstrap=broker.bootstrap) as queue:
        found = {message.value: message.deliveries for message in (received(queue), received(queue))}
        assert set(found) == {1, 2}
        assert found[1] == 2
        assert queue.receive(0.5) is None


def test_a_released_job_comes_again_and_a_rejected_one_does_not(broker: Broker, topic: str) -> None:
    fill(broker, topic, 2)
    with Queue(topic, group=topic, value=int, bootstrap=broker.bootstrap) as queue:
        seen: list[tuple[int, int]] = []
        while len(seen) < 3:
            message = received(queue)
            seen.append((message.value, message.deliveries))
            if message.value == 1:
                queue.reject()
            elif message.deliveries < 2:
                queue.release()
        assert sorted(seen) == [(0, 1), (0, 2), (1, 1)]
        assert queue.receive(0.5) is None


def test_more_workers_than_partitions_share_the_jobs_each_done_once(broker: Broker, topic: str) -> None:
    fill(broker, topic, 200)
    done: list[tuple[int, int]] = []

    def work(worker: int) -> None:
        until = time.monotonic() + 40
        with Queue(topic, group=topic, value=int, bootstrap=broker.bootstrap, prefetch=1) as queue:
            while len(done) < 200 and time.monotonic() < until:
                if message := queue.receive(0.2):
                    done.append((worker, message.value))
                    time.sleep(0.005)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert Counter(number for _, number in done) == Counter(range(200))


def test_on_asyncio_a_queue_is_iterated_and_a_wait_that_is_cancelled_loses_no_job(broker: Broker, topic: str) -> None:
    fill(broker, topic, 20)

    async def main() -> list[int]:
        found: list[int] = []
        async with asyncio.timeout(60), AsyncQueue(topic, group=topic, value=int, bootstrap=broker.bootstrap) as queue:
            while len(found) < 5:
                try:
                    async with asyncio.timeout(0.01):
                        if message := await queue.receive():
                            found.append(message.value)
                except TimeoutError:
                    pass
            async for message in queue:
                found.append(message.value)
                if len(found) == 20:
                    break
        return found

    assert sorted(asyncio.run(main())) == list(range(20))


@pytest.fixture(scope="module")
def brief() -> Iterator[Broker]:
    """Locks hold for four seconds: long enough for a machine that is busy to renew them in time."""
    settings = {"group.share.record.lock.duration.ms": 4000, "group.share.min.record.lock.duration.ms": 4000}
    with Broker(settings) as running:
        yield running


def test_a_job_that_takes_several_locks_is_renewed_and_one_of_a_worker_that_has_had_its_time_is_not(
    brief: Broker,
) -> None:
    topic = brief.create_topic("long")
    fill(brief, topic, 2)
    with (
        Queue(topic, group="g", value=int, bootstrap=brief.bootstrap, prefetch=1, renew_for=60) as patient,
        Queue(topic, group="g", value=int, bootstrap=brief.bootstrap, prefetch=1, renew_for=1) as hung,
    ):
        first, second = received(patient), received(hung)
        assert {first.value, second.value} == {0, 1}
        with Queue(topic, group="g", value=int, bootstrap=brief.bootstrap) as other:
            again = received(other)
            assert (again.value, again.deliveries) == (second.value, 2)
            assert other.receive(3.0) is None  # first is still out
        patient.accept()
        hung.accept()  # in vain, and told in the log
    with Queue(topic, group="g", value=int, bootstrap=brief.bootstrap) as other:
        assert other.receive(1.5) is None


def test_a_worker_that_renews_releases_rejects_and_hands_on_what_it_leaves(brief: Broker) -> None:
    topic = brief.create_topic("renewed", partitions=3)
    fill(brief, topic, 6)
    seen: Counter[int] = Counter()
    with Queue(topic, group="r", value=int, bootstrap=brief.bootstrap, prefetch=3, renew_for=60) as queue:
        while seen.total() < 7:
            message = received(queue)
            seen[message.value] += 1
            assert message.deliveries == seen[message.value]
            if message.value == 1:
                queue.reject()
            elif message.value == 2 and message.deliveries == 1:
                queue.release()
        assert seen == {0: 1, 1: 1, 2: 2, 3: 1, 4: 1, 5: 1}
        assert queue.receive(0.5) is None
    fill(brief, topic, 1)
    with pytest.raises(ZeroDivisionError), Queue(topic, group="r", bootstrap=brief.bootstrap, renew_for=60) as queue:  # noqa: PT012
        received(queue)  # type: ignore[arg-type]
        _ = 1 / 0
    with Queue(topic, group="r", value=int, bootstrap=brief.bootstrap) as queue:
        assert received(queue).deliveries == 2


def test_a_job_may_be_released_until_later(brief: Broker) -> None:
    topic = brief.create_topic("later")
    fill(brief, topic, 3)
    with Queue(topic, group="l", value=int, bootstrap=brief.bootstrap, prefetch=3, renew_for=60) as queue:
        assert received(queue).value == 0
        queue.release(delay=86_400)
        assert received(queue).value == 1
        queue.release(delay=1)
        began = time.monotonic()
        assert received(queue).value == 2
        message = received(queue)
        assert (message.value, message.deliveries) == (1, 2)
        assert time.monotonic() - began >= 0.9, "told with the next fetch, at the latest"
        with pytest.raises(ClientError, match="0 to 86400 seconds"):
            queue.release(delay=-1)
        queue.accept()
    with Queue(topic, group="l", value=int, bootstrap=brief.bootstrap) as queue:
        assert queue.receive(0.5) is None
        with pytest.raises(ClientError, match="renew_for"):
            queue.release(delay=1)


def test_a_queue_of_brokers_that_do_not_answer_says_so() -> None:
    with pytest.raises(ClusterUnreachable, match=r"no broker answers at 127\.0\.0\.1:1"):
        Queue("jobs", group="g", bootstrap="127.0.0.1:1")
