"""Consumer groups from outside: listed, described with their lag, offsets committed, moved, removed."""

import asyncio
from typing import Any, Final

from headrace.client.aio import groups
from headrace.client.aio.assignment import decode_assignment
from headrace.client.aio.client import Client
from headrace.client.aio.fetching import list_offsets
from headrace.client.core.groups import CommittedOffset
from headrace.client.core.offsets import EARLIEST, LATEST
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.topic_partition import TopicPartition
from headrace.web.messages import Answer, Request, json_answer
from headrace.web.problem import Problem, bad_request
from headrace.web.routes import Body, Query, Reply, Routes
from headrace.web.shapes import Array, Boolean, Choice, Integer, Nullable, Object, Text

from .credentials import Clients
from .names import GROUP, OFFSET, PARTITION, TIMESTAMP, TOPIC
from .rawjson import loads
from .read_routes import READ_PROBLEMS, offset_at
from .translate import coded

_ENTRY: Final = Object(
    {"topic": TOPIC, "partition": PARTITION, "offset": OFFSET, "metadata": Text(most=4096)},
    required=("topic", "partition", "offset"),
)
COMMIT: Final = Object({"offsets": Array(_ENTRY, least=1)}, required=("offsets",))
_LAG: Final = Object(
    {
        "topic": Text(),
        "partition": Integer(),
        "offset": Nullable(Integer()),
        "metadata": Text(),
        "end_offset": Nullable(Integer()),
        "lag": Nullable(Integer()),
    }
)
_OFFSETS: Final = Object({"group": Text(), "offsets": Array(_LAG), "lag": Integer()})
_MEMBER: Final = Object(
    {
        "member_id": Text(),
        "instance_id": Nullable(Text()),
        "client_id": Text(),
        "host": Text(),
        "partitions": Array(Object({"topic": Text(), "partition": Integer()})),
    }
)
_GROUP: Final = Object({"group": Text(), "state": Text(), "protocol": Text(), "members": Array(_MEMBER)})
_RESET: Final = Object(
    {
        "topic": TOPIC,
        "partitions": Array(PARTITION, least=1),
        "to": Choice("earliest", "latest", "offset", "timestamp", "shift"),
        "offset": OFFSET,
        "timestamp": TIMESTAMP,
        "shift": Integer(),
        "dry_run": Boolean(),
    },
    required=("topic", "to"),
)
_NEEDED: Final = {"offset": "offset", "timestamp": "timestamp", "shift": "shift"}
_CONFLICT: Final = {409: Reply("The group has members; they commit themselves.")}


def group_routes(clients: Clients) -> Routes:
    """The routes that administer groups."""
    routes = Routes(tag="Consumer groups", about="How far each is, and moving it.")
    one = {"group": GROUP}
    listed = Object({"groups": Array(Object({"group": Text(), "state": Text(), "type": Text()}))})

    @routes.get("/api/v1/consumer-groups", "List groups.", answers={200: Reply("Groups.", listed), **READ_PROBLEMS})
    async def list_groups(request: Request) -> Answer:
        listed_groups = await groups.list_groups(clients.of(request).cluster)
        shown = [
            {"group": g.group_id, "state": getattr(g, "group_state", ""), "type": getattr(g, "group_type", "").lower()}
            for g in listed_groups
        ]
        return json_answer({"groups": shown})

    @routes.get(
        "/api/v1/consumer-groups/{group}",
        "Describe a group.",
        params=one,
        answers={200: Reply("The group with its members.", _GROUP), **READ_PROBLEMS},
    )
    async def describe_group(request: Request) -> Answer:
        described = await groups.describe(clients.of(request).cluster, request.params["group"])
        if described.group_state == "Dead":
            raise _unknown(request.params["group"])
        return json_answer(_described(described))

    @routes.delete(
        "/api/v1/consumer-groups/{group}",
        "Remove a group that has no members, with its offsets.",
        params=one,
        answers={204: Reply("It is gone."), **_CONFLICT, **READ_PROBLEMS},
    )
    async def delete_group(request: Request) -> Answer:
        await groups.delete_group(clients.of(request).cluster, request.params["group"])
        return Answer(204)

    _add_offset_routes(routes, clients)
    return routes


def _add_offset_routes(routes: Routes, clients: Clients) -> None:
    one = {"group": GROUP}
    committed = Object({"group": Text(), "offsets": Array(Object({}, open=True))})

    @routes.get(
        "/api/v1/consumer-groups/{group}/offsets",
        "Show what a group has committed, and its lag.",
        params=one,
        query={"topic": Query(TOPIC, None, "Only of this topic, with every partition of it.")},
        answers={200: Reply("Offsets; null where nothing is committed.", _OFFSETS), **READ_PROBLEMS},
    )
    async def get_offsets(request: Request) -> Answer:
        client = clients.of(request)
        return json_answer(await lag(client, request.params["group"], request.query["topic"]))

    @routes.post(
        "/api/v1/consumer-groups/{group}/offsets",
        "Commit offsets for a group that has no members.",
        about="An offset is that of the next record to read.",
        params=one,
        body=Body("What to commit.", {"application/json": COMMIT}),
        answers={200: Reply("Committed.", committed), **_CONFLICT, **READ_PROBLEMS},
    )
    async def commit_offsets(request: Request) -> Answer:
        read = COMMIT.read(loads(await request.body()), "the commit")
        client, group = clients.of(request), request.params["group"]
        offsets = offsets_of(read["offsets"])
        refuse(await groups.commit(client.cluster, group, offsets))
        return json_answer({"group": group, "offsets": read["offsets"]})

    @routes.post(
        "/api/v1/consumer-groups/{group}/reset",
        "Move a group that has no members.",
        params=one,
        body=Body("Where to.", {"application/json": _RESET}),
        answers={200: Reply("Where it is now, or would be (dry_run).", committed), **_CONFLICT, **READ_PROBLEMS},
    )
    async def reset_offsets(request: Request) -> Answer:
        body = _RESET.read(loads(await request.body()), "the reset")
        client, group = clients.of(request), request.params["group"]
        described = await groups.describe(client.cluster, group)
        if described.members:
            raise coded(ErrorCode.non_empty_group, f"group '{group}' has members; stop them first")
        offsets = await _targets(client, group, body)
        if not body.get("dry_run"):
            refuse(await groups.commit(client.cluster, group, offsets))
        shown = [{"topic": t, "partition": p, "offset": c.offset} for (t, p), c in sorted(offsets.items())]
        return json_answer({"group": group, "offsets": shown})


def offsets_of(entries: list[dict[str, Any]]) -> dict[TopicPartition, CommittedOffset]:
    """What a body commits."""
    return {
        TopicPartition(e["topic"], e["partition"]): CommittedOffset(e["offset"], e.get("metadata", "")) for e in entries
    }


def refuse(refused: dict[TopicPartition, ErrorCode]) -> None:
    """Raise the problem of the first refused partition, which lists all of them."""
    for (topic, partition), code in refused.items():
        problem = coded(code, f"partition {partition} of topic '{topic}': {code.name.replace('_', ' ')}")
        problem.more["errors"] = [
            {"topic": t, "partition": p, "kafka_error": c.name.upper()} for (t, p), c in refused.items()
        ]
        raise problem


def _unknown(group: str) -> Problem:
    return Problem(404, f"there is no group '{group}'", code="unknown-group")


def _described(group: Any) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "state": group.group_state,
        "protocol": group.protocol_data,
        "members": [
            {
                "member_id": m.member_id,
                "instance_id": getattr(m, "group_instance_id", None),
                "client_id": m.client_id,
                "host": m.client_host,
                "partitions": [
                    {"topic": topic, "partition": partition}
                    for topic, some in sorted(decode_assignment(bytes(m.member_assignment)).items())
                    for partition in some
                ],
            }
            for m in group.members
        ],
    }


async def lag(client: Client, group: str, topic: str | None) -> dict[str, Any]:
    """What a group has committed and how far that is from the ends."""
    wanted = None
    if topic is not None:
        wanted = [TopicPartition(topic, index) for index in range((await client.cluster.topic(topic)).partitions)]
    found = await groups.committed(client.cluster, group, wanted)
    places = sorted(set(found) | set(wanted or ()))
    ends = await _ends(client, places)
    entries: list[dict[str, Any]] = []
    for place in places:
        offset, end = found.get(place), ends.get(place)
        behind = None if offset is None or end is None else max(end - offset.offset, 0)
        entries.append(
            {
                "topic": place.topic,
                "partition": place.partition,
                "offset": None if offset is None else offset.offset,
                "metadata": "" if offset is None else offset.metadata,
                "end_offset": end,
                "lag": behind,
            }
        )
    return {"group": group, "offsets": entries, "lag": sum(int(e["lag"] or 0) for e in entries)}


async def _ends(client: Client, places: list[TopicPartition]) -> dict[TopicPartition, int]:
    """Where partitions end; those of topics that are gone are left out."""

    async def of(topic: str) -> dict[TopicPartition, int]:
        partitions = [p for t, p in places if t == topic]
        try:
            found = await list_offsets(client.cluster, topic, dict.fromkeys(partitions, LATEST))
        except CodedError:
            return {}
        return {TopicPartition(topic, partition): offset for partition, (offset, _) in found.items()}

    parts = await asyncio.gather(*(of(topic) for topic in {t for t, _ in places}))
    return {place: end for part in parts for place, end in part.items()}


async def _targets(client: Client, group: str, reset: dict[str, Any]) -> dict[TopicPartition, CommittedOffset]:
    """Where each partition is to go; never outside what there is."""
    topic, to = reset["topic"], reset["to"]
    if to in _NEEDED and _NEEDED[to] not in reset:
        raise bad_request(f"a reset to '{to}' needs '{_NEEDED[to]}'")
    count = (await client.cluster.topic(topic)).partitions
    partitions = reset.get("partitions", list(range(count)))
    if max(partitions) >= count:
        raise Problem(404, f"topic '{topic}' has partitions 0 to {count - 1}", code="unknown-partition")
    starts = await list_offsets(client.cluster, topic, dict.fromkeys(partitions, EARLIEST))
    ends = await list_offsets(client.cluster, topic, dict.fromkeys(partitions, LATEST))
    held = await groups.committed(client.cluster, group, [TopicPartition(topic, p) for p in partitions])
    targets = {}
    for partition in partitions:
        topic_partition = TopicPartition(topic, partition)
        start, end = starts[partition][0], ends[partition][0]
        now = held[topic_partition].offset if topic_partition in held else end
        offset = {
            "earliest": start,
            "latest": end,
            "offset": reset.get("offset", 0),
            "shift": now + reset.get("shift", 0),
            "timestamp": end,
        }[to]
        if to == "timestamp":
            offset = await offset_at(client, topic, partition, reset["timestamp"])
        targets[topic_partition] = CommittedOffset(min(max(offset, start), end))
    return targets
