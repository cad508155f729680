"""Membership in a consumer group, by the classic protocol: joined, kept alive, left.

    OUT -> JOINING -> STABLE -> (rebalance) JOINING … -> LEFT

A member is eager: before it joins again it gives up all it reads. `on_revoked` is called then, while commits under the
old generation may still be accepted; `on_assigned` follows with what is to be read from where.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import structlog

from headrace.client.core.errors import AuthenticationRefused, ConnectionLost
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.topic_partition import TopicPartition

from .assignment import (
    ASSIGNORS,
    CONSUMER,
    RANGE,
    Assignment,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from .cluster import Cluster, checked
from .fetching import list_offsets
from .groups import NOT_A_MEMBER, Committed, Standing, commit, committed
from .reader import RESETS
from .retrying import COORDINATION, PASSING, Pauses, Unavailable

log = structlog.get_logger(__name__)

_REJOIN: Final = frozenset({ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation, ErrorCode.unknown_member_id})
_RECHECK_SECONDS: Final = 30.0
"""How often the leader of a group looks whether topics have grown."""

Revoked = Callable[[], Awaitable[None]]
Assigned = Callable[[dict[TopicPartition, int]], Awaitable[None]]


class State(Enum):
    OUT = "out"
    JOINING = "joining"
    STABLE = "stable"
    LEFT = "left"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a member wants."""

    group: str
    topics: tuple[str, ...]
    session_ms: int = 30_000
    rebalance_ms: int = 30_000
    heartbeat_seconds: float = 3.0
    reset: str = "latest"
    """Where to begin where nothing is committed."""
    assignor: str = RANGE


async def _nothing() -> None:
    pass


class Member:
    """A member of a group; `run` keeps it one until it is cancelled."""

    def __init__(self, cluster: Cluster, wish: Wish, on_assigned: Assigned, on_revoked: Revoked = _nothing) -> None:
        self.wish = wish
        self.state = State.OUT
        self.standing = NOT_A_MEMBER
        self.assignment: Assignment = {}
        self._cluster = cluster
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._counts: dict[str, int] | None = None
        """Partitions of topics when this member, leading the group, shared them out."""

    async def run(self) -> None:
        """Join, and join again whenever the group changes; raises what makes that impossible."""
        try:
            while True:
                await self._join()
                await self._keep()
                await self._on_revoked()
        finally:
            await asyncio.shield(self._end())

    async def _end(self) -> None:
        """Give up what is read while commits still count, then leave."""
        await self._on_revoked()
        await self.leave()

    async def commit(self, offsets: dict[TopicPartition, Committed]) -> dict[TopicPartition, ErrorCode]:
        """Commit as a member of the present generation."""
        return await commit(self._cluster, self.wish.group, offsets, self.standing)

    async def leave(self) -> None:
        """Tell the group at once, so that it need not wait for the session to end."""
        if self.state is State.LEFT or not self.standing.member_id:
            self.state = State.LEFT
            return
        self.state = State.LEFT
        leaving = {"member_id": self.standing.member_id, "group_instance_id": None}
        try:
            async with asyncio.timeout(3):
                connection = await self._cluster.to_node(await self._cluster.coordinator(self.wish.group))
                await connection.ask(ApiKey.LEAVE_GROUP, {"group_id": self.wish.group, "members": [leaving]})
        except (ConnectionLost, CodedError, AuthenticationRefused, TimeoutError) as error:
            log.info("left without a word", group=self.wish.group, reason=str(error))

    # Joining

    async def _join(self) -> None:
        pauses = Pauses(10 * self._cluster.patience)
        self.state = State.JOINING
        while True:
            try:
                positions = await self._try_to_join()
            except ConnectionLost as error:
                self._cluster.forget_coordinator(self.wish.group)
                await pauses.after(error)
                continue
            except CodedError as error:
                self._heed(error)
                await pauses.after(error)
                continue
            self.state = State.STABLE
            await self._on_assigned(positions)
            return

    def _heed(self, error: CodedError) -> None:
        """Prepare for the next try; raises what no try will mend."""
        if error.code is ErrorCode.unknown_member_id:
            self.standing = NOT_A_MEMBER
        elif error.code in COORDINATION:
            self._cluster.forget_coordinator(self.wish.group)
        elif error.code not in _REJOIN and error.code not in PASSING:
            raise error

    async def _try_to_join(self) -> dict[TopicPartition, int]:
        node = await self._cluster.coordinator(self.wish.group)
        async with self._cluster.lent(node) as connection:
            joined = await self._ask_to_join(connection)
            self.standing = Standing(joined.member_id, int(joined.generation_id))
            shares = await self._share_out(joined) if joined.leader == joined.member_id else []
            synced = checked(
                await connection.ask(
                    ApiKey.SYNC_GROUP,
                    {
                        "group_id": self.wish.group,
                        "generation_id": self.standing.generation,
                        "member_id": self.standing.member_id,
                        "protocol_type": CONSUMER,
                        "protocol_name": joined.protocol_name,
                        "assignments": shares,
                    },
                    patience=self.wish.rebalance_ms / 1000,
                )
            )
        self.assignment = decode_assignment(bytes(synced.assignment))
        return await self._positions()

    async def _ask_to_join(self, connection: Any) -> Any:
        for _ in range(2):
            values = {
                "group_id": self.wish.group,
                "session_timeout": self.wish.session_ms,
                "rebalance_timeout": self.wish.rebalance_ms,
                "member_id": self.standing.member_id,
                "protocol_type": CONSUMER,
                "protocols": [{"name": self.wish.assignor, "metadata": encode_subscription(self.wish.topics)}],
            }
            patience = self.wish.rebalance_ms / 1000
            answer = await connection.ask(ApiKey.JOIN_GROUP, values, patience=patience)
            if answer.error_code is not ErrorCode.member_id_required:
                break
            self.standing = Standing(answer.member_id, -1)
        return checked(answer)

    async def _share_out(self, joined: Any) -> list[dict[str, Any]]:
        wanted = {m.member_id: decode_subscription(bytes(m.metadata)) for m in joined.members}
        self._counts = await self._count({topic for topics in wanted.values() for topic in topics})
        shares = ASSIGNORS[self.wish.assignor](wanted, self._counts)
        return [{"member_id": member, "assignment": encode_assignment(share)} for member, share in shares.items()]

    async def _count(self, topics: Iterable[str]) -> dict[str, int]:
        """Partitions of each topic that there is; a topic that there is not may come later."""
        found = {}
        for topic in topics:
            try:
                found[topic] = len((await self._cluster.topic(topic)).leaders)
            except CodedError as error:
                log.info("a topic cannot be read", topic=topic, group=self.wish.group, reason=str(error))
        return found

    async def _positions(self) -> dict[TopicPartition, int]:
        """Where to begin: after what is committed, or by the wish."""
        places = [TopicPartition(topic, partition) for topic, some in self.assignment.items() for partition in some]
        if not places:
            return {}
        offsets = await committed(self._cluster, self.wish.group, places)
        found = {place: offsets[place].offset for place in places if place in offsets}
        for topic, some in self.assignment.items():
            missing = {partition: RESETS[self.wish.reset] for partition in some if (topic, partition) not in found}
            if missing:
                for partition, (offset, _) in (await list_offsets(self._cluster, topic, missing)).items():
                    found[TopicPartition(topic, partition)] = offset
        return found

    # Staying

    async def _keep(self) -> None:
        """Heartbeats until the group changes."""
        loop = asyncio.get_running_loop()
        last_good = last_check = loop.time()
        while True:
            await asyncio.sleep(self.wish.heartbeat_seconds)
            try:
                if await self._beat() or (loop.time() - last_check > _RECHECK_SECONDS and await self._has_grown()):
                    return
                last_good = loop.time()
            except (ConnectionLost, Unavailable) as error:
                self._cluster.forget_coordinator(self.wish.group)
                if loop.time() - last_good > self.wish.session_ms / 1000:
                    log.info("the group is out of reach", group=self.wish.group, reason=str(error))
                    return
            if loop.time() - last_check > _RECHECK_SECONDS:
                last_check = loop.time()

    async def _beat(self) -> bool:
        """Whether the group asks its members to join again."""
        values = {
            "group_id": self.wish.group,
            "generation_id": self.standing.generation,
            "member_id": self.standing.member_id,
        }
        connection = await self._cluster.to_node(await self._cluster.coordinator(self.wish.group))
        code = (await connection.ask(ApiKey.HEARTBEAT, values)).error_code
        if code is ErrorCode.none:
            return False
        if code in _REJOIN:
            if code is ErrorCode.unknown_member_id:
                self.standing = NOT_A_MEMBER
            return True
        if code in COORDINATION:
            raise ConnectionLost(code.name)
        raise CodedError(code)

    async def _has_grown(self) -> bool:
        if self._counts is None:
            return False
        for topic in self._counts:
            self._cluster.forget(topic)
        return await self._count(set(self._counts) | set(self.wish.topics)) != self._counts
