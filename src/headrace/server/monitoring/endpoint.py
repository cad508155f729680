"""A small HTTP server for probes and scrapes, on the broker's event loop: GET, one request per connection.

Whoever asks for something else than the paths it has is told so; whoever sends no request in time, or a head of more
than `MOST_HEAD` bytes, is sent away. Where there are too many, the one that has been slow for the longest makes room
for the next, so that nobody keeps a probe out by holding connections. It takes few descriptors and little memory.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Final, NamedTuple

import structlog

MOST_HEAD: Final = 8 * 1024
MOST_CONNECTIONS: Final = 32
"""That have not sent their request yet, and as many that are answered."""
HEAD_SECONDS: Final = 5.0
SEND_SECONDS: Final = 30.0
JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"

log = structlog.get_logger(__name__)


class HttpAnswer(NamedTuple):
    """What a path answers."""

    body: bytes
    content_type: str = TEXT
    status: HTTPStatus = HTTPStatus.OK
    encoding: str = ""


Headers = Mapping[str, str]
"""By lower-case name."""
Answerer = Callable[[Headers], Awaitable[HttpAnswer]]


_Slowest = dict[asyncio.Task[None], None]
"""Those that are at one step of their conversation, the first to come there first."""


class _Refused(Exception):
    """A request that is answered with its status and nothing else."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


class MetricsEndpoint:
    """Serves some paths on an address of its own."""

    def __init__(self, paths: Mapping[str, Answerer]) -> None:
        self._paths = paths
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._asking: _Slowest = {}
        self._answered: _Slowest = {}

    async def start(self, host: str, port: int) -> int:
        """Listen; the port, which the system chose if 0 was asked. Raises OSError."""
        self._server = await asyncio.start_server(self._accept, host, port, limit=MOST_HEAD)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Close the listening socket and all connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._converse(reader, writer))
        self._open.add(task)
        _enter(self._asking, task)
        task.add_done_callback(lambda _: self._ended(task, writer))

    def _ended(self, task: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
        self._open.discard(task)
        self._asking.pop(task, None)
        self._answered.pop(task, None)
        if task.cancelled():  # perhaps before it had begun
            writer.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            self._has_asked()
            method, answer = await self._answer(head)
            async with asyncio.timeout(SEND_SECONDS):
                writer.write(_encoded(answer, with_body=method != "HEAD"))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except asyncio.LimitOverrunError:
            writer.write(_encoded(_plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)))
            writer.close()
        except (asyncio.IncompleteReadError, TimeoutError, OSError):
            writer.transport.abort()

    def _has_asked(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._asking.pop(task, None)
        _enter(self._answered, task)

    async def _answer(self, head: bytes) -> tuple[str, HttpAnswer]:
        method = ""
        try:
            method, path, headers = _parsed(head)
            answerer = self._paths.get(path)
            if answerer is None:
                raise _Refused(HTTPStatus.NOT_FOUND)
            return method, await answerer(headers)
        except _Refused as refused:
            return method, _plain(refused.status)
        except Exception:
            log.exception("monitoring request failed")
            return method, _plain(HTTPStatus.INTERNAL_SERVER_ERROR)


def _enter(step: _Slowest, task: asyncio.Task[None]) -> None:
    if len(step) >= MOST_CONNECTIONS:
        slowest = next(iter(step))
        del step[slowest]
        slowest.cancel()
    step[task] = None


def _parsed(head: bytes) -> tuple[str, str, Headers]:
    """Method, path and headers of a request's head."""
    with suppress(UnicodeDecodeError, ValueError):
        first, *lines = head.decode("ascii").split("\r\n")[:-2]
        method, target, version = first.split(" ")
        headers = {name.strip().lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}
        if version in ("HTTP/1.0", "HTTP/1.1") and target.startswith("/"):
            if method not in ("GET", "HEAD"):
                raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED)
            return method, target.partition("?")[0], headers
    raise _Refused(HTTPStatus.BAD_REQUEST)


def _plain(status: HTTPStatus) -> HttpAnswer:
    return HttpAnswer(f"{status.value} {status.phrase}\n".encode(), status=status)


def _encoded(answer: HttpAnswer, *, with_body: bool = True) -> bytes:
    status = answer.status
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    ]
    if answer.encoding:
        lines.append(f"Content-Encoding: {answer.encoding}")
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET, HEAD")
    return "\r\n".join([*lines, "", ""]).encode("ascii") + (answer.body if with_body else b"")
