"""Media types of v2: which are taken, which are answered with, and the format of keys and values that one names.

application/vnd.kafka[.FORMAT].v2+json       application/vnd.kafka[.FORMAT]+json       application/json
"""

import re
from enum import Enum
from typing import Final

from headrace.web.messages import Request

from .failures import V2_MEDIA, V3_MEDIA, Refusal


class ValueFormat(Enum):
    """How keys and values stand in JSON."""

    BINARY = "binary"
    """Base64."""
    JSON = "json"
    """As they are."""
    STRING = "string"
    """Text; v3 only."""
    AVRO = "avro"
    JSONSCHEMA = "jsonschema"
    PROTOBUF = "protobuf"

    @property
    def schema_type(self) -> str | None:
        """The registry's name for schemas of this format; None for formats without any."""
        return _SCHEMA_TYPES.get(self)


_SCHEMA_TYPES: Final = {
    ValueFormat.AVRO: "AVRO",
    ValueFormat.JSONSCHEMA: "JSON",
    ValueFormat.PROTOBUF: "PROTOBUF",
}
FORMATS: Final = ("binary", "json", "avro", "jsonschema", "protobuf")
"""Those of v2, by the names that its types and consumers have for them."""
_TYPE: Final = re.compile(rf"application/(?:json|vnd\.kafka(?:\.(?P<format>{'|'.join(FORMATS)}))?(?:\.v2)?\+json)")
_ANYTHING: Final = ("*/*", "application/*")
_LONGEST: Final = 2000


def is_served(media_type: str) -> bool:
    """Whether it is one of v2's own types."""
    return media_type != "application/json" and _TYPE.fullmatch(media_type) is not None


def format_of(media_type: str) -> ValueFormat:
    """The format that a type names; those that name none mean binary."""
    found = _TYPE.fullmatch(media_type)
    return ValueFormat(found["format"] or "binary") if found else ValueFormat.BINARY


def require_taken(request: Request) -> None:
    """`Refusal` 415 for a body that says it is something else."""
    media_type = request.media_type
    if media_type and media_type != "application/octet-stream" and _TYPE.fullmatch(media_type) is None:
        raise Refusal(415, 415, f"'{media_type[:80]}' is not taken here; send {V2_MEDIA.decode()}")


def accepted(request: Request) -> list[str]:
    """The types of v2 that the caller takes, the best first; those that leave it to us as v2's own. `Refusal` 406 for
    none."""
    header = request.header(b"accept")
    if not header:
        return [V2_MEDIA.decode()]
    ranked = []
    for part in header[:_LONGEST].lower().split(","):
        name, *parameters = (each.strip() for each in part.split(";"))
        weight = next((each[2:] for each in parameters if each.startswith("q=")), "1")
        if (name in _ANYTHING or _TYPE.fullmatch(name)) and weight.strip("0.") != "":
            ranked.append((weight, V2_MEDIA.decode() if name in _ANYTHING else name))
    if not ranked:
        raise Refusal(406, 406, f"none of the types in Accept is served here; ask for {V2_MEDIA.decode()}")
    return [name for _, name in sorted(ranked, key=lambda each: each[0].ljust(5, "0"), reverse=True)]


# v3


def require_json(request: Request) -> None:
    """`Refusal` 415 for a body that says it is something else."""
    if request.media_type not in ("", "application/json"):
        raise Refusal(415, 415, f"'{request.media_type[:80]}' is not taken here; send application/json")


def require_json_accepted(request: Request) -> bytes:
    """JSON; `Refusal` 406 where the caller does not take it."""
    header = request.header(b"accept")
    if header and not any(name in header.lower() for name in ("application/json", *_ANYTHING)):
        raise Refusal(406, 406, "answers are application/json")
    return V3_MEDIA
