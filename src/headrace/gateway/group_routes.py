"""Consumer groups from outside: listed, described with their lag, offsets committed, moved, removed."""

import asyncio
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from headrace.client.aio import groups
from headrace.client.aio.assignment import decode_assignment
from headrace.client.aio.client import Client
from headrace.client.aio.fetching import list_offsets
from headrace.client.core.groups import CommittedOffset
from headrace.client.core.offsets import EARLIEST, LATEST
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.topic_partition import TopicPartition
from headrace.web.messages import Answer, Request, json_answer
from headrace.web.problem import Problem, bad_request
from headrace.web.routes import Body, Reply, Routes

from .credentials import Clients
from .names import GroupPath, Next, Offset, Partition, PartitionOffset, Timestamp, Topic
from .paging import PageQuery, page
from .read_routes import READ_PROBLEMS, offset_at
from .translate import coded


class OffsetToCommit(Struct, kw_only=True, forbid_unknown_fields=True):
    """The offset of the next message to read."""

    topic: Topic
    partition: Partition
    offset: Offset
    metadata: Annotated[str, Meta(max_length=4096, description="A note.", examples=[""])] = ""


class OffsetsToCommit(Struct, forbid_unknown_fields=True):
    """Offsets of several partitions."""

    offsets: Annotated[list[OffsetToCommit], Meta(min_length=1)]


class Commit(Struct, kw_only=True, forbid_unknown_fields=True):
    """One offset, or several; read at once."""

    topic: Topic | UnsetType = UNSET
    partition: Partition | UnsetType = UNSET
    offset: Offset | UnsetType = UNSET
    metadata: Annotated[str, Meta(max_length=4096)] | UnsetType = UNSET
    offsets: Annotated[list[OffsetToCommit], Meta(min_length=1)] | UnsetType = UNSET


class Committed(Struct):
    """All of it is committed."""

    committed: bool


class Lag(Struct):
    """How far a group is in a partition."""

    topic: Annotated[str, Meta(examples=["orders"])]
    partition: Annotated[int, Meta(examples=[0])]
    offset: Annotated[int | None, Meta(description="Null where nothing is committed.", examples=[41])]
    metadata: Annotated[str, Meta(examples=[""])]
    end_offset: Annotated[int | None, Meta(examples=[42])]
    lag: Annotated[int | None, Meta(examples=[1])]


class GroupLag(Struct):
    """How far a group is."""

    group: Annotated[str, Meta(examples=["billing"])]
    offsets: list[Lag]
    lag: Annotated[int, Meta(description="Of all partitions together.", examples=[1])]


class AssignedPartition(Struct):
    """A partition that a member reads."""

    topic: Annotated[str, Meta(examples=["orders"])]
    partition: Annotated[int, Meta(examples=[0])]


class GroupMember(Struct):
    """A member of a group."""

    member_id: Annotated[str, Meta(examples=["app-1-6ae7"])]
    instance_id: Annotated[str | None, Meta(examples=["app-1"])]
    client_id: Annotated[str, Meta(examples=["app"])]
    host: Annotated[str, Meta(examples=["/127.0.0.1"])]
    partitions: list[AssignedPartition]


class GroupView(Struct):
    """A group with its members."""

    group: Annotated[str, Meta(examples=["billing"])]
    state: Annotated[str, Meta(examples=["Stable"])]
    protocol: Annotated[str, Meta(examples=["range"])]
    members: list[GroupMember]


class GroupSummary(Struct):
    """A group in a list."""

    group: Annotated[str, Meta(examples=["billing"])]
    state: Annotated[str, Meta(examples=["Stable"])]
    type: Annotated[str, Meta(examples=["classic"])]


class Groups(Struct):
    """A page of groups, by name."""

    groups: list[GroupSummary]
    next: Next = UNSET


class Reset(Struct, kw_only=True, forbid_unknown_fields=True):
    """Where a group is to go on."""

    topic: Topic
    partitions: Annotated[list[Partition], Meta(min_length=1)] | UnsetType = UNSET
    to: Annotated[
        Literal["earliest", "latest", "offset", "timestamp", "shift"],
        Meta(description="The last three need the member of that name."),
    ]
    offset: Offset | UnsetType = UNSET
    timestamp: Timestamp | UnsetType = UNSET
    shift: Annotated[int, Meta(ge=-(2**62), le=2**62, examples=[-10])] | UnsetType = UNSET
    dry_run: bool = False


class ResetOffsets(Struct):
    """Where a group is now, or would be."""

    group: Annotated[str, Meta(examples=["billing"])]
    offsets: list[PartitionOffset]


class OffsetsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """What to show of a group's offsets."""

    topic: Annotated[Topic, Meta(description="Only of this topic, with every partition of it.")] | None = None


_JSON: Final = "application/json"
_CONFLICT: Final = {409: Reply("The group has members; they commit themselves.")}
_RESET: Final = {"topic": "orders", "to": "shift", "shift": -10}
COMMIT: Final = (Commit, OffsetsToCommit)
COMMIT_EXAMPLE: Final = {"topic": "orders", "partition": 0, "offset": 41}


def group_routes(clients: Clients) -> Routes:
    """The routes that administer groups."""
    routes = Routes(tag="Consumer groups", about="How far each is, and moving it.")

    @routes.get(
        "/api/v1/consumer-groups",
        "List groups.",
        query=PageQuery,
        answers={200: Reply("Groups by name.", Groups), **READ_PROBLEMS},
    )
    async def list_groups(request: Request, query: PageQuery) -> Answer:
        found = [
            GroupSummary(str(g.group_id), getattr(g, "group_state", ""), getattr(g, "group_type", "").lower())
            for g in await groups.list_groups(clients.of(request).cluster)
        ]
        return json_answer(Groups(*page(found, lambda group: group.group, query)))

    @routes.get(
        "/api/v1/consumer-groups/{group}",
        "Describe a group.",
        path=GroupPath,
        answers={200: Reply("The group with its members.", GroupView), **READ_PROBLEMS},
    )
    async def describe_group(request: Request, path: GroupPath) -> Answer:
        described = await groups.describe(clients.of(request).cluster, path.group)
        if described.group_state == "Dead":
            raise _unknown(path.group)
        return json_answer(_described(described))

    @routes.delete(
        "/api/v1/consumer-groups/{group}",
        "Remove a group that has no members, with its offsets.",
        path=GroupPath,
        answers={204: Reply("It is gone."), **_CONFLICT, **READ_PROBLEMS},
    )
    async def delete_group(request: Request, path: GroupPath) -> Answer:
        await groups.delete_group(clients.of(request).cluster, path.group)
        return Answer(204)

    _add_offset_routes(routes, clients)
    return routes


def _add_offset_routes(routes: Routes, clients: Clients) -> None:
    @routes.get(
        "/api/v1/consumer-groups/{group}/offsets",
        "Show what a group has committed, and its lag.",
        path=GroupPath,
        query=OffsetsQuery,
        answers={200: Reply("Offsets; null where nothing is committed.", GroupLag), **READ_PROBLEMS},
    )
    async def get_offsets(request: Request, path: GroupPath, query: OffsetsQuery) -> Answer:
        return json_answer(await lag(clients.of(request), path.group, query.topic))

    @routes.post(
        "/api/v1/consumer-groups/{group}/offsets",
        "Commit offsets for a group that has no members.",
        about="An offset is that of the next message to read. One, or several under `offsets`.",
        path=GroupPath,
        body=Body("What to commit.", Commit, {"application/json": COMMIT}, examples={_JSON: COMMIT_EXAMPLE}),
        answers={200: Reply("Committed.", Committed), **_CONFLICT, **READ_PROBLEMS},
    )
    async def commit_offsets(request: Request, path: GroupPath, body: Commit) -> Answer:
        refuse(await groups.commit(clients.of(request).cluster, path.group, offsets_of(body)))
        return json_answer(Committed(True))

    @routes.post(
        "/api/v1/consumer-groups/{group}/reset",
        "Move a group that has no members.",
        path=GroupPath,
        body=Body("Where to.", Reset, examples={_JSON: _RESET}),
        answers={200: Reply("Where it is now, or would be (dry_run).", ResetOffsets), **_CONFLICT, **READ_PROBLEMS},
    )
    async def reset_offsets(request: Request, path: GroupPath, body: Reset) -> Answer:
        client, group = clients.of(request), path.group
        described = await groups.describe(client.cluster, group)
        if described.members:
            raise coded(ErrorCode.non_empty_group, f"group '{group}' has members; stop them first")
        offsets = await _targets(client, group, body)
        if not body.dry_run:
            refuse(await groups.commit(client.cluster, group, offsets))
        return json_answer(
            ResetOffsets(group, [PartitionOffset(t, p, c.offset) for (t, p), c in sorted(offsets.items())])
        )


def offsets_of(commit: Commit) -> dict[TopicPartition, CommittedOffset]:
    """What a body commits."""
    one = (commit.topic, commit.partition, commit.offset)
    if commit.offsets is not UNSET:
        if any(each is not UNSET for each in (*one, commit.metadata)):
            raise bad_request("either one offset is committed or those of a list, not both")
        return to_commit(commit.offsets)
    topic, partition, offset = one
    if topic is UNSET or partition is UNSET or offset is UNSET:
        raise bad_request("a commit has topic, partition and offset, or a list of such as offsets")
    metadata = "" if commit.metadata is UNSET else commit.metadata
    return {TopicPartition(topic, partition): CommittedOffset(offset, metadata)}


def to_commit(entries: Iterable[OffsetToCommit]) -> dict[TopicPartition, CommittedOffset]:
    """Offsets by partition."""
    return {TopicPartition(each.topic, each.partition): CommittedOffset(each.offset, each.metadata) for each in entries}


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


def _described(group: Any) -> GroupView:
    members = [
        GroupMember(
            member_id=m.member_id,
            instance_id=getattr(m, "group_instance_id", None),
            client_id=m.client_id,
            host=m.client_host,
            partitions=[
                AssignedPartition(topic, partition)
                for topic, some in sorted(decode_assignment(bytes(m.member_assignment)).items())
                for partition in some
            ],
        )
        for m in group.members
    ]
    return GroupView(group.group_id, group.group_state, group.protocol_data, members)


async def lag(client: Client, group: str, topic: str | None) -> GroupLag:
    """What a group has committed and how far that is from the ends."""
    wanted = None
    if topic is not None:
        wanted = [TopicPartition(topic, index) for index in range((await client.cluster.topic(topic)).partitions)]
    found = await groups.committed(client.cluster, group, wanted)
    places = sorted(set(found) | set(wanted or ()))
    ends = await _ends(client, places)
    entries = []
    for place in places:
        committed, end = found.get(place), ends.get(place)
        offset, metadata = (None, "") if committed is None else (committed.offset, committed.metadata)
        behind = None if offset is None or end is None else max(end - offset, 0)
        entries.append(Lag(place.topic, place.partition, offset, metadata, end, behind))
    return GroupLag(group, entries, sum(each.lag or 0 for each in entries))


async def queue_lag(client: Client, group: str, topic: str) -> GroupLag:
    """Where a share group goes on in a topic, and how many messages it has not done with."""
    partitions = list(range((await client.cluster.topic(topic)).partitions))
    asked = {"groups": [{"group_id": group, "topics": [{"topic_name": topic, "partitions": partitions}]}]}
    answer = await client.cluster.ask_coordinator(group, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, asked)
    entries = []
    for found in answer.groups[0].topics:
        for part in found.partitions:
            offset = None if part.start_offset < 0 else int(part.start_offset)
            behind = int(getattr(part, "lag", -1))
            entries.append(Lag(topic, int(part.partition_index), offset, "", None, behind if behind >= 0 else None))
    return GroupLag(group, sorted(entries, key=lambda each: each.partition), sum(each.lag or 0 for each in entries))


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


async def _targets(client: Client, group: str, reset: Reset) -> dict[TopicPartition, CommittedOffset]:
    """Where each partition is to go; never outside what there is."""
    topic, to = reset.topic, reset.to
    if getattr(reset, to, None) is UNSET:
        raise bad_request(f"a reset to '{to}' needs '{to}'")
    count = (await client.cluster.topic(topic)).partitions
    partitions = list(range(count)) if reset.partitions is UNSET else reset.partitions
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
        offset = {"earliest": start, "latest": end}.get(to, end)
        if to == "offset" and reset.offset is not UNSET:
            offset = reset.offset
        elif to == "shift" and reset.shift is not UNSET:
            offset = now + reset.shift
        elif to == "timestamp" and reset.timestamp is not UNSET:
            offset = await offset_at(client, topic, partition, reset.timestamp)
        targets[topic_partition] = CommittedOffset(min(max(offset, start), end))
    return targets
