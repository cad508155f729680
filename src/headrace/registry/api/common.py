"""What the registry's handlers share: parameters, bodies, answers, and the way refusals look."""

import re
from collections.abc import Collection
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from headrace.schema_log.names import EVERY_CONTEXT, EVERYTHING, beside, context_of, join, normalized, split
from headrace.schema_log.state import RegistryState, Version
from headrace.web.endpoints import path_values
from headrace.web.messages import Answer, Request, Stream, json_answer
from headrace.web.problem import Problem
from headrace.web.routes import Body, Handler, Reply

from .. import answers, decisions, errors
from ..errors import RegistryError
from ..parsing import Posted
from ..service import Registry
from .media import MEDIA, TAKEN
from .rights import Action, Rights, require

_SUBJECT: Final = "headrace.subject"
_MEDIA: Final = tuple(kind.decode() for kind in TAKEN)

Row = tuple[str, str, str, Handler, type[Struct] | None, Any]
"""Method, path, summary, handler, query and body of an operation."""


Flag = Annotated[str, Meta(max_length=100, examples=["false"])]
"""`true` in any letter case; anything else is false, as Java reads it."""
Name = Annotated[str, Meta(max_length=1000, examples=[""])]


def is_set(flag: str) -> bool:
    """What a flag says."""
    return flag.lower() == "true"


class Nothing(Struct, frozen=True):
    """Parameters that are not known are ignored."""


class Paging(Struct, frozen=True):
    """A part of a list."""

    offset: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    limit: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = -1


class Form(Struct, frozen=True):
    """How to show a schema's text."""

    format: Name = ""


class Force(Struct, frozen=True):
    """Whether to do it all the same."""

    force: Flag = "false"


class Permanent(Struct, frozen=True):
    """Whether to forget what was deleted."""

    permanent: Flag = "false"


class Failure(Struct):
    """What is wrong, as Confluent has it."""

    error_code: Annotated[int, Meta(examples=[40401])]
    message: Annotated[str, Meta(examples=["Subject 'orders-value' not found."])]


class Handlers:
    """Handlers of one registry."""

    def __init__(self, registry: Registry, rights: Rights | None = None) -> None:
        self.registry = registry
        self.rights = rights

    async def readable(self, request: Request, subjects: Collection[str]) -> Collection[str]:
        """Those of some subjects that the caller may read."""
        return subjects if self.rights is None else await self.rights.readable(request, subjects)

    async def require_one(self, request: Request, subjects: Collection[str], schema_id: int) -> None:
        """RegistryError 403 unless the caller may read one of the subjects that have a schema."""
        if subjects and not await self.readable(request, subjects):
            raise errors.schema_denied(schema_id)

    async def require_references(self, request: Request, subject: str, posted: Posted) -> None:
        """RegistryError 403 unless the caller may read all that a schema refers to."""
        referred = [beside(subject, reference.subject) for reference in posted.references]
        await require(self.rights, request, Action.READ, referred)

    async def version(self, entry: Version, form: str) -> Answer:
        return answered(answers.version(entry, await self.registry.text(entry, form)))

    async def subject(self, request: Request) -> str:
        """The subject in the path, or the one that it is another name of: the same for all of one request, so that what
        is served is what the caller has a right to."""
        found: str | None = request.scope.get(_SUBJECT)
        if found is None:
            await self.registry.loaded()
            found = request.scope[_SUBJECT] = decisions.aliased(self.registry.state, subject_of(request))
        return found


def explaining(handler: Handler) -> Handler:
    """Turns refusals into answers that carry Confluent's code."""

    async def explained(request: Request, **declared: Any) -> Answer | Stream:
        try:
            return await handler(request, **declared)
        except RegistryError as error:
            return json_answer({"error_code": error.code, "message": error.message}, error.status, (), MEDIA)

    return explained


def render(problem: Problem) -> Answer:
    """What is refused before it comes to the registry, as the registry refuses."""
    return json_answer(
        {"error_code": problem.status, "message": problem.detail}, problem.status, problem.headers, MEDIA
    )


def answered(value: Any) -> Answer:
    return json_answer(value, content_type=MEDIA)


def subject_of(request: Request) -> str:
    return normalized(path_values(request.scope)["subject"])


def scope_of(request: Request) -> str:
    """The scope of settings a path names: a subject, a context (`:.context:`), or everything."""
    subject = path_values(request.scope).get("subject", EVERYTHING)
    if subject in (":.__GLOBAL:", ":.:"):
        return EVERYTHING
    return normalized(subject)


def number_of(request: Request) -> int:
    text = path_values(request.scope)["version"].strip()
    if text.lower() in ("latest", "-1"):
        return -1
    if not re.fullmatch(r"[0-9]{1,10}", text) or not 0 < int(text) <= errors.MAX_ID:
        raise errors.invalid_version(text)
    return int(text)


def id_of(request: Request) -> int:
    text = path_values(request.scope)["id"]
    if not re.fullmatch(r"[0-9]{1,10}", text) or int(text) > errors.MAX_ID:
        raise errors.no_such_path()
    return int(text)


def by_id(state: RegistryState, schema_id: int, subject: str) -> Version:
    context = answers.context_for(state, subject, schema_id)
    entries = answers.uses(state, context, schema_id, deleted=True)
    if not entries:
        raise errors.schema_not_found(schema_id)
    plain = split(subject)[1]
    return next((entry for entry in entries if plain and split(entry.subject)[1] == plain), entries[0])


def has_prefix(subject: str, prefix: str) -> bool:
    """`:*:` stands for all contexts; a prefix without a context means the default one."""
    if prefix.startswith(EVERY_CONTEXT):
        return split(subject)[1].startswith(prefix.removeprefix(EVERY_CONTEXT))
    context, name = split(prefix)
    return subject.startswith(join(context, name)) and context_of(subject) == context


def is_wanted(state: RegistryState, subject: str, query: Any) -> bool:
    live = bool(state.versions(subject))
    return not live if is_set(query.deleted_only) else live or is_set(query.deleted)


def page(items: list[Any], query: Any) -> list[Any]:
    first, limit = query.offset, query.limit
    return items[first : first + limit] if limit >= 0 else items[first:]


def replies() -> dict[int, Reply]:
    failures = {400: "Not a request.", 404: "Not found.", 409: "Incompatible.", 422: "Not possible.", 500: "Failed."}
    found = {status: Reply(about, Failure, (MEDIA.decode(),)) for status, about in failures.items()}
    found[204] = Reply("Done.")
    return {200: Reply("The answer.", Any, (MEDIA.decode(),), example={}), **found}


def body_of(kind: Any) -> Body | None:
    return None if kind is None else Body("See the summary.", media=dict.fromkeys(_MEDIA, kind))
