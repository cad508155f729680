"""v2: topics, their partitions, brokers."""

from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from headrace.client.aio import admin
from headrace.client.aio.fetching import list_offsets
from headrace.client.core.offsets import EARLIEST, LATEST
from headrace.protocol.errors import ErrorCode
from headrace.web.messages import Answer, Request, json_answer
from headrace.web.problem import Problem
from headrace.web.routes import Routes

from ..credentials import Clients
from ..names import TopicPath
from ..read_routes import PartitionPath
from .operations import V2

TopicNames = Annotated[list[str], Meta(examples=[["orders"]])]


class ProxyReplica(Struct):
    """A replica of a partition."""

    broker: Annotated[int, Meta(examples=[1])]
    leader: bool
    in_sync: bool


class ProxyPartition(Struct):
    """A partition. Its leader is -1 while it has none."""

    partition: Annotated[int, Meta(examples=[0])]
    leader: Annotated[int, Meta(examples=[1])]
    replicas: list[ProxyReplica]


class ProxyTopic(Struct):
    """A topic with its settings and partitions."""

    name: Annotated[str, Meta(examples=["orders"])]
    configs: Annotated[dict[str, str | None], Meta(examples=[{"retention.ms": "86400000"}])]
    partitions: list[ProxyPartition]


class ProxyEnds(Struct):
    """Where a partition begins and ends."""

    beginning_offset: Annotated[int, Meta(examples=[0])]
    end_offset: Annotated[int, Meta(examples=[42])]


class ProxyBrokers(Struct):
    """The brokers, by their ids."""

    brokers: Annotated[list[int], Meta(examples=[[1, 2, 3]])]


_TOPICS: Final = "/topics"


class ProxyMetadata:
    """Tells what there is."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def add_to(self, routes: Routes) -> None:
        """All its operations."""
        one, partition = f"{_TOPICS}/{{topic}}", f"{_TOPICS}/{{topic}}/partitions/{{partition}}"
        V2.add(routes, "GET", _TOPICS, "List topics.", self._topics, answers=V2.answered("Names.", TopicNames))
        V2.add(routes, "GET", "/brokers", "List brokers.", self._brokers, answers=V2.answered("Ids.", ProxyBrokers))
        for url, summary, handler, path, kind in (
            (one, "Describe a topic.", self._topic, TopicPath, ProxyTopic),
            (f"{one}/partitions", "List partitions.", self._partitions, TopicPath, list[ProxyPartition]),
            (partition, "Describe a partition.", self._partition, PartitionPath, ProxyPartition),
            (f"{partition}/offsets", "Show where a partition ends.", self._offsets, PartitionPath, ProxyEnds),
        ):
            V2.add(routes, "GET", url, summary, handler, path=path, answers=V2.answered("So it is.", kind))

    async def _topics(self, request: Request) -> Answer:
        found = await self._clients.of(request).cluster.metadata(None)
        return json_answer(sorted(str(each.name) for each in found.topics if each.error_code is ErrorCode.none))

    async def _brokers(self, request: Request) -> Answer:
        found = await admin.describe_cluster(self._clients.of(request).cluster)
        return json_answer(ProxyBrokers(sorted(int(each.broker_id) for each in found.brokers)))

    async def _topic(self, request: Request, path: TopicPath) -> Answer:
        cluster = self._clients.of(request).cluster
        partitions = _partitions_of(await cluster.described(path.topic))
        configs = {str(each.name): each.value for each in await admin.describe_configs(cluster, path.topic)}
        return json_answer(ProxyTopic(path.topic, dict(sorted(configs.items())), partitions))

    async def _partitions(self, request: Request, path: TopicPath) -> Answer:
        return json_answer(_partitions_of(await self._clients.of(request).cluster.described(path.topic)))

    async def _partition(self, request: Request, path: PartitionPath) -> Answer:
        return json_answer(await self._one(request, path))

    async def _offsets(self, request: Request, path: PartitionPath) -> Answer:
        await self._one(request, path)
        cluster, topic, partition = self._clients.of(request).cluster, path.topic, path.partition
        (start, _) = (await list_offsets(cluster, topic, {partition: EARLIEST}))[partition]
        (end, _) = (await list_offsets(cluster, topic, {partition: LATEST}))[partition]
        return json_answer(ProxyEnds(start, end))

    async def _one(self, request: Request, path: PartitionPath) -> ProxyPartition:
        for found in _partitions_of(await self._clients.of(request).cluster.described(path.topic)):
            if found.partition == path.partition:
                return found
        raise Problem(404, "Partition not found.", code="unknown-partition")


def _partitions_of(topic: Any) -> list[ProxyPartition]:
    found = []
    for each in topic.partitions:
        leader, in_sync = int(each.leader_id), {int(node) for node in each.isr_nodes}
        replicas = [
            ProxyReplica(broker=int(node), leader=int(node) == leader, in_sync=int(node) in in_sync)
            for node in each.replica_nodes
        ]
        found.append(ProxyPartition(int(each.partition_index), leader, replicas))
    return sorted(found, key=lambda partition: partition.partition)
