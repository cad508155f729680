"""Consumer groups: listed, described with their lag, moved and deleted through `confluent_kafka.admin`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.client.admin import Admin
from headrace.client.errors import ClientError, from_kafka, translated
from headrace.protocol.topic_partition import TopicPartition

_NOT_COMMITTED: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    group: str
    state: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOverview:
    """A group in one line. None stands for what its coordinator did not tell."""

    group: str
    state: str
    type: str
    members: int | None
    topics: tuple[str, ...]
    lag: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    member: str
    instance: str | None
    client: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitProgress:
    """How far a group is in a partition. None stands for what is not known: never committed, or no such topic.

    Where nothing is committed everything in the log is lag, from its start: what a consumer would read that begins with
    `auto.offset.reset=earliest`.
    """

    topic: str
    partition: int
    committed: int | None
    start: int | None
    end: int | None
    member: str | None

    @property
    def lag(self) -> int | None:
        if self.end is None:
            return None
        position = self.start if self.committed is None else self.committed
        return None if position is None else max(self.end - position, 0)


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

    @property
    def uncommitted(self) -> tuple[CommitProgress, ...]:
        """Where nothing is committed although there is something to read."""
        return tuple(progress for progress in self.partitions if progress.committed is None and progress.lag)


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
            found = self._result(self._client.list_consumer_groups(request_timeout=self._timeout), "the list of groups")
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
            found = self._result(futures[group], f"the offsets of group '{group}'").topic_partitions
        return _committed(found)

    def move(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets in the name of a group that has no members."""
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        if not offsets:
            return
        places = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        with translated():
            futures = self._client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])
            moved = self._result(futures[group], f"the new offsets of group '{group}'").topic_partitions
        for each in moved:
            if each.error is not None:
                raise from_kafka(each.error, each.topic)

    def delete_groups(self, groups: Iterable[str]) -> dict[str, ClientError | None]:
        """Delete groups that have no members, with what they have committed."""
        with translated():
            futures = self._client.delete_consumer_groups(list(groups), request_timeout=self._timeout)
            return self._each(futures, "the deletion of group")

    def _described(self, group: str) -> Any:
        with translated():
            return self._result(self._client.describe_consumer_groups([group])[group], f"group '{group}'")

    def overviews(self, groups: Iterable[GroupSummary]) -> list[GroupOverview]:
        """Groups with the number of their members and their lag; three rounds of requests, however many there are."""
        groups = list(groups)
        members = self._members_of([group.group for group in groups])
        committed = self._committed_of([group.group for group in groups])
        read = {
            group.group: {place.topic for place in committed.get(group.group) or ()}
            | {place.topic for each in members.get(group.group) or () for place in each.partitions}
            for group in groups
        }
        ranges = self._ranges({topic for topics in read.values() for topic in topics})
        return [
            GroupOverview(
                group=group.group,
                state=group.state,
                type=group.type,
                members=None if (known := members.get(group.group)) is None else len(known),
                topics=tuple(sorted(read[group.group])),
                lag=_lag(committed.get(group.group), read[group.group], ranges),
            )
            for group in groups
        ]

    def _members_of(self, groups: list[str]) -> dict[str, tuple[GroupMember, ...]]:
        if not groups:
            return {}
        with translated():
            futures = self._client.describe_consumer_groups(groups, request_timeout=self._timeout)
        described = self._results(futures, "the members of groups")
        return {group: tuple(_member(each) for each in one.members) for group, one in described.items()}

    def _committed_of(self, groups: list[str]) -> dict[str, dict[TopicPartition, int]]:
        from confluent_kafka import ConsumerGroupTopicPartitions

        with translated():
            futures = {
                group: self._client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
                for group in groups
            }
        told = self._results(futures, "the offsets of groups")
        return {group: _committed(one.topic_partitions) for group, one in told.items()}

    def _results(self, futures: Mapping[Any, Any], what: str) -> dict[Any, Any]:
        """The results of those that did not fail: what one coordinator cannot tell now keeps nobody from the rest."""
        from confluent_kafka import KafkaException

        results: dict[Any, Any] = {}
        for key, future in futures.items():
            try:
                results[key] = self._result(future, what)
            except KafkaException:
                continue
        return results

    def _progress(
        self, committed: Mapping[TopicPartition, int], owners: Mapping[TopicPartition, str]
    ) -> Iterable[CommitProgress]:
        """Every partition of the topics that the group reads, also those that it has committed nothing for."""
        ranges = self._ranges({partition.topic for partition in committed.keys() | owners.keys()})
        for partition in sorted(committed.keys() | owners.keys() | ranges.keys()):
            start, end = ranges.get(partition, (None, None))
            yield CommitProgress(
                topic=partition.topic,
                partition=partition.partition,
                committed=committed.get(partition),
                start=start,
                end=end,
                member=owners.get(partition),
            )

    def _ranges(self, topics: Iterable[str]) -> dict[TopicPartition, tuple[int, int]]:
        """Where the partitions of these topics begin and end; those that are gone, or led by nobody, are left out."""
        names = set(topics)
        if not names:
            return {}
        partitions = [
            TopicPartition(topic.name, partition)
            for topic in self.list_topics()
            if topic.name in names
            for partition in range(topic.partitions)
        ]
        starts, ends = self._listed(partitions, earliest=True), self._listed(partitions, earliest=False)
        return {tp: (starts[tp], ends[tp]) for tp in partitions if tp in starts and tp in ends}

    def _listed(self, partitions: list[TopicPartition], *, earliest: bool) -> dict[TopicPartition, int]:
        import confluent_kafka
        from confluent_kafka.admin import OffsetSpec

        spec = OffsetSpec.earliest() if earliest else OffsetSpec.latest()
        if not partitions:
            return {}
        with translated():
            specs = {confluent_kafka.TopicPartition(topic, partition): spec for topic, partition in partitions}
            futures = self._client.list_offsets(specs, request_timeout=self._timeout)
        told = self._results(futures, "the offsets of partitions")
        return {TopicPartition(tp.topic, tp.partition): int(one.offset) for tp, one in told.items()}


def _lag(
    committed: Mapping[TopicPartition, int] | None,
    topics: set[str],
    ranges: Mapping[TopicPartition, tuple[int, int]],
) -> int | None:
    if committed is None:
        return None
    return sum(
        max(end - committed.get(place, start), 0) for place, (start, end) in ranges.items() if place.topic in topics
    )


def _committed(places: Iterable[Any]) -> dict[TopicPartition, int]:
    return {TopicPartition(each.topic, each.partition): each.offset for each in places if each.offset >= _NOT_COMMITTED}


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
