"""Handlers on a broker."""

import asyncio
import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.client import Admin, AsyncProducer, ClientError, ClusterUnreachable, Consumer, Message, Producer
from headrace.client.handlers import App, HandlerFailed, Outbox, Retry, Worker
from headrace.config import PLAIN_USERS
from headrace.testing import Broker

pytestmark = pytest.mark.slow
USERS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="s3cret";'
_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"auto.create.topics.enable": False}) as running:
        yield running


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.create_topic(f"orders-{next(_numbers)}", partitions=3)


def fill(broker: Broker, topic: str, count: int, keys: int = 5) -> None:
    with Producer(broker.bootstrap) as producer:
        for number in range(count):
            producer.send(topic, number, key=str(number % keys))


def read(broker: Broker, topic: str, count: int) -> list[Any]:
    with Consumer(topic, group=None, bootstrap=broker.bootstrap) as consumer:
        found = [consumer.receive(60) for _ in range(count)]
        assert consumer.receive(0.3) is None
    return [message for message in found if message is not None]


async def work_until(app: App, done: Callable[[], bool], seconds: float = 120) -> None:
    """Run the handlers until something has happened."""
    stop = asyncio.Event()
    worker = asyncio.create_task(Worker(app).run(stop))
    async with asyncio.timeout(seconds):
        while not done() and not worker.done():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    stop.set()
    await worker


@pytest.mark.parametrize("delivery", ["at-most-once", "at-least-once", "exactly-once"])
def test_each_message_is_handled_once_and_in_the_order_of_its_key_and_a_restart_finds_none(
    broker: Broker, topic: str, delivery: Any
) -> None:
    out = broker.create_topic(f"{topic}-out")
    fill(broker, topic, 300)
    seen: list[int] = []
    app = App(broker.bootstrap)

    @app.subscribe(topic, group=topic, delivery=delivery, concurrency=8)
    async def handle(number: int, out_: Outbox) -> None:
        await asyncio.sleep(0.001 * (number % 3))
        seen.append(number)
        out_.send(out, number, key=str(number % 5))

    asyncio.run(work_until(app, lambda: len(seen) >= 300))
    assert sorted(seen) == list(range(300))
    written = [int(message.value) for message in read(broker, out, 300)]
    for key in range(5):
        assert [number for number in written if number % 5 == key] == list(range(key, 300, 5))
    began = time.monotonic()
    asyncio.run(work_until(app, lambda: time.monotonic() - began > 1.0))
    assert len(seen) == 300


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_a_poison_message_waits_its_delays_and_is_a_dead_letter_while_others_go_on(
    broker: Broker, topic: str, delivery: Any
) -> None:
    fill(broker, topic, 20)
    tries: list[tuple[int, float]] = []
    app = App(broker.bootstrap)

    @app.subscribe(
        topic, group="g", delivery=delivery, retry=Retry(in_place=2, backoff=0.01, delays=(0.5,)), dead_letter=True
    )
    async def handle(number: int) -> None:
        tries.append((number, time.monotonic()))
        if number == 7:
            raise ValueError("poison")

    asyncio.run(work_until(app, lambda: len(tries) >= 22))
    counts = Counter(number for number, _ in tries)
    assert counts == Counter({**dict.fromkeys(range(20), 1), 7: 3})
    times = [when for number, when in tries if number == 7]
    assert times[2] - times[1] >= 0.49
    (letter,) = read(broker, f"{topic}.g.dead-letter", 1)
    assert letter.value == b"7"
    assert letter.header("headrace.dlq.attempts") == "3"
    assert letter.header("headrace.dlq.topic") == topic


def test_messages_that_fail_at_the_same_time_all_come_back_from_the_delay_topic(broker: Broker, topic: str) -> None:
    fill(broker, topic, 300)
    seen: Counter[int] = Counter()
    app = App(broker.bootstrap)

    @app.subscribe(topic, group="g", retry=Retry(in_place=1, delays=(0.3,)), concurrency=8)
    async def handle(number: int) -> None:
        seen[number] += 1
        if seen[number] == 1:
            raise ValueError("not yet")

    asyncio.run(work_until(app, lambda: seen.total() >= 600))
    assert seen == Counter(dict.fromkeys(range(300), 2))


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_a_message_whose_handler_sends_what_brokers_refuse_is_a_dead_letter(
    broker: Broker, topic: str, delivery: Any
) -> None:
    out = broker.create_topic(f"{topic}-out", max_message_bytes=1_000_000)
    fill(broker, topic, 20)
    app = App(broker.bootstrap)
    counts: Counter[int] = Counter()
    reasons: dict[bytes, str] = {}

    @app.subscribe(topic, group="g", delivery=delivery, dead_letter=True)
    async def handle(number: int, out_: Outbox) -> None:
        counts[number] += 1
        key: Any = 8 if number == 8 else "key"
        out_.send(out, os.urandom(1_100_000) if number == 7 else number, key=key)

    @app.subscribe(f"{topic}.g.dead-letter", group="letters")
    async def note(message: Message[bytes]) -> None:
        reasons[message.data or b""] = message.header("headrace.dlq.reason") or ""

    written: list[int] = []

    @app.subscribe(out, group="written")
    async def take(number: int) -> None:
        written.append(number)

    # A message that was handled may still be handled again, with those of its transaction: what has arrived counts.
    asyncio.run(work_until(app, lambda: len(written) >= 18 and len(reasons) == 2))
    assert sorted(written) == [n for n in range(20) if n not in {7, 8}]
    assert set(counts) == set(range(20))
    assert "NotDelivered" in reasons[b"7"]
    assert "TypeError" in reasons[b"8"]


def test_a_handler_that_never_returns_keeps_no_worker_from_ending(broker: Broker, topic: str) -> None:
    fill(broker, topic, 3)
    app = App(broker.bootstrap)
    begun: list[str] = []

    @app.subscribe(topic, group="patient")
    def blocked(_: int) -> None:
        begun.append("thread")
        threading.Event().wait()

    @app.subscribe(topic, group="careful", delivery="exactly-once")
    async def waiting(_: int) -> None:
        begun.append("task")
        await asyncio.Event().wait()

    async def main() -> None:
        stop = asyncio.Event()
        worker = asyncio.create_task(Worker(app, grace=0.2).run(stop))
        async with asyncio.timeout(120):
            while len(set(begun)) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            stop.set()
            await worker

    asyncio.run(main())


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_a_handler_that_cancels_its_own_task_has_failed_and_the_others_go_on(
    broker: Broker, topic: str, delivery: Any
) -> None:
    fill(broker, topic, 20)
    app = App(broker.bootstrap)
    counts: Counter[int] = Counter()
    letters: list[int] = []

    @app.subscribe(topic, group="g", delivery=delivery, retry=Retry(in_place=2, backoff=0.01), dead_letter=True)
    async def handle(number: int) -> None:
        counts[number] += 1
        if number == 7:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    @app.subscribe(f"{topic}.g.dead-letter", group="letters")
    async def note(number: int) -> None:
        letters.append(number)

    asyncio.run(work_until(app, lambda: len(counts) == 20 and bool(letters)))
    assert letters == [7]
    assert counts[7] >= 2


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_a_handler_that_leaves_its_task_cancelled_ends_the_worker(
    broker: Broker, topic: str, delivery: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, topic, 5)
    app = App(broker.bootstrap)

    @app.subscribe(topic, group="g", delivery=delivery, publish=broker.create_topic(f"{topic}-out"))
    async def handle(number: int) -> int:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)
        return number

    async def slow_submit(*arguments: Any, **options: Any) -> Any:
        await asyncio.sleep(0.1)
        raise AssertionError("it was cancelled")

    monkeypatch.setattr(AsyncProducer, "submit", slow_submit)
    with pytest.raises(ClientError, match="was cancelled"):
        asyncio.run(work_until(app, lambda: False))


def test_a_worker_without_the_credentials_that_brokers_want_says_so() -> None:
    with Broker({"listeners": "SASL_PLAINTEXT://127.0.0.1:0", PLAIN_USERS: USERS}) as closed:
        app = App(closed.bootstrap)

        @app.subscribe("orders", group="g")
        async def handle(_: int) -> None: ...

        with pytest.raises(ClusterUnreachable, match="its listener may want a user and a password"):
            asyncio.run(Worker(app).run())


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_a_failure_for_good_ends_the_worker_and_the_message_comes_again(
    broker: Broker, topic: str, delivery: Any
) -> None:
    out = broker.create_topic(f"{topic}-out")
    fill(broker, topic, 30, keys=1)
    app = App(broker.bootstrap)
    seen: list[int] = []
    is_broken = True

    @app.subscribe(topic, group=topic, delivery=delivery, publish=out)
    async def handle(number: int) -> int:
        if number == 10 and is_broken:
            raise ValueError("broken")
        seen.append(number)
        return number

    with pytest.raises(HandlerFailed, match="ValueError: broken"):
        asyncio.run(work_until(app, lambda: False))
    is_broken = False
    asyncio.run(work_until(app, lambda: 29 in seen))
    if delivery == "at-least-once":
        assert sorted(set(seen)) == list(range(30))
    assert sorted({int(message.value) for message in read(broker, out, 30)}) == list(range(30))


def test_at_most_once_goes_on_behind_a_failure(broker: Broker, topic: str) -> None:
    fill(broker, topic, 10)
    app = App(broker.bootstrap)
    seen: list[int] = []

    @app.subscribe(topic, group=topic, delivery="at-most-once")
    async def handle(number: int) -> None:
        seen.append(number)
        raise ValueError("lost")

    asyncio.run(work_until(app, lambda: len(seen) == 10))
    assert sorted(seen) == list(range(10))


def test_at_most_once_loses_nothing_where_a_commit_is_refused_while_the_group_changes(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, topic, 30)
    app = App(broker.bootstrap)
    seen: list[int] = []
    refusals = iter([True, False, True])
    commit = Consumer.commit_offsets

    def refused_at_first(self: Consumer[Any], offsets: list[Any], *, wait: bool = True) -> bool:
        return not next(refusals, False) and commit(self, offsets, wait=wait)

    monkeypatch.setattr(Consumer, "commit_offsets", refused_at_first)

    @app.subscribe(topic, group=topic, delivery="at-most-once", pending=5)
    async def handle(number: int) -> None:
        seen.append(number)

    asyncio.run(work_until(app, lambda: len(seen) == 30))
    assert sorted(seen) == list(range(30))


def test_while_handlers_are_busy_no_more_is_taken_than_may_be_pending(broker: Broker, topic: str) -> None:
    fill(broker, topic, 200, keys=200)
    app = App(broker.bootstrap)
    at_work: list[int] = []
    gate = asyncio.Event()

    @app.subscribe(topic, group=topic, concurrency=50, pending=10)
    async def handle(number: int) -> None:
        at_work.append(number)
        await gate.wait()

    async def main() -> None:
        task = asyncio.create_task(work_until(app, lambda: len(at_work) == 200))
        while len(at_work) < 10:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.5)
        assert len(at_work) <= 20
        gate.set()
        await task

    asyncio.run(main())


def test_partitions_that_go_to_another_worker_are_committed_and_nothing_is_handled_twice(
    broker: Broker, topic: str
) -> None:
    fill(broker, topic, 400, keys=40)
    seen: list[int] = []

    def app() -> App:
        made = App(broker.bootstrap)

        @made.subscribe(topic, group=topic, concurrency=4)
        async def handle(number: int) -> None:
            await asyncio.sleep(0.01)
            seen.append(number)

        return made

    async def main() -> None:
        stop = asyncio.Event()
        first = asyncio.create_task(Worker(app()).run(stop))
        while len(seen) < 30:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await work_until(app(), lambda: len(seen) >= 400)
        stop.set()
        await first

    asyncio.run(main())
    assert Counter(seen) == Counter(range(400))


def test_a_topic_that_is_made_anew_is_handled_from_its_beginning(broker: Broker, topic: str) -> None:
    fill(broker, topic, 30)
    seen: list[int] = []
    app = App(broker.bootstrap)

    @app.subscribe(topic, group=topic)
    async def handle(number: int) -> None:
        seen.append(number)

    def make_anew() -> None:
        Admin(broker.bootstrap).delete_topics([topic])
        broker.create_topic(topic, partitions=3)
        fill(broker, topic, 15)

    async def main() -> None:
        stop = asyncio.Event()
        worker = asyncio.create_task(Worker(app).run(stop))
        async with asyncio.timeout(120):
            while len(seen) < 30:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await asyncio.to_thread(make_anew)
            while len(seen) < 45:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        stop.set()
        await worker

    asyncio.run(main())
    assert sorted(seen[30:]) == list(range(15))
