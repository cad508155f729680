"""Topics and the cluster: made, listed, described, changed, removed."""

import asyncio
from typing import Any, Final

from headrace.client.aio import admin
from headrace.client.aio.cluster import Cluster
from headrace.client.aio.fetching import list_offsets
from headrace.client.aio.retrying import Pauses
from headrace.client.core.errors import ConnectionLost
from headrace.client.core.metadata import metadata_request, read_metadata
from headrace.client.core.offsets import EARLIEST, LATEST
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.web.messages import Answer, Request, json_answer
from headrace.web.routes import Body, Query, Reply, Routes
from headrace.web.shapes import Array, Boolean, Integer, Mapped, Nullable, Object, Text

from .credentials import Clients
from .names import TOPIC
from .rawjson import loads
from .read_routes import READ_PROBLEMS

_PARTITIONS: Final = Integer(1, 10_000)
_CONFIGS: Final = Mapped(Text(), most=100)
_CREATE: Final = Object(
    {
        "name": TOPIC,
        "partitions": _PARTITIONS,
        "replication_factor": Integer(1, 100),
        "configs": _CONFIGS,
        "validate_only": Boolean(),
    },
    required=("name",),
)
_GROW: Final = Object({"partitions": _PARTITIONS}, required=("partitions",))
_CHANGES: Final = Mapped(Nullable(Text()), most=100)
_PARTITION_VIEW: Final = Object(
    {
        "partition": Integer(),
        "leader": Nullable(Integer()),
        "leader_epoch": Integer(),
        "replicas": Array(Integer()),
        "isr": Array(Integer()),
        "start_offset": Nullable(Integer()),
        "end_offset": Nullable(Integer()),
    }
)
_TOPIC_VIEW: Final = Object(
    {"name": Text(), "id": Nullable(Text()), "internal": Boolean(), "partitions": Array(_PARTITION_VIEW)}
)
_SUMMARY: Final = Object(
    {"name": Text(), "partitions": Integer(), "replication_factor": Integer(), "internal": Boolean()}
)
_CONFIG: Final = Object(
    {"name": Text(), "value": Nullable(Text()), "is_own": Boolean(), "read_only": Boolean(), "sensitive": Boolean()}
)
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
        query={"internal": Query(Boolean(), False, "Also those whose names begin with __.")},
        answers={200: Reply("Topics by name.", Object({"topics": Array(_SUMMARY)})), **READ_PROBLEMS},
    )
    async def list_topics(request: Request) -> Answer:
        answer = await clients.of(request).cluster.metadata(None)
        found = [_summary(topic) for topic in answer.topics if topic.error_code is ErrorCode.none]
        shown = [topic for topic in found if request.query["internal"] or not topic["internal"]]
        return json_answer({"topics": sorted(shown, key=lambda topic: str(topic["name"]))})

    @routes.post(
        "/api/v1/topics",
        "Create a topic.",
        about="Returns once every broker knows it. What is left out takes the cluster's defaults.",
        body=Body("The topic.", {"application/json": _CREATE}),
        answers={
            201: Reply("It is there.", _TOPIC_VIEW, headers={"Location": "Where it is described."}),
            200: Reply("It could be made (validate_only).", Object({"valid": Boolean()})),
            **_CONFLICT,
            **READ_PROBLEMS,
        },
    )
    async def create_topic(request: Request) -> Answer:
        wanted = _CREATE.read(loads(await request.body()), "the topic")
        cluster = clients.of(request).cluster
        name, validate_only = wanted["name"], wanted.get("validate_only", False)
        await admin.create_topic(
            cluster,
            name,
            partitions=wanted.get("partitions", -1),
            replication_factor=wanted.get("replication_factor", -1),
            configs=wanted.get("configs"),
            validate_only=validate_only,
        )
        if validate_only:
            return json_answer({"valid": True})
        await wait_until_known(cluster, name)
        return json_answer(await _describe(cluster, name), 201, ((b"location", f"/api/v1/topics/{name}".encode()),))


def _add_topic_routes(routes: Routes, clients: Clients) -> None:
    one = {"topic": TOPIC}

    @routes.get(
        "/api/v1/topics/{topic}",
        "Describe a topic.",
        params=one,
        answers={200: Reply("The topic with its partitions.", _TOPIC_VIEW), **READ_PROBLEMS},
    )
    async def describe_topic(request: Request) -> Answer:
        return json_answer(await _describe(clients.of(request).cluster, request.params["topic"]))

    @routes.patch(
        "/api/v1/topics/{topic}",
        "Let a topic grow.",
        about="Keys go to other partitions afterwards.",
        params=one,
        body=Body("How many partitions it is to have.", {"application/json": _GROW}),
        answers={200: Reply("The topic as it is now.", _TOPIC_VIEW), **READ_PROBLEMS},
    )
    async def grow_topic(request: Request) -> Answer:
        body = _GROW.read(loads(await request.body()), "the change")
        cluster, name = clients.of(request).cluster, request.params["topic"]
        await admin.create_partitions(cluster, name, body["partitions"])
        await wait_until_known(cluster, name, body["partitions"])
        return json_answer(await _describe(cluster, name))

    @routes.delete(
        "/api/v1/topics/{topic}",
        "Remove a topic with all that is in it.",
        params=one,
        answers={204: Reply("It is gone."), **READ_PROBLEMS},
    )
    async def delete_topic(request: Request) -> Answer:
        await admin.delete_topic(clients.of(request).cluster, request.params["topic"])
        return Answer(204)


def _add_config_routes(routes: Routes, clients: Clients) -> None:
    one = {"topic": TOPIC}
    configs = Object({"configs": Array(_CONFIG)})

    @routes.get(
        "/api/v1/topics/{topic}/configs",
        "Show a topic's settings.",
        params=one,
        answers={200: Reply("All settings, by Kafka's names.", configs), **READ_PROBLEMS},
    )
    async def describe_configs(request: Request) -> Answer:
        found = await admin.describe_configs(clients.of(request).cluster, request.params["topic"])
        return json_answer({"configs": [_config(each) for each in sorted(found, key=lambda c: str(c.name))]})

    @routes.patch(
        "/api/v1/topics/{topic}/configs",
        "Change a topic's settings.",
        about="Null takes a setting back to the cluster's default; what is not named stays.",
        params=one,
        body=Body("Settings by Kafka's names.", {"application/json": _CHANGES}),
        answers={204: Reply("Changed."), **READ_PROBLEMS},
    )
    async def alter_configs(request: Request) -> Answer:
        changes = _CHANGES.read(loads(await request.body()), "the settings")
        await admin.alter_configs(clients.of(request).cluster, request.params["topic"], changes)
        return Answer(204)


def cluster_routes(clients: Clients) -> Routes:
    """The route that shows the cluster."""
    routes = Routes(tag="Cluster", about="Who serves.")
    broker = Object({"id": Integer(), "host": Text(), "port": Integer(), "rack": Nullable(Text())})
    view = Object({"cluster_id": Text(), "controller": Nullable(Integer()), "brokers": Array(broker)})

    @routes.get("/api/v1/cluster", "Describe the cluster.", answers={200: Reply("Brokers.", view), **READ_PROBLEMS})
    async def describe_cluster(request: Request) -> Answer:
        found = await admin.describe_cluster(clients.of(request).cluster)
        brokers = [
            {"id": int(b.broker_id), "host": b.host, "port": int(b.port), "rack": b.rack}
            for b in sorted(found.brokers, key=lambda b: int(b.broker_id))
        ]
        controller = int(found.controller_id)
        return json_answer(
            {"cluster_id": found.cluster_id, "controller": controller if controller >= 0 else None, "brokers": brokers}
        )

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


async def _describe(cluster: Cluster, name: str) -> dict[str, Any]:
    topic = await cluster.described(name)
    led = [int(p.partition_index) for p in topic.partitions if int(p.leader_id) >= 0]
    starts = await list_offsets(cluster, name, dict.fromkeys(led, EARLIEST)) if led else {}
    ends = await list_offsets(cluster, name, dict.fromkeys(led, LATEST)) if led else {}
    topic_id = getattr(topic, "topic_id", None)
    return {
        "name": name,
        "id": str(topic_id) if topic_id else None,
        "internal": bool(topic.is_internal),
        "partitions": [
            {
                "partition": int(p.partition_index),
                "leader": int(p.leader_id) if int(p.leader_id) >= 0 else None,
                "leader_epoch": int(getattr(p, "leader_epoch", -1)),
                "replicas": [int(n) for n in p.replica_nodes],
                "isr": [int(n) for n in p.isr_nodes],
                "start_offset": starts.get(int(p.partition_index), (None,))[0],
                "end_offset": ends.get(int(p.partition_index), (None,))[0],
            }
            for p in sorted(topic.partitions, key=lambda p: int(p.partition_index))
        ],
    }


def _summary(topic: Any) -> dict[str, Any]:
    return {
        "name": topic.name,
        "partitions": len(topic.partitions),
        "replication_factor": max((len(p.replica_nodes) for p in topic.partitions), default=0),
        "internal": bool(topic.is_internal) or topic.name.startswith("__"),
    }


def _config(config: Any) -> dict[str, Any]:
    return {
        "name": config.name,
        "value": config.value,
        "is_own": int(config.config_source) == admin.OWN,
        "read_only": bool(config.read_only),
        "sensitive": bool(config.is_sensitive),
    }
