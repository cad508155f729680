"""Members of consumer groups that callers poll over HTTP.

The gateway is the member: it keeps the membership alive between polls, and gives it up when the caller has not been
heard of for a while. What a member holds lives in this gateway alone; `base_uri` says where it is to be found.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import Final, Generic, Protocol, TypeVar

import structlog

from headrace.client.aio.client import Client
from headrace.client.aio.member import Member, MemberSettings, MembershipState
from headrace.client.aio.reader import FetchedRecord, Reader, size_of
from headrace.client.core.groups import CommittedOffset
from headrace.protocol.errors import ErrorCode
from headrace.protocol.topic_partition import TopicPartition
from headrace.web.problem import Problem

MOST_MEMBERS: Final = 1000
MOST_OF_ONE_USER: Final = 200
"""Consumers of a user with a name; where nobody has one all are one user's."""
JOIN_SECONDS: Final = 10.0

log = structlog.get_logger(__name__)


class Handout:
    """A reader's records as they are handed out, and what of them is not committed yet."""

    def __init__(self, reader: Reader) -> None:
        self.taken: dict[TopicPartition, CommittedOffset] = {}
        self.is_over = False
        """Whether the partitions are others' now, who get these records."""
        self._reader = reader

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """What is read, and the next offset of each."""
        return dict(self._reader.positions)

    async def take(
        self, most: int, wait_ms: float, most_bytes: int | None = None, least_bytes: int = 1
    ) -> list[FetchedRecord]:
        """The next records; waits until they have `least_bytes`, or the time is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        found: list[FetchedRecord] = []
        size = 0
        while True:
            room = None if most_bytes is None else max(most_bytes - size, 0)
            left = max(int((deadline - loop.time()) * 1000), 0)
            more = await self._reader.take(most - len(found), left, room)
            if self.is_over:
                return []
            found += more
            size += sum(size_of(record) for _, _, record in more)
            is_full = len(found) >= most or (most_bytes is not None and self._reader.has_more)
            if size >= least_bytes or is_full or loop.time() >= deadline:
                break
        for topic, partition, record in found:
            self.taken[TopicPartition(topic, partition)] = CommittedOffset(record.offset + 1)
        return found

    def give_back(self, found: list[FetchedRecord]) -> None:
        """Hand out again, from the first on, what could not be shown."""
        for topic, partition, record in reversed(found):
            place = TopicPartition(topic, partition)
            self._reader.seek(place, record.offset)
            self.taken[place] = CommittedOffset(record.offset)

    def seek(self, offsets: dict[TopicPartition, int]) -> None:
        """Go on elsewhere; `Problem` 409 for what is not read here."""
        for place in offsets:
            if place not in self._reader.positions:
                raise not_assigned(place)
        for place, offset in offsets.items():
            self._reader.seek(place, offset)
            self.taken.pop(place, None)

    def committed(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """These are, and need not be again."""
        for place, offset in offsets.items():
            if self.taken.get(place) == offset:
                del self.taken[place]


def not_assigned(place: TopicPartition) -> Problem:
    return Problem(409, f"partition {place[1]} of topic '{place[0]}' is not this member's", code="not-assigned")


class Consumer:
    """One member, between its creation and its end."""

    def __init__(self, client: Client, settings: MemberSettings, *, idle_ms: int, auto_commit: bool) -> None:
        self.id = secrets.token_urlsafe(16)
        self.client = client
        self.settings = settings
        self.group = settings.group
        self.idle_seconds = idle_ms / 1000
        self.last_used = asyncio.get_running_loop().time()
        self._auto_commit = auto_commit
        self._member = Member(client.cluster, settings, self._assigned, self._revoked)
        self._handout: Handout | None = None
        self._is_assigned = asyncio.Event()
        self._is_polled = False
        self._task = asyncio.ensure_future(self._member.run())

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """What it reads, and the next offset of each."""
        return {} if self._handout is None else self._handout.positions

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

    async def poll(
        self, most: int, wait_ms: int, most_bytes: int | None = None, least_bytes: int = 1
    ) -> list[FetchedRecord]:
        """The next records; none when the time is over."""
        if self._is_polled:
            raise Problem(409, "this member is being polled already; one poll at a time", code="polled-already")
        self._is_polled = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        try:
            if self._auto_commit:
                await self.commit(None)
            if not await self.joined(wait_ms / 1000) or self._handout is None:
                return []
            return await self._handout.take(most, max((deadline - loop.time()) * 1000, 0), most_bytes, least_bytes)
        finally:
            self._is_polled = False
            self.last_used = loop.time()

    def give_back(self, found: list[FetchedRecord]) -> None:
        """Have the next poll give these again: they could not be shown."""
        if self._handout is not None and all((topic, partition) in self.positions for topic, partition, _ in found):
            self._handout.give_back(found)

    async def commit(self, offsets: dict[TopicPartition, CommittedOffset] | None) -> dict[TopicPartition, ErrorCode]:
        """Commit offsets, or what was handed out; what was refused."""
        self.last_used = asyncio.get_running_loop().time()
        self._raise_failure()
        handout = self._handout
        wanted = offsets if offsets is not None else {} if handout is None else dict(handout.taken)
        if not wanted:
            return {}
        if self._member.state is not MembershipState.STABLE:
            return dict.fromkeys(wanted, ErrorCode.rebalance_in_progress)
        refused = await self._member.commit(wanted)
        if handout is not None:
            handout.committed({place: offset for place, offset in wanted.items() if place not in refused})
        return refused

    def seek(self, offsets: dict[TopicPartition, int]) -> None:
        """Go on elsewhere; only in what is assigned."""
        if self._handout is not None:
            self._handout.seek(offsets)
        elif offsets:
            raise not_assigned(next(iter(offsets)))

    async def close(self) -> None:
        """Leave the group."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _assigned(self, positions: dict[TopicPartition, int]) -> None:
        self._handout = Handout(Reader(self.client.cluster, positions, reset=self.settings.reset))
        self._is_assigned.set()

    async def _revoked(self) -> None:
        handout, self._handout = self._handout, None
        self._is_assigned.clear()
        if handout is not None:
            handout.is_over = True
            if self._auto_commit and handout.taken:
                await self._member.commit(handout.taken)

    def _raise_failure(self) -> None:
        if self._task.done() and not self._task.cancelled():
            error = self._task.exception()
            if error is not None:
                raise error


class HeldConsumer(Protocol):
    """What callers read by, from one request to the next."""

    id: str
    client: Client
    group: str

    @property
    def is_idle(self) -> bool:
        """Whether nobody has asked for it for too long."""

    async def close(self) -> None:
        """Give it up."""


C = TypeVar("C", bound=HeldConsumer)


class Consumers(Generic[C]):
    """Consumers that this gateway keeps, each for its caller alone. Those that nobody uses are given up."""

    def __init__(self) -> None:
        self._consumers: dict[tuple[Client, str, str], C] = {}
        self._sweeper: asyncio.Task[None] | None = None

    def add(self, make: Callable[[], C], client: Client) -> C:
        """Keep another one; `Problem` 503 where there are too many."""
        self._require_room(client)
        consumer = make()
        client.uses += 1
        self._consumers[client, consumer.group, consumer.id] = consumer
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.ensure_future(self._sweep())
        return consumer

    def find(self, client: Client, group: str, name: str) -> C | None:
        """The caller's own of that name, if there is one."""
        return self._consumers.get((client, group, name))

    def get(self, client: Client, group: str, name: str) -> C:
        """The same; `Problem` 404 where there is none."""
        consumer = self.find(client, group, name)
        if consumer is None:
            raise Problem(
                404,
                "this gateway has no such member: it was deleted, was not polled for long, or is another gateway's; "
                "see base_uri in the answer that created it",
                code="unknown-consumer",
            )
        return consumer

    async def remove(self, consumer: C) -> None:
        if self._consumers.pop((consumer.client, consumer.group, consumer.id), None) is not None:
            consumer.client.uses -= 1
            await consumer.close()

    async def close(self) -> None:
        """Give all of them up."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        await asyncio.gather(*(self.remove(consumer) for consumer in list(self._consumers.values())))

    def _require_room(self, client: Client) -> None:
        soon = ((b"retry-after", b"5"),)
        if len(self._consumers) >= MOST_MEMBERS:
            raise Problem(503, f"this gateway has {MOST_MEMBERS} consumers already", headers=soon)
        if client.principal and sum(owner is client for owner, _, _ in self._consumers) >= MOST_OF_ONE_USER:
            raise Problem(503, f"you have {MOST_OF_ONE_USER} consumers here already; delete some", headers=soon)

    async def _sweep(self) -> None:
        while self._consumers:
            await asyncio.sleep(1)
            for consumer in [each for each in self._consumers.values() if each.is_idle]:
                log.info("a consumer was not used for long", group=consumer.group)
                await self.remove(consumer)
