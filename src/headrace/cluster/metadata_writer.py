"""Changes of the cluster's metadata: topics, partitions, settings of topics and brokers, producer ids.

Every change goes the same way: checked, committed to the store, applied to the logs, shown in the image. What the
image shows is therefore always in the store and on disk. Where the logs cannot follow, the commit is taken back and
the error is the answer. A deletion goes the other way round: once it is committed the image forgets the topic, then
its logs go.

Changes to one topic happen one after another, changes to different ones side by side, so that many creations share
one sync of the store. A change that was begun is finished even when the connection that asked for it is gone.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import quote, unquote
from uuid import UUID
from weakref import WeakValueDictionary

import structlog

from headrace.config import (
    AlterConfigOp,
    BrokerConfig,
    ConfigError,
    Setting,
    broker_setting,
    changed,
    client_metrics_setting,
    group_setting,
    shown,
    topic_setting,
    validate_broker_overrides,
    validate_client_metrics,
    validate_group_overrides,
    validate_topic_overrides,
)
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.storage.disk import StorageError

from .commits import CommitTooLarge, portions
from .election import without_elr
from .entries import EntryKind, EntryValues, key_of, name_of, prefix_of
from .fenced import MOST_OPERATIONS, Deposed
from .identity import new_topic_id
from .image import MOST_DELETED, BrokerNode, ClusterImage, PartitionState, Topic
from .leaders import Leaders
from .placement import Assignment, check_assignments, in_order, place_with_absent, ring_position
from .producer_ids import ProducerIds
from .store import (
    ANY_VERSION,
    AlreadyExists,
    Conflict,
    Create,
    Delete,
    MetadataStore,
    Operation,
    Put,
    StoreError,
    Uncertain,
)
from .topics import (
    DELETED,
    INTERNAL,
    TOPICS,
    already_exists,
    change,
    collision_key,
    creation,
    decode_configs,
    decode_deleted,
    decode_topics,
    deletion,
    encode_configs,
    growth_steps,
    led_by_first,
    removal,
    taken_back,
    together,
    too_many,
    validate_name,
)

log = structlog.get_logger(__name__)

BROKER_CONFIGS: Final = "/config/brokers/"
GROUP_CONFIGS: Final = "/config/groups/"
CLIENT_METRICS: Final = "/config/client-metrics/"
ALL_BROKERS: Final = ""
"""The broker id under which the settings of all brokers stand."""
_OF_ALL: Final = "default"
"""What stands for it in a key, which has no empty parts."""
MAX_PARTITIONS: Final = 100_000
"""The most partitions of one topic."""
MOST_ENTRY_BYTES: Final = 256 << 10
"""Of the values of one entry."""
DEFAULT: Final = -1
MIN_ISR: Final = "min.insync.replicas"

T = TypeVar("T")
Decide = Callable[[Topic], Mapping[int, PartitionState]]
"""The next states of some partitions of a topic."""
DecideEntry = Callable[[EntryValues], EntryValues]
"""The next values of an entry, which has none where it is not there or is to go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """A topic to create: a number of partitions and replicas (-1 for the broker's default), or the replicas of each."""

    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)


class QuorumReplica(NamedTuple):
    """How far a broker has come in the changes of metadata, and how many seconds ago it asked for more, and had all.

    None where that is not known; the controller asks nobody.
    """

    offset: int
    heard_seconds: float | None
    behind_seconds: float | None


class Quorum(NamedTuple):
    """The active controller, its epoch, how many changes it has made in that, and who follows them."""

    leader: int
    epoch: int
    offset: int
    replicas: Mapping[int, QuorumReplica]


class TopicListener(Protocol):
    """The replica manager, as it is notified of topics."""

    def apply_topic(self, topic: Topic) -> None:
        """Makes the logs be as the topic says: new ones opened, settings renewed."""
        ...

    def remove_topic(self, topic: Topic) -> None:
        """Closes and deletes the logs of a topic."""
        ...

    def configs_changed(self, kind: str, name: str, configs: Mapping[str, str]) -> None:
        """Settings of a broker, of all, or of a group were set."""
        ...


class MetadataWriter:
    """Changes the cluster. A lone broker is its own controller."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        image: ClusterImage,
        config: BrokerConfig,
        node: BrokerNode,
        rng: Random,
        listeners: TopicListener,
    ) -> None:
        self._store = store
        self._image = image
        self._config = config
        self._node = node
        self._rng = rng
        self._listeners = listeners
        self._producer_ids = ProducerIds(store)
        self.leaders = Leaders(self.change_partitions, image, config)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._names: dict[str, str] = {}
        """Topic names by what they collide on."""
        self._config_versions: dict[str, int] = {}
        self._deleted: deque[UUID] = deque()
        """The deleted topics that the store remembers, the oldest first."""
        self._running: set[asyncio.Task[Any]] = set()
        self.first_leader_epoch: Callable[[], int] = lambda: 0
        """Of partitions that are added to a topic."""
        self.on_new_states: Callable[[Topic, Mapping[int, PartitionState]], None] = lambda _before, _states: None
        """Told of a topic as it was, and of the states of its partitions that are stored now."""

    async def load(self) -> None:
        """Fills the image with what the store holds."""
        self._image.brokers[self._node.id] = self._node
        for topic in decode_topics(await self._store.list(TOPICS)):
            self._show(topic)
        for topic_id in decode_deleted(await self._store.list(DELETED)):
            self._image.note_deleted(topic_id)
            self._deleted.append(topic_id)
        for key, stored in await self._store.list(BROKER_CONFIGS):
            broker = key[len(BROKER_CONFIGS) :].removeprefix(_OF_ALL)
            self._image.broker_configs[broker] = decode_configs(key, stored)
            self._config_versions[key] = stored.version
        for prefix, kept in (
            (GROUP_CONFIGS, self._image.group_configs),
            (CLIENT_METRICS, self._image.client_metrics),
        ):
            for key, stored in await self._store.list(prefix):
                kept[unquote(key[len(prefix) :])] = decode_configs(key, stored)
                self._config_versions[key] = stored.version
        for kind in EntryKind:
            for key, stored in await self._store.list(prefix_of(kind)):
                self._image.put_entry(kind, name_of(kind, key), decode_configs(key, stored))
                self._config_versions[key] = stored.version
        self._use_broker_configs()

    async def close(self) -> None:
        """Waits for the changes that were begun."""
        if self._running:
            await asyncio.wait(self._running)

    async def create_topic(self, spec: TopicSpec, *, validate_only: bool = False) -> Topic:
        """The topic as created, or as it would be."""
        validate_name(spec.name)
        self._refuse_existing(spec.name)
        validate_topic_overrides(spec.configs)
        assignments = self._assign(spec)
        topic = Topic(
            name=spec.name,
            id=new_topic_id(self._rng),
            partitions=tuple(led_by_first(assignments, self._image.brokers)),
            configs={**self._safer_configs(spec.name, assignments), **spec.configs},
            internal=spec.name in INTERNAL,
        )
        if validate_only:
            return topic
        return await self._change(spec.name, lambda: self._create(topic))

    def _safer_configs(self, name: str, assignments: Sequence[Assignment]) -> dict[str, str]:
        """What is set for a new topic unless its maker sets it. An internal topic of one replica is synced.

        A coordinator that lost its latest records would give a producer epoch out twice, and batches of the second
        owner would be taken for those of the first. A lone broker syncs anyway, unless it is told not to.
        """
        is_alone = name in INTERNAL and all(len(replicas) == 1 for replicas in assignments)
        return {"flush.messages": "1"} if is_alone and not self._config.lone else {}

    async def delete_topic(self, name: str, topic_id: UUID | None = None) -> Topic:
        """The topic that is no more. With an id it is deleted only if it still has that one."""
        self._existing(name)

        async def delete() -> Topic:
            topic = self._existing(name)
            if topic_id not in (None, topic.id):
                raise CodedError(ErrorCode.unknown_topic_id, f"There is no topic with the id {topic_id}")
            await self._commit(deletion(topic))
            self._image.note_deleted(topic.id)
            self._forget(topic)
            log.info("topic deleted", topic=topic.name, partitions=len(topic.partitions))
            await self._prune_deleted(topic.id)
            return topic

        return await self._change(name, delete)

    async def create_partitions(
        self, name: str, total: int, assignments: Sequence[Sequence[int]] | None = None, *, validate_only: bool = False
    ) -> Topic:
        """The topic with `total` partitions, the new ones placed by us unless `assignments` places them."""

        async def grow() -> Topic:
            topic = self._existing(name)
            added = self._assign_more(topic, total, assignments)
            states = (*topic.partitions, *led_by_first(added, self._image.brokers, self.first_leader_epoch()))
            if validate_only:
                return replace(topic, partitions=states)
            for end in growth_steps(len(topic.partitions), total):
                topic = await self._put(topic, replace(topic, partitions=states[:end]))
            return topic

        return await self._change(name, grow)

    async def alter_topic_configs(
        self, name: str, changes: Sequence[AlterConfigOp], *, replace_all: bool = False, validate_only: bool = False
    ) -> Topic:
        """The topic with changed settings. With `replace_all`, what the changes do not set is no longer set."""

        async def alter() -> Topic:
            topic = self._existing(name)
            configs = changed(
                {} if replace_all else topic.configs,
                changes,
                setting=topic_setting,
                in_force=lambda setting: self._config.trace_topic(setting, topic.configs)[0].text,
            )
            validate_topic_overrides(configs)
            altered = replace(topic, configs=configs)
            if configs.get(MIN_ISR) != topic.configs.get(MIN_ISR):
                states = [without_elr(state) or state for state in altered.partitions]
                altered = replace(altered, partitions=tuple(states))
            return altered if validate_only else await self._put(topic, altered)

        return await self._change(name, alter)

    async def change_partitions(self, name: str, decide: Decide) -> Topic:
        """The topic with what `decide` makes of its partitions, by index; as it is where that is nothing."""

        async def change_states() -> Topic:
            topic = self._existing(name)
            for states in together(decide(topic)):
                partitions = list(topic.partitions)
                for index, state in states.items():
                    partitions[index] = state
                before = topic
                topic = await self._put(topic, replace(topic, partitions=tuple(partitions)))
                self.on_new_states(before, states)
            return topic

        return await self._change(name, change_states)

    async def alter_broker_configs(
        self, broker: str, changes: Sequence[AlterConfigOp], *, replace_all: bool = False, validate_only: bool = False
    ) -> Mapping[str, str]:
        """The settings that are now set for that broker id, or for `ALL_BROKERS`."""

        async def alter() -> Mapping[str, str]:
            current = {} if replace_all else self._image.broker_configs.get(broker, {})
            configs = changed(current, changes, setting=_known_broker_setting, in_force=self._in_force)
            validate_broker_overrides(configs)
            if not validate_only:
                await self._put_broker_configs(broker, configs)
            return configs

        return await self._change(BROKER_CONFIGS, alter)

    async def alter_group_configs(
        self, group_id: str, changes: Sequence[AlterConfigOp], *, replace_all: bool = False, validate_only: bool = False
    ) -> Mapping[str, str]:
        """The settings that are now set on that group, which need not exist yet."""

        async def alter() -> Mapping[str, str]:
            current = {} if replace_all else self._image.group_configs.get(group_id, {})
            configs = changed(current, changes, setting=group_setting, in_force=lambda name: current.get(name, ""))
            validate_group_overrides(configs, self._config.__getitem__)
            if not validate_only:
                await self._put_configs(GROUP_CONFIGS + quote(group_id, safe=""), configs)
                self._image.group_configs[group_id] = configs
                self._listeners.configs_changed("group", group_id, configs)
            return configs

        return await self._change(GROUP_CONFIGS, alter)

    async def alter_client_metrics(
        self, name: str, changes: Sequence[AlterConfigOp], *, replace_all: bool = False, validate_only: bool = False
    ) -> Mapping[str, str]:
        """The settings that are now set on that subscription to the metrics of clients, new or not."""

        async def alter() -> Mapping[str, str]:
            current = {} if replace_all else self._image.client_metrics.get(name, {})
            configs = changed(
                current, changes, setting=client_metrics_setting, in_force=lambda setting: current.get(setting, "")
            )
            validate_client_metrics(configs)
            if not validate_only:
                await self._put_configs(CLIENT_METRICS + quote(name, safe=""), configs)
                self._image.client_metrics[name] = configs
                self._listeners.configs_changed("client_metrics", name, configs)
            return configs

        return await self._change(CLIENT_METRICS, alter)

    async def change_entries(
        self, kind: EntryKind, changes: Mapping[str, DecideEntry], *, validate_only: bool = False
    ) -> Mapping[str, EntryValues]:
        """The entries as they are now; see `Controller`."""

        async def change_all() -> Mapping[str, EntryValues]:
            entries = self._image.entries[kind]
            decided = {name: decide(entries.get(name, {})) for name, decide in changes.items()}
            if not validate_only:
                await self._put_entries(
                    kind, {name: values for name, values in decided.items() if values != entries.get(name, {})}
                )
            return decided

        return await self._change(prefix_of(kind), change_all)

    async def describe_quorum(self) -> Quorum:
        """A lone broker is a quorum of one: what it changes counts at once."""
        version = self._image.version
        return Quorum(self._node.id, 0, version, {self._node.id: QuorumReplica(version, None, 0.0)})

    async def elect(self, name: str, index: int) -> None:
        """Let the preferred replica of a partition lead."""
        await self.leaders.elect(name, index)

    async def elect_uncleanly(
        self,
        partitions: Sequence[tuple[str, int]],
        position: int | None = None,  # noqa: ARG002 - as `Controller` has it
    ) -> list[CodedError | None]:
        """A lone broker leads all there is."""
        not_needed = CodedError(ErrorCode.election_not_needed, "Leader election not needed for topic partition.")
        return [_absent(self._image, *key) or not_needed for key in partitions]

    async def reassign(self, name: str, index: int, target: Sequence[int] | None) -> None:
        """Let a partition be held by these brokers from now on, or undo the move that is under way."""
        await self.leaders.reassign(name, index, target)

    async def commit(self, operations: Sequence[Operation]) -> None:
        """Commit what only a controller may."""
        await self._commit(operations)

    async def allocate_producer_id(self) -> int:
        """A producer id that was never used before."""
        try:
            return await self._producer_ids.next()
        except StoreError as error:
            raise _answerable(error) from error

    async def skip_producer_ids(self) -> None:
        """The store was set back: leave out the numbers that it has forgotten."""
        await self._producer_ids.skip(self._rng)

    async def _change(self, name: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs the work after others on the same name, and to its end whatever becomes of the caller."""
        key = collision_key(name)
        lock = self._locks.setdefault(key, asyncio.Lock())

        async def alone() -> T:
            async with lock:
                return await work()

        task = asyncio.create_task(alone())
        self._running.add(task)
        task.add_done_callback(self._finished)
        return await asyncio.shield(task)

    def _finished(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()

    async def _create(self, topic: Topic) -> Topic:
        self._refuse_existing(topic.name)
        operations, topic = creation(topic)
        try:
            await self._commit(operations)
        except AlreadyExists:
            raise already_exists(topic.name) from None
        except CommitTooLarge:
            raise too_many(topic) from None
        try:
            self._listeners.apply_topic(topic)
        except Exception as error:
            await self._take_back(removal(topic), lambda: self._remove_logs(topic))
            raise _answerable(error) from error
        self._show(topic)
        replicas = len(topic.partitions[0].replicas)
        log.info("topic created", topic=topic.name, partitions=len(topic.partitions), replication_factor=replicas)
        return topic

    async def _put(self, before: Topic, after: Topic) -> Topic:
        operations, after = change(before, after)
        await self._commit(operations)
        try:
            self._listeners.apply_topic(after)
        except Exception as error:
            operations, undone = taken_back(before, after)
            await self._take_back(operations, lambda: self._image.put_topic(undone))
            raise _answerable(error) from error
        self._image.put_topic(after)
        return after

    async def _put_broker_configs(self, broker: str, configs: Mapping[str, str]) -> None:
        """Also here the ELRs go with another `min.insync.replicas`, before any leader hears of it."""
        before = self._image.broker_configs.get(broker, {}).get(MIN_ISR)
        await self._put_configs(BROKER_CONFIGS + (broker or _OF_ALL), configs)
        self._image.broker_configs[broker] = configs
        self._use_broker_configs()
        if before != configs.get(MIN_ISR):
            await self.leaders.change_all(lambda state, _rules, _offline: without_elr(state))
        self._listeners.configs_changed("broker", broker, configs)
        for topic in list(self._image.topics()):
            self._apply_settings(topic)

    async def _put_entries(self, kind: EntryKind, changed: Mapping[str, EntryValues]) -> None:
        names = list(changed)
        for start in range(0, len(names), MOST_OPERATIONS):
            some = {key_of(kind, name): name for name in names[start : start + MOST_OPERATIONS]}
            for portion in portions([self._entry_operation(key, changed[name])] for key, name in some.items()):
                await self._commit_values(portion)
                for operation in portion:
                    name = some[operation.key]
                    self._note_version(operation)
                    self._image.put_entry(kind, name, changed[name])
                    self._listeners.configs_changed(kind.value, name, changed[name])

    def _entry_operation(self, key: str, values: EntryValues) -> Operation:
        version = self._config_versions.get(key)
        value = encode_configs(values)
        if len(value) > MOST_ENTRY_BYTES:
            raise CodedError(
                ErrorCode.invalid_request, f"too much for one entry: {len(value)} bytes, and {MOST_ENTRY_BYTES} fit"
            )
        if version is None:
            return Create(key, value)
        return Put(key, value, version) if values else Delete(key, version)

    def _note_version(self, operation: Operation) -> None:
        if isinstance(operation, Delete):
            del self._config_versions[operation.key]
        else:
            self._config_versions[operation.key] = self._config_versions.get(operation.key, -1) + 1

    async def _put_configs(self, key: str, configs: Mapping[str, str]) -> None:
        version = self._config_versions.get(key)
        value = encode_configs(configs)
        operation = Create(key, value) if version is None else Put(key, value, version)
        await self._commit_values([operation])
        self._note_version(operation)

    async def _commit(self, operations: Sequence[Operation]) -> None:
        try:
            await self._store.commit(operations)
        except (CommitTooLarge, AlreadyExists):
            raise
        except StoreError as error:
            raise _answerable(error) from error
        except Conflict as conflict:
            raise _changed_by_another(conflict) from conflict

    async def _commit_values(self, operations: Sequence[Operation]) -> None:
        """The same, for what is no topic."""
        try:
            await self._commit(operations)
        except CommitTooLarge as error:
            raise CodedError(ErrorCode.invalid_request, f"too much for one change: {error}") from error
        except AlreadyExists as conflict:
            raise _changed_by_another(conflict) from conflict

    async def _take_back(self, operations: Sequence[Operation], then: Callable[[], None]) -> None:
        """After a commit that the logs could not follow. What fails here is logged: the first error is the answer."""
        try:
            await self._store.commit(operations)
            then()
        except Exception:
            log.exception("a change could not be taken back", key=operations[0].key)

    def _show(self, topic: Topic) -> None:
        self._image.put_topic(topic)
        self._names[collision_key(topic.name)] = topic.name

    def _forget(self, topic: Topic) -> None:
        self._image.remove_topic(topic.name)
        self._names.pop(collision_key(topic.name), None)
        self._remove_logs(topic)

    def _remove_logs(self, topic: Topic) -> None:
        """A log that cannot be deleted now belongs to no topic, and goes when the broker starts again."""
        try:
            self._listeners.remove_topic(topic)
        except Exception:
            log.exception("the logs of a deleted topic could not be removed", topic=topic.name)

    def _apply_settings(self, topic: Topic) -> None:
        """A log that cannot take new settings now takes them when the broker starts again."""
        try:
            self._listeners.apply_topic(topic)
        except Exception:
            log.exception("a topic's logs could not take the broker's new settings", topic=topic.name)

    async def _prune_deleted(self, newest: UUID) -> None:
        """Let the store forget the oldest of the deleted topics. What fails is done when there is a new controller."""
        self._deleted.append(newest)
        oldest = [self._deleted.popleft() for _ in range(min(2, len(self._deleted) - MOST_DELETED))]
        try:
            if oldest:
                await self._store.commit([Delete(DELETED + topic_id.hex, ANY_VERSION) for topic_id in oldest])
        except (StoreError, Conflict) as error:
            log.info("the store could not forget deleted topics", reason=repr(error))

    def _existing(self, name: str) -> Topic:
        topic = self._image.topic(name)
        if topic is None:
            raise CodedError(ErrorCode.unknown_topic_or_partition, f"There is no topic '{shown(name)}'")
        return topic

    def _refuse_existing(self, name: str) -> None:
        if self._image.topic(name) is not None:
            raise already_exists(name)
        other = self._names.get(collision_key(name))
        if other is not None:
            raise CodedError(
                ErrorCode.invalid_topic_exception,
                f"Topic {name!r} collides with existing topics: {other}. "
                "Names that differ only in '.' and '_' cannot be told apart in metrics; choose another",
            )

    def _assign(self, spec: TopicSpec) -> list[Assignment]:
        if spec.assignments:
            if spec.partitions != DEFAULT or spec.replication_factor != DEFAULT:
                raise CodedError(
                    ErrorCode.invalid_request,
                    "Both numPartitions or replicationFactor and replicasAssignments were set. "
                    "Both cannot be used at the same time.",
                )
            _check_count(len(spec.assignments))
            assigned = in_order(spec.assignments)
            return check_assignments(assigned, self._known(assigned))
        count = self._config["num.partitions"] if spec.partitions == DEFAULT else spec.partitions
        factor = spec.replication_factor
        factor = int(self._config["default.replication.factor"]) if factor == DEFAULT else factor
        _check_count(count)
        racks = self._racks()
        return place_with_absent(
            racks,
            self._absent(factor),
            partitions=count,
            replication_factor=factor,
            start=self._rng.randrange(len(racks)),
        )

    def _assign_more(self, topic: Topic, total: int, assignments: Sequence[Sequence[int]] | None) -> list[Assignment]:
        current = len(topic.partitions)
        if total == current:
            raise CodedError(ErrorCode.invalid_partitions, f"Topic already has {current} partition(s).")
        if total < current:
            message = f"The topic {topic.name} currently has {current} partition(s); {total} would not be an increase."
            raise CodedError(ErrorCode.invalid_partitions, message)
        _check_count(total)
        first = topic.partitions[0].replicas
        if assignments is not None:
            if len(assignments) != total - current:
                message = f"{len(assignments)} assignment(s) for {total - current} new partition(s); give one for each"
                raise CodedError(ErrorCode.invalid_replica_assignment, message)
            return check_assignments(assignments, self._known(assignments), replication_factor=len(first))
        racks = self._racks()
        return place_with_absent(
            racks,
            self._absent(len(first)),
            partitions=total - current,
            replication_factor=len(first),
            start=ring_position(racks, first[0]),
            first_partition=current,
        )

    def _absent(self, replication_factor: int) -> list[int]:
        """Where too few brokers live: those that do not and hold replicas, so that they are expected back."""
        alive = self._image.brokers.keys()
        return [] if replication_factor <= len(alive) else sorted(self._holders() - alive)

    def _known(self, assignments: Sequence[Sequence[int]]) -> AbstractSet[int]:
        """The brokers that an assignment may name: those that live, and those that hold replicas."""
        alive = self._image.brokers.keys()
        return alive if all(alive >= set(replicas) for replicas in assignments) else self._holders()

    def _holders(self) -> set[int]:
        """The brokers that live, or hold replicas."""
        states = {state.replicas for topic in self._image.topics() for state in topic.partitions}
        return {*self._image.brokers, *(broker for replicas in states for broker in replicas)}

    def _racks(self) -> dict[int, str | None]:
        return {broker.id: broker.rack for broker in self._image.brokers.values()}

    def _in_force(self, name: str) -> str:
        found = self._config.trace(name)
        return found[0].text if found else ""

    def _use_broker_configs(self) -> None:
        configs = self._image.broker_configs
        self._config.use_dynamic(cluster=configs.get(ALL_BROKERS, {}), own=configs.get(str(self._node.id), {}))
        self._image.version += 1


def _absent(image: ClusterImage, name: str, index: int) -> CodedError | None:
    topic = image.topic(name)
    if topic is not None and 0 <= index < len(topic.partitions):
        return None
    return CodedError(ErrorCode.unknown_topic_or_partition, f"There is no partition {index} of topic '{shown(name)}'")


def _check_count(partitions: int) -> None:
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise CodedError(
            ErrorCode.invalid_partitions,
            f"Number of partitions was set to an invalid value, {partitions}: "
            f"it must be 1 to {MAX_PARTITIONS}, or -1 for the broker's num.partitions",
        )


def _known_broker_setting(name: str) -> Setting:
    try:
        return broker_setting(name)
    except ConfigError as error:
        raise CodedError(ErrorCode.invalid_request, str(error)) from None


def _changed_by_another(conflict: Conflict) -> CodedError:
    return CodedError(ErrorCode.not_controller, f"{conflict.key} was changed by another controller; ask again")


def _answerable(error: Exception) -> Exception:
    """A failure of the store or of the disk as an answer; anything else as it is."""
    if isinstance(error, Deposed):
        return CodedError(ErrorCode.not_controller, str(error))
    if isinstance(error, Uncertain):
        return CodedError(ErrorCode.request_timed_out, str(error))
    if isinstance(error, StoreError | StorageError | OSError):
        return CodedError(ErrorCode.kafka_storage_error, str(error))
    return error
