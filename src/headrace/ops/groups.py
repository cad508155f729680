"""Consumer groups: listed, described with their lag, moved and deleted through `confluent_kafka.admin`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.client.admin import Admin
from headrace.client.errors import ClientError, from_kafka, translated
from headrace.protocol.topic_partition import TopicPartition

_NOT_COMMITTED: Final = 0
_GONE: Final = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    group: str
    state: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    member: str
    instance: str | None
    client: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitProgress:
    """How far a group is in a partition. None stands for what is not known: never committed, or no such topic."""

    topic: str
    partition: int
    committed: int | None
    start: int | None
    end: int | None
    member: str | None

    @property
    def lag(self) -> int | None:
        return None if self.committed is None or self.end is None else max(self.end - self.committed, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    group: str
    state: str
    type: str
    assignor: str
    coordinator: str
    members: tuple[GroupMember, ...]
    partitions: tuple[CommitProgress, ...] = field(default=())

    @property
    def lag(self) -> int:
        """How many records are committed by nobody yet, in the partitions where that is known."""
        return sum(progress.lag or 0 for progress in self.partitions)


def unknown_group(group: str) -> ClientError:
    return ClientError(
        f"group '{group}' does not exist; `headrace group list` shows those that do", "GROUP_ID_NOT_FOUND"
    )


class GroupAdmin(Admin):
    """Administers the groups of one cluster. Each method raises `ClientError`, or gives one per group."""

    def list_groups(self) -> list[GroupSummary]:
        """Every group, by name."""
        from confluent_kafka import KafkaException

        with translated():
            found = self._client.list_consumer_groups(request_timeout=self._timeout).result(self._timeout)
        for error in found.errors or ():  # documented as exceptions; what comes are the errors themselves
            raise from_kafka(error.args[0] if isinstance(error, KafkaException) else error)
        summaries = [
            GroupSummary(group=each.group_id, state=_words(each.state), type=_words(each.type).lower())
            for each in found.valid
        ]
        return sorted(summaries, key=lambda summary: summary.group)

    def describe_group(self, group: str) -> GroupDescription:
        """A group with its members and how far it is; a `ClientError` when there is none of that name."""
        described = self._described(group)
        members = tuple(_member(each) for each in described.members)
        owners = {place: member.member for member in members for place in member.partitions}
        committed = self.committed_offsets(group)
        if _words(described.state) == "Dead" and not committed:
            raise unknown_group(group)
        node = described.coordinator
        return GroupDescription(
            group=group,
            state=_words(described.state),
            type=_words(described.type).lower(),
            assignor=described.partition_assignor,
            coordinator="" if node is None else f"{node.host}:{node.port}",
            members=members,
            partitions=tuple(self._progress(committed, owners)),
        )

    def exists(self, group: str) -> bool:
        return _words(self._described(group).state) != "Dead"

    def member_count(self, group: str) -> int:
        """How many members a group has now; 0 also where there is no group."""
        return len(self._described(group).members)

    def committed_offsets(self, group: str) -> dict[TopicPartition, int]:
        """What a group has committed."""
        from confluent_kafka import ConsumerGroupTopicPartitions

        with translated():
            futures = self._client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
            found = futures[group].result(self._timeout).topic_partitions
        return {
            TopicPartition(each.topic, each.partition): each.offset for each in found if each.offset >= _NOT_COMMITTED
        }

    def move(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets in the name of a group that has no members."""
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        if not offsets:
            return
        places = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        with translated():
            futures = self._client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])
            moved = futures[group].result(self._timeout).topic_partitions
        for each in moved:
            if each.error is not None:
                raise from_kafka(each.error, each.topic)

    def delete_groups(self, groups: Iterable[str]) -> dict[str, ClientError | None]:
        """Delete groups that have no members, with what they have committed."""
        with translated():
            return self._each(self._client.delete_consumer_groups(list(groups), request_timeout=self._timeout))

    def _described(self, group: str) -> Any:
        with translated():
            return self._client.describe_consumer_groups([group])[group].result(self._timeout)

    def _progress(
        self, committed: Mapping[TopicPartition, int], owners: Mapping[TopicPartition, str]
    ) -> Iterable[CommitProgress]:
        places = sorted(committed.keys() | owners.keys())
        for topic in dict.fromkeys(topic for topic, _ in places):
            partitions = [partition for name, partition in places if name == topic]
            starts, ends = self._known_range(topic, partitions)
            for partition in partitions:
                yield CommitProgress(
                    topic=topic,
                    partition=partition,
                    committed=committed.get(TopicPartition(topic, partition)),
                    start=starts.get(partition),
                    end=ends.get(partition),
                    member=owners.get(TopicPartition(topic, partition)),
                )

    def _known_range(self, topic: str, partitions: list[int]) -> tuple[dict[int, int], dict[int, int]]:
        try:
            return self._offset_range(topic, partitions)
        except ClientError as error:
            if error.code in _GONE:
                return {}, {}
            raise


def _member(member: Any) -> GroupMember:
    assigned = member.assignment.topic_partitions if member.assignment is not None else []
    return GroupMember(
        member=member.member_id,
        instance=member.group_instance_id or None,
        client=member.client_id,
        host=member.host,
        partitions=tuple(sorted(TopicPartition(each.topic, each.partition) for each in assigned)),
    )


def _words(value: Any) -> str:
    """`PREPARING_REBALANCING` of the client library as Kafka writes it."""
    names = {"PREPARING_REBALANCING": "PreparingRebalance", "COMPLETING_REBALANCING": "CompletingRebalance"}
    return names.get(value.name, str(value.name).title())
