"""The registry over HTTP: Confluent's paths, parameters and answers, in one table.

A GET whose answer is known by heart (nothing has changed since it was given) is answered from memory. Parameters that
are not known are ignored, as Confluent's registry does.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from headrace.web.messages import Answer, Request, Stream
from headrace.web.routes import Handler, Routes

from ..service import Registry
from .associations import Associations
from .common import body_of, explaining, render, replies
from .schemas import Schemas
from .settings import Settings
from .subjects import Subjects

_MOST_KEPT: Final = 10_000


class Api:
    """All that is served of one registry.

    `cluster_id` asks the cluster for its id. `admit` raises the problem that refuses a request, whatever it asks for.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        cluster_id: Callable[[], Awaitable[str]] | None = None,
        admit: Callable[[Request], Awaitable[None]] | None = None,
    ) -> None:
        self._registry = registry
        self._admit = admit
        self._parts = (Subjects(registry), Schemas(registry, cluster_id), Settings(registry), Associations(registry))
        self._known: dict[tuple[bytes, bytes], Answer] = {}
        self._known_at = -1

    def routes(self) -> Routes:
        """Every operation, to be mounted at the root."""
        routes = Routes(
            tag="Schema registry",
            about="Schemas by subject and version, with the API of Confluent's Schema Registry.",
            render=render,
            strict_query=False,
        )
        for method, path, summary, handler, query, body in (row for part in self._parts for row in part.table()):
            serve = self._admitting(self._remembering(handler) if method == "GET" else explaining(handler))
            more = {"name": handler.__name__, "query": query, "body": body_of(body), "answers": replies()}
            routes.add(method, path, summary, serve, **more)
        return routes

    def _admitting(self, handler: Handler) -> Handler:
        admit = self._admit
        if admit is None:
            return handler

        async def admitted(request: Request) -> Answer | Stream:
            await admit(request)
            return await handler(request)

        return admitted

    def _remembering(self, handler: Handler) -> Handler:
        """Answers again what was answered to the same question, while nothing has changed."""
        explained = explaining(handler)

        async def remembered(request: Request) -> Answer | Stream:
            if self._known_at != self._registry.state.changes:
                self._known.clear()
                self._known_at = self._registry.state.changes
            question = (request.scope.get("raw_path") or request.path.encode(), request.scope["query_string"])
            known = self._known.get(question)
            if known is not None:
                return known
            changes = self._known_at
            answer = await explained(request)
            if isinstance(answer, Answer) and len(self._known) < _MOST_KEPT and changes == self._registry.state.changes:
                self._known[question] = answer
            return answer

        return remembered
