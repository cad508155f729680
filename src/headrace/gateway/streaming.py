"""A topic as a stream: server-sent events, or a WebSocket.

Each event's id says where the stream is in every partition; a browser sends the last one when it comes back, and the
stream goes on after it. Comments (or pings) pass while there is nothing to say, so that nobody in between hangs up.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, field

from headrace.client.aio.client import Client
from headrace.client.aio.member import MemberSettings
from headrace.client.aio.reader import FetchedRecord, Reader
from headrace.protocol.topic_partition import TopicPartition
from headrace.web.messages import Request, Stream
from headrace.web.problem import Problem, bad_request, render
from headrace.web.routes import Reply, Routes
from headrace.web.sockets import WebSocket

from .consumers import JOIN_SECONDS, Consumer
from .credentials import Clients, using
from .group_routes import refuse
from .messages import Format, encode, shown
from .names import Group, Partition, TopicPath, require_messages
from .read_routes import READ_PROBLEMS, Time, positions_text, start_positions
from .translate import translate

HEARTBEAT_SECONDS: Final = 15.0
_TAKE: Final = 500
_PATH: Final = "/api/v1/topics/{topic}/stream"


class StreamQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """What to stream."""

    start: Annotated[Literal["earliest", "latest"], Meta(description="Where to begin.")] = field(
        default="latest", name="from"
    )
    timestamp: Time | None = None
    partitions: Annotated[list[Partition], Meta(description="Only these, by commas.", examples=[[0, 1]])] | None = None
    group: Annotated[Group, Meta(description="WebSocket only: read as a member of this group.")] | None = None
    format: Format = "auto"


class StreamHeaders(Struct, frozen=True, rename={"last": "Last-Event-ID"}):
    """Where a stream broke off."""

    last: (
        Annotated[str, Meta(max_length=65_536, description="Go on after this event.", examples=["0:42,1:17"])] | None
    ) = None


def stream_routes(clients: Clients) -> Routes:
    """The route that streams."""
    routes = Routes(tag="Stream", about="Messages as they come.")

    async def stream_messages(request: Request, path: TopicPath, query: StreamQuery, headers: StreamHeaders) -> Stream:
        if query.group is not None:
            raise bad_request("a group is read over a WebSocket, where it can be told what was taken")
        client = clients.of(request)
        positions = await _positions(client, path.topic, query, headers.last)
        events = _events(client, positions, path.topic, query.format)
        return Stream(200, events, b"text/event-stream; charset=utf-8", ((b"x-accel-buffering", b"no"),))

    async def converse(
        request: Request, socket: WebSocket, path: TopicPath, query: StreamQuery, headers: StreamHeaders
    ) -> None:
        client = clients.of(request)
        async with using(client):
            if query.group is None:
                reader = Reader(client.cluster, await _positions(client, path.topic, query, headers.last))
                await socket.accept()
                await _tell(socket, _Plain(reader), query.format)
            else:
                await _tell_group(client, path.topic, query, query.group, socket)

    routes.add(
        "GET",
        _PATH,
        "Stream a topic.",
        stream_messages,
        about=(
            "Server-sent events: `data` is a message, `id` the place in each partition; Last-Event-ID goes on after "
            "it. As a WebSocket: each text is a message. With `group` it reads as a member of that group, and "
            'what was sent is committed when the caller says {"type": "commit"}.'
        ),
        path=TopicPath,
        query=StreamQuery,
        headers=StreamHeaders,
        answers={200: Reply("Events.", media=("text/event-stream",), example=_EVENT), **READ_PROBLEMS},
        converse=converse,
    )
    return routes


_EVENT: Final = (
    'id: 0:42\ndata: {"topic":"orders","partition":0,"offset":41,"key":"alice","value":{"total":3},'
    '"value_encoding":"json","timestamp":1700000000000,"headers":{}}\n\n'
)


async def _positions(client: Client, topic: str, query: StreamQuery, last: str | None) -> dict[TopicPartition, int]:
    return await start_positions(client, topic, query.partitions, query.timestamp or query.start, last)


async def _events(
    client: Client, positions: Mapping[TopicPartition, int], topic: str, form: str
) -> AsyncIterator[bytes]:
    async with using(client):
        reader = Reader(client.cluster, positions)
        at = {partition: offset for (_, partition), offset in positions.items()}
        yield b"retry: 1000\n\n"
        try:
            while True:
                found = await reader.take(_TAKE, int(HEARTBEAT_SECONDS * 1000))
                yield _encoded(found, at, topic, form) if found else b": nothing new\n\n"
        except Exception as error:
            problem = error if isinstance(error, Problem) else translate(error)
            if problem is None:
                raise
            yield b"event: problem\ndata: " + render(problem).body + b"\n\n"


def _encoded(records: list[FetchedRecord], at: dict[int, int], topic: str, form: str) -> bytes:
    parts = []
    for _, partition, record in records:
        at[partition] = record.offset + 1
        # Line ends in JSON are spaces between its parts: inside texts they are escaped.
        data = encode(shown(record, form, topic, partition)).replace(b"\n", b" ").replace(b"\r", b" ")
        parts.append(b"id: %s\ndata: %s\n\n" % (positions_text(at).encode(), data))
    return b"".join(parts)


# WebSockets


class _Plain:
    """Reading without a group: there is nothing to commit."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def poll(self, most: int, wait_ms: int) -> list[FetchedRecord]:
        return await self._reader.take(most, wait_ms)

    async def commit(self, offsets: None) -> dict[TopicPartition, Any]:  # noqa: ARG002 - as `Consumer` has it
        raise bad_request("there is nothing to commit without a group")


async def _tell_group(client: Client, topic: str, query: StreamQuery, group: str, socket: WebSocket) -> None:
    require_messages(topic)
    await client.cluster.topic(topic)
    settings = MemberSettings(group=group, topics=(topic,), reset=query.start)
    consumer = Consumer(client, settings, idle_ms=3_600_000, auto_commit=False)
    try:
        await consumer.joined(JOIN_SECONDS)
        await socket.accept()
        await _tell(socket, consumer, query.format)
    finally:
        await consumer.close()


async def _tell(socket: WebSocket, source: "_Plain | Consumer", form: str) -> None:
    """Send records and take the client's messages, until either side ends."""
    telling = asyncio.ensure_future(_send_messages(socket, source, form))
    listening = asyncio.ensure_future(_listen(socket, source))
    try:
        done, _ = await asyncio.wait((telling, listening), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (telling, listening):
            task.cancel()
        await asyncio.gather(telling, listening, return_exceptions=True)
    for task in done:
        if not task.cancelled():
            task.result()


async def _send_messages(socket: WebSocket, source: "_Plain | Consumer", form: str) -> None:
    while True:
        for topic, partition, record in await source.poll(_TAKE, int(HEARTBEAT_SECONDS * 1000)):
            await socket.send_text(encode(shown(record, form, topic, partition)).decode())


async def _listen(socket: WebSocket, source: "_Plain | Consumer") -> None:
    while True:
        try:
            said = json.loads(await socket.receive())
            kind = said["type"] if isinstance(said, dict) else None
        except (ValueError, KeyError, RecursionError):
            kind = None
        if kind != "commit":
            await socket.send({"type": "problem", "detail": 'the only word understood here is {"type": "commit"}'})
            continue
        try:
            refuse(await source.commit(None))
            await socket.send({"type": "committed"})
        except Problem as problem:
            await socket.send({"type": "problem", "code": problem.code, "detail": problem.detail})
