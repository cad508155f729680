"""The ASGI application: the one place where requests meet routes, and where errors become answers."""

import asyncio
import zlib
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final

import structlog

from .guard import Guard
from .measured import UNMATCHED, HttpCounts
from .messages import Answer, BadBody, Disconnected, HeaderList, Receive, Request, Scope, Send, Stream
from .problem import Problem, render
from .routes import Operation, Router, Routes
from .sockets import SocketClosed, WebSocket

Translate = Callable[[Exception], Problem | None]
_SMALLEST_GZIPPED: Final = 1024
_LARGEST_INLINE: Final = 256 * 1024
_FIXED: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
)
_POLICY_VIOLATED: Final = 1008
_INTERNAL: Final = 1011
_CLIENT_LEFT: Final = 499
"""How others, too, count a request whose caller did not wait for the answer."""

log = structlog.get_logger(__name__)


class Application:
    """Serves routes. `translate` turns exceptions of the layers below into problems; others are our own defects.

    `life` is entered before the first request and left after the last.
    """

    def __init__(
        self,
        mounted: Iterable[Routes],
        *,
        guard: Guard | None = None,
        translate: Translate = lambda _error: None,
        life: AbstractAsyncContextManager[object] | None = None,
        counts: HttpCounts | None = None,
    ) -> None:
        self._counts = counts or HttpCounts()
        self.router = Router(mounted)
        self._guard = guard or Guard(hosts=["*"])
        self._translate = translate
        self._life = life or nullcontext()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http":
            await self._serve(Request(scope, receive), send)
        elif kind == "websocket":
            await self._converse(Request(scope, receive), receive, send)
        elif kind == "lifespan":
            await self._live(receive, send)

    async def _serve(self, request: Request, send: Send) -> None:
        counts = self._counts
        began, method = counts.now_ns(), request.method
        counts.pending += 1
        try:
            route, status = await self._answer(request, send)
        finally:
            counts.pending -= 1
        counts.answered(method, route, status, counts.now_ns() - began)

    async def _answer(self, request: Request, send: Send) -> tuple[str, int]:
        """The path of the operation that the request was for, and the status that it was answered with."""
        operation: Operation | None = None
        if request.method == "HEAD":
            request.method = "GET"
        try:
            self._guard.check(request)
            operation = self.router.resolve(request)
            if not operation.is_open:
                self._guard.take(request)
            answer = await operation.handler(request)
        except Problem as problem:
            answer = _rendered(problem, operation)
        except BadBody as error:
            answer = _rendered(Problem(error.status, str(error)), operation)
        except Disconnected:
            return _path(operation), _CLIENT_LEFT
        except Exception as error:
            answer = _rendered(self._explain(error, request), operation)
        if isinstance(answer, Answer):
            await _send_answer(answer, request, send)
        else:
            await _send_stream(answer, request, send)
        return _path(operation), answer.status

    def _explain(self, error: Exception, request: Request) -> Problem:
        problem = self._translate(error)
        if problem is None:
            log.exception("request failed", method=request.method, path=request.path, exc_info=error)
            problem = Problem(500, "something went wrong here; the gateway's log says what", code="internal")
        return problem

    async def _converse(self, request: Request, receive: Receive, send: Send) -> None:
        socket = WebSocket(receive, send)
        self._counts.websockets += 1
        try:
            self._guard.check(request)
            operation = self.router.resolve(request)
            self._guard.take(request)
            if operation.converse is None:
                raise Problem(400, "no WebSocket is served here; /docs shows where one is")
            await operation.converse(request, socket)
        except Problem as problem:
            await socket.close(_POLICY_VIOLATED, problem.detail)
        except SocketClosed:
            pass
        except Exception as error:
            found = self._explain(error, request)
            await socket.close(_INTERNAL if found.status >= 500 else _POLICY_VIOLATED, found.detail)
        finally:
            self._counts.websockets -= 1

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            async with self._life:
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except Exception as error:
            log.exception("the gateway could not start", exc_info=error)
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.shutdown.complete"})


def _path(operation: Operation | None) -> str:
    return UNMATCHED if operation is None else operation.path


def _rendered(problem: Problem, operation: Operation | None) -> Answer:
    return render(problem) if operation is None else operation.render(problem)


async def _send_answer(answer: Answer, request: Request, send: Send) -> None:
    status, body, content_type, more = answer
    headers = [(b"content-type", content_type), *_FIXED, *more]
    if len(body) >= _SMALLEST_GZIPPED and b"gzip" in request.headers.get(b"accept-encoding", b""):
        body = await _gzipped(body)
        headers += ((b"content-encoding", b"gzip"), (b"vary", b"accept-encoding"))
    if status != 204:
        headers.append((b"content-length", b"%d" % len(body)))
    else:
        del headers[0]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _gzipped(body: bytes) -> bytes:
    if len(body) <= _LARGEST_INLINE:
        return _gzip(body)
    return await asyncio.to_thread(_gzip, body)


def _gzip(body: bytes) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    return packer.compress(body) + packer.flush()


async def _send_stream(stream: Stream, request: Request, send: Send) -> None:
    headers: HeaderList = [(b"content-type", stream.content_type), *_FIXED, *stream.headers]
    await send({"type": "http.response.start", "status": stream.status, "headers": headers})
    leaving = asyncio.ensure_future(request.disconnected())
    sending = asyncio.ensure_future(_send_chunks(stream, send))
    try:
        await asyncio.wait((leaving, sending), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (leaving, sending):
            task.cancel()
        results = await asyncio.gather(leaving, sending, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            log.warning("a stream ended early", path=request.path, reason=str(result))
    await send({"type": "http.response.body", "body": b""})


async def _send_chunks(stream: Stream, send: Send) -> None:
    try:
        async for chunk in stream.chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    finally:
        close = getattr(stream.chunks, "aclose", None)
        if close is not None:
            await close()
