"""Streams and replies against a broker."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from headrace.client.aio.client import Client
from headrace.client.aio.fetching import fetch
from headrace.client.core.handshake import ConnectionSettings
from headrace.net.address import Address
from headrace.protocol.records import Record
from headrace.protocol.topic_partition import TopicPartition
from tests.support.asgi import Asker, conversation, scope_of


async def make(ask: Asker, name: str, partitions: int = 1) -> None:
    assert (await ask("POST", "/api/v1/topics", {"name": name, "partitions": partitions})).status == 201


class Listener:
    """A caller of a stream that leaves when it has enough."""

    def __init__(self, ask: Asker, target: str, headers: dict[str, str] | None = None) -> None:
        self.chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._left = asyncio.Event()
        self._asked = 0
        scope = scope_of("GET", target, {"host": "localhost", **(headers or {})})
        self.task = asyncio.ensure_future(ask.application(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        self._asked += 1
        if self._asked == 1:
            return {"type": "http.request", "body": b""}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status.set_result(message["status"])
        else:
            self.chunks.put_nowait(message.get("body", b""))

    async def events(self) -> AsyncIterator[dict[str, str]]:
        buffer = ""
        while True:
            buffer += (await self.chunks.get()).decode()
            while "\n\n" in buffer:
                event, _, buffer = buffer.partition("\n\n")
                fields = dict(line.split(": ", 1) for line in event.split("\n") if not line.startswith(":"))
                if "data" in fields:
                    yield fields

    async def leave(self) -> None:
        self._left.set()
        await self.task


def test_events_come_as_they_are_published_and_go_on_after_the_last(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "events", 2)
        listener = Listener(ask, "/api/v1/topics/events/stream?from=earliest")
        assert await listener.status == 200
        events = listener.events()
        last = ""
        for number in range(3):
            body = {"value": {"n": number, "t": "a\nb"}, "partition": number % 2}
            await ask("POST", "/topics/events", body)
            event = await anext(events)
            assert json.loads(event["data"])["value"]["n"] == number
            last = event["id"]
        await listener.leave()
        assert last == "0:2,1:1"
        again = Listener(ask, "/api/v1/topics/events/stream?from=earliest", {"Last-Event-ID": "0:1,1:0"})
        found = again.events()
        values = {json.loads((await anext(found))["data"])["value"]["n"] for _ in range(2)}
        assert values == {1, 2}
        await again.leave()
        assert (await ask("GET", "/api/v1/topics/nowhere/stream")).status == 404

    conversation(bootstrap, talk)


class Line:
    """A WebSocket, as a server drives it."""

    def __init__(
        self,
        ask: Asker,
        target: str,
        headers: dict[str, str] | None = None,
        extensions: dict[str, Any] | None = None,
    ) -> None:
        self.inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.outbox: asyncio.Queue[Any] = asyncio.Queue()
        self.inbox.put_nowait({"type": "websocket.connect"})
        scope = scope_of("GET", target, {"host": "localhost", **(headers or {})}, "websocket")
        scope["extensions"] = extensions or {}
        self.task = asyncio.ensure_future(ask.application(scope, self.inbox.get, self.outbox.put))

    async def next(self) -> dict[str, Any]:
        return dict(await self.outbox.get())

    async def record(self) -> Any:
        message = await self.next()
        assert message["type"] == "websocket.send", message
        return json.loads(message["text"])

    async def leave(self) -> None:
        self.inbox.put_nowait({"type": "websocket.disconnect"})
        await self.task


def test_a_websocket_reads_as_a_member_and_commits_what_it_was_sent(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "lines")
        await ask("POST", "/topics/lines", {"messages": [{"value": 1}, {"value": 2}]})
        target = "/api/v1/topics/lines/stream?group=wires&from=earliest"
        line = Line(ask, target)
        assert (await line.next())["type"] == "websocket.accept"
        assert [(await line.record())["value"] for _ in range(2)] == [1, 2]
        line.inbox.put_nowait({"type": "websocket.receive", "text": "hm"})
        assert (await line.record())["type"] == "problem"
        line.inbox.put_nowait({"type": "websocket.receive", "text": '{"type": "commit"}'})
        assert (await line.record())["type"] == "committed"
        await line.leave()
        assert (await ask("GET", "/api/v1/consumer-groups/wires/offsets")).json["lag"] == 0

    conversation(bootstrap, talk)


def test_a_websocket_from_a_page_of_another_site_is_refused(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "guarded")
        line = Line(ask, "/api/v1/topics/guarded/stream", {"origin": "http://evil.example"})
        message = await line.next()
        assert (message["type"], message["code"]) == ("websocket.close", 1008)
        await line.task

    conversation(bootstrap, talk)


async def answer_one(bootstrap: str, topic: str) -> None:
    """What Spring's listener does: reads a request, writes the reply to the topic it names, with its id."""
    host, _, port = bootstrap.rpartition(":")
    settings = ConnectionSettings(client_id="answerer", connect_timeout=60, request_timeout=120)
    async with Client([Address(host, int(port))], settings) as client:
        page = await fetch(client.cluster, TopicPartition(topic, 0), 0, wait_ms=60_000)
        request = page.records[0]
        headers = dict(request.headers)
        target = (headers["kafka_replyTopic"] or b"").decode()
        stray = Record(0, 1, None, b"not yours", (("kafka_correlationId", b"x" * 16),))
        value = b'{"answer": ' + (request.value or b"") + b"}"
        reply = Record(0, 1, None, value, (("kafka_correlationId", headers["kafka_correlationId"]),))
        await client.producer.send(target, 0, [stray, reply])


def test_a_request_gets_the_reply_that_bears_its_id(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "questions")
        await make(ask, "questions.replies", 2)
        answering = asyncio.ensure_future(answer_one(bootstrap, "questions"))
        reply = await ask("POST", "/api/v1/topics/questions/request?timeout_ms=120000", b"41", {"X-Partition-Key": "k"})
        await answering
        assert reply.status == 200, reply.body
        assert reply.json["reply"]["value"] == {"answer": 41}
        late = await ask("POST", "/api/v1/topics/questions/request?timeout_ms=20", b"42")
        assert (late.status, late.json["code"]) == (504, "no-reply")
        nowhere = await ask("POST", "/api/v1/topics/questions/request?reply_topic=nowhere", b"42")
        assert nowhere.status == 404

    conversation(bootstrap, talk)
