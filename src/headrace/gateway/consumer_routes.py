"""Group consumption over HTTP: a member is made, polled, commits, goes."""

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

from headrace.client.aio.member import MemberSettings
from headrace.protocol.topic_partition import TopicPartition
from headrace.web.messages import Answer, Request, json_answer
from headrace.web.routes import Body, Reply, Routes
from headrace.web.shapes import Array, Boolean, Choice, Integer, Object, Text

from .consumers import JOIN_SECONDS, Consumer, Consumers
from .credentials import Clients
from .group_routes import COMMIT, offsets_of, refuse
from .names import GROUP, OFFSET, PARTITION, TOPIC
from .rawjson import loads
from .read_routes import FORMAT, LIMIT, READ_PROBLEMS, WAIT
from .records import SHOWN, joined, shown

_CREATE: Final = Object(
    {
        "topics": Array(TOPIC, least=1, most=100),
        "auto_offset_reset": Choice("earliest", "latest"),
        "auto_commit": Boolean(),
        "session_timeout_ms": Integer(6000, 300_000),
        "idle_timeout_ms": Integer(1000, 3_600_000),
    },
    required=("topics",),
)
_SEEK: Final = Object(
    {
        "offsets": Array(
            Object(
                {"topic": TOPIC, "partition": PARTITION, "offset": OFFSET}, required=("topic", "partition", "offset")
            ),
            least=1,
        )
    },
    required=("offsets",),
)
_PLACE: Final = Object({"topic": Text(), "partition": Integer(), "offset": Integer()})
_VIEW: Final = Object({"group": Text(), "member_id": Text(), "base_uri": Text(), "assignment": Array(_PLACE)})
_CONFLICT: Final = {409: Reply("The group was shared out anew, or this member is in use.")}
_PATH: Final = "/api/v1/consumer-groups/{group}/members"
_OWN: Final = {"group": GROUP, "member": Text(least=1, most=100)}

Find = Callable[[Request], Consumer]
"""The member that a request names."""


def consumer_routes(clients: Clients, consumers: Consumers) -> Routes:
    """The routes of members."""
    routes = Routes(
        tag="Group consumption",
        about="A member of a consumer group lives in the gateway that made it: go on at its base_uri.",
    )

    def find(request: Request) -> Consumer:
        return consumers.get(clients.of(request), request.params["group"], request.params["member"])

    _add_joining(routes, clients, consumers)
    _add_member_routes(routes, clients, consumers, find)
    _add_position_routes(routes, find)
    return routes


def _add_joining(routes: Routes, clients: Clients, consumers: Consumers) -> None:
    @routes.post(
        _PATH,
        "Join a group.",
        about="The gateway keeps the membership alive for idle_timeout_ms (5 minutes) after each poll.",
        params={"group": GROUP},
        body=Body("What to read.", {"application/json": _CREATE}),
        answers={201: Reply("A member.", _VIEW, headers={"Location": "Where it is."}), **_CONFLICT, **READ_PROBLEMS},
    )
    async def create_member(request: Request) -> Answer:
        body = _CREATE.read(loads(await request.body()), "the member")
        client = clients.of(request)
        for topic in body["topics"]:
            await client.cluster.topic(topic)
        settings = _member_settings(request.params["group"], body)
        consumer = consumers.add(
            lambda: Consumer(
                client,
                settings,
                idle_ms=body.get("idle_timeout_ms", 300_000),
                auto_commit=body.get("auto_commit", False),
            )
        )
        try:
            await consumer.joined(JOIN_SECONDS)
        except BaseException:
            await consumers.remove(consumer)
            raise
        view = _view(request, clients.settings.advertise, consumer)
        return json_answer(view, 201, ((b"location", view["base_uri"].encode("ascii", "replace")),))


def _add_member_routes(routes: Routes, clients: Clients, consumers: Consumers, find: Find) -> None:
    @routes.get(
        f"{_PATH}/{{member}}",
        "Show what a member reads.",
        params=_OWN,
        answers={200: Reply("The member.", _VIEW), **READ_PROBLEMS},
    )
    async def describe_member(request: Request) -> Answer:
        return json_answer(_view(request, clients.settings.advertise, find(request)))

    @routes.get(
        f"{_PATH}/{{member}}/messages",
        "Poll.",
        about="Records since the last poll. Those not committed come again when the member is gone.",
        params=_OWN,
        query={"limit": LIMIT, "wait_ms": WAIT, "format": FORMAT},
        answers={
            200: Reply("Records, perhaps none.", Object({"records": Array(SHOWN)}, required=("records",))),
            422: Reply("A value is not of the format asked for."),
            **_CONFLICT,
            **READ_PROBLEMS,
        },
    )
    async def poll_messages(request: Request) -> Answer:
        found = await find(request).poll(request.query["limit"], request.query["wait_ms"])
        form = request.query["format"]
        texts = joined(shown(topic, partition, record, form) for topic, partition, record in found)
        return Answer(200, f'{{"records":{texts}}}'.encode())

    @routes.delete(
        f"{_PATH}/{{member}}", "Leave the group.", params=_OWN, answers={204: Reply("It is gone."), **READ_PROBLEMS}
    )
    async def delete_member(request: Request) -> Answer:
        await consumers.remove(find(request))
        return Answer(204)


def _add_position_routes(routes: Routes, find: Find) -> None:
    @routes.post(
        f"{_PATH}/{{member}}/offsets",
        "Commit.",
        about="Without a body: all that was polled.",
        params=_OWN,
        body=Body("What to commit.", {"application/json": COMMIT}, required=False),
        answers={204: Reply("Committed."), **_CONFLICT, **READ_PROBLEMS},
    )
    async def commit_member(request: Request) -> Answer:
        body = await request.body()
        offsets = offsets_of(COMMIT.read(loads(body), "the commit")["offsets"]) if body else None
        refuse(await find(request).commit(offsets))
        return Answer(204)

    @routes.post(
        f"{_PATH}/{{member}}/positions",
        "Go on elsewhere.",
        params=_OWN,
        body=Body("The next offset to read of each partition.", {"application/json": _SEEK}),
        answers={204: Reply("Moved."), **_CONFLICT, **READ_PROBLEMS},
    )
    async def seek_member(request: Request) -> Answer:
        wanted = _SEEK.read(loads(await request.body()), "the positions")
        find(request).seek({TopicPartition(e["topic"], e["partition"]): e["offset"] for e in wanted["offsets"]})
        return Answer(204)


def _member_settings(group: str, body: dict[str, Any]) -> MemberSettings:
    return MemberSettings(
        group=group,
        topics=tuple(body["topics"]),
        session_ms=body.get("session_timeout_ms", 30_000),
        reset=body.get("auto_offset_reset", "latest"),
    )


def _view(request: Request, advertise: str, consumer: Consumer) -> dict[str, Any]:
    base = advertise or f"{request.scope.get('scheme', 'http')}://{request.header(b'host') or 'localhost'}"
    path = f"/api/v1/consumer-groups/{quote(consumer.settings.group, safe='')}/members/{consumer.id}"
    return {
        "group": consumer.settings.group,
        "member_id": consumer.id,
        "base_uri": base + path,
        "assignment": [
            {"topic": topic, "partition": partition, "offset": offset}
            for (topic, partition), offset in sorted(consumer.positions.items())
        ],
    }
