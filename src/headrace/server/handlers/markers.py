"""WriteTxnMarkers, versions 1 and 2: a transaction coordinator ends transactions on the partitions led here.

Each partition is answered with its own code once its marker is committed: NOT_LEADER_OR_FOLLOWER and others to try
again; INVALID_PRODUCER_EPOCH where the producer is in a later transaction already, and TRANSACTION_COORDINATOR_FENCED
where a later coordinator has written, which both mean that this coordinator has nothing to do here any more.

- v2 tells the `transaction.version`: from 2 on a marker's producer epoch is one that no batch of its transaction had.
  A v1 marker is one of version 1.
- Clients may only abort, which is what an operator needs who frees readers from a transaction that nobody ends
  (`headrace txn abort`, Kafka's kafka-transactions.sh). To commit is the coordinators' alone: a client that tries gets
  CLUSTER_AUTHORIZATION_FAILED, at every partition. A partition that is part of a transaction which some coordinator
  will end is INVALID_TXN_STATE, as two outcomes would tear it; while not all coordinators can be asked,
  COORDINATOR_NOT_AVAILABLE or COORDINATOR_LOAD_IN_PROGRESS. The marker has to name the producer's epoch, and the
  coordinator's as far as it is known there (0 where it is not): INVALID_PRODUCER_EPOCH, CLUSTER_AUTHORIZATION_FAILED.
  Where nothing is open there is nothing to do.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from headrace.coordinator.transactions.markers import AppendMarker
from headrace.coordinator.transactions.service import Open
from headrace.net.pacing import gather_limited, paced
from headrace.protocol.acl import CLUSTER_NAME, AclOperation, ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.topic_partition import TopicPartition
from headrace.replication.transactions import TransactionMarker

from ..context import Context, RequestInfo
from ..dispatch import Handler
from .authorized import may, may_see

_FIRST_WITH_BUMPS: Final = 2

Codes = dict[TopicPartition, ErrorCode]


async def handle_write_txn_markers(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    markers = [(values, _marker(values, info.version), _keys(values)) async for values in paced(request.markers or ())]
    if info.peer_broker is not None:
        codes = await gather_limited(lambda each: _each(ctx.replicas.append_marker, each[1], each[2]), markers)
    elif not _may_write(ctx, info):
        codes = [dict.fromkeys(keys, ErrorCode.cluster_authorization_failed) for _, _, keys in markers]
    else:
        codes = await _abort_for_operator(
            ctx, [(replace(marker, transaction_version=1), keys) async for _, marker, keys in paced(markers)]
        )
    answered = paced(zip(markers, codes, strict=True))
    return {"markers": [_answer(values, found) async for (values, _, _), found in answered]}


def _may_write(ctx: Context, info: RequestInfo) -> bool:
    return may_see(ctx, info, AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME) or may(
        ctx, info, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME
    )


def _marker(marker: Any, version: int) -> TransactionMarker:
    return TransactionMarker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        committed=marker.transaction_result,
        transaction_version=marker.transaction_version if version >= _FIRST_WITH_BUMPS else 1,
    )


def _keys(asked: Any) -> list[TopicPartition]:
    named = [
        TopicPartition(topic.name, index) for topic in asked.topics or () for index in topic.partition_indexes or ()
    ]
    return list(dict.fromkeys(named))


async def _abort_for_operator(
    ctx: Context, markers: Sequence[tuple[TransactionMarker, Sequence[TopicPartition]]]
) -> list[Codes]:
    try:
        known = await ctx.transactions.open_partitions({marker.producer_id for marker, _ in markers})
    except CodedError as error:
        return [dict.fromkeys(keys, error.code) for _, keys in markers]
    return [await _abort(ctx, marker, keys, known) async for marker, keys in paced(markers)]


async def _abort(ctx: Context, marker: TransactionMarker, keys: Sequence[TopicPartition], known: Open) -> Codes:
    if marker.committed:
        return dict.fromkeys(keys, ErrorCode.cluster_authorization_failed)
    ending = [key for key in keys if (marker.producer_id, key) in known]
    hanging = [key for key in keys if (marker.producer_id, key) not in known]
    return dict.fromkeys(ending, ErrorCode.invalid_txn_state) | await _each(ctx.replicas.abort_hanging, marker, hanging)


async def _each(append: AppendMarker, marker: TransactionMarker, keys: Sequence[TopicPartition]) -> Codes:
    codes = await gather_limited(lambda key: append(*key, marker), keys)
    return dict(zip(keys, codes, strict=True))


def _answer(marker: Any, codes: Codes) -> dict[str, Any]:
    return {
        "producer_id": marker.producer_id,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": index, "error_code": codes[TopicPartition(topic.name, index)]}
                    for index in topic.partition_indexes or ()
                ],
            }
            for topic in marker.topics or ()
        ],
    }


HANDLERS: Final[dict[ApiKey, Handler]] = {ApiKey.WRITE_TXN_MARKERS: handle_write_txn_markers}
