"""AddPartitionsToTxn, versions 0-3, AddOffsetsToTxn, 0-4, and EndTxn, 0-5: the life of a transaction.

The rules are in `coordinator.transactions`. Answers come once what they say is committed; who ends a transaction is
answered when its outcome is certain, and the partitions are told after that.

- AddPartitionsToTxn: all partitions of a request or none; where one does not exist the others are
  OPERATION_NOT_ATTEMPTED. A broker that does not know all topics yet says COORDINATOR_LOAD_IN_PROGRESS instead.
  Left out: v4 and v5, which are for brokers; ours ask with the ids of topics (see `coordinator.transactions.verifier`).
- AddOffsetsToTxn adds the group's partition of `__consumer_offsets`. With EndTxn v5 there is no need for it.
- EndTxn: from v5 on the producer is given a new epoch with each end (KIP-890), which tells transactions apart. Before,
  what comes on an older connection than the last end did is not carried out, and the connection closed: its client
  has given it up, see `TransactionCoordinator`.
- A producer that was shut out is told INVALID_PRODUCER_EPOCH in the first two versions of each, then PRODUCER_FENCED.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headrace.cluster.topics import INTERNAL
from headrace.coordinator.groups.offsets.records import OFFSETS_TOPIC
from headrace.coordinator.runtime.partitions import partition_of
from headrace.coordinator.transactions.decisions import ProducerIdAndEpoch
from headrace.coordinator.transactions.service import NEWER, OLDER, LateRequest
from headrace.net.pacing import paced
from headrace.protocol.acl import AclOperation, ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode, ProtocolViolation
from headrace.protocol.topic_partition import TopicPartition

from ..context import Context, RequestInfo
from .authorized import is_free, may, require

_FIRST_WITH_FENCED: Final = 2
_FIRST_WITH_EPOCHS: Final = 5

Codes = Mapping[TopicPartition, ErrorCode]


def code_for_version(code: ErrorCode, version: int, first_with_fenced: int = _FIRST_WITH_FENCED) -> ErrorCode:
    """The code in the words of a version."""
    if code is ErrorCode.producer_fenced and version < first_with_fenced:
        return ErrorCode.invalid_producer_epoch
    return code


async def handle_add_partitions(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    topics = request.v3_and_below_topics or ()
    partitions = [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions or ()]
    producer = ProducerIdAndEpoch(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    transactional_id = request.v3_and_below_transactional_id
    refused = await _refused(ctx, transactional_id, partitions, info)
    found = refused or await _add(ctx, transactional_id, producer, partitions, info)
    codes = {where: code_for_version(found[where], info.version) for where in partitions}
    return {"throttle_time": 0, "results_by_topic_v3_and_below": _by_topic(codes)}


async def _refused(
    ctx: Context, transactional_id: str, partitions: Sequence[TopicPartition], info: RequestInfo
) -> dict[TopicPartition, ErrorCode]:
    """Why nothing is added: for an id that is not the client's, or for a topic that it may not write to."""
    if is_free(ctx, info):
        return {}
    if not may(ctx, info, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return dict.fromkeys(partitions, ErrorCode.transactional_id_authorization_failed)
    allowed = {
        topic: topic not in INTERNAL and may(ctx, info, AclOperation.WRITE, ResourceType.TOPIC, topic)
        async for topic in paced(dict.fromkeys(topic for topic, _ in partitions))
    }
    if all(allowed.values()):
        return {}
    return {where: _not_added(ctx, where, is_allowed=allowed[where.topic]) for where in partitions}


def _not_added(ctx: Context, where: TopicPartition, *, is_allowed: bool) -> ErrorCode:
    if not is_allowed:
        return ErrorCode.topic_authorization_failed
    topic = ctx.image.topic(where.topic)
    exists = topic is not None and 0 <= where.partition < len(topic.partitions)
    return ErrorCode.operation_not_attempted if exists else ErrorCode.unknown_topic_or_partition


async def _add(
    ctx: Context,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    partitions: Sequence[TopicPartition],
    info: RequestInfo,
) -> Codes:
    try:
        return await ctx.transactions.add_partitions(
            transactional_id, producer, partitions, version=OLDER, connection=info.connection
        )
    except LateRequest as error:
        raise ProtocolViolation(str(error)) from error
    except CodedError as error:
        return dict.fromkeys(partitions, error.code)


def _by_topic(codes: Codes) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for (name, index), code in codes.items():
        topics.setdefault(name, []).append({"partition_index": index, "partition_error_code": code})
    return [{"name": name, "results_by_partition": results} for name, results in topics.items()]


async def handle_add_offsets(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    require(ctx, info, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    require(ctx, info, AclOperation.READ, ResourceType.GROUP, request.group_id)
    topic = ctx.image.topic(OFFSETS_TOPIC)
    if topic is None:
        await ctx.groups.find(request.group_id)
        topic = ctx.image.topic(OFFSETS_TOPIC)
    if topic is None:
        raise CodedError(ErrorCode.coordinator_not_available)
    where = TopicPartition(OFFSETS_TOPIC, partition_of(request.group_id, len(topic.partitions)))
    codes = await _add(ctx, request.transactional_id, producer, [where], info)
    return {"throttle_time": 0, "error_code": code_for_version(codes[where], info.version)}


async def handle_end(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    try:
        require(ctx, info, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        outcome = await ctx.transactions.end(
            request.transactional_id,
            ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
            committed=request.committed,
            version=NEWER if info.version >= _FIRST_WITH_EPOCHS else OLDER,
            connection=info.connection,
        )
    except LateRequest as error:
        raise ProtocolViolation(str(error)) from error
    except CodedError as error:
        return {"throttle_time": 0, "error_code": error.code, "producer_id": -1, "producer_epoch": -1}
    return {
        "throttle_time": 0,
        "error_code": code_for_version(outcome.code, info.version),
        "producer_id": outcome.producer.id,
        "producer_epoch": outcome.producer.epoch,
    }


HANDLERS: Final = {
    ApiKey.ADD_PARTITIONS_TO_TXN: handle_add_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: handle_add_offsets,
    ApiKey.END_TXN: handle_end,
}
