"""The group coordinator of one broker: finds the shard of a group, asks the group, and lets the shard act.

A shard is a partition of `__consumer_offsets` that this broker leads. It is read when the broker starts, or when it
comes to lead it; until then its groups answer COORDINATOR_LOAD_IN_PROGRESS, and those of other shards go on. Requests
about committed offsets are served by `GroupCoordinator.offsets`.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from headrace.cluster.controller import Controller
from headrace.cluster.image import BrokerNode, ClusterImage
from headrace.cluster.metadata_writer import TopicSpec
from headrace.coordinator.runtime.decision import Effect, Write
from headrace.coordinator.runtime.runtime import Runtime
from headrace.coordinator.runtime.timers import Scheduler
from headrace.net.clock import Clock
from headrace.net.pacing import paced
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.opening import RunInBackground
from headrace.replication.partition import Partition
from headrace.replication.replica_manager import ReplicaManager

from .classic import ClassicGroup, JoinRequest, LeavingMember, SyncRequest
from .classic.records import CLASSIC_KEY
from .consumer import CONSUMER_KEYS, ConsumerGroup, HeartbeatRequest, check_request
from .consumer.resolver import Resolver
from .consumer.target import NewTarget
from .group import Group, check_group_id, check_text
from .offsets.records import OFFSETS_TOPIC
from .offsets.service import OffsetCoordinator
from .settings import ConsumerSettings, GroupSettings
from .shard import GroupShard

log = structlog.get_logger(__name__)

Answer = Mapping[str, Any]


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
        run_in_background: RunInBackground | None = None,
        serving: asyncio.Event | None = None,
    ) -> None:
        """`serving` is set once clients are served; before that no member can be late."""
        self.settings = settings
        self._run_in_background = run_in_background
        self._serving = serving
        self._image = image
        self._clock = clock
        self._new_id = new_id
        self._consumer_settings = settings.consumer({})
        self.runtime = Runtime(
            _topic(settings),
            image=image,
            controller=controller,
            replicas=replicas,
            clock=clock,
            make=lambda partition: GroupShard(partition, clock, scheduler, self._make_group, self._is_serving),
            loaded=_log_loaded,
        )
        self.offsets = OffsetCoordinator(self.runtime, settings, lambda: replicas.verifier)
        self._resolver = Resolver(image, self.runtime.spawn)

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
        """Answer everyone who waits, and load no more."""
        await self.runtime.close()

    async def find(self, group_id: str) -> BrokerNode:
        """The coordinator of a group."""
        check_text(group_id)
        return await self.runtime.find(group_id)

    def shard(self, group_id: str) -> GroupShard:
        """The shard of a group, ready to act; `CodedError` with what the client is to be told otherwise."""
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

    # Kinds of group

    def _make_group(self, kind: int, group_id: str) -> Group | None:
        if kind in CONSUMER_KEYS:
            return self._new_consumer(group_id)
        return self._new_classic(group_id) if kind == CLASSIC_KEY else None

    def consumer_settings(self, group_id: str) -> ConsumerSettings:
        """The settings of a group of the consumer protocol."""
        given = self._image.group_configs.get(group_id)
        return self.settings.consumer(given) if given else self._consumer_settings

    def _new_consumer(self, group_id: str) -> ConsumerGroup:
        return ConsumerGroup(
            group_id,
            image=self._image,
            resolver=self._resolver,
            aside=self._make_aside,
            settings=lambda: self.consumer_settings(group_id),
            new_id=self._new_id,
            new_classic=self._new_classic,
        )

    def _make_aside(self, make: Callable[[], NewTarget], done: Callable[[NewTarget | None], None]) -> None:
        if self._run_in_background is None:
            done(make())
        else:
            self.runtime.spawn(_run_aside(self._run_in_background, make, done))

    def _new_classic(self, group_id: str) -> ClassicGroup:
        return ClassicGroup(group_id, self.settings.classic, wall_ms=self._clock.now_ms, new_id=self._new_id)

    # Members of the classic protocol

    def _joined(self, shard: GroupShard, group_id: str) -> ClassicGroup | ConsumerGroup | None:
        """A group that classic members may be in."""
        group = shard.group(group_id)
        return group if isinstance(group, ClassicGroup | ConsumerGroup) else None

    async def join(self, group_id: str, request: JoinRequest) -> Answer:
        """JoinGroup; the answer comes when the group has its next generation."""
        check_group_id(group_id)
        classic = self.settings.classic
        if not classic.min_session_timeout_ms <= request.session_timeout_ms <= classic.max_session_timeout_ms:
            raise CodedError(ErrorCode.invalid_session_timeout)
        shard = self.shard(group_id)
        group = self._joined(shard, group_id)
        former: list[Effect] = []
        if isinstance(group, ConsumerGroup) and group.is_empty:
            former += group.tombstones()
            group = None
        if group is None:
            if request.member_id:
                raise CodedError(ErrorCode.unknown_member_id)
            group = self._new_classic(group_id)
        token = _token()
        effects = group.join(replace(request, token=token), shard.now_ms())
        if not group.is_blank:
            effects = [*former, *effects]
            shard.groups[group_id] = group
        shard.carry_out(group, effects)
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
        beat = group.heartbeat if isinstance(group, ClassicGroup) else group.classic_heartbeat
        shard.carry_out(group, beat(token, member_id, instance_id, generation, shard.now_ms()))
        return await token

    async def leave(self, group_id: str, leaving: Sequence[LeavingMember]) -> Answer:
        """LeaveGroup, with the answer of each member."""
        check_group_id(group_id)
        shard = self.shard(group_id)
        group = self._joined(shard, group_id) or self._new_classic(group_id)
        token = _token()
        shard.carry_out(group, group.leave(token, leaving, shard.now_ms()))
        return await token

    # Members of the consumer protocol (KIP-848)

    async def consumer_heartbeat(self, group_id: str, request: HeartbeatRequest, version: int) -> Answer:
        """ConsumerGroupHeartbeat. The first member makes the group, also in place of an empty classic one."""
        check_request(group_id, request, version, self.consumer_settings(group_id).assignors)
        shard = self.shard(group_id)
        group, effects = self._consumer_group(shard, group_id, is_joining=request.member_epoch == 0)
        token = _token()
        decided = group.heartbeat(
            replace(request, token=token, member_id=request.member_id or self._new_id()), shard.now_ms()
        )
        if group is not shard.groups.get(group_id) and any(isinstance(effect, Write) for effect in decided):
            decided = [*effects, *decided]
            shard.replace(group)
        shard.carry_out(group, decided)
        return await token

    def _consumer_group(
        self, shard: GroupShard, group_id: str, *, is_joining: bool
    ) -> tuple[ConsumerGroup, list[Effect]]:
        """The group, and what has to be done first where it is a new one and the member is let in."""
        former = shard.group(group_id)
        if isinstance(former, ConsumerGroup):
            return former, []
        if not is_joining:
            raise _not_found(group_id, is_there=former is not None)
        group = self._new_consumer(group_id)
        if not isinstance(former, ClassicGroup) or former.is_blank:
            return group, []
        if former.is_empty:
            return group, [*former.tombstones()]
        return group, group.take_over(former, shard.now_ms())

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

    async def describe_classic(self, group_id: str) -> Mapping[str, Any]:
        """A classic group as DescribeGroups shows it; GROUP_ID_NOT_FOUND when there is none of that id."""
        shard = self.shard(group_id)
        group = shard.group(group_id)
        if not isinstance(group, ClassicGroup):
            problem = "not found" if group is None else "is not a classic group"
            raise CodedError(ErrorCode.group_id_not_found, f"Group {group_id} {problem}.")
        described = group.describe()
        await shard.committed()
        return described

    async def describe_consumer(self, group_ids: Sequence[str]) -> list[Mapping[str, Any] | tuple[str, CodedError]]:
        """Each group as ConsumerGroupDescribe shows it, or its id and the error."""
        described: list[Mapping[str, Any] | tuple[str, CodedError]] = []
        async for group_id in paced(group_ids):
            try:
                shard = self.shard(group_id)
                group = shard.group(group_id)
                if not isinstance(group, ConsumerGroup):
                    raise _not_found(group_id, is_there=isinstance(group, ClassicGroup))
                values = group.describe()
                await shard.committed()
            except CodedError as error:
                described.append((group_id, error))
            else:
                described.append(values)
        return described

    async def delete_group(self, group_id: str) -> None:
        """Delete a group without members, and its offsets."""
        shard = self.shard(group_id)
        group = shard.group(group_id)
        if group is None:
            raise CodedError(ErrorCode.group_id_not_found)
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


def _token() -> "asyncio.Future[Answer]":
    """Handed to a group with a request; the answer comes by it."""
    return asyncio.get_running_loop().create_future()


def _ids(shards: Iterable[GroupShard]) -> Iterator[tuple[GroupShard, str]]:
    """Every group once, be it one that has only offsets; others may come and go meanwhile."""
    for shard in shards:
        with_members, with_offsets = list(shard.groups), list(shard.offsets.groups())
        yield from ((shard, group_id) for group_id in with_members)
        yield from ((shard, group_id) for group_id in with_offsets if group_id not in shard.groups)


def _not_found(group_id: str, *, is_there: bool) -> CodedError:
    message = f"Group {group_id} is not a consumer group." if is_there else f"Group {group_id} not found."
    return CodedError(ErrorCode.group_id_not_found, message)


async def _run_aside(
    run: RunInBackground, make: Callable[[], NewTarget], done: Callable[[NewTarget | None], None]
) -> None:
    made = None
    try:
        made = await run(make)
    except Exception:
        log.exception("the target of a group could not be made")
    finally:
        done(made)
