"""The registry over HTTP: Confluent's paths, parameters and answers, in one table.

A GET whose answer is known by heart (nothing has changed since it was given) is answered from memory. Parameters that
are not known are ignored, as Confluent's registry does.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final

from headrace.web.messages import Answer, Request, Stream
from headrace.web.routes import Handler, Routes

from ..service import Registry
from .associations import Associations
from .base_path import BASE, in_context
from .common import Nothing, body_of, explaining, render, replies, scope_of
from .media import negotiating
from .rights import Rights, action_of, require
from .schemas import Schemas
from .settings import Settings
from .subjects import Subjects

_MOST_KEPT: Final = 32 << 20
"""Bytes of answers, and of the questions that they answer, that are kept: a schema may be large, and the same one be
asked for in many ways."""
_AROUND_ANSWER: Final = 500
_HOT: Final = ("/schemas/ids/{id}", "/subjects/{subject}/versions/{version}")
"""What serializers ask when they start, and again for each schema that they meet."""

_Question = tuple[bytes, bytes, bytes]
"""Path, query and accepted types."""


class Api:
    """All that is served of one registry.

    `cluster_id` asks the cluster for its id. Without `rights` everybody may do everything.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        cluster_id: Callable[[], Awaitable[str]] | None = None,
        rights: Rights | None = None,
    ) -> None:
        self._registry = registry
        self._rights = rights
        self._parts = (
            Subjects(registry, rights),
            Schemas(registry, rights, cluster_id),
            Settings(registry, rights),
            Associations(registry, rights),
        )
        self._known: OrderedDict[_Question, Answer] = OrderedDict()
        self._known_at = -1
        self._known_bytes = 0

    def routes(self) -> Routes:
        """Every operation, to be mounted at the root."""
        routes = Routes(
            tag="Schema registry",
            about="Schemas by subject and version, with the API of Confluent's Schema Registry.",
            render=render,
            below=("/subjects", "/schemas", "/config", "/mode", "/compatibility", "/contexts", "/associations"),
            rewrites={BASE: in_context},
        )
        for method, path, summary, handler, query, body in (row for part in self._parts for row in part.table()):
            serve = negotiating(explaining(handler))
            if method == "GET" and (self._rights is None or "{subject}" in path):
                serve = self._remembering(serve)
            serve = self._permitting(serve, method, path)
            more = {
                "name": handler.__name__ + ("_of_subject" if path.startswith(("/config/", "/mode/")) else ""),
                "query": query or Nothing,
                "body": body_of(body),
                "answers": replies(),
                "is_hot": path in _HOT,
            }
            serve = serve if query is not None else _without_query(serve)
            routes.add(method, path, summary, serve, **more)
        return routes

    def _permitting(self, handler: Handler, method: str, path: str) -> Handler:
        """Serves only who is let in, and may do what the operation does with the subject that its path names, by any of
        its names."""
        rights, action = self._rights, action_of(method, path)
        if rights is None:
            return handler
        subjects, names_settings = self._parts[0], path.startswith(("/config", "/mode", "/associations"))

        async def permitted(request: Request, **declared: Any) -> Answer | Stream:
            await rights.admit(request)
            if action is not None:
                subject = scope_of(request) if names_settings else await subjects.subject(request)
                await require(rights, request, action, [subject])
            return await handler(request, **declared)

        return explaining(permitted)

    def _remembering(self, handler: Handler) -> Handler:
        """Answers again what was answered to the same question, while nothing has changed."""

        async def remembered(request: Request, **declared: Any) -> Answer | Stream:
            if self._known_at != self._registry.state.changes:
                self._known.clear()
                self._known_bytes = 0
                self._known_at = self._registry.state.changes
            scope = request.scope
            question = (
                scope.get("raw_path") or scope["path"].encode(),
                scope["query_string"],
                request.fields.get(b"accept", b""),
            )
            known = self._known.get(question)
            if known is not None:
                self._known.move_to_end(question)
                return known
            changes = self._known_at
            answer = await handler(request, **declared)
            if changes == self._registry.state.changes and isinstance(answer, Answer) and answer.status == 200:
                self._keep(question, answer)
            return answer

        return remembered

    def _keep(self, question: _Question, answer: Answer) -> None:
        """Keep an answer; those that were not asked for longest make room."""
        if question not in self._known:
            self._known[question] = answer
            self._known_bytes += _size(question, answer)
        while self._known_bytes > _MOST_KEPT:
            self._known_bytes -= _size(*self._known.popitem(last=False))


def _size(question: _Question, answer: Answer) -> int:
    return _AROUND_ANSWER + sum(map(len, question)) + len(answer.body)


def _without_query(handler: Handler) -> Handler:
    """For operations without parameters: those that come are ignored."""

    async def served(request: Request, query: Nothing) -> Answer | Stream:
        return await handler(request)

    return served
