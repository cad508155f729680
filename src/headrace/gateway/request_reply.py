"""Request and reply over topics, by the headers that Spring for Apache Kafka uses.

A request goes out with `kafka_correlationId` and `kafka_replyTopic`; whoever answers writes to that topic with the same
correlation id. The gateway reads the reply topic from its end on while anybody waits, and hands each reply to the
caller whose id it bears.
"""

import asyncio
import secrets
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from headrace.client.aio.client import Client
from headrace.client.aio.fetching import list_offsets
from headrace.client.aio.reader import FetchedRecord, Reader
from headrace.client.core.offsets import LATEST
from headrace.protocol.topic_partition import TopicPartition
from headrace.web.messages import Answer, Request, json_answer
from headrace.web.problem import Problem, bad_request
from headrace.web.routes import Body, Reply, Routes

from .credentials import Clients
from .messages import Format, Message, NewMessage, shown
from .names import Topic, TopicPath, require_not_internal
from .publish_routes import RawBody, RawHeaders, single_from
from .publishing import Publisher
from .read_routes import READ_PROBLEMS

CORRELATION: Final = "kafka_correlationId"
REPLY_TOPIC: Final = "kafka_replyTopic"
_IDLE_SECONDS: Final = 30.0
_TAKE: Final = 1000
_WAIT_MS: Final = 5000
_MOST_WAITING: Final = 10_000


class Replies:
    """One reply topic as one user reads it, while anybody waits."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._waiting: dict[bytes, asyncio.Future[FetchedRecord]] = {}
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last_used = 0.0
        self.task = asyncio.ensure_future(self._follow())

    @property
    def is_over(self) -> bool:
        return self.task.done()

    async def wait_for(self, correlation: bytes) -> asyncio.Future[FetchedRecord]:
        """A place for a reply. Returns once the topic is being read: no reply to what is sent now can be missed."""
        if len(self._waiting) >= _MOST_WAITING:
            raise Problem(503, "too many requests wait for replies", headers=((b"retry-after", b"1"),))
        reply: asyncio.Future[FetchedRecord] = asyncio.get_running_loop().create_future()
        self._waiting[correlation] = reply
        try:
            await asyncio.shield(self._ready)
        except BaseException:
            self.forget(correlation)
            raise
        return reply

    def forget(self, correlation: bytes) -> None:
        self._waiting.pop(correlation, None)
        self._last_used = asyncio.get_running_loop().time()

    async def _follow(self) -> None:
        self._client.uses += 1
        try:
            await self._read()
        except Exception as error:
            self._fail(error)
        finally:
            self._client.uses -= 1

    async def _read(self) -> None:
        cluster = self._client.cluster
        count = (await cluster.topic(self._topic)).partitions
        ends = await list_offsets(cluster, self._topic, dict.fromkeys(range(count), LATEST))
        reader = Reader(
            cluster, {TopicPartition(self._topic, partition): offset for partition, (offset, _) in ends.items()}
        )
        self._ready.set_result(None)
        loop = asyncio.get_running_loop()
        self._last_used = loop.time()
        while self._waiting or loop.time() - self._last_used < _IDLE_SECONDS:
            for found in await reader.take(_TAKE, _WAIT_MS):
                waiting = self._waiting.get(dict(found.record.headers).get(CORRELATION) or b"")
                if waiting is not None and not waiting.done():
                    waiting.set_result(found)

    def _fail(self, error: Exception) -> None:
        everybody: list[asyncio.Future[Any]] = [self._ready, *self._waiting.values()]
        for waiting in everybody:
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()


class ReplyDesk:
    """All reply topics that are being read."""

    def __init__(self) -> None:
        self._boxes: dict[tuple[int, str], Replies] = {}

    def box(self, client: Client, topic: str) -> Replies:
        for key, box in list(self._boxes.items()):
            if box.is_over:
                del self._boxes[key]
        key = id(client), topic
        if key not in self._boxes:
            self._boxes[key] = Replies(client, topic)
        return self._boxes[key]

    async def close(self) -> None:
        for box in self._boxes.values():
            box.task.cancel()
        await asyncio.gather(*(box.task for box in self._boxes.values()), return_exceptions=True)


class RequestQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Where and how long to wait for a reply."""

    reply_topic: (
        Annotated[Topic, Meta(description="Where replies come; {topic}.replies where it is left out.")] | None
    ) = None
    timeout_ms: Annotated[int, Meta(ge=1, le=120_000, description="How long to wait.")] = 30_000
    raw: RawBody = False
    format: Format = "auto"


class RequestPlace(Struct):
    """Where a request is."""

    partition: Annotated[int, Meta(examples=[0])]
    offset: Annotated[int, Meta(examples=[41])]


class Replied(Struct):
    """A request and its reply."""

    request: RequestPlace
    reply: Message


def request_routes(clients: Clients, publisher: Publisher, desk: ReplyDesk) -> Routes:
    """The route that asks."""
    routes = Routes(tag="Request and reply", about="Ask over one topic, be answered over another.")

    @routes.post(
        "/api/v1/topics/{topic}/request",
        "Publish a request and wait for its reply.",
        about=(
            f"The request has the headers {CORRELATION} (16 bytes) and {REPLY_TOPIC}; a reply is a message in the "
            f"reply topic with the same {CORRELATION}, as Spring's replying template has it."
        ),
        path=TopicPath,
        query=RequestQuery,
        headers=RawHeaders,
        body=Body(
            "The value as it is, or one message in JSON.",
            media={"application/octet-stream": None, "text/plain": None, "application/json": NewMessage},
            examples={"application/json": {"value": {"a": 20, "b": 22}}},
        ),
        answers={
            200: Reply("The reply.", Replied),
            413: Reply("The body has more than 16 MiB, or is larger than the topic takes."),
            422: Reply("The reply is not of the format asked for."),
            504: Reply("No reply came in time."),
            **READ_PROBLEMS,
        },
    )
    async def request_reply(request: Request, path: TopicPath, query: RequestQuery, headers: RawHeaders) -> Answer:
        client = clients.of(request)
        reply_topic = query.reply_topic or _default(path.topic)
        require_not_internal(reply_topic)
        wanted = single_from(request, headers, await request.body(), raw=query.raw)
        correlation = secrets.token_bytes(16)
        box = desk.box(client, reply_topic)
        reply = await box.wait_for(correlation)
        ours = ((CORRELATION, correlation), (REPLY_TOPIC, reply_topic.encode()))
        record = wanted.record._replace(headers=(*wanted.record.headers, *ours))
        try:
            sent = await publisher.one(client, path.topic, wanted._replace(record=record), -1, None)
            async with asyncio.timeout(query.timeout_ms / 1000):
                topic, partition, found = await reply
        except TimeoutError:
            more: dict[str, Any] = {"request": {"partition": sent.partition, "offset": sent.offset}}
            detail = f"no reply in '{reply_topic}' within {query.timeout_ms} ms"
            raise Problem(504, detail, code="no-reply", more=more) from None
        finally:
            box.forget(correlation)
        answer = Replied(RequestPlace(sent.partition, sent.offset), shown(found, query.format, topic, partition))
        return json_answer(answer)

    return routes


def _default(topic: str) -> str:
    name = f"{topic}.replies"
    if len(name) > 249:
        raise bad_request("the topic's name is too long for a default reply_topic; give one")
    return name
