"""Send many records with a bounded buffer, and know how many arrived."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from .admin import client_settings
from .errors import ClientError, UnknownTopic, from_kafka, translated
from .probe import require_listener

MAX_RECORD_BYTES: Final = 64 << 20
"""The largest record this client tries; the broker's own limit (`max.message.bytes`) is usually far below."""

_BUFFER_KBYTES: Final = 64 << 10
_SETTLE_SECONDS: Final = 5.0


@dataclass(slots=True, kw_only=True)
class Record:
    value: bytes | None
    key: bytes | None = None
    headers: list[tuple[str, bytes]] | None = None
    timestamp: int = 0
    """Milliseconds since 1970; 0 takes the time of sending."""


class RecordWriter:
    """Records in, in order; `failure` is set as soon as one was refused."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        settings: Mapping[str, Any] | None = None,
        partition: int | None = None,
    ) -> None:
        require_listener(bootstrap)
        from confluent_kafka import KafkaException, Producer

        self.topic = topic
        self.sent = 0
        self.sent_bytes = 0
        self.failed = 0
        self.failure: ClientError | None = None
        self._partition = -1 if partition is None else partition
        defaults = {
            "partitioner": "murmur2_random",
            "queue.buffering.max.kbytes": _BUFFER_KBYTES,
            "message.max.bytes": MAX_RECORD_BYTES,
            "delivery.report.only.error": True,
            "on_delivery": self._on_failure,
            "linger.ms": 5,
        }
        with translated():
            self._producer = Producer({**defaults, **client_settings(bootstrap), **(settings or {})})
        self._produce = self._producer.produce
        self._refusals = KafkaException

    @property
    def delivered(self) -> int:
        """Records known to have arrived; final once `finish` has returned."""
        return self.sent - self.failed - len(self._producer)

    def require_topic(self) -> int:
        """The topic's number of partitions; waits a moment for one that the broker makes on demand."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            with translated(self.topic):
                found = self._producer.list_topics(self.topic, timeout=10).topics.get(self.topic)
            if found is not None and found.error is None and found.partitions:
                return len(found.partitions)
            error = UnknownTopic(self.topic) if found is None else from_kafka(found.error, self.topic)
            being_made = error.code == "LEADER_NOT_AVAILABLE"
            if not being_made or time.monotonic() > deadline:
                raise error
            time.sleep(0.05)

    def write(self, record: Record) -> None:
        """Queue one record; waits while the buffer is full. The hot path of bulk loads: no context managers here."""
        value, key = record.value, record.key
        while True:
            try:
                if record.headers or record.timestamp:
                    self._produce(self.topic, value, key, self._partition, None, None, record.timestamp, record.headers)
                else:
                    self._produce(self.topic, value, key, self._partition)
                break
            except BufferError:
                self._producer.poll(0.1)
            except self._refusals as exception:
                raise from_kafka(exception.args[0], self.topic) from exception
        self.sent += 1
        self.sent_bytes += (len(value) if value else 0) + (len(key) if key else 0)
        if self.sent & 0xFF == 0:
            self._producer.poll(0)

    def poll(self, timeout: float = 0) -> None:
        """Take in what the broker said meanwhile."""
        self._producer.poll(timeout)

    def finish(self, timeout: float) -> int:
        """Wait until every record has an answer; how many have none when the time is up."""
        return int(self._producer.flush(timeout))

    def abandon(self) -> None:
        """Forget what is still queued."""
        self._producer.purge(in_queue=True, in_flight=True, blocking=True)
        self._producer.poll(0)

    def _on_failure(self, error: Any, _message: Any) -> None:
        if error is None:
            return
        self.failed += 1
        if self.failure is None:
            self.failure = from_kafka(error, self.topic)
