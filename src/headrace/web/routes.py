"""What is served: operations declared with their parameters, bodies and answers, and found by method and path."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import parse_qsl, unquote_to_bytes

from .messages import Answer, Request, Stream
from .problem import Problem, bad_request, render
from .shapes import Shape, Text

Handler = Callable[[Request], Awaitable[Answer | Stream]]
Render = Callable[[Problem], Answer]
REQUIRED: Final[Any] = object()
"""The default of a parameter that must be given."""
MOST_QUERY_FIELDS: Final = 64
_MOST_KNOWN: Final = 4096
_LONGEST_KNOWN: Final = 200


class Query(NamedTuple):
    """A parameter in the query, or a header: what it may be, its default, and what it is for."""

    shape: Shape
    default: Any = REQUIRED
    about: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """One status that an operation may answer with. A problem where there is no shape and no media."""

    about: str
    shape: Shape | None = None
    media: tuple[str, ...] = ("application/json",)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Body:
    """What an operation takes, by media type; None stands for any bytes."""

    about: str
    media: Mapping[str, Shape | None]
    required: bool = True


class Converse(Protocol):
    """Speaks over a WebSocket that has been asked for; see `sockets.Socket`."""

    async def __call__(self, request: Request, socket: Any) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """All that is known of one method on one path."""

    method: str
    path: str
    summary: str
    handler: Handler
    answers: Mapping[int, Reply]
    about: str = ""
    name: str = ""
    path_shapes: Mapping[str, Shape] = field(default_factory=dict)
    query: Mapping[str, Query] = field(default_factory=dict)
    headers: Mapping[str, Query] = field(default_factory=dict)
    """Documented only: handlers read headers themselves."""
    body: Body | None = None
    converse: Converse | None = None
    """How a WebSocket on this path is served."""
    hidden: bool = False
    is_open: bool = False
    """Served whatever the rate: probes that must not be refused."""
    render: Render = render
    strict_query: bool = True
    tag: str = ""

    @property
    def defaults(self) -> Mapping[str, Any]:
        return {name: q.default for name, q in self.query.items() if q.default is not REQUIRED}


class Routes:
    """Operations that belong together. `render` is how problems look to their callers."""

    def __init__(self, *, tag: str, about: str = "", render: Render = render, strict_query: bool = True) -> None:
        self.tag = tag
        self.about = about
        self.render = render
        self.operations: list[Operation] = []
        self._strict_query = strict_query

    def add(self, method: str, path: str, summary: str, handler: Handler, **more: Any) -> None:
        """Serve a path; `{name}` in it is one segment. `more` are fields of `Operation`; `params` shapes the path's."""
        more.setdefault("name", handler.__name__.strip("_"))
        operation = Operation(
            method=method,
            path=path,
            summary=summary,
            handler=handler,
            tag=self.tag,
            render=self.render,
            strict_query=more.pop("strict_query", self._strict_query),
            path_shapes=more.pop("params", {}),
            **more,
        )
        self.operations.append(operation)

    def get(self, path: str, summary: str, **more: Any) -> Callable[[Handler], Handler]:
        return self._adding("GET", path, summary, more)

    def post(self, path: str, summary: str, **more: Any) -> Callable[[Handler], Handler]:
        return self._adding("POST", path, summary, more)

    def put(self, path: str, summary: str, **more: Any) -> Callable[[Handler], Handler]:
        return self._adding("PUT", path, summary, more)

    def patch(self, path: str, summary: str, **more: Any) -> Callable[[Handler], Handler]:
        return self._adding("PATCH", path, summary, more)

    def delete(self, path: str, summary: str, **more: Any) -> Callable[[Handler], Handler]:
        return self._adding("DELETE", path, summary, more)

    def _adding(self, method: str, path: str, summary: str, more: dict[str, Any]) -> Callable[[Handler], Handler]:
        def add(handler: Handler) -> Handler:
            self.add(method, path, summary, handler, **more)
            return handler

        return add


@dataclass(frozen=True, slots=True)
class Mounted:
    """A part of a gateway that another package brings: its routes, and what it runs while they are served."""

    routes: tuple[Routes, ...]
    life: AbstractAsyncContextManager[object]


class _Node:
    """One segment of paths."""

    __slots__ = ("children", "operations", "wild")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node] = {}
        self.wild: _Node | None = None
        self.operations: dict[str, _Entry] = {}


class _Entry(NamedTuple):
    operation: Operation
    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    defaults: Mapping[str, Any]


class Router:
    """Finds the operation of a request, and reads what its path and query say."""

    def __init__(self, mounted: Iterable[Routes]) -> None:
        self.mounted = list(mounted)
        self._root = _Node()
        self._known: dict[tuple[str, bytes, bytes], tuple[Operation, Mapping[str, Any], Mapping[str, Any]]] = {}
        """What was found for short requests, which come again and again; nobody changes what is in it."""
        for routes in self.mounted:
            for operation in routes.operations:
                self._insert(operation)

    def resolve(self, request: Request) -> Operation:
        """The operation, with `params` and `query` set; `Problem` 404, 405 or 400 otherwise."""
        scope = request.scope
        raw: bytes = scope.get("raw_path") or request.path.encode()
        asked = request.method, raw, scope["query_string"]
        known = self._known.get(asked)
        if known is not None:
            operation, request.params, request.query = known
            return operation
        operation = self._search(request, raw)
        if len(raw) + len(asked[2]) <= _LONGEST_KNOWN:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[asked] = operation, request.params, request.query
        return operation

    def _search(self, request: Request, raw: bytes) -> Operation:
        values: list[bytes] = []
        node = _find(self._root, raw.split(b"/"), 1, values)
        if node is None:
            raise Problem(404, "there is nothing here; /docs shows what there is", code="no-such-path")
        entry = node.operations.get(request.method)
        if entry is None:
            raise _not_allowed(request.method, node)
        if values:
            request.params = _read_params(entry, values)
        request.query = self._read_query(entry, request.scope["query_string"])
        return entry.operation

    def _read_query(self, entry: _Entry, text: bytes) -> Mapping[str, Any]:
        operation = entry.operation
        if not text and len(entry.defaults) == len(operation.query):
            return entry.defaults
        return read_query(operation, entry.defaults, text)

    def _insert(self, operation: Operation) -> None:
        node = self._root
        names: list[str] = []
        for segment in operation.path.split("/")[1:]:
            if segment.startswith("{"):
                names.append(segment[1:-1])
                node.wild = node = node.wild or _Node()
            else:
                node = node.children.setdefault(segment.encode(), _Node())
        shapes = tuple(operation.path_shapes.get(name, _SEGMENT) for name in names)
        assert operation.method not in node.operations, f"{operation.method} {operation.path} is declared twice"
        node.operations[operation.method] = _Entry(operation, tuple(names), shapes, dict(operation.defaults))


_SEGMENT: Final = Text(least=1, most=1024)


def _find(node: _Node, segments: list[bytes], at: int, values: list[bytes]) -> _Node | None:
    """The node of a path. A literal segment goes before a parameter."""
    if at == len(segments):
        return node if node.operations else None
    child = node.children.get(segments[at])
    if child is not None:
        params = _find(child, segments, at + 1, values)
        if params is not None:
            return params
    if node.wild is None or not segments[at]:
        return None
    values.append(segments[at])
    params = _find(node.wild, segments, at + 1, values)
    if params is None:
        values.pop()
    return params


def _read_params(entry: _Entry, values: list[bytes]) -> dict[str, Any]:
    found = {}
    for name, shape, raw in zip(entry.names, entry.shapes, values, strict=True):
        try:
            text = (unquote_to_bytes(raw) if b"%" in raw else raw).decode()
        except UnicodeDecodeError:
            raise bad_request(f"'{name}' in the path is not UTF-8") from None
        found[name] = shape.parse(text, name)
    return found


def read_query(operation: Operation, defaults: Mapping[str, Any], text: bytes) -> dict[str, Any]:
    """The query by the shapes that the operation declares."""
    values = dict(defaults)
    try:
        pairs = parse_qsl(
            text.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MOST_QUERY_FIELDS
        )
    except ValueError as error:
        raise bad_request(f"the query cannot be read: {error}") from None
    for name, value in pairs:
        known = operation.query.get(name)
        if known is not None:
            values[name] = known.shape.parse(value, name)
        elif operation.strict_query:
            wanted = ", ".join(operation.query) or "none"
            raise bad_request(f"there is no parameter '{name[:80]}' here; known: {wanted}", "unknown-parameter")
    for name, query in operation.query.items():
        if name not in values and query.default is REQUIRED:
            raise bad_request(f"the parameter '{name}' is missing")
    return values


def _not_allowed(method: str, node: _Node) -> Problem:
    allowed = ", ".join(sorted(node.operations))
    return Problem(
        405,
        f"{method[:20]} is not served here; {allowed} is",
        code="method-not-allowed",
        headers=((b"allow", allowed.encode()),),
    )
