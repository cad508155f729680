"""The group coordinator of one broker: finds the shard of a group, asks the group, and lets the shard act.

A shard is a partition of `__consumer_offsets` that this broker leads. It is read when the broker starts, or when it
comes to lead it; until then its groups answer COORDINATOR_LOAD_IN_PROGRESS, and those of other shards go on.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import structlog

from headrace.cluster.controller import Controller
from headrace.cluster.image import BrokerNode, ClusterImage
from headrace.cluster.metadata_writer import TopicSpec
from headrace.net.clock import Clock
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.opening import RunInBackground
from headrace.replication.partition import Partition
from headrace.replication.replica_manager import ReplicaManager
from headrace.replication.transactions import TransactionVerifier

from .alarms import Scheduler
from .classic import ClassicGroup, JoinRequest, LeavingMember, SyncRequest
from .consumer import CONSUMER_KEYS, ConsumerGroup, ConsumerSettings
from .consumer.resolver import Resolver
from .consumer.target import NewTarget
from .effects import Effect
from .errands import Errands
from .group import Group
from .journal import Pair
from .offsets import pairs_of
from .partitions import OFFSETS_TOPIC
from .records import CLASSIC_KEY, LARGEST_TEXT, Committed, decode_offset, read_prefix, split_offset_key
from .settings import GroupSettings
from .shard import Shard
from .shards import Shards
from .turns import in_turns

log = structlog.get_logger(__name__)

Answer = Mapping[str, Any]
Fetched = dict[str, dict[int, Committed | None]]
"""Committed offsets by topic and partition; None where there is none."""
UNSTABLE: Final = Committed(-1, -1, "", -1)
"""Stands for an offset that a transaction which is still open may replace."""


class GroupCoordinator:
    """Speaks for the groups of the shards that this broker leads."""

    def __init__(
        self,
        *,
        broker_id: int,
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
        self._run_in_background = run_in_background
        self.settings = settings
        self._serving = serving
        self._broker_id = broker_id
        self._image = image
        self._replicas = replicas
        self._clock = clock
        self._new_id = new_id
        self._consumer_settings = settings.consumer({})
        self.errands = Errands()
        self._resolver = Resolver(image, self.errands.spawn)
        self.shards = Shards(
            _topic(settings),
            image=image,
            controller=controller,
            replicas=replicas,
            clock=clock,
            make=lambda partition: Shard(partition, clock, scheduler, self._make_group, self._is_serving),
            loaded=_log_loaded,
            spawn=self.errands.spawn,
        )

    @property
    def verifier(self) -> TransactionVerifier | None:
        """Who knows which transactions are open; None where there are none."""
        return self._replicas.verifier

    # Life

    def start(self) -> None:
        """Begin to load every group that is here."""
        self.shards.start()
        if self._serving is not None and not self._serving.is_set():
            self.errands.spawn(self._begin_when_serving(self._serving))

    def _is_serving(self) -> bool:
        return self._serving is None or self._serving.is_set()

    async def _begin_when_serving(self, serving: asyncio.Event) -> None:
        await serving.wait()
        for shard in self.shards.active():
            shard.begin()

    async def close(self) -> None:
        """Answer everyone who waits, and load no more."""
        self.errands.is_closed = True
        self.shards.close()
        await self.errands.cancel()

    async def find(self, group_id: str) -> BrokerNode:
        """The broker that speaks for a group. The internal topic is made when the first group is looked for."""
        check_text(group_id)
        node = self._image.brokers.get(await self.shards.leader(group_id))
        if node is None:
            raise CodedError(ErrorCode.coordinator_not_available, "the group's partition has no leader")
        return node

    def shard(self, group_id: str) -> Shard:
        """The shard of a group, ready to act; `CodedError` with what the client is to be told otherwise."""
        check_text(group_id)
        if self.errands.is_closed:
            raise CodedError(ErrorCode.not_coordinator)
        return self.shards.of(group_id)

    def leads(self, partition: Partition) -> None:
        """See `replication.Leadership`."""
        if not self.errands.is_closed:
            self.shards.leads(partition)

    def leads_no_more(self, partition: Partition) -> None:
        """See `replication.Leadership`."""
        self.shards.leads_no_more(partition)

    def transaction_ended(self, partition: Partition, producer_id: int, committed: bool, offset: int) -> None:
        """A producer's transaction has ended on a partition; the offsets it committed there count, or are gone."""
        shard = self.shards.at(partition)
        if shard is not None:
            shard.transaction_ended(producer_id, committed, offset)

    # Groups

    def group(self, shard: Shard, group_id: str) -> Group | None:
        """The group of that id. One that has only offsets is an empty classic group: Kafka calls it simple."""
        found = shard.groups.get(group_id)
        if found is None and group_id in shard.offsets:
            found = self._new_classic(group_id)
        return found

    def _make_group(self, kind: int, group_id: str) -> Group | None:
        if kind in CONSUMER_KEYS:
            return self.new_consumer(group_id)
        return self._new_classic(group_id) if kind == CLASSIC_KEY else None

    def consumer_settings(self, group_id: str) -> ConsumerSettings:
        """What a group of the new protocol goes by now."""
        given = self._image.group_configs.get(group_id)
        return self.settings.consumer(given) if given else self._consumer_settings

    def new_consumer(self, group_id: str) -> ConsumerGroup:
        """A group of the new protocol, without members."""
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
            self.errands.spawn(_run_aside(self._run_in_background, make, done))

    def _new_classic(self, group_id: str) -> ClassicGroup:
        return ClassicGroup(group_id, self.settings.classic, wall_ms=self._clock.now_ms, new_id=self._new_id)

    def _joined(self, shard: Shard, group_id: str) -> ClassicGroup | ConsumerGroup | None:
        """A group that classic members may be in."""
        group = self.group(shard, group_id)
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
        token = self.token()
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
        token = self.token()
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
        token = self.token()
        beat = group.heartbeat if isinstance(group, ClassicGroup) else group.classic_heartbeat
        shard.carry_out(group, beat(token, member_id, instance_id, generation, shard.now_ms()))
        return await token

    async def leave(self, group_id: str, leaving: Sequence[LeavingMember]) -> Answer:
        """LeaveGroup, with the answer of each member."""
        check_group_id(group_id)
        shard = self.shard(group_id)
        group = self._joined(shard, group_id) or self._new_classic(group_id)
        token = self.token()
        shard.carry_out(group, group.leave(token, leaving, shard.now_ms()))
        return await token

    def new_member_id(self) -> str:
        """An id for a member that cannot make one itself."""
        return self._new_id()

    def token(self) -> "asyncio.Future[Answer]":
        """What a group is given with a request, and what its answer comes by."""
        return asyncio.get_running_loop().create_future()

    async def committed(self, shard: Shard) -> None:
        """Returns once everything that was written so far is committed."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def committed(error: CodedError | None) -> None:
            if not done.done():
                done.set_exception(error) if error is not None else done.set_result(None)

        shard.after_commit(committed)
        await done

    # Offsets

    async def commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Mapping[str, Mapping[int, bytes]],
        *,
        names_missing_groups: bool = True,
    ) -> None:
        """Keep encoded offsets by topic and partition. A group that is not there is made, for commits without members.

        Clients of v9 and later understand that a group is missing; older ones are told of a wrong generation.
        """
        check_text(group_id)
        shard = self.shard(group_id)
        group = self.group(shard, group_id)
        if group is not None:
            effects = group.check_commit(member_id, instance_id, generation, shard.now_ms())
            shard.carry_out(group, effects)
        elif generation >= 0:
            raise CodedError(ErrorCode.group_id_not_found if names_missing_groups else ErrorCode.illegal_generation)
        pairs = pairs_of(group_id, offsets)
        if pairs:
            self.write(shard, pairs)
            shard.offsets.update(group_id, offsets)
        await self.committed(shard)

    def write(self, shard: Shard, pairs: Sequence[Pair]) -> None:
        """Write records that no group decided on: offsets, tombstones. If they cannot be written nothing changes."""
        try:
            shard.append(pairs)
        except CodedError as error:
            raise CodedError(ErrorCode.coordinator_not_available, error.message) from error

    async def fetch(
        self,
        group_id: str,
        topics: Mapping[str, Sequence[int]] | None,
        member_id: str | None = None,
        member_epoch: int = -1,
        *,
        stable_only: bool = False,
    ) -> Fetched:
        """Committed offsets, of some partitions or of all. A group that is not there has committed nothing.

        With `stable_only` those are UNSTABLE for which an open transaction has committed something.
        """
        shard = self.shard(group_id)
        group = self.group(shard, group_id)
        if group is not None:
            group.check_fetch(member_id, member_epoch)
        elif member_epoch >= 0:
            raise CodedError(ErrorCode.group_id_not_found)
        kept = shard.offsets.topics(group_id)
        names = kept if topics is None else topics
        values = {name: dict(kept.get(name, ())) for name in names}  # as of now: others commit while these are decoded
        pending = shard.pending.keys(group_id) if stable_only else []
        await self.committed(shard)
        found: Fetched = {}
        async for name, encoded in in_turns(values.items()):
            asked = encoded if topics is None else topics[name]
            found[name] = {p: decode_offset(encoded[p]) if p in encoded else None for p in asked}
        _mark_unstable(found, pending)
        return found


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


def _log_loaded(shards: Sequence[Shard], seconds: float) -> None:
    log.info(
        "groups loaded",
        groups=sum(len(shard.groups) for shard in shards),
        offsets=sum(len(shard.offsets) for shard in shards),
        seconds=seconds,
    )


def _mark_unstable(found: Fetched, pending: Iterable[bytes]) -> None:
    """`pending` are the keys of offsets that open transactions have committed."""
    for key in pending:
        prefix, partition = split_offset_key(key)
        values = found.get(read_prefix(prefix)[1], {})
        if partition in values:
            values[partition] = UNSTABLE


def check_text(text: str) -> None:
    """Refuse a group id that the internal topic cannot hold."""
    if len(text) > LARGEST_TEXT // 4 and len(text.encode()) > LARGEST_TEXT:
        raise CodedError(ErrorCode.invalid_group_id, f"a group id of {len(text)} characters; at most {LARGEST_TEXT}")


def check_group_id(group_id: str) -> None:
    """Refuse a group id that cannot have members."""
    if not group_id:
        raise CodedError(ErrorCode.invalid_group_id, "the group id is empty")
    check_text(group_id)


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
