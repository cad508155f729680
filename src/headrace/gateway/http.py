"""A small HTTP/1.1 server: one request per connection, bounded in size, time and number."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

MAX_HEAD_BYTES: Final = 16 << 10
HEAD_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 30.0
MAX_CONNECTIONS: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    method: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    status: HTTPStatus
    body: dict[str, Any]


Respond = Callable[[Request], Awaitable[Response]]


class BadRequest(Exception):  # noqa: N818 - named for its status
    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.response = failure(status, reason)


def failure(status: HTTPStatus, reason: str) -> Response:
    return Response(status=status, body={"error": reason})


def parse_head(head: bytes) -> Request:
    """The request line of a head; the header fields are of no use here and only have to be well-formed."""
    try:
        line, *fields = head.decode("ascii").removesuffix("\r\n\r\n").split("\r\n")
        method, target, version = line.split(" ")
    except ValueError as error:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "not an HTTP request") from error
    if not version.startswith("HTTP/1.") or not target.startswith("/") or any(":" not in f for f in fields):
        raise BadRequest(HTTPStatus.BAD_REQUEST, "not an HTTP/1.1 request")
    return Request(method=method, path=target.partition("?")[0])


def encode(response: Response, *, with_body: bool) -> bytes:
    body = json.dumps(response.body).encode() + b"\n"
    head = (
        f"HTTP/1.1 {response.status.value} {response.status.phrase}\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")


@asynccontextmanager
async def serving(host: str, port: int, respond: Respond) -> AsyncIterator[int]:
    """Answer requests with `respond` while the block runs; gives the port that is bound."""
    connections = Connections(respond)
    server = await asyncio.start_server(connections.serve, host, port, limit=MAX_HEAD_BYTES)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        await connections.close()
        await server.wait_closed()


class Connections:
    """The open connections of a server, each with its task."""

    def __init__(self, respond: Respond) -> None:
        self._respond = respond
        self._tasks: set[asyncio.Task[None]] = set()

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= MAX_CONNECTIONS:
            writer.close()
            return
        task = asyncio.create_task(self._answer(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_SECONDS + ANSWER_SECONDS):
                writer.write(await self._response(reader))
                await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _response(self, reader: asyncio.StreamReader) -> bytes:
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                request = parse_head(await reader.readuntil(b"\r\n\r\n"))
        except TimeoutError:
            return encode(failure(HTTPStatus.REQUEST_TIMEOUT, "the request took too long"), with_body=True)
        except asyncio.LimitOverrunError:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            return encode(failure(status, f"a request's head has at most {MAX_HEAD_BYTES} bytes"), with_body=True)
        except BadRequest as error:
            return encode(error.response, with_body=True)
        return encode(await self._respond(request), with_body=request.method != "HEAD")
