"""POST …/messages: one message as it is, or one or many described in JSON."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from headrace.protocol.records import Headers, Record
from headrace.web.checking import check_counts, decoder, text_meta
from headrace.web.messages import Answer, Request, json_answer
from headrace.web.problem import Problem, bad_request
from headrace.web.routes import Body, Reply, Routes

from .credentials import Clients
from .delays import Delays
from .messages import EMPTY, NewMessage, encode, partition_of, record_of
from .names import Partition, Timestamp, TopicPath
from .publishing import ACKS, MessageToPublish, Publisher, PublishOutcome, now_ms
from .rest_proxy.failures import V2_MEDIA, ErrorBody, in_v2_form
from .rest_proxy.producing import BODIES, BODY_EXAMPLES, ProxyProduced, ProxyProducer

MOST_MESSAGES: Final = 10_000
_JSON: Final = "application/json"
_FORM: Final = "application/x-www-form-urlencoded"
_KAFKA: Final = "application/vnd.kafka."
_HEADER_PREFIX: Final = b"x-header-"
_LONGEST_LOOK: Final = 64


class Published(Struct):
    """Where a message is."""

    topic: Annotated[str, Meta(examples=["orders"])]
    partition: Annotated[int, Meta(examples=[0])]
    offset: Annotated[int, Meta(description="-1 with acks=0.", examples=[41])]
    timestamp: Annotated[int, Meta(description="Milliseconds since 1970.", examples=[1_700_000_000_000])]


class PublishError(Struct):
    """Why a message was not written."""

    status: Annotated[int, Meta(examples=[413])]
    code: Annotated[str, Meta(examples=["message-too-large"])]
    detail: str


class Outcome(Struct, omit_defaults=True):
    """Where a message is, or why it was not written."""

    topic: Annotated[str, Meta(examples=["orders"])]
    partition: Annotated[int, Meta(examples=[0])]
    offset: Annotated[int | UnsetType, Meta(examples=[41])] = UNSET
    timestamp: Annotated[int | UnsetType, Meta(examples=[1_700_000_000_000])] = UNSET
    error: PublishError | UnsetType = UNSET


class Accepted(Struct):
    """Messages that wait until they are delivered."""

    topic: Annotated[str, Meta(examples=["orders"])]
    deliver_at: Annotated[int, Meta(description="Milliseconds since 1970.", examples=[1_700_000_060_000])]
    messages: Annotated[int, Meta(description="How many.", examples=[1])]


class Outcomes(Struct):
    """What became of each message."""

    messages: list[Outcome]


class NewMessages(Struct, forbid_unknown_fields=True):
    """Messages to publish together."""

    messages: Annotated[list[NewMessage], Meta(min_length=1, max_length=MOST_MESSAGES)]


class _OneOrMany(NewMessage, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Either of them, read at once: values stay as they are written."""

    messages: Annotated[list[NewMessage], Meta(min_length=1, max_length=MOST_MESSAGES)] | UnsetType = UNSET


class RawHeaders(
    Struct,
    frozen=True,
    rename={"key": "X-Partition-Key", "partition": "X-Partition", "timestamp": "X-Timestamp"},
):
    """What belongs to a body that is a value as it is. `X-Header-*` beside them are its headers."""

    key: (
        Annotated[str, Meta(description="The key of a raw body: decides its partition.", examples=["alice"])] | None
    ) = None
    partition: Partition | None = None
    timestamp: Timestamp | None = None


class PublishHeaders(RawHeaders, frozen=True, rename={
    "key": "X-Partition-Key", "partition": "X-Partition", "timestamp": "X-Timestamp", "once": "Idempotency-Key",
    "after_ms": "X-Deliver-After-Ms", "at_ms": "X-Deliver-At",
}):  # fmt: skip
    """The same, a key for sending again, and when all messages of the body are to be delivered."""

    once: (
        Annotated[
            str,
            text_meta(
                r"^[\x20-\x7e\xa1-\xff]{1,255}\Z",
                "1 to 255 printable characters",
                "order-17",
                description="A body sent again with the same key, to any gateway, is in the log once.",
            ),
        ]
        | None
    ) = None
    after_ms: (
        Annotated[int, Meta(ge=0, le=2**48, description="Consumers get it so many milliseconds later.")] | None
    ) = None
    at_ms: Annotated[int, Meta(ge=0, le=2**53, description="Consumers get it then: ms since 1970.")] | None = None


RawBody = Annotated[bool, Meta(description="The body is the value, whatever its Content-Type.")]


class PublishQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """How to publish."""

    acks: Annotated[Literal["all", "-1", "1", "0"], Meta(description="Whose word to wait for.")] = "all"
    raw: RawBody = False


_WRITE_PROBLEMS: Final = {
    401: Reply("Credentials are missing, or the brokers do not take them."),
    403: Reply("Not allowed to write here."),
    404: Reply("There is no such topic or partition."),
    413: Reply("The body has more than 16 MiB, or a message is larger than its topic takes."),
    422: Reply("The Idempotency-Key was used for another body."),
    502: Reply("The brokers refused for a reason that has no status of its own."),
    503: Reply("The cluster does not answer; a write may have happened."),
}
_OTHER_REFUSALS: Final = {
    400: Reply("The body is not what it must be."),
    406: Reply("None of the types in Accept is served."),
    408: Reply("The body stood still, or a schema could not be registered."),
    415: Reply("The body is of a type that is not taken."),
    429: Reply("Too many requests, or a quota is used up."),
    500: Reply("The brokers refused, or do not answer."),
    501: Reply("The brokers do not know this request."),
}
"""Those of the short form that it has with REST Proxy's types."""
_BODY: Final = Body(
    "The value as it is, or messages in JSON.",
    media={
        "application/octet-stream": None,
        "text/plain": None,
        _JSON: (NewMessages, NewMessage),
    },
    examples={
        _JSON: {"messages": [{"key": "bob", "value": {"total": 7.50}}, {"value": "hello", "value_encoding": "text"}]}
    },
)
_one: Final = decoder(NewMessage, "the message")
_one_or_many: Final = decoder(_OneOrMany, "the body")
_ABOUT: Final = (
    "A body of any type is the value of one message; its key, partition, time and headers are HTTP headers, "
    "`X-Header-Name: value` among them. A body of application/json describes one message, or many under `messages`; "
    "`value` is JSON and is kept as it is written, unless `value_encoding` says that it is text or base64. A JSON "
    "document that is itself the message is sent with another Content-Type, or with raw=true. With X-Deliver-After-Ms "
    "or X-Deliver-At consumers get the messages then, never earlier."
)


def publish_routes(clients: Clients, publisher: Publisher, proxy: ProxyProducer, delays: Delays) -> Routes:
    """The routes that write."""
    routes = Routes(tag="Publish", about="Messages into topics.")

    async def publish(request: Request, path: TopicPath, query: PublishQuery, headers: PublishHeaders) -> Answer:
        acks, key = ACKS[query.acks], headers.once
        if key is not None and acks != -1:
            raise bad_request("an Idempotency-Key needs acks=all")
        client = clients.of(request)
        body = await request.body()
        if headers.after_ms is not None or headers.at_ms is not None:
            due = delays.due(headers.after_ms, headers.at_ms)
            if due is not None:
                messages = await _messages(request, headers, body, raw=query.raw)
                await delays.accept(client, path.topic, messages, due, acks, key)
                return json_answer(Accepted(path.topic, due, len(messages)), 202)
        if is_raw(request, body, raw=query.raw):
            outcome = await publisher.one(client, path.topic, raw_message(request, headers, body), acks, key)
            return _told(path.topic, outcome)
        await check_counts(body)
        read = _one_or_many(body)
        if read.messages is UNSET:
            outcome = await publisher.one(client, path.topic, _described(read), acks, key)
            return _told(path.topic, outcome)
        outcomes = await publisher.many(client, path.topic, _many(read, read.messages), acks, key)
        return _told_many(path.topic, outcomes)

    async def publish_short(request: Request, path: TopicPath, query: PublishQuery, headers: PublishHeaders) -> Answer:
        if request.media_type.startswith(_KAFKA) or await _is_v2_json(request):
            return await in_v2_form(proxy.to_topic(request, path))
        return await publish(request, path, query, headers)

    common: dict[str, Any] = {
        "answers": {
            200: Reply("Written, and where; `messages` for many.", (Published, Outcomes), example=_PUBLISHED),
            202: Reply("Accepted, to be delivered later.", Accepted),
            207: Reply("Some messages were written, some not; each tells.", Outcomes),
            **_WRITE_PROBLEMS,
        },
        "path": TopicPath,
        "headers": PublishHeaders,
        "query": PublishQuery,
        "body": _BODY,
        "is_hot": True,
    }
    routes.add("POST", "/api/v1/topics/{topic}/messages", "Publish.", publish, about=_ABOUT, **common)
    short = "The short form; with the types of REST Proxy's v2 it takes and answers what that does."
    common |= {
        "answers": {
            status: _also_in_v2_form(reply, status)
            for status, reply in {**_OTHER_REFUSALS, **common["answers"]}.items()
        },
        "body": replace(_BODY, media={**_BODY.media, **BODIES}, examples={**_BODY.examples, **BODY_EXAMPLES}),
    }
    routes.add("POST", "/topics/{topic}", "Publish.", publish_short, about=short, **common)
    return routes


async def _messages(request: Request, headers: PublishHeaders, body: bytes, *, raw: bool) -> list[MessageToPublish]:
    """All messages that a request brings."""
    if is_raw(request, body, raw=raw):
        return [raw_message(request, headers, body)]
    await check_counts(body)
    read = _one_or_many(body)
    return [_described(read)] if read.messages is UNSET else _many(read, read.messages)


def _also_in_v2_form(reply: Reply, status: int) -> Reply:
    return replace(reply, also={V2_MEDIA.decode(): ProxyProduced if status == 200 else ErrorBody})


_PUBLISHED: Final = {"topic": "orders", "partition": 0, "offset": 41, "timestamp": 1_700_000_000_000}


def is_raw(request: Request, body: bytes, *, raw: bool) -> bool:
    """Whether a body is the value as it is; `Problem` 415 where that is hardly meant."""
    media_type = request.media_type
    if raw:
        return True
    if media_type == _JSON:
        return False
    if media_type.startswith(_KAFKA):
        raise Problem(415, f"'{media_type[:80]}' is not taken on this path; see /docs for what is")
    if media_type == _FORM and _looks_described(body):
        raise Problem(
            415,
            "the body looks like JSON that describes messages, but its Content-Type is that of a form: send it with "
            "'Content-Type: application/json', or with raw=true if it is the message itself",
        )
    return True


async def _is_v2_json(request: Request) -> bool:
    """Whether it is REST Proxy's body although its type says only that it is JSON: then values are base64."""
    if request.media_type != _JSON:
        return False
    start = (await request.body())[:_LONGEST_LOOK].lstrip()
    return start[:1] == b"{" and start[1:].lstrip().startswith(b'"records"')


def _looks_described(body: bytes) -> bool:
    start = body[:_LONGEST_LOOK].lstrip()
    return start[:1] == b"{" and start[1:].lstrip().startswith((b'"records"', b'"messages"', b'"value"'))


def single_from(request: Request, headers: RawHeaders, body: bytes, *, raw: bool) -> MessageToPublish:
    """The one message that a request brings, as it is or described."""
    return raw_message(request, headers, body) if is_raw(request, body, raw=raw) else _described(_one(body))


def raw_message(request: Request, headers: RawHeaders, body: bytes) -> MessageToPublish:
    """A body that is the value, with what HTTP headers say of it."""
    timestamp = now_ms() if headers.timestamp is None else headers.timestamp
    key = None if headers.key is None else headers.key.encode("latin-1")
    return MessageToPublish(Record(0, timestamp, key, body, _record_headers(request)), headers.partition)


def _record_headers(request: Request) -> Headers:
    found = [(name, value) for name, value in request.scope["headers"] if name.startswith(_HEADER_PREFIX)]
    if not found:
        return ()
    return tuple((name[len(_HEADER_PREFIX) :].decode("latin-1"), value) for name, value in found)


def _described(message: NewMessage) -> MessageToPublish:
    if message.key is UNSET and message.value is UNSET and not message.headers:
        raise bad_request("the body describes no message; give at least a value, or null")
    return MessageToPublish(record_of(message, now_ms(), "the message"), partition_of(message))


def _many(read: _OneOrMany, messages: list[NewMessage]) -> list[MessageToPublish]:
    if any(getattr(read, name) != getattr(EMPTY, name) for name in NewMessage.__struct_fields__):
        raise bad_request("beside 'messages' there is nothing else", "unknown-member")
    now = now_ms()
    return [
        MessageToPublish(record_of(each, now, f"messages[{index}]"), partition_of(each))
        for index, each in enumerate(messages)
    ]


def _told(topic: str, outcome: PublishOutcome) -> Answer:
    # A topic's name needs no escaping: letters, digits and . _ - only.
    partition, offset, timestamp, _ = outcome
    body = f'{{"topic":"{topic}","partition":{partition},"offset":{offset},"timestamp":{timestamp}}}'
    return Answer(200, body.encode())


def _told_many(topic: str, outcomes: Sequence[PublishOutcome]) -> Answer:
    problems = [outcome.problem for outcome in outcomes if outcome.problem is not None]
    if len(problems) == len(outcomes):
        raise problems[0]
    messages = [
        Outcome(topic, o.partition, o.offset, o.timestamp)
        if o.problem is None
        else Outcome(topic, o.partition, error=PublishError(o.problem.status, o.problem.code, o.problem.detail))
        for o in outcomes
    ]
    return Answer(207 if problems else 200, encode(Outcomes(messages)))
