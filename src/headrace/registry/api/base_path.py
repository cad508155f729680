"""The registry below `/contexts/{context}`: the same paths, with subjects and settings of that context."""

from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode

from headrace.schema_log.names import DEFAULT_CONTEXT, EVERY_CONTEXT, join

BASE: Final = "/contexts/"


def in_context(path: str, query: bytes) -> tuple[str, bytes]:
    """What a path below `/contexts/{context}` and its query are without that base: clients are configured with it."""
    context, *segments = path.removeprefix(BASE).split("/")
    if not segments:
        return path, query
    prefix = join(_name(unquote(context)), "")
    match segments:
        case ["subjects"] | ["schemas"]:
            query = _with(query, "subjectPrefix", prefix)
        case ["schemas", "ids", *_]:
            query = _with(query, "subject", prefix)
        case ["config"] | ["mode"]:
            segments.append(quote(prefix, safe="") or quote(f":{DEFAULT_CONTEXT}:", safe=""))
        case ["subjects" | "config" | "mode", subject, *rest]:
            segments = [segments[0], _qualified(prefix, subject), *rest]
        case ["compatibility", "subjects", subject, *rest]:
            segments = ["compatibility", "subjects", _qualified(prefix, subject), *rest]
    return "/" + "/".join(segments), query


def _name(written: str) -> str:
    """`:.name:`, `.name` and `name` are one context."""
    name = written.strip(":")
    return name if name.startswith(".") else f".{name}"


def _qualified(prefix: str, subject: str) -> str:
    return subject if _has_context(unquote(subject)) else quote(prefix, safe="") + subject


def _has_context(subject: str) -> bool:
    return subject.startswith((":.", EVERY_CONTEXT))


def _with(query: bytes, name: str, prefix: str) -> bytes:
    """A query whose parameter stands in a context, unless it names one itself."""
    pairs = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    given = pairs.get(name, "")
    pairs[name] = given if _has_context(given) else prefix + given
    return urlencode(pairs).encode()
