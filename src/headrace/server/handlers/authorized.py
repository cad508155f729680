"""What whoever sent a request may do: asked before anything is done for it, of the ACLs if there is an authorizer.

Without one everybody may do everything. Brokers of the cluster are not asked: what they forward for a client has that
client's name and address. `docs/security.md` has a table of which API needs what.
"""

from collections.abc import Mapping
from typing import Any, Final

from headrace.config import shown
from headrace.protocol.acl import CLUSTER_NAME, AclOperation, ResourceType
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.security.acl import OPERATIONS, REFUSALS
from headrace.security.authorizer import Authorizer

from ..connection import Connection
from ..context import Context, RequestInfo

NOT_ASKED: Final = -(2**31)
"""The value of an `authorized_operations` field where the client did not ask."""
EVERYTHING: Final = {kind: sum(1 << each for each in operations) for kind, operations in OPERATIONS.items()}
"""All that can be done with a resource of a kind, as bits."""


def is_free(ctx: Context, info: RequestInfo) -> bool:
    """Whether nothing is to be authorized: there is no authorizer, or a broker asks."""
    return ctx.authorizer is None or info.peer_broker is not None


def may(ctx: Context, info: RequestInfo, operation: AclOperation, kind: ResourceType, name: str) -> bool:
    """Whether it may do that. Who may not is noted as denied."""
    authorizer = ctx.authorizer
    if authorizer is None or info.peer_broker is not None:
        return True
    return authorizer.allows(info.principal, info.host, operation, kind, name)


def may_see(ctx: Context, info: RequestInfo, operation: AclOperation, kind: ResourceType, name: str) -> bool:
    """As `may`, for a resource that the request did not name: a denial is not audited."""
    authorizer = ctx.authorizer
    if authorizer is None or info.peer_broker is not None:
        return True
    return authorizer.would_allow(info.principal, info.host, operation, kind, name)


def may_any(ctx: Context, info: RequestInfo, operation: AclOperation, kind: ResourceType) -> bool:
    """Whether there can be a resource that it may do that with."""
    authorizer = ctx.authorizer
    if authorizer is None or info.peer_broker is not None:
        return True
    return authorizer.allows_any(info.principal, info.host, operation, kind)


def refused(info: RequestInfo, operation: AclOperation, kind: ResourceType, name: str = CLUSTER_NAME) -> CodedError:
    """The authorization error of a resource type."""
    return _refused(info.principal, operation, kind, name)


def _refused(principal: str, operation: AclOperation, kind: ResourceType, name: str) -> CodedError:
    return CodedError(REFUSALS[kind], f"{shown(principal)} may not {operation.name} {kind.name} {shown(name)}")


def require(ctx: Context, info: RequestInfo, operation: AclOperation, kind: ResourceType, name: str) -> None:
    """`CodedError` unless it may do that."""
    if not may(ctx, info, operation, kind, name):
        raise refused(info, operation, kind, name)


def require_cluster(ctx: Context, info: RequestInfo, operation: AclOperation) -> None:
    """The same for the cluster as a whole."""
    require(ctx, info, operation, ResourceType.CLUSTER, CLUSTER_NAME)


def check_connection(authorizer: Authorizer | None, connection: Connection, operation: AclOperation) -> None:
    """The same for what is asked of a broker itself, before it knows a request of it: our own APIs."""
    if authorizer is None or connection.peer_broker is not None:
        return
    principal, kind = connection.principal, ResourceType.CLUSTER
    if not authorizer.allows(principal, connection.peer, operation, kind, CLUSTER_NAME):
        raise _refused(principal, operation, kind, CLUSTER_NAME)


def operations(ctx: Context, info: RequestInfo, kind: ResourceType, name: str) -> int:
    """All that it may do with a resource, as the bits of an `authorized_operations` field."""
    authorizer = ctx.authorizer
    if authorizer is None or info.peer_broker is not None:
        return EVERYTHING[kind]
    return authorizer.operations(info.principal, info.host, kind, name)


def cluster_operations(ctx: Context, info: RequestInfo) -> int:
    """The same for the cluster; nothing for who may not even describe it."""
    if not may(ctx, info, AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return 0
    return operations(ctx, info, ResourceType.CLUSTER, CLUSTER_NAME)


def with_operations(ctx: Context, info: RequestInfo, group: Mapping[str, Any], is_asked: bool) -> dict[str, Any]:
    """A group's description with what may be done with it, where that was asked for; of groups that are described."""
    if not is_asked or group["error_code"] is not ErrorCode.none:
        return {**group, "authorized_operations": NOT_ASKED}
    return {**group, "authorized_operations": operations(ctx, info, ResourceType.GROUP, group["group_id"])}
