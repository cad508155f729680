"""Read ranges of a topic's partitions, without a group.

librdkafka wants a `group.id`, but partitions that are assigned by hand with explicit offsets, and never committed,
need no coordinator.
"""

import time
from collections.abc import Generator, Mapping
from typing import Any, Final

from .admin import client_settings
from .errors import ClientError, ClusterUnreachable, from_kafka, translated
from .waiting import NOTE_SECONDS, Diagnose, OnWait

_BATCH: Final = 500
_POLL_SECONDS: Final = 0.2
_PATIENCE_SECONDS: Final = 30.0
"""How long the records of a range that exists may take to come."""
_COORDINATION: Final = frozenset(
    {
        "COORDINATOR_NOT_AVAILABLE",
        "NOT_COORDINATOR",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "_WAIT_COORD",
        "_UNSUPPORTED_FEATURE",
        "GROUP_AUTHORIZATION_FAILED",
    }
)
"""Errors of a group, which this reader has none of."""
_UNREADABLE: Final = frozenset({"_BAD_MSG", "_BAD_COMPRESSION", "INVALID_MSG"})
_PAST_IT: Final = "read on from a later offset, or delete what is before one with `headrace topic trim`"
_PASSING: Final = frozenset({"_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT", "REQUEST_TIMED_OUT"})


class RecordReader:
    """Messages of `starts`' partitions, each from its offset, up to (not including) its offset in `ends`.

    With `ends` None there is no end. Messages of one partition come in order; partitions mix. Where nothing comes,
    `diagnose` is asked why: what it finds ends a read that has an end, and is told to `on_wait` by one that has none.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        starts: Mapping[int, int],
        ends: Mapping[int, int] | None,
        settings: Mapping[str, Any] | None = None,
        *,
        on_wait: OnWait | None = None,
        diagnose: Diagnose | None = None,
    ) -> None:
        self._topic = topic
        self._on_wait = on_wait or (lambda _message: None)
        self._diagnose = diagnose or (lambda: None)
        self._is_silent = False
        self._ends = ends
        self._open = {p for p, start in starts.items() if ends is None or start < ends[p]}
        self._starts = {p: starts[p] for p in self._open}
        self._settings = {
            "group.id": "headrace-cli",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "queued.max.messages.kbytes": 32 << 10,
            "fetch.wait.max.ms": 100,
            **client_settings(bootstrap),
            **(settings or {}),
        }

    def messages(self) -> Generator[Any | None, None, None]:
        """Each message in the range, and None whenever none came for a moment."""
        if not self._open:
            return
        from confluent_kafka import Consumer, TopicPartition

        with translated(self._topic):
            consumer = Consumer(self._settings)
        try:
            consumer.assign([TopicPartition(self._topic, p, offset) for p, offset in self._starts.items()])
            yield from self._poll(consumer)
        finally:
            consumer.close()

    def done(self, message: Any) -> None:
        """As of `GroupReader`: there is nothing to remember."""

    def commit(self) -> None:
        """As of `GroupReader`: there is nobody to commit for."""

    def _poll(self, consumer: Any) -> Generator[Any | None, None, None]:
        last = looked = time.monotonic()
        while self._open:
            batch = consumer.consume(_BATCH, _POLL_SECONDS)
            now = time.monotonic()
            if batch:
                last = looked = now
            else:
                yield None
                if now - looked > NOTE_SECONDS:
                    self._look_into_silence()
                    looked = time.monotonic()
            if self._ends is not None and now - last > _PATIENCE_SECONDS:
                raise ClusterUnreachable(
                    f"no records came from '{self._topic}' for {_PATIENCE_SECONDS:.0f} s ({self._standing(consumer)}); "
                    f"if the brokers are up, a batch there cannot be read: {_PAST_IT}"
                )
            for message in batch:
                if self._is_record(consumer, message):
                    yield message

    def _look_into_silence(self) -> None:
        failure = self._diagnose()
        if failure is not None and self._ends is not None:
            raise failure
        if failure is not None and not self._is_silent:
            self._on_wait(f"waiting for a broker: {failure.message}")
        elif failure is None and self._is_silent:
            self._on_wait("a broker answers again")
        self._is_silent = failure is not None

    def _is_record(self, consumer: Any, message: Any) -> bool:
        error = message.error()
        if error is not None:
            self._on_event(consumer, message, error)
            return False
        partition = message.partition()
        if partition not in self._open:
            return False
        if self._ends is None:
            return True
        end = self._ends[partition]
        if message.offset() >= end - 1:
            self._finish(consumer, partition)
        return bool(message.offset() < end)

    def _on_event(self, consumer: Any, message: Any, error: Any) -> None:
        name = error.name()
        if name == "_PARTITION_EOF":
            # The last offsets before an end can be without a message: markers of transactions, compacted records.
            if self._ends is not None:
                self._finish(consumer, message.partition())
        elif name in _UNREADABLE:
            raise ClientError(f"{error.str()}: the batch cannot be read; {_PAST_IT}", name)
        elif name not in _COORDINATION and (error.fatal() or name not in _PASSING):
            raise from_kafka(error, self._topic)

    def _standing(self, consumer: Any) -> str:
        from confluent_kafka import TopicPartition

        places = consumer.position([TopicPartition(self._topic, p) for p in sorted(self._open)])
        offsets = {p.partition: p.offset if p.offset >= 0 else self._starts[p.partition] for p in places}
        return ", ".join(f"partition {partition} at offset {offset}" for partition, offset in offsets.items())

    def _finish(self, consumer: Any, partition: int) -> None:
        from confluent_kafka import TopicPartition

        if partition in self._open:
            self._open.discard(partition)
            consumer.pause([TopicPartition(self._topic, partition)])
