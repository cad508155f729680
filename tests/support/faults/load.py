"""Real clients that write and read without end while a test breaks a cluster, and what became of it in the end."""

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.support.checker.history import History, Operation, Records
from tests.support.checker.violations import violations
from tests.support.process import ClusterProcesses, wait_for

TICK_SECONDS = 0.02
GIVE_UP_MS = 120_000
MOST_UNDER_WAY = 2_000
IMPATIENT = {
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "socket.timeout.ms": 10_000,
    "log_level": 0,
}
"""What librdkafka is told so that its own patience is not measured as the cluster's."""


class Load:
    """Idempotent producers with acks=all and a consumer, on some partitions of a topic, until it is closed."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, *, producers: int = 2, size: int = 100, **options: Any
    ) -> None:
        self.history = History(time.monotonic)
        self.answers: dict[int, list[tuple[float, float]]] = defaultdict(list)
        """By partition: when a record was handed to a producer, and when it was acknowledged."""
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._padding = b"." * size
        self._options = options
        self._is_over = threading.Event()
        self._threads = [
            *(threading.Thread(target=self._write, args=(f"producer-{n}",)) for n in range(producers)),
            threading.Thread(target=self._read),
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop sending, and wait for what is under way; safe to call twice."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(2 * GIVE_UP_MS / 1000)
            assert not thread.is_alive()

    def wait_for_answers(self, since: float) -> float:
        """How long after a moment every partition has acknowledged something that was sent after it."""
        waits = dict.fromkeys(range(self._partitions), 0.0)

        def answered() -> bool:
            for partition in waits:
                later = [end for begin, end in list(self.answers[partition])[-5_000:] if begin > since]
                waits[partition] = min(later, default=0.0) - since
            return min(waits.values()) > 0

        wait_for("every partition acknowledges", answered)
        return max(waits.values())

    def wait_for_reader(self) -> None:
        """Returns when the consumer has seen what was acknowledged before."""
        last = {partition: max(values) for (_, partition), values in self.history.placed().items()}

        def is_seen() -> bool:
            return all(offset in self.history.seen(self._topic, part) for part, offset in last.items())

        wait_for("the consumer sees it all", is_seen)

    def problems(self) -> list[str]:
        """What is wrong with what clients were told and shown; the load must be closed."""
        for partition, records in read_all(self._bootstrap, self._topic, self._partitions).items():
            held = [(offset, value, None) for offset, value in records.items()]
            self.history.final(self._topic, partition, held)
        return violations(self.history.events)

    def _write(self, name: str) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "message.timeout.ms": GIVE_UP_MS,
                **IMPATIENT,
                **self._options,
            }
        )
        try:
            self._write_on(producer, name)
        except KafkaException as error:
            self.history.complain(f"{name}: {error}")
        if producer.flush(GIVE_UP_MS / 1000):
            self.history.complain(f"{name}: {len(producer)} records were never answered")

    def _write_on(self, producer: Producer, name: str) -> None:
        number = 0
        while not self._is_over.is_set():
            if len(producer) < MOST_UNDER_WAY:
                for partition in range(self._partitions):
                    self._send(producer, name, partition, number)
                    number += 1
            producer.poll(TICK_SECONDS)
            self._is_over.wait(TICK_SECONDS)

    def _send(self, producer: Producer, name: str, partition: int, number: int) -> None:
        value = b"%s %d %s" % (name.encode(), number, self._padding)
        operation = self.history.send(name, self._topic, partition, [value.decode()], stream=name)
        told = partial(self._told, operation, name, time.monotonic())
        producer.produce(self._topic, value, partition=partition, on_delivery=told)

    def _told(self, operation: Operation, name: str, begun: float, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.history.complain(f"{name}: {error}")
            return
        offset = message.offset()
        operation.ok(offset=-1 if offset is None else offset)  # not told where a later batch's answer stood for it
        self.answers[message.partition()].append((begun, time.monotonic()))

    def _read(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": f"readers of {self._topic}",
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 500,
                **IMPATIENT,
            }
        )
        with ExitStack() as held:
            held.callback(consumer.close)
            consumer.subscribe([self._topic])
            while not self._is_over.is_set():
                for message in consumer.consume(500, timeout=0.2):
                    if message.error() is None:
                        offset, value = message.offset(), message.value().decode()
                        self.history.saw("reader", self._topic, message.partition(), offset, [(offset, value, None)])


def read_all(bootstrap: str, topic: str, partitions: int) -> dict[int, Records]:
    """What each partition holds, as a consumer is shown it."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "nobody", "enable.auto.commit": False, **IMPATIENT}
    )
    found: dict[int, Records] = {}
    try:
        for partition in range(partitions):
            found[partition] = _read_partition(consumer, TopicPartition(topic, partition, 0))
    finally:
        consumer.close()
    return found


def _read_partition(consumer: Consumer, place: TopicPartition) -> Records:
    deadline = time.monotonic() + 120
    end = _end_of(consumer, place, deadline)
    consumer.assign([place])
    found: dict[int, str] = {}
    position = 0
    while position < end:
        assert time.monotonic() < deadline, f"{place}: {position} of {end}"
        for message in consumer.consume(1_000, timeout=1):
            assert message.error() is None, message.error()
            found[message.offset()] = message.value().decode()
            position = message.offset() + 1
    return found


def _end_of(consumer: Consumer, place: TopicPartition, deadline: float) -> int:
    """The end of a partition, which librdkafka asks for once: the leader may move meanwhile, as preferred ones do."""
    while True:
        try:
            end: int = consumer.get_watermark_offsets(place, timeout=120)[1]
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return end


def logs_of(cluster: ClusterProcesses, topic: str, partition: int) -> dict[int, bytes]:
    """By broker: the bytes of its replica's log, wherever it was cut into files."""
    found: dict[int, bytes] = {}
    for number in cluster.brokers:
        directory = cluster.data_of(number) / f"{topic}-{partition}"
        if directory.is_dir():
            found[number] = b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))
    return found


def wait_for_equal_replicas(cluster: ClusterProcesses, topic: str, replicas: Mapping[int, int]) -> None:
    """Returns when all the replicas of each partition, so many of it, have the same bytes in their logs."""

    def equal() -> bool:
        for partition, count in replicas.items():
            logs = logs_of(cluster, topic, partition)
            if len(logs) != count or len(set(logs.values())) != 1:
                return False
        return True

    wait_for("replicas are equal, byte by byte", equal)
