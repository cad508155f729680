"""DescribeUserScramCredentials and AlterUserScramCredentials, version 0: the users who log in by SCRAM (KIP-554).

A user has a credential for each mechanism. Clients send the salted password, from which the keys are made that a
broker keeps; neither leaves the brokers again, and only mechanisms and iterations are described.

- Alter is carried out by the controller. Each user is answered for: what is wrong with one does not keep the others,
  but where one of a user's credentials cannot be changed none of this user's is.
- Both mechanisms of a user can be changed in one request, as Kafka's own tool asks: Kafka did so with ZooKeeper, and
  with KRaft takes it for a duplicate.
- The same credential twice is DUPLICATE_RESOURCE, deleting what is not there RESOURCE_NOT_FOUND, an unknown mechanism
  UNSUPPORTED_SASL_MECHANISM; no name, iterations out of bounds or nothing to go by UNACCEPTABLE_CREDENTIAL.
- With an authorizer, describing takes DESCRIBE on the cluster, and changing ALTER.
- Describe without users, or with none, tells of all.
- What a broker asks for itself, at its start, makes the first users, and nothing where there are users already.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from headrace.cluster.entries import EntryKind, EntryValues
from headrace.cluster.image import ClusterImage
from headrace.config import shown
from headrace.net.pacing import paced
from headrace.protocol.acl import CLUSTER_NAME, AclOperation, ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.scram import LEAST_ITERATIONS, MOST_STORED_ITERATIONS, ScramMechanism
from headrace.security.sasl.credentials import ScramCredential

from ..context import Context, RequestInfo
from .authorized import may, refused, require_cluster

LONGEST_NAME: Final = 1_000
_LONGEST_BYTES: Final = 1_024
"""Of a salt, or of a salted password."""


class _Alteration(NamedTuple):
    """One credential to be set, or deleted where there is none to set."""

    user: str
    mechanism: ScramMechanism
    credential: ScramCredential | None


async def handle_describe_user_scram_credentials(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    require_cluster(ctx, info, AclOperation.DESCRIBE)
    users = ctx.image.entries[EntryKind.USER]
    asked = [user.name for user in request.users or ()] or list(users)
    counts = Counter(asked)
    results = [_described(name, count, users.get(name, {})) async for name, count in paced(counts.items())]
    return {"throttle_time": 0, "error_code": ErrorCode.none, "error_message": None, "results": results}


def _described(name: str, count: int, values: EntryValues) -> dict[str, Any]:
    infos = [
        {"mechanism": mechanism, "iterations": credential.iterations}
        for mechanism in ScramMechanism
        if (credential := ScramCredential.parse(values.get(mechanism.title, ""))) is not None
    ]
    code, message = ErrorCode.none, None
    if count > 1:
        code = ErrorCode.duplicate_resource
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {shown(name)}"
    elif not infos:
        code = ErrorCode.resource_not_found
        message = f"Attempt to describe a user credential that does not exist: {shown(name)}"
    told = infos if code is ErrorCode.none else []
    return {"user": name, "error_code": code, "error_message": message, "credential_infos": told}


async def handle_alter_user_scram_credentials(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    items = [*(request.deletions or ()), *(request.upsertions or ())]
    if not may(ctx, info, AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME):
        refusal = refused(info, AclOperation.ALTER, ResourceType.CLUSTER)
        users = dict.fromkeys(item.name for item in items)
        return {"throttle_time": 0, "results": [_result(user, refusal) for user in users]}
    errors: dict[str, CodedError | None] = {}
    alterations: dict[str, list[_Alteration]] = {}
    seen: set[tuple[str, int]] = set()
    async for item in paced(items):
        errors.setdefault(item.name, None)
        try:
            if (item.name, item.mechanism) in seen:
                raise CodedError(
                    ErrorCode.duplicate_resource, "A user credential cannot be altered twice in the same request"
                )
            seen.add((item.name, item.mechanism))
            alterations.setdefault(item.name, []).append(_alteration(item))
        except CodedError as error:
            errors[item.name] = errors[item.name] or error
    sound = {user: some for user, some in alterations.items() if errors[user] is None}
    is_first = info.peer_broker is not None
    changes = {user: _decide(ctx.image, some, errors, sound if is_first else None) for user, some in sound.items()}
    if changes:
        await ctx.controller.change_entries(EntryKind.USER, changes)
    return {"throttle_time": 0, "results": [_result(user, error) for user, error in errors.items()]}


def _alteration(item: Any) -> _Alteration:
    """A credential that is asked for; `CodedError` where it cannot be."""
    if not item.name:
        raise _unacceptable("Username must not be empty")
    if len(item.name) > LONGEST_NAME or "\0" in item.name:
        raise _unacceptable(f"a user's name has at most {LONGEST_NAME} characters, and none of them is NUL")
    try:
        mechanism = ScramMechanism(item.mechanism)
    except ValueError:
        raise CodedError(ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism") from None
    if not hasattr(item, "iterations"):
        return _Alteration(item.name, mechanism, None)
    if item.iterations < LEAST_ITERATIONS:
        raise _unacceptable(f"Too few iterations: {item.iterations}, and {LEAST_ITERATIONS} are needed")
    if item.iterations > MOST_STORED_ITERATIONS:
        raise _unacceptable(f"Too many iterations: {item.iterations}, and {MOST_STORED_ITERATIONS} are let through")
    if not (0 < len(item.salt) <= _LONGEST_BYTES and 0 < len(item.salted_password) <= _LONGEST_BYTES):
        raise _unacceptable(f"a salt and a salted password of up to {_LONGEST_BYTES} bytes are needed")
    salted, salt = bytes(item.salted_password), bytes(item.salt)
    return _Alteration(item.name, mechanism, ScramCredential.of_salted(mechanism, salted, salt, item.iterations))


def _unacceptable(message: str) -> CodedError:
    return CodedError(ErrorCode.unacceptable_credential, message)


def _decide(
    image: ClusterImage, alterations: Iterable[_Alteration], errors: dict[str, CodedError | None], first: Any
) -> Callable[[EntryValues], EntryValues]:
    """What a user is to have. `first` are the users that are made where there are no others, if that is asked."""

    def decide(values: EntryValues) -> EntryValues:
        if first is not None and image.entries[EntryKind.USER]:
            return values
        changed = dict(values)
        for user, mechanism, credential in alterations:
            if credential is not None:
                changed[mechanism.title] = credential.to_text()
            elif changed.pop(mechanism.title, None) is None:
                errors[user] = CodedError(
                    ErrorCode.resource_not_found, "Attempt to delete a user credential that does not exist"
                )
                return values
        return changed

    return decide


def _result(user: str, error: CodedError | None) -> dict[str, Any]:
    if error is None:
        return {"user": user, "error_code": ErrorCode.none, "error_message": None}
    return {"user": user, "error_code": error.code, "error_message": error.message}


HANDLERS: Final = {
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: handle_describe_user_scram_credentials,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: handle_alter_user_scram_credentials,
}
