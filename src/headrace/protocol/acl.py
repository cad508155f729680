"""Kafka's ACLs as plain values: resource patterns, entries, bindings and filters, with the numbers of the wire."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

WILDCARD: Final = "*"
"""Every name of a LITERAL pattern; every host."""
CLUSTER_NAME: Final = "kafka-cluster"
"""The only name that the cluster has in ACLs."""


class ResourceType(IntEnum):
    """Kinds of resources that ACLs are about."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How an ACL names resources; ANY and MATCH are for filters: MATCH takes all patterns that cover the name."""

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
    """What an ACL does; ANY is for filters."""

    ANY = 1
    DENY = 2
    ALLOW = 3


_IMPLYING: Final[dict[AclOperation, frozenset[AclOperation]]] = {
    AclOperation.DESCRIBE: frozenset(
        {AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS}),
}
"""Which operations let do another one as well."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ResourcePattern:
    """The resources an ACL is about."""

    type: ResourceType
    name: str
    pattern: PatternType

    def covers(self, name: str) -> bool:
        """Whether the resource of that name, and of this type, is one of them."""
        if self.pattern is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, WILDCARD)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
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


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class AclBinding:
    """An ACL: the resources, and who may do what with them from where."""

    resource: ResourcePattern
    entry: AclEntry

    def filter(self) -> "AclFilter":
        """The filter that takes this ACL and no other."""
        return AclFilter(
            type=self.resource.type,
            pattern=self.resource.pattern,
            name=self.resource.name,
            principal=self.entry.principal,
            host=self.entry.host,
            operation=self.entry.operation,
            permission=self.entry.permission,
        )


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
