"""DescribeTransactions, version 0, and ListTransactions, 0-2.

- DescribeTransactions is asked of the broker that speaks for an id, as FindCoordinator tells; an id that nobody has is
  TRANSACTIONAL_ID_NOT_FOUND.
- ListTransactions tells of the ids that this broker speaks for; who wants all asks every broker. Names of states that
  do not exist come back as unknown. v1 filters by how long a transaction has lasted, v2 by an expression (RE2's, of the
  whole id). COORDINATOR_LOAD_IN_PROGRESS while some are being read, as a list that lacks them would look complete.
"""

from collections import defaultdict
from typing import Any, Final

from headrace.coordinator.transactions.service import ANY_DURATION, STATES
from headrace.net.pacing import paced
from headrace.protocol.acl import AclOperation, ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode

from ..context import Context, RequestInfo
from .authorized import may_see, require


async def handle_describe(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    states = [
        await _described(ctx, info, transactional_id)
        async for transactional_id in paced(request.transactional_ids or ())
    ]
    return {"throttle_time": 0, "transaction_states": states}


async def _described(ctx: Context, info: RequestInfo, transactional_id: str) -> dict[str, Any]:
    try:
        require(ctx, info, AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        transaction = await ctx.transactions.describe(transactional_id)
    except CodedError as error:
        return {
            "error_code": error.code,
            "transactional_id": transactional_id,
            "transaction_state": "",
            "transaction_timeout": 0,
            "transaction_start_time": 0,
            "producer_id": 0,
            "producer_epoch": 0,
            "topics": (),
        }
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, index in sorted(transaction.partitions):
        if may_see(ctx, info, AclOperation.DESCRIBE, ResourceType.TOPIC, topic):
            topics[topic].append(index)
    return {
        "error_code": ErrorCode.none,
        "transactional_id": transactional_id,
        "transaction_state": transaction.state.value,
        "transaction_timeout": transaction.timeout_ms,
        "transaction_start_time": transaction.start_ms,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "topics": [{"topic": name, "partitions": indexes} for name, indexes in topics.items()],
    }


async def handle_list(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    states = request.state_filters or ()
    transactions = await ctx.transactions.list_transactions(
        states=states,
        producer_ids=request.producer_id_filters or (),
        longer_than_ms=getattr(request, "duration_filter", ANY_DURATION),
        pattern=getattr(request, "transactional_id_pattern", None),
        now_ms=ctx.clock.now_ms(),
    )
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.none,
        "unknown_state_filters": [name for name in states if name not in STATES],
        "transaction_states": [
            {
                "transactional_id": transaction.transactional_id,
                "producer_id": transaction.producer_id,
                "transaction_state": transaction.state.value,
            }
            for transaction in transactions
            if may_see(ctx, info, AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transaction.transactional_id)
        ],
    }


HANDLERS: Final = {ApiKey.DESCRIBE_TRANSACTIONS: handle_describe, ApiKey.LIST_TRANSACTIONS: handle_list}
