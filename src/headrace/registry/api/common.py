"""What the registry's handlers share: parameters, bodies, answers, and the way refusals look."""

import json
import re
from typing import Any, Final

from headrace.schema_log.names import EVERYTHING, context_of, join, normalized, split
from headrace.schema_log.records import Proposal
from headrace.schema_log.state import RegistryState, Version
from headrace.web.messages import Answer, Request, Stream, json_answer
from headrace.web.problem import Problem
from headrace.web.routes import Body, Handler, Query, Reply
from headrace.web.shapes import Anything, Array, Boolean, Integer, Object, Text

from .. import answers, decisions, errors
from ..errors import RegistryError
from ..parsing import Posted
from ..service import Registry

MEDIA: Final = b"application/vnd.schemaregistry.v1+json"
_MEDIA: Final = (MEDIA.decode(), "application/json")

Row = tuple[str, str, str, Handler, dict[str, Query], Any]
"""Method, path, summary, handler, query and body of an operation."""


class _Flag(Boolean):
    """`true` in any letter case; anything else is false, as Java reads it."""

    def parse(self, text: str, path: str) -> bool:  # noqa: ARG002 - as every shape
        return text.lower() == "true"


FLAG: Final = _Flag()
NO: Final = Query(FLAG, False)
PAGE: Final = {"offset": Query(Integer(0, 2**31 - 1), 0), "limit": Query(Integer(-1, 2**31 - 1), -1)}
DELETED: Final = {"deleted": NO}
FORM: Final = {"format": Query(Text(most=100), "")}
ANY_SUBJECT: Final = {"subject": Query(Text(most=1000), "")}
_ERROR: Final = Object({"error_code": Integer(), "message": Text()}, required=("error_code", "message"))
SCHEMA_BODY: Final = Object(
    {
        "schema": Text(most=1 << 24),
        "schemaType": Text(),
        "references": Array(Anything()),
        "metadata": Anything(),
        "ruleSet": Anything(),
        "id": Integer(),
        "version": Integer(),
    },
    required=("schema",),
    open=True,
)
OPEN: Final = Object({}, open=True)


class Handlers:
    """Handlers of one registry."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    async def registered(self, subject: str, posted: Posted, *, normalize: bool) -> Version:
        """The version that a schema has or gets."""

        def decide(state: RegistryState) -> tuple[Version | None, Proposal | None]:
            found = decisions.register(state, self.registry.parser, subject, posted, normalize=normalize)
            return (None, found) if isinstance(found, Proposal) else (found, None)

        known, outcome = await self.registry.change(subject, decide)
        entry = known if outcome is None else outcome.version
        assert entry is not None
        return entry

    def text(self, entry: Version, form: str) -> str:
        return self.registry.parser.shown(self.registry.state, entry.subject, entry.schema, form)

    def version(self, entry: Version, form: str) -> Answer:
        return answered(answers.version(entry, self.text(entry, form)))


def explaining(handler: Handler) -> Handler:
    """Turns refusals into problems that carry Confluent's code."""

    async def explained(request: Request) -> Answer | Stream:
        try:
            return await handler(request)
        except RegistryError as error:
            raise Problem(error.status, error.message, more={"error_code": error.code}) from error

    return explained


def render(problem: Problem) -> Answer:
    code = problem.more.get("error_code", problem.status)
    return json_answer({"error_code": code, "message": problem.detail}, problem.status, problem.headers, MEDIA)


def answered(value: Any) -> Answer:
    return json_answer(value, content_type=MEDIA)


async def read_body(request: Request) -> dict[str, Any]:
    raw = await request.body()
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise errors.bad_request(f"The body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise errors.unprocessable("The body must be a JSON object")
    return value


def subject_of(request: Request) -> str:
    return normalized(request.params["subject"])


def scope_of(request: Request) -> str:
    """The scope of settings a path names: a subject, a context (`:.context:`), or everything."""
    subject = request.params.get("subject", EVERYTHING)
    if subject in (":.__GLOBAL:", ":.:"):
        return EVERYTHING
    return normalized(subject)


def number_of(request: Request) -> int:
    text = request.params["version"].strip()
    if text.lower() in ("latest", "-1"):
        return -1
    if not re.fullmatch(r"[0-9]{1,10}", text) or not 0 < int(text) <= errors.MAX_ID:
        raise errors.invalid_version(text)
    return int(text)


def id_of(request: Request) -> int:
    text = request.params["id"]
    if not re.fullmatch(r"[0-9]{1,10}", text):
        raise errors.schema_not_found(text[:40])
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
    if prefix.startswith(":*:"):
        return split(subject)[1].startswith(prefix[3:])
    context, name = split(prefix)
    return subject.startswith(join(context, name)) and context_of(subject) == context


def is_wanted(state: RegistryState, subject: str, query: Any) -> bool:
    live = bool(state.versions(subject))
    return not live if query["deletedOnly"] else live or query["deleted"]


def page(items: list[Any], query: Any) -> list[Any]:
    first, limit = query["offset"], query["limit"]
    return items[first : first + limit] if limit >= 0 else items[first:]


def replies() -> dict[int, Reply]:
    failures = {400: "Not a request.", 404: "Not found.", 409: "Incompatible.", 422: "Not possible.", 500: "Failed."}
    found = {status: Reply(about, _ERROR, (MEDIA.decode(),)) for status, about in failures.items()}
    found[204] = Reply("Done.")
    return {200: Reply("The answer.", Anything(), (MEDIA.decode(),)), **found}


def body_of(shape: Any) -> Body | None:
    return None if shape is None else Body("See the summary.", dict.fromkeys(_MEDIA, shape))
