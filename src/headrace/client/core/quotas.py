"""Client quotas: requests, and what was answered.

An entity is a mapping of kinds (`user`, `client-id`, `ip`, `topic-prefix`) to names; None is the default of a kind.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from headrace.protocol.errors import ErrorCode

Entity = Mapping[str, str | None]
EXACT, DEFAULT, ANY = 0, 1, 2
"""How a name is looked for."""
_NO_VALUE: Final = 0.0


class EntityQuotas(NamedTuple):
    """An entity and its quotas."""

    entity: dict[str, str | None]
    quotas: dict[str, float]


class Match(NamedTuple):
    """A condition on the name of one kind."""

    kind: str
    how: int
    name: str | None = None


def named(entity: Entity) -> list[Match]:
    """The conditions that only an entity with these names fulfils (when `strict`)."""
    return [Match(kind, DEFAULT if name is None else EXACT, name) for kind, name in entity.items()]


def describe_quotas_request(matches: Iterable[Match] = (), *, strict: bool = False) -> dict[str, Any]:
    """DescribeClientQuotas: entities that fulfil all conditions; without any, all entities."""
    components = [{"entity_type": match.kind, "match_type": match.how, "match": match.name} for match in matches]
    return {"components": components, "strict": strict}


def read_quotas(answer: Any) -> list[EntityQuotas]:
    """What DescribeClientQuotas answered; its error code is the caller's to look at."""
    return [
        EntityQuotas(_entity(entry.entity), {value.key: value.value for value in entry.values})
        for entry in answer.entries or ()
    ]


def alter_quotas_request(
    changes: Iterable[tuple[Entity, Mapping[str, float | None]]], *, validate_only: bool = False
) -> dict[str, Any]:
    """AlterClientQuotas: set quotas of entities, and remove those that are None; others stay as they are."""
    entries = [
        {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
            "ops": [
                {"key": key, "value": _NO_VALUE if value is None else float(value), "remove": value is None}
                for key, value in quotas.items()
            ],
        }
        for entity, quotas in changes
    ]
    return {"entries": entries, "validate_only": validate_only}


def read_altered_quotas(answer: Any) -> list[tuple[dict[str, str | None], ErrorCode, str]]:
    """The error code and message of each entity."""
    return [(_entity(entry.entity), entry.error_code, entry.error_message or "") for entry in answer.entries or ()]


def _entity(parts: Iterable[Any]) -> dict[str, str | None]:
    return {part.entity_type: part.entity_name for part in parts}
