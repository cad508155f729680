"""Queues over HTTP: messages are received, each by one caller, and acknowledged by receipt."""

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict

from headrace.client.aio import admin
from headrace.client.aio.client import Client
from headrace.client.aio.share_member import Outcome
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.web.messages import Answer, Request, json_answer
from headrace.web.problem import Problem
from headrace.web.routes import Body, Reply, Routes

from .consumer_routes import gateway_url
from .consumers import Consumers
from .credentials import Clients
from .messages import Format, Message, encode, shown
from .names import Group, Topic, require_not_internal
from .queues import QueueMember
from .read_routes import MOST_WAIT_MS, READ_PROBLEMS, UNLIKE

MOST_RECEIVED: Final = 1000
LONGEST_DELAY_MS: Final = 86_400_000
_GROUP: Final = 32
"""The kind of resource that a group is, for settings."""
_START: Final = "share.auto.offset.reset"
_JSON: Final = "application/json"
_PATH: Final = "/api/v1/queues/{queue}"


class QueuePath(Struct, frozen=True):
    """A path with a queue: the topic that is read as one."""

    queue: Topic


GroupName = Annotated[
    Group | UnsetType,
    Meta(description="The share group; the queue's name if left out. Each group gets every message, once."),
]


class Receive(Struct, forbid_unknown_fields=True):
    """What to receive."""

    group: GroupName = UNSET
    max: Annotated[int, Meta(ge=1, le=MOST_RECEIVED, description="How many messages at most.")] = 1
    wait_ms: Annotated[int, Meta(ge=0, le=MOST_WAIT_MS, description="Milliseconds to wait for the first message.")] = 0
    format: Format = "auto"
    start: Annotated[
        Literal["earliest", "latest"],
        Meta(
            description="Where a new group begins. It becomes a setting of the group, where the caller may change it."
        ),
    ] = "earliest"


Receipts = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=100, examples=["qJ8cXzQ0yT1bVb5m6H1x2A"])]],
    Meta(min_length=1, max_length=MOST_RECEIVED),
]


class Acknowledge(Struct, forbid_unknown_fields=True):
    """Which messages."""

    receipts: Receipts
    group: GroupName = UNSET


class Refuse(Struct, forbid_unknown_fields=True):
    """Which messages, and whether they are to come again."""

    receipts: Receipts
    group: GroupName = UNSET
    reject: Annotated[bool, Meta(description="Never deliver them again: nobody can do this.")] = False
    delay_ms: Annotated[
        Annotated[int, Meta(ge=0, le=LONGEST_DELAY_MS, examples=[60_000])] | UnsetType,
        Meta(
            description="Milliseconds until they are delivered again, up to a day, in place of the group's backoff. "
            "The partition's leader keeps it in memory: after a failover they come after that backoff."
        ),
    ] = UNSET


class QueuedMessage(Message, kw_only=True):
    """A message that is the caller's until its lock expires."""

    receipt: Annotated[str, Meta(description="What it is acknowledged by.", examples=["qJ8cXzQ0yT1bVb5m6H1x2A"])]
    deliveries: Annotated[int, Meta(description="How often it was delivered, now included.", examples=[1])]


class ReceivedMessages(Struct):
    """What was received."""

    messages: list[QueuedMessage]
    lock_ms: Annotated[int, Meta(description="For how long messages are the caller's.", examples=[30000])]
    base_uri: Annotated[
        str, Meta(description="Where they are to be acknowledged.", examples=["http://127.0.0.1:8080/api/v1/queues/…"])
    ]


class Lost(Struct):
    """A message that is not the caller's any more: it goes, or went, to another."""

    receipt: str
    reason: Annotated[str, Meta(examples=["unknown, or expired"])]


class Acknowledged(Struct):
    """What became of receipts."""

    done: Annotated[int, Meta(description="How many.", examples=[1])]
    lost: list[Lost]


_SAID: Final = {
    200: Reply("Committed for all of them.", Acknowledged, example={"done": 1, "lost": []}),
    207: Reply("Some were not the caller's any more; they come, or came, to others.", Acknowledged),
    **READ_PROBLEMS,
}
_RECEIPT: Final = "qJ8cXzQ0yT1bVb5m6H1x2A"


def queue_routes(clients: Clients, members: Consumers[QueueMember]) -> Routes:
    """The routes of queues."""
    routes = Routes(
        tag="Queues",
        about="A topic read as a queue, by a share group: each message goes to one caller, which acknowledges it.",
    )
    _add_receiving(routes, clients, members)
    _add_acknowledging(routes, clients, members)
    return routes


def _add_receiving(routes: Routes, clients: Clients, members: Consumers[QueueMember]) -> None:
    @routes.post(
        f"{_PATH}/receive",
        "Receive.",
        about="Messages that nobody else gets until their locks expire. They are acknowledged at the gateway that gave "
        "them, whose address is base_uri. Messages whose time is over (`headrace.expires`) are left out.",
        path=QueuePath,
        body=Body("What to receive.", Receive, required=False, examples={_JSON: {"max": 10, "wait_ms": 20_000}}),
        answers={
            200: Reply("Messages, perhaps none.", ReceivedMessages),
            429: Reply("Too many messages are out."),
            **UNLIKE,
            **READ_PROBLEMS,
        },
    )
    async def receive(request: Request, path: QueuePath, body: Receive | None) -> Answer:
        asked = body or Receive()
        client = clients.of(request)
        member = await _member(client, members, path.queue, _group(path, asked.group), asked.start)
        found = await member.receive(asked.max, asked.wait_ms)
        try:
            messages = [
                QueuedMessage(
                    **asdict(shown(each.acquired.record, asked.format, each.acquired.topic, each.acquired.key[1])),
                    receipt=each.receipt,
                    deliveries=each.acquired.deliveries,
                )
                for each in found
            ]
        except BaseException:
            await member.acknowledge([each.receipt for each in found], Outcome.RELEASE)
            raise
        base_uri = f"{gateway_url(request, clients.settings.advertise)}/api/v1/queues/{path.queue}"
        return Answer(200, encode(ReceivedMessages(messages, round(member.lock_seconds * 1000), base_uri)))


def _add_acknowledging(routes: Routes, clients: Clients, members: Consumers[QueueMember]) -> None:
    async def say(
        request: Request,
        path: QueuePath,
        body: Acknowledge | Refuse,
        outcome: Outcome,
        release_seconds: float | None = None,
    ) -> Answer:
        client = clients.of(request)
        member = members.get(client, _group(path, body.group), path.queue)
        receipts = dict.fromkeys(body.receipts)
        lost = await member.acknowledge(receipts, outcome, release_seconds)
        told = Acknowledged(len(receipts) - len(lost), [Lost(receipt, reason) for receipt, reason in lost.items()])
        return json_answer(told, 207 if lost else 200)

    common: dict[str, Any] = {"path": QueuePath, "answers": _SAID}
    example = {_JSON: {"receipts": [_RECEIPT]}}

    @routes.post(
        f"{_PATH}/ack",
        "Acknowledge.",
        about="They are done with.",
        body=Body("Which messages.", Acknowledge, examples=example),
        **common,
    )
    async def ack(request: Request, path: QueuePath, body: Acknowledge) -> Answer:
        return await say(request, path, body, Outcome.ACCEPT)

    @routes.post(
        f"{_PATH}/nack",
        "Give back.",
        about="They are delivered again, to anybody: after `delay_ms`, else at once, or after the backoff that the "
        "group is set to (`headrace.share.retry.backoff.ms`). With `reject` they are given up, and become dead letters "
        "where the group has a topic for those.",
        body=Body("Which messages.", Refuse, examples=example),
        **common,
    )
    async def nack(request: Request, path: QueuePath, body: Refuse) -> Answer:
        if body.reject and body.delay_ms is not UNSET:
            raise Problem(400, "what is rejected is not delivered again: leave out delay_ms")
        seconds = None if body.delay_ms is UNSET else body.delay_ms / 1000
        return await say(request, path, body, Outcome.REJECT if body.reject else Outcome.RELEASE, seconds)

    @routes.post(
        f"{_PATH}/extend",
        "Keep longer.",
        about="Their locks begin anew: the caller is still at work.",
        body=Body("Which messages.", Acknowledge, examples=example),
        **common,
    )
    async def extend(request: Request, path: QueuePath, body: Acknowledge) -> Answer:
        return await say(request, path, body, Outcome.RENEW)


def _group(path: QueuePath, asked: str | UnsetType) -> str:
    return path.queue if asked is UNSET else asked


async def _member(client: Client, members: Consumers[QueueMember], topic: str, group: str, start: str) -> QueueMember:
    """The caller's member, made with the first request."""
    require_not_internal(topic)
    member = members.find(client, group, topic)
    if member is not None and not member.is_over:
        return member
    if member is not None:
        await members.remove(member)
    await client.cluster.topic(topic)
    await begin_at(client, group, start)
    found = members.find(client, group, topic)  # another request may have made it meanwhile
    return found or members.add(lambda: QueueMember(client, topic, group), client)


async def begin_at(client: Client, group: str, start: str) -> None:
    """Have a new group begin there; whoever may not change settings leaves it as it is."""
    try:
        await admin.alter_configs(client.cluster, group, {_START: start}, kind=_GROUP)
    except CodedError as error:
        if error.code not in (ErrorCode.group_authorization_failed, ErrorCode.cluster_authorization_failed):
            raise
