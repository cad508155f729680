"""Reading: records of one partition from an offset on, with a long poll; offsets by time.

A batch that matches its checksum and yet cannot be read was written so by its producer, and every replica has it like
that: it is passed over, with a warning. One that does not match is damaged, and another replica may have it whole: that
is an error.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import structlog

from headrace.protocol.api import ApiKey
from headrace.protocol.batch import HEADER_SIZE, BatchHeader, crc_matches, read_header
from headrace.protocol.compression import TooLarge
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import CodedError, ErrorCode, ProtocolViolation
from headrace.protocol.fetch_request import FetchPartition, fetch_request
from headrace.protocol.fetched import PartitionRecords, parse_fetch
from headrace.protocol.records import Record, marker_of, readable_records
from headrace.protocol.topic_partition import TopicPartition

from ..core.codes import code_of
from ..core.offsets import READ_COMMITTED, OffsetQuery, list_offsets_request, read_offsets
from .cluster import Cluster
from .retrying import retried

_NAMED: Final = 12
"""The last version of Fetch in which topics have their names."""
_FETCH_MAX_BYTES: Final = 64 << 20

log = structlog.get_logger(__name__)


class Page(NamedTuple):
    """What a fetch brought. `next_offset` is where to go on, also past records that are not shown."""

    records: list[Record]
    next_offset: int
    high_watermark: int
    log_start_offset: int
    skipped: tuple["Skipped", ...] = ()
    """Batches that were passed over."""


class Skipped(NamedTuple):
    """A batch that nobody can read."""

    first_offset: int
    last_offset: int
    reason: str


class Unpacked(NamedTuple):
    """What the bytes of a fetch hold, and where to go on."""

    records: list[Record]
    next_offset: int
    skipped: tuple[Skipped, ...]


async def fetch(
    cluster: Cluster,
    partition: TopicPartition,
    offset: int,
    *,
    max_bytes: int = 1 << 20,
    wait_ms: int = 0,
    min_bytes: int = 1,
    isolation: int = READ_COMMITTED,
) -> Page:
    """Records from an offset on; waits at the broker for `min_bytes` of them."""

    async def attempt() -> Page:
        node = await cluster.leader(*partition)
        pages = await fetch_from(cluster, node, {partition: offset}, max_bytes, wait_ms, min_bytes, isolation)
        throttled = CodedError(ErrorCode.throttling_quota_exceeded, f"the broker does not answer for {partition.text}")
        page = pages.get(partition, throttled)
        if isinstance(page, CodedError):
            raise page
        return page

    return await retried(attempt, cluster.patience, lambda: cluster.forget(partition.topic))


async def fetch_from(
    cluster: Cluster,
    node: int,
    positions: Mapping[TopicPartition, int],
    max_bytes: int,
    wait_ms: int,
    min_bytes: int = 1,
    isolation: int = READ_COMMITTED,
) -> dict[TopicPartition, Page | CodedError]:
    """One fetch from one broker, of several partitions from their offsets on; each has its own error.

    A broker that throttles this client answers for none of them.
    """
    values = fetch_request(
        (FetchPartition(partition, offset, max_bytes) for partition, offset in positions.items()),
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=_FETCH_MAX_BYTES,
        isolation=isolation,
    )
    async with cluster.lent(node) as connection:
        version = connection.version_of(ApiKey.FETCH, _NAMED)
        body = [encode_request(ApiKey.FETCH, version, values)]
        data = await connection.ask_bytes(ApiKey.FETCH, version, body, wait_ms / 1000)
        try:
            answer = parse_fetch(data, version)
        except ProtocolViolation as error:
            raise connection.lose(str(error)) from error
    if answer.code:
        raise CodedError(code_of(answer.code), "the broker refuses to be read from")
    parts = {TopicPartition(str(part.topic), part.partition): part for part in answer.partitions}
    return {partition: _page(parts[partition], positions[partition]) for partition in positions if partition in parts}


def _page(part: PartitionRecords, offset: int) -> Page | CodedError:
    if part.code:
        code = code_of(part.code)
        return CodedError(code, _reason(code, part, offset))
    try:
        unpacked = unpack(part.records, offset, part.aborted)
    except CodedError as error:
        return error
    for skipped in unpacked.skipped:
        log.warning("unreadable batch skipped", topic=str(part.topic), partition=part.partition, **skipped._asdict())
    records, next_offset, skips = unpacked
    return Page(records, next_offset, part.high_watermark, part.log_start_offset, skips)


def _reason(code: ErrorCode, part: PartitionRecords, offset: int) -> str:
    if code is ErrorCode.offset_out_of_range:
        return f"there is no offset {offset} in partition {part.partition} of topic '{part.topic!s}'"
    return ""


def unpack(data: memoryview, offset: int, aborted: Iterable[tuple[int, int]]) -> Unpacked:
    """The records from an offset on; those of aborted transactions are left out.

    `CodedError` when the first batch is damaged (CORRUPT_MESSAGE), or holds more than is read at once
    (MESSAGE_TOO_LARGE): others may be able to read it, so it is not skipped. Before a later one the reading ends.
    """
    unpacked: list[Record] = []
    skipped: list[Skipped] = []
    beginnings = sorted((first, producer) for producer, first in aborted)
    dropped: set[int] = set()
    at, next_offset = 0, offset
    while len(data) - at >= HEADER_SIZE:
        header = read_header(data, at)
        if len(data) - at < header.size:
            break
        batch = data[at : at + header.size]
        if header.size < HEADER_SIZE or not crc_matches(batch, header.crc):
            if at:
                break
            raise CodedError(ErrorCode.corrupt_message, f"the batch at offset {header.base_offset} is damaged")
        while beginnings and beginnings[0][0] <= header.last_offset:
            dropped.add(beginnings.pop(0)[1])
        if header.is_control or not (header.is_transactional and header.producer_id in dropped):
            records = readable_records(batch)
            if isinstance(records, TooLarge):
                if at:
                    break
                raise CodedError(ErrorCode.message_too_large, _too_large(header, records))
            if isinstance(records, CodedError):
                skipped.append(Skipped(header.base_offset, header.last_offset, records.message))
            elif header.is_control:
                if _is_abort(records):
                    dropped.discard(header.producer_id)
            else:
                unpacked += [record for record in records if record.offset >= offset]
        next_offset = max(next_offset, header.last_offset + 1)
        at += header.size
    return Unpacked(unpacked, next_offset, tuple(skipped))


def _too_large(header: BatchHeader, error: TooLarge) -> str:
    return (
        f"the records from offset {header.base_offset} to {header.last_offset} cannot be read here: {error.message}; "
        f"read them with another client, or go on at offset {header.last_offset + 1}"
    )


def _is_abort(records: list[Record]) -> bool:
    try:
        marker = marker_of((records[0].key, records[0].value)) if records else None
    except CodedError:
        return False
    return marker is not None and not marker.committed


async def list_offsets(
    cluster: Cluster, topic: str, at: Mapping[int, int], isolation: int = READ_COMMITTED
) -> dict[int, tuple[int, int]]:
    """The offset and timestamp of each partition at a time, `EARLIEST` or `LATEST`; -1 where a time has no record."""

    async def attempt() -> dict[int, tuple[int, int]]:
        by_node: dict[int, dict[TopicPartition, OffsetQuery]] = {}
        for partition, timestamp in at.items():
            queries = by_node.setdefault(await cluster.leader(topic, partition), {})
            queries[TopicPartition(topic, partition)] = OffsetQuery(timestamp)
        found: dict[int, tuple[int, int]] = {}
        for node, queries in by_node.items():
            found |= await _ask_offsets(cluster, node, queries, isolation)
        return found

    return await retried(attempt, cluster.patience, lambda: cluster.forget(topic))


async def _ask_offsets(
    cluster: Cluster, node: int, queries: Mapping[TopicPartition, OffsetQuery], isolation: int
) -> dict[int, tuple[int, int]]:
    values = list_offsets_request(queries, isolation=isolation)
    answer = await (await cluster.to_node(node)).ask(ApiKey.LIST_OFFSETS, values)
    found = {}
    for where, listed in read_offsets(answer).items():
        if listed.code is not ErrorCode.none:
            raise CodedError(listed.code, f"partition {where.partition} of topic '{where.topic}'")
        found[where.partition] = listed.offset, listed.timestamp
    return found
