"""A copier in a process of its own, to be killed: `python -m tests.support.faults.copier JSON`, with a `Task` as JSON.

It reads a topic in a group and writes what it read, transformed, to the same partitions of another, in transactions
that hold the offsets, too. It says `copied N` after each commit, N being all that was ever copied, and ends when that
is everything. What a producer cannot go on after ends it with `GAVE_UP`, for its keeper to start it again.

So does a call that hangs: librdkafka (2.10 to 2.16 at least) waits without end, whatever its timeout, to send offsets
to a group coordinator that is gone from the cluster's metadata (its issues 5456 and 5511).
"""

import dataclasses
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from .load import IMPATIENT

GAVE_UP: Final = 3
PATIENCE_SECONDS: Final = 60.0
HANGS_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """What to copy, and how."""

    bootstrap: str
    source: str
    target: str
    partitions: int
    records: int
    batch: int = 500
    name: str = "copier"
    """The group, its member, and the transactional id."""
    abort_every: int = 10
    """Each such transaction is aborted by the copier itself, once it is written."""


def transformed(value: bytes) -> bytes:
    return b"copy of " + value


class _Copier:
    def __init__(self, task: Task) -> None:
        self._task = task
        self._begun = 0
        self._producer = Producer(
            {
                "bootstrap.servers": task.bootstrap,
                "transactional.id": task.name,
                "transaction.timeout.ms": 30_000,
                "linger.ms": 1,
                **IMPATIENT,
            }
        )
        self._consumer = Consumer(
            {
                "bootstrap.servers": task.bootstrap,
                "group.id": task.name,
                "group.instance.id": task.name,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 10_000,
                "heartbeat.interval.ms": 1_000,
                **IMPATIENT,
            }
        )
        self._places = [TopicPartition(task.source, index) for index in range(task.partitions)]

    def run(self) -> None:
        # Ends the transaction of whoever was killed before its offsets are asked for.
        _again(lambda: self._producer.init_transactions(PATIENCE_SECONDS))
        self._consumer.subscribe([self._task.source])
        while self._copied() < self._task.records:
            while messages := self._messages():
                if self._copy(messages):
                    _say(f"copied {self._copied()}")
        self._consumer.close()

    def _messages(self) -> list[Message]:
        found = self._consumer.consume(self._task.batch, POLL_SECONDS)
        return [message for message in found if message.error() is None]

    def _copied(self) -> int:
        return sum(max(place.offset, 0) for place in self._consumer.committed(self._places, PATIENCE_SECONDS))

    def _copy(self, messages: Sequence[Message]) -> bool:
        """Whether it is done; if not, what was read will be read again."""
        self._producer.begin_transaction()
        self._begun += 1
        try:
            self._write(messages)
            if self._begun % self._task.abort_every == 0:
                self._producer.flush(PATIENCE_SECONDS)
                self._abort()
                return False
            _again(lambda: self._producer.commit_transaction(PATIENCE_SECONDS))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            _say(f"aborts: {error}")
            self._abort()
            return False
        return True

    def _write(self, messages: Sequence[Message]) -> None:
        for message in messages:
            value = transformed(message.value() or b"")
            self._producer.produce(self._task.target, value, partition=message.partition())
        offsets = _offsets_after(messages)
        group = self._consumer.consumer_group_metadata()
        with _ended_if_it_hangs():
            _again(lambda: self._producer.send_offsets_to_transaction(offsets, group, PATIENCE_SECONDS))

    def _abort(self) -> None:
        _again(lambda: self._producer.abort_transaction(PATIENCE_SECONDS))
        for place in self._consumer.committed(self._consumer.assignment(), PATIENCE_SECONDS):
            self._consumer.seek(TopicPartition(place.topic, place.partition, max(place.offset, 0)))


def _offsets_after(messages: Iterable[Message]) -> list[TopicPartition]:
    ends = {(message.topic(), message.partition()): message.offset() + 1 for message in messages}
    return [TopicPartition(topic, partition, end) for (topic, partition), end in ends.items()]


@contextmanager
def _ended_if_it_hangs() -> Iterator[None]:
    def end() -> None:
        _say("gives up: sending offsets hangs")
        os._exit(GAVE_UP)

    timer = threading.Timer(HANGS_SECONDS, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _again(call: Callable[[], object]) -> None:
    """Call until it works, or fails in a way that trying again does not help."""
    while True:
        try:
            call()
        except KafkaException as error:
            found: KafkaError = error.args[0]
            if not found.retriable():
                raise
            _say(f"again: {error}")
        else:
            return


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - its keeper reads it


def main() -> int:
    try:
        _Copier(Task(**json.loads(sys.argv[1]))).run()
    except KafkaException as error:
        _say(f"gives up: {error}")
        return GAVE_UP
    return 0


if __name__ == "__main__":
    sys.exit(main())
