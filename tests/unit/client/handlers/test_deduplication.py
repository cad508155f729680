"""Messages that come twice under one id: which count as duplicates, and that no member handles them."""

import asyncio
import random
from collections.abc import Iterator
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client import Admin, Producer, message_id
from headrace.client.handlers import App, Retry, TestClient, Worker
from headrace.client.handlers import deduplication as module
from headrace.client.handlers.deduplication import SeenIds
from headrace.testing import Broker

MINUTE = 60_000
LATER = 10**12


def seen_ids(window_ms: int = MINUTE) -> SeenIds:
    return SeenIds(window_ms, lambda: LATER)


def test_what_has_the_id_of_an_earlier_message_within_the_window_is_a_duplicate() -> None:
    seen = seen_ids()
    assert not seen.is_duplicate(b"a", 0, 1000)
    assert not seen.is_duplicate(b"b", 1, 1000)
    assert seen.is_duplicate(b"a", 2, 1000 + MINUTE)
    assert seen.is_duplicate(b"a", 3, 1000 + 2 * MINUTE)  # of the one before
    assert not seen.is_duplicate(b"a", 4, 1001 + 3 * MINUTE)
    assert len(seen) == 1


def test_ids_of_more_messages_than_are_looked_back_on_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BEHIND", 100)
    seen = seen_ids()
    for offset in range(1000):
        assert not seen.is_duplicate(b"%d" % offset, offset, 0)
    assert len(seen) == 101
    assert seen.is_duplicate(b"900", 1000, 0)
    assert not seen.is_duplicate(b"100", 1001, 0)


def test_a_time_that_is_far_ahead_makes_nobody_forget() -> None:
    seen = SeenIds(MINUTE, lambda: 10.0)
    assert not seen.is_duplicate(b"a", 0, 10_000)
    assert not seen.is_duplicate(b"b", 1, 10**15)
    assert seen.is_duplicate(b"a", 2, 10_000)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 40)), max_size=60), st.data())
def test_what_is_read_again_is_answered_as_before_by_this_member_and_by_another(
    messages: list[tuple[str, int]], data: st.DataObject
) -> None:
    log: list[tuple[bytes, int, int]] = []
    now = 0
    for name, pause in messages:
        now += pause
        log.append((name.encode(), len(log), now))
    seen = seen_ids(100)
    answers = [seen.is_duplicate(*each) for each in log]
    expected = [
        any(other == name and now - then <= 100 for other, _, then in log[:offset]) for name, offset, now in log
    ]
    assert answers == expected
    begin = data.draw(st.integers(0, len(log)))
    another = seen_ids(100)
    behind = log[begin][2] - 100 if begin < len(log) else 0
    for each in log[:begin]:
        if each[2] >= behind:
            another.is_duplicate(*each)
    assert [another.is_duplicate(*each) for each in log[begin:]] == expected[begin:]


def test_the_test_client_leaves_out_duplicates_but_not_what_is_tried_again() -> None:
    app = App()
    handled: list[str] = []

    @app.subscribe("orders", group="g", deduplicate=timedelta(minutes=1), retry=Retry(in_place=1, delays=(1,)))
    async def handle(order: str) -> None:
        handled.append(order)
        if order == "fails" and handled.count("fails") == 1:
            raise ConnectionError

    async def main() -> None:
        async with TestClient(app) as client:
            for order in ("a", "a", "fails"):
                await client.send("orders", order.encode(), headers=message_id(order))
            await client.send("orders", b"no id")
            await client.advance(61)
            await client.send("orders", b"a", headers=message_id("a"))

    asyncio.run(main())
    assert handled == ["a", "fails", "no id", "fails", "a"]


@pytest.mark.parametrize("window", [0, -1, timedelta(0), timedelta(days=31), float("nan")])
def test_windows_that_are_none_are_refused(window: float) -> None:
    with pytest.raises(ValueError, match="above 0 and up to 30 days"):
        App().subscribe("orders", group="g", deduplicate=window)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"group.initial.rebalance.delay.ms": 0}) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_no_duplicate_is_handled_by_the_member_that_comes_after_another(broker: Broker, delivery: str) -> None:
    topic = broker.create_topic(f"orders-{delivery}", partitions=2)
    seen: list[str] = []
    app = App(broker.bootstrap)

    @app.subscribe(topic, group=f"g-{delivery}", deduplicate=60, delivery=delivery, value=str, concurrency=4)  # type: ignore[arg-type]
    async def handle(order: str) -> None:
        seen.append(order)

    def produce(numbers: list[int]) -> None:
        with Producer(broker.bootstrap) as producer:
            for number in numbers:
                producer.send(topic, str(number), key=str(number), headers=message_id(f"order-{number}"))

    async def work_until(count: int) -> None:
        stop = asyncio.Event()
        working = asyncio.create_task(Worker(app).run(stop))
        while len(seen) < count and not working.done():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)
        stop.set()
        await working

    numbers = list(range(50)) * 2
    random.Random(1).shuffle(numbers)
    produce(numbers)
    asyncio.run(work_until(50))
    produce([*numbers, 50])
    asyncio.run(work_until(51))
    assert sorted(map(int, seen)) == list(range(51))
    ends = Admin(broker.bootstrap).end_offsets(topic, [0, 1])
    assert sum(ends.values()) == 201
