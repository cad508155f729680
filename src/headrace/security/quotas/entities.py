"""Whom a quota is for, which quotas there are, and what AlterClientQuotas and DescribeClientQuotas say of them.

    entity                     quotas
    user, client-id, or both   producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate
    ip                         connection_creation_rate
    topic-prefix               storage_bytes (ours: what all topics with names that begin so may hold together)

A part of an entity has a name, or None for the default of its kind, for all that have no quota of their own.
In the cluster's metadata an entity is an entry `quota`, named `user=alice,client-id` (a default has no `=`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from headrace.cluster.entries import EntryValues
from headrace.cluster.topics import MAX_NAME
from headrace.config.names import shown
from headrace.protocol.errors import CodedError, ErrorCode

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
TOPIC_PREFIX: Final = "topic-prefix"
_TYPES: Final = (USER, CLIENT_ID, IP, TOPIC_PREFIX)

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"
STORAGE_BYTES: Final = "storage_bytes"

CLIENT_QUOTAS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
_MAX_INT: Final = 2**31 - 1
_MAX_LONG: Final = 2**63 - 1
_LONGEST_NAME: Final = 2_000
"""Characters of an entity as it is written in the metadata."""
_TINY: Final = 1e-6

Entity = tuple[tuple[str, str | None], ...]
"""Kinds with their names, in the order of `_TYPES`; None is the default of a kind."""
Quotas = Mapping[str, float]


class _Range(NamedTuple):
    """What the number of a quota may be."""

    most: float
    is_whole: bool
    type: str


_ANY: Final = _Range(math.inf, is_whole=False, type="DOUBLE")
_INT: Final = _Range(_MAX_INT, is_whole=True, type="INT")
_LONG: Final = _Range(_MAX_LONG, is_whole=True, type="LONG")
_OF_CLIENTS: Final = {
    PRODUCER_BYTE_RATE: _LONG,
    CONSUMER_BYTE_RATE: _LONG,
    REQUEST_PERCENTAGE: _ANY,
    CONTROLLER_MUTATION_RATE: _ANY,
}
_KEYS: Final[dict[tuple[str, ...], dict[str, _Range]]] = {
    (USER,): _OF_CLIENTS,
    (CLIENT_ID,): _OF_CLIENTS,
    (USER, CLIENT_ID): _OF_CLIENTS,
    (IP,): {CONNECTION_CREATION_RATE: _INT},
    (TOPIC_PREFIX,): {STORAGE_BYTES: _LONG},
}
"""Which quotas an entity of these kinds can have; there are no others."""


class QuotaChange(NamedTuple):
    """One change of an entity: a quota's value, or None to remove it."""

    key: str
    value: float | None


def entry_name(entity: Entity) -> str:
    """What an entity is called in the cluster's metadata."""
    return ",".join(kind if name is None else f"{kind}={quote(name, safe='')}" for kind, name in entity)


def entity_of(name: str) -> Entity:
    """The entity of an entry's name."""
    parts = (part.partition("=") for part in name.split(","))
    return tuple((kind, unquote(value) if mark else None) for kind, mark, value in parts)


def quotas_of(values: EntryValues) -> dict[str, float]:
    """The quotas of an entry. What a later release may have written there and is no number is passed over."""
    quotas = {}
    for key, text in values.items():
        try:
            quotas[key] = float(text)
        except ValueError:
            continue
    return quotas


def check_entity(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """The entity that a request names; `CodedError` where there can be none."""
    named: dict[str, str | None] = {}
    for kind, name in parts:
        if kind in named:
            raise _invalid(f"Invalid client quota entity, duplicate entity entry {shown(kind)}")
        if kind not in _TYPES:
            raise _invalid(f"Unhandled client quota entity type: {shown(kind)}")
        if name is not None and not name:
            raise _invalid(f"Empty {kind} not supported")
        named[kind] = name
    entity = tuple((kind, named[kind]) for kind in _TYPES if kind in named)
    if IP in named and named.keys() & {USER, CLIENT_ID}:
        raise _invalid(
            "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"  # Kafka's words
        )
    if tuple(named_kind for named_kind, _ in entity) not in _KEYS:
        raise _invalid("Invalid empty client quota entity")
    if len(entry_name(entity)) > _LONGEST_NAME:
        raise _invalid(f"A client quota entity of more than {_LONGEST_NAME} characters")
    _check_name(entity)
    return entity


def _check_name(entity: Entity) -> None:
    kind, name = entity[0]
    if kind == IP and name is not None and address_of(name) is None:
        raise _invalid(f"{shown(name)} is not a valid IP; give an address, as brokers do not look up names of hosts")
    if kind == TOPIC_PREFIX and (name is None or len(name) > MAX_NAME):
        raise _invalid(f"A {TOPIC_PREFIX} needs a name of 1 to {MAX_NAME} characters; there is no default of it")


def address_of(text: str) -> str | None:
    """An address as it is written for connections; None where the text is none."""
    try:
        return ip_address(text).compressed
    except ValueError:
        return None


def check_operations(entity: Entity, operations: Sequence[QuotaChange]) -> None:
    """`CodedError` for a quota that the entity cannot have, or that stands there twice."""
    ranges = _KEYS[tuple(kind for kind, _ in entity)]
    seen: set[str] = set()
    for key, value in operations:
        if key in seen:
            raise _invalid(f"Duplicate quota key {shown(key)} not updating quota for this entity {entry_name(entity)}")
        seen.add(key)
        if value is not None:
            _check_value(key, value, ranges)


def _check_value(key: str, value: float, ranges: Mapping[str, _Range]) -> None:
    allowed = ranges.get(key)
    if allowed is None:
        raise _invalid(f"Invalid configuration key {shown(key)}")
    if not value > 0 or math.isinf(value):
        raise _invalid(f"Quota {key} must be greater than 0")
    if value > allowed.most:
        raise _invalid(f"Proposed value for {key} is too large for {_article(allowed.type)}.")
    if allowed.is_whole and abs(value % 1.0) > _TINY:
        raise _invalid(f"{key} cannot be a fractional value.")


def _article(name: str) -> str:
    return f"an {name}" if name.startswith("I") else f"a {name}"


def altered(values: EntryValues, operations: Sequence[QuotaChange]) -> EntryValues:
    """The quotas of an entry after changes to them."""
    after = dict(values)
    for key, value in operations:
        if value is None:
            after.pop(key, None)
        else:
            after[key] = repr(float(value))
    return after


EXACT: Final = 0
DEFAULT: Final = 1
ANY: Final = 2


class Component(NamedTuple):
    """One condition of DescribeClientQuotas: on the name of one kind."""

    kind: str
    match_type: int
    match: str | None


class Filter(NamedTuple):
    """What entities have to be like to be described."""

    names: Mapping[str, str | None]
    """Kinds that must have this name, or be the default."""
    kinds: frozenset[str]
    """Kinds that must be there, by whatever name."""
    strict: bool
    """Whether no other kind may be there."""

    def matches(self, entity: Entity) -> bool:
        """Whether an entity is to be described."""
        if self.strict and len(entity) != len(self.names) + len(self.kinds):
            return False
        parts = dict(entity)
        has_names = all(kind in parts and parts[kind] == name for kind, name in self.names.items())
        return has_names and all(kind in parts for kind in self.kinds)


def check_filter(components: Iterable[Component], *, strict: bool) -> Filter:
    """The filter that a request gives; `CodedError` where it makes no sense."""
    names: dict[str, str | None] = {}
    kinds: set[str] = set()
    for kind, match_type, match in components:
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in names or kind in kinds:
            raise _invalid(f"Entity type {shown(kind)} cannot appear more than once in the filter.")
        if kind not in _TYPES:
            raise CodedError(ErrorCode.unsupported_version, f"Unsupported entity type {shown(kind)}")
        if match_type == EXACT:
            if match is None:
                raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            names[kind] = match
            continue
        if match_type not in (DEFAULT, ANY):
            raise _invalid(f"Unknown match type {match_type}")
        if match is not None:
            name = "MATCH_TYPE_DEFAULT" if match_type == DEFAULT else "MATCH_TYPE_SPECIFIED"
            raise _invalid(f"Request specified {name}, but also specified a match string.")
        if match_type == DEFAULT:
            names[kind] = None
        else:
            kinds.add(kind)
    asked = names.keys() | kinds
    if IP in asked and asked & {USER, CLIENT_ID}:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used with user or "
            "clientId filter component."
        )
    return Filter(names, frozenset(kinds), strict)


def _invalid(message: str) -> CodedError:
    return CodedError(ErrorCode.invalid_request, message)
