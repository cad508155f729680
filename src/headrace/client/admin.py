"""Topics: made, listed, described, changed and removed through `confluent_kafka.admin`, in plain values."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import ClientError, UnknownTopic, from_kafka, translated, unanswered
from .probe import require_listener

Properties = Mapping[str, str]


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


def client_settings(bootstrap: str, properties: Properties | None = None) -> dict[str, Any]:
    """Settings that each of our librdkafka clients starts from; its own log lines stay off the terminal."""
    return {
        "bootstrap.servers": bootstrap,
        "client.id": "headrace-cli",
        "log_level": 2,
        "error_cb": lambda _error: None,
        **(properties or {}),
    }


class Admin:
    """A connection to administer one cluster. Each method raises `ClientError`, or gives one per name."""

    def __init__(self, bootstrap: str, properties: Properties | None = None, timeout: float = 30.0) -> None:
        require_listener(bootstrap)
        from confluent_kafka.admin import AdminClient

        self._timeout = timeout
        with translated():
            self._client = AdminClient(client_settings(bootstrap, properties))

    def list_topics(self) -> list[TopicSummary]:
        """Every topic, by name; those whose name starts with `__` count as internal."""
        with translated():
            metadata = self._client.list_topics(timeout=self._timeout)
        return [_summary(metadata.topics[name]) for name in sorted(metadata.topics)]

    def create_topics(
        self,
        names: Iterable[str],
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Properties | None = None,
    ) -> dict[str, ClientError | None]:
        """Make topics; the broker's defaults hold for what is None."""
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
            return self._each(self._client.create_topics(topics, operation_timeout=self._timeout))

    def delete_topics(self, names: Iterable[str]) -> dict[str, ClientError | None]:
        with translated():
            return self._each(self._client.delete_topics(list(names), operation_timeout=self._timeout))

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
            return {tp.partition: int(future.result(self._timeout).low_watermark) for tp, future in futures.items()}

    def describe_topic(self, topic: str) -> TopicDescription:
        """A topic with its partitions, their offsets, and the settings it does not take from its broker."""
        from confluent_kafka import TopicCollection

        with translated(topic):
            described = self._only(self._client.describe_topics(TopicCollection([topic])), topic)
        numbers = [p.id for p in described.partitions if p.leader is not None]
        starts, ends = self._offset_range(topic, numbers)
        return TopicDescription(
            name=topic,
            topic_id=str(described.topic_id) if described.topic_id else None,
            internal=bool(described.is_internal),
            partitions=tuple(_partition(p, starts, ends) for p in sorted(described.partitions, key=lambda p: p.id)),
            configs=self.topic_overrides(topic),
        )

    def topic_overrides(self, topic: str) -> dict[str, str | None]:
        """The settings that were given to this topic itself; None for a value the broker keeps secret."""
        from confluent_kafka.admin import ConfigResource, ConfigSource, ResourceType

        with translated(topic):
            entries = self._only(self._client.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]), topic)
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return {name: entries[name].value for name in sorted(entries) if _number(entries[name].source) == own}

    def partition_numbers(self, topic: str) -> list[int]:
        """The partitions of a topic that exists."""
        with translated(topic):
            found = self._client.list_topics(topic, timeout=self._timeout).topics.get(topic)
        if found is None:
            raise UnknownTopic(topic)
        if found.error is not None:
            raise from_kafka(found.error, topic)
        return sorted(found.partitions)

    def offsets(self, topic: str, at: Mapping[int, Any], committed_only: bool = False) -> dict[int, int]:
        """The offset of each partition at an `OffsetSpec`; -1 where a time lies after the last record."""
        from confluent_kafka import IsolationLevel, TopicPartition

        if not at:
            return {}
        request = {TopicPartition(topic, partition): spec for partition, spec in at.items()}
        level = IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED
        with translated(topic):
            futures = self._client.list_offsets(request, isolation_level=level, request_timeout=self._timeout)
            return {tp.partition: int(future.result(self._timeout).offset) for tp, future in futures.items()}

    def start_offsets(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        from confluent_kafka.admin import OffsetSpec

        return self.offsets(topic, dict.fromkeys(partitions, OffsetSpec.earliest()))

    def end_offsets(self, topic: str, partitions: Iterable[int], committed_only: bool = False) -> dict[int, int]:
        from confluent_kafka.admin import OffsetSpec

        return self.offsets(topic, dict.fromkeys(partitions, OffsetSpec.latest()), committed_only)

    def offsets_at_time(self, topic: str, partitions: Iterable[int], time_ms: int) -> dict[int, int]:
        """The first offset at or after a time; -1 where there is none."""
        from confluent_kafka.admin import OffsetSpec

        return self.offsets(topic, dict.fromkeys(partitions, OffsetSpec.for_timestamp(time_ms)))

    def _offset_range(self, topic: str, partitions: list[int]) -> tuple[dict[int, int], dict[int, int]]:
        return self.start_offsets(topic, partitions), self.end_offsets(topic, partitions)

    def _each(self, futures: Mapping[str, Any]) -> dict[str, ClientError | None]:
        from confluent_kafka import KafkaException

        results: dict[str, ClientError | None] = {}
        for name, future in futures.items():
            try:
                future.result(self._timeout)
                results[name] = None
            except KafkaException as exception:
                results[name] = from_kafka(exception.args[0], name)
            except TimeoutError:
                results[name] = unanswered()
        return results

    def _only(self, futures: Mapping[Any, Any], topic: str) -> Any:
        (future,) = futures.values()
        with translated(topic):
            return future.result(self._timeout)


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
