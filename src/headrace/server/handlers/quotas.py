"""DescribeClientQuotas, versions 0-1, and AlterClientQuotas, versions 0-1.

Quotas are kept in the cluster's metadata, one entry for each entity; what entities and quotas there are, and what they
may hold, is said in `security.quotas.entities`. How they are kept to: `server.throttling`.

- AlterClientQuotas goes to the controller. Each entity succeeds or fails by itself. One that stands twice in a request
  fails (INVALID_REQUEST), and nothing is done for it, where Kafka carries out the first and answers with an error.
- DescribeClientQuotas is answered by any broker. A filter that makes no sense is INVALID_REQUEST, an unknown kind of
  entity UNSUPPORTED_VERSION; then the entries are null.
- v1 is flexible, and else as v0.
- An `ip` is an address: Kafka also takes the name of a host, and looks it up when the quota is read.
- Beyond Kafka: the kind `topic-prefix` with `storage_bytes`.
"""

from collections import Counter
from functools import partial
from typing import Any, Final

from headrace.cluster.entries import EntryKind
from headrace.net.pacing import paced
from headrace.protocol.acl import CLUSTER_NAME, AclOperation, ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.security.quotas.entities import (
    Component,
    Entity,
    QuotaChange,
    altered,
    check_entity,
    check_filter,
    check_operations,
    entity_of,
    entry_name,
    quotas_of,
)

from ..context import Context, RequestInfo
from .authorized import may, refused, require_cluster

Parts = tuple[tuple[str, str | None], ...]
"""An entity as it stands in a request."""


async def handle_describe_client_quotas(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    require_cluster(ctx, info, AclOperation.DESCRIBE_CONFIGS)
    try:
        entity_filter = check_filter(
            (Component(part.entity_type, part.match_type, part.match) for part in request.components or ()),
            strict=request.strict,
        )
    except CodedError as error:
        return {"throttle_time": 0, "error_code": error.code, "error_message": error.message, "entries": None}
    entries = []
    async for name, values in paced(list(ctx.image.entries[EntryKind.QUOTA].items())):
        entity = entity_of(name)
        if entity_filter.matches(entity):
            quotas = [{"key": key, "value": value} for key, value in quotas_of(values).items()]
            entries.append({"entity": _named(entity), "values": quotas})
    return {"throttle_time": 0, "error_code": ErrorCode.none, "error_message": "", "entries": entries}


async def handle_alter_client_quotas(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    alterations = [
        (tuple((part.entity_type, part.entity_name) for part in entry.entity or ()), entry.ops or ())
        async for entry in paced(request.entries or ())
    ]
    if not may(ctx, info, AclOperation.ALTER_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME):
        refusal = refused(info, AclOperation.ALTER_CONFIGS, ResourceType.CLUSTER)
        return {"throttle_time": 0, "entries": [_result(parts, refusal) for parts, _ in alterations]}
    counts = Counter(frozenset(parts) for parts, _ in alterations)
    results: dict[Parts, CodedError | None] = {}
    decided = {}
    async for parts, ops in paced(alterations):
        operations = [QuotaChange(op.key, None if op.remove else op.value) for op in ops]
        try:
            entity = check_entity(parts)
            if counts[frozenset(parts)] > 1:
                raise CodedError(ErrorCode.invalid_request, f"Ignoring duplicate entity {entry_name(entity)}")
            check_operations(entity, operations)
        except CodedError as error:
            results[parts] = error
            continue
        results[parts] = None
        decided[entry_name(entity)] = partial(altered, operations=operations)
    if decided:
        await ctx.controller.change_entries(EntryKind.QUOTA, decided, validate_only=request.validate_only)
    return {"throttle_time": 0, "entries": [_result(parts, error) for parts, error in results.items()]}


def _result(parts: Parts, error: CodedError | None) -> dict[str, Any]:
    code, message = (ErrorCode.none, None) if error is None else (error.code, error.message)
    return {"error_code": code, "error_message": message, "entity": _named(parts)}


def _named(entity: Entity) -> list[dict[str, Any]]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in entity]


HANDLERS: Final = {
    ApiKey.DESCRIBE_CLIENT_QUOTAS: handle_describe_client_quotas,
    ApiKey.ALTER_CLIENT_QUOTAS: handle_alter_client_quotas,
}
