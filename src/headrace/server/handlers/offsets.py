"""ListOffsets, versions 1-11, OffsetForLeaderEpoch, versions 2-4, and DeleteRecords, versions 0-2.

ListOffsets finds an offset by time, or by one of the times that stand for a place in the log:

| time | place | since |
|---|---|---|
| -1 | the end: the high watermark, or the last stable offset for `read_committed` | v1 |
| -2 | the start | v1 |
| -3 | the record with the largest timestamp | v7 |
| -4 | the start of what is on local disk: the start, as there is no tiered storage | v8 |
| -5 | the end of what is in tiered storage: none | v9 |
| -6 | the first record that waits to be moved there: none | v11 |

Nothing found is offset -1 with timestamp -1 and no error. A time that the version does not know is
UNSUPPORTED_VERSION. Nothing at or beyond what a consumer may see is ever returned. A new leader that does not know yet
how far its predecessor had shown the log answers OFFSET_NOT_AVAILABLE (up to v4 LEADER_NOT_AVAILABLE) for the end.

- Both ListOffsets (v4+) and OffsetForLeaderEpoch check the leader epoch the client knows: an older one is
  FENCED_LEADER_EPOCH, a newer one UNKNOWN_LEADER_EPOCH.
- Who names a replica id is answered like a consumer: followers do not ask here, but clients send one (kafka-python's
  development branch sends 0), and Kafka answers them. With -2 (Kafka's debugging replica) any replica answers, leader
  or not, and -1 is the end of its own log with the epoch of its last record.
- DeleteRecords moves the start of a log up; -1 is the high watermark, beyond it is OFFSET_OUT_OF_RANGE. It is answered
  with the low watermark once the whole ISR has moved, else with REQUEST_TIMED_OUT after the request's timeout. A topic
  whose `cleanup.policy` lacks delete is POLICY_VIOLATION, an internal one INVALID_TOPIC_EXCEPTION, as with Kafka.
- Left out: timeouts (v10 of ListOffsets has one, for reads from tiered storage).
"""

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, Final, NamedTuple

from headrace.config import effective_topic
from headrace.net.pacing import gather_limited, paced
from headrace.protocol.acl import CLUSTER_NAME, AclOperation, ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.partition import Partition

from ..context import Context, RequestInfo
from .authorized import may_see, require

READ_COMMITTED: Final = 1
UNKNOWN: Final = -1
HIGH_WATERMARK: Final = -1
DEBUGGING_REPLICA: Final = -2
FIRST_WITH_NOT_AVAILABLE: Final = 5


class OffsetSpec(IntEnum):
    """Times that stand for a place in the log."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


_SINCE: Final = {
    OffsetSpec.LATEST: 1,
    OffsetSpec.EARLIEST: 1,
    OffsetSpec.MAX_TIMESTAMP: 7,
    OffsetSpec.EARLIEST_LOCAL: 8,
    OffsetSpec.LATEST_TIERED: 9,
    OffsetSpec.EARLIEST_PENDING_UPLOAD: 11,
}


class FoundOffset(NamedTuple):
    """What a time stands for in a log."""

    timestamp: int = UNKNOWN
    offset: int = UNKNOWN
    leader_epoch: int = UNKNOWN


async def handle_list_offsets(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    committed_only = getattr(request, "isolation_level", 0) == READ_COMMITTED
    topics = request.topics or ()
    repeated = await _repeated((topic.name, p.partition_index) for topic in topics for p in topic.partitions or ())

    def answer(name: str, query: Any) -> dict[str, Any]:
        if (name, query.partition_index) in repeated:
            raise CodedError(ErrorCode.invalid_request)
        require(ctx, info, AclOperation.DESCRIBE, ResourceType.TOPIC, name)
        partition = ctx.replicas.partition(name, query.partition_index)
        if request.replica_id == DEBUGGING_REPLICA and query.timestamp == OffsetSpec.LATEST:
            return _own_end(partition)._asdict()
        partition.check_leads()
        partition.check_epoch(getattr(query, "current_leader_epoch", UNKNOWN))
        return _find(partition, query.timestamp, committed_only, info.version)._asdict()

    return {
        "throttle_time": 0,
        "topics": [
            {
                "name": topic.name,
                "partitions": [_listed(topic.name, p, answer) async for p in paced(topic.partitions or ())],
            }
            async for topic in paced(topics)
        ],
    }


def _listed(name: str, asked: Any, answer: Callable[[str, Any], dict[str, Any]]) -> dict[str, Any]:
    try:
        return {"partition_index": asked.partition_index, "error_code": ErrorCode.none, **answer(name, asked)}
    except CodedError as error:
        return {"partition_index": asked.partition_index, "error_code": error.code, **FoundOffset()._asdict()}


def _find(partition: Partition, timestamp: int, committed_only: bool, version: int) -> FoundOffset:
    log = partition.log
    end = partition.last_stable_offset if committed_only else partition.high_watermark
    if timestamp < 0:
        return _find_place(partition, timestamp, end, version)
    found = log.offset_for_timestamp(timestamp, end)
    if found is None and not partition.knows_high_watermark and log.offset_for_timestamp(timestamp, log.log_end_offset):
        raise _not_available(version)  # what there is may have been shown by the leader before
    return FoundOffset() if found is None else FoundOffset(found.timestamp, found.offset, found.leader_epoch)


def _own_end(partition: Partition) -> FoundOffset:
    """How far the log of this very replica reaches."""
    if not partition.may_lead:
        raise CodedError(ErrorCode.kafka_storage_error, "the log cannot be read, or has lost what it held")
    return FoundOffset(UNKNOWN, partition.log.log_end_offset, partition.log.last_record_epoch())


def _not_available(version: int) -> CodedError:
    is_new = version >= FIRST_WITH_NOT_AVAILABLE
    return CodedError(ErrorCode.offset_not_available if is_new else ErrorCode.leader_not_available)


def _find_place(partition: Partition, timestamp: int, end: int, version: int) -> FoundOffset:
    log = partition.log
    since = _SINCE.get(OffsetSpec(timestamp)) if timestamp >= min(OffsetSpec) else None
    if since is None or version < since:
        raise CodedError(ErrorCode.unsupported_version, f"the time {timestamp} has no meaning in v{version}")
    if timestamp == OffsetSpec.LATEST:
        if not partition.knows_high_watermark:
            raise _not_available(version)
        return FoundOffset(UNKNOWN, end, partition.leader_epoch)
    if timestamp in (OffsetSpec.EARLIEST, OffsetSpec.EARLIEST_LOCAL):
        return FoundOffset(UNKNOWN, log.log_start_offset, log.epoch_at(log.log_start_offset))
    if timestamp == OffsetSpec.MAX_TIMESTAMP:
        found = log.offset_of_max_timestamp(end)
        return FoundOffset() if found is None else FoundOffset(found.timestamp, found.offset, found.leader_epoch)
    return FoundOffset()


async def handle_offset_for_leader_epoch(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    return {
        "throttle_time": 0,
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [
                    _epoch_end(ctx, info, topic.topic, asked) async for asked in paced(topic.partitions or ())
                ],
            }
            async for topic in paced(request.topics or ())
        ],
    }


def _epoch_end(ctx: Context, info: RequestInfo, topic: str, query: Any) -> dict[str, Any]:
    code, epoch, end_offset = ErrorCode.none, UNKNOWN, UNKNOWN
    try:
        if not may_see(ctx, info, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME):
            require(ctx, info, AclOperation.DESCRIBE, ResourceType.TOPIC, topic)
        partition = ctx.replicas.partition(topic, query.partition)
        partition.check_leads()
        partition.check_epoch(query.current_leader_epoch)
        epoch, end_offset = partition.log.end_offset_for_epoch(query.leader_epoch)
    except CodedError as error:
        code = error.code
    return {"error_code": code, "partition": query.partition, "leader_epoch": epoch, "end_offset": end_offset}


async def handle_delete_records(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    timeout = max(request.timeout.total_seconds(), 0.0)

    async def delete_of(topic: Any) -> dict[str, Any]:
        deleted = await gather_limited(
            lambda asked: _delete(ctx, info, topic.name, asked, timeout), topic.partitions or ()
        )
        return {"name": topic.name, "partitions": deleted}

    return {"throttle_time": 0, "topics": await gather_limited(delete_of, request.topics or ())}


async def _delete(ctx: Context, info: RequestInfo, name: str, deletion: Any, timeout: float) -> dict[str, Any]:
    code, low_watermark = ErrorCode.none, UNKNOWN
    try:
        require(ctx, info, AclOperation.DELETE, ResourceType.TOPIC, name)
        _check_deletable(ctx, name)
        partition = ctx.replicas.partition(name, deletion.partition_index)
        partition.check_leads()
        end = partition.high_watermark
        offset = end if deletion.offset == HIGH_WATERMARK else deletion.offset
        if not 0 <= offset <= end:
            raise CodedError(ErrorCode.offset_out_of_range, f"offset {deletion.offset} is not within 0 to {end}")
        low_watermark = await ctx.replicas.delete_records(partition, offset, timeout)
    except CodedError as error:
        code = error.code
    return {"partition_index": deletion.partition_index, "low_watermark": low_watermark, "error_code": code}


def _check_deletable(ctx: Context, name: str) -> None:
    topic = ctx.image.topic(name)
    if topic is None:
        raise CodedError(ErrorCode.unknown_topic_or_partition)
    if topic.internal:
        raise CodedError(ErrorCode.invalid_topic_exception, f"Cannot delete records of internal topic {name}")
    policy = effective_topic(topic.configs, ctx.config)["cleanup.policy"]
    assert isinstance(policy, tuple)
    if "delete" not in policy:
        raise CodedError(ErrorCode.policy_violation, f"{name} has cleanup.policy={','.join(policy)}, without delete")


async def _repeated(keys: Iterable[Any]) -> set[Any]:
    seen: set[Any] = set()
    repeated: set[Any] = set()
    async for key in paced(keys):
        (repeated if key in seen else seen).add(key)
    return repeated


HANDLERS: Final = {
    ApiKey.LIST_OFFSETS: handle_list_offsets,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: handle_offset_for_leader_epoch,
    ApiKey.DELETE_RECORDS: handle_delete_records,
}
