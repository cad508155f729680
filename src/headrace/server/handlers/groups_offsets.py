"""OffsetCommit, versions 2-10, and OffsetFetch, 1-10.

OffsetCommit keeps one offset per partition, and answers once all of a request are committed. Each partition has its
own code: UNKNOWN_TOPIC_OR_PARTITION, OFFSET_METADATA_TOO_LARGE; what concerns the group (a stale generation, say)
stands at every partition, as there is no other place for it.

- A commit with generation -1 and no member is taken for an empty group, which is made where it does not exist: that
  is how consumers without a group, and tools, commit. The empty group id is allowed there, as with Kafka.
- v2-4 may bring a retention time of their own; v6 leader epoch; v7 instance id; v9 tells a missing group
  (GROUP_ID_NOT_FOUND, before ILLEGAL_GENERATION); v10 topic ids.
- OffsetFetch answers -1 for what was never committed, also for a group that does not exist. v2 null topics for all;
  v7 require_stable: UNSTABLE_OFFSET_COMMIT where a transaction is open that has committed an offset; v8 many groups;
  v10 topic ids (UNKNOWN_TOPIC_ID).
"""

from asyncio import sleep
from collections.abc import Mapping, Sequence
from datetime import timedelta
from struct import Struct
from typing import Any, Final
from uuid import UUID

from headrace.coordinator.groups.offsets.records import NONE, Committed, encode_offset
from headrace.coordinator.groups.offsets.service import UNSTABLE
from headrace.net.pacing import paced
from headrace.protocol.acl import AclOperation, ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.encode import write_count, write_topic
from headrace.protocol.errors import CodedError, ErrorCode

from ..context import Context, RequestInfo
from ..dispatch import Handler
from .authorized import is_free, may, may_see, require

_FIRST_COMMIT_WITH_THROTTLE: Final = 3
_FIRST_WITH_EPOCH: Final = 6
_FIRST_FLEXIBLE_COMMIT: Final = 8
_FIRST_COMMIT_WITH_IDS: Final = 10
_FIRST_FETCH_WITH_IDS: Final = 10
_FIRST_WITH_MISSING_GROUPS: Final = 9
_FIRST_FETCH_WITH_GROUPS: Final = 8
_FIRST_FETCH_WITH_CODE: Final = 2
_PORTION: Final = 1_000
"""Partitions of a commit that are looked at before others get a turn."""
_MS: Final = timedelta(milliseconds=1)
_DONE: Final[int] = ErrorCode.none.value
_TOO_LARGE: Final[int] = ErrorCode.offset_metadata_too_large.value
_UNKNOWN_PARTITION: Final[int] = ErrorCode.unknown_topic_or_partition.value
_NOT_ALLOWED: Final[int] = ErrorCode.topic_authorization_failed.value
_CODE: Final = Struct(">ih")
_CODE_AND_TAGS: Final = Struct(">ihx")


class _Commit:
    """An OffsetCommit under way: what is to be kept, and the code of each partition.

    Consumers commit all the time, many partitions at once, so the answer is written by hand.
    """

    def __init__(self, ctx: Context, request: Any, info: RequestInfo) -> None:
        self.offsets: dict[str, dict[int, bytes]] = {}
        self._codes: list[tuple[Any, list[tuple[int, int]]]] = []
        self._done = 0
        self._ctx = ctx
        self._version = version = info.version
        self._info = info
        self._by_id = version >= _FIRST_COMMIT_WITH_IDS
        self._now_ms = ctx.clock.now_ms()
        retention = getattr(request, "retention_time", None)
        self._expires = NONE if retention is None or retention < timedelta() else self._now_ms + retention // _MS

    async def take(self, topics: Sequence[Any]) -> None:
        """Look at what is to be kept of each topic."""
        for topic in topics:
            codes: list[tuple[int, int]] = []
            self._codes.append((topic, codes))
            asked = topic.partitions or ()
            for start in range(0, len(asked), _PORTION):
                codes += self._take(topic, asked[start : start + _PORTION])
                await self._turn(min(len(asked), _PORTION))

    async def refused(self, topics: Sequence[Any], code: ErrorCode) -> bytearray:
        """The response where nothing of it is looked at."""
        for topic in topics:
            self._codes.append((topic, [(asked.partition_index, code.value) for asked in topic.partitions or ()]))
        return await self.answer(code)

    async def _turn(self, done: int) -> None:
        """Let others have a turn once a portion has been done."""
        self._done += done
        if self._done >= _PORTION:
            self._done = 0
            await sleep(0)

    def _take(self, topic: Any, partitions: Sequence[Any]) -> list[tuple[int, int]]:
        known = self._ctx.image.topic_by_id(topic.topic_id) if self._by_id else self._ctx.image.topic(topic.name)
        name = known.name if known is not None else None if self._by_id else topic.name
        if name is not None and not may(self._ctx, self._info, AclOperation.READ, ResourceType.TOPIC, name):
            return [(partition.partition_index, _NOT_ALLOWED) for partition in partitions]
        if known is None:
            unknown = ErrorCode.unknown_topic_id if self._by_id else ErrorCode.unknown_topic_or_partition
            return [(partition.partition_index, unknown.value) for partition in partitions]
        count, longest = len(known.partitions), self._ctx.groups.settings.max_metadata
        has_epoch, now_ms, expires = self._version >= _FIRST_WITH_EPOCH, self._now_ms, self._expires
        values = self.offsets.setdefault(known.name, {})
        codes: list[tuple[int, int]] = []
        for partition in partitions:
            index = partition.partition_index
            metadata = partition.committed_metadata or ""
            if not 0 <= index < count:
                codes.append((index, _UNKNOWN_PARTITION))
            elif len(metadata) > longest:
                codes.append((index, _TOO_LARGE))
            else:
                epoch = partition.committed_leader_epoch if has_epoch else NONE
                values[index] = encode_offset(partition.committed_offset, epoch, metadata, now_ms, expires)
                codes.append((index, _DONE))
        return codes

    async def answer(self, refusal: ErrorCode) -> bytearray:
        """The response, with a code for what was to be kept and was not."""
        flexible = self._version >= _FIRST_FLEXIBLE_COMMIT
        pack = _CODE_AND_TAGS.pack if flexible else _CODE.pack
        refused = refusal.value
        out = bytearray(4 if self._version >= _FIRST_COMMIT_WITH_THROTTLE else 0)
        write_count(out, len(self._codes), flexible)
        for topic, codes in self._codes:
            if self._by_id:
                write_topic(out, "", topic.topic_id.bytes, by_id=True, flexible=True)
            else:
                write_topic(out, topic.name, None, by_id=False, flexible=flexible)
            write_count(out, len(codes), flexible)
            out += b"".join([pack(index, code or refused) for index, code in codes])
            if flexible:
                out.append(0)
            await self._turn(1 + len(codes) // 10)
        if flexible:
            out.append(0)
        return out


async def handle_offset_commit(ctx: Context, request: Any, info: RequestInfo) -> bytearray:
    commit = _Commit(ctx, request, info)
    if not may(ctx, info, AclOperation.READ, ResourceType.GROUP, request.group_id):
        return await commit.refused(request.topics or (), ErrorCode.group_authorization_failed)
    await commit.take(request.topics or ())
    refusal = ErrorCode.none
    if any(commit.offsets.values()):
        try:
            await ctx.groups.offsets.commit(
                request.group_id,
                request.member_id,
                getattr(request, "group_instance_id", None),
                request.generation_id_or_member_epoch,
                commit.offsets,
                names_missing_groups=info.version >= _FIRST_WITH_MISSING_GROUPS,
            )
        except CodedError as error:
            refusal = error.code
    return await commit.answer(refusal)


async def handle_offset_fetch(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    if info.version >= _FIRST_FETCH_WITH_GROUPS:
        stable = request.require_stable
        groups = [await _fetch_group(ctx, group, info, stable) async for group in paced(request.groups or ())]
        return {"throttle_time": 0, "groups": groups}
    answer = await _fetch_group(ctx, request, info, getattr(request, "require_stable", False))
    return {"throttle_time": 0, "error_code": answer["error_code"], "topics": answer["topics"]}


async def _fetch_group(ctx: Context, group: Any, info: RequestInfo, stable_only: bool) -> dict[str, Any]:
    asked = group.topics
    if asked is None and info.version < _FIRST_FETCH_WITH_CODE:
        asked = ()
    by_id = info.version >= _FIRST_FETCH_WITH_IDS
    topics = None if asked is None else [(_name_of(ctx, topic, by_id), topic) async for topic in paced(asked)]
    named = None if topics is None else await _merged(topics)
    answer: dict[str, Any] = {"group_id": group.group_id, "error_code": ErrorCode.none}
    describe, kind = AclOperation.DESCRIBE, ResourceType.TOPIC
    denied: set[str] = set()
    if named is not None and not is_free(ctx, info):
        denied = {name async for name in paced(named) if not may(ctx, info, describe, kind, name)}
        named = {name: indexes for name, indexes in named.items() if name not in denied}
    try:
        require(ctx, info, AclOperation.DESCRIBE, ResourceType.GROUP, group.group_id)
        committed: Mapping[str, Mapping[int, Committed | None]] = await ctx.groups.offsets.fetch(
            group.group_id,
            named,
            getattr(group, "member_id", None),
            getattr(group, "member_epoch", NONE),
            stable_only=stable_only,
        )
    except CodedError as error:
        has_code = info.version >= _FIRST_FETCH_WITH_CODE
        refused = [] if has_code else [_refused(topic, error.code, by_id) async for _, topic in paced(topics or ())]
        return {**answer, "error_code": error.code, "topics": refused}
    if topics is None:
        visible = {name: offsets for name, offsets in committed.items() if may_see(ctx, info, describe, kind, name)}
        return {**answer, "topics": [each async for each in paced(_all_topics(ctx, visible, by_id))]}
    return {
        **answer,
        "topics": [
            _refused(topic, ErrorCode.unknown_topic_id, by_id)
            if name is None
            else _refused(topic, ErrorCode.topic_authorization_failed, by_id)
            if name in denied
            else {**_heading(topic, by_id), "partitions": _partitions(committed[name], topic.partition_indexes or ())}
            async for name, topic in paced(topics)
        ],
    }


async def _merged(topics: Sequence[tuple[str | None, Any]]) -> dict[str, list[int]]:
    """The partitions that are asked for by topic; a topic may be named more than once."""
    merged: dict[str, list[int]] = {}
    async for name, topic in paced(topics):
        if name is not None:
            merged.setdefault(name, []).extend(topic.partition_indexes or ())
    return merged


def _name_of(ctx: Context, topic: Any, by_id: bool) -> str | None:
    if not by_id:
        return str(topic.name)
    known = ctx.image.topic_by_id(topic.topic_id) if topic.topic_id is not None else None
    return None if known is None else known.name


def _heading(topic: Any, by_id: bool) -> dict[str, UUID | str]:
    return {"topic_id": topic.topic_id} if by_id else {"name": topic.name}


def _all_topics(ctx: Context, committed: Mapping[str, Mapping[int, Committed | None]], by_id: bool) -> Any:
    for name, partitions in committed.items():
        known = ctx.image.topic(name)
        if by_id and known is None:
            continue
        heading = {"topic_id": known.id} if by_id and known is not None else {"name": name}
        yield {**heading, "partitions": _partitions(partitions, partitions)}


def _partitions(found: Mapping[int, Committed | None], asked: Any) -> list[dict[str, Any]]:
    return [_partition(index, found[index], ErrorCode.none) for index in asked]


def _partition(index: int, committed: Committed | None, code: ErrorCode) -> dict[str, Any]:
    if committed is UNSTABLE:
        code = ErrorCode.unstable_offset_commit
    return {
        "partition_index": index,
        "committed_offset": NONE if committed is None else committed.offset,
        "committed_leader_epoch": NONE if committed is None else committed.leader_epoch,
        "metadata": "" if committed is None else committed.metadata,
        "error_code": code,
    }


def _refused(topic: Any, code: ErrorCode, by_id: bool) -> dict[str, Any]:
    partitions = [_partition(index, None, code) for index in topic.partition_indexes or ()]
    return {**_heading(topic, by_id), "partitions": partitions}


HANDLERS: Final[dict[ApiKey, Handler]] = {
    ApiKey.OFFSET_COMMIT: handle_offset_commit,
    ApiKey.OFFSET_FETCH: handle_offset_fetch,
}
