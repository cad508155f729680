"""Who may do what: ACLs, SCRAM users and delegation tokens, as requests and as what was answered."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from headrace.protocol.scram import ScramMechanism, salt_password

# ACLs


class ResourceType(IntEnum):
    """What an ACL is about."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How an ACL names it; ANY and MATCH are for filters: MATCH takes all that count for a name."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """What an ACL lets do."""

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


class Permission(IntEnum):
    """Whether it does."""

    ANY = 1
    DENY = 2
    ALLOW = 3


CLUSTER_NAME: Final = "kafka-cluster"
"""The only name that the cluster has in ACLs."""
EVERY_HOST: Final = "*"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Acl:
    """One rule."""

    resource: ResourceType
    name: str
    pattern: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def filter(self) -> "AclFilter":
        """What takes this one and no other."""
        return AclFilter(
            resource=self.resource,
            name=self.name,
            pattern=self.pattern,
            principal=self.principal,
            host=self.host,
            operation=self.operation,
            permission=self.permission,
        )

    def to_json(self) -> dict[str, str]:
        """The rule in Kafka's words."""
        return {
            "resource": word(self.resource),
            "name": self.name,
            "pattern": word(self.pattern),
            "principal": self.principal,
            "host": self.host,
            "operation": word(self.operation),
            "permission": word(self.permission),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """Which rules are meant; None and ANY leave it open."""

    resource: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY


def word(value: IntEnum) -> str:
    """How Kafka's tools write it: `transactional-id`."""
    return value.name.lower().replace("_", "-")


def describe_acls_request(wanted: AclFilter) -> dict[str, Any]:
    """DescribeAcls."""
    return {
        "resource_type_filter": wanted.resource,
        "resource_name_filter": wanted.name,
        "pattern_type_filter": wanted.pattern,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }


def read_acls(answer: Any) -> Iterator[Acl]:
    """The rules of DescribeAcls' answer; those of a kind that is not known here are passed over."""
    for resource in answer.resources:
        for found in resource.acls:
            acl = _acl(resource.resource_type, resource.resource_name, getattr(resource, "pattern_type", 3), found)
            if acl is not None:
                yield acl


def create_acls_request(acls: Iterable[Acl]) -> dict[str, Any]:
    """CreateAcls."""
    return {
        "creations": [
            {
                "resource_type": acl.resource,
                "resource_name": acl.name,
                "resource_pattern_type": acl.pattern,
                "principal": acl.principal,
                "host": acl.host,
                "operation": acl.operation,
                "permission_type": acl.permission,
            }
            for acl in acls
        ]
    }


def delete_acls_request(filters: Iterable[AclFilter]) -> dict[str, Any]:
    """DeleteAcls."""
    return {"filters": [describe_acls_request(wanted) for wanted in filters]}


def read_deleted(result: Any) -> Iterator[tuple[Acl, Any]]:
    """The rules that one filter of DeleteAcls took, and the code for each."""
    for found in result.matching_acls:
        acl = _acl(found.resource_type, found.resource_name, getattr(found, "pattern_type", 3), found)
        if acl is not None:
            yield acl, found


def _acl(resource: int, name: str, pattern: int, found: Any) -> Acl | None:
    try:
        return Acl(
            resource=ResourceType(resource),
            name=name,
            pattern=PatternType(pattern),
            principal=found.principal,
            host=found.host,
            operation=Operation(found.operation),
            permission=Permission(found.permission_type),
        )
    except ValueError:
        return None


# Users


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramUser:
    """A user and how it can authenticate."""

    name: str
    iterations: Mapping[ScramMechanism, int]


def describe_users_request(names: Sequence[str] | None) -> dict[str, Any]:
    """DescribeUserScramCredentials of these users, or of all."""
    return {"users": None if names is None else [{"name": name} for name in names]}


def read_user(result: Any) -> ScramUser:
    """One user of the answer."""
    known = {mechanism.value for mechanism in ScramMechanism}
    found = {ScramMechanism(c.mechanism): c.iterations for c in result.credential_infos if c.mechanism in known}
    return ScramUser(name=result.user, iterations=found)


def upsertion(name: str, mechanism: ScramMechanism, password: str, iterations: int, salt: bytes) -> dict[str, Any]:
    """A user's password as it is sent: salted and hashed, so that no broker ever sees it."""
    return {
        "name": name,
        "mechanism": mechanism,
        "iterations": iterations,
        "salt": salt,
        "salted_password": salt_password(mechanism, password, salt, iterations),
    }


def alter_users_request(
    upsertions: Sequence[Mapping[str, Any]] = (), deletions: Iterable[tuple[str, ScramMechanism]] = ()
) -> dict[str, Any]:
    """AlterUserScramCredentials."""
    gone = [{"name": name, "mechanism": mechanism} for name, mechanism in deletions]
    return {"deletions": gone, "upsertions": list(upsertions)}


# Delegation tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationToken:
    """A token that stands for its owner. Who has the HMAC can log in with it: it is not shown in any repr."""

    id: str
    hmac: bytes
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    most_ms: int
    """Until when it can be renewed."""

    def __repr__(self) -> str:
        return f"DelegationToken(id={self.id!r}, owner={self.owner!r})"


def create_token_request(renewers: Iterable[str], *, owner: str | None, lifetime_ms: int) -> dict[str, Any]:
    """CreateDelegationToken for its sender, or for another owner; -1 is the longest life that brokers allow."""
    kind, _, name = (owner or "").partition(":")
    return {
        "owner_principal_type": kind or None,
        "owner_principal_name": name or None,
        "renewers": [_principal(renewer) for renewer in renewers],
        "max_lifetime": lifetime_ms,
    }


def _principal(text: str) -> dict[str, str]:
    kind, _, name = text.partition(":")
    return {"principal_type": kind, "principal_name": name}


def renew_token_request(hmac: bytes, period_ms: int) -> dict[str, Any]:
    """RenewDelegationToken."""
    return {"hmac": hmac, "renew_period": period_ms}


def expire_token_request(hmac: bytes, period_ms: int) -> dict[str, Any]:
    """ExpireDelegationToken; -1 at once."""
    return {"hmac": hmac, "expiry_time_period": period_ms}


def describe_tokens_request(owners: Sequence[str] | None) -> dict[str, Any]:
    """DescribeDelegationToken of these owners, or of all."""
    return {"owners": None if owners is None else [_principal(owner) for owner in owners]}


def read_token(found: Any) -> DelegationToken:
    """One token of an answer of CreateDelegationToken or DescribeDelegationToken."""
    return DelegationToken(
        id=found.token_id,
        hmac=found.hmac,
        owner=f"{found.principal_type}:{found.principal_name}",
        requester=_requester(found),
        renewers=tuple(f"{each.principal_type}:{each.principal_name}" for each in getattr(found, "renewers", ())),
        issued_ms=milliseconds(found.issue_timestamp),
        expires_ms=milliseconds(found.expiry_timestamp),
        most_ms=milliseconds(found.max_timestamp),
    )


def _requester(found: Any) -> str:
    kind = getattr(found, "token_requester_principal_type", None) or found.principal_type
    name = getattr(found, "token_requester_principal_name", None) or found.principal_name
    return f"{kind}:{name}"


def milliseconds(time: Any) -> int:
    """A time of an answer since 1970, whichever way its version has it."""
    return round(time.timestamp() * 1000) if hasattr(time, "timestamp") else int(time)
