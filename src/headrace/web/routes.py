"""What is served: operations declared with their parameters, bodies and answers."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec import Struct

from .messages import Answer, Request, Stream
from .problem import Problem, render

Handler = Callable[..., Awaitable[Answer | Stream]]
"""Gets the request and, by name, what its operation declares: `path`, `query`, `headers`, `body`."""
Render = Callable[[Problem], Answer]
Rewrite = Callable[[str, bytes], tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Reply:
    """One status that an operation may answer with: a `kind` of JSON, or bytes of some `media`; else a problem."""

    about: str
    kind: Any = None
    media: tuple[str, ...] = ("application/json",)
    headers: Mapping[str, str] = field(default_factory=dict)
    example: Any = None
    """Where what the members' own examples make together would not do."""
    also: Mapping[str, Any] = field(default_factory=dict)
    """Other media types that it may be answered in, and what each holds."""


@dataclass(frozen=True, slots=True)
class Body:
    """What an operation takes. With a `kind` the handler gets it as `body`; else it reads the body itself.

    `media` are the types that are taken and what each holds: a type, several, or None for any bytes.
    """

    about: str
    kind: Any = None
    media: Mapping[str, Any] = field(default_factory=dict)
    required: bool = True
    examples: Mapping[str, Any] = field(default_factory=dict)
    """By media type, where what the members' own examples make together would not do."""


class Converse(Protocol):
    """Speaks over a WebSocket that has been asked for; see `sockets.WebSocket`."""

    async def __call__(self, request: Request, socket: Any, **declared: Any) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """All that is known of one method on one path."""

    method: str
    url: str
    summary: str
    handler: Handler
    answers: Mapping[int, Reply]
    about: str = ""
    name: str = ""
    path: type[Struct] | None = None
    query: type[Struct] | None = None
    headers: type[Struct] | None = None
    body: Body | None = None
    converse: Converse | None = None
    """How a WebSocket on this path is served."""
    is_open: bool = False
    """Served whatever the rate: probes that must not be refused."""
    is_hot: bool = False
    """Looked for before all others."""
    render: Render = render
    tag: str = ""


class Routes:
    """Operations that belong together. `render` is how problems look to their callers, and to callers of any path at or
    `below` those named that none of them serves. `rewrites`: what paths that begin so, and their queries, stand for."""

    def __init__(
        self,
        *,
        tag: str,
        about: str = "",
        render: Render = render,
        below: tuple[str, ...] = (),
        rewrites: Mapping[str, Rewrite] | None = None,
    ) -> None:
        self.tag = tag
        self.about = about
        self.render = render
        self.below = below
        self.rewrites = rewrites or {}
        self.operations: list[Operation] = []

    def add(self, method: str, url: str, summary: str, handler: Handler, **more: Any) -> None:
        """Serve a path; `{name}` in it is one segment. `more` are fields of `Operation`."""
        more.setdefault("name", handler.__name__.strip("_"))
        self.operations.append(
            Operation(
                method=method, url=url, summary=summary, handler=handler, tag=self.tag, render=self.render, **more
            )
        )

    def get(self, url: str, summary: str, **more: Any) -> Callable[[Handler], Handler]:
        return self._adding("GET", url, summary, more)

    def post(self, url: str, summary: str, **more: Any) -> Callable[[Handler], Handler]:
        return self._adding("POST", url, summary, more)

    def put(self, url: str, summary: str, **more: Any) -> Callable[[Handler], Handler]:
        return self._adding("PUT", url, summary, more)

    def patch(self, url: str, summary: str, **more: Any) -> Callable[[Handler], Handler]:
        return self._adding("PATCH", url, summary, more)

    def delete(self, url: str, summary: str, **more: Any) -> Callable[[Handler], Handler]:
        return self._adding("DELETE", url, summary, more)

    def _adding(self, method: str, url: str, summary: str, more: dict[str, Any]) -> Callable[[Handler], Handler]:
        def add(handler: Handler) -> Handler:
            self.add(method, url, summary, handler, **more)
            return handler

        return add


@dataclass(frozen=True, slots=True)
class Mounted:
    """A part of a gateway that another package brings: its routes, and what it runs while they are served."""

    routes: tuple[Routes, ...]
    life: AbstractAsyncContextManager[object]
