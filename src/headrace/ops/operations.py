"""Operator requests: describe the cluster, reassign replicas, elect leaders, throttle replication. Over the wire
itself, as the client library has no calls for half of it.

Every call may be made at any broker, which forwards it to the controller, and is repeated while there is none.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from headrace.client.admin import answers
from headrace.client.columnar.channel import Channel
from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.retry import Patience, refused, refused_or_again
from headrace.client.core.errors import ConnectionLost
from headrace.client.core.level import UPDATE_LEVEL, VERSION, read_level_update, update_level_request
from headrace.client.core.offsets import (
    DEBUGGING_REPLICA,
    LATEST,
    READ_UNCOMMITTED,
    OffsetQuery,
    list_offsets_request,
    read_offsets,
)
from headrace.client.core.topics import BROKER, TOPIC, alter_configs_request, describe_configs_request
from headrace.client.errors import ClientError
from headrace.client.probe import require_listener
from headrace.client.waiting import Diagnose, OnWait, Waiter
from headrace.net.address import Address
from headrace.protocol.api import REFETCH, START_EMPTY, ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.topic_partition import TopicPartition, indexes_by_topic, values_by_topic

from .health import BrokerReports, ask_all, is_levelled, with_version
from .moves import Replicas
from .overview import BrokerView, ClusterView, PartitionView, Sizes, all_brokers

PAGE: Final = 2000
MOVES_AT_ONCE: Final = 200
TIMEOUT_MS: Final = 30_000
PREFERRED, UNCLEAN = 0, 1
DESIGNATED: Final = 64
"""The first of our brokers' own election types, which name a replica by its position."""
_MIN_ISR: Final = "min.insync.replicas"
_RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_THROTTLED: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_ALL: Final = "*"

_REFETCH_REASONS: Final = {
    ErrorCode.invalid_request: "its log has not failed",
    ErrorCode.unknown_topic_or_partition: "it holds no such partition",
    ErrorCode.not_enough_replicas: "no other replica is in sync, so that nobody could be asked for what is lost; bring "
    "one back, restore the files, or give up what only this log held with --force",
}

T = TypeVar("T")
LogEnds = dict[TopicPartition, dict[int, tuple[int, int]]]
"""For each partition the epoch of the last record and the end of the log, on each replica that has told."""
Outcomes = dict[TopicPartition, ClientError | None]
"""For each partition what was in the way, if anything was."""


_DEFAULTS: Final = {
    "client.id": "headrace-cli",
    "default.api.timeout.ms": str(TIMEOUT_MS),
    "socket.connection.setup.timeout.ms": "3000",
}


class _WaitedFor(Cluster):
    """A cluster whose user learns what is waited for."""

    def __init__(self, settings: Mapping[str, str], waiter: Waiter) -> None:
        super().__init__(settings)
        self._waiter = waiter

    def retried(self, attempt: Callable[[], T], patience: Patience | None = None) -> T:
        call = super().retried
        return self._waiter.call(lambda: call(attempt, patience), "the cluster's answer")


class Operations:
    """One cluster. Each method raises `ClientError`, or gives one per partition."""

    def __init__(
        self,
        bootstrap: str,
        properties: Mapping[str, str] | None = None,
        *,
        on_wait: OnWait | None = None,
        diagnose: Diagnose | None = None,
    ) -> None:
        require_listener(bootstrap)
        given = {**_DEFAULTS, **(properties or {}), "bootstrap.servers": bootstrap}
        waiter = Waiter(diagnose or (lambda: answers(bootstrap)), limit=2 * TIMEOUT_MS / 1000, on_wait=on_wait)
        self._cluster: Cluster = _WaitedFor(given, waiter)
        self._living: set[int] = set()
        """The brokers of the last view."""
        self._asked_broker: int | None = None
        """The broker that is asked now; None where any may be."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.close()

    # What there is

    def view(self, at: int | None = None) -> ClusterView:
        """The cluster as one of its brokers knows it: this one, or whichever answers."""
        self._asked_broker = at
        try:
            return self._view()
        finally:
            self._asked_broker = None

    def _view(self) -> ClusterView:
        described = self._ask(ApiKey.DESCRIBE_CLUSTER, {"include_cluster_authorized_operations": False})
        self._living = {b.broker_id for b in described.brokers} & set(self._cluster.brokers())
        living = [BrokerView(id=b.broker_id, host=b.host, port=b.port, rack=b.rack) for b in described.brokers]
        partitions = self.partitions()
        controller = int(described.controller_id)
        return ClusterView(
            cluster_id=described.cluster_id,
            controller=controller if controller >= 0 else None,
            brokers=all_brokers(living, partitions),
            partitions=tuple(partitions),
        )

    def health(self, view: ClusterView) -> BrokerReports:
        """What each broker of a view that lives says of itself."""
        living = {broker.id: Address(broker.host, broker.port) for broker in view.brokers if broker.is_alive}
        return ask_all(living, self._cluster.settings.connection)

    def with_versions(self, view: ClusterView, reports: BrokerReports) -> ClusterView:
        """The view with the version and the feature levels of each broker that tells them, and those of the cluster."""
        levels = [r.numbers["feature_level"] for r in reports.values() if is_levelled(r)]
        return replace(
            view,
            brokers=tuple(with_version(broker, reports.get(broker.id)) for broker in view.brokers),
            level=int(max(levels)) if levels else None,
        )

    def update_level(self, to: int | None, *, dry_run: bool) -> Mapping[str, Any]:
        """Raise the cluster's feature level to this one, or to the newest that all brokers speak; what became of it."""
        view = self.view()
        view = self.with_versions(view, self.health(view))
        broker_id = next((broker.id for broker in view.brokers if broker.levels is not None), None)
        if broker_id is None:
            raise ClientError("no broker knows feature levels: all are of an earlier release", "UNSUPPORTED_VERSION")

        def attempt(channel: Channel) -> Mapping[str, Any]:
            channel.send(UPDATE_LEVEL, VERSION, update_level_request(to, dry_run=dry_run))
            try:
                return read_level_update(channel.receive().body)
            except CodedError as error:
                if error.code is ErrorCode.unsupported_version:
                    raise ClientError(
                        f"broker {view.controller}, the controller, is of an earlier release: replace it first",
                        "UNSUPPORTED_VERSION",
                    ) from error
                raise refused_or_again(error.code, "feature level", error.message) from error

        return self._cluster.with_broker(broker_id, attempt)

    def partitions(self, topics: Iterable[str] = ()) -> list[PartitionView]:
        """The partitions of these topics, or of all."""
        moving = self.moving()
        found = [
            partition_view(topic.name, partition, moving.get(TopicPartition(topic.name, partition.partition_index)))
            for topic in self._topics(topics)
            for partition in topic.partitions
        ]
        return self._with_min_isr(sorted(found, key=lambda p: p.key))

    def refetch(self, broker: int, topic: str, partition: int, *, start_empty: bool) -> None:
        """Let a broker whose log of a partition failed fetch it anew from the leader."""
        if broker not in self._cluster.brokers():
            raise ClientError(f"broker {broker} is not alive", "BROKER_NOT_AVAILABLE")
        try:
            with self._cluster.channel_to(broker) as channel:
                (directory,) = channel.ask(ApiKey.DESCRIBE_LOG_DIRS, {"topics": []}).results
                path = directory.log_dir + (START_EMPTY if start_empty else REFETCH)
                topics = [{"name": topic, "partitions": [partition]}]
                answer = channel.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, {"dirs": [{"path": path, "topics": topics}]})
        except ConnectionLost as error:
            raise ClientError(f"broker {broker} does not answer: {error}", "BROKER_NOT_AVAILABLE") from error
        code = answer.results[0].partitions[0].error_code
        if code is not ErrorCode.none:
            reason = _REFETCH_REASONS.get(code, code.name.replace("_", " "))
            raise ClientError(f"{topic}-{partition} on broker {broker}: {reason}", code.name.upper())

    def sizes(self, brokers: Iterable[int]) -> Sizes:
        """The bytes of each partition on those of the brokers that the last view has, and that answer."""
        sizes: dict[int, dict[TopicPartition, int]] = {}
        for broker in brokers:
            if broker not in self._living:
                continue
            try:
                with self._cluster.channel_to(broker) as channel:
                    answer = channel.ask(ApiKey.DESCRIBE_LOG_DIRS, {"topics": None})
            except ConnectionLost:
                continue
            sizes[broker] = {
                TopicPartition(topic.name, partition.partition_index): partition.partition_size
                for directory in answer.results
                for topic in directory.topics
                for partition in topic.partitions
            }
        return sizes

    def _topics(self, names: Iterable[str] = ()) -> Iterator[Any]:
        cursor: dict[str, Any] | None = None
        wanted = [{"name": name} for name in sorted(names)]
        while True:
            asked = {"topics": wanted, "response_partition_limit": PAGE, "cursor": cursor}
            answer = self._ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, asked)
            yield from (topic for topic in answer.topics if topic.error_code is ErrorCode.none)
            if answer.next_cursor is None:
                return
            place = answer.next_cursor
            cursor = {"topic_name": place.topic_name, "partition_index": place.partition_index}

    def moving(self) -> dict[TopicPartition, tuple[Replicas, Replicas]]:
        """The partitions that are on their way to other brokers: who comes, who goes."""
        answer = self._ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, {"timeout": TIMEOUT_MS, "topics": None})
        return {
            TopicPartition(topic.name, p.partition_index): (tuple(p.adding_replicas), tuple(p.removing_replicas))
            for topic in answer.topics
            for p in topic.partitions
        }

    def _with_min_isr(self, partitions: list[PartitionView]) -> list[PartitionView]:
        values = self._topic_configs({p.topic for p in partitions}, [_MIN_ISR])
        return [replace(p, min_isr=int(values.get(p.topic, {}).get(_MIN_ISR) or 1)) for p in partitions]

    def _topic_configs(self, topics: Iterable[str], names: list[str]) -> dict[str, dict[str, str | None]]:
        found: dict[str, dict[str, str | None]] = {}
        for some in _in_pages(sorted(topics), PAGE):
            answer = self._ask(ApiKey.DESCRIBE_CONFIGS, describe_configs_request(TOPIC, some, names))
            for result in answer.results:
                found[result.resource_name] = {entry.name: entry.value for entry in result.configs}
        return found

    # What is to change

    def reassign(self, targets: Mapping[TopicPartition, Replicas | None]) -> Outcomes:
        """Let partitions be held by these brokers from now on; None takes back a move that is under way."""
        outcomes: Outcomes = {}
        for some in _in_pages(sorted(targets), MOVES_AT_ONCE):
            topics = [
                {"name": topic, "partitions": [{"partition_index": i, "replicas": r} for i, r in partitions]}
                for topic, partitions in values_by_topic({key: targets[key] for key in some}).items()
            ]
            asked = {"timeout": TIMEOUT_MS, "allow_replication_factor_change": True, "topics": topics}
            for topic in self._ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, asked).responses:
                for p in topic.partitions:
                    where = TopicPartition(topic.name, p.partition_index)
                    outcomes[where] = _outcome(where, p)
        return outcomes

    def log_ends(self, partitions: Iterable[PartitionView]) -> LogEnds:
        """How far the logs of partitions reach, on each replica that lives, is in the last view, and tells."""
        asked = list(partitions)
        ends: LogEnds = {p.key: {} for p in asked}
        for broker in sorted(self._living):
            queries = {p.key: OffsetQuery(LATEST) for p in asked if broker in p.replicas}
            if not queries:
                continue
            values = list_offsets_request(queries, isolation=READ_UNCOMMITTED, replica_id=DEBUGGING_REPLICA)
            try:
                with self._cluster.channel_to(broker) as channel:
                    answer = channel.ask(ApiKey.LIST_OFFSETS, values)
            except ConnectionLost:
                continue
            for partition, listed in read_offsets(answer).items():
                if listed.code is ErrorCode.none:
                    ends[partition][broker] = (listed.leader_epoch, listed.offset)
        return ends

    def elect(
        self, partitions: Iterable[TopicPartition] | None, *, unclean: bool = False, position: int | None = None
    ) -> Outcomes:
        """Let preferred replicas lead, or (unclean) the longest living log, or with a position the replica that stands
        there in the list of replicas; of all (None) only those that need it are told.
        """
        indexes_of = None if partitions is None else indexes_by_topic(partitions)
        kind = PREFERRED if not unclean else UNCLEAN if position is None else DESIGNATED + position
        request = {
            "election_type": kind,
            "topic_partitions": None
            if indexes_of is None
            else [{"topic": topic, "partitions": indexes} for topic, indexes in indexes_of.items()],
            "timeout": TIMEOUT_MS,
        }
        answer = self._ask(ApiKey.ELECT_LEADERS, request)
        results = {
            TopicPartition(topic.topic, p.partition_id): p
            for topic in answer.replica_election_results
            for p in topic.partition_result
        }
        return {where: _outcome(where, result) for where, result in results.items()}

    def throttle(self, rate: int, topics: Iterable[str]) -> None:
        """Hold replicas of these topics that catch up to so many bytes a second, to and from each broker."""
        self._alter(BROKER, [""], dict.fromkeys(_RATES, str(rate)))
        self._alter(TOPIC, topics, dict.fromkeys(_THROTTLED, _ALL))

    def unthrottle(self) -> list[str]:
        """Hold nobody any more; the topics that were held."""
        held = [topic for topic, values in self._throttled() if any(values.values())]
        self._alter(BROKER, [""], dict.fromkeys(_RATES))
        self._alter(TOPIC, held, dict.fromkeys(_THROTTLED))
        return held

    def rate(self) -> int | None:
        """The limit that is set, in bytes a second."""
        answer = self._ask(ApiKey.DESCRIBE_CONFIGS, describe_configs_request(BROKER, [""], list(_RATES)))
        found = [int(e.value) for r in answer.results for e in r.configs if e.name in _RATES and e.value]
        return min(found, default=None)

    def _throttled(self) -> Iterable[tuple[str, dict[str, str | None]]]:
        names = {topic.name for topic in self._topics()}
        return self._topic_configs(names, list(_THROTTLED)).items()

    def _alter(self, kind: int, names: Iterable[str], values: Mapping[str, str | None]) -> None:
        for some in _in_pages(list(names), PAGE):
            answer = self._ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, alter_configs_request(kind, some, values))
            for result in answer.responses:
                if result.error_code not in (ErrorCode.none, ErrorCode.unknown_topic_or_partition):
                    raise refused(result.error_code, result.resource_name or "brokers", result.error_message)

    # Asking

    def _ask(self, api: ApiKey, values: Mapping[str, Any]) -> Any:
        """An answer that is no error as a whole, from any broker."""

        def attempt(channel: Channel) -> Any:
            answer = channel.ask(api, values)
            code = getattr(answer, "error_code", ErrorCode.none)
            if code is ErrorCode.none:
                return answer
            raise refused_or_again(code, "the cluster", getattr(answer, "error_message", None))

        at = self._asked_broker
        return self._cluster.with_any(attempt) if at is None else self._cluster.with_broker(at, attempt)


def partition_view(topic: str, partition: Any, moving: tuple[Replicas, Replicas] | None = None) -> PartitionView:
    """A partition of an answer to Metadata or DescribeTopicPartitions; `moving` has who comes and who goes."""
    adding, removing = moving or ((), ())
    return PartitionView(
        topic=topic,
        partition=partition.partition_index,
        leader=partition.leader_id if partition.leader_id >= 0 else None,
        leader_epoch=getattr(partition, "leader_epoch", -1),
        replicas=tuple(partition.replica_nodes),
        isr=tuple(partition.isr_nodes),
        offline=tuple(getattr(partition, "offline_replicas", ())),
        elr=tuple(getattr(partition, "eligible_leader_replicas", None) or ()),
        adding=adding,
        removing=removing,
    )


def _outcome(where: TopicPartition, result: Any) -> ClientError | None:
    if result.error_code is ErrorCode.none:
        return None
    return refused(result.error_code, where.text, result.error_message)


def _in_pages(items: list[T], size: int) -> Iterator[list[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
