"""Compatibility levels: which earlier versions a new one is checked against, and in which direction."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.schema_log.records import Schema
from headrace.schema_log.state import Version

from .contracts import properties


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """`backward`: new readers read old data; `forward`: old readers read new data; `all`: of every version."""

    backward: bool
    forward: bool
    all: bool


LEVELS: Final = {
    "NONE": Level(backward=False, forward=False, all=False),
    "BACKWARD": Level(backward=True, forward=False, all=False),
    "BACKWARD_TRANSITIVE": Level(backward=True, forward=False, all=True),
    "FORWARD": Level(backward=False, forward=True, all=False),
    "FORWARD_TRANSITIVE": Level(backward=False, forward=True, all=True),
    "FULL": Level(backward=True, forward=True, all=False),
    "FULL_TRANSITIVE": Level(backward=True, forward=True, all=True),
}
DEFAULT_LEVEL: Final = "BACKWARD"
POLICIES: Final = ("STRICT", "LENIENT")


def held_against(versions: Sequence[Version], level: str, group: str | None, schema: Schema) -> list[Version]:
    """The versions to check against, newest first; with a compatibility group, only those with the same value of it."""
    if level == "NONE":
        return []
    if group:
        mine = _property(schema, group)
        versions = [version for version in versions if _property(version.schema, group) == mine]
    return list(reversed(versions)) if LEVELS[level].all else list(versions[-1:])


def reserved_fields(schema: Schema, fields: Sequence[str], earlier: Sequence[Version]) -> list[str]:
    """What is wrong with a schema's fields: names that a schema reserves, and that no later one may take back."""
    reserved = _reserved(schema)
    dropped = _reserved(earlier[-1].schema) - reserved if earlier else frozenset[str]()
    taken = [name for name in fields if name in reserved or name.startswith("$$")]
    return [
        *(
            f"{{errorType:'RESERVED_FIELD_REMOVED', description:'{name} is reserved no more'}}"
            for name in sorted(dropped)
        ),
        *(f"{{errorType:'FIELD_CONFLICTS_WITH_RESERVED_FIELD', description:'{name} is reserved'}}" for name in taken),
    ]


def _reserved(schema: Schema) -> frozenset[str]:
    names = str(_property(schema, "confluent:reserved") or "").split(",")
    return frozenset(name.strip() for name in names) - {""}


def _property(schema: Schema, name: str) -> Any:
    return properties(schema.metadata).get(name)
