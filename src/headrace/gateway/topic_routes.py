"""Topics and the cluster: made, listed, described, changed, removed."""

import asyncio
from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Struct, UnsetType

from headrace.client.aio import admin
from headrace.client.aio.cluster import Cluster
from headrace.client.aio.fetching import list_offsets
from headrace.client.aio.retrying import Pauses
from headrace.client.core.errors import ConnectionLost
from headrace.client.core.metadata import metadata_request, read_metadata
from headrace.client.core.offsets import EARLIEST, LATEST
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.web.messages import Answer, Request, json_answer
from headrace.web.problem import bad_request
from headrace.web.routes import Body, Reply, Routes

from .credentials import Clients
from .names import Next, Topic, TopicPath
from .paging import PageQuery, page
from .read_routes import READ_PROBLEMS

_Partitions = Annotated[int, Meta(ge=1, le=10_000, examples=[3])]
_Setting = str | int | float | bool
_MOST_CONFIGS: Final = 100
_Configs = Annotated[
    dict[str, _Setting | None],
    Meta(
        max_length=_MOST_CONFIGS,
        description="Settings by Kafka's names; null takes one back to the cluster's default.",
        examples=[{"retention.ms": "86400000"}],
    ),
]


class NewTopic(Struct, forbid_unknown_fields=True):
    """A topic to create."""

    name: Topic
    partitions: _Partitions | UnsetType = UNSET
    replication_factor: Annotated[int, Meta(ge=1, le=100, examples=[1])] | UnsetType = UNSET
    configs: _Configs | UnsetType = UNSET
    validate_only: Annotated[bool, Meta(description="Only say whether it could be made.")] = False


class TopicGrowth(Struct, forbid_unknown_fields=True):
    """How many partitions a topic is to have."""

    partitions: _Partitions


class PartitionView(Struct):
    """A partition."""

    partition: Annotated[int, Meta(examples=[0])]
    leader: Annotated[int | None, Meta(examples=[1])]
    leader_epoch: Annotated[int, Meta(examples=[3])]
    replicas: Annotated[list[int], Meta(examples=[[1]])]
    isr: Annotated[list[int], Meta(examples=[[1]])]
    start_offset: Annotated[int | None, Meta(examples=[0])]
    end_offset: Annotated[int | None, Meta(examples=[42])]


class TopicView(Struct):
    """A topic with its partitions."""

    name: Annotated[str, Meta(examples=["orders"])]
    id: Annotated[str | None, Meta(examples=["0e2f6e0c-64a5-4b7c-9d3b-5c1f6a5d1c7e"])]
    internal: Annotated[bool, Meta(examples=[False])]
    partitions: list[PartitionView]


class TopicSummary(Struct):
    """A topic in a list."""

    name: Annotated[str, Meta(examples=["orders"])]
    partitions: Annotated[int, Meta(examples=[3])]
    replication_factor: Annotated[int, Meta(examples=[1])]
    internal: Annotated[bool, Meta(examples=[False])]


class Topics(Struct):
    """A page of topics, by name."""

    topics: list[TopicSummary]
    next: Next = UNSET


class Valid(Struct):
    """It could be made."""

    valid: bool


class ConfigView(Struct):
    """A setting of a topic."""

    name: Annotated[str, Meta(examples=["retention.ms"])]
    value: Annotated[str | None, Meta(examples=["86400000"])]
    is_own: Annotated[bool, Meta(description="Set for this topic.")]
    read_only: Annotated[bool, Meta(examples=[False])]
    sensitive: Annotated[bool, Meta(examples=[False])]


class Configs(Struct):
    """Settings of a topic."""

    configs: list[ConfigView]


class BrokerView(Struct):
    """A broker."""

    id: Annotated[int, Meta(examples=[1])]
    host: Annotated[str, Meta(examples=["127.0.0.1"])]
    port: Annotated[int, Meta(examples=[9092])]
    rack: Annotated[str | None, Meta(examples=["a"])]


class ClusterView(Struct):
    """The cluster."""

    cluster_id: Annotated[str, Meta(examples=["x3OBcDZJQzqDSyTDfXMm0Q"])]
    controller: Annotated[int | None, Meta(examples=[1])]
    brokers: list[BrokerView]


class TopicsQuery(PageQuery, frozen=True, forbid_unknown_fields=True):
    """Which topics to list."""

    internal: Annotated[bool, Meta(description="Also those whose names begin with __.")] = False


_CONFLICT: Final = {409: Reply("There is a topic of that name.")}


def topic_routes(clients: Clients) -> Routes:
    """The routes that administer topics."""
    routes = Routes(tag="Topics", about="Made, described, changed, removed.")
    _add_collection_routes(routes, clients)
    _add_topic_routes(routes, clients)
    _add_config_routes(routes, clients)
    return routes


def _add_collection_routes(routes: Routes, clients: Clients) -> None:
    @routes.get(
        "/api/v1/topics",
        "List topics.",
        query=TopicsQuery,
        answers={200: Reply("Topics by name.", Topics), **READ_PROBLEMS},
    )
    async def list_topics(request: Request, query: TopicsQuery) -> Answer:
        answer = await clients.of(request).cluster.metadata(None)
        found = [_summary(topic) for topic in answer.topics if topic.error_code is ErrorCode.none]
        wanted = [topic for topic in found if query.internal or not topic.internal]
        return json_answer(Topics(*page(wanted, lambda topic: topic.name, query)))

    @routes.post(
        "/api/v1/topics",
        "Create a topic.",
        about="Returns once every broker knows it. What is left out takes the cluster's defaults.",
        body=Body("The topic.", NewTopic),
        answers={
            201: Reply("It is there.", TopicView, headers={"Location": "Where it is described."}),
            200: Reply("It could be made (validate_only).", Valid),
            **_CONFLICT,
            **READ_PROBLEMS,
        },
    )
    async def create_topic(request: Request, body: NewTopic) -> Answer:
        cluster = clients.of(request).cluster
        configs = {} if body.configs is UNSET else {name: _text(name, value) for name, value in body.configs.items()}
        await admin.create_topic(
            cluster,
            body.name,
            partitions=-1 if body.partitions is UNSET else body.partitions,
            replication_factor=-1 if body.replication_factor is UNSET else body.replication_factor,
            configs={name: text for name, text in configs.items() if text is not None} or None,
            validate_only=body.validate_only,
        )
        if body.validate_only:
            return json_answer(Valid(True))
        await wait_until_known(cluster, body.name)
        location = f"/api/v1/topics/{body.name}".encode()
        return json_answer(await _describe(cluster, body.name), 201, ((b"location", location),))


def _add_topic_routes(routes: Routes, clients: Clients) -> None:
    @routes.get(
        "/api/v1/topics/{topic}",
        "Describe a topic.",
        path=TopicPath,
        answers={200: Reply("The topic with its partitions.", TopicView), **READ_PROBLEMS},
    )
    async def describe_topic(request: Request, path: TopicPath) -> Answer:
        return json_answer(await _describe(clients.of(request).cluster, path.topic))

    @routes.patch(
        "/api/v1/topics/{topic}",
        "Let a topic grow.",
        about="Keys go to other partitions afterwards.",
        path=TopicPath,
        body=Body("How many partitions it is to have.", TopicGrowth),
        answers={200: Reply("The topic as it is now.", TopicView), **READ_PROBLEMS},
    )
    async def grow_topic(request: Request, path: TopicPath, body: TopicGrowth) -> Answer:
        cluster, name = clients.of(request).cluster, path.topic
        await admin.create_partitions(cluster, name, body.partitions)
        await wait_until_known(cluster, name, body.partitions)
        return json_answer(await _describe(cluster, name))

    @routes.delete(
        "/api/v1/topics/{topic}",
        "Remove a topic with all that is in it.",
        path=TopicPath,
        answers={204: Reply("It is gone."), **READ_PROBLEMS},
    )
    async def delete_topic(request: Request, path: TopicPath) -> Answer:
        await admin.delete_topic(clients.of(request).cluster, path.topic)
        return Answer(204)


def _add_config_routes(routes: Routes, clients: Clients) -> None:
    @routes.get(
        "/api/v1/topics/{topic}/configs",
        "Show a topic's settings.",
        path=TopicPath,
        answers={200: Reply("All settings, by Kafka's names.", Configs), **READ_PROBLEMS},
    )
    async def describe_configs(request: Request, path: TopicPath) -> Answer:
        found = await admin.describe_configs(clients.of(request).cluster, path.topic)
        return json_answer(Configs([_config(each) for each in sorted(found, key=lambda c: str(c.name))]))

    @routes.patch(
        "/api/v1/topics/{topic}/configs",
        "Change a topic's settings.",
        about="Null takes a setting back to the cluster's default; what is not named stays. Numbers and true or false "
        "are taken as texts are.",
        path=TopicPath,
        body=Body("Settings by Kafka's names.", _Configs),
        answers={204: Reply("Changed."), **READ_PROBLEMS},
    )
    async def alter_configs(request: Request, path: TopicPath, body: dict[str, _Setting | None]) -> Answer:
        changes = {name: _text(name, value) for name, value in body.items()}
        await admin.alter_configs(clients.of(request).cluster, path.topic, changes)
        return Answer(204)


def _text(name: str, value: _Setting | None) -> str | None:
    """A setting as Kafka has it: texts all."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) > 1e15:
        raise bad_request(f"'{name[:80]}' has more digits than a number keeps; give it as text")
    return None if value is None else str(value)


def cluster_routes(clients: Clients) -> Routes:
    """The route that shows the cluster."""
    routes = Routes(tag="Cluster", about="Who serves.")

    @routes.get(
        "/api/v1/cluster", "Describe the cluster.", answers={200: Reply("Brokers.", ClusterView), **READ_PROBLEMS}
    )
    async def describe_cluster(request: Request) -> Answer:
        found = await admin.describe_cluster(clients.of(request).cluster)
        brokers = [
            BrokerView(int(b.broker_id), b.host, int(b.port), b.rack)
            for b in sorted(found.brokers, key=lambda b: int(b.broker_id))
        ]
        controller = int(found.controller_id)
        return json_answer(ClusterView(found.cluster_id, controller if controller >= 0 else None, brokers))

    return routes


async def wait_until_known(cluster: Cluster, name: str, partitions: int = 1) -> None:
    """Returns once every broker that answers knows the topic with leaders: whoever is asked next can use it."""
    pauses = Pauses(cluster.patience)
    while True:
        if not cluster.brokers:
            await cluster.metadata([])
        views = await asyncio.gather(*(_known_to(cluster, node, name, partitions) for node in list(cluster.brokers)))
        if all(views):
            cluster.forget(name)
            return
        await pauses.after(CodedError(ErrorCode.leader_not_available, f"topic '{name}' has no leaders yet"))


async def _known_to(cluster: Cluster, node: int, name: str, partitions: int) -> bool:
    from headrace.protocol.api import ApiKey

    try:
        answer = await (await cluster.to_node(node)).ask(ApiKey.METADATA, metadata_request([name]))
    except ConnectionLost:
        return True
    image = read_metadata(answer).topics.get(name)
    return image is not None and len(image.led) == image.partitions >= partitions


async def _describe(cluster: Cluster, name: str) -> TopicView:
    topic = await cluster.described(name)
    led = [int(p.partition_index) for p in topic.partitions if int(p.leader_id) >= 0]
    starts = await list_offsets(cluster, name, dict.fromkeys(led, EARLIEST)) if led else {}
    ends = await list_offsets(cluster, name, dict.fromkeys(led, LATEST)) if led else {}
    topic_id = getattr(topic, "topic_id", None)
    partitions = [
        PartitionView(
            partition=int(p.partition_index),
            leader=int(p.leader_id) if int(p.leader_id) >= 0 else None,
            leader_epoch=int(getattr(p, "leader_epoch", -1)),
            replicas=[int(n) for n in p.replica_nodes],
            isr=[int(n) for n in p.isr_nodes],
            start_offset=starts.get(int(p.partition_index), (None,))[0],
            end_offset=ends.get(int(p.partition_index), (None,))[0],
        )
        for p in sorted(topic.partitions, key=lambda p: int(p.partition_index))
    ]
    return TopicView(name, str(topic_id) if topic_id else None, bool(topic.is_internal), partitions)


def _summary(topic: Any) -> TopicSummary:
    replicas = max((len(p.replica_nodes) for p in topic.partitions), default=0)
    is_internal = bool(topic.is_internal) or topic.name.startswith("__")
    return TopicSummary(str(topic.name), len(topic.partitions), replicas, is_internal)


def _config(config: Any) -> ConfigView:
    return ConfigView(
        name=str(config.name),
        value=config.value,
        is_own=int(config.config_source) == admin.OWN,
        read_only=bool(config.read_only),
        sensitive=bool(config.is_sensitive),
    )
