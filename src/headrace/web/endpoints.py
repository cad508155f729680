"""Starlette's router with one endpoint for each path: it reads what the operation declares, and calls its handler.

An endpoint leaves its answer in the exchange that the scope carries; the application sends it. So answers and errors
are turned into bytes in one place, and a request costs no more than finding its route and checking its parameters.
"""

from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from starlette.routing import BaseRoute, Route, Router, WebSocketRoute, compile_path
from starlette.types import Receive, Scope, Send

from .checking import NoParameters, Parameters, check_counts, decoder
from .guard import Guard
from .messages import Answer, Request, Stream
from .problem import Problem, bad_request
from .routes import Operation, Routes
from .sockets import WebSocket

EXCHANGE: Final = "headrace.exchange"
_NOTHING: Final = Parameters(NoParameters)


class Exchange:
    """A request with the operation that it is for and its answer, as far as both are known."""

    __slots__ = ("answer", "operation", "request", "socket")

    def __init__(self, request: Request, socket: WebSocket | None = None) -> None:
        self.request = request
        self.socket = socket
        self.operation: Operation | None = None
        self.answer: Answer | Stream | None = None


class Paths:
    """Finds the endpoint of a path: those asked most first, and a literal segment before a parameter.

    Of HTTP's, a path without parameters and those asked most are found without going through Starlette's router, whose
    patterns they have: it takes as long as all the rest.
    """

    def __init__(self, mounted: Iterable[Routes], guard: Guard) -> None:
        found = _endpoints(mounted, guard)
        self._plain = {url: endpoint for url, endpoint in found if "{" not in url}
        self._hot = [
            (compile_path(url)[0].match, endpoint) for url, endpoint in found if "{" in url and endpoint.is_hot
        ]
        self._router = _router(found)

    async def serve(self, scope: Scope, receive: Receive, send: Send, exchange: Exchange) -> None:
        """Leave the answer in the exchange, or converse."""
        if exchange.socket is None:
            path = scope["path"]
            endpoint = self._plain.get(path)
            if endpoint is not None:
                scope["path_params"] = {}
                await endpoint.answer(exchange)
                return
            for match, endpoint in self._hot:
                matched = match(path)
                if matched is not None:
                    scope["path_params"] = matched.groupdict()
                    await endpoint.answer(exchange)
                    return
        await self._router(scope, receive, send)


def _endpoints(mounted: Iterable[Routes], guard: Guard) -> "list[tuple[str, _Endpoint]]":
    by_url: dict[str, list[Operation]] = {}
    for routes in mounted:
        for operation in routes.operations:
            by_url.setdefault(operation.url, []).append(operation)
    ranked = sorted(by_url.items(), key=lambda item: _rank(*item))
    return [(url, _Endpoint(operations, guard)) for url, operations in ranked]


def _router(endpoints: "list[tuple[str, _Endpoint]]") -> Router:
    found: list[BaseRoute] = []
    for url, endpoint in endpoints:
        found.append(Route(url, endpoint, name=url))
        if endpoint.converses:
            found.append(WebSocketRoute(url, endpoint, name=url))
    return Router(found, redirect_slashes=False, default=_nothing_here)


def _rank(url: str, operations: list[Operation]) -> tuple[bool, list[bool]]:
    is_hot = any(operation.is_hot for operation in operations)
    return not is_hot, [segment.startswith("{") for segment in url.split("/")]


async def _nothing_here(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - as ASGI has it
    if scope["type"] == "websocket":
        raise bad_request("no WebSocket is served here; /docs shows where one is")
    raise Problem(404, f"there is nothing at {scope['path'][:200]}; /docs shows what there is", code="not-found")


class _Endpoint:
    """All methods of one path."""

    def __init__(self, operations: list[Operation], guard: Guard) -> None:
        self._readers = {operation.method: _Reader(operation) for operation in operations}
        assert len(self._readers) == len(operations), f"{operations[0].url} has a method twice"
        self._guard = guard
        self.is_hot = any(operation.is_hot for operation in operations)
        self.converses = any(operation.converse is not None for operation in operations)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await self.answer(scope[EXCHANGE])

    async def answer(self, exchange: Exchange) -> None:
        """Leave the answer in the exchange, or converse."""
        request = exchange.request
        reader = self._readers.get(request.method)
        if reader is None:
            raise self._not_allowed(request.method)
        operation = exchange.operation = reader.operation
        if not operation.is_open:
            self._guard.take(request)
        declared = await reader.declared(request)
        if exchange.socket is None:
            exchange.answer = await operation.handler(request, **declared)
        else:
            assert operation.converse is not None
            await operation.converse(request, exchange.socket, **declared)

    def _not_allowed(self, method: str) -> Problem:
        allowed = ", ".join(sorted(self._readers))
        return Problem(
            405,
            f"{method[:20]} is not served here; {allowed} is",
            code="method-not-allowed",
            headers=((b"allow", allowed.encode()),),
        )


class _Reader:
    """What an operation declares, out of a request."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self._path, self._query, self._headers = (
            None if kind is None else Parameters(kind) for kind in (operation.path, operation.query, operation.headers)
        )
        body = operation.body
        self._body = None if body is None or body.kind is None else decoder(body.kind, "the body")
        self._needs_body = body is not None and body.required

    async def declared(self, request: Request) -> dict[str, Any]:
        found: dict[str, Any] = {}
        scope = request.scope
        if self._path is not None:
            found["path"] = self._path.of(path_values(scope))
        if self._query is not None:
            found["query"] = self._query.of_query(scope["query_string"])
        elif scope["query_string"]:
            _NOTHING.of_query(scope["query_string"])
        if self._headers is not None:
            found["headers"] = self._headers.of_headers(request.fields)
        if self._body is not None:
            data = await request.body()
            await check_counts(data)
            found["body"] = self._body(data) if data or self._needs_body else None
        return found


def path_values(scope: Scope) -> dict[str, str]:
    """What stands for the names in a path, decoded."""
    values: dict[str, str] = scope["path_params"]
    if "%" not in scope["path"]:
        return values
    try:
        return {name: unquote_to_bytes(value).decode() for name, value in values.items()}
    except UnicodeDecodeError:
        raise bad_request("the path is not UTF-8") from None
