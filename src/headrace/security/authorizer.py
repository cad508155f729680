"""Decides who may do what, from the ACLs that the cluster keeps.

ACLs lie by kind of resource, name and principal, prefixes also by their lengths, so that a decision looks at few of
very many; and what was decided is kept until an ACL changes. Super users may do everything. Where no ACL is about a
resource, nobody else may do anything with it, unless `allow.everyone.if.no.acl.found` says otherwise. To do
something with a topic in which messages wait for another needs the right to do that with the other, too.

It fails closed: as long as a broker does not know the cluster yet, only super users may do anything. While a snapshot
of all that changed meanwhile is taken up, what was known before counts, and never a mixture of both.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final

from headrace.cluster.entries import EntryKind, EntryValues
from headrace.cluster.image import ClusterImage
from headrace.config import BrokerConfig
from headrace.config.authorization import ALLOW_WITHOUT_ACLS, AUTHORIZER, SUPER_USERS, super_users_in
from headrace.config.pipelines import DEFINITIONS
from headrace.protocol.acl import (
    CLUSTER_NAME,
    WILDCARD,
    AclEntry,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from headrace.protocol.delayed import target_of

from .acl import EVERYBODY, OPERATIONS, decide, entries_of, resource_of

MOST_KEPT: Final = 20_000
"""Decisions on one operation that are kept, and as many refusals."""
LONGEST_KEPT: Final = 512
"""Characters of a name that a decision is kept for: names are what clients make them."""
INTERNAL_PREFIX: Final = "__headrace"
_PROBE: Final = "hardcode"
"""The name that Kafka asks about first, where any name will do."""

Denied = Callable[[str, str, AclOperation, ResourceType, str], None]
"""Told of somebody who may not do what was asked: principal, host, operation, kind and name of the resource."""
_ByPrincipal = Mapping[str, tuple[AclEntry, ...]]


class Decisions:
    """Whether somebody may do one operation with the resources of one kind: asked for every request, so kept."""

    __slots__ = ("_decide", "_refused", "denied", "granted")

    def __init__(self, decide: "Callable[[str, str, str], tuple[bool, bool]]") -> None:
        self._decide = decide
        self.granted: set[tuple[str, str, str]] = set()
        """Principal, host and name of what is known to be allowed now: whoever is in a hurry looks here first."""
        self._refused: set[tuple[str, str, str]] = set()
        self.denied: Callable[[str, str, str], None] | None = None

    def allow(self, principal: str, host: str, name: str) -> bool:
        """Whether it may; who may not is reported."""
        allowed = self.would_allow(principal, host, name)
        if not allowed and self.denied is not None:
            self.denied(principal, host, name)
        return allowed

    def would_allow(self, principal: str, host: str, name: str) -> bool:
        """The same for what nobody has tried to do, such as to list one topic of all."""
        question = (principal, host, name)
        if question in self.granted:
            return True
        if question in self._refused:
            return False
        allowed, lasts = self._decide(principal, host, name)
        if lasts and len(name) <= LONGEST_KEPT:
            kept = self.granted if allowed else self._refused
            if len(kept) >= MOST_KEPT:
                kept.clear()
            kept.add(question)
        return allowed

    @property
    def kept(self) -> int:
        """How many decisions are kept."""
        return len(self.granted) + len(self._refused)

    def forget(self) -> None:
        """An ACL has changed."""
        self.granted.clear()
        self._refused.clear()


class _Resources:
    """The ACLs about one kind of resource."""

    def __init__(self) -> None:
        self._literal: dict[str, _ByPrincipal] = {}
        self._prefixed: dict[str, _ByPrincipal] = {}
        self._lengths: Counter[int] = Counter()

    def put(self, resource: ResourcePattern, entries: Iterable[AclEntry]) -> None:
        """All ACLs about these resources, in place of what they were."""
        grouped: dict[str, list[AclEntry]] = {}
        for entry in entries:
            grouped.setdefault(entry.principal, []).append(entry)
        by_principal = {principal: tuple(found) for principal, found in grouped.items()}
        is_prefix = resource.pattern is PatternType.PREFIXED
        table = self._prefixed if is_prefix else self._literal
        before = table.pop(resource.name, None)
        if by_principal:
            table[resource.name] = by_principal
        if is_prefix:
            self._count(len(resource.name), bool(by_principal) - (before is not None))

    def _count(self, length: int, change: int) -> None:
        self._lengths[length] += change
        if not self._lengths[length]:
            del self._lengths[length]

    def named(self, name: str) -> Iterator[_ByPrincipal]:
        """The ACLs about this name in so many words, and about prefixes that single out internal topics."""
        if (found := self._literal.get(name)) is not None:
            yield found
        for length in self._lengths:
            if len(INTERNAL_PREFIX) <= length <= len(name) and (found := self._prefixed.get(name[:length])) is not None:
                yield found

    def about(self, name: str) -> Iterator[_ByPrincipal]:
        """The ACLs that count for a resource, by pattern."""
        for literal in (name,) if name == WILDCARD else (name, WILDCARD):
            found = self._literal.get(literal)
            if found is not None:
                yield found
        for length in self._lengths:
            if length <= len(name) and (found := self._prefixed.get(name[:length])) is not None:
                yield found

    def all(self) -> Iterator[tuple[PatternType, str, _ByPrincipal]]:
        """Every pattern."""
        for name, found in self._literal.items():
            yield PatternType.LITERAL, name, found
        for name, found in self._prefixed.items():
            yield PatternType.PREFIXED, name, found


class Authorizer:
    """Who may do what, as of the image."""

    def __init__(
        self,
        image: ClusterImage,
        *,
        super_users: frozenset[str] = frozenset(),
        allows_without_acls: bool = False,
        denied: Denied | None = None,
    ) -> None:
        self._image = image
        self._super_users = super_users
        self._allows_without_acls = allows_without_acls
        self._denied = denied
        self._resources: dict[ResourceType, _Resources] = {}
        self._values: dict[str, EntryValues] = {}
        """What was taken over of the image, by entry."""
        self._is_loaded = False
        self._is_behind = True
        """Whether the image has, or will have, what was not taken over yet."""
        self._decisions: dict[tuple[AclOperation, ResourceType], Decisions] = {}
        self._any: dict[tuple[str, str, AclOperation, ResourceType], bool] = {}
        image.on_entry(self._entry_changed)

    def decisions(self, operation: AclOperation, resource_type: ResourceType) -> Decisions:
        """What `allows` asks, for those who ask the same of very many requests."""
        kept = self._decisions.get((operation, resource_type))
        if kept is None:
            kept = self._decisions[operation, resource_type] = self._new_decisions(operation, resource_type)
        return kept

    def allows(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """Whether a principal at a host may do that; who may not is reported as denied."""
        return self.decisions(operation, resource_type).allow(principal, host, name)

    def would_allow(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """The same, where nobody has tried to."""
        return self.decisions(operation, resource_type).would_allow(principal, host, name)

    def allows_any(self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Whether there can be a resource of that kind that it may do that with, by Kafka's reckoning."""
        if self.would_allow(principal, host, operation, resource_type, _PROBE):
            return True
        key = (principal, host, operation, resource_type)
        known = self._any.get(key)
        if known is None:
            known = self._allows_any(principal, host, operation, resource_type)
            if len(self._any) >= MOST_KEPT:
                self._any.clear()
            if not self._is_behind:
                self._any[key] = known
        return known

    def operations(self, principal: str, host: str, resource_type: ResourceType, name: str) -> int:
        """All that it may do with a resource, as the bits of the `authorized_operations` fields."""
        return sum(
            1 << operation
            for operation in OPERATIONS[resource_type]
            if self.would_allow(principal, host, operation, resource_type, name)
        )

    def _new_decisions(self, operation: AclOperation, resource_type: ResourceType) -> Decisions:
        def decide_one(principal: str, host: str, name: str) -> tuple[bool, bool]:
            allowed = self._allows(principal, host, operation, resource_type, name)
            if allowed and resource_type is ResourceType.TOPIC and (target := target_of(name)) is not None:
                allowed = self._allows(principal, host, operation, resource_type, target)
            return allowed, not self._is_behind

        decisions = Decisions(decide_one)
        denied = self._denied
        if denied is not None:
            decisions.denied = lambda principal, host, name: denied(principal, host, operation, resource_type, name)
        return decisions

    def _allows(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        if principal in self._super_users:
            return True
        if self._is_behind and not self._catch_up():
            return False
        if resource_type is ResourceType.TOPIC and operation is AclOperation.WRITE and name == DEFINITIONS:
            return self._allows_to_deploy(principal, host)
        return self._acls_allow(principal, host, operation, resource_type, name)

    def _allows_to_deploy(self, principal: str, host: str) -> bool:
        """Whoever writes definitions of pipelines has services run code. So a right to write to every topic, or to
        topics without ACLs, is not enough: the topic must be named, or the cluster be theirs to alter.
        """
        resources = self._resources.get(ResourceType.TOPIC)
        is_here = _hosts(host)
        is_named = any(
            decide(by_principal.get(who, ()), AclOperation.WRITE, is_here) is PermissionType.ALLOW
            for by_principal in (resources.named(DEFINITIONS) if resources is not None else ())
            for who in (principal, EVERYBODY)
        )
        if is_named:
            return self._acls_allow(principal, host, AclOperation.WRITE, ResourceType.TOPIC, DEFINITIONS)
        return self._acls_allow(principal, host, AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME) and (
            not self._is_denied(principal, host, AclOperation.WRITE, ResourceType.TOPIC, DEFINITIONS)
        )

    def _is_denied(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        resources = self._resources.get(resource_type)
        is_here = _hosts(host)
        return any(
            decide(by_principal.get(who, ()), operation, is_here) is PermissionType.DENY
            for by_principal in (resources.about(name) if resources is not None else ())
            for who in (principal, EVERYBODY)
        )

    def _acls_allow(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        resources = self._resources.get(resource_type)
        is_here = _hosts(host)
        has_acls = is_allowed = False
        for by_principal in resources.about(name) if resources is not None else ():
            has_acls = True
            for who in (principal, EVERYBODY):
                found = decide(by_principal.get(who, ()), operation, is_here)
                if found is PermissionType.DENY:
                    return False
                is_allowed = is_allowed or found is PermissionType.ALLOW
        return is_allowed or (self._allows_without_acls and not has_acls)

    def _allows_any(self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Whether some pattern is allowed that no denied one takes in whole. Nothing is implied here, as in Kafka."""
        resources = self._resources.get(resource_type)
        is_here = _hosts(host)
        patterns: dict[PermissionType, dict[PatternType, set[str]]] = {
            permission: {pattern: set() for pattern in (PatternType.LITERAL, PatternType.PREFIXED)}
            for permission in (PermissionType.ALLOW, PermissionType.DENY)
        }
        for pattern, name, by_principal in resources.all() if resources is not None else ():
            for entry in (*by_principal.get(principal, ()), *by_principal.get(EVERYBODY, ())):
                if entry.operation in (operation, AclOperation.ALL) and is_here(entry.host):
                    patterns[entry.permission][pattern].add(name)
        allowed, denied = patterns[PermissionType.ALLOW], patterns[PermissionType.DENY]
        if WILDCARD in denied[PatternType.LITERAL]:
            return False
        if WILDCARD in allowed[PatternType.LITERAL]:
            return True
        literals = allowed[PatternType.LITERAL] - denied[PatternType.LITERAL]
        return any(
            not any(name[:length] in denied[PatternType.PREFIXED] for length in range(1, len(name) + 1))
            for name in literals | allowed[PatternType.PREFIXED]
        )

    # From the image

    def _entry_changed(self, kind: EntryKind, name: str, values: EntryValues) -> None:
        if kind is not EntryKind.ACL or self._values.get(name, {}) == values:
            return
        if self._is_behind or not self._image.is_whole:
            self._is_behind = True
        else:
            self._take(name, values)
        self._forget_decisions()

    def _catch_up(self) -> bool:
        """Take over what the image holds, if it is whole; whether anything can be decided."""
        if self._image.is_whole:
            now = self._image.entries[EntryKind.ACL]
            for name in [name for name in self._values if name not in now]:
                self._take(name, {})
            for name, values in now.items():
                if self._values.get(name) != values:
                    self._take(name, values)
            self._is_loaded, self._is_behind = True, False
        return self._is_loaded

    def _take(self, name: str, values: EntryValues) -> None:
        if values:
            self._values[name] = values
        else:
            self._values.pop(name, None)
        resource = resource_of(name)
        if resource is not None:
            self._resources.setdefault(resource.type, _Resources()).put(resource, entries_of(values))

    def _forget_decisions(self) -> None:
        for decisions in self._decisions.values():
            decisions.forget()
        self._any.clear()


def authorizer_of(config: BrokerConfig, image: ClusterImage, denied: Denied | None = None) -> Authorizer | None:
    """What the settings ask for; None where everybody may do everything."""
    if not config[AUTHORIZER]:
        return None
    return Authorizer(
        image,
        super_users=frozenset(super_users_in(str(config[SUPER_USERS] or ""))),
        allows_without_acls=bool(config[ALLOW_WITHOUT_ACLS]),
        denied=denied,
    )


def _hosts(host: str) -> Callable[[str], bool]:
    """Whether what an ACL names is that host."""
    here = _canonical(host)
    return lambda named: named in (WILDCARD, host) or _canonical(named) == here


@lru_cache(maxsize=4096)
def _canonical(host: str) -> str:
    """One way to write an address: IPv6 has several, and a socket for both has IPv4 inside of IPv6."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)
