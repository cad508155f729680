"""A broker without sockets and disks: a request goes in as bytes, its answer comes back decoded from bytes."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from datetime import timedelta
from io import BytesIO
from random import Random
from types import NoneType
from typing import Any, NamedTuple, TypeVar, cast, get_args, get_origin

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from headrace.cluster.image import BrokerNode, ClusterImage, Topic
from headrace.cluster.metadata_writer import MetadataWriter, TopicSpec
from headrace.cluster.sqlite import SqliteStore
from headrace.config import BrokerConfig
from headrace.coordinator.groups.service import GroupCoordinator
from headrace.coordinator.groups.settings import GroupSettings
from headrace.coordinator.share.service import ShareCoordinator, ShareCoordinatorSettings
from headrace.coordinator.share.store import RoutedShareState
from headrace.coordinator.transactions.service import TransactionCoordinator, TransactionSettings
from headrace.net.clock import SystemClock
from headrace.protocol.api import SUPPORTED, ApiKey
from headrace.protocol.encode import encode_response
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.guard import check_request
from headrace.protocol.schema import shape_of
from headrace.replication.share_state import ShareStateStore
from headrace.security.quotas.client_quotas import ClientQuotas
from headrace.server.context import Context, RequestInfo
from headrace.server.handlers import HANDLERS
from headrace.server.partition_ends import PartitionEnds

CLUSTER_ID = "vPeOCWypqUOSepEvx0cbog"
T = TypeVar("T")


class Record(NamedTuple):
    offset: int
    timestamp: int
    leader_epoch: int


class Producer(NamedTuple):
    epoch: int = 0
    last_sequence: int = 7
    last_timestamp: int = 1234
    coordinator_epoch: int = -1
    transaction_first_offset: int = -1


class KnownProducers(dict[int, Producer]):
    """Producers by id, as a log gives them."""

    def states(self) -> Iterable[tuple[int, Producer]]:
        return self.items()


@dataclass
class FakeLog:
    """A log of timestamps."""

    records: list[Record] = field(default_factory=list)
    log_start_offset: int = 0
    known_producers: KnownProducers = field(default_factory=KnownProducers)

    def append(self, timestamp: int, leader_epoch: int = 0) -> None:
        self.records.append(Record(self.log_end_offset, timestamp, leader_epoch))

    @property
    def log_end_offset(self) -> int:
        return len(self.records)

    @property
    def size_bytes(self) -> int:
        return 100 * len(self.records)

    def offset_for_timestamp(self, timestamp: int, end_offset: int) -> Record | None:
        return next((r for r in self._readable(end_offset) if r.timestamp >= timestamp), None)

    def offset_of_max_timestamp(self, end_offset: int) -> Record | None:
        return max(self._readable(end_offset), key=lambda r: (r.timestamp, -r.offset), default=None)

    def epoch_at(self, offset: int) -> int:
        return next((r.leader_epoch for r in self.records if r.offset == offset), -1)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        upto = [r for r in self.records if r.leader_epoch <= epoch]
        return (upto[-1].leader_epoch, upto[-1].offset + 1) if upto else (-1, -1)

    def producers(self) -> KnownProducers:
        return self.known_producers

    def _readable(self, end_offset: int) -> list[Record]:
        return [r for r in self.records if self.log_start_offset <= r.offset < end_offset]


@dataclass
class FakePartition:
    topic: str
    index: int
    leader_epoch: int = 0
    high_watermark: int = 0
    last_stable_offset: int = 0
    log: FakeLog = field(default_factory=FakeLog)
    is_leader: bool = True
    knows_high_watermark: bool = True

    def check_leads(self) -> None:
        if not self.is_leader:
            raise CodedError(ErrorCode.not_leader_or_follower)

    def check_epoch(self, current_leader_epoch: int) -> None:
        if 0 <= current_leader_epoch < self.leader_epoch:
            raise CodedError(ErrorCode.fenced_leader_epoch)
        if current_leader_epoch > self.leader_epoch:
            raise CodedError(ErrorCode.unknown_leader_epoch)

    def append(self, *timestamps: int) -> None:
        for timestamp in timestamps:
            self.log.append(timestamp, self.leader_epoch)
        self.high_watermark = self.last_stable_offset = self.log.log_end_offset


class FakeReplicas:
    """Holds every partition of every topic it is told of."""

    log_directory = "/data"

    def __init__(self) -> None:
        self.topics: dict[str, list[FakePartition]] = {}
        self.failure: Exception | None = None
        self.applied: list[Topic] = []

    async def in_thread(self, work: Callable[[], Any]) -> Any:
        return work()

    def apply_topic(self, topic: Topic) -> None:
        if self.failure is not None:
            raise self.failure
        self.applied.append(topic)
        held = self.topics.setdefault(topic.name, [])
        held.extend(FakePartition(topic.name, index) for index in range(len(held), len(topic.partitions)))

    def configs_changed(self, kind: str, name: str, configs: Mapping[str, str]) -> None:
        """Nobody here goes by them."""

    def remove_topic(self, topic: Topic) -> None:
        self.topics.pop(topic.name, None)

    def partition(self, topic: str, index: int) -> FakePartition:
        held = self.topics.get(topic, [])
        if not 0 <= index < len(held):
            raise CodedError(ErrorCode.unknown_topic_or_partition, f"no partition {index} of {topic}")
        return held[index]

    def hosted(self) -> list[FakePartition]:
        return [partition for held in self.topics.values() for partition in held]

    def disk_usage(self) -> tuple[int, int]:
        return 1000, 400

    async def delete_records(self, partition: FakePartition, offset: int, timeout: float) -> int:
        partition.log.log_start_offset = max(partition.log.log_start_offset, offset)
        return partition.log.log_start_offset


class Harness:
    """One broker, number 1, with its own event loop."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.loop = asyncio.new_event_loop()
        self.config = BrokerConfig.parse({"auto.create.topics.enable": "false", **(settings or {})})
        self.store = self.run(SqliteStore.open(":memory:"))
        self.image = ClusterImage(cluster_id=CLUSTER_ID, controller_id=1)
        self.replicas = FakeReplicas()
        self.controller = MetadataWriter(
            store=self.store,
            image=self.image,
            config=self.config,
            node=BrokerNode(id=1, host="localhost", port=9092, rack="r1"),
            rng=Random(1),
            listeners=self.replicas,
        )
        share = self._make_share()
        share_state = RoutedShareState(
            broker_id=1, coordinator=share, image=self.image, clock=SystemClock(), peers=None
        )
        self.context = Context(
            config=self.config,
            clock=SystemClock(),
            image=self.image,
            controller=self.controller,
            replicas=cast(Any, self.replicas),
            groups=self._make_groups(share_state),
            transactions=self._make_transactions(),
            share=share,
            share_state=share_state,
            ends=PartitionEnds(broker_id=1, image=self.image, replicas=cast(Any, self.replicas), peers=None),
            active_controller=lambda: 1,
            quotas=ClientQuotas(self.loop.time),
        )
        self.run(self.controller.load())
        assert self.context.quotas is not None
        self.context.quotas.follow(self.image)

    def _make_groups(self, share_state: ShareStateStore) -> GroupCoordinator:
        return GroupCoordinator(
            settings=GroupSettings.of(self.config),
            image=self.image,
            controller=self.controller,
            replicas=cast(Any, self.replicas),
            clock=SystemClock(),
            scheduler=self.loop,
            new_id=lambda: "id",
            share_state=share_state,
        )

    def _make_share(self) -> ShareCoordinator:
        return ShareCoordinator(
            settings=ShareCoordinatorSettings.of(self.config),
            image=self.image,
            controller=self.controller,
            replicas=cast(Any, self.replicas),
            clock=SystemClock(),
            scheduler=self.loop,
        )

    def _make_transactions(self) -> TransactionCoordinator:
        return TransactionCoordinator(
            broker_id=1,
            settings=TransactionSettings.of(self.config),
            image=self.image,
            controller=self.controller,
            replicas=cast(Any, self.replicas),
            clock=SystemClock(),
            scheduler=self.loop,
            append_marker=cast(Any, None),
        )

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def close(self) -> None:
        self.run(self.controller.close())
        self.run(self.store.close())
        self.loop.close()

    def topic(self, name: str, partitions: int = 1, **configs: str) -> Topic:
        """A new topic; settings with `_` for `.` in their names."""
        overrides = {key.replace("_", "."): value for key, value in configs.items()}
        return self.run(self.controller.create_topic(TopicSpec(name=name, partitions=partitions, configs=overrides)))

    def ask(self, api_key: ApiKey, version: int, **values: Any) -> Any:
        """The answer to a request with those fields; fields the version does not have are left out."""
        return self.ask_as(RequestInfo(api_key, version, "tests", "User:ANONYMOUS", "127.0.0.1"), **values)

    def ask_as(self, info: RequestInfo, **values: Any) -> Any:
        """The same by somebody else."""
        api_key, version = ApiKey(info.api_key), info.version
        entity = through_the_wire(api_key, version, values)
        answer = self.run(cast(Any, HANDLERS[api_key](self.context, entity, info)))
        body = answer if isinstance(answer, bytes | bytearray) else encode_response(api_key, version, answer)
        decoded, end = entity_reader(load_response_schema(api_key, version))(bytes(body), 0)
        assert end == len(body), "the answer has bytes that no client expects"
        return decoded


def versions(api_key: ApiKey, since: int = 0) -> list[int]:
    """Every version that is served, from `since` on."""
    return [v for v in range(SUPPORTED[api_key].min, SUPPORTED[api_key].max + 1) if v >= since]


def through_the_wire(api_key: ApiKey, version: int, values: Mapping[str, Any]) -> Any:
    schema = load_request_schema(api_key, version)
    out = BytesIO()
    entity_writer(cast(Any, schema))(out, build(schema, values))
    data = out.getvalue()
    check_request(api_key, version, memoryview(data))
    entity, _ = entity_reader(schema)(data, 0)
    return entity


def build(entity: Any, values: Mapping[str, Any]) -> Any:
    """An entity from plain values: dictionaries for structs, nothing for fields that can be empty."""
    given: dict[str, Any] = {}
    for each in fields(entity):
        inner = _inner(each.type)
        if each.name in values:
            given[each.name] = _converted(inner, values[each.name])
        elif each.default is MISSING:
            given[each.name] = _empty(each, entity)
    return entity(**given)


def _inner(annotation: Any) -> Any:
    present = [arg for arg in get_args(annotation) if arg is not NoneType and arg is not ...]
    if get_origin(annotation) is tuple or len(present) == 1:
        return _inner(present[0])
    return annotation


def _converted(inner: Any, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_converted(inner, item) for item in value)
    return build(inner, value) if is_dataclass(inner) and isinstance(value, Mapping) else value


def _empty(each: Any, entity: Any) -> Any:
    shape = shape_of(entity)
    (found,) = (f for f in (*shape.fields, *shape.tagged) if f.name == each.name)
    if found.is_array:
        return ()
    if found.kafka_type in ("timedelta_i32", "timedelta_i64"):
        return timedelta()
    if found.nullable:
        return None
    return {"string": "", "bool": False}.get(found.kafka_type or "", 0)
