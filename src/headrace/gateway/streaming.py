"""A topic as a stream: server-sent events, or a WebSocket.

Each event's id says where the stream is in every partition; a browser sends the last one when it comes back, and the
stream goes on after it. Comments (or pings) pass while there is nothing to say, so that nobody in between hangs up.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from headrace.client.aio.client import Client
from headrace.client.aio.fetching import list_offsets
from headrace.client.aio.member import MemberSettings
from headrace.client.aio.reader import FetchedRecord, Reader
from headrace.client.core.offsets import EARLIEST, LATEST
from headrace.protocol.topic_partition import TopicPartition
from headrace.web.messages import Request, Stream
from headrace.web.problem import Problem, bad_request, render
from headrace.web.routes import Query, Reply, Routes
from headrace.web.shapes import Array, Choice, Text
from headrace.web.sockets import WebSocket

from .consumers import JOIN_SECONDS, Consumer
from .credentials import Clients, using
from .group_routes import refuse
from .names import GROUP, PARTITION, TOPIC
from .read_routes import FORMAT, READ_PROBLEMS, TIME, offset_at, time_ms
from .records import shown
from .translate import translate

HEARTBEAT_SECONDS: Final = 15.0
_TAKE: Final = 500
_POSITIONS: Final = re.compile(r"[0-9]{1,9}:[0-9]{1,18}(,[0-9]{1,9}:[0-9]{1,18}){0,9999}")
_PATH: Final = "/api/v1/topics/{topic}/stream"


def stream_routes(clients: Clients) -> Routes:
    """The route that streams."""
    routes = Routes(tag="Stream", about="Records as they come.")

    async def stream_messages(request: Request) -> Stream:
        if request.query["group"] is not None:
            raise bad_request("a group is read over a WebSocket, where it can be told what was taken")
        client = clients.of(request)
        positions = await _positions(client, request)
        events = _events(client, positions, request.params["topic"], request.query["format"])
        return Stream(200, events, b"text/event-stream; charset=utf-8", ((b"x-accel-buffering", b"no"),))

    async def converse(request: Request, socket: WebSocket) -> None:
        client = clients.of(request)
        async with using(client):
            if request.query["group"] is None:
                reader = Reader(client.cluster, await _positions(client, request))
                await socket.accept()
                await _tell(socket, _Plain(reader), request.query["format"])
            else:
                await _tell_group(client, request, socket)

    routes.add(
        "GET",
        _PATH,
        "Stream a topic.",
        stream_messages,
        about=(
            "Server-sent events: `data` is a record, `id` the place in each partition; Last-Event-ID goes on after it. "
            "As a WebSocket: each text message is a record. With `group` it reads as a member of that group, and "
            'what was sent is committed when the caller says {"type": "commit"}.'
        ),
        params={"topic": TOPIC},
        query={
            "from": Query(Choice("earliest", "latest"), "latest", "Where to begin."),
            "timestamp": TIME,
            "partitions": Query(Array(PARTITION), None, "Only these, by commas."),
            "group": Query(GROUP, None, "WebSocket only: read as a member of this group."),
            "format": FORMAT,
        },
        headers={"Last-Event-ID": Query(Text(most=65_536), None, "Go on after this event.")},
        answers={200: Reply("Events.", media=("text/event-stream",)), **READ_PROBLEMS},
        converse=converse,
    )
    return routes


async def _positions(client: Client, request: Request) -> dict[TopicPartition, int]:
    topic, query = request.params["topic"], request.query
    count = (await client.cluster.topic(topic)).partitions
    wanted = list(range(count)) if query["partitions"] is None else sorted(set(query["partitions"]))
    if wanted[-1] >= count:
        raise Problem(404, f"topic '{topic}' has partitions 0 to {count - 1}", code="unknown-partition")
    if query["timestamp"] is not None:
        time = time_ms(query["timestamp"])
        found = {TopicPartition(topic, p): await offset_at(client, topic, p, time) for p in wanted}
    else:
        when = EARLIEST if query["from"] == "earliest" else LATEST
        offsets = await list_offsets(client.cluster, topic, dict.fromkeys(wanted, when))
        found = {TopicPartition(topic, p): offset for p, (offset, _) in offsets.items()}
    return found | {place: offset for place, offset in _resumed(request, topic).items() if place in found}


def _resumed(request: Request, topic: str) -> dict[TopicPartition, int]:
    last = request.header(b"last-event-id")
    if not last:
        return {}
    if not _POSITIONS.fullmatch(last):
        raise bad_request("Last-Event-ID is not an id of this stream")
    pairs = (pair.split(":") for pair in last.split(","))
    return {TopicPartition(topic, int(partition)): int(offset) for partition, offset in pairs}


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
        places = ",".join(f"{index}:{offset}" for index, offset in sorted(at.items()))
        # Line ends in JSON are spaces between its parts: inside texts they are escaped.
        data = shown(topic, partition, record, form).replace("\n", " ").replace("\r", " ")
        parts.append(f"id: {places}\ndata: {data}\n\n")
    return "".join(parts).encode()


# WebSockets


class _Plain:
    """Reading without a group: there is nothing to commit."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def poll(self, most: int, wait_ms: int) -> list[FetchedRecord]:
        return await self._reader.take(most, wait_ms)

    async def commit(self, offsets: None) -> dict[TopicPartition, Any]:  # noqa: ARG002 - as `Consumer` has it
        raise bad_request("there is nothing to commit without a group")


async def _tell_group(client: Client, request: Request, socket: WebSocket) -> None:
    topic = request.params["topic"]
    await client.cluster.topic(topic)
    settings = MemberSettings(group=request.query["group"], topics=(topic,), reset=request.query["from"])
    consumer = Consumer(client, settings, idle_ms=3_600_000, auto_commit=False)
    try:
        await consumer.joined(JOIN_SECONDS)
        await socket.accept()
        await _tell(socket, consumer, request.query["format"])
    finally:
        await consumer.close()


async def _tell(socket: WebSocket, source: "_Plain | Consumer", form: str) -> None:
    """Send records and take the client's messages, until either side ends."""
    telling = asyncio.ensure_future(_send_records(socket, source, form))
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


async def _send_records(socket: WebSocket, source: "_Plain | Consumer", form: str) -> None:
    while True:
        for topic, partition, record in await source.poll(_TAKE, int(HEARTBEAT_SECONDS * 1000)):
            await socket.send_text(shown(topic, partition, record, form))


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
