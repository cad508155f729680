"""The producer and the consumer of programs, in both ways, against a broker."""

import asyncio
import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.client import (
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    ClientError,
    Consumer,
    NotDelivered,
    Producer,
    ProducerFenced,
    Queue,
    UnknownTopic,
)
from headrace.testing import Broker

pytestmark = pytest.mark.slow
_numbers = itertools.count()


SOON: Final = {"topic.metadata.propagation.max.ms": 500}
"""After which a producer believes that there is no such topic."""


@dataclass
class Order:
    id: int


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"auto.create.topics.enable": False}) as running:
        yield running


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.create_topic(f"orders-{next(_numbers)}", partitions=2)


def fill(broker: Broker, topic: str, count: int) -> None:
    with Producer(broker.bootstrap) as producer:
        for number in range(count):
            producer.send(topic, Order(number), key=str(number))


def left(broker: Broker, topic: str, group: str, count: int) -> list[int]:
    """What the next member of a group gets, which is as much as this or it fails."""
    with Consumer(topic, group=group, value=Order, bootstrap=broker.bootstrap) as consumer:
        found = [consumer.receive(60) for _ in range(count)]
        consumer.assignment()
        assert consumer.receive(0.3) is None
    return sorted(message.value.id for message in found if message is not None)


def test_what_was_sent_is_received_with_key_and_headers(broker: Broker, topic: str) -> None:
    with Producer(broker.bootstrap) as producer:
        where = producer.deliver(topic, Order(1), key="alice", headers={"trace": "x"}, timestamp_ms=1_700_000_000_000)
    with Consumer(topic, group="g", value=Order, bootstrap=broker.bootstrap) as consumer:
        message = consumer.receive(60)
    assert message is not None
    assert (message.topic, message.partition, message.offset) == where
    assert (message.value, message.key, message.header("trace")) == (Order(1), b"alice", "x")
    assert message.timestamp == datetime.fromtimestamp(1_700_000_000, UTC)


def test_a_message_counts_as_handled_when_the_next_is_asked_for(broker: Broker, topic: str) -> None:
    fill(broker, topic, 10)
    seen: list[int] = []
    with (  # noqa: PT012
        pytest.raises(ZeroDivisionError),
        Consumer(topic, group="g", value=Order, bootstrap=broker.bootstrap) as consumer,
    ):
        for message in consumer:
            seen.append(message.value.id)
            if len(seen) == 4:
                _ = 1 / 0
    assert left(broker, topic, "g", 7) == sorted(set(range(10)) - set(seen[:3]))


def test_a_block_that_is_left_without_an_error_has_handled_the_message_in_hand(broker: Broker, topic: str) -> None:
    fill(broker, topic, 5)
    with Consumer(topic, group="g", value=Order, bootstrap=broker.bootstrap) as consumer:
        first = next(iter(consumer)).value.id
    assert left(broker, topic, "g", 4) == sorted({0, 1, 2, 3, 4} - {first})


def test_a_loop_that_was_left_goes_on_where_it_was(broker: Broker, topic: str) -> None:
    fill(broker, topic, 5)
    with Consumer(topic, group="g", value=Order, bootstrap=broker.bootstrap) as consumer:
        found = [next(iter(consumer)).value.id for _ in range(2)]
        while len(found) < 4:
            found += [message.value.id for message in consumer.receive_many(2, 10)]
        found += [message.value.id for message in itertools.islice(consumer, 5 - len(found))]
    assert sorted(found) == [0, 1, 2, 3, 4]


def test_a_topic_is_read_again_from_its_start_an_offset_or_a_time(broker: Broker, topic: str) -> None:
    fill(broker, topic, 4)
    with Consumer(topic, group="g", bootstrap=broker.bootstrap) as consumer:

        def read(count: int) -> set[tuple[int, int]]:
            """The places of so many messages, after which there are no more."""
            found = [consumer.receive(60) for _ in range(count)]
            assert consumer.receive(0.2) is None
            return {(message.partition, message.offset) for message in found if message is not None}

        places = read(4)
        consumer.seek_to_start()
        assert read(4) == places
        consumer.seek_to_time(datetime.now(UTC) - timedelta(hours=1))
        assert read(4) == places
        consumer.seek_to_time(datetime.now(UTC) + timedelta(hours=1))
        read(0)
        consumer.seek_to_start()
        consumer.seek_to_end()
        read(0)
        last = max(places)
        consumer.seek(topic, *last)
        assert read(1) == {last}


def test_members_that_come_and_go_handle_each_message_once(broker: Broker) -> None:
    topic = broker.create_topic(f"orders-{next(_numbers)}", partitions=6)
    fill(broker, topic, 3000)
    seen: list[int] = []

    def work(most: int) -> None:
        handled, until = 0, time.monotonic() + 60
        with Consumer(
            topic, group="g", value=Order, bootstrap=broker.bootstrap, settings={"heartbeat.interval.ms": 200}
        ) as consumer:
            while handled < most and len(seen) < 3000 and time.monotonic() < until:
                if message := consumer.receive(0.1):
                    time.sleep(0.0005)
                    seen.append(message.value.id)
                    handled += 1

    members = [threading.Thread(target=work, args=(most,)) for most in (5000, 300, 500)]
    for member in members:
        member.start()
        time.sleep(0.4)
    for member in members:
        member.join(60)
    assert Counter(seen) == Counter(range(3000))


def test_without_a_group_every_partition_is_read_and_nothing_committed(broker: Broker, topic: str) -> None:
    fill(broker, topic, 4)
    for _ in range(2):
        with Consumer(topic, group=None, value=Order, bootstrap=broker.bootstrap) as consumer:
            found = [message.value.id for message in itertools.islice(consumer, 4)]
        assert sorted(found) == [0, 1, 2, 3]


def test_what_cannot_be_delivered_is_told_where_the_block_ends(broker: Broker, topic: str) -> None:
    with pytest.raises(NotDelivered, match="absent"), Producer(broker.bootstrap, settings=SOON) as producer:  # noqa: PT012
        producer.send(topic, b"v")
        producer.send("absent", b"v")
    with Producer(broker.bootstrap, settings=SOON) as producer, pytest.raises(NotDelivered, match="absent"):
        producer.deliver("absent", b"v")


def test_a_topic_that_is_not_there_is_told_to_who_reads_it(broker: Broker) -> None:
    with (
        pytest.raises(UnknownTopic, match="absent"),
        Consumer("absent", group="g", bootstrap=broker.bootstrap) as consumer,
    ):
        consumer.receive(60)
    with pytest.raises(UnknownTopic, match="absent"):
        Consumer("absent", group=None, bootstrap=broker.bootstrap)


@pytest.mark.parametrize("make", [Consumer, Queue])
def test_what_reads_nothing_or_for_nobody_is_refused(make: Callable[..., object], broker: Broker) -> None:
    for topics in ([], [""], ""):
        with pytest.raises(ClientError, match="no topic"):
            make(topics, group="g", bootstrap=broker.bootstrap)
    with pytest.raises(ClientError):
        make("t", group="", bootstrap=broker.bootstrap)


def test_what_was_closed_gives_no_more(broker: Broker, topic: str) -> None:
    consumer = Consumer(topic, group="g", bootstrap=broker.bootstrap)
    consumer.close()
    consumer.close()
    with pytest.raises(ClientError, match="closed"):
        consumer.receive(1)
    queue = Queue(topic, group=topic, bootstrap=broker.bootstrap)
    queue.close()
    with pytest.raises(ClientError, match="closed"):
        queue.receive(1)


def test_a_transactional_producer_sends_within_transactions(broker: Broker, topic: str) -> None:
    with (
        Producer(broker.bootstrap, transactional_id=topic) as producer,
        pytest.raises(ClientError, match="within a tra"),
    ):
        producer.send(topic, "v")


@pytest.mark.parametrize("make", [lambda s: Producer(settings=s), lambda s: Consumer("t", group="g", settings=s)])
def test_a_setting_that_no_client_has_is_refused_with_the_nearest(make: Callable[[dict[str, object]], object]) -> None:
    with pytest.raises(ClientError, match=r"lingr\.ms.*linger\.ms"):
        make({"lingr.ms": 5})


def test_a_transaction_shows_all_or_nothing_and_moves_the_group_with_it(broker: Broker, topic: str) -> None:
    fill(broker, topic, 5)
    out = broker.create_topic(f"{topic}-out")
    with Producer(broker.bootstrap, transactional_id=topic) as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction():  # noqa: PT012
            producer.send(out, "never")
            producer.flush()
            _ = 1 / 0
        with Consumer(topic, group="g", bootstrap=broker.bootstrap, commits=False) as consumer:
            for message in itertools.islice(consumer, 5):
                with producer.transaction() as transaction:
                    producer.send(out, message.data)
                    transaction.send_offsets(consumer)
    assert left(broker, topic, "g", 0) == []
    assert left(broker, out, "g", 5) == [0, 1, 2, 3, 4]


def test_a_second_producer_with_the_same_transactional_id_fences_the_first(broker: Broker, topic: str) -> None:
    first, second = (Producer(broker.bootstrap, transactional_id=topic) for _ in range(2))
    with first.transaction():
        first.send(topic, "1")
    with second.transaction():
        second.send(topic, "2")
    with pytest.raises(ProducerFenced), first.transaction():
        first.send(topic, "3")


def test_on_asyncio_messages_go_and_come_and_a_wait_that_is_cancelled_loses_none(broker: Broker, topic: str) -> None:
    async def main() -> list[int]:
        found: list[int] = []
        async with (
            asyncio.timeout(60),
            AsyncConsumer(topic, group="g", value=Order, bootstrap=broker.bootstrap) as consumer,
        ):
            async with AsyncProducer(broker.bootstrap) as producer:
                places = await asyncio.gather(*(producer.deliver(topic, Order(number)) for number in range(50)))
                assert len(set(places)) == 50
            while len(found) < 20:
                try:
                    async with asyncio.timeout(0.01):
                        if message := await consumer.receive():
                            found.append(message.value.id)
                except TimeoutError:
                    pass
            async for message in consumer:
                found.append(message.value.id)
                if len(found) == 50:
                    break
        return found

    found = asyncio.run(main())
    assert sorted(found) == list(range(50))


def test_on_asyncio_a_transaction_and_what_is_not_delivered(broker: Broker, topic: str) -> None:
    out = broker.create_topic(f"{topic}-out")
    fill(broker, topic, 5)

    async def main() -> None:
        async with (
            asyncio.timeout(60),
            AsyncProducer(broker.bootstrap, transactional_id=topic) as producer,
            AsyncConsumer(topic, group="g", bootstrap=broker.bootstrap, commits=False) as consumer,
        ):
            with pytest.raises(ZeroDivisionError):  # noqa: PT012
                async with producer.transaction():
                    await producer.send(out, "never")
                    _ = 1 / 0
            async with producer.transaction() as transaction:
                for _ in range(5):
                    message = await consumer.receive()
                    assert message is not None
                    await producer.send(out, message.data)
                await transaction.send_offsets(consumer)
        with pytest.raises(NotDelivered, match="absent"):
            async with AsyncProducer(broker.bootstrap, settings=SOON) as producer:
                await producer.send("absent", b"v")

    asyncio.run(main())
    assert left(broker, topic, "g", 0) == []
    assert left(broker, out, "g", 5) == [0, 1, 2, 3, 4]


def test_topics_are_administered_on_asyncio(broker: Broker) -> None:
    async def main() -> Any:
        admin = AsyncAdmin(broker.bootstrap)
        assert await admin.create_topics(["made"], partitions=2) == {"made": None}
        await admin.create_partitions("made", 3)
        described = await admin.describe_topic("made")
        assert await admin.delete_topics(["made"]) == {"made": None}
        return described

    assert len(asyncio.run(main()).partitions) == 3


def test_a_program_that_uses_opentelemetry_sends_the_span_along(broker: Broker, topic: str) -> None:
    from opentelemetry import trace

    context = trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(1))
    with trace.use_span(trace.NonRecordingSpan(context)), Producer(broker.bootstrap) as producer:
        producer.deliver(topic, "v")
    with Consumer(topic, group="g", bootstrap=broker.bootstrap) as consumer:
        message = consumer.receive(60)
    assert message is not None
    assert message.header("traceparent") == f"00-{1:032x}-{2:016x}-01"


def test_a_function_among_the_settings_that_raises_stops_no_delivery(broker: Broker, topic: str) -> None:
    failed = threading.Event()

    def broken(_: str) -> None:
        if not failed.is_set():
            failed.set()
            raise ValueError("broken")

    async def main() -> None:
        producer = AsyncProducer(broker.bootstrap, settings={"statistics.interval.ms": 100, "stats_cb": broken})
        assert await asyncio.to_thread(failed.wait, 60)
        async with asyncio.timeout(60):
            await producer.deliver(topic, b"1")
            await producer.close()

    asyncio.run(main())


def test_clients_made_before_a_fork_say_so_in_the_child(broker: Broker, topic: str) -> None:
    producer = Producer(broker.bootstrap)
    consumer = Consumer(topic, group="parents", bootstrap=broker.bootstrap)
    attempts: tuple[Callable[[], object], ...] = (
        lambda: producer.send(topic, 1),
        producer.flush,
        lambda: consumer.receive(1),
        consumer.close,
    )
    reading, writing = os.pipe()
    if not (child := os.fork()):
        for attempt in attempts:
            try:
                attempt()
            except ClientError as error:
                os.write(writing, f"{error}\n".encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as told:
        assert told.read().count("make one in each process") == len(attempts)
    producer.deliver(topic, b"1")
    producer.close()
    consumer.close()


class LostCoordinator:
    """A transactional producer of librdkafka whose group's coordinator never answers."""

    def init_transactions(self, _seconds: float) -> None: ...

    def begin_transaction(self) -> None: ...

    def send_offsets_to_transaction(self, *_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True))


def test_offsets_that_no_coordinator_takes_end_a_producer_rather_than_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor longer than the brokers keep the transaction."""
    producer = Producer("127.0.0.1:1", transactional_id="lost", settings={"transaction.timeout.ms": 1000})
    monkeypatch.setattr(producer, "_transaction_seconds", 0.05)
    monkeypatch.setattr(producer, "_producer", LostCoordinator())
    with pytest.raises(ProducerFenced, match="hangs"), producer.transaction() as transaction:
        transaction.send_positions([], object())


class Silent(LostCoordinator):
    """One that does not even return in time."""

    def __init__(self) -> None:
        self.may_return = threading.Event()

    def send_offsets_to_transaction(self, *_: object) -> None:
        self.may_return.wait(60)


def test_a_call_that_does_not_return_in_time_ends_its_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.client.producer._LATE_SECONDS", 0.05)
    producer, library = Producer("127.0.0.1:1", transactional_id="silent"), Silent()
    monkeypatch.setattr(producer, "_producer", library)
    monkeypatch.setattr(producer, "_transaction_seconds", 0.05)
    with pytest.raises(ProducerFenced, match="hangs"), producer.transaction() as transaction:
        transaction.send_positions([], object())
    library.may_return.set()
