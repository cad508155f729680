"""Subscriptions in a compacted topic: written by any gateway, followed by all.

The topic is the only state. Of two subscriptions with one group the first in the topic holds, on every gateway. Where
gateways have keys, one that no gateway has sealed is paused until its owner resumes it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import structlog

from headrace.client.aio import admin
from headrace.client.aio.client import Client
from headrace.client.aio.fetching import list_offsets
from headrace.client.aio.reader import Reader
from headrace.client.aio.retrying import Unavailable
from headrace.client.core.errors import AuthenticationRefused, ConnectionLost
from headrace.client.core.offsets import LATEST
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.records import Record
from headrace.protocol.topic_partition import TopicPartition

from ..names import SUBSCRIPTIONS as TOPIC
from ..publishing import now_ms
from ..topic_routes import wait_until_known
from .model import DeliveryProgress, PushSubscription
from .sealing import Seal

log = structlog.get_logger(__name__)

_SUBSCRIPTION: Final = b"subscription:"
_PROGRESS: Final = b"progress:"
_POLL_MS: Final = 5000
_LOOK_SECONDS: Final = 2.0
"""How often a gateway looks whether there are subscriptions, before there are any."""
_CONFIGS: Final = {"cleanup.policy": "compact"}


class Store:
    """What the topic says. `on_change` is called with the id of what changed."""

    def __init__(self, client: Callable[[], Client], on_change: Callable[[str], None], seal: Seal) -> None:
        self.subscriptions: dict[str, PushSubscription] = {}
        self.progress: dict[str, DeliveryProgress] = {}
        self._client = client
        self._on_change = on_change
        self._seal = seal
        self._position = 0
        self._moved = asyncio.Condition()
        self._appeared = asyncio.Event()

    async def follow(self) -> None:
        """Read the topic from its beginning, and on, for as long as the gateway runs."""
        while True:
            try:
                await self._read_on()
            except (ConnectionLost, Unavailable, AuthenticationRefused, CodedError) as error:
                unknown = isinstance(error, CodedError) and error.code is ErrorCode.unknown_topic_or_partition
                if not unknown:
                    log.warning("subscriptions cannot be read", reason=str(error))
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._appeared.wait()
            except TimeoutError:
                pass
            self._appeared.clear()

    async def _read_on(self) -> None:
        cluster = self._client().cluster
        cluster.forget(TOPIC)
        await cluster.topic(TOPIC)
        reader = Reader(cluster, {TopicPartition(TOPIC, 0): self._position})
        while True:
            for _, _, record in await reader.take(1000, _POLL_MS):
                self._apply(record)
            async with self._moved:
                self._position = reader.positions[TopicPartition(TOPIC, 0)]
                self._moved.notify_all()

    def _apply(self, record: Record) -> None:
        key, value = record.key or b"", record.value
        try:
            if key.startswith(_SUBSCRIPTION):
                self._apply_subscription(key.removeprefix(_SUBSCRIPTION).decode(), value)
            elif key.startswith(_PROGRESS):
                name = key.removeprefix(_PROGRESS).decode()
                if value is None:
                    self.progress.pop(name, None)
                else:
                    self.progress[name] = DeliveryProgress.decode(value)
        except (ValueError, TypeError, AttributeError) as error:
            log.warning("a record is no subscription", topic=TOPIC, offset=record.offset, reason=str(error))

    def _apply_subscription(self, name: str, value: bytes | None) -> None:
        if value is None:
            self.subscriptions.pop(name, None)
        else:
            found = PushSubscription.decode(self._seal.open(value))
            if found.id != name:
                raise ValueError(f"it is subscription {found.id[:80]}, under the key of another")
            if found.principal and not self._seal.is_proof(value):
                found = replace(found, is_paused=True)
            if any(each.group == found.group and each.id != name for each in self.subscriptions.values()):
                return
            self.subscriptions[name] = found
        self._on_change(name)

    async def synced(self) -> None:
        """Returns once all that was written before this call has been read."""
        cluster = self._client().cluster
        try:
            end = (await list_offsets(cluster, TOPIC, {0: LATEST}))[0][0]
        except CodedError as error:
            if error.code is ErrorCode.unknown_topic_or_partition:
                return
            raise
        await self._reached(end)

    async def _reached(self, offset: int) -> None:
        self._appeared.set()
        try:
            async with asyncio.timeout(self._client().cluster.patience):
                async with self._moved:
                    await self._moved.wait_for(lambda: self._position >= offset)
        except TimeoutError:
            raise Unavailable("subscriptions cannot be read") from None

    async def put(self, subscription: PushSubscription) -> None:
        """Write a subscription, and wait until it has been read."""
        await self._write(_SUBSCRIPTION + subscription.id.encode(), self._seal.close(subscription.encode()))

    async def remove(self, name: str) -> None:
        """Delete a subscription and its progress."""
        await self._write(_PROGRESS + name.encode(), None)
        await self._write(_SUBSCRIPTION + name.encode(), None)

    async def note(self, name: str, progress: DeliveryProgress) -> None:
        """Write a subscription's progress, without waiting for it."""
        record = Record(0, now_ms(), _PROGRESS + name.encode(), progress.encode())
        await self._client().producer.send(TOPIC, 0, (record,))

    async def ensure_topic(self) -> None:
        """Make the topic unless it is there."""
        cluster = self._client().cluster
        try:
            await cluster.topic(TOPIC)
            return
        except CodedError as error:
            if error.code is not ErrorCode.unknown_topic_or_partition:
                raise
        try:
            await admin.create_topic(cluster, TOPIC, partitions=1, configs=_CONFIGS)
        except CodedError as refused:
            if refused.code is not ErrorCode.topic_already_exists:
                raise
        await wait_until_known(cluster, TOPIC)

    async def _write(self, key: bytes, value: bytes | None) -> None:
        written = await self._client().producer.send(TOPIC, 0, (Record(0, now_ms(), key, value),))
        await self._reached(written.base_offset + 1)
