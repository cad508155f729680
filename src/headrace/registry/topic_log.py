"""The registry's log in a topic: one partition, nothing ever deleted, read and written over the wire.

A record counts once it is read back, which it is only below the high watermark.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

import structlog

from headrace.client.aio.admin import create_topic
from headrace.client.aio.client import Client
from headrace.client.aio.fetching import Page, fetch, list_offsets
from headrace.client.aio.retrying import Unavailable
from headrace.client.core.errors import AuthenticationRefused, ConnectionLost
from headrace.client.core.offsets import EARLIEST, LATEST
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.records import Record
from headrace.protocol.topic_partition import TopicPartition
from headrace.schema_log.records import TOPIC

from .log import LogEntry, LogUnavailableError

SETTINGS: Final = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
_WAIT_MS: Final = 5_000
_AT_ONCE: Final = 4 << 20
_PAUSE_SECONDS: Final = 0.5
_TROUBLES: Final = (Unavailable, ConnectionLost, CodedError, AuthenticationRefused, OSError)
_THERE_ALREADY: Final = (ErrorCode.topic_already_exists, ErrorCode.topic_authorization_failed)
_NO_TIMESTAMP: Final = -1

log = structlog.get_logger(__name__)


class TopicLog:
    """A topic as a log. `client` gives the gateway's own client, whose user may create, read and write the topic."""

    def __init__(self, client: Callable[[], Client], topic: str = TOPIC, *, replicas: int = -1) -> None:
        self._client = client
        self._topic = topic
        self._replicas = replicas
        self._opened = asyncio.Event()
        self._trouble = ""
        self._lost: str | None = None
        """Why ids cannot be told, if they cannot."""

    async def append(self, key: bytes, value: bytes) -> None:
        record = Record(offset=0, timestamp=_NO_TIMESTAMP, key=key, value=value)
        try:
            await self._client().producer.send(self._topic, 0, [record])
        except _TROUBLES as error:
            raise LogUnavailableError(f"writing to {self._topic}: {error}") from error

    async def follow(self) -> AsyncIterator[LogEntry]:
        await self._open()
        position = 0
        while True:
            page = await self._page(position)
            position = page.next_offset
            for record in page.records:
                yield LogEntry(offset=record.offset, key=record.key or b"", value=record.value)

    async def end(self) -> int:
        await self._opened.wait()
        self._require_whole()
        try:
            return (await list_offsets(self._client().cluster, self._topic, {0: LATEST}))[0][0]
        except _TROUBLES as error:
            raise LogUnavailableError(f"asking for the end of {self._topic}: {error}") from error

    async def _open(self) -> None:
        """The topic is there and whole. Waits for brokers that are still on their way."""
        while True:
            try:
                await self._create()
                cluster = self._client().cluster
                first = (await list_offsets(cluster, self._topic, {0: EARLIEST}))[0][0]
                break
            except _TROUBLES as error:
                self._complain(error)
                await asyncio.sleep(_PAUSE_SECONDS)
        self._lost = _cut_off(self._topic, first) if first else None
        self._opened.set()
        self._require_whole()

    def _require_whole(self) -> None:
        if self._lost is not None:
            raise LogUnavailableError(self._lost)

    async def _create(self) -> None:
        cluster = self._client().cluster
        try:
            await cluster.topic(self._topic)
            return
        except CodedError as error:
            if error.code is not ErrorCode.unknown_topic_or_partition:
                raise
        try:
            await create_topic(cluster, self._topic, partitions=1, replication_factor=self._replicas, configs=SETTINGS)
        except CodedError as error:
            if error.code not in _THERE_ALREADY:
                raise

    async def _page(self, position: int) -> Page:
        """The next records, however long the way to them is broken."""
        while True:
            try:
                partition = TopicPartition(self._topic, 0)
                return await fetch(self._client().cluster, partition, position, max_bytes=_AT_ONCE, wait_ms=_WAIT_MS)
            except CodedError as error:
                if error.code is ErrorCode.offset_out_of_range:
                    raise LogUnavailableError(_cut_off(self._topic, position)) from error
                self._complain(error)
            except _TROUBLES as error:
                self._complain(error)
            await asyncio.sleep(_PAUSE_SECONDS)

    def _complain(self, error: Exception) -> None:
        """Once for each reason, not for each try."""
        if str(error) != self._trouble:
            self._trouble = str(error)
            log.warning("the schema registry cannot read its topic", topic=self._topic, reason=self._trouble)


def _cut_off(topic: str, offset: int) -> str:
    return (
        f"{topic} has lost records before or at offset {offset}, and with them schemas. "
        "Restore the topic: ids cannot be told from what is left"
    )
