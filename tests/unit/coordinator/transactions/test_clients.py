"""Transactions of other people's clients, and of the command line, against a broker."""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import ProducerFenced
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaProducer
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as PythonPartition
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.coordinator.transactions import markers
from headrace.testing import Broker

pytestmark = pytest.mark.slow

PARTITIONS = 3
MANY = 100
PATIENCE = 60.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.num.partitions": 3,
        "transaction.state.log.num.partitions": 3,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    }
    with Broker(settings) as broker:
        yield broker


def confluent_producer(broker: Broker, name: str, **settings: object) -> Producer:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name, "log_level": 0, **settings})
    producer.init_transactions(PATIENCE)
    return producer


def read(broker: Broker, topic: str, partitions: int, *, committed: bool = True) -> list[str]:
    """What a reader sees of a whole topic."""
    level = "read_committed" if committed else "read_uncommitted"
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "isolation.level": level,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([ConfluentPartition(topic, index, 0) for index in range(partitions)])
    values: list[str] = []
    ended: set[int] = set()
    deadline = time.monotonic() + PATIENCE
    while len(ended) < partitions:
        assert time.monotonic() < deadline, f"only {sorted(ended)} of {topic} were read to their end"
        for message in consumer.consume(500, 0.2):
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition() or 0)
            else:
                values.append((message.value() or b"").decode())
    consumer.close()
    return sorted(values)


def ends(broker: Broker, topic: str, partitions: int, level: str) -> list[int]:
    """Where the partitions end for readers of a level."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader", "isolation.level": level})
    places = [ConfluentPartition(topic, index) for index in range(partitions)]
    found = [int(consumer.get_watermark_offsets(place, PATIENCE)[1]) for place in places]
    consumer.close()
    return found


def read_decided(broker: Broker, topic: str, partitions: int) -> list[str]:
    """What readers of committed records see once all is decided: markers come after the answer to who commits."""
    until(
        lambda: ends(broker, topic, partitions, "read_committed") == ends(broker, topic, partitions, "read_uncommitted")
    )
    return read(broker, topic, partitions)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.05)


# confluent-kafka


def test_confluent_commits_and_aborts(broker: Broker) -> None:
    topic = broker.create_topic("confluent", PARTITIONS)
    producer = confluent_producer(broker, "confluent")
    for number in range(6):
        producer.begin_transaction()
        for index in range(PARTITIONS):
            producer.produce(topic, f"{number}", partition=index)
        producer.flush(PATIENCE)
        producer.commit_transaction(PATIENCE) if number % 2 else producer.abort_transaction(PATIENCE)
    assert read_decided(broker, topic, PARTITIONS) == sorted("135" * PARTITIONS)
    assert read(broker, topic, PARTITIONS, committed=False) == sorted("012345" * PARTITIONS)


def test_a_zombie_of_confluent_is_shut_out(broker: Broker) -> None:
    topic = broker.create_topic("zombie", 1)
    zombie = confluent_producer(broker, "zombie")
    zombie.begin_transaction()
    zombie.produce(topic, "of the zombie")
    zombie.flush(PATIENCE)
    successor = confluent_producer(broker, "zombie")
    successor.begin_transaction()
    successor.produce(topic, "of the successor")
    with pytest.raises(KafkaException) as raised:
        zombie.commit_transaction(PATIENCE)
    assert raised.value.args[0].fatal()
    successor.commit_transaction(PATIENCE)
    assert read_decided(broker, topic, 1) == ["of the successor"]


def test_a_transaction_that_nobody_ends_holds_readers_no_longer_than_its_timeout(broker: Broker) -> None:
    topic = broker.create_topic("timeout", 1)
    silent = confluent_producer(broker, "silent", **{"transaction.timeout.ms": 1_000, "message.timeout.ms": 1_000})
    silent.begin_transaction()
    silent.produce(topic, "never committed")
    silent.flush(PATIENCE)
    other = confluent_producer(broker, "other")
    other.begin_transaction()
    other.produce(topic, "committed")
    other.commit_transaction(PATIENCE)
    assert read(broker, topic, 1) in ([], ["committed"])
    until(lambda: read(broker, topic, 1) == ["committed"])
    with pytest.raises(KafkaException):
        silent.commit_transaction(PATIENCE)


def test_offsets_are_committed_with_what_was_made_of_the_records(broker: Broker) -> None:
    source, target = broker.create_topic("ctp-in", 1), broker.create_topic("ctp-out", 1)
    plain = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(100):
        plain.produce(source, f"{number:03}")
    plain.flush(PATIENCE)
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": "ctp",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
    }
    done, commits = 0, 0
    while done < 100:
        consumer = Consumer(settings)
        consumer.subscribe([source])
        producer = confluent_producer(broker, "ctp")
        messages = [m for m in consumer.consume(20, PATIENCE) if not m.error()]
        producer.begin_transaction()
        for message in messages:
            producer.produce(target, message.value())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), PATIENCE
        )
        commits += 1
        if commits % 3 == 0:
            producer.abort_transaction(PATIENCE)
        else:
            producer.commit_transaction(PATIENCE)
            done += len(messages)
        consumer.close()
    assert read_decided(broker, target, 1) == [f"{number:03}" for number in range(100)]


def test_a_hundred_partitions_in_one_transaction(broker: Broker) -> None:
    topic = broker.create_topic("many", MANY)
    producer = confluent_producer(broker, "many")
    for number in range(2):
        producer.begin_transaction()
        for index in range(MANY):
            producer.produce(topic, str(number), partition=index)
        producer.flush(PATIENCE)
        producer.commit_transaction(PATIENCE) if number else producer.abort_transaction(PATIENCE)
    assert read_decided(broker, topic, MANY) == ["1"] * MANY


# aiokafka


def test_aiokafka_commits_aborts_and_is_fenced(broker: Broker) -> None:
    topic = broker.create_topic("aiokafka", PARTITIONS)

    async def main() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id="aiokafka")
        await producer.start()
        for number in range(4):
            with contextlib.suppress(ZeroDivisionError):
                async with producer.transaction():
                    for index in range(PARTITIONS):
                        await producer.send_and_wait(topic, str(number).encode(), partition=index)
                    if not number % 2:
                        raise ZeroDivisionError
        successor = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id="aiokafka")
        await successor.start()
        with pytest.raises(ProducerFenced):
            async with producer.transaction():
                await producer.send_and_wait(topic, b"of the zombie", partition=0)
        await successor.stop()
        with contextlib.suppress(ProducerFenced):
            await producer.stop()

    asyncio.run(main())
    assert read_decided(broker, topic, PARTITIONS) == sorted("13" * PARTITIONS)


def test_aiokafka_commits_offsets_in_a_transaction(broker: Broker) -> None:
    source, target = broker.create_topic("aio-in", 1), broker.create_topic("aio-out", 1)

    async def main() -> int:
        where = TopicPartition(source, 0)
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id="aio-ctp")
        await producer.start()
        async with producer.transaction():
            for number in range(10):
                await producer.send(source, str(number).encode(), partition=0)
        consumer = AIOKafkaConsumer(
            bootstrap_servers=broker.bootstrap,
            group_id="aio-ctp",
            isolation_level="read_committed",
            enable_auto_commit=False,
        )
        await consumer.start()
        consumer.assign([where])
        await consumer.seek_to_beginning(where)
        messages = [await consumer.getone() for _ in range(10)]
        async with producer.transaction():
            for message in messages:
                await producer.send(target, message.value, partition=0)
            await producer.send_offsets_to_transaction({where: messages[-1].offset + 1}, "aio-ctp")
        async with asyncio.timeout(PATIENCE):
            while (committed := await consumer.committed(where)) is None:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.02)  # it does not ask for what is stable, and markers come after the answer
        await consumer.stop()
        await producer.stop()
        return int(committed or 0)

    assert asyncio.run(main()) == 10
    assert read_decided(broker, target, 1) == [str(number) for number in range(10)]


# kafka-python


def test_kafka_python_commits_and_aborts_with_offsets(broker: Broker) -> None:
    topic = broker.create_topic("kafka-python", PARTITIONS)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id="kafka-python")
    producer.init_transactions()
    for number in range(4):
        producer.begin_transaction()
        for index in range(PARTITIONS):
            producer.send(topic, str(number).encode(), partition=index)
        producer.flush()
        offsets = {PythonPartition(topic, 0): OffsetAndMetadata(number, "", -1)}
        producer.send_offsets_to_transaction(offsets, "kafka-python")
        producer.commit_transaction() if number % 2 else producer.abort_transaction()
    producer.close()
    assert read_decided(broker, topic, PARTITIONS) == sorted("13" * PARTITIONS)


# The command line


def run(broker: Broker, *arguments: str) -> str:
    result = CliRunner().invoke(app, ["txn", *arguments, "--bootstrap", broker.bootstrap])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_open_transactions_are_listed_described_and_aborted(broker: Broker) -> None:
    topic = broker.create_topic("cli", 1)
    producer = confluent_producer(broker, "cli")
    producer.begin_transaction()
    producer.produce(topic, "x")
    producer.flush(PATIENCE)
    (listed,) = json.loads(run(broker, "list", "--state", "Ongoing", "--pattern", "cli", "--json"))
    assert (listed["id"], listed["state"]) == ("cli", "Ongoing")
    (described,) = json.loads(run(broker, "describe", "cli", "--json"))
    assert (described["state"], described["partitions"]) == ("Ongoing", ["cli-0"])
    (writing,) = json.loads(run(broker, "producers", topic, "--json"))
    assert (writing["producer_id"], writing["start_offset"]) == (listed["producer_id"], 0)
    run(broker, "abort", "cli")
    assert run(broker, "describe", "cli").splitlines()[1].split() == ["state", "Empty"]
    with pytest.raises(KafkaException):
        producer.commit_transaction(PATIENCE)
    assert read_decided(broker, topic, 1) == []


def test_a_transaction_that_hangs_in_a_partition_is_aborted_there(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.create_topic("hanging", 1)
    producer = confluent_producer(broker, "hanging")
    producer.begin_transaction()
    producer.produce(topic, "x")
    producer.flush(PATIENCE)
    abort = ["txn", "abort", "--topic", topic, "--bootstrap", broker.bootstrap]
    known = CliRunner().invoke(app, [*abort, "--start-offset", "0"])
    assert (known.exit_code, "its coordinator knows it" in known.output) == (1, True)
    with monkeypatch.context() as no_marker_comes:
        no_marker_comes.setattr(markers, "is_gone", lambda *_: True)
        producer.abort_transaction(PATIENCE)
    run(broker, "abort", "--topic", topic, "--start-offset", "0")
    (writing,) = json.loads(run(broker, "producers", topic, "--json"))
    assert writing["start_offset"] is None
    assert CliRunner().invoke(app, [*abort, "--start-offset", "7"]).exit_code == 1
