"""The registry's log in a topic: one partition, nothing ever deleted, read and written over the wire.

The client's calls block, so that two threads make them: one reads, one waits for acknowledgements. Questions about the
log's end have a client of their own, since a client that is polled keeps them waiting. A record counts once it is read
back, which it is only below the high watermark.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from .log import Entry, LogUnavailableError

TOPIC: Final = "_headrace_schemas"
_SETTINGS: Final = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
_PRODUCER: Final = {"acks": "all", "enable.idempotence": True, "linger.ms": 0, "message.timeout.ms": 20_000}
_CONSUMER: Final = {
    "group.id": "headrace-schema-registry",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "allow.auto.create.topics": False,
    "fetch.wait.max.ms": 500,
    "fetch.error.backoff.ms": 100,
}
_AT_ONCE: Final = 500
_POLL_SECONDS: Final = 0.5
_QUESTION_SECONDS: Final = 5.0


class KafkaLog:
    """A topic as a log. `client` are librdkafka's settings: where the cluster is, and who the gateway is there."""

    def __init__(self, client: Mapping[str, Any], topic: str = TOPIC, *, replicas: int = -1) -> None:
        self._client = {"client.id": "headrace-registry", "log_level": 2, "error_cb": _quiet, **client}
        self._topic = topic
        self._replicas = replicas
        self._stop = threading.Event()
        self._producer: Any = None
        self._consumer: Any = None
        self._asking: Any = None
        self._opened: asyncio.Event | None = None

    @asynccontextmanager
    async def connected(self) -> AsyncIterator["KafkaLog"]:
        """The log can be used while the block runs; brokers need not be there yet."""
        self._stop.clear()
        self._opened = asyncio.Event()
        self._producer = Producer({**self._client, **_PRODUCER})
        self._consumer = Consumer({**self._client, **_CONSUMER})
        self._asking = Consumer({**self._client, **_CONSUMER})
        acknowledging = threading.Thread(target=self._acknowledge, name="registry acks", daemon=True)
        acknowledging.start()
        try:
            yield self
        finally:
            self._stop.set()
            await asyncio.to_thread(acknowledging.join)
            await asyncio.to_thread(self._producer.flush, 1.0)
            await asyncio.to_thread(self._consumer.close)
            await asyncio.to_thread(self._asking.close)

    async def append(self, key: bytes, value: bytes) -> None:
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()

        def done(error: KafkaError | None, _: Message) -> None:
            loop.call_soon_threadsafe(_settle, written, error)

        try:
            self._producer.produce(self._topic, key=key, value=value, partition=0, on_delivery=done)
        except (BufferError, KafkaException) as error:
            raise LogUnavailableError(f"writing to {self._topic}: {error}") from error
        await written

    async def follow(self) -> AsyncIterator[Entry]:
        assert self._opened is not None
        await asyncio.to_thread(self._open)
        self._opened.set()
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[list[Entry] | Exception] = asyncio.Queue()
        reading = threading.Thread(target=self._read, args=(loop, queue), name="registry reader", daemon=True)
        reading.start()
        try:
            while True:
                batch = await queue.get()
                if isinstance(batch, Exception):
                    raise batch
                for entry in batch:
                    yield entry
        finally:
            self._stop.set()
            await asyncio.to_thread(reading.join)

    async def end(self) -> int:
        assert self._opened is not None
        await self._opened.wait()
        return (await asyncio.to_thread(self._watermarks))[1]

    def _open(self) -> None:
        """The topic is there, whole, and read from its first record. Waits for brokers that are still on their way."""
        while True:
            try:
                self._create()
                first, _ = self._watermarks()
                break
            except LogUnavailableError:
                if self._stop.wait(1.0):
                    raise
        if first:
            raise LogUnavailableError(
                f"{self._topic} begins at offset {first}: its first records were deleted, and with them schemas. "
                "Restore the topic; ids cannot be told from what is left."
            )
        self._consumer.assign([TopicPartition(self._topic, 0, OFFSET_BEGINNING)])

    def _create(self) -> None:
        admin = AdminClient(self._client)
        wanted = NewTopic(self._topic, num_partitions=1, replication_factor=self._replicas, config=_SETTINGS)
        for created in admin.create_topics([wanted], operation_timeout=_QUESTION_SECONDS).values():
            try:
                created.result(_QUESTION_SECONDS)
            except (KafkaException, TimeoutError) as error:
                code = error.args[0].code() if isinstance(error, KafkaException) else None
                if code not in (KafkaError.TOPIC_ALREADY_EXISTS, KafkaError.TOPIC_AUTHORIZATION_FAILED):
                    raise LogUnavailableError(f"creating {self._topic}: {error}") from error

    def _watermarks(self) -> tuple[int, int]:
        try:
            place = TopicPartition(self._topic, 0)
            found = self._asking.get_watermark_offsets(place, timeout=_QUESTION_SECONDS, cached=False)
        except (KafkaException, RuntimeError) as error:
            raise LogUnavailableError(f"asking for the end of {self._topic}: {error}") from error
        if found is None:
            raise LogUnavailableError(f"asking for the end of {self._topic}: no answer")
        return int(found[0]), int(found[1])

    def _read(self, loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[list[Entry] | Exception]) -> None:
        """Waits for one record, then takes what else is there: nothing is held back to fill a batch."""
        while not self._stop.is_set():
            try:
                first = self._consumer.poll(_POLL_SECONDS)
                if first is not None:
                    messages = [first, *self._consumer.consume(_AT_ONCE, 0)]
                    loop.call_soon_threadsafe(queue.put_nowait, _entries(messages))
            except (LogUnavailableError, RuntimeError, KafkaException) as error:
                loop.call_soon_threadsafe(queue.put_nowait, LogUnavailableError(str(error)))
                return

    def _acknowledge(self) -> None:
        while not self._stop.is_set():
            self._producer.poll(_POLL_SECONDS)


def _quiet(_: KafkaError) -> None:
    """The client tries again by itself; what matters comes back as the result of a call."""


def _settle(written: asyncio.Future[None], error: KafkaError | None) -> None:
    if written.done():
        return
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(LogUnavailableError(f"writing a proposal: {error.str()}"))


def _entries(messages: list[Message]) -> list[Entry]:
    entries = []
    for message in messages:
        error = message.error()
        if error is None:
            entries.append(Entry(offset=message.offset(), key=message.key() or b"", value=message.value()))
        elif error.fatal() or error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
            raise LogUnavailableError(f"reading the registry's topic: {error.str()}")
    return entries
