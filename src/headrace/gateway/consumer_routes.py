"""Group consumption over HTTP: a member is made, polled, commits, goes."""

from collections.abc import Callable
from typing import Annotated, Final, Literal
from urllib.parse import quote

from msgspec import Meta, Struct

from headrace.client.aio.member import MemberSettings
from headrace.protocol.topic_partition import TopicPartition
from headrace.web.messages import Answer, Request, json_answer
from headrace.web.problem import Problem
from headrace.web.routes import Body, Reply, Routes

from .consumers import JOIN_SECONDS, Consumer, Consumers
from .credentials import Clients
from .group_routes import COMMIT, COMMIT_EXAMPLE, Commit, offsets_of, refuse
from .messages import Format, Message, encode, shown
from .names import GroupPath, Offset, Partition, PartitionOffset, Topic, require_messages
from .read_routes import READ_PROBLEMS, UNLIKE, Many, Wait


class NewMember(Struct, forbid_unknown_fields=True):
    """What a member reads, and how."""

    topics: Annotated[list[Topic], Meta(min_length=1, max_length=100)]
    auto_offset_reset: Annotated[
        Literal["earliest", "latest"], Meta(description="Where to begin in partitions without a committed offset.")
    ] = "latest"
    auto_commit: Annotated[bool, Meta(description="Each poll commits what the one before it gave.")] = False
    session_timeout_ms: Annotated[int, Meta(ge=6000, le=300_000)] = 30_000
    idle_timeout_ms: Annotated[int, Meta(ge=1000, le=3_600_000)] = 300_000


class Position(Struct, forbid_unknown_fields=True):
    """The next offset to read of a partition."""

    topic: Topic
    partition: Partition
    offset: Offset


class Positions(Struct, forbid_unknown_fields=True):
    """Where to go on."""

    offsets: Annotated[list[Position], Meta(min_length=1)]


class MemberView(Struct):
    """A member of a group."""

    group: Annotated[str, Meta(examples=["billing"])]
    member_id: Annotated[str, Meta(examples=["qJ8cXzQ0yT1bVb5m6H1x2A"])]
    base_uri: Annotated[str, Meta(description="Where it is to be asked.", examples=["http://127.0.0.1:8080/api/v1/…"])]
    assignment: list[PartitionOffset]


class MemberPath(GroupPath, frozen=True):
    """A path with a member."""

    member: Annotated[str, Meta(min_length=1, max_length=100, examples=["qJ8cXzQ0yT1bVb5m6H1x2A"])]


class PollQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """What to poll."""

    limit: Many = 100
    wait_ms: Wait = 0
    format: Format = "base64"


class Polled(Struct):
    """Messages of a poll."""

    messages: list[Message]


_CONFLICT: Final = {409: Reply("The group was shared out anew, or this member is in use.")}
_JSON: Final = "application/json"
_PATH: Final = "/api/v1/consumer-groups/{group}/members"

Find = Callable[[Request, MemberPath], Consumer]
"""The member that a path names, of whoever asks."""


def consumer_routes(clients: Clients, consumers: Consumers[Consumer]) -> Routes:
    """The routes of members."""
    routes = Routes(
        tag="Group consumption",
        about="A member of a consumer group lives in the gateway that made it: go on at its base_uri.",
    )

    def find(request: Request, path: MemberPath) -> Consumer:
        return consumers.get(clients.of(request), path.group, path.member)

    _add_joining(routes, clients, consumers)
    _add_member_routes(routes, clients, consumers, find)
    _add_position_routes(routes, find)
    return routes


def _add_joining(routes: Routes, clients: Clients, consumers: Consumers[Consumer]) -> None:
    @routes.post(
        _PATH,
        "Join a group.",
        about="The gateway keeps the membership alive for idle_timeout_ms (5 minutes) after each poll.",
        path=GroupPath,
        body=Body("What to read.", NewMember),
        answers={
            201: Reply("A member.", MemberView, headers={"Location": "Where it is."}),
            **_CONFLICT,
            **READ_PROBLEMS,
        },
    )
    async def create_member(request: Request, path: GroupPath, body: NewMember) -> Answer:
        client = clients.of(request)
        for topic in body.topics:
            require_messages(topic)
            await client.cluster.topic(topic)
        settings = _member_settings(path.group, body)
        consumer = consumers.add(
            lambda: Consumer(
                client,
                settings,
                idle_ms=body.idle_timeout_ms,
                auto_commit=body.auto_commit,
            ),
            client,
        )
        try:
            await consumer.joined(JOIN_SECONDS)
        except BaseException:
            await consumers.remove(consumer)
            raise
        view = _view(request, clients.settings.advertise, consumer)
        return json_answer(view, 201, ((b"location", view.base_uri.encode("ascii", "replace")),))


def _add_member_routes(routes: Routes, clients: Clients, consumers: Consumers[Consumer], find: Find) -> None:
    @routes.get(
        f"{_PATH}/{{member}}",
        "Show what a member reads.",
        path=MemberPath,
        answers={200: Reply("The member.", MemberView), **READ_PROBLEMS},
    )
    async def describe_member(request: Request, path: MemberPath) -> Answer:
        return json_answer(_view(request, clients.settings.advertise, find(request, path)))

    @routes.get(
        f"{_PATH}/{{member}}/messages",
        "Poll.",
        about="Messages since the last poll. Those not committed come again when the member is gone.",
        path=MemberPath,
        query=PollQuery,
        answers={
            200: Reply("Messages, perhaps none.", Polled),
            **UNLIKE,
            **_CONFLICT,
            **READ_PROBLEMS,
        },
    )
    async def poll_messages(request: Request, path: MemberPath, query: PollQuery) -> Answer:
        consumer = find(request, path)
        found = await consumer.poll(query.limit, query.wait_ms)
        try:
            messages = [shown(record, query.format, topic, partition) for topic, partition, record in found]
        except Problem:
            consumer.give_back(found)
            raise
        return Answer(200, encode(Polled(messages)))

    @routes.delete(
        f"{_PATH}/{{member}}", "Leave the group.", path=MemberPath, answers={204: Reply("It is gone."), **READ_PROBLEMS}
    )
    async def delete_member(request: Request, path: MemberPath) -> Answer:
        await consumers.remove(find(request, path))
        return Answer(204)


def _add_position_routes(routes: Routes, find: Find) -> None:
    @routes.post(
        f"{_PATH}/{{member}}/offsets",
        "Commit.",
        about="Without a body: all that was polled.",
        path=MemberPath,
        body=Body("What to commit.", Commit, {_JSON: COMMIT}, required=False, examples={_JSON: COMMIT_EXAMPLE}),
        answers={204: Reply("Committed."), **_CONFLICT, **READ_PROBLEMS},
    )
    async def commit_member(request: Request, path: MemberPath, body: Commit | None) -> Answer:
        refuse(await find(request, path).commit(None if body is None else offsets_of(body)))
        return Answer(204)

    @routes.post(
        f"{_PATH}/{{member}}/positions",
        "Go on elsewhere.",
        path=MemberPath,
        body=Body("The next offset to read of each partition.", Positions),
        answers={204: Reply("Moved."), **_CONFLICT, **READ_PROBLEMS},
    )
    async def seek_member(request: Request, path: MemberPath, body: Positions) -> Answer:
        find(request, path).seek({TopicPartition(e.topic, e.partition): e.offset for e in body.offsets})
        return Answer(204)


def _member_settings(group: str, body: NewMember) -> MemberSettings:
    return MemberSettings(
        group=group, topics=tuple(body.topics), session_ms=body.session_timeout_ms, reset=body.auto_offset_reset
    )


def gateway_url(request: Request, advertise: str) -> str:
    """Where this very gateway is reached."""
    return advertise or f"{request.scope.get('scheme', 'http')}://{request.header(b'host') or 'localhost'}"


def _view(request: Request, advertise: str, consumer: Consumer) -> MemberView:
    path = f"/api/v1/consumer-groups/{quote(consumer.settings.group, safe='')}/members/{consumer.id}"
    return MemberView(
        group=consumer.settings.group,
        member_id=consumer.id,
        base_uri=gateway_url(request, advertise) + path,
        assignment=[
            PartitionOffset(topic, partition, offset)
            for (topic, partition), offset in sorted(consumer.positions.items())
        ],
    )
