"""What resources of v3 are made of: their addresses, their links, and lists of them."""

from typing import Annotated, Final, Generic, NamedTuple, TypeVar
from urllib.parse import quote

from msgspec import Meta, Struct

from headrace.client.aio.client import Client
from headrace.web.messages import Answer, Request, json_answer

from ...consumer_routes import gateway_url
from ...credentials import Clients
from ...names import Group, Partition, Topic
from ..failures import Refusal

CLUSTERS: Final = "/v3/clusters"
ONE: Final = f"{CLUSTERS}/{{cluster_id}}"

T = TypeVar("T")


class ResourceMetadata(Struct, rename={"self_": "self"}):
    """Where a resource is, and its name."""

    self_: Annotated[str, Meta(examples=["http://127.0.0.1:8080/v3/clusters/x3OBcDZJQzqDSyTDfXMm0Q/topics/orders"])]
    resource_name: Annotated[str, Meta(examples=["crn:///kafka=x3OBcDZJQzqDSyTDfXMm0Q/topic=orders"])]


class ListMetadata(Struct, rename={"self_": "self"}):
    """Where a list is. It is whole: there is no next page."""

    self_: Annotated[str, Meta(examples=["http://127.0.0.1:8080/v3/clusters/x3OBcDZJQzqDSyTDfXMm0Q/topics"])]
    next: Annotated[str | None, Meta(examples=[None])] = None


class Related(Struct):
    """Where something else is."""

    related: Annotated[str, Meta(examples=["http://127.0.0.1:8080/v3/clusters/x3OBcDZJQzqDSyTDfXMm0Q/brokers/1"])]


class Listing(Struct, Generic[T]):
    """Resources of one kind."""

    kind: Annotated[str, Meta(examples=["KafkaTopicList"])]
    metadata: ListMetadata
    data: list[T]


class Resource(NamedTuple):
    """The address of a resource: its URL, and its name."""

    url: str
    name: str

    @property
    def metadata(self) -> ResourceMetadata:
        return ResourceMetadata(self.url, self.name)

    def child(self, collection: str, kind: str, identifier: object) -> "Resource":
        """A resource of a collection below this one."""
        return Resource(
            f"{self.url}/{collection}/{quote(str(identifier), safe='')}", f"{self.name}/{kind}={identifier}"
        )

    def part(self, path: str) -> "Resource":
        """A resource below this one of which there is but one."""
        return Resource(f"{self.url}/{path}", f"{self.name}/{path}")

    def link(self, path: str = "") -> Related:
        return Related(f"{self.url}/{path}" if path else self.url)

    def topic(self, name: str) -> "Resource":
        return self.child("topics", "topic", name)

    def partition(self, topic: str, index: int) -> "Resource":
        return self.topic(topic).child("partitions", "partition", index)

    def broker(self, broker_id: int) -> "Resource":
        return self.child("brokers", "broker", broker_id)

    def group(self, name: str) -> "Resource":
        return self.child("consumer-groups", "consumer-group", name)


def listed(kind: str, url: str, data: list[T]) -> Answer:
    """A list of resources of a kind."""
    return json_answer(Listing(f"{kind}List", ListMetadata(url), data))


class Here(NamedTuple):
    """The cluster that a request is about, and the client of who asks."""

    client: Client
    cluster_id: str
    resource: Resource


async def here(clients: Clients, request: Request, cluster_id: str | None) -> Here:
    """The cluster of a path; `Refusal` 404 where it is another one."""
    client = clients.of(request)
    if not client.cluster.cluster_id:
        await client.cluster.metadata([])
    own = client.cluster.cluster_id
    if cluster_id is not None and cluster_id != own:
        raise Refusal(404, 404, f"Cluster {cluster_id[:80]} cannot be found.")
    url = f"{gateway_url(request, clients.settings.advertise)}{CLUSTERS}/{quote(own, safe='')}"
    return Here(client, own, Resource(url, f"crn:///kafka={own}"))


class ClusterPath(Struct, frozen=True):
    """A path with a cluster."""

    cluster_id: Annotated[str, Meta(min_length=1, max_length=255, examples=["x3OBcDZJQzqDSyTDfXMm0Q"])]


class TopicNamePath(ClusterPath, frozen=True):
    """A path with a topic."""

    topic_name: Topic


class PartitionIdPath(TopicNamePath, frozen=True):
    """A path with a partition."""

    partition_id: Partition


class BrokerIdPath(ClusterPath, frozen=True):
    """A path with a broker."""

    broker_id: Annotated[int, Meta(ge=0, le=2**31 - 1, examples=[1])]


class GroupIdPath(ClusterPath, frozen=True):
    """A path with a consumer group."""

    consumer_group_id: Group
