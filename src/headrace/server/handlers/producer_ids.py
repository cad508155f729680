"""InitProducerId, versions 0-5.

An idempotent producer gets an id that no other ever had, with epoch 0. One with a transactional id gets the id that
goes with it, with a new epoch: whoever had it before is shut out, and what it had open is aborted first; meanwhile the
new one is told CONCURRENT_TRANSACTIONS, and asks again.

- v3 lets a producer that lost its place name its old id and epoch (KIP-360). Without a transactional id there is
  nothing to keep, so it gets a new id, as from Kafka. One of the two without the other is INVALID_REQUEST.
- A producer that was shut out is told INVALID_PRODUCER_EPOCH, from v4 on PRODUCER_FENCED.
- A timeout above `transaction.max.timeout.ms` is INVALID_TRANSACTION_TIMEOUT.
- Left out: v6, transactions that outlive their producer (KIP-939).
"""

from datetime import timedelta
from typing import Any, Final

from headrace.coordinator.transactions.decisions import NOBODY, ProducerIdAndEpoch
from headrace.protocol.acl import CLUSTER_NAME, AclOperation, ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode

from ..context import Context, RequestInfo
from .authorized import may, may_any, may_see
from .transactions import code_for_version

NONE: Final = -1
_FIRST_WITH_FENCED: Final = 4
_MS: Final = timedelta(milliseconds=1)


async def handle_init_producer_id(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    old_id = getattr(request, "producer_id", NONE)
    old_epoch = getattr(request, "producer_epoch", NONE)
    refusal = _refusal(ctx, request.transactional_id, info)
    if refusal is not ErrorCode.none:
        return _answer(refusal)
    if (old_id == NONE) != (old_epoch == NONE):
        return _answer(ErrorCode.invalid_request)
    if request.transactional_id is None:
        return _answer(ErrorCode.none, ProducerIdAndEpoch(await ctx.controller.allocate_producer_id(), 0))
    expected = None if old_id == NONE else ProducerIdAndEpoch(old_id, old_epoch)
    timeout_ms = request.transaction_timeout // _MS
    try:
        outcome = await ctx.transactions.init_producer(request.transactional_id, timeout_ms, expected)
    except CodedError as error:
        return _answer(error.code)
    code = code_for_version(outcome.code, info.version, _FIRST_WITH_FENCED)
    return _answer(code, outcome.producer)


def _refusal(ctx: Context, transactional_id: str | None, info: RequestInfo) -> ErrorCode:
    """Who may write to any topic may write to it idempotently (KIP-679)."""
    if transactional_id is not None:
        allowed = may(ctx, info, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        return ErrorCode.none if allowed else ErrorCode.transactional_id_authorization_failed
    if may_see(ctx, info, AclOperation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME):
        return ErrorCode.none
    if may_any(ctx, info, AclOperation.WRITE, ResourceType.TOPIC):
        return ErrorCode.none
    may(ctx, info, AclOperation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)
    return ErrorCode.cluster_authorization_failed


def _answer(code: ErrorCode, producer: ProducerIdAndEpoch = NOBODY) -> dict[str, Any]:
    return {"throttle_time": 0, "error_code": code, "producer_id": producer.id, "producer_epoch": producer.epoch}


HANDLERS: Final = {ApiKey.INIT_PRODUCER_ID: handle_init_producer_id}
