"""Compatibility levels: which earlier versions a new one is checked against, and in which direction."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.schema_log.records import Schema
from headrace.schema_log.state import RegistryState, Version

from .errors import InvalidSchemaError
from .parsing import SchemaParser
from .schemas.model import Parsed


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


def held_against(versions: Sequence[Version], level: str, group: str | None, schema: Schema) -> list[Version]:
    """The versions to check against, newest first; with a compatibility group, only those with the same value of it."""
    if group:
        mine = _property(schema, group)
        versions = [version for version in versions if _property(version.schema, group) == mine]
    return list(reversed(versions)) if LEVELS[level].all else list(versions[-1:])


def objections(
    parser: SchemaParser, state: RegistryState, schema: Schema, parsed: Parsed, earlier: Sequence[Version], level: str
) -> list[str]:
    """Why the schema is refused at this level; empty if it is not. The first version objected to is told about."""
    for version in earlier:
        found = _against(parser, state, schema, parsed, version, LEVELS[level])
        if found:
            where = [f"{{oldSchemaVersion: {version.version}}}", f"{{oldSchema: '{version.schema.text}'}}"]
            return [*found, *where, f"{{compatibility: '{level}'}}"]
    return []


def _against(
    parser: SchemaParser, state: RegistryState, schema: Schema, parsed: Parsed, version: Version, level: Level
) -> list[str]:
    if not (level.backward or level.forward):
        return []
    if version.schema.type != schema.type:
        return [f"Incompatible because of different schema type: {version.schema.type} became {schema.type}"]
    old = parser.parsed(state, version.subject, version.schema)
    kind = parser.types[schema.type]
    try:
        backward = kind.unreadable(reader=parsed, writer=old, wording=_words("new", "old")) if level.backward else []
        forward = kind.unreadable(reader=old, writer=parsed, wording=_words("old", "new")) if level.forward else []
    except RecursionError as error:
        raise InvalidSchemaError("nested too deeply to be compared") from error
    return list(dict.fromkeys(backward + forward))


def _words(reader: str, writer: str) -> Callable[[str], str]:
    return lambda sentence: sentence.replace("%new", reader).replace("%old", writer)


def _property(schema: Schema, name: str) -> Any:
    properties = (schema.metadata or {}).get("properties")
    return properties.get(name) if isinstance(properties, dict) else None
