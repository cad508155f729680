"""v3: topics, their partitions and replicas, and those that move."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Struct, UnsetType

from headrace.client.aio import admin
from headrace.client.aio.fetching import list_offsets
from headrace.client.core.offsets import EARLIEST, LATEST
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.web.messages import Answer, Request, json_answer
from headrace.web.routes import Reply, Routes

from ...credentials import Clients
from ...names import Topic
from ...topic_routes import wait_until_known
from ..failures import Refusal
from ..operations import DONE, V3
from .resources import (
    ONE,
    ClusterPath,
    Here,
    Listing,
    PartitionIdPath,
    Related,
    ResourceMetadata,
    TopicNamePath,
    here,
    listed,
)

TOPICS: Final = f"{ONE}/topics"
TOPIC: Final = f"{TOPICS}/{{topic_name}}"
_PARTITION: Final = f"{TOPIC}/partitions/{{partition_id}}"
_Brokers = Annotated[list[Annotated[int, Meta(ge=0, le=2**31 - 1)]], Meta(min_length=1, max_length=100, examples=[[1]])]


class TopicData(Struct):
    """A topic."""

    kind: Annotated[str, Meta(examples=["KafkaTopic"])]
    metadata: ResourceMetadata
    cluster_id: Annotated[str, Meta(examples=["x3OBcDZJQzqDSyTDfXMm0Q"])]
    topic_name: Annotated[str, Meta(examples=["orders"])]
    is_internal: bool
    replication_factor: Annotated[int, Meta(examples=[1])]
    partitions_count: Annotated[int, Meta(examples=[3])]
    partitions: Related
    configs: Related
    partition_reassignments: Related
    authorized_operations: Annotated[
        list[str] | UnsetType, Meta(description="With include_authorized_operations.", examples=[["READ", "WRITE"]])
    ] = UNSET


class PartitionData(Struct):
    """A partition."""

    kind: Annotated[str, Meta(examples=["KafkaPartition"])]
    metadata: ResourceMetadata
    cluster_id: Annotated[str, Meta(examples=["x3OBcDZJQzqDSyTDfXMm0Q"])]
    topic_name: Annotated[str, Meta(examples=["orders"])]
    partition_id: Annotated[int, Meta(examples=[0])]
    leader: Related | None
    replicas: Related
    reassignment: Related


class PartitionOffsets(Struct):
    """Where a partition begins and ends."""

    kind: Annotated[str, Meta(examples=["KafkaPartitionWithOffsets"])]
    metadata: ResourceMetadata
    cluster_id: Annotated[str, Meta(examples=["x3OBcDZJQzqDSyTDfXMm0Q"])]
    topic_name: Annotated[str, Meta(examples=["orders"])]
    partition_id: Annotated[int, Meta(examples=[0])]
    earliest_offset: Annotated[int, Meta(examples=[0])]
    latest_offset: Annotated[int, Meta(examples=[42])]


class ReplicaData(Struct):
    """A replica of a partition."""

    kind: Annotated[str, Meta(examples=["KafkaReplica"])]
    metadata: ResourceMetadata
    cluster_id: Annotated[str, Meta(examples=["x3OBcDZJQzqDSyTDfXMm0Q"])]
    topic_name: Annotated[str, Meta(examples=["orders"])]
    partition_id: Annotated[int, Meta(examples=[0])]
    broker_id: Annotated[int, Meta(examples=[1])]
    is_leader: bool
    is_in_sync: bool
    broker: Related


class ReassignmentData(Struct):
    """A partition that moves."""

    kind: Annotated[str, Meta(examples=["KafkaReassignment"])]
    metadata: ResourceMetadata
    cluster_id: Annotated[str, Meta(examples=["x3OBcDZJQzqDSyTDfXMm0Q"])]
    topic_name: Annotated[str, Meta(examples=["orders"])]
    partition_id: Annotated[int, Meta(examples=[0])]
    adding_replicas: Annotated[list[int], Meta(examples=[[2]])]
    removing_replicas: Annotated[list[int], Meta(examples=[[1]])]
    replicas: Related


class NewSetting(Struct, forbid_unknown_fields=True):
    """A setting of a new topic."""

    name: Annotated[str, Meta(min_length=1, max_length=255, examples=["retention.ms"])]
    value: Annotated[str | None, Meta(examples=["86400000"])] = None


class TopicToCreate(Struct, forbid_unknown_fields=True):
    """A topic to create; what is left out takes the cluster's defaults."""

    topic_name: Topic
    partitions_count: Annotated[int, Meta(ge=1, le=10_000, examples=[3])] | None = None
    replication_factor: Annotated[int, Meta(ge=1, le=100, examples=[1])] | None = None
    replicas_assignments: Annotated[
        dict[str, _Brokers],
        Meta(max_length=10_000, description="Brokers by partition, in place of the two numbers.", examples=[{}]),
    ] = {}
    configs: Annotated[list[NewSetting], Meta(max_length=100)] = []
    validate_only: Annotated[bool, Meta(description="Only say whether it could be made.")] = False


class PartitionCount(Struct, forbid_unknown_fields=True):
    """How many partitions a topic is to have."""

    partitions_count: Annotated[int, Meta(ge=1, le=10_000, examples=[6])]


class TopicQuery(Struct, frozen=True):
    """What to tell of a topic."""

    include_authorized_operations: bool = False


class ReplicaPath(PartitionIdPath, frozen=True):
    """A path with a replica."""

    broker_id: Annotated[int, Meta(ge=0, le=2**31 - 1, examples=[1])]


class TopicResources:
    """Makes, tells of and removes topics."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def add_to(self, routes: Routes) -> None:
        """All operations."""
        answered = V3.answered
        V3.add(
            routes, "GET", TOPICS, "List topics.", self._topics, path=ClusterPath,
            answers=answered("Topics by name.", Listing[TopicData]),
        )  # fmt: skip
        V3.add(
            routes, "POST", TOPICS, "Create a topic.", self._create_topic, path=ClusterPath, kind=TopicToCreate,
            answers={
                **answered("It could be made (validate_only).", TopicData),
                201: Reply("It is there.", TopicData, V3.answer_types, headers={"Location": "Where it is."}),
            },
        )  # fmt: skip
        V3.add(
            routes, "GET", TOPIC, "Describe a topic.", self._topic, path=TopicNamePath, query=TopicQuery,
            answers=answered("The topic.", TopicData),
        )  # fmt: skip
        V3.add(
            routes, "PATCH", TOPIC, "Let a topic grow.", self._grow_topic, path=TopicNamePath, kind=PartitionCount,
            answers=answered("The topic as it is now.", TopicData),
        )  # fmt: skip
        V3.add(routes, "DELETE", TOPIC, "Remove a topic.", self._delete_topic, path=TopicNamePath, answers=DONE)
        for url, summary, handler, path, kind in (
            (f"{TOPIC}/partitions", "List partitions.", self._partitions, TopicNamePath, Listing[PartitionData]),
            (_PARTITION, "Describe a partition.", self._partition, PartitionIdPath, PartitionData),
            (f"{_PARTITION}/offset", "Show where it ends.", self._offsets, PartitionIdPath, PartitionOffsets),
            (f"{_PARTITION}/replicas", "List replicas.", self._replicas, PartitionIdPath, Listing[ReplicaData]),
            (f"{_PARTITION}/replicas/{{broker_id}}", "Describe a replica.", self._replica, ReplicaPath, ReplicaData),
            (f"{_PARTITION}/reassignment", "Show how it moves.", self._moving, PartitionIdPath, ReassignmentData),
            (f"{TOPIC}/partitions/-/reassignment", "List what moves of it.", self._moving_of_topic, TopicNamePath,
             Listing[ReassignmentData]),
            (f"{TOPICS}/-/partitions/-/reassignment", "List what moves.", self._moving_of_all, ClusterPath,
             Listing[ReassignmentData]),
        ):  # fmt: skip
            V3.add(routes, "GET", url, summary, handler, path=path, answers=answered("So it is.", kind))

    async def _topics(self, request: Request, path: ClusterPath) -> Answer:
        place = await here(self._clients, request, path.cluster_id)
        found = (await place.client.cluster.metadata(None)).topics
        data = [_topic(place, topic) for topic in found if topic.error_code is ErrorCode.none]
        return listed("KafkaTopic", f"{place.resource.url}/topics", sorted(data, key=lambda topic: topic.topic_name))

    async def _topic(self, request: Request, path: TopicNamePath, query: TopicQuery) -> Answer:
        place = await here(self._clients, request, path.cluster_id)
        data = _topic(place, await place.client.cluster.described(path.topic_name))
        if query.include_authorized_operations:
            allowed = await admin.authorized_operations(place.client.cluster, path.topic_name)
            data.authorized_operations = [operation.name for operation in allowed]
        return json_answer(data)

    async def _create_topic(self, request: Request, path: ClusterPath, body: TopicToCreate) -> Answer:
        place = await here(self._clients, request, path.cluster_id)
        cluster, name = place.client.cluster, body.topic_name
        assignments = _assignments(body)
        partitions = body.partitions_count or (-1 if not assignments else len(assignments))
        factor = body.replication_factor or (-1 if not assignments else len(assignments[0]))
        await admin.create_topic(
            cluster,
            name,
            partitions=-1 if assignments else partitions,
            replication_factor=-1 if assignments else factor,
            configs={each.name: each.value for each in body.configs if each.value is not None} or None,
            assignments=assignments,
            validate_only=body.validate_only,
        )
        if body.validate_only:
            return json_answer(
                _topic_data(place, name, is_internal=False, replicas=max(factor, 0), count=max(partitions, 0))
            )
        await wait_until_known(cluster, name)
        location = place.resource.topic(name).url.encode("ascii", "replace")
        return json_answer(_topic(place, await cluster.described(name)), 201, ((b"location", location),))

    async def _grow_topic(self, request: Request, path: TopicNamePath, body: PartitionCount) -> Answer:
        place = await here(self._clients, request, path.cluster_id)
        cluster, name = place.client.cluster, path.topic_name
        await admin.create_partitions(cluster, name, body.partitions_count)
        await wait_until_known(cluster, name, body.partitions_count)
        return json_answer(_topic(place, await cluster.described(name)))

    async def _delete_topic(self, request: Request, path: TopicNamePath) -> Answer:
        place = await here(self._clients, request, path.cluster_id)
        await admin.delete_topic(place.client.cluster, path.topic_name)
        return Answer(204)

    async def _partitions(self, request: Request, path: TopicNamePath) -> Answer:
        place = await here(self._clients, request, path.cluster_id)
        topic = await place.client.cluster.described(path.topic_name)
        data = [_partition(place, path.topic_name, each) for each in _in_order(topic)]
        return listed("KafkaPartition", f"{place.resource.topic(path.topic_name).url}/partitions", data)

    async def _partition(self, request: Request, path: PartitionIdPath) -> Answer:
        place = await here(self._clients, request, path.cluster_id)
        return json_answer(_partition(place, path.topic_name, await _described(place, path)))

    async def _offsets(self, request: Request, path: PartitionIdPath) -> Answer:
        place = await here(self._clients, request, path.cluster_id)
        await _described(place, path)
        cluster, name, partition = place.client.cluster, path.topic_name, path.partition_id
        (start, _) = (await list_offsets(cluster, name, {partition: EARLIEST}))[partition]
        (end, _) = (await list_offsets(cluster, name, {partition: LATEST}))[partition]
        resource = place.resource.partition(name, partition).part("offset")
        kind = "KafkaPartitionWithOffsets"
        return json_answer(PartitionOffsets(kind, resource.metadata, place.cluster_id, name, partition, start, end))

    async def _replicas(self, request: Request, path: PartitionIdPath) -> Answer:
        place = await here(self._clients, request, path.cluster_id)
        data = replicas_of(place, path.topic_name, await _described(place, path))
        url = place.resource.partition(path.topic_name, path.partition_id).url
        return listed("KafkaReplica", f"{url}/replicas", data)

    async def _replica(self, request: Request, path: ReplicaPath) -> Answer:
        place = await here(self._clients, request, path.cluster_id)
        for replica in replicas_of(place, path.topic_name, await _described(place, path)):
            if replica.broker_id == path.broker_id:
                return json_answer(replica)
        raise Refusal(404, 404, f"Replica {path.broker_id} of partition {path.partition_id} cannot be found.")

    async def _moving(self, request: Request, path: PartitionIdPath) -> Answer:
        place = await here(self._clients, request, path.cluster_id)
        found = await _reassignments(place, [(path.topic_name, [path.partition_id])])
        if not found:
            raise Refusal(404, 404, f"Partition {path.partition_id} of topic {path.topic_name} does not move.")
        return json_answer(found[0])

    async def _moving_of_topic(self, request: Request, path: TopicNamePath) -> Answer:
        place = await here(self._clients, request, path.cluster_id)
        partitions = [
            int(each.partition_index) for each in _in_order(await place.client.cluster.described(path.topic_name))
        ]
        url = f"{place.resource.topic(path.topic_name).url}/partitions/-/reassignment"
        return listed("KafkaReassignment", url, await _reassignments(place, [(path.topic_name, partitions)]))

    async def _moving_of_all(self, request: Request, path: ClusterPath) -> Answer:
        place = await here(self._clients, request, path.cluster_id)
        url = f"{place.resource.url}/topics/-/partitions/-/reassignment"
        return listed("KafkaReassignment", url, await _reassignments(place, None))


def _assignments(body: TopicToCreate) -> dict[int, Sequence[int]]:
    if not body.replicas_assignments:
        return {}
    if body.partitions_count is not None or body.replication_factor is not None:
        raise Refusal(400, 400, "either replicas_assignments or partitions_count and replication_factor, not both")
    names = body.replicas_assignments
    if set(names) != {str(index) for index in range(len(names))}:
        raise Refusal(400, 400, 'replicas_assignments must name the partitions from "0" on, without a gap')
    return {index: names[str(index)] for index in range(len(names))}


def _topic(place: Here, topic: Any) -> TopicData:
    replicas = max((len(each.replica_nodes) for each in topic.partitions), default=0)
    is_internal = bool(topic.is_internal)
    return _topic_data(place, str(topic.name), is_internal=is_internal, replicas=replicas, count=len(topic.partitions))


def _topic_data(place: Here, name: str, *, is_internal: bool, replicas: int, count: int) -> TopicData:
    resource = place.resource.topic(name)
    return TopicData(
        kind="KafkaTopic",
        metadata=resource.metadata,
        cluster_id=place.cluster_id,
        topic_name=name,
        is_internal=is_internal,
        replication_factor=replicas,
        partitions_count=count,
        partitions=resource.link("partitions"),
        configs=resource.link("configs"),
        partition_reassignments=resource.link("partitions/-/reassignment"),
    )


def _in_order(topic: Any) -> list[Any]:
    return sorted(topic.partitions, key=lambda each: int(each.partition_index))


async def _described(place: Here, path: PartitionIdPath) -> Any:
    for each in (await place.client.cluster.described(path.topic_name)).partitions:
        if int(each.partition_index) == path.partition_id:
            return each
    raise CodedError(ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition.")


def _partition(place: Here, topic: str, partition: Any) -> PartitionData:
    index, leader = int(partition.partition_index), int(partition.leader_id)
    resource = place.resource.partition(topic, index)
    return PartitionData(
        kind="KafkaPartition",
        metadata=resource.metadata,
        cluster_id=place.cluster_id,
        topic_name=topic,
        partition_id=index,
        leader=resource.link(f"replicas/{leader}") if leader >= 0 else None,
        replicas=resource.link("replicas"),
        reassignment=resource.link("reassignment"),
    )


def replicas_of(place: Here, topic: str, partition: Any) -> list[ReplicaData]:
    """The replicas of a partition, in its order."""
    index, in_sync = int(partition.partition_index), {int(node) for node in partition.isr_nodes}
    resource = place.resource.partition(topic, index)
    return [
        ReplicaData(
            kind="KafkaReplica",
            metadata=resource.child("replicas", "replica", int(node)).metadata,
            cluster_id=place.cluster_id,
            topic_name=topic,
            partition_id=index,
            broker_id=int(node),
            is_leader=int(node) == int(partition.leader_id),
            is_in_sync=int(node) in in_sync,
            broker=place.resource.broker(int(node)).link(),
        )
        for node in partition.replica_nodes
    ]


async def _reassignments(place: Here, topics: Sequence[tuple[str, Sequence[int]]] | None) -> list[ReassignmentData]:
    data = []
    for topic in await admin.reassignments(place.client.cluster, topics):
        for each in topic.partitions:
            resource = place.resource.partition(str(topic.name), int(each.partition_index))
            data.append(
                ReassignmentData(
                    kind="KafkaReassignment",
                    metadata=resource.part("reassignment").metadata,
                    cluster_id=place.cluster_id,
                    topic_name=str(topic.name),
                    partition_id=int(each.partition_index),
                    adding_replicas=[int(node) for node in each.adding_replicas],
                    removing_replicas=[int(node) for node in each.removing_replicas],
                    replicas=resource.link("replicas"),
                )
            )
    return sorted(data, key=lambda each: (each.topic_name, each.partition_id))
