"""Delayed messages: lanes, times and, against a broker, the mover."""

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from hypothesis import given
from hypothesis import strategies as st

from headrace.client import Admin, AsyncProducer, ClientError, Consumer, Message, Producer
from headrace.client.dead_letters import DeadLetters
from headrace.client.delays import mover as mover_module
from headrace.client.delays.clock import ClusterClock
from headrace.client.delays.lanes import (
    DUE,
    HOLDS_MS,
    LANES,
    MOST_MS,
    due_of,
    due_time,
    lane_for,
    lanes_topic,
    leaves_at,
    own_headers,
    partition_of,
    patience_ms,
    with_delay,
)
from headrace.client.delays.mover import GROUP, Mover
from headrace.client.producer import Settings
from headrace.protocol.delayed import delayed_topic
from headrace.testing import Broker

NOW = 1_700_000_000_000


# Lanes


@given(st.integers(min_value=0, max_value=MOST_MS))
def test_a_message_leaves_its_lane_before_it_is_due_also_if_the_lane_is_looked_at_as_late_as_it_may(wait: int) -> None:
    lane = lane_for(wait)
    if lane:
        assert leaves_at(lane, NOW, NOW + wait) + patience_ms(lane) <= NOW + wait
    else:
        assert leaves_at(lane, NOW, NOW + wait) == min(NOW + wait, NOW + HOLDS_MS[0])


@given(st.integers(min_value=0, max_value=HOLDS_MS[-1]))
def test_each_lane_is_shorter_than_the_one_before_so_that_few_moves_lead_to_the_target(wait: int) -> None:
    moves, left = 0, wait
    while (lane := lane_for(left)) > 0:
        left -= HOLDS_MS[lane]
        assert lane_for(left) < lane or left >= HOLDS_MS[lane]
        moves += 1
    assert moves <= LANES + 3


def test_whoever_writes_a_time_that_never_comes_into_a_lane_does_not_hold_up_what_is_behind() -> None:
    assert leaves_at(0, NOW, 10**17) == NOW + HOLDS_MS[0]
    assert leaves_at(LANES + 5, NOW, 10**17) == NOW + HOLDS_MS[-1]


@pytest.mark.parametrize("data", [b"", b"soon", b"-1", b"1e9", "٣".encode(), b"9" * 19, None])
def test_a_time_that_is_none_is_now(data: bytes | None) -> None:
    assert due_of([(DUE, data)]) == 0
    assert partition_of([("headrace.delayed.partition", data)]) == -1


def test_headers_of_delays_are_taken_off_and_no_others() -> None:
    headers = [("a", b"1"), ("headrace.delayed.due", b"7"), ("a", None)]
    waiting = with_delay(headers, NOW, 3)
    assert (due_of(waiting), partition_of(waiting)) == (NOW, 3)
    assert own_headers(waiting) == [("a", b"1"), ("a", None)]


def test_times_are_given_as_seconds_spans_or_dates_with_a_zone() -> None:
    assert due_time(1.5, None, NOW) == due_time(timedelta(seconds=1.5), None, NOW) == NOW + 1500
    date = datetime.fromtimestamp(NOW / 1000 + 2, UTC)
    assert due_time(None, date, NOW) == NOW + 2000
    assert due_time(None, None, NOW) is None
    assert due_time(-0.001, None, NOW) <= NOW  # type: ignore[operator]
    assert due_time(None, date + timedelta(microseconds=1), NOW) == NOW + 2001  # rather later than early


@pytest.mark.parametrize(
    ("after", "at", "why"),
    [
        (float("nan"), None, "a number of seconds"),
        (float("inf"), None, "a number of seconds"),
        (1, datetime.now(UTC), "exclude each other"),
        (None, datetime(2030, 1, 1), "no time zone"),
        (timedelta(days=4000), None, "ten years"),
    ],
)
def test_what_is_no_time_to_deliver_at_is_refused(after: Any, at: datetime | None, why: str) -> None:
    with pytest.raises(ClientError, match=why):
        due_time(after, at, NOW)


@pytest.mark.parametrize("topic", ["orders.headrace-delayed", "orders.headrace-schedules", "x" * 240])
def test_topics_that_cannot_have_delays_are_refused(topic: str) -> None:
    with pytest.raises(ClientError):
        lanes_topic(topic)


def test_the_time_is_the_earlier_of_this_machines_and_the_brokers() -> None:
    wall, counted = 1000.0, 50.0
    clock = ClusterClock(lambda: wall, lambda: counted)
    assert clock.is_stale
    assert clock.now_ms() == 1_000_000
    clock.appended_at(999_000)
    assert (clock.is_stale, clock.now_ms()) == (False, 999_000)
    wall, counted = 90_000.0, 51.0  # set ahead
    assert clock.now_ms() == 1_000_000
    wall, counted = 900.0, 52.0  # set back
    assert clock.now_ms() == 900_000
    counted = 200.0
    assert clock.is_stale


# The mover


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"group.initial.rebalance.delay.ms": 0, "auto.create.topics.enable": False}) as running:
        yield running


@contextmanager
def moving(broker: Broker, wall: Callable[[], float] = time.time, settings: Settings | None = None) -> Iterator[Mover]:
    stop = threading.Event()
    mover = Mover(broker.bootstrap, settings, wall=wall, refresh_seconds=0.2)
    thread = threading.Thread(target=mover.run, args=(stop,))
    thread.start()
    try:
        yield mover
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive()


def received(
    broker: Broker, topic: str, count: int, timeout: float = 60, settings: Settings | None = None
) -> list[tuple[float, Message[str]]]:
    """Messages, and when each was there."""
    found: list[tuple[float, Message[str]]] = []
    with Consumer(topic, group=None, bootstrap=broker.bootstrap, value=str, settings=settings) as consumer:
        while len(found) < count and (message := consumer.receive(timeout)) is not None:
            found.append((time.time(), message))
    return found


@pytest.mark.slow
def test_what_was_moved_is_not_moved_again_where_the_positions_of_movers_are_forgotten(broker: Broker) -> None:
    topic = broker.create_topic("forgotten")
    with Producer(broker.bootstrap) as producer:
        with moving(broker):
            for number in range(20):
                producer.send(topic, str(number), deliver_after=0.2)
            received(broker, topic, 20)
        producer.deliver(topic, "last", deliver_after=0.2)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_consumer_groups([GROUP])[GROUP].result(60)
    with moving(broker):
        values = [message.value for _, message in received(broker, topic, 21)]
        assert received(broker, topic, 22, timeout=1)[21:] == []
    assert sorted(values) == sorted([*map(str, range(20)), "last"])


@pytest.mark.slow
def test_a_mover_gives_up_the_space_of_what_one_before_it_has_moved(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.create_topic("space")
    with monkeypatch.context() as killed, moving(broker), Producer(broker.bootstrap) as producer:
        killed.setattr(mover_module._Rounds, "delete", lambda _: None)
        producer.send(topic, "moved", deliver_after=0.2)
        received(broker, topic, 1)
    monkeypatch.setattr(mover_module, "_DELETE_SECONDS", 0.1)
    admin = Admin(broker.bootstrap)
    with moving(broker):
        deadline = time.monotonic() + 60
        while not sum(admin.start_offsets(delayed_topic(topic), range(2)).values()) and time.monotonic() < deadline:
            time.sleep(0.1)
    assert sum(admin.start_offsets(delayed_topic(topic), range(2)).values())


@pytest.mark.slow
def test_delayed_messages_arrive_whole_at_their_time_and_never_before(broker: Broker) -> None:
    topic = broker.create_topic("whole", partitions=5)
    with moving(broker), Producer(broker.bootstrap) as producer:
        for number in range(30):
            due = time.time() + number % 10 * 0.13
            producer.send(
                topic, str(due), key=f"k{number}", headers={"n": str(number)}, deliver_after=due - time.time()
            )
        plain = [producer.deliver(topic, "0", key=f"k{number}").partition for number in range(30)]
        producer.deliver(topic, str(time.time() + 0.3), partition=4, deliver_after=0.3, headers={"n": "asked"})
        found = [each for each in received(broker, topic, 61) if each[1].value != "0"]
    assert all(there >= float(message.value) for there, message in found)
    assert {m.header("n"): m.partition for _, m in found} == {
        "asked": 4,
        **{str(number): partition for number, partition in enumerate(plain)},
    }
    assert {m.key for _, m in found if m.key} == {b"k%d" % n for n in range(30)}
    assert all(not name.startswith("headrace.") for _, m in found for name, _ in m.headers)


@pytest.mark.slow
def test_each_message_arrives_once_although_movers_come_and_go(broker: Broker) -> None:
    topic = broker.create_topic("once", partitions=2)
    with Producer(broker.bootstrap) as producer:
        for number in range(400):
            producer.send(topic, str(number), deliver_after=number / 200)
    with moving(broker), moving(broker):
        with moving(broker):
            time.sleep(0.7)  # while these are at it, one goes and another comes
        with moving(broker):
            found = received(broker, topic, 400)
            assert len(received(broker, topic, 401, timeout=1)) <= 400
    assert Counter(m.value for _, m in found) == Counter(str(n) for n in range(400))


@pytest.mark.slow
def test_a_mover_whose_clock_is_a_day_ahead_sends_nothing_early(broker: Broker) -> None:
    topic = broker.create_topic("ahead")
    with moving(broker, wall=lambda: time.time() + 86_400), Producer(broker.bootstrap) as producer:
        due = time.time() + 1
        producer.deliver(topic, "x", deliver_after=1)
        ((there, _),) = received(broker, topic, 1)
    assert there >= due


@pytest.mark.slow
def test_what_a_target_refuses_becomes_a_dead_letter_and_the_others_arrive(broker: Broker) -> None:
    topic, admin = broker.create_topic("small"), Admin(broker.bootstrap)
    with Producer(broker.bootstrap) as producer:
        for size in (10, 5000, 11):
            producer.deliver(topic, os.urandom(size // 2).hex(), key=str(size), deliver_after=0.3)
    admin.alter_configs(topic, {"max.message.bytes": "2000"})
    with moving(broker):
        found = received(broker, topic, 2)
        letters = f"{delayed_topic(topic)}.dead-letter"
        received(broker, letters, 1)
    (letter,) = DeadLetters(admin, broker.bootstrap, letters)
    assert sorted(len(m.value) for _, m in found) == [10, 10]
    assert (letter.key, letter.topic) == (b"5000", topic)
    assert "small" in letter.reason


@pytest.mark.slow
def test_messages_as_large_as_their_topic_takes_can_be_delayed(broker: Broker) -> None:
    topic = broker.create_topic("large", max_message_bytes=2_000_100)
    with Producer(broker.bootstrap) as producer:
        where = producer.deliver(topic, os.urandom(2_000_000), deliver_after=60)
    settings = Admin(broker.bootstrap).topic_overrides(where.topic)
    assert (settings["max.message.bytes"], settings["retention.ms"]) == ("2001124", "-1")


@pytest.mark.slow
def test_an_unknown_topic_is_told_when_a_message_is_delayed(broker: Broker) -> None:
    asyncio.run(send_to_an_unknown_topic(broker))


async def send_to_an_unknown_topic(broker: Broker) -> None:
    async with AsyncProducer(broker.bootstrap) as producer:
        with pytest.raises(ClientError, match="'nowhere' does not exist"):
            await producer.deliver("nowhere", "x", deliver_after=1)
        topic = await asyncio.to_thread(broker.create_topic, "known")
        where = await producer.deliver(topic, "x", deliver_at=datetime.now(UTC) + timedelta(1))
    assert where.topic == "known.headrace-delayed"
