"""The group coordinator of one broker: finds the shard of a group, asks the group, and lets the shard act.

A shard is a partition of `__consumer_offsets` that this broker leads. It is read when the broker starts, or when it
comes to lead it; until then its groups answer COORDINATOR_LOAD_IN_PROGRESS, and those of other shards go on. Requests
about committed offsets are served by `GroupCoordinator.offsets`.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar, cast

import structlog

from headrace.cluster.controller import Controller
from headrace.cluster.image import BrokerNode, ClusterImage
from headrace.cluster.metadata_writer import TopicSpec
from headrace.coordinator.groups.targets import JOINING
from headrace.coordinator.runtime.decision import Decision
from headrace.coordinator.runtime.runtime import Runtime
from headrace.coordinator.runtime.timers import Scheduler
from headrace.net.clock import Clock
from headrace.net.pacing import paced
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.opening import RunInBackground
from headrace.replication.partition import Partition
from headrace.replication.replica_manager import ReplicaManager
from headrace.replication.share_state import ShareStateStore

from .classic import CLASSIC, ClassicGroup, JoinRequest, LeavingMember, SyncRequest
from .consumer import CONSUMER, ConsumerGroup, HeartbeatRequest, check_request
from .group import Group, check_group_id, check_text
from .kinds import GroupEnvironment, GroupKind, GroupKinds
from .offsets.records import OFFSETS_TOPIC
from .offsets.service import OffsetCoordinator
from .resolver import Resolver
from .settings import GroupSettings
from .shard import GroupShard
from .share import SHARE, ShareGroup, ShareHeartbeat, ShareOffsets
from .share import check_request as check_share_request

log = structlog.get_logger(__name__)

T = TypeVar("T")
G = TypeVar("G", bound=Group)
Answer = Mapping[str, Any]
Token = asyncio.Future[Answer]
ServesClassic = ClassicGroup | ConsumerGroup
"""The groups that members of the classic protocol may be in."""
KINDS: Final[tuple[GroupKind[Any], ...]] = (CLASSIC, CONSUMER, SHARE)
"""The kinds of group that are served."""


class GroupCoordinator:
    """Coordinates the groups of the shards that this broker leads."""

    def __init__(
        self,
        *,
        settings: GroupSettings,
        image: ClusterImage,
        controller: Controller,
        replicas: ReplicaManager,
        clock: Clock,
        scheduler: Scheduler,
        new_id: Callable[[], str],
        share_state: ShareStateStore,
        run_in_background: RunInBackground | None = None,
        serving: asyncio.Event | None = None,
    ) -> None:
        """`serving` is set once clients are served; before that no member can be late."""
        self.settings = settings
        self._run_in_background = run_in_background
        self._serving = serving
        self._image = image
        self._new_id = new_id
        self.runtime = Runtime(
            _topic(settings),
            image=image,
            controller=controller,
            replicas=replicas,
            clock=clock,
            make=lambda partition: GroupShard(partition, clock, scheduler, self.kinds, self._is_serving),
            loaded=_log_loaded,
        )
        environment = GroupEnvironment(
            settings=settings,
            image=image,
            wall_ms=clock.now_ms,
            new_id=new_id,
            resolver=Resolver(image, self.runtime.spawn),
            in_background=self._in_background,
        )
        self.kinds = GroupKinds(KINDS, environment)
        self.offsets = OffsetCoordinator(self.runtime, settings, lambda: replicas.verifier)
        self.share_offsets = ShareOffsets(
            self.runtime, share_state, image, lambda group_id: self.kinds.make(SHARE, group_id)
        )

    # Life

    def start(self) -> None:
        """Begin to load every group that is here."""
        self.runtime.start()
        if self._serving is not None and not self._serving.is_set():
            self.runtime.spawn(self._begin_when_serving(self._serving))

    def _is_serving(self) -> bool:
        return self._serving is None or self._serving.is_set()

    async def _begin_when_serving(self, serving: asyncio.Event) -> None:
        await serving.wait()
        for shard in self.runtime.active():
            shard.begin()

    async def close(self) -> None:
        """Answer waiting members with NOT_COORDINATOR, and load no more groups."""
        await self.runtime.close()

    async def find(self, group_id: str) -> BrokerNode:
        """The coordinator of a group."""
        check_text(group_id)
        return await self.runtime.find(group_id)

    def shard(self, group_id: str) -> GroupShard:
        """The shard of a group, ready to act; `CodedError` with the client's answer otherwise."""
        check_text(group_id)
        return self.runtime.shard(group_id)

    def leads(self, partition: Partition) -> None:
        """See `replication.Leadership`."""
        self.runtime.leads(partition)

    def leads_no_more(self, partition: Partition) -> None:
        """See `replication.Leadership`."""
        self.runtime.leads_no_more(partition)

    def topic_deleted(self, topic: str) -> None:
        """Begin to delete the offsets of a topic that was deleted."""
        self.runtime.spawn(self.offsets.forget_topic(topic))

    def transaction_ended(self, partition: Partition, producer_id: int, committed: bool, offset: int) -> None:
        """A producer's transaction has ended on a partition; the offsets it committed there count, or are gone."""
        shard = self.runtime.at(partition)
        if shard is not None:
            shard.transaction_ended(producer_id, committed, offset)

    def _in_background(self, make: Callable[[], T], done: Callable[[T | None], None]) -> None:
        if self._run_in_background is None:
            done(make())
        else:
            self.runtime.spawn(_make_in_background(self._run_in_background, make, done))

    # Members, of whatever kind of group

    async def ask(
        self, kind: GroupKind[G], group_id: str, decide: Callable[[G, Token, int], Decision], *, creates: bool
    ) -> Answer:
        """The answer to a member's request of a group of a kind, as the group decides on it by `decide(group, token,
        now_ms)`. With `creates` there is a group from then on, be it in place of one of another kind that gives way."""
        shard = self.shard(group_id)
        former = shard.group(group_id)
        replacing: Decision | None = None
        if former is not None and former.type is kind.type:
            group = cast(G, former)
        elif creates:
            group, replacing = self._new_group(kind, group_id, former, shard.now_ms())
        else:
            raise kind.not_found(group_id, former)
        token = _token()
        self._carry_out(shard, group, decide(group, token, shard.now_ms()), replacing)
        return await token

    def _new_group(
        self, kind: GroupKind[G], group_id: str, former: Group | None, now_ms: int
    ) -> tuple[G, Decision | None]:
        """A group, and what puts it in the place of another; `CodedError` where that one does not give way."""
        group = self.kinds.make(kind, group_id)
        if former is None or former.is_blank:
            return group, None
        return group, kind.replace(group, former, now_ms)

    def _carry_out(
        self, shard: GroupShard, group: Group, decision: Decision, replacing: Decision | None = None
    ) -> None:
        """Let a group's decision take effect. A new group is there from its first record on."""
        if decision.records and shard.groups.get(group.group_id) is not group:
            if replacing is not None:
                replacing.extend(decision)
                decision = replacing
            decision.when_written(lambda: shard.put(group))
        shard.carry_out(group, decision)

    # Members of the classic protocol

    def _joined(self, shard: GroupShard, group_id: str) -> ServesClassic | None:
        """A group that classic members may be in."""
        group = shard.group(group_id)
        return group if isinstance(group, ServesClassic) else None

    async def join(self, group_id: str, request: JoinRequest) -> Answer:
        """JoinGroup; the answer comes when the group has its next generation."""
        check_group_id(group_id)
        classic = self.settings.classic
        if not classic.min_session_timeout_ms <= request.session_timeout_ms <= classic.max_session_timeout_ms:
            raise CodedError(ErrorCode.invalid_session_timeout)
        shard = self.shard(group_id)
        former = shard.group(group_id)
        replacing: Decision | None = None
        group = former if isinstance(former, ServesClassic) else None
        if group is None or (isinstance(group, ConsumerGroup) and group.is_empty):
            if request.member_id:
                raise CodedError(ErrorCode.unknown_member_id)
            group, replacing = self._new_group(CLASSIC, group_id, former, shard.now_ms())
        token = _token()
        self._carry_out(shard, group, group.join(replace(request, token=token), shard.now_ms()), replacing)
        return await token

    async def sync(self, group_id: str, request: SyncRequest) -> Answer:
        """SyncGroup; the answer comes when the leader has assigned."""
        check_group_id(group_id)
        shard = self.shard(group_id)
        group = self._joined(shard, group_id)
        if group is None:
            raise CodedError(ErrorCode.unknown_member_id)
        token = _token()
        shard.carry_out(group, group.sync(replace(request, token=token), shard.now_ms()))
        return await token

    async def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> Answer:
        """Heartbeat. A group that is being loaded cannot be asked, and members are not to fear for that."""
        check_group_id(group_id)
        try:
            shard = self.shard(group_id)
        except CodedError as error:
            if error.code is not ErrorCode.coordinator_load_in_progress:
                raise
            return {"throttle_time": 0, "error_code": ErrorCode.none}
        group = self._joined(shard, group_id)
        if group is None:
            raise CodedError(ErrorCode.unknown_member_id)
        token = _token()
        decision = group.classic_heartbeat(token, member_id, instance_id, generation, shard.now_ms())
        shard.carry_out(group, decision)
        return await token

    async def leave(self, group_id: str, leaving: Sequence[LeavingMember]) -> Answer:
        """LeaveGroup, with the answer of each member."""
        check_group_id(group_id)
        shard = self.shard(group_id)
        group = self._joined(shard, group_id) or self.kinds.make(CLASSIC, group_id)
        token = _token()
        shard.carry_out(group, group.leave(token, leaving, shard.now_ms()))
        return await token

    # Members of the consumer protocol (KIP-848)

    async def consumer_heartbeat(self, group_id: str, request: HeartbeatRequest, version: int) -> Answer:
        """ConsumerGroupHeartbeat. The first member makes the group, also in place of an empty classic one."""
        settings = self.settings.consumer_of(self._image.group_configs.get(group_id))
        check_request(group_id, request, version, settings.assignors)
        member_id = request.member_id or self._new_id()
        return await self.ask(
            CONSUMER,
            group_id,
            lambda group, token, now_ms: group.heartbeat(replace(request, token=token, member_id=member_id), now_ms),
            creates=request.member_epoch == JOINING,
        )

    # Members of share groups (KIP-932)

    async def share_heartbeat(self, group_id: str, request: ShareHeartbeat) -> Answer:
        """ShareGroupHeartbeat. The first member makes the group, and waits for what it is to read."""
        check_share_request(group_id, request)
        is_joining = request.member_epoch == JOINING
        answer = await self._share_beat(group_id, request)
        if answer["error_code"] is not ErrorCode.none or request.member_epoch < JOINING:
            return answer
        if await self.share_offsets.initialize(group_id, waits=is_joining):
            return await self._share_beat(group_id, replace(request, member_epoch=answer["member_epoch"]))
        return answer

    async def _share_beat(self, group_id: str, request: ShareHeartbeat) -> Answer:
        return await self.ask(
            SHARE,
            group_id,
            lambda group, token, now_ms: group.heartbeat(replace(request, token=token), now_ms),
            creates=request.member_epoch == JOINING,
        )

    # Operators

    async def list_groups(self, states: Iterable[str], types: Iterable[str]) -> list[Group]:
        """The groups in one of the states and of one of the types, whatever their case; none stands for any."""
        wanted_states = {state.strip().lower() for state in states}
        wanted_types = {kind.strip().lower() for kind in types}
        return [
            group
            async for shard, group_id in paced(_ids(self.runtime.all()))
            if (group := shard.group(group_id)) is not None
            and (not wanted_states or group.state_name.lower() in wanted_states)
            and (not wanted_types or group.type.value.lower() in wanted_types)
        ]

    async def describe(self, kind: GroupKind[G], group_id: str) -> Mapping[str, Any]:
        """A group of a kind in the field names of its describe API; GROUP_ID_NOT_FOUND when there is none."""
        shard = self.shard(group_id)
        group = shard.group(group_id)
        if group is None or group.type is not kind.type:
            raise kind.not_found(group_id, group)
        described = group.describe()
        await shard.committed()
        return described

    async def delete_group(self, group_id: str) -> None:
        """Delete a group without members, and its offsets."""
        shard = self.shard(group_id)
        group = shard.group(group_id)
        if group is None:
            raise CodedError(ErrorCode.group_id_not_found)
        if isinstance(group, ShareGroup):
            await self.share_offsets.delete_group(group_id)
            return
        group.check_delete()
        shard.remove(group)
        await shard.committed()


def _topic(settings: GroupSettings) -> TopicSpec:
    return TopicSpec(
        name=OFFSETS_TOPIC,
        partitions=settings.topic_partitions,
        replication_factor=settings.topic_replication_factor,
        configs={
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(settings.topic_segment_bytes),
        },
    )


def _log_loaded(shards: Sequence[GroupShard], seconds: float) -> None:
    log.info(
        "groups loaded",
        groups=sum(len(shard.groups) for shard in shards),
        offsets=sum(len(shard.offsets) for shard in shards),
        seconds=seconds,
    )


def _token() -> Token:
    """Handed to a group with a request; the answer comes by it."""
    return asyncio.get_running_loop().create_future()


def _ids(shards: Iterable[GroupShard]) -> Iterator[tuple[GroupShard, str]]:
    """Every group once, be it one that has only offsets; others may come and go meanwhile."""
    for shard in shards:
        with_members, with_offsets = list(shard.groups), list(shard.offsets.groups())
        yield from ((shard, group_id) for group_id in with_members)
        yield from ((shard, group_id) for group_id in with_offsets if group_id not in shard.groups)


async def _make_in_background(run: RunInBackground, make: Callable[[], T], done: Callable[[T | None], None]) -> None:
    made = None
    try:
        made = await run(make)
    except Exception:
        log.exception("the target of a group could not be made")
    finally:
        done(made)
