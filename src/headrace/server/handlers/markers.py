"""WriteTxnMarkers, versions 1 and 2: a transaction coordinator ends transactions on the partitions led here.

Each partition is answered with its own code once its marker is committed: NOT_LEADER_OR_FOLLOWER and others to try
again; INVALID_PRODUCER_EPOCH where the producer is in a later transaction already, and TRANSACTION_COORDINATOR_FENCED
where a later coordinator has written, which both mean that this coordinator has nothing to do here any more.

- v2 tells the `transaction.version`: from 2 on a marker's producer epoch is one that no batch of its transaction had.
  A v1 marker is one of version 1.
- Clients may only abort, which is what an operator needs who frees readers from a transaction that nobody ends
  (`headrace txn abort`, Kafka's kafka-transactions.sh). To commit is the coordinators' alone: a client that tries gets
  CLUSTER_AUTHORIZATION_FAILED, at every partition.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.replication.transactions import TopicPartition, TransactionMarker

from ..context import Context, RequestInfo
from ..dispatch import Handler

_FIRST_WITH_BUMPS: Final = 2


async def handle_write_txn_markers(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    answers = await asyncio.gather(*[_write(ctx, asked, info) for asked in request.markers or ()])
    return {"markers": list(answers)}


async def _write(ctx: Context, asked: Any, info: RequestInfo) -> dict[str, Any]:
    keys = [(topic.name, index) for topic in asked.topics or () for index in topic.partition_indexes or ()]
    if info.peer_broker is None and asked.transaction_result:
        return _answer(asked, dict.fromkeys(keys, ErrorCode.cluster_authorization_failed))
    marker = TransactionMarker(
        producer_id=asked.producer_id,
        producer_epoch=asked.producer_epoch,
        coordinator_epoch=asked.coordinator_epoch,
        committed=asked.transaction_result,
        transaction_version=asked.transaction_version if info.version >= _FIRST_WITH_BUMPS else 1,
    )
    return _answer(asked, await _append(ctx, marker, dict.fromkeys(keys)))


async def _append(ctx: Context, marker: TransactionMarker, keys: Iterable[TopicPartition]) -> dict[TopicPartition, Any]:
    names = list(keys)
    codes = await asyncio.gather(*[ctx.replicas.append_marker(topic, index, marker) for topic, index in names])
    return dict(zip(names, codes, strict=True))


def _answer(asked: Any, codes: dict[TopicPartition, Any]) -> dict[str, Any]:
    return {
        "producer_id": asked.producer_id,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": index, "error_code": codes[topic.name, index]}
                    for index in topic.partition_indexes or ()
                ],
            }
            for topic in asked.topics or ()
        ],
    }


HANDLERS: Final[dict[ApiKey, Handler]] = {ApiKey.WRITE_TXN_MARKERS: handle_write_txn_markers}
