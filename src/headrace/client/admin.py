"""Topics: made, listed, described, changed and removed through `confluent_kafka.admin`, in plain values."""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from headrace.protocol.topic_partition import TopicPartition

from .errors import ClientError, UnknownPartition, UnknownTopic, from_kafka, translated
from .probe import require_answer, require_listener
from .waiting import Diagnose, LibraryErrors, OnWait, Waiter

if TYPE_CHECKING:
    from .producer import Settings

T = TypeVar("T")
Properties = Mapping[str, str]
_ELECTIONS: Final = frozenset(
    {"NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH"}
)
"""Errors while the leader of a partition changes, which no longer than `_ELECTION_SECONDS` are waited for."""
_ELECTION_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSummary:
    name: str
    partitions: int
    replication_factor: int
    internal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDescription:
    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    start_offset: int | None
    end_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    name: str
    topic_id: str | None
    internal: bool
    partitions: tuple[PartitionDescription, ...]
    configs: dict[str, str | None] = field(default_factory=dict)

    @property
    def replication_factor(self) -> int:
        return max((len(p.replicas) for p in self.partitions), default=0)


def client_settings(
    bootstrap: str, properties: Properties | None = None, errors: Callable[[Any], None] | None = None
) -> dict[str, Any]:
    """Settings that each of our librdkafka clients starts from; its own log lines stay off the terminal."""
    return {
        "bootstrap.servers": bootstrap,
        "client.id": "headrace-cli",
        "log_level": 2,
        "error_cb": errors or (lambda _error: None),
        **(properties or {}),
    }


def _library_settings(bootstrap: str | None, settings: "Settings | None", errors: LibraryErrors) -> dict[str, Any]:
    """Those of other clients that an administration has, too."""
    from .producer import OF_CONSUMERS, OF_PRODUCERS, library_settings

    given = {name: value for name, value in (settings or {}).items() if not OF_CONSUMERS.match(name)}
    return library_settings(bootstrap, given, errors, OF_PRODUCERS)


def answers(bootstrap: str) -> ClientError | None:
    """Why nothing is to be expected of the brokers at these addresses; None where one of them answers."""
    try:
        require_answer(bootstrap)
    except ClientError as error:
        return error
    return None


class Admin:
    """A connection to administer one cluster. Each method raises `ClientError`, or gives one per name.

    with Admin("127.0.0.1:9092") as admin:
        admin.create_topics(["orders"], partitions=6)

    `settings` are those of other clients; `properties` are librdkafka's, which are not looked at. A wrong password is
    told at once, that nobody listens within three seconds, that brokers which listen do not answer after ten. What
    takes longer for other reasons is told to `on_wait`, and waited for up to `timeout`; `diagnose` may know of a reason
    not to.
    """

    def __init__(
        self,
        bootstrap: str | None = None,
        properties: Properties | None = None,
        timeout: float = 30.0,
        *,
        settings: "Settings | None" = None,
        on_wait: OnWait | None = None,
        diagnose: Diagnose | None = None,
    ) -> None:
        self._timeout = timeout
        errors = LibraryErrors()
        own: dict[str, Any] = {}
        if bootstrap is None or settings is not None:
            own = _library_settings(bootstrap, settings, errors)
        where = str(own.get("bootstrap.servers", bootstrap))
        require_listener(where)
        from confluent_kafka.admin import AdminClient

        with translated():
            self._client = AdminClient({**client_settings(where, properties, errors), **own})
        self._waiter = Waiter(
            diagnose or (lambda: answers(where)),
            limit=timeout,
            on_wait=on_wait,
            errors=errors,
            serve=lambda: self._client.poll(0),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing waits to be sent: the connections end when nobody holds this any more."""

    def list_topics(self) -> list[TopicSummary]:
        """Every topic, by name; those whose name starts with `__` count as internal."""
        with translated():
            metadata = self._waiter.call(lambda: self._client.list_topics(timeout=self._timeout), "the list of topics")
        return [_summary(metadata.topics[name]) for name in sorted(metadata.topics)]

    def cluster_id(self) -> str:
        """The id of the cluster."""
        with translated():
            metadata = self._waiter.call(lambda: self._client.list_topics(timeout=self._timeout), "the cluster's id")
        return str(metadata.cluster_id)

    def create_topics(
        self,
        names: Iterable[str],
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Properties | None = None,
    ) -> dict[str, ClientError | None]:
        """Make topics; the broker's defaults hold for what is None. The reason for each that could not be made."""
        from confluent_kafka.admin import NewTopic

        with translated():
            topics = [
                NewTopic(
                    name,
                    num_partitions=-1 if partitions is None else partitions,
                    replication_factor=-1 if replication_factor is None else replication_factor,
                    config=dict(configs or {}),
                )
                for name in names
            ]
            return self._each(self._client.create_topics(topics, operation_timeout=self._timeout), "the new topic")

    def delete_topics(self, names: Iterable[str]) -> dict[str, ClientError | None]:
        """Delete topics with all that is in them; the reason for each that could not be."""
        with translated():
            futures = self._client.delete_topics(list(names), operation_timeout=self._timeout)
            return self._each(futures, "the deletion of topic")

    def create_partitions(self, topic: str, total: int) -> None:
        """Grow a topic to `total` partitions."""
        from confluent_kafka.admin import NewPartitions

        with translated(topic):
            self._only(self._client.create_partitions([NewPartitions(topic, total)]), topic)

    def alter_configs(self, topic: str, set_: Properties, delete: Iterable[str] = ()) -> None:
        """Set and unset settings of a topic; others stay as they are."""
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

        changes = [
            *(ConfigEntry(k, v, incremental_operation=AlterConfigOpType.SET) for k, v in set_.items()),
            *(ConfigEntry(k, None, incremental_operation=AlterConfigOpType.DELETE) for k in delete),
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
        with translated(topic):
            self._only(self._client.incremental_alter_configs([resource]), topic)

    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        """Delete the records of each partition before an offset; the offsets at which the partitions begin then."""
        from confluent_kafka import TopicPartition

        request = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
        with translated(topic):
            futures = self._client.delete_records(request, operation_timeout=self._timeout)
            what = f"the deletion of records of topic '{topic}'"
            return {tp.partition: int(self._result(future, what).low_watermark) for tp, future in futures.items()}

    def describe_topic(self, topic: str) -> TopicDescription:
        """A topic with its partitions, their offsets, and the settings it does not take from its broker."""
        described = self._described_topic(topic)
        numbers = [p.id for p in described.partitions if p.leader is not None]
        starts, ends = self._offset_range(topic, numbers)
        return TopicDescription(
            name=topic,
            topic_id=str(described.topic_id) if described.topic_id else None,
            internal=bool(described.is_internal),
            partitions=tuple(_partition(p, starts, ends) for p in sorted(described.partitions, key=lambda p: p.id)),
            configs=self.topic_overrides(topic),
        )

    def _described_topic(self, topic: str) -> Any:
        """What the cluster says of a topic. Other than asking for its metadata, this never creates one."""
        from confluent_kafka import TopicCollection

        with translated(topic):
            try:
                return self._only(self._client.describe_topics(TopicCollection([topic])), topic)
            except ClientError as error:
                raise self._unknown_topic(topic) if isinstance(error, UnknownTopic) else error from None

    def _unknown_topic(self, topic: str) -> UnknownTopic:
        """The error for a topic that is not there, with those that are."""
        try:
            known = [summary.name for summary in self.list_topics()]
        except ClientError:
            known = []
        return UnknownTopic(topic, known)

    def topic_overrides(self, topic: str) -> dict[str, str | None]:
        """The settings that were given to this topic itself; None for a value the broker keeps secret."""
        from confluent_kafka.admin import ConfigSource

        entries = self._topic_settings(topic)
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return {name: entries[name].value for name in sorted(entries) if _number(entries[name].source) == own}

    def topic_settings(self, topic: str) -> dict[str, str | None]:
        """The settings that hold for a topic, its own and its broker's."""
        return {name: entry.value for name, entry in sorted(self._topic_settings(topic).items())}

    def _topic_settings(self, topic: str) -> Any:
        from confluent_kafka.admin import ConfigResource, ResourceType

        with translated(topic):
            return self._only(self._client.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]), topic)

    def partition_numbers(self, topic: str) -> list[int]:
        """The partitions of a topic that exists; it is not made by asking."""
        return sorted(partition.id for partition in self._described_topic(topic).partitions)

    def offsets(self, topic: str, at: Mapping[int, Any], committed_only: bool = False) -> dict[int, int]:
        """The offset of each partition at an `OffsetSpec`; -1 where a time lies after the last record."""
        from confluent_kafka import IsolationLevel
        from confluent_kafka import TopicPartition as Place

        if not at:
            return {}
        request = {Place(topic, partition): spec for partition, spec in at.items()}
        level = IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED
        what, deadline = f"the offsets of topic '{topic}'", time.monotonic() + min(_ELECTION_SECONDS, self._timeout)
        while True:
            try:
                with translated(topic):
                    futures = self._client.list_offsets(request, isolation_level=level, request_timeout=self._timeout)
                    return {tp.partition: int(self._result(future, what).offset) for tp, future in futures.items()}
            except ClientError as error:
                if error.code == "_NOENT":
                    self._check_partitions(topic, at)
                if error.code not in _ELECTIONS or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE_SECONDS)

    def _check_partitions(self, topic: str, partitions: Iterable[int]) -> None:
        """UnknownTopic, or UnknownPartition, if that is it: librdkafka does not say."""
        numbers = self.partition_numbers(topic)
        for partition in partitions:
            if partition not in numbers:
                raise UnknownPartition(TopicPartition(topic, partition), len(numbers))

    def start_offsets(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """The first offset that each partition has."""
        from confluent_kafka.admin import OffsetSpec

        return self.offsets(topic, dict.fromkeys(partitions, OffsetSpec.earliest()))

    def end_offsets(self, topic: str, partitions: Iterable[int], committed_only: bool = False) -> dict[int, int]:
        """The offset that the next record of each partition gets, or of open transactions the first has."""
        from confluent_kafka.admin import OffsetSpec

        return self.offsets(topic, dict.fromkeys(partitions, OffsetSpec.latest()), committed_only)

    def offsets_at_time(self, topic: str, partitions: Iterable[int], time_ms: int) -> dict[int, int]:
        """The first offset at or after a time; -1 where there is none."""
        from confluent_kafka.admin import OffsetSpec

        return self.offsets(topic, dict.fromkeys(partitions, OffsetSpec.for_timestamp(time_ms)))

    def _offset_range(self, topic: str, partitions: list[int]) -> tuple[dict[int, int], dict[int, int]]:
        return self.start_offsets(topic, partitions), self.end_offsets(topic, partitions)

    def _result(self, future: "Future[T]", what: str) -> T:
        return self._waiter.result(future, what)

    def _each(self, futures: "Mapping[str, Future[Any]]", what: str) -> dict[str, ClientError | None]:
        from confluent_kafka import KafkaException

        results: dict[str, ClientError | None] = {}
        for name, future in futures.items():
            try:
                self._result(future, f"{what} '{name}'")
                results[name] = None
            except KafkaException as exception:
                results[name] = from_kafka(exception.args[0], name)
        return results

    def _only(self, futures: "Mapping[Any, Future[Any]]", topic: str) -> Any:
        (future,) = futures.values()
        with translated(topic):
            return self._result(future, f"topic '{topic}'")


def _summary(topic: Any) -> TopicSummary:
    return TopicSummary(
        name=topic.topic,
        partitions=len(topic.partitions),
        replication_factor=max((len(p.replicas) for p in topic.partitions.values()), default=0),
        internal=topic.topic.startswith("__"),
    )


def _partition(info: Any, starts: Mapping[int, int], ends: Mapping[int, int]) -> PartitionDescription:
    return PartitionDescription(
        partition=info.id,
        leader=None if info.leader is None else info.leader.id,
        replicas=tuple(node.id for node in info.replicas),
        isr=tuple(node.id for node in info.isr),
        start_offset=starts.get(info.id),
        end_offset=ends.get(info.id),
    )


def _number(source: Any) -> int:
    return int(getattr(source, "value", source))
