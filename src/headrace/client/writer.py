"""Send many records with a bounded buffer, and know how many arrived."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from .admin import client_settings
from .errors import ClientError, from_kafka, translated
from .waiting import Diagnose, LibraryErrors, OnWait

MAX_RECORD_BYTES: Final = 64 << 20
"""The largest record this client tries; the broker's own limit (`max.message.bytes`) is usually far below."""

_BUFFER_KBYTES: Final = 64 << 10
_SLICE_SECONDS: Final = 0.2
_SILENCE_SECONDS: Final = 1.5
"""After which records without an answer are told of. librdkafka's idempotent producer looks for a broker that gives it
an id each half second, so that its first records may take a second where nothing is wrong."""
_WITHDRAWN: Final = ("_PURGE_QUEUE", "_PURGE_INFLIGHT")


@dataclass(slots=True, kw_only=True)
class OutgoingRecord:
    value: bytes | None
    key: bytes | None = None
    headers: list[tuple[str, bytes | None]] | None = None
    timestamp: int = 0
    """Milliseconds since 1970; 0 takes the time of sending."""
    partition: int = -1
    """-1 leaves it to the key; that of the writer, if it has one, goes before."""


class RecordWriter:
    """Records in, in order, to a topic that exists; `failure` is set as soon as one was refused.

    Records that get no answer for a moment are told to `on_wait`, with the reason that `diagnose` finds.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        settings: Mapping[str, Any] | None = None,
        partition: int | None = None,
        *,
        on_wait: OnWait | None = None,
        diagnose: Diagnose | None = None,
    ) -> None:
        from confluent_kafka import KafkaException, Producer

        self.topic = topic
        self.sent = 0
        self.sent_bytes = 0
        self.failed = 0
        self.failure: ClientError | None = None
        self._partition = -1 if partition is None else partition
        self._on_wait = on_wait or (lambda _message: None)
        self._diagnose = diagnose or (lambda: None)
        self._errors = LibraryErrors()
        self._moved_at = time.monotonic()
        self._arrived = 0
        self._has_told = False
        defaults = {
            "partitioner": "murmur2_random",
            "queue.buffering.max.kbytes": _BUFFER_KBYTES,
            "message.max.bytes": MAX_RECORD_BYTES,
            "delivery.report.only.error": True,
            "on_delivery": self._on_failure,
            "linger.ms": 5,
        }
        with translated():
            self._producer = Producer(
                {**defaults, **client_settings(bootstrap, errors=self._errors), **(settings or {})}
            )
        self._produce = self._producer.produce
        self._refusals = KafkaException

    @property
    def delivered(self) -> int:
        """Records known to have arrived; final once `finish` has returned."""
        return self.sent - self.failed - len(self._producer)

    def write(self, record: OutgoingRecord) -> None:
        """Queue one record; waits while the buffer is full. The hot path of bulk loads: no context managers here."""
        value, key = record.value, record.key
        partition = record.partition if self._partition < 0 else self._partition
        while True:
            try:
                if record.headers or record.timestamp:
                    self._produce(self.topic, value, key, partition, None, None, record.timestamp, record.headers)
                else:
                    self._produce(self.topic, value, key, partition)
                break
            except BufferError:
                self._producer.poll(0.1)
                self._tell_of_silence()
            except self._refusals as exception:
                self.sent += 1
                self._on_failure(exception.args[0], None)
                return
        self.sent += 1
        self.sent_bytes += (len(value) if value else 0) + (len(key) if key else 0)
        if self.sent & 0xFF == 0:
            self._producer.poll(0)

    def poll(self, timeout: float = 0) -> None:
        """Take in what the broker said meanwhile."""
        self._producer.poll(timeout)

    def finish(self, timeout: float) -> int:
        """Wait until every record has an answer; how many have none when the time is up."""
        deadline = time.monotonic() + timeout
        while left := int(self._producer.flush(min(_SLICE_SECONDS, max(deadline - time.monotonic(), 0.0)))):
            if time.monotonic() >= deadline:
                return left
            self._tell_of_silence()
        return 0

    def _tell_of_silence(self) -> None:
        now, arrived = time.monotonic(), self.delivered
        if arrived != self._arrived or not len(self._producer):
            self._moved_at, self._arrived, self._has_told = now, arrived, False
        elif not self._has_told and now - self._moved_at > _SILENCE_SECONDS:
            self._has_told = True
            found = self._diagnose()
            reason = self._errors.last if found is None else found.message
            # The length of a producer counts its events, too.
            waiting = min(len(self._producer), self.sent - self.failed)
            records = "1 record has" if waiting == 1 else f"{waiting} records have"
            self._on_wait(f"{records} no answer yet{f': {reason}' if reason else ''}")

    def withdraw(self, *, in_flight: bool = False) -> None:
        """Send no more of what is queued, which then counts as never written; `in_flight`: nor wait for its answers."""
        self._producer.purge(in_queue=True, in_flight=in_flight, blocking=True)
        self._producer.poll(0)

    def _on_failure(self, error: Any, _message: Any) -> None:
        if error is None:
            return
        if error.name() in _WITHDRAWN:
            self.sent -= 1
            return
        self.failed += 1
        if self.failure is None:
            self.failure = from_kafka(error, self.topic)
