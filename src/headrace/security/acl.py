"""Who may do what: Kafka's ACLs as plain values, and when one counts.

An ACL allows or denies a principal at a host an operation on resources: on the one of a name (LITERAL; `*` stands for
every name), or on all whose names begin with it (PREFIXED; there `*` is a character like any other).

- Who is denied by one ACL is denied, whatever others allow.
- What is allowed implies less: READ, WRITE, DELETE and ALTER let describe, ALTER_CONFIGS lets describe settings. What
  is denied implies nothing.
- `User:*` is every principal, `*` every host. Hosts are addresses, never names.

Kafka does not ask whether an operation makes sense for a kind of resource, so neither do we: such an ACL never counts.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeVar
from urllib.parse import quote, unquote

from headrace.cluster.entries import EntryValues
from headrace.config import shown
from headrace.protocol.errors import CodedError, ErrorCode

WILDCARD: Final = "*"
EVERYBODY: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"
MOST_NAME: Final = 1_024
MOST_PRINCIPAL: Final = 1_024
MOST_HOST: Final = 256
"""Characters of the texts of an ACL."""


class ResourceType(IntEnum):
    """What an ACL is about, numbered as on the wire."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How an ACL names resources; ANY and MATCH are for filters."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """Kafka's operations; each is the number of its bit in the `authorized_operations` fields."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class PermissionType(IntEnum):
    """What an ACL says; ANY is for filters."""

    ANY = 1
    DENY = 2
    ALLOW = 3


OPERATIONS: Final[dict[ResourceType, tuple[AclOperation, ...]]] = {
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (AclOperation.DESCRIBE,),
    ResourceType.USER: (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS),
}
"""What can be done with a resource, as Kafka's tools show it."""

REFUSALS: Final = {
    ResourceType.TOPIC: ErrorCode.topic_authorization_failed,
    ResourceType.GROUP: ErrorCode.group_authorization_failed,
    ResourceType.CLUSTER: ErrorCode.cluster_authorization_failed,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
    ResourceType.DELEGATION_TOKEN: ErrorCode.delegation_token_authorization_failed,
    ResourceType.USER: ErrorCode.delegation_token_authorization_failed,
}
"""What whoever may not is told."""

_IMPLYING: Final[dict[AclOperation, frozenset[AclOperation]]] = {
    AclOperation.DESCRIBE: frozenset(
        {AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS}),
}
"""Which operations let do another one as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePattern:
    """The resources an ACL is about."""

    type: ResourceType
    pattern: PatternType
    name: str

    def covers(self, name: str) -> bool:
        """Whether the resource of that name, and of this type, is one of them."""
        if self.pattern is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, WILDCARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class AclEntry:
    """Whom an ACL allows or denies what."""

    principal: str
    host: str
    operation: AclOperation
    permission: PermissionType

    def decides(self, operation: AclOperation) -> bool:
        """Whether it says something about that operation."""
        if self.operation in (operation, AclOperation.ALL):
            return True
        return self.permission is PermissionType.ALLOW and self.operation in _IMPLYING.get(operation, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class AclBinding:
    """An ACL."""

    resource: ResourcePattern
    entry: AclEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """Which ACLs are asked for. None, and the ANY of each kind, stand for all."""

    type: ResourceType = ResourceType.ANY
    pattern: PatternType = PatternType.ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: PermissionType = PermissionType.ANY

    @property
    def only_resource(self) -> ResourcePattern | None:
        """The one resource pattern that it can be about; None where there can be several."""
        if self.name is None or self.type is ResourceType.ANY or self.pattern in (PatternType.ANY, PatternType.MATCH):
            return None
        return ResourcePattern(type=self.type, pattern=self.pattern, name=self.name)

    def takes_resource(self, resource: ResourcePattern) -> bool:
        """Whether ACLs about these resources can be among them.

        With MATCH they are those that count for a resource of the name: its own, `*`, and prefixes of it.
        """
        if self.type not in (ResourceType.ANY, resource.type):
            return False
        if self.pattern not in (PatternType.ANY, PatternType.MATCH, resource.pattern):
            return False
        if self.name is None:
            return True
        return resource.covers(self.name) if self.pattern is PatternType.MATCH else self.name == resource.name

    def takes_entry(self, entry: AclEntry) -> bool:
        """Whether this one is among them, given that its resources are."""
        return (
            self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (AclOperation.ANY, entry.operation)
            and self.permission in (PermissionType.ANY, entry.permission)
        )

    def takes(self, binding: AclBinding) -> bool:
        """Whether an ACL is among them."""
        return self.takes_resource(binding.resource) and self.takes_entry(binding.entry)


E = TypeVar("E", bound=IntEnum)


def member(kind: type[E], number: int, what: str) -> E:
    """The member of a wire number; `CodedError` for one that Kafka does not have."""
    try:
        return kind(number)
    except ValueError:
        known = ", ".join(f"{each.name} ({each.value})" for each in kind)
        raise _invalid(f"Unknown {what} {number}; there are {known}") from None


def check_binding(binding: AclBinding) -> None:
    """`CodedError` for what cannot be an ACL."""
    resource, entry = binding.resource, binding.entry
    if resource.type is ResourceType.CLUSTER and resource.name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not resource.name:
        raise _invalid("Invalid empty resource name")
    if resource.type is ResourceType.ANY:
        raise _invalid("Invalid resourceType ANY")
    if resource.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid(f"Invalid patternType {resource.pattern.name}")
    if entry.operation is AclOperation.ANY:
        raise _invalid("Invalid operation ANY")
    if entry.permission is PermissionType.ANY:
        raise _invalid("Invalid permissionType ANY")
    _check_texts(resource.name, entry)


def _check_texts(name: str, entry: AclEntry) -> None:
    kind, colon, who = entry.principal.partition(":")
    if not kind or not colon or not who:
        raise _invalid(f"expected a string in format principalType:principalName but got {shown(entry.principal)}")
    if not entry.host:
        raise _invalid(f"Invalid empty host; {WILDCARD} stands for every host")
    for what, text, most in (
        ("resource name", name, MOST_NAME),
        ("principal", entry.principal, MOST_PRINCIPAL),
        ("host", entry.host, MOST_HOST),
    ):
        if len(text) > most:
            raise _invalid(f"A {what} of {len(text)} characters; an ACL takes {most}")


def _invalid(message: str) -> CodedError:
    return CodedError(ErrorCode.invalid_request, message)


# As the cluster keeps them: one entry for each resource pattern, one value for each ACL


def entry_name(resource: ResourcePattern) -> str:
    """The name of the entry that holds the ACLs about these resources."""
    return f"{resource.type.name}:{resource.pattern.name}:{resource.name}"


def resource_of(name: str) -> ResourcePattern | None:
    """The other way; None for what a later release has written."""
    kind, _, rest = name.partition(":")
    pattern, _, resource = rest.partition(":")
    try:
        return ResourcePattern(type=ResourceType[kind], pattern=PatternType[pattern], name=resource)
    except KeyError:
        return None


def entry_key(entry: AclEntry) -> str:
    """What stands for an ACL among the values of its entry."""
    return f"{entry.permission.name} {entry.operation.name} {quote(entry.host, safe=':*')} {entry.principal}"


def acl_of(key: str) -> AclEntry | None:
    """The other way; None for what a later release has written: its operations are none of ours."""
    permission, _, rest = key.partition(" ")
    operation, _, rest = rest.partition(" ")
    host, _, principal = rest.partition(" ")
    try:
        return AclEntry(
            principal=principal,
            host=unquote(host),
            operation=AclOperation[operation],
            permission=PermissionType[permission],
        )
    except KeyError:
        return None


def entries_of(values: EntryValues) -> Iterator[AclEntry]:
    """The ACLs of an entry."""
    return (entry for entry in map(acl_of, values) if entry is not None)


def taken(asked: AclFilter, name: str, values: EntryValues) -> tuple[ResourcePattern, list[AclEntry]] | None:
    """The ACLs of an entry that a filter takes; None where it takes none."""
    resource = resource_of(name)
    if resource is None or not asked.takes_resource(resource):
        return None
    entries = [entry for entry in entries_of(values) if asked.takes_entry(entry)]
    return (resource, entries) if entries else None


# What several ACLs come to


def decide(
    entries: Iterable[AclEntry], operation: AclOperation, is_here: Callable[[str], bool]
) -> PermissionType | None:
    """What those of one principal and one resource say of an operation at a host: DENY, ALLOW, or nothing."""
    found: PermissionType | None = None
    for entry in entries:
        if entry.decides(operation) and is_here(entry.host):
            if entry.permission is PermissionType.DENY:
                return PermissionType.DENY
            found = PermissionType.ALLOW
    return found
