"""Members of consumer groups, of either protocol, that do at once what a client does when it is told to."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from struct import Struct
from typing import Any, Final, Protocol
from uuid import UUID

from .model import BenchError
from .wire import Link, decoded, framed, nested, sleep_until

SESSION_MS: Final = 45_000
_REBALANCE_MS: Final = 60_000
_HEARTBEAT: Final = (12, 4)
_JOIN: Final = (11, 9)
_SYNC: Final = (14, 5)
_LEAVE: Final = (13, 5)
_CONSUMER: Final = (68, 1)
_REBALANCE_IN_PROGRESS: Final = 27
_MEMBER_ID_REQUIRED: Final = 79
_I16: Final = Struct(">h")
_I32: Final = Struct(">i")
_VERSION_AND_COUNT: Final = Struct(">hi")


class Member(Protocol):
    """Someone in a group."""

    owned: frozenset[int]
    """The partitions that it has, as it was last told."""
    epoch: int
    """The generation of a classic group, the epoch of a member of the new protocol."""

    async def join(self) -> None: ...

    async def beat(self) -> None:
        """Send a heartbeat, and do what its answer asks for."""
        ...

    async def leave(self) -> None: ...


def _ms(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


def _text(text: str) -> bytes:
    return _I16.pack(len(text)) + text.encode()


def spread(members: Sequence[str], partitions: int) -> dict[str, range]:
    """Every partition to one member, in ranges."""
    ordered = sorted(members)
    bounds = [number * partitions // len(ordered) for number in range(len(ordered) + 1)]
    return {member: range(bounds[n], bounds[n + 1]) for n, member in enumerate(ordered)}


def _assignment(topic: str, indexes: Iterable[int]) -> bytes:
    numbers = list(indexes)
    head = _VERSION_AND_COUNT.pack(1, 1) + _text(topic) + _I32.pack(len(numbers))
    return head + b"".join(map(_I32.pack, numbers)) + _I32.pack(-1)


def _assigned(topic: str, data: bytes) -> frozenset[int]:
    at = _VERSION_AND_COUNT.size + len(_text(topic))
    (count,) = _I32.unpack_from(data, at)
    return frozenset(Struct(f">{count}i").unpack_from(data, at + _I32.size))


class ClassicMember:
    """JoinGroup, SyncGroup, Heartbeat; the leader assigns ranges."""

    def __init__(self, link: Link, group: str, topic: str, partitions: int) -> None:
        self.owned: frozenset[int] = frozenset()
        self.epoch = -1
        self._link = link
        self._group = group
        self._topic = topic
        self._partitions = partitions
        self._id = ""
        self._frame = b""

    async def join(self) -> None:
        answer = await self._ask_to_join()
        if answer.error_code.value == _MEMBER_ID_REQUIRED:
            self._id = answer.member_id
            answer = await self._ask_to_join()
        if answer.error_code:
            raise BenchError(f"a member could not join: {answer.error_code!r}")
        self._id = answer.member_id
        if await self._sync(answer) == _REBALANCE_IN_PROGRESS:
            await self.join()

    async def beat(self) -> None:
        code = await self._link.beat(self._frame)
        if code == _REBALANCE_IN_PROGRESS:
            await self.join()
        elif code:
            raise BenchError(f"a heartbeat was answered with error code {code}")

    async def leave(self) -> None:
        leaver = nested(*_LEAVE, "MemberIdentity")(member_id=self._id)
        code = await self._link.beat(framed(*_LEAVE, group_id=self._group, members=(leaver,)))
        if code:
            raise BenchError(f"a member could not leave: error code {code}")

    def move_to(self, link: Link) -> None:
        """Go on over another connection, as the member that it is."""
        self._link = link

    async def _ask_to_join(self) -> Any:
        metadata = _VERSION_AND_COUNT.pack(0, 1) + _text(self._topic) + _I32.pack(-1)
        protocol = nested(*_JOIN, "JoinGroupRequestProtocol")(name="range", metadata=metadata)
        frame = framed(
            *_JOIN,
            group_id=self._group,
            session_timeout=_ms(SESSION_MS),
            rebalance_timeout=_ms(_REBALANCE_MS),
            member_id=self._id,
            protocol_type="consumer",
            protocols=(protocol,),
        )
        return decoded(*_JOIN, await self._link.ask(frame))

    async def _sync(self, joined: Any) -> int:
        assignments = ()
        if joined.leader == self._id:
            assignment = nested(*_SYNC, "SyncGroupRequestAssignment")
            spread_out = spread([member.member_id for member in joined.members], self._partitions)
            assignments = tuple(
                assignment(member_id=member, assignment=_assignment(self._topic, indexes))
                for member, indexes in spread_out.items()
            )
        frame = framed(
            *_SYNC,
            group_id=self._group,
            generation_id=joined.generation_id,
            member_id=self._id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        )
        answer = decoded(*_SYNC, await self._link.ask(frame))
        if answer.error_code.value == _REBALANCE_IN_PROGRESS:
            return _REBALANCE_IN_PROGRESS
        if answer.error_code:
            raise BenchError(f"a member could not sync: {answer.error_code!r}")
        self.owned = _assigned(self._topic, answer.assignment)
        self.epoch = joined.generation_id
        self._frame = framed(*_HEARTBEAT, group_id=self._group, generation_id=self.epoch, member_id=self._id)
        return 0


class ConsumerMember:
    """ConsumerGroupHeartbeat; the broker assigns, and what was given or taken is confirmed at once."""

    def __init__(self, link: Link, group: str, topic: str, member_id: str) -> None:
        self.owned: frozenset[int] = frozenset()
        self.epoch = 0
        self._link = link
        self._group = group
        self._topic = topic
        self._id = member_id
        self._topic_id: UUID | None = None
        self._frame = b""

    async def join(self) -> None:
        await self._take(
            self._framed(
                0,
                rebalance_timeout=_ms(_REBALANCE_MS),
                subscribed_topic_names=(self._topic,),
                subscribed_topic_regex=None,
                topic_partitions=(),
            )
        )

    async def beat(self) -> None:
        await self._take(self._frame)

    async def leave(self) -> None:
        code = await self._link.beat(self._framed(-1, subscribed_topic_regex=None, topic_partitions=None))
        if code:
            raise BenchError(f"a member could not leave: error code {code}")

    def _framed(self, epoch: int, **values: Any) -> bytes:
        return framed(*_CONSUMER, group_id=self._group, member_id=self._id, member_epoch=epoch, **values)

    async def _take(self, frame: bytes) -> None:
        while frame:
            answer = decoded(*_CONSUMER, await self._link.ask(frame))
            if answer.error_code:
                raise BenchError(f"a heartbeat was answered with {answer.error_code!r}: {answer.error_message}")
            if answer.member_epoch != self.epoch or not self._frame:
                self.epoch = answer.member_epoch
                self._frame = self._framed(self.epoch, subscribed_topic_regex=None, topic_partitions=None)
            frame = b"" if answer.assignment is None else self._confirmation(answer.assignment)

    def _confirmation(self, assignment: Any) -> bytes:
        """A heartbeat that says what the member has now, if that is anything new."""
        owned: frozenset[int] = frozenset()
        for topic in assignment.topic_partitions:
            self._topic_id, owned = topic.topic_id, frozenset(topic.partitions)
        if owned == self.owned:
            return b""
        self.owned = owned
        part = nested(*_CONSUMER, "TopicPartitions")
        parts = (part(topic_id=self._topic_id, partitions=tuple(sorted(owned))),) if owned else ()
        return self._framed(self.epoch, subscribed_topic_regex=None, topic_partitions=parts)


class Heartbeats:
    """Members that beat at their interval; how late each answer came, counted from when the beat was due."""

    def __init__(self) -> None:
        self._delays: list[tuple[float, float]] = []
        self._tasks: dict[Member, asyncio.Task[None]] = {}

    def start(self, tasks: asyncio.TaskGroup, members: Sequence[Member], interval: float) -> None:
        """Beats for these members, spread over the interval."""
        begin = time.perf_counter()
        for number, member in enumerate(members):
            first = begin + interval * (number + 1) / len(members)
            self._tasks[member] = tasks.create_task(self._beat(member, first, interval))

    async def stop(self, members: Iterable[Member]) -> None:
        """No more beats of these members, and none under way."""
        stopped = [self._tasks.pop(member) for member in members]
        for task in stopped:
            task.cancel()
        await asyncio.wait(stopped)

    def between(self, start: float, end: float) -> list[float]:
        """The delays of what was due in that time, in order of size."""
        return sorted(delay for due, delay in self._delays if start <= due < end)

    async def _beat(self, member: Member, due: float, interval: float) -> None:
        while True:
            await sleep_until(due)
            await member.beat()
            now = time.perf_counter()
            self._delays.append((due, now - due))
            due = max(due + interval, now)

    @property
    def members(self) -> list[Member]:
        return list(self._tasks)
