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

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.topic_partition import TopicPartition

from ..core.codes import Remedy, remedy_of
from ..core.errors import AuthenticationRefused, ConnectionLost
from ..core.groups import (
    NOT_A_MEMBER,
    CommittedOffset,
    GroupMembership,
    heartbeat_request,
    join_request,
    leave_request,
    sync_request,
)
from .assignment import ASSIGNORS, RANGE, Assignment, decode_assignment, decode_subscription
from .cluster import Cluster, checked
from .fetching import list_offsets
from .groups import commit, committed
from .reader import RESETS
from .retrying import Pauses, Unavailable, passes

log = structlog.get_logger(__name__)

_RECHECK_SECONDS: Final = 30.0
"""How often the leader of a group looks whether topics have grown."""

Revoked = Callable[[], Awaitable[None]]
Assigned = Callable[[dict[TopicPartition, int]], Awaitable[None]]


class MembershipState(Enum):
    OUT = "out"
    JOINING = "joining"
    STABLE = "stable"
    LEFT = "left"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """What a member subscribes to, and with which timeouts."""

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

    def __init__(
        self, cluster: Cluster, settings: MemberSettings, on_assigned: Assigned, on_revoked: Revoked = _nothing
    ) -> None:
        self.settings = settings
        self.state = MembershipState.OUT
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
        """Revoke all partitions while commits are still accepted, then leave."""
        await self._on_revoked()
        await self.leave()

    async def commit(self, offsets: dict[TopicPartition, CommittedOffset]) -> dict[TopicPartition, ErrorCode]:
        """Commit as a member of the present generation."""
        return await commit(self._cluster, self.settings.group, offsets, self.standing)

    async def leave(self) -> None:
        """Tell the group at once, so that it need not wait for the session to end."""
        if self.state is MembershipState.LEFT or not self.standing.member_id:
            self.state = MembershipState.LEFT
            return
        self.state = MembershipState.LEFT
        try:
            async with asyncio.timeout(3):
                connection = await self._cluster.to_node(await self._cluster.coordinator(self.settings.group))
                await connection.ask(ApiKey.LEAVE_GROUP, leave_request(self.settings.group, self.standing))
        except (ConnectionLost, CodedError, AuthenticationRefused, TimeoutError) as error:
            log.info("left without a word", group=self.settings.group, reason=str(error))

    # Joining

    async def _join(self) -> None:
        pauses = Pauses(10 * self._cluster.patience)
        self.state = MembershipState.JOINING
        while True:
            try:
                positions = await self._try_to_join()
            except ConnectionLost as error:
                self._cluster.forget_coordinator(self.settings.group)
                await pauses.after(error)
                continue
            except CodedError as error:
                self._heed(error)
                await pauses.after(error)
                continue
            self.state = MembershipState.STABLE
            await self._on_assigned(positions)
            return

    def _heed(self, error: CodedError) -> None:
        """Prepare for the next try after an error; raises errors that no retry solves."""
        if error.code is ErrorCode.unknown_member_id:
            self.standing = NOT_A_MEMBER
        elif remedy_of(error.code) is Remedy.FIND_COORDINATOR:
            self._cluster.forget_coordinator(self.settings.group)
        elif remedy_of(error.code) is not Remedy.REJOIN_GROUP and not passes(error):
            raise error

    async def _try_to_join(self) -> dict[TopicPartition, int]:
        node = await self._cluster.coordinator(self.settings.group)
        async with self._cluster.lent(node) as connection:
            joined = await self._ask_to_join(connection)
            self.standing = GroupMembership(joined.member_id, int(joined.generation_id))
            shares = await self._share_out(joined) if joined.leader == joined.member_id else {}
            values = sync_request(self.settings.group, self.standing, joined.protocol_name, shares)
            patience = self.settings.rebalance_ms / 1000
            synced = checked(await connection.ask(ApiKey.SYNC_GROUP, values, patience=patience))
        self.assignment = decode_assignment(bytes(synced.assignment))
        return await self._positions()

    async def _ask_to_join(self, connection: Any) -> Any:
        for _ in range(2):
            values = join_request(
                self.settings.group,
                self.standing,
                topics=self.settings.topics,
                assignor=self.settings.assignor,
                session_ms=self.settings.session_ms,
                rebalance_ms=self.settings.rebalance_ms,
            )
            patience = self.settings.rebalance_ms / 1000
            answer = await connection.ask(ApiKey.JOIN_GROUP, values, patience=patience)
            if answer.error_code is not ErrorCode.member_id_required:
                break
            self.standing = GroupMembership(answer.member_id, -1)
        return checked(answer)

    async def _share_out(self, joined: Any) -> dict[str, Assignment]:
        wanted = {m.member_id: decode_subscription(bytes(m.metadata)) for m in joined.members}
        self._counts = await self._count({topic for topics in wanted.values() for topic in topics})
        return ASSIGNORS[self.settings.assignor](wanted, self._counts)

    async def _count(self, topics: Iterable[str]) -> dict[str, int]:
        """Partitions of each topic that there is; a topic that there is not may come later."""
        counts = {}
        for topic in topics:
            try:
                counts[topic] = (await self._cluster.topic(topic)).partitions
            except CodedError as error:
                log.info("a topic cannot be read", topic=topic, group=self.settings.group, reason=str(error))
        return counts

    async def _positions(self) -> dict[TopicPartition, int]:
        """Where to begin: after what is committed, or where `reset` says."""
        places = [TopicPartition(topic, partition) for topic, some in self.assignment.items() for partition in some]
        if not places:
            return {}
        offsets = await committed(self._cluster, self.settings.group, places)
        positions = {place: offsets[place].offset for place in places if place in offsets}
        for topic, some in self.assignment.items():
            missing = {
                partition: RESETS[self.settings.reset] for partition in some if (topic, partition) not in positions
            }
            if missing:
                for partition, (offset, _) in (await list_offsets(self._cluster, topic, missing)).items():
                    positions[TopicPartition(topic, partition)] = offset
        return positions

    # Staying

    async def _keep(self) -> None:
        """Heartbeats until the group changes."""
        loop = asyncio.get_running_loop()
        last_good = last_check = loop.time()
        while True:
            await asyncio.sleep(self.settings.heartbeat_seconds)
            try:
                if await self._beat() or (loop.time() - last_check > _RECHECK_SECONDS and await self._has_grown()):
                    return
                last_good = loop.time()
            except (ConnectionLost, Unavailable) as error:
                self._cluster.forget_coordinator(self.settings.group)
                if loop.time() - last_good > self.settings.session_ms / 1000:
                    log.info("the group is out of reach", group=self.settings.group, reason=str(error))
                    return
            if loop.time() - last_check > _RECHECK_SECONDS:
                last_check = loop.time()

    async def _beat(self) -> bool:
        """Whether the group asks its members to join again."""
        connection = await self._cluster.to_node(await self._cluster.coordinator(self.settings.group))
        code = (
            await connection.ask(ApiKey.HEARTBEAT, heartbeat_request(self.settings.group, self.standing))
        ).error_code
        if code is ErrorCode.none:
            return False
        if remedy_of(code) is Remedy.REJOIN_GROUP:
            if code is ErrorCode.unknown_member_id:
                self.standing = NOT_A_MEMBER
            return True
        if remedy_of(code) is Remedy.FIND_COORDINATOR:
            raise ConnectionLost(code.name)
        raise CodedError(code)

    async def _has_grown(self) -> bool:
        if self._counts is None:
            return False
        for topic in self._counts:
            self._cluster.forget(topic)
        return await self._count(set(self._counts) | set(self.settings.topics)) != self._counts
