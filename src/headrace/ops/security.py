"""Who may do what in a cluster, and how much of it: ACLs, SCRAM users, client quotas and delegation tokens."""

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from struct import Struct
from typing import Any, Final, TypeVar

from headrace.client.columnar.channel import Channel
from headrace.client.columnar.retry import refused, refused_or_again
from headrace.client.core.security import (
    DelegationToken,
    ScramUser,
    alter_users_request,
    create_acls_request,
    create_token_request,
    delete_acls_request,
    describe_acls_request,
    describe_tokens_request,
    describe_users_request,
    expire_token_request,
    milliseconds,
    read_acls,
    read_deleted,
    read_token,
    read_user,
    renew_token_request,
    upsertion,
)
from headrace.client.errors import ClientError
from headrace.protocol.acl import AclBinding, AclFilter
from headrace.protocol.api import ApiKey
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import ErrorCode
from headrace.protocol.scram import ScramMechanism

from .quotas import QuotaOperations

DEFAULT_ITERATIONS: Final = 8192
_SALT_BYTES: Final = 24
_PAGE: Final = 1000
_CODE: Final = Struct(">h")

T = TypeVar("T")


class SecurityOperations(QuotaOperations):
    """The security of one cluster. Each method raises `ClientError`."""

    # ACLs

    def acls(self, wanted: AclFilter) -> list[AclBinding]:
        """The rules that a filter takes, in order."""
        return sorted(read_acls(self._ask(ApiKey.DESCRIBE_ACLS, describe_acls_request(wanted))))

    def create_acls(self, acls: Sequence[AclBinding]) -> None:
        """Make rules; those that are there already stay as they are."""
        for page in _pages(acls):
            answer = self._ask(ApiKey.CREATE_ACLS, create_acls_request(page))
            for acl, result in zip(page, answer.results, strict=True):
                _check(result, _named(acl))

    def delete_acls(self, filters: Sequence[AclFilter]) -> list[AclBinding]:
        """Remove all rules that one of the filters takes; those that are gone."""
        gone: list[AclBinding] = []
        for page in _pages(filters):
            for result in self._ask(ApiKey.DELETE_ACLS, delete_acls_request(page)).filter_results:
                _check(result, "the ACLs")
                for acl, found in read_deleted(result):
                    _check(found, _named(acl))
                    gone.append(acl)
        return sorted(set(gone))

    # Users

    def users(self, names: Sequence[str] | None = None) -> list[ScramUser]:
        """These users, or all, by name; one that does not exist is left out."""
        found: list[ScramUser] = []
        for result in self._ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, describe_users_request(names)).results:
            if result.error_code is not ErrorCode.resource_not_found:
                _check(result, f"user '{result.user}'")
                found.append(read_user(result))
        return sorted(found, key=lambda user: user.name)

    def set_password(
        self, name: str, mechanisms: Iterable[ScramMechanism], password: str, iterations: int = DEFAULT_ITERATIONS
    ) -> None:
        """Give a user a password, and make it where it does not exist: mechanism by mechanism, as a request may name
        a user only once."""
        for mechanism in mechanisms:
            salt = secrets.token_bytes(_SALT_BYTES)
            self._alter_users(alter_users_request([upsertion(name, mechanism, password, iterations, salt)]))

    def delete_credentials(self, name: str, mechanisms: Iterable[ScramMechanism]) -> None:
        """Take credentials from a user; without any it does not exist."""
        for mechanism in mechanisms:
            self._alter_users(alter_users_request(deletions=[(name, mechanism)]))

    def _alter_users(self, request: Mapping[str, Any]) -> None:
        for result in self._ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request).results:
            _check(result, f"user '{result.user}'")

    # Delegation tokens

    def create_token(
        self, renewers: Iterable[str] = (), *, owner: str | None = None, lifetime_ms: int = -1
    ) -> DelegationToken:
        """A new token of whoever asks, or of another owner."""
        request = create_token_request(renewers, owner=owner, lifetime_ms=lifetime_ms)
        return read_token(self._ask_token(ApiKey.CREATE_DELEGATION_TOKEN, request))

    def tokens(self, owners: Sequence[str] | None = None) -> list[DelegationToken]:
        """The tokens of these owners, or all that whoever asks may see."""
        answer = self._ask(ApiKey.DESCRIBE_DELEGATION_TOKEN, describe_tokens_request(owners))
        return sorted(map(read_token, answer.tokens), key=lambda token: token.id)

    def token(self, token_id: str) -> DelegationToken:
        """A token by its id."""
        for token in self.tokens():
            if token.id == token_id:
                return token
        raise ClientError(
            f"there is no token '{token_id}' that you may see; `headrace token list` shows those",
            "DELEGATION_TOKEN_NOT_FOUND",
        )

    def renew_token(self, token: DelegationToken, period_ms: int = -1) -> int:
        """Let a token live longer; until when, in milliseconds."""
        answer = self._ask_token(ApiKey.RENEW_DELEGATION_TOKEN, renew_token_request(token.hmac, period_ms))
        return milliseconds(answer.expiry_timestamp)

    def expire_token(self, token: DelegationToken, period_ms: int = -1) -> int:
        """Let a token end, at once or after a time; when, in milliseconds."""
        answer = self._ask_token(ApiKey.EXPIRE_DELEGATION_TOKEN, expire_token_request(token.hmac, period_ms))
        return milliseconds(answer.expiry_timestamp)

    def _ask_token(self, api: ApiKey, values: Mapping[str, Any]) -> Any:
        """As `_ask`. An answer that is an error has times before 1970, which do not decode: its code stands first."""

        def attempt(channel: Channel) -> Any:
            version = channel.version_of(api)
            channel.send(api, version, [encode_request(api, version, values)])
            answer = channel.receive()
            code = ErrorCode(_CODE.unpack_from(answer.body)[0])
            if code is not ErrorCode.none:
                raise refused_or_again(code, "the delegation token")
            return answer.entity()

        return self._cluster.with_any(attempt)


def _pages(items: Sequence[T]) -> Iterator[list[T]]:
    left = iter(items)
    while page := list(islice(left, _PAGE)):
        yield page


def _named(acl: AclBinding) -> str:
    return f"the ACL of {acl.entry.principal} on {acl.resource.type.name.lower()} '{acl.resource.name}'"


def _check(result: Any, what: str) -> None:
    if result.error_code is not ErrorCode.none:
        raise refused(result.error_code, what, result.error_message)
