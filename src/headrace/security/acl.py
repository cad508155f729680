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
from enum import IntEnum
from typing import Final, TypeVar
from urllib.parse import quote, unquote

from headrace.cluster.entries import EntryValues
from headrace.config import shown
from headrace.protocol.acl import (
    CLUSTER_NAME,
    WILDCARD,
    AclBinding,
    AclEntry,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from headrace.protocol.errors import CodedError, ErrorCode

EVERYBODY: Final = "User:*"
MOST_NAME: Final = 1_024
MOST_PRINCIPAL: Final = 1_024
MOST_HOST: Final = 256
"""Characters of the texts of an ACL."""


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


def taken(acl_filter: AclFilter, name: str, values: EntryValues) -> tuple[ResourcePattern, list[AclEntry]] | None:
    """The ACLs of an entry that a filter takes; None where it takes none."""
    resource = resource_of(name)
    if resource is None or not acl_filter.takes_resource(resource):
        return None
    entries = [entry for entry in entries_of(values) if acl_filter.takes_entry(entry)]
    return (resource, entries) if entries else None


# What several ACLs come to


def decide(
    entries: Iterable[AclEntry], operation: AclOperation, is_here: Callable[[str], bool]
) -> PermissionType | None:
    """What those of one principal and one resource say of an operation at a host: DENY, ALLOW, or nothing."""
    permission: PermissionType | None = None
    for entry in entries:
        if entry.decides(operation) and is_here(entry.host):
            if entry.permission is PermissionType.DENY:
                return PermissionType.DENY
            permission = PermissionType.ALLOW
    return permission
