"""TxnOffsetCommit, versions 0-5: offsets of a group that count if a producer's transaction is committed.

Until then they are kept apart (see `coordinator.groups.offsets.pending`), also over restarts and moves of the
group's partition. Each partition has its own code: UNKNOWN_TOPIC_OR_PARTITION, OFFSET_METADATA_TOO_LARGE; what
concerns the group or the transaction stands at every partition.

- v2 leader epoch. v3 tells member and generation, which are checked as in OffsetCommit; a group that is missing, or a
  member's epoch that is not its own, is ILLEGAL_GENERATION. Before v3, and with generation -1 and no member, nobody is.
- The transaction has to be open, and the group's partition part of it: INVALID_TXN_STATE, from v4 on
  TRANSACTION_ABORTABLE. From v5 on the commit itself makes it so (KIP-890).
- An old producer epoch is INVALID_PRODUCER_EPOCH.
- Left out: v6, topic ids.
"""

from typing import Any, Final

from headrace.coordinator.groups.offsets.records import NONE, encode_offset
from headrace.coordinator.groups.offsets.service import TransactionalCommit
from headrace.net.pacing import paced
from headrace.protocol.acl import AclOperation, ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode

from ..context import Context, RequestInfo
from ..dispatch import Handler
from .authorized import may

_FIRST_WITH_ABORTABLE: Final = 4
_FIRST_ADDING: Final = 5
_TRY_AGAIN: Final = ErrorCode.coordinator_load_in_progress
"""Makes every client repeat the request, and look for no other coordinator of the group."""


async def handle_txn_offset_commit(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    offsets: dict[str, dict[int, bytes]] = {}
    refusal = _refusal(ctx, request, info)
    if refusal is not ErrorCode.none:
        return {"throttle_time": 0, "topics": [_refused(topic, refusal) async for topic in paced(request.topics or ())]}
    codes = [(topic, await _take(ctx, info, topic, offsets)) async for topic in paced(request.topics or ())]
    if any(offsets.values()):
        try:
            await ctx.groups.offsets.commit_in_transaction(_commit(request, info.version, offsets))
        except CodedError as error:
            refusal = _code_for_version(error.code, info.version)
    return {"throttle_time": 0, "topics": [_answer(topic, found, refusal) async for topic, found in paced(codes)]}


def _refusal(ctx: Context, request: Any, info: RequestInfo) -> ErrorCode:
    if not may(ctx, info, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id):
        return ErrorCode.transactional_id_authorization_failed
    if not may(ctx, info, AclOperation.READ, ResourceType.GROUP, request.group_id):
        return ErrorCode.group_authorization_failed
    return ErrorCode.none


def _refused(topic: Any, code: ErrorCode) -> dict[str, Any]:
    return _answer(topic, [(asked.partition_index, code) for asked in topic.partitions or ()], code)


def _commit(request: Any, version: int, offsets: dict[str, dict[int, bytes]]) -> TransactionalCommit:
    return TransactionalCommit(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        adds_itself=version >= _FIRST_ADDING,
        group_id=request.group_id,
        member_id=getattr(request, "member_id", ""),
        instance_id=getattr(request, "group_instance_id", None),
        generation=getattr(request, "generation_id", NONE),
        offsets=offsets,
    )


async def _take(
    ctx: Context, info: RequestInfo, topic: Any, offsets: dict[str, dict[int, bytes]]
) -> list[tuple[int, ErrorCode]]:
    if not may(ctx, info, AclOperation.READ, ResourceType.TOPIC, topic.name):
        return [
            (partition.partition_index, ErrorCode.topic_authorization_failed) for partition in topic.partitions or ()
        ]
    known = ctx.image.topic(topic.name)
    count, longest = 0 if known is None else len(known.partitions), ctx.groups.settings.max_metadata
    now_ms = ctx.clock.now_ms()
    codes: list[tuple[int, ErrorCode]] = []
    async for partition in paced(topic.partitions or ()):
        index, metadata = partition.partition_index, partition.committed_metadata or ""
        if not 0 <= index < count:
            codes.append((index, ErrorCode.unknown_topic_or_partition))
        elif len(metadata) > longest:
            codes.append((index, ErrorCode.offset_metadata_too_large))
        else:
            epoch = getattr(partition, "committed_leader_epoch", NONE)
            value = encode_offset(partition.committed_offset, epoch, metadata, now_ms, NONE)
            offsets.setdefault(topic.name, {})[index] = value
            codes.append((index, ErrorCode.none))
    return codes


def _code_for_version(code: ErrorCode, version: int) -> ErrorCode:
    """A code that the version knows, and does the right thing with."""
    if code in (ErrorCode.network_exception, ErrorCode.unknown_topic_or_partition):
        return _TRY_AGAIN
    if code is ErrorCode.concurrent_transactions and version < _FIRST_ADDING:
        return _TRY_AGAIN
    if code is ErrorCode.transaction_abortable and version < _FIRST_WITH_ABORTABLE:
        return ErrorCode.invalid_txn_state
    if code is ErrorCode.stale_member_epoch:
        return ErrorCode.illegal_generation
    return ErrorCode.invalid_producer_epoch if code is ErrorCode.producer_fenced else code


def _answer(topic: Any, codes: list[tuple[int, ErrorCode]], refusal: ErrorCode) -> dict[str, Any]:
    return {
        "name": topic.name,
        "partitions": [
            {"partition_index": index, "error_code": refusal if code is ErrorCode.none else code}
            for index, code in codes
        ],
    }


HANDLERS: Final[dict[ApiKey, Handler]] = {ApiKey.TXN_OFFSET_COMMIT: handle_txn_offset_commit}
