"""Members of consumer groups that callers poll over HTTP.

The gateway is the member: it keeps the membership alive between polls, and gives it up when the caller has not been
heard of for a while. What a member holds lives in this gateway alone; `base_uri` says where it is to be found.
"""

import asyncio
import secrets
from collections.abc import Callable
from typing import Final

import structlog

from headrace.client.aio.client import Client
from headrace.client.aio.member import Member, MemberSettings, MembershipState
from headrace.client.aio.reader import FetchedRecord, Reader
from headrace.client.core.groups import CommittedOffset
from headrace.protocol.errors import ErrorCode
from headrace.protocol.topic_partition import TopicPartition
from headrace.web.problem import Problem

MOST_MEMBERS: Final = 1000
JOIN_SECONDS: Final = 10.0

log = structlog.get_logger(__name__)


class Consumer:
    """One member, between its creation and its end."""

    def __init__(self, client: Client, settings: MemberSettings, *, idle_ms: int, auto_commit: bool) -> None:
        self.id = secrets.token_urlsafe(16)
        self.client = client
        self.settings = settings
        self.idle_seconds = idle_ms / 1000
        self.last_used = asyncio.get_running_loop().time()
        self._auto_commit = auto_commit
        self._member = Member(client.cluster, settings, self._assigned, self._revoked)
        self._reader: Reader | None = None
        self._taken: dict[TopicPartition, CommittedOffset] = {}
        """What was handed out under this assignment and not committed yet."""
        self._is_assigned = asyncio.Event()
        self._is_polled = False
        self._task = asyncio.ensure_future(self._member.run())

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """What it reads, and the next offset of each."""
        return {} if self._reader is None else dict(self._reader.positions)

    @property
    def is_idle(self) -> bool:
        return not self._is_polled and asyncio.get_running_loop().time() - self.last_used > self.idle_seconds

    async def joined(self, seconds: float) -> bool:
        """Waits until the group has an assignment for it; raises what makes membership impossible."""
        waiting = asyncio.ensure_future(self._is_assigned.wait())
        try:
            await asyncio.wait({waiting, self._task}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        self._raise_failure()
        return self._is_assigned.is_set()

    async def poll(self, most: int, wait_ms: int) -> list[FetchedRecord]:
        """The next records; none when the time is over."""
        if self._is_polled:
            raise Problem(409, "this member is being polled already; one poll at a time", code="polled-already")
        self._is_polled = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        try:
            if self._auto_commit:
                await self.commit(None)
            if not await self.joined(wait_ms / 1000) or self._reader is None:
                return []
            reader = self._reader
            found = await reader.take(most, max(int((deadline - loop.time()) * 1000), 0))
            if reader is not self._reader:
                return []  # given to others meanwhile, who get these records
            for topic, partition, record in found:
                self._taken[TopicPartition(topic, partition)] = CommittedOffset(record.offset + 1)
            return found
        finally:
            self._is_polled = False
            self.last_used = loop.time()

    async def commit(self, offsets: dict[TopicPartition, CommittedOffset] | None) -> dict[TopicPartition, ErrorCode]:
        """Commit offsets, or what was handed out; what was refused."""
        self.last_used = asyncio.get_running_loop().time()
        self._raise_failure()
        wanted = dict(self._taken) if offsets is None else offsets
        if not wanted:
            return {}
        if self._member.state is not MembershipState.STABLE:
            return dict.fromkeys(wanted, ErrorCode.rebalance_in_progress)
        refused = await self._member.commit(wanted)
        for place, committed in wanted.items():
            if place not in refused and self._taken.get(place) == committed:
                del self._taken[place]
        return refused

    def seek(self, offsets: dict[TopicPartition, int]) -> None:
        """Go on elsewhere; only in what is assigned."""
        for place, offset in offsets.items():
            if self._reader is None or place not in self._reader.positions:
                raise Problem(
                    409, f"partition {place[1]} of topic '{place[0]}' is not this member's", code="not-assigned"
                )
            self._reader.seek(place, offset)
            self._taken.pop(place, None)

    async def close(self) -> None:
        """Leave the group."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _assigned(self, positions: dict[TopicPartition, int]) -> None:
        self._reader = Reader(self.client.cluster, positions, reset=self.settings.reset)
        self._is_assigned.set()

    async def _revoked(self) -> None:
        if self._auto_commit and self._taken:
            await self._member.commit(dict(self._taken))
        self._reader = None
        self._taken.clear()
        self._is_assigned.clear()

    def _raise_failure(self) -> None:
        if self._task.done() and not self._task.cancelled():
            error = self._task.exception()
            if error is not None:
                raise error


class Consumers:
    """All members of this gateway, by id. Those that nobody polls are given up."""

    def __init__(self) -> None:
        self._consumers: dict[str, Consumer] = {}
        self._sweeper: asyncio.Task[None] | None = None

    def add(self, make: Callable[[], Consumer]) -> Consumer:
        if len(self._consumers) >= MOST_MEMBERS:
            raise Problem(503, f"this gateway has {MOST_MEMBERS} members already", headers=((b"retry-after", b"5"),))
        consumer = make()
        consumer.client.uses += 1
        self._consumers[consumer.id] = consumer
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.ensure_future(self._sweep())
        return consumer

    def get(self, client: Client, group: str, member: str) -> Consumer:
        """A member of the caller's own; `Problem` 404 for any other."""
        consumer = self._consumers.get(member)
        if consumer is None or consumer.settings.group != group or consumer.client is not client:
            raise Problem(
                404,
                "this gateway has no such member: it was deleted, was not polled for long, or is another gateway's; "
                "see base_uri in the answer that created it",
                code="unknown-member",
            )
        return consumer

    async def remove(self, consumer: Consumer) -> None:
        if self._consumers.pop(consumer.id, None) is not None:
            consumer.client.uses -= 1
            await consumer.close()

    async def close(self) -> None:
        """Leave every group."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        await asyncio.gather(*(self.remove(consumer) for consumer in list(self._consumers.values())))

    async def _sweep(self) -> None:
        while self._consumers:
            await asyncio.sleep(1)
            for consumer in [each for each in self._consumers.values() if each.is_idle]:
                log.info("a member was not polled for long", group=consumer.settings.group)
                await self.remove(consumer)
