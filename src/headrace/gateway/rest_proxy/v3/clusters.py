"""v3: clusters and their brokers."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from headrace.client.aio import admin
from headrace.protocol.errors import ErrorCode
from headrace.web.messages import Answer, Request, json_answer
from headrace.web.routes import Routes

from ...credentials import Clients
from ..failures import Refusal
from ..operations import V3
from .resources import (
    CLUSTERS,
    ONE,
    BrokerIdPath,
    ClusterPath,
    Here,
    Listing,
    Related,
    ResourceMetadata,
    here,
    listed,
)
from .topics import ReplicaData, replicas_of

ClusterId = Annotated[str, Meta(examples=["x3OBcDZJQzqDSyTDfXMm0Q"])]


class ClusterData(Struct):
    """A cluster, and where its parts are."""

    kind: Annotated[str, Meta(examples=["KafkaCluster"])]
    metadata: ResourceMetadata
    cluster_id: ClusterId
    controller: Related | None
    acls: Related
    brokers: Related
    broker_configs: Related
    consumer_groups: Related
    topics: Related
    partition_reassignments: Related


class BrokerData(Struct):
    """A broker."""

    kind: Annotated[str, Meta(examples=["KafkaBroker"])]
    metadata: ResourceMetadata
    cluster_id: ClusterId
    broker_id: Annotated[int, Meta(examples=[1])]
    host: Annotated[str, Meta(examples=["127.0.0.1"])]
    port: Annotated[int, Meta(examples=[9092])]
    rack: Annotated[str | None, Meta(examples=[None])]
    configs: Related
    partition_replicas: Related


class ClusterResources:
    """Tells of the cluster."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def add_to(self, routes: Routes) -> None:
        """All operations."""
        V3.add(
            routes,
            "GET",
            CLUSTERS,
            "List clusters.",
            self._clusters,
            about="There is one: that of the brokers behind this gateway.",
            answers=V3.answered("Clusters.", Listing[ClusterData]),
        )
        for url, summary, handler, path, kind in (
            (ONE, "Describe a cluster.", self._cluster, ClusterPath, ClusterData),
            (f"{ONE}/brokers", "List brokers.", self._brokers, ClusterPath, Listing[BrokerData]),
            (f"{ONE}/brokers/{{broker_id}}", "Describe a broker.", self._broker, BrokerIdPath, BrokerData),
            (
                f"{ONE}/brokers/{{broker_id}}/partition-replicas",
                "List the replicas of a broker.",
                self._replicas_of_broker,
                BrokerIdPath,
                Listing[ReplicaData],
            ),
        ):
            V3.add(routes, "GET", url, summary, handler, path=path, answers=V3.answered("So it is.", kind))

    async def _clusters(self, request: Request) -> Answer:
        place = await here(self._clients, request, None)
        return listed("KafkaCluster", place.resource.url.rpartition("/")[0], [await self._data(place)])

    async def _cluster(self, request: Request, path: ClusterPath) -> Answer:
        return json_answer(await self._data(await here(self._clients, request, path.cluster_id)))

    async def _data(self, place: Here) -> ClusterData:
        resource, controller = place.resource, int((await admin.describe_cluster(place.client.cluster)).controller_id)
        return ClusterData(
            kind="KafkaCluster",
            metadata=resource.metadata,
            cluster_id=place.cluster_id,
            controller=resource.broker(controller).link() if controller >= 0 else None,
            acls=resource.link("acls"),
            brokers=resource.link("brokers"),
            broker_configs=resource.link("broker-configs"),
            consumer_groups=resource.link("consumer-groups"),
            topics=resource.link("topics"),
            partition_reassignments=resource.link("topics/-/partitions/-/reassignment"),
        )

    async def _brokers(self, request: Request, path: ClusterPath) -> Answer:
        place = await here(self._clients, request, path.cluster_id)
        found = await brokers_of(place)
        return listed("KafkaBroker", f"{place.resource.url}/brokers", [_broker(place, each) for each in found.values()])

    async def _broker(self, request: Request, path: BrokerIdPath) -> Answer:
        place = await here(self._clients, request, path.cluster_id)
        return json_answer(_broker(place, await require_broker(place, path.broker_id)))

    async def _replicas_of_broker(self, request: Request, path: BrokerIdPath) -> Answer:
        place = await here(self._clients, request, path.cluster_id)
        await require_broker(place, path.broker_id)
        answer = await place.client.cluster.metadata(None)
        topics = sorted(
            (topic for topic in answer.topics if topic.error_code is ErrorCode.none), key=lambda topic: str(topic.name)
        )
        found = [
            replica
            for topic in topics
            for partition in sorted(topic.partitions, key=lambda each: int(each.partition_index))
            for replica in replicas_of(place, str(topic.name), partition)
            if replica.broker_id == path.broker_id
        ]
        return listed("KafkaReplica", f"{place.resource.broker(path.broker_id).url}/partition-replicas", found)


async def brokers_of(place: Here) -> dict[int, Any]:
    """The brokers of a cluster, by their ids."""
    found = {int(each.broker_id): each for each in (await admin.describe_cluster(place.client.cluster)).brokers}
    return dict(sorted(found.items()))


async def require_broker(place: Here, broker_id: int) -> Any:
    """A broker; `Refusal` 404 where there is none of that id."""
    found = (await brokers_of(place)).get(broker_id)
    if found is None:
        raise Refusal(404, 404, f"Broker {broker_id} cannot be found.")
    return found


def _broker(place: Here, broker: Any) -> BrokerData:
    resource = place.resource.broker(int(broker.broker_id))
    return BrokerData(
        kind="KafkaBroker",
        metadata=resource.metadata,
        cluster_id=place.cluster_id,
        broker_id=int(broker.broker_id),
        host=broker.host,
        port=int(broker.port),
        rack=broker.rack,
        configs=resource.link("configs"),
        partition_replicas=resource.link("partition-replicas"),
    )
