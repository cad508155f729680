"""v3: consumer groups, their members and how far they are."""

from typing import Annotated, Final

from msgspec import Meta, Struct

from headrace.client.aio import groups
from headrace.client.aio.groups import GroupOverview, MemberOverview
from headrace.web.messages import Answer, Request, json_answer
from headrace.web.routes import Routes

from ...credentials import Clients
from ...group_routes import lag
from ...names import Partition, Topic
from ..failures import Refusal
from ..operations import DONE, V3
from .resources import (
    ONE,
    ClusterPath,
    GroupIdPath,
    Here,
    Listing,
    Related,
    Resource,
    ResourceMetadata,
    here,
    listed,
)

_GROUPS: Final = f"{ONE}/consumer-groups"
_GROUP: Final = f"{_GROUPS}/{{consumer_group_id}}"
_CONSUMER: Final = f"{_GROUP}/consumers/{{consumer_id}}"
_AT: Final = "{topic_name}/partitions/{partition_id}"
_ClusterId = Annotated[str, Meta(examples=["x3OBcDZJQzqDSyTDfXMm0Q"])]
_GroupId = Annotated[str, Meta(examples=["billing"])]
_ConsumerId = Annotated[str, Meta(examples=["app-1-6ae7"])]
_TopicName = Annotated[str, Meta(examples=["orders"])]
_PartitionId = Annotated[int, Meta(examples=[0])]


class ConsumerGroupData(Struct):
    """A consumer group."""

    kind: Annotated[str, Meta(examples=["KafkaConsumerGroup"])]
    metadata: ResourceMetadata
    cluster_id: _ClusterId
    consumer_group_id: _GroupId
    is_simple: Annotated[bool, Meta(description="It has no members and only keeps offsets.")]
    partition_assignor: Annotated[str, Meta(examples=["range"])]
    state: Annotated[str, Meta(examples=["STABLE"])]
    type: Annotated[str, Meta(examples=["CLASSIC"])]
    is_mixed_consumer_group: bool
    coordinator: Related
    consumers: Related
    lag_summary: Related


class ConsumerData(Struct):
    """A member of a group."""

    kind: Annotated[str, Meta(examples=["KafkaConsumer"])]
    metadata: ResourceMetadata
    cluster_id: _ClusterId
    consumer_group_id: _GroupId
    consumer_id: _ConsumerId
    instance_id: Annotated[str | None, Meta(examples=[None])]
    client_id: Annotated[str, Meta(examples=["app"])]
    assignments: Related


class ConsumerAssignmentData(Struct):
    """A partition that a member reads."""

    kind: Annotated[str, Meta(examples=["KafkaConsumerAssignment"])]
    metadata: ResourceMetadata
    cluster_id: _ClusterId
    consumer_group_id: _GroupId
    consumer_id: _ConsumerId
    topic_name: _TopicName
    partition_id: _PartitionId
    partition: Related
    lag: Related


class ConsumerLagData(Struct):
    """How far a group is in a partition; nobody's where no member reads it."""

    kind: Annotated[str, Meta(examples=["KafkaConsumerLag"])]
    metadata: ResourceMetadata
    cluster_id: _ClusterId
    consumer_group_id: _GroupId
    topic_name: _TopicName
    partition_id: _PartitionId
    current_offset: Annotated[int, Meta(examples=[41])]
    log_end_offset: Annotated[int, Meta(examples=[42])]
    lag: Annotated[int, Meta(examples=[1])]
    consumer_id: _ConsumerId
    instance_id: Annotated[str | None, Meta(examples=[None])]
    client_id: Annotated[str, Meta(examples=["app"])]


class LagSummaryData(Struct):
    """How far a group is in all, and where it is furthest behind."""

    kind: Annotated[str, Meta(examples=["KafkaConsumerGroupLagSummary"])]
    metadata: ResourceMetadata
    cluster_id: _ClusterId
    consumer_group_id: _GroupId
    max_lag_consumer_id: _ConsumerId
    max_lag_instance_id: Annotated[str | None, Meta(examples=[None])]
    max_lag_client_id: Annotated[str, Meta(examples=["app"])]
    max_lag_topic_name: _TopicName
    max_lag_partition_id: _PartitionId
    max_lag: Annotated[int, Meta(examples=[1])]
    total_lag: Annotated[int, Meta(examples=[1])]
    max_lag_consumer: Related
    max_lag_partition: Related


class ConsumerPath(GroupIdPath, frozen=True):
    """A path with a member."""

    consumer_id: Annotated[str, Meta(min_length=1, max_length=1000, examples=["app-1-6ae7"])]


class AssignmentPath(ConsumerPath, frozen=True):
    """A path with a partition of a member."""

    topic_name: Topic
    partition_id: Partition


class LagPath(GroupIdPath, frozen=True):
    """A path with a partition of a group."""

    topic_name: Topic
    partition_id: Partition


_NOBODY: Final = MemberOverview("", None, "", {})


class GroupResources:
    """Tells of consumer groups."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def add_to(self, routes: Routes) -> None:
        """All operations."""
        for url, summary, handler, path, kind in (
            (_GROUPS, "List consumer groups.", self._groups, ClusterPath, Listing[ConsumerGroupData]),
            (_GROUP, "Describe a consumer group.", self._group, GroupIdPath, ConsumerGroupData),
            (f"{_GROUP}/consumers", "List members.", self._consumers, GroupIdPath, Listing[ConsumerData]),
            (_CONSUMER, "Describe a member.", self._consumer, ConsumerPath, ConsumerData),
            (
                f"{_CONSUMER}/assignments",
                "List what a member reads.",
                self._consumer_assignments,
                ConsumerPath,
                Listing[ConsumerAssignmentData],
            ),
            (
                f"{_CONSUMER}/assignments/{_AT}",
                "Describe what a member reads.",
                self._consumer_assignment,
                AssignmentPath,
                ConsumerAssignmentData,
            ),
            (f"{_GROUP}/lags", "List lags.", self._lags, GroupIdPath, Listing[ConsumerLagData]),
            (f"{_GROUP}/lags/{_AT}", "Show a lag.", self._lag, LagPath, ConsumerLagData),
            (f"{_GROUP}/lag-summary", "Sum lags up.", self._lag_summary, GroupIdPath, LagSummaryData),
        ):
            V3.add(routes, "GET", url, summary, handler, path=path, answers=V3.answered("So it is.", kind))
        V3.add(routes, "DELETE", _GROUP, "Remove a consumer group.", self._delete_group, path=GroupIdPath, answers=DONE)

    async def _groups(self, request: Request, path: ClusterPath) -> Answer:
        place = await here(self._clients, request, path.cluster_id)
        found = await groups.overviews(place.client.cluster)
        data = [_group(place, each) for each in found]
        return listed("KafkaConsumerGroup", f"{place.resource.url}/consumer-groups", data)

    async def _group(self, request: Request, path: GroupIdPath) -> Answer:
        place, group = await self._found(request, path)
        return json_answer(_group(place, group))

    async def _delete_group(self, request: Request, path: GroupIdPath) -> Answer:
        place = await here(self._clients, request, path.cluster_id)
        await groups.delete_group(place.client.cluster, path.consumer_group_id)
        return Answer(204)

    async def _consumers(self, request: Request, path: GroupIdPath) -> Answer:
        place, group = await self._found(request, path)
        url = f"{place.resource.group(group.group).url}/consumers"
        return listed("KafkaConsumer", url, [_consumer(place, group, each) for each in group.members])

    async def _consumer(self, request: Request, path: ConsumerPath) -> Answer:
        place, group = await self._found(request, path)
        return json_answer(_consumer(place, group, _member(group, path.consumer_id)))

    async def _consumer_assignments(self, request: Request, path: ConsumerPath) -> Answer:
        place, group = await self._found(request, path)
        member = _member(group, path.consumer_id)
        url = f"{_consumer_resource(place, group, member).url}/assignments"
        return listed("KafkaConsumerAssignment", url, _assignments(place, group, member))

    async def _consumer_assignment(self, request: Request, path: AssignmentPath) -> Answer:
        place, group = await self._found(request, path)
        for each in _assignments(place, group, _member(group, path.consumer_id)):
            if (each.topic_name, each.partition_id) == (path.topic_name, path.partition_id):
                return json_answer(each)
        raise Refusal(404, 404, f"Consumer {path.consumer_id} does not read that partition.")

    async def _lags(self, request: Request, path: GroupIdPath) -> Answer:
        place, group = await self._found(request, path)
        url = f"{place.resource.group(group.group).url}/lags"
        return listed("KafkaConsumerLag", url, await _lags_of(place, group))

    async def _lag(self, request: Request, path: LagPath) -> Answer:
        place, group = await self._found(request, path)
        for each in await _lags_of(place, group):
            if (each.topic_name, each.partition_id) == (path.topic_name, path.partition_id):
                return json_answer(each)
        raise Refusal(404, 404, f"Group {group.group} has committed nothing of that partition.")

    async def _lag_summary(self, request: Request, path: GroupIdPath) -> Answer:
        place, group = await self._found(request, path)
        lags = await _lags_of(place, group)
        if not lags:
            raise Refusal(404, 404, f"Group {group.group} has committed nothing.")
        return json_answer(_summary(place, group, lags))

    async def _found(self, request: Request, path: GroupIdPath) -> tuple[Here, GroupOverview]:
        place = await here(self._clients, request, path.cluster_id)
        return place, await groups.overview(place.client.cluster, path.consumer_group_id)


def _group(place: Here, group: GroupOverview) -> ConsumerGroupData:
    resource = place.resource.group(group.group)
    return ConsumerGroupData(
        kind="KafkaConsumerGroup",
        metadata=resource.metadata,
        cluster_id=place.cluster_id,
        consumer_group_id=group.group,
        is_simple=group.is_simple,
        partition_assignor=group.assignor,
        state="".join(f"_{letter}" if letter.isupper() else letter for letter in group.state).upper().lstrip("_"),
        type=group.type.upper(),
        is_mixed_consumer_group=False,
        coordinator=place.resource.broker(group.coordinator).link(),
        consumers=resource.link("consumers"),
        lag_summary=resource.link("lag-summary"),
    )


def _member(group: GroupOverview, consumer_id: str) -> MemberOverview:
    for member in group.members:
        if member.member_id == consumer_id:
            return member
    raise Refusal(404, 404, f"Consumer {consumer_id} cannot be found.")


def _consumer_resource(place: Here, group: GroupOverview, member: MemberOverview) -> Resource:
    return place.resource.group(group.group).child("consumers", "consumer", member.member_id)


def _consumer(place: Here, group: GroupOverview, member: MemberOverview) -> ConsumerData:
    resource = _consumer_resource(place, group, member)
    return ConsumerData(
        kind="KafkaConsumer",
        metadata=resource.metadata,
        cluster_id=place.cluster_id,
        consumer_group_id=group.group,
        consumer_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        assignments=resource.link("assignments"),
    )


def _assignments(place: Here, group: GroupOverview, member: MemberOverview) -> list[ConsumerAssignmentData]:
    resource = _consumer_resource(place, group, member)
    return [
        ConsumerAssignmentData(
            kind="KafkaConsumerAssignment",
            metadata=resource.child("assignments", "assignment", topic)
            .child("partitions", "partition", index)
            .metadata,
            cluster_id=place.cluster_id,
            consumer_group_id=group.group,
            consumer_id=member.member_id,
            topic_name=topic,
            partition_id=index,
            partition=place.resource.partition(topic, index).link(),
            lag=_lag_resource(place, group, topic, index).link(),
        )
        for topic, some in sorted(member.assignment.items())
        for index in some
    ]


def _lag_resource(place: Here, group: GroupOverview, topic: str, index: int) -> Resource:
    return place.resource.group(group.group).child("lags", "lag", topic).child("partitions", "partition", index)


async def _lags_of(place: Here, group: GroupOverview) -> list[ConsumerLagData]:
    """Those of partitions with a committed offset, where the end is known."""
    readers = {
        (topic, index): member
        for member in group.members
        for topic, some in member.assignment.items()
        for index in some
    }
    found = []
    for each in (await lag(place.client, group.group, None)).offsets:
        if each.offset is None or each.end_offset is None or each.lag is None:
            continue
        member = readers.get((each.topic, each.partition), _NOBODY)
        found.append(
            ConsumerLagData(
                kind="KafkaConsumerLag",
                metadata=_lag_resource(place, group, each.topic, each.partition).metadata,
                cluster_id=place.cluster_id,
                consumer_group_id=group.group,
                topic_name=each.topic,
                partition_id=each.partition,
                current_offset=each.offset,
                log_end_offset=each.end_offset,
                lag=each.lag,
                consumer_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
            )
        )
    return found


def _summary(place: Here, group: GroupOverview, lags: list[ConsumerLagData]) -> LagSummaryData:
    worst = max(lags, key=lambda each: each.lag)
    resource = place.resource.group(group.group)
    return LagSummaryData(
        kind="KafkaConsumerGroupLagSummary",
        metadata=resource.part("lag-summary").metadata,
        cluster_id=place.cluster_id,
        consumer_group_id=group.group,
        max_lag_consumer_id=worst.consumer_id,
        max_lag_instance_id=worst.instance_id,
        max_lag_client_id=worst.client_id,
        max_lag_topic_name=worst.topic_name,
        max_lag_partition_id=worst.partition_id,
        max_lag=worst.lag,
        total_lag=sum(each.lag for each in lags),
        max_lag_consumer=resource.child("consumers", "consumer", worst.consumer_id).link(),
        max_lag_partition=place.resource.partition(worst.topic_name, worst.partition_id).link(),
    )
