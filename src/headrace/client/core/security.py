"""Who may do what: ACLs, SCRAM users and delegation tokens, as requests and as what was answered."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from headrace.protocol.acl import (
    AclBinding,
    AclEntry,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from headrace.protocol.scram import ScramMechanism, salt_password

# ACLs


EVERY_HOST: Final = "*"


def acl_json(acl: AclBinding) -> dict[str, str]:
    """The ACL in Kafka's words."""
    return {
        "resource": word(acl.resource.type),
        "name": acl.resource.name,
        "pattern": word(acl.resource.pattern),
        "principal": acl.entry.principal,
        "host": acl.entry.host,
        "operation": word(acl.entry.operation),
        "permission": word(acl.entry.permission),
    }


def word(value: IntEnum) -> str:
    """How Kafka's tools write it: `transactional-id`."""
    return value.name.lower().replace("_", "-")


def describe_acls_request(acl_filter: AclFilter) -> dict[str, Any]:
    """DescribeAcls."""
    return {
        "resource_type_filter": acl_filter.type,
        "resource_name_filter": acl_filter.name,
        "pattern_type_filter": acl_filter.pattern,
        "principal_filter": acl_filter.principal,
        "host_filter": acl_filter.host,
        "operation": acl_filter.operation,
        "permission_type": acl_filter.permission,
    }


def read_acls(answer: Any) -> Iterator[AclBinding]:
    """The rules of DescribeAcls' answer; those of a kind that is not known here are passed over."""
    for resource in answer.resources:
        for entry in resource.acls:
            acl = _acl(resource.resource_type, resource.resource_name, getattr(resource, "pattern_type", 3), entry)
            if acl is not None:
                yield acl


def create_acls_request(acls: Iterable[AclBinding]) -> dict[str, Any]:
    """CreateAcls."""
    return {
        "creations": [
            {
                "resource_type": acl.resource.type,
                "resource_name": acl.resource.name,
                "resource_pattern_type": acl.resource.pattern,
                "principal": acl.entry.principal,
                "host": acl.entry.host,
                "operation": acl.entry.operation,
                "permission_type": acl.entry.permission,
            }
            for acl in acls
        ]
    }


def delete_acls_request(filters: Iterable[AclFilter]) -> dict[str, Any]:
    """DeleteAcls."""
    return {"filters": [describe_acls_request(each) for each in filters]}


def read_deleted(result: Any) -> Iterator[tuple[AclBinding, Any]]:
    """The rules that one filter of DeleteAcls took, and the code for each."""
    for match in result.matching_acls:
        acl = _acl(match.resource_type, match.resource_name, getattr(match, "pattern_type", 3), match)
        if acl is not None:
            yield acl, match


def _acl(resource: int, name: str, pattern: int, entry: Any) -> AclBinding | None:
    try:
        return AclBinding(
            resource=ResourcePattern(type=ResourceType(resource), name=name, pattern=PatternType(pattern)),
            entry=AclEntry(
                principal=entry.principal,
                host=entry.host,
                operation=AclOperation(entry.operation),
                permission=PermissionType(entry.permission_type),
            ),
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


def read_token(token: Any) -> DelegationToken:
    """One token of an answer of CreateDelegationToken or DescribeDelegationToken."""
    return DelegationToken(
        id=token.token_id,
        hmac=token.hmac,
        owner=f"{token.principal_type}:{token.principal_name}",
        requester=_requester(token),
        renewers=tuple(f"{each.principal_type}:{each.principal_name}" for each in getattr(token, "renewers", ())),
        issued_ms=milliseconds(token.issue_timestamp),
        expires_ms=milliseconds(token.expiry_timestamp),
        most_ms=milliseconds(token.max_timestamp),
    )


def _requester(token: Any) -> str:
    kind = getattr(token, "token_requester_principal_type", None) or token.principal_type
    name = getattr(token, "token_requester_principal_name", None) or token.principal_name
    return f"{kind}:{name}"


def milliseconds(time: Any) -> int:
    """A time of an answer since 1970, whichever way its version has it."""
    return round(time.timestamp() * 1000) if hasattr(time, "timestamp") else int(time)
