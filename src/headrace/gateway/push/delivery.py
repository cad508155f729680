"""Delivering one subscription: while this gateway owns it, one worker per partition, each in order.

    take records -> leave out what the filter does not want -> post -> (again after a pause …) -> commit
                                                                  \\-> after the last attempt: dead letter -> commit

Nothing is committed before it was delivered or stands in the dead-letter topic, so nothing is lost; what was posted
and not yet committed when a gateway dies is posted again by the next. A dead letter is written under an idempotency
key made of its offset: it stands in that topic once.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from random import random
from typing import Final

import structlog

from headrace import __version__
from headrace.client.aio import once
from headrace.client.aio.assignment import WHOLE
from headrace.client.aio.client import Client
from headrace.client.aio.member import Member, MemberSettings, MembershipState
from headrace.client.aio.reader import Reader
from headrace.client.aio.retrying import Unavailable
from headrace.client.core.errors import AuthenticationRefused, ConnectionLost, VersionNotServed
from headrace.client.core.groups import CommittedOffset
from headrace.protocol.errors import CodedError
from headrace.protocol.partitioner import partition_for
from headrace.protocol.records import Record
from headrace.protocol.topic_partition import TopicPartition

from ..messages import encode, shown
from ..publishing import now_ms
from .filters import matches
from .model import DeliveryProgress, PushSubscription, pause_ms
from .sending import CallbackResult, CallbackSender, Post
from .signing import sign

log = structlog.get_logger(__name__)

_TAKE: Final = 100
_WAIT_MS: Final = 10_000
_COMMIT_SECONDS: Final = 1.0
AGAIN_SECONDS: Final = 2.0
_SESSION_MS: Final = 10_000
TROUBLE: Final = (ConnectionLost, Unavailable, AuthenticationRefused, VersionNotServed, CodedError)

Sleep = Callable[[float], Awaitable[None]]


class PushDelivery:
    """One subscription on this gateway: a member of its group, and workers while it is the owner."""

    def __init__(
        self,
        client: Client,
        subscription: PushSubscription,
        recall: Callable[[], DeliveryProgress],
        sender: Callable[[], CallbackSender],
        *,
        owner: str,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.subscription = subscription
        self.progress = DeliveryProgress()
        self.is_dirty = False
        """Whether progress has changed since it was last written down."""
        self._client = client
        self._recall = recall
        self._sender = sender
        self._owner = owner
        self._sleep = sleep
        self._workers: list[asyncio.Task[None]] = []
        self._member = self._new_member()

    @property
    def is_owner(self) -> bool:
        return bool(self._workers)

    async def run(self) -> None:
        """Deliver until cancelled, through any trouble with the cluster."""
        while True:
            try:
                self._member = self._new_member()
                await self._member.run()
            except TROUBLE as error:
                self.note_error(f"the group cannot be joined: {error}")
            finally:
                await self._stop_workers()
            await asyncio.sleep(AGAIN_SECONDS)

    def _new_member(self) -> Member:
        settings = MemberSettings(
            group=self.subscription.group,
            topics=(self.subscription.topic,),
            session_ms=_SESSION_MS,
            rebalance_ms=_SESSION_MS,
            heartbeat_seconds=1.0,
            reset=self.subscription.start,
            assignor=WHOLE,
        )
        return Member(self._client.cluster, settings, self._assigned, self._stop_workers)

    async def _assigned(self, positions: dict[TopicPartition, int]) -> None:
        if positions:
            self._take_over()
            self.progress.owner = self._owner
            self.is_dirty = True
        self._workers = [asyncio.ensure_future(self._work(place, offset)) for place, offset in positions.items()]

    def _take_over(self) -> None:
        """Count on from what the last owner wrote down, unless that was this gateway itself."""
        written = self._recall()
        if written.owner != self._owner or self.progress.owner != self._owner:
            self.progress = replace(written)

    async def _stop_workers(self) -> None:
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    # One partition

    async def _work(self, topic_partition: TopicPartition, offset: int) -> None:
        while True:
            worker = _Worker(self, topic_partition, offset)
            try:
                await worker.run()
            except TROUBLE as error:
                self.note_error(f"partition {topic_partition[1]} cannot be read: {error}")
            except Exception as error:
                log.exception("a delivery failed", subscription=self.subscription.id, exc_info=error)
                self.note_error(f"unexpected {type(error).__name__}")
            finally:
                worker.close()
            offset = worker.done
            await asyncio.sleep(AGAIN_SECONDS)

    async def commit(self, topic_partition: TopicPartition, offset: int) -> None:
        """Commit how far a partition is, while this gateway is the owner."""
        if self._member.state is MembershipState.STABLE:
            refused = await self._member.commit({topic_partition: CommittedOffset(offset)})
            for code in refused.values():
                log.info("a commit was refused", subscription=self.subscription.id, code=code.name)

    async def deliver(self, post: Post, topic_partition: TopicPartition, records: Sequence[Record]) -> None:
        """Post records until they are taken, or put them into the dead-letter topic."""
        subscription, progress = self.subscription, self.progress
        body, identity = (
            _body(subscription, topic_partition, records),
            _identity(subscription, topic_partition, records),
        )
        for attempt in range(1, subscription.max_attempts + 1):
            result = await self._post(post, identity, body, attempt)
            if result.is_good:
                progress.delivered += len(records)
                progress.last_delivery_ms = now_ms()
                progress.retrying, self.is_dirty = False, True
                return
            progress.failed_attempts += 1
            progress.retrying = attempt < subscription.max_attempts
            self.note_error(f"offset {records[0].offset} of partition {topic_partition[1]}: {result.reason}")
            if progress.retrying:
                await self._sleep(pause_ms(subscription, attempt, random(), result.retry_after) / 1000)
        await self._bury(topic_partition, records, result)

    async def _post(self, post: Post, identity: str, body: bytes, attempt: int) -> CallbackResult:
        subscription = self.subscription
        headers = {
            **subscription.headers,
            "Content-Type": "application/json",
            "User-Agent": f"headrace/{__version__}",
            "X-Headrace-Subscription": subscription.id,
            "X-Headrace-Attempt": str(attempt),
            **sign(subscription.secret, identity, int(time.time()), body),
        }
        return await post(subscription.callback_url, headers, body, subscription.timeout_ms / 1000)

    async def _bury(self, topic_partition: TopicPartition, records: Sequence[Record], result: CallbackResult) -> None:
        """Write dead letters; goes on until the cluster takes them, for there is nowhere else to put them."""
        for record in records:
            while True:
                try:
                    await self._write_dead_letter(topic_partition, record, result)
                    break
                except TROUBLE as error:
                    self.note_error(f"the dead-letter topic takes nothing: {error}")
                    await asyncio.sleep(AGAIN_SECONDS)
        self.progress.dead_lettered += len(records)
        self.is_dirty = True

    async def _write_dead_letter(self, topic_partition: TopicPartition, record: Record, result: CallbackResult) -> None:
        subscription, client = self.subscription, self._client
        letter = dead_letter(subscription, topic_partition, record, result)
        count = (await client.cluster.topic(subscription.dead_letter)).partitions
        key = f"{subscription.id}:{topic_partition[0]}:{topic_partition[1]}:{record.offset}"
        partition = once.partition_of(key, count) if record.key is None else partition_for(record.key, count)
        same = [letter._replace(headers=())]
        identity = once.identity(client.cluster.cluster_id, "push", subscription.dead_letter, key, same)
        await client.producer.send_once(subscription.dead_letter, partition, [letter], identity)

    def note_error(self, reason: str) -> None:
        """Have the status tell of it."""
        self.progress.last_error = reason[:1000]
        self.is_dirty = True


class _Worker:
    """One partition: records taken, delivered and committed in order. `done` is the offset up to which all is."""

    def __init__(self, delivery: PushDelivery, topic_partition: TopicPartition, offset: int) -> None:
        self.done = offset
        self._delivery = delivery
        self._topic_partition = topic_partition
        self._post = delivery._sender()
        self._reader = Reader(delivery._client.cluster, {topic_partition: offset})
        self._committed = offset
        self._committed_at = asyncio.get_running_loop().time()

    async def run(self) -> None:
        try:
            while True:
                found = [each.record for each in await self._reader.take(_TAKE, _WAIT_MS)]
                for records in _chunks(found, self._delivery.subscription.batch or 1):
                    await self._handle(records)
                await self._commit()
        finally:
            await asyncio.shield(self._last_commit())

    async def _handle(self, records: list[Record]) -> None:
        wanted = [record for record in records if matches(self._delivery.subscription.filter, record)]
        self._delivery.progress.filtered += len(records) - len(wanted)
        if wanted:
            await self._delivery.deliver(self._post, self._topic_partition, wanted)
        self.done = records[-1].offset + 1
        if asyncio.get_running_loop().time() - self._committed_at > _COMMIT_SECONDS:
            await self._commit()

    async def _commit(self) -> None:
        if self.done > self._committed:
            await self._delivery.commit(self._topic_partition, self.done)
            self._committed = self.done
            self._committed_at = asyncio.get_running_loop().time()

    async def _last_commit(self) -> None:
        try:
            async with asyncio.timeout(2):
                await self._commit()
        except (*TROUBLE, TimeoutError) as error:
            log.info("the last commit was lost", subscription=self._delivery.subscription.id, reason=str(error))

    def close(self) -> None:
        self._post.close()


def _chunks(records: list[Record], size: int) -> list[list[Record]]:
    return [records[start : start + size] for start in range(0, len(records), size)]


def _identity(subscription: PushSubscription, topic_partition: TopicPartition, records: Sequence[Record]) -> str:
    return f"{subscription.id}-{topic_partition[0]}-{topic_partition[1]}-{records[0].offset}"


def _body(subscription: PushSubscription, topic_partition: TopicPartition, records: Sequence[Record]) -> bytes:
    form = subscription.format if subscription.format != "text" else "auto"
    messages = [shown(record, form, *topic_partition) for record in records]
    if not subscription.batch:
        return encode(messages[0])
    return encode({"subscription": subscription.id, "messages": messages})


def dead_letter(
    subscription: PushSubscription, topic_partition: TopicPartition, record: Record, result: CallbackResult
) -> Record:
    """The record as it was, with headers that say where it comes from and why it is here."""
    origin = {
        "headrace.dlq.topic": topic_partition[0],
        "headrace.dlq.partition": str(topic_partition[1]),
        "headrace.dlq.offset": str(record.offset),
        "headrace.dlq.timestamp": str(record.timestamp),
        "headrace.dlq.subscription": subscription.id,
        "headrace.dlq.callback": subscription.callback_url,
        "headrace.dlq.attempts": str(subscription.max_attempts),
        "headrace.dlq.reason": result.reason,
    }
    headers = (*record.headers, *((name, text.encode()) for name, text in origin.items()))
    return Record(0, now_ms(), record.key, record.value, headers)
