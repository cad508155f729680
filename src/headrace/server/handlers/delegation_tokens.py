"""CreateDelegationToken, versions 1-3, RenewDelegationToken and ExpireDelegationToken, versions 1-2, and
DescribeDelegationToken, versions 1-3: rights to come in that a user hands on for a time (KIP-48, KIP-373).

Only who has shown who it is makes tokens, and who came in by a token makes no further ones: both are told
DELEGATION_TOKEN_REQUEST_NOT_ALLOWED. Without `delegation.token.secret.key` there are none, which is
DELEGATION_TOKEN_AUTH_DISABLED. A token is renewed and ended by its owner and its renewers. The controller changes them,
any broker describes them.

- Create v3 can name an owner other than who asks, who must then be allowed CREATE_TOKENS on that user.
- Expire with a negative period ends a token at once. Renew and Expire never go beyond the end that it was made with.
- Describe tells of tokens that who asks has to do with, or may describe; with no owners (null) of all of these.
- One owner has at most `MOST_TOKENS`: the next is POLICY_VIOLATION.
"""

import hmac
from datetime import timedelta
from functools import partial
from typing import Any, Final

from headrace.cluster.entries import EntryKind, EntryValues
from headrace.config.sasl import TOKEN_KEY
from headrace.protocol.acl import AclOperation, ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.security.sasl.tokens import (
    TokenInformation,
    credentials_in,
    credentials_of,
    new_token_id,
    password_of,
)

from ..context import Context, RequestInfo
from .authorized import may, may_see

MOST_TOKENS: Final = 1_000
_MOST_RENEWERS: Final = 100
_LONGEST_NAME: Final = 1_000
_ANONYMOUS: Final = "User:ANONYMOUS"
_USER: Final = "User"
_MS: Final = timedelta(milliseconds=1)


async def handle_create_delegation_token(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    owner_type = getattr(request, "owner_principal_type", None) or ""
    owner_name = getattr(request, "owner_principal_name", None) or ""
    owner = f"{owner_type or _USER}:{owner_name}" if owner_name else info.principal
    try:
        token, password = await _create(ctx, request, info, owner)
    except CodedError as error:
        return {**_created(owner, info.principal, None, b""), "error_code": error.code}
    return _created(owner, info.principal, token, password)


async def _create(ctx: Context, request: Any, info: RequestInfo, owner: str) -> tuple[TokenInformation, bytes]:
    _check_may_ask(info)
    if owner != info.principal and not may(ctx, info, AclOperation.CREATE_TOKENS, ResourceType.USER, owner):
        raise CodedError(ErrorCode.delegation_token_authorization_failed)
    renewers = tuple(f"{each.principal_type}:{each.principal_name}" for each in request.renewers or ())
    if not all(each.principal_type == _USER for each in request.renewers or ()) or not owner.startswith(f"{_USER}:"):
        raise CodedError(ErrorCode.invalid_principal_type)
    secret_key = _secret_key(ctx)
    if len(renewers) > _MOST_RENEWERS or any(len(name) > _LONGEST_NAME for name in (owner, *renewers)):
        raise CodedError(ErrorCode.invalid_request, f"a token has at most {_MOST_RENEWERS} renewers, of sane names")
    _check_room(ctx, owner)
    now_ms, asked_ms = ctx.clock.now_ms(), request.max_lifetime // _MS
    lifetime_ms = int(ctx.config["delegation.token.max.lifetime.ms"])
    ends_at_ms = now_ms + (min(lifetime_ms, asked_ms) if asked_ms > 0 else lifetime_ms)
    token = TokenInformation(
        id=new_token_id(),
        owner=owner,
        requester=info.principal,
        renewers=renewers,
        issued_at_ms=now_ms,
        expires_at_ms=min(ends_at_ms, now_ms + int(ctx.config["delegation.token.expiry.time.ms"])),
        ends_at_ms=ends_at_ms,
    )
    # Milliseconds of work, which any user may ask for again and again: others are served meanwhile.
    credentials = await ctx.replicas.in_thread(partial(credentials_of, token.id, secret_key))
    _check_room(ctx, owner)
    values = token.to_values(credentials)
    await ctx.controller.change_entries(EntryKind.TOKEN, {token.id: lambda _: values})
    return token, password_of(token.id, secret_key)


def _check_room(ctx: Context, owner: str) -> None:
    if sum(values.get("owner") == owner for values in ctx.image.entries[EntryKind.TOKEN].values()) >= MOST_TOKENS:
        raise CodedError(ErrorCode.policy_violation, f"{owner} has {MOST_TOKENS} tokens, and gets no further one")


def _created(owner: str, requester: str, token: TokenInformation | None, password: bytes) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        **_principal(owner),
        **_principal(requester, "token_requester_principal"),
        "issue_timestamp": 0 if token is None else token.issued_at_ms,
        "expiry_timestamp": 0 if token is None else token.expires_at_ms,
        "max_timestamp": 0 if token is None else token.ends_at_ms,
        "token_id": "" if token is None else token.id,
        "hmac": password,
        "throttle_time": 0,
    }


async def handle_renew_delegation_token(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    period_ms, most_ms = request.renew_period // _MS, int(ctx.config["delegation.token.expiry.time.ms"])
    return await _prolong(ctx, request.hmac, info, min(period_ms, most_ms) if period_ms > 0 else most_ms)


async def handle_expire_delegation_token(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    return await _prolong(ctx, request.hmac, info, request.expiry_time_period // _MS)


async def _prolong(ctx: Context, password: bytes, info: RequestInfo, period_ms: int) -> dict[str, Any]:
    """Let a token be good for so long from now; where that is negative it goes."""
    try:
        expires_at_ms = await _change(ctx, bytes(password), info, period_ms)
    except CodedError as error:
        return {"error_code": error.code, "expiry_timestamp": 0, "throttle_time": 0}
    return {"error_code": ErrorCode.none, "expiry_timestamp": expires_at_ms, "throttle_time": 0}


async def _change(ctx: Context, password: bytes, info: RequestInfo, period_ms: int) -> int:
    _check_may_ask(info)
    token_id = _find(ctx, password, _secret_key(ctx))
    now_ms = ctx.clock.now_ms()
    expires_at_ms = now_ms

    def decide(values: EntryValues) -> EntryValues:
        nonlocal expires_at_ms
        token = TokenInformation.parse(token_id, values)
        if token is None:
            raise CodedError(ErrorCode.delegation_token_not_found)
        if token.is_over(now_ms):
            raise CodedError(ErrorCode.delegation_token_expired)
        if not token.is_renewed_by(info.principal):
            raise CodedError(ErrorCode.delegation_token_owner_mismatch)
        if period_ms < 0:
            return {}
        changed = token.until(now_ms + period_ms)
        expires_at_ms = changed.expires_at_ms
        return changed.to_values(credentials_in(values))

    await ctx.controller.change_entries(EntryKind.TOKEN, {token_id: decide})
    return expires_at_ms


def _find(ctx: Context, password: bytes, secret_key: str) -> str:
    tokens = ctx.image.entries[EntryKind.TOKEN]
    found = next((each for each in tokens if hmac.compare_digest(password_of(each, secret_key), password)), None)
    if found is None:
        raise CodedError(ErrorCode.delegation_token_not_found)
    return found


async def handle_describe_delegation_token(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    try:
        _check_may_ask(info)
        secret_key = _secret_key(ctx)
    except CodedError as error:
        return {"error_code": error.code, "tokens": (), "throttle_time": 0}
    owners = request.owners
    wanted_owners = None if owners is None else {f"{each.principal_type}:{each.principal_name}" for each in owners}
    parsed = (TokenInformation.parse(each, values) for each, values in ctx.image.entries[EntryKind.TOKEN].items())
    now_ms = ctx.clock.now_ms()
    tokens = [
        _described(token, secret_key)
        for token in parsed
        if token is not None
        and not token.is_over(now_ms)
        and (wanted_owners is None or token.owner in wanted_owners)
        and _may_see(ctx, info, token)
    ]
    return {"error_code": ErrorCode.none, "tokens": tokens, "throttle_time": 0}


def _may_see(ctx: Context, info: RequestInfo, token: TokenInformation) -> bool:
    return (
        token.belongs_to(info.principal)
        or may_see(ctx, info, AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.id)
        or may_see(ctx, info, AclOperation.DESCRIBE_TOKENS, ResourceType.USER, token.owner)
    )


def _described(token: TokenInformation, secret_key: str) -> dict[str, Any]:
    return {
        **_principal(token.owner),
        **_principal(token.requester, "token_requester_principal"),
        "issue_timestamp": token.issued_at_ms,
        "expiry_timestamp": token.expires_at_ms,
        "max_timestamp": token.ends_at_ms,
        "token_id": token.id,
        "hmac": password_of(token.id, secret_key),
        "renewers": [_principal(renewer) for renewer in token.renewers],
    }


def _principal(principal: str, prefix: str = "principal") -> dict[str, str]:
    kind, _, name = principal.partition(":")
    return {f"{prefix}_type": kind, f"{prefix}_name": name}


def _check_may_ask(info: RequestInfo) -> None:
    if info.by_token or info.principal == _ANONYMOUS:
        raise CodedError(ErrorCode.delegation_token_request_not_allowed)


def _secret_key(ctx: Context) -> str:
    secret_key: str | None = ctx.config[TOKEN_KEY]
    if not secret_key:
        raise CodedError(ErrorCode.delegation_token_auth_disabled, f"there are no tokens without {TOKEN_KEY}")
    return secret_key


async def remove_expired_tokens(ctx: Context) -> None:
    """Remove the tokens that are over. On the controller."""
    now_ms = ctx.clock.now_ms()

    def without_expired(values: EntryValues) -> EntryValues:
        token = TokenInformation.parse("", values)
        return values if token is not None and not token.is_over(now_ms) else {}

    tokens = ctx.image.entries[EntryKind.TOKEN]
    over = {name: without_expired for name, values in tokens.items() if not without_expired(values)}
    if over:
        await ctx.controller.change_entries(EntryKind.TOKEN, over)


HANDLERS: Final = {
    ApiKey.CREATE_DELEGATION_TOKEN: handle_create_delegation_token,
    ApiKey.RENEW_DELEGATION_TOKEN: handle_renew_delegation_token,
    ApiKey.EXPIRE_DELEGATION_TOKEN: handle_expire_delegation_token,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: handle_describe_delegation_token,
}
