"""The ASGI application: the one place where requests meet routes, and where errors become answers."""

import asyncio
import zlib
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final

import structlog
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from .endpoints import EXCHANGE, Exchange, Paths
from .guard import Guard
from .measured import UNMATCHED, HttpCounts
from .messages import Answer, BadBody, Disconnected, HeaderList, Request, Stream
from .problem import Problem, render
from .routes import Routes
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
_UNAUTHORIZED: Final = 401
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
        self._guard = guard or Guard(hosts=["*"])
        parts = list(mounted)
        self._paths = Paths(parts, self._guard)
        self._rewrites = [pair for routes in parts for pair in routes.rewrites.items()]
        self._renders = [(path, routes.render) for routes in parts for path in routes.below]
        self._translate = translate
        self._life = life or nullcontext()
        self._http: ASGIApp = _with_cors(self._serve, self._guard.origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A coroutine function, as by that servers tell which version of ASGI this is."""
        kind = scope["type"]
        if kind == "http":
            await self._http(scope, receive, send)
        elif kind == "websocket":
            await self._converse(scope, receive, send)
        else:
            await self._live(receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        counts = self._counts
        exchange = self._exchange(scope, receive)
        method = scope["method"]
        began = counts.now_ns()
        counts.pending += 1
        try:
            status = await self._answer(exchange, receive, send)
        finally:
            counts.pending -= 1
            del scope[EXCHANGE]  # it holds the scope: nothing is left for the collector
        operation = exchange.operation
        counts.answered(method, UNMATCHED if operation is None else operation.url, status, counts.now_ns() - began)

    async def _answer(self, exchange: Exchange, receive: Receive, send: Send) -> int:
        """The status that was answered with."""
        request = exchange.request
        if request.method == "HEAD":
            request.method = "GET"
        try:
            self._guard.check(request)
            await self._paths.serve(request.scope, receive, send, exchange)
            answer = exchange.answer
            assert answer is not None, "a handler has answered or raised"
        except Disconnected:
            return _CLIENT_LEFT
        except Exception as error:
            answer = self._rendered(self._explain(error, request), exchange)
        if answer.status == _UNAUTHORIZED:
            self._guard.login_failed(request)
        if isinstance(answer, Answer):
            await _send_answer(answer, request, send)
        else:
            await _send_stream(answer, request, send)
        return answer.status

    def _explain(self, error: Exception, request: Request) -> Problem:
        if isinstance(error, Problem):
            return error
        if isinstance(error, BadBody):
            return Problem(error.status, str(error))
        problem = self._translate(error)
        if problem is None:
            log.exception("request failed", method=request.method, path=request.scope["path"], exc_info=error)
            problem = Problem(500, "something went wrong here; the gateway's log says what", code="internal")
        return problem

    def _exchange(self, scope: Scope, receive: Receive, socket: WebSocket | None = None) -> Exchange:
        """The request, with its path as it was sent: a `%2F` in a name ends no segment. A slash at its end counts for
        nothing."""
        raw_path = scope.get("raw_path")
        if raw_path is not None and b"%" in raw_path:
            scope["path"] = raw_path.decode("latin-1")
        if scope["path"].endswith("/") and len(scope["path"]) > 1:
            scope["path"] = scope["path"][:-1]
        for beginning, rewrite in self._rewrites:
            if scope["path"].startswith(beginning):
                scope["path"], scope["query_string"] = rewrite(scope["path"], scope["query_string"])
        exchange = Exchange(Request(scope, receive), socket)
        scope[EXCHANGE] = exchange
        return exchange

    def _rendered(self, problem: Problem, exchange: Exchange) -> Answer:
        if exchange.operation is not None:
            return exchange.operation.render(problem)
        path: str = exchange.request.scope["path"]
        found = (shown for below, shown in self._renders if path == below or path.startswith(f"{below}/"))
        return next(found, render)(problem)

    async def _converse(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        exchange = self._exchange(scope, receive, socket)
        self._counts.websockets += 1
        try:
            self._guard.check(exchange.request)
            await self._paths.serve(scope, receive, send, exchange)
        except SocketClosed:
            pass
        except Exception as error:
            problem = self._explain(error, exchange.request)
            if problem.status == _UNAUTHORIZED:
                self._guard.login_failed(exchange.request)
            code = _INTERNAL if problem.status >= 500 else _POLICY_VIOLATED
            await socket.refuse(self._rendered(problem, exchange), code, problem.detail)
        finally:
            self._counts.websockets -= 1
            del scope[EXCHANGE]

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


def _with_cors(application: ASGIApp, origins: frozenset[str]) -> ASGIApp:
    """Pages of allowed sites may ask, and read what they are answered."""
    if not origins:
        return application
    return CORSMiddleware(
        application,
        allow_origins=sorted(origins),
        allow_methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"],
        allow_headers=["*"],
        expose_headers=["Location", "Retry-After", "WWW-Authenticate", "Allow"],
    )


async def _send_answer(answer: Answer, request: Request, send: Send) -> None:
    status, body, content_type, more = answer
    headers = [(b"content-type", content_type), *_FIXED, *more]
    if len(body) >= _SMALLEST_GZIPPED and b"gzip" in request.fields.get(b"accept-encoding", b""):
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
    leaving = asyncio.ensure_future(asyncio.Event().wait() if stream.reads_body else request.disconnected())
    sending = asyncio.ensure_future(_send_chunks(stream, send))
    try:
        await asyncio.wait((leaving, sending), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (leaving, sending):
            task.cancel()
        results = await asyncio.gather(leaving, sending, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            log.warning("a stream ended early", path=request.scope["path"], reason=str(result))
    await send({"type": "http.response.body", "body": b""})


async def _send_chunks(stream: Stream, send: Send) -> None:
    try:
        async for chunk in stream.chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    finally:
        close = getattr(stream.chunks, "aclose", None)
        if close is not None:
            await close()
