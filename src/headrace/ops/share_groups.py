"""Share groups: listed, described with where they are, and moved. Over the wire itself, as the client library has no
calls for them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from headrace.client.columnar.channel import Channel
from headrace.client.columnar.retry import refused_or_again
from headrace.client.core.errors import VersionNotServed
from headrace.client.core.metadata import CoordinatorKind
from headrace.client.errors import ClientError
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.protocol.topic_partition import TopicPartition, values_by_topic

from .groups import GroupMember, GroupOverview, GroupSummary, unknown_group
from .operations import Operations

T = TypeVar("T")

_UNKNOWN: Final = -1
_TYPE: Final = "share"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareProgress:
    """Where a share group is in a partition: done with all records before `start`, and not with `lag` others. None
    stands for what is not known: no member has read there, or nobody leads it."""

    topic: str
    partition: int
    start: int | None
    lag: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupDescription:
    group: str
    state: str
    type: str
    assignor: str
    coordinator: str
    members: tuple[GroupMember, ...]
    partitions: tuple[ShareProgress, ...] = field(default=())

    @property
    def lag(self) -> int:
        """How many records are not done with, in the partitions where that is known."""
        return sum(progress.lag or 0 for progress in self.partitions)


class ShareGroupOperations(Operations):
    """The share groups of one cluster. Each method raises `ClientError`."""

    def list_groups(self) -> list[GroupSummary]:
        """Every share group, by name; none where brokers know of none."""

        def listed(channel: Channel) -> Any:
            answer = channel.ask(ApiKey.LIST_GROUPS, {"states_filter": [], "types_filter": [_TYPE]})
            _check(answer.error_code, "the list of share groups")
            return answer.groups

        found = [group for broker in self._cluster.brokers() for group in self._cluster.with_broker(broker, listed)]
        summaries = [
            GroupSummary(group=each.group_id, state=each.group_state, type=_TYPE)
            for each in found
            if str(getattr(each, "group_type", "")).lower() == _TYPE
        ]
        return sorted(summaries, key=lambda summary: summary.group)

    def overviews(self, groups: Iterable[GroupSummary]) -> list[GroupOverview]:
        """Groups with the number of their members and their lag."""
        return [self._overview(group) for group in groups]

    def _overview(self, group: GroupSummary) -> GroupOverview:
        try:
            described = self.describe_group(group.group)
        except ClientError:  # what one coordinator cannot tell now keeps nobody from the rest
            return GroupOverview(**_fields(group), members=None, topics=(), lag=None)
        topics = {progress.topic for progress in described.partitions}
        topics |= {place.topic for member in described.members for place in member.partitions}
        fields = _fields(group)
        return GroupOverview(**fields, members=len(described.members), topics=tuple(sorted(topics)), lag=described.lag)

    def exists(self, group: str) -> bool:
        """Whether there is a share group of that name."""
        try:
            self._described(group)
        except ClientError as error:
            if error.code != "GROUP_ID_NOT_FOUND":
                raise
            return False
        return True

    def describe_group(self, group: str) -> ShareGroupDescription:
        """A group with its members and where it is; a `ClientError` when there is none of that name."""
        described = self._described(group)
        return ShareGroupDescription(
            group=group,
            state=described.group_state,
            type=_TYPE,
            assignor=described.assignor_name,
            coordinator=self._coordinator(group),
            members=tuple(_member(member) for member in described.members),
            partitions=tuple(self._progress(group)),
        )

    def start_offsets(self, group: str) -> dict[TopicPartition, int]:
        """Where a group goes on, in the partitions where its members have read."""
        return {
            TopicPartition(each.topic, each.partition): each.start
            for each in self._progress(group)
            if each.start is not None
        }

    def member_count(self, group: str) -> int:
        """How many members a group has now."""
        return len(self._described(group).members)

    def move(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Have a group that has no members go on at other offsets."""
        if not offsets:
            return
        topics = [
            {
                "topic_name": topic,
                "partitions": [{"partition_index": index, "start_offset": offset} for index, offset in some],
            }
            for topic, some in values_by_topic(offsets).items()
        ]

        def moved(channel: Channel) -> None:
            answer = channel.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, {"group_id": group, "topics": topics})
            _check(answer.error_code, f"the new offsets of group '{group}'")
            for topic in answer.responses:
                for partition in topic.partitions:
                    _check(partition.error_code, f"topic '{topic.topic_name}' partition {partition.partition_index}")

        self._with_coordinator(group, moved)

    def _described(self, group: str) -> Any:
        asked = {"group_ids": [group], "include_authorized_operations": False}

        def described(channel: Channel) -> Any:
            try:
                (found,) = channel.ask(ApiKey.SHARE_GROUP_DESCRIBE, asked).groups
            except VersionNotServed:
                raise unknown_group(group) from None
            if found.error_code is ErrorCode.group_id_not_found:
                raise unknown_group(group)
            _check(found.error_code, f"group '{group}'")
            return found

        return self._with_coordinator(group, described)

    def _progress(self, group: str) -> list[ShareProgress]:
        def told(channel: Channel) -> Any:
            asked = {"groups": [{"group_id": group, "topics": None}]}
            (found,) = channel.ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, asked).groups
            _check(found.error_code, f"the offsets of group '{group}'")
            return found.topics

        progress = [
            ShareProgress(
                topic=topic.topic_name,
                partition=partition.partition_index,
                start=_known(partition.start_offset),
                lag=_known(getattr(partition, "lag", _UNKNOWN)),
            )
            for topic in self._with_coordinator(group, told)
            for partition in topic.partitions
            if partition.error_code is ErrorCode.none
        ]
        return sorted(progress, key=lambda each: (each.topic, each.partition))

    def _with_coordinator(self, group: str, attempt: Callable[[Channel], T]) -> T:
        return self._cluster.with_coordinator(CoordinatorKind.GROUP, group, attempt)

    def _coordinator(self, group: str) -> str:
        return self._with_coordinator(group, lambda channel: str(channel.address))


def _fields(group: GroupSummary) -> dict[str, Any]:
    return {"group": group.group, "state": group.state, "type": group.type}


def _known(value: int) -> int | None:
    return None if value == _UNKNOWN else int(value)


def _member(member: Any) -> GroupMember:
    return GroupMember(
        member=member.member_id,
        instance=None,
        client=member.client_id,
        host=member.client_host,
        partitions=tuple(
            sorted(
                TopicPartition(topic.topic_name, index)
                for topic in member.assignment.topic_partitions
                for index in topic.partitions
            )
        ),
    )


def _check(code: ErrorCode, what: str) -> None:
    """Raises `TryAgain` for what passes: to be called within an attempt, which is then made again."""
    if code is not ErrorCode.none:
        raise refused_or_again(code, what)
