"""What a topic demands of a batch before it may enter the log.

The batch's header is sound already (`protocol.batch.check_batch`). Here its records are checked by compiled code
(`protocol.validation`), and the topic's own rules apply: size, timestamps, keys, codec. A compressed batch is
decompressed only where the topic asks for it, needs it, or where the header does not tell its timestamps.
"""

from typing import Final

from headrace.cluster.log_settings import IntakeSettings
from headrace.config.setting import MAX_LONG
from headrace.kernels.records import KEYLESS, KEYLESS_ROOM, NEWEST, OLDEST
from headrace.protocol.batch import (
    APPEND_TIME_BIT,
    CODEC_MASK,
    HEADER_SIZE,
    NO_TIMESTAMP,
    BatchHeader,
    read_header,
    replace_records,
    stamp_append_time,
    stamp_max_timestamp,
)
from headrace.protocol.compression import CODECS, DECOMPRESSED_LIMIT, NONE, ZSTD, compress, decompress
from headrace.protocol.errors import CodedError, ErrorCode, RecordsRefused
from headrace.protocol.produce import FIRST_WITH_ZSTD
from headrace.protocol.validation import Learned, SlowBatch, check_frame, check_packed_records, check_plain_records

_MOST: Final = 1 << 62
_CODEC_NAMES: Final = {codec: name for name, codec in CODECS.items()}
_READ_AT_ONCE: Final = 1 << 20
"""Bytes of decompressed records that are read while others wait: some 2 ms."""
_COMPRESSED_AT_ONCE: Final = 1 << 18
"""Bytes that are compressed while others wait: some 10 ms with gzip."""


def admit(
    batch: memoryview, header: BatchHeader, rules: IntakeSettings, now_ms: int, version: int, in_thread: bool = False
) -> tuple[memoryview, BatchHeader]:
    """The batch as it goes into the log: the same bytes unless the topic changes codec or timestamps.

    `SlowBatch` where that takes long, unless it is a thread's time.
    """
    if len(batch) > rules.max_message_bytes:
        raise CodedError(
            ErrorCode.message_too_large,
            f"a batch of {len(batch)} bytes; the topic's max.message.bytes is {rules.max_message_bytes}",
        )
    attributes = header.attributes
    codec = attributes & CODEC_MASK
    if codec > ZSTD or (codec == ZSTD and version < FIRST_WITH_ZSTD):
        raise CodedError(
            ErrorCode.unsupported_compression_type, f"compression codec {codec} cannot be used with Produce v{version}"
        )
    if attributes & APPEND_TIME_BIT and not rules.append_time:
        raise CodedError(ErrorCode.invalid_timestamp, "only the broker can set append time; the topic has CreateTime")
    if codec == NONE:
        learned: Learned | None = check_plain_records(batch, header)
    else:
        learned = check_compressed(batch, header, rules, None if in_thread else _READ_AT_ONCE)
    if not rules.append_time:
        header = _check_timestamps(batch, header, rules, now_ms, learned)
    if rules.requires_keys:
        _check_keys(learned)
    if rules.codec is not None and rules.codec != codec:
        batch, header = _recompress(batch, header, rules, _MOST if in_thread else _COMPRESSED_AT_ONCE)
    if rules.append_time:
        stamp_append_time(batch, now_ms)
        header = read_header(batch)
    return batch, header


def check_compressed(
    batch: memoryview, header: BatchHeader, rules: IntakeSettings, at_once: int | None
) -> Learned | None:
    """What the records of a compressed batch say; None where only its frame was looked at."""
    recompressed = rules.codec is not None and rules.codec != header.codec
    unordered = header.max_timestamp < header.base_timestamp and not rules.append_time
    if rules.reads_records or rules.requires_keys or recompressed or unordered:
        return check_packed_records(batch, header, _decompressed_limit(rules), at_once)
    check_frame(batch, header, _decompressed_limit(rules), at_once)
    return None


def _decompressed_limit(rules: IntakeSettings) -> int:
    """What a batch may decompress to: a topic that takes large batches takes them compressed as well."""
    return max(DECOMPRESSED_LIMIT, rules.max_message_bytes)


def _check_timestamps(
    batch: memoryview, header: BatchHeader, rules: IntakeSettings, now_ms: int, learned: Learned | None
) -> BatchHeader:
    """The header with the largest timestamp that the records have: as in Kafka, what the producer wrote does not count.

    Where the records were not read, the header's word is taken.
    """
    oldest, stamped = header.base_timestamp, header.max_timestamp
    newest = stamped
    if learned is not None:
        newest = oldest + learned[NEWEST]
        oldest += learned[OLDEST]
        if newest != stamped:
            newest = max(newest, NO_TIMESTAMP)
    if newest - now_ms > rules.timestamp_after_max_ms or newest > MAX_LONG:
        raise CodedError(
            ErrorCode.invalid_timestamp,
            f"timestamp {newest} is more than message.timestamp.after.max.ms={rules.timestamp_after_max_ms}"
            f" ahead of the broker's clock {now_ms}",
        )
    if oldest != NO_TIMESTAMP and now_ms - oldest > rules.timestamp_before_max_ms:
        raise CodedError(
            ErrorCode.invalid_timestamp,
            f"timestamp {oldest} is more than message.timestamp.before.max.ms={rules.timestamp_before_max_ms}"
            f" behind the broker's clock {now_ms}",
        )
    if newest == stamped:
        return header
    stamp_max_timestamp(batch, newest)
    return read_header(batch)


def _check_keys(learned: Learned | None) -> None:
    assert learned is not None
    count = learned[KEYLESS]
    if count:
        places = learned[KEYLESS + 1 : KEYLESS + 1 + min(count, KEYLESS_ROOM)]
        message = (
            f"this topic takes only records that have a key, as compaction needs one; {count} of the batch have none"
        )
        raise RecordsRefused(ErrorCode.invalid_record, message, tuple((place, "no key") for place in places))


def _recompress(
    batch: memoryview, header: BatchHeader, rules: IntakeSettings, at_once: int
) -> tuple[memoryview, BatchHeader]:
    assert rules.codec is not None
    plain = decompress(header.codec, batch[HEADER_SIZE:], _decompressed_limit(rules))
    if rules.codec != NONE and len(plain) > at_once:
        raise SlowBatch
    packed = compress(rules.codec, plain, rules.codec_level)
    fresh = replace_records(batch, packed, rules.codec)
    if len(fresh) > rules.max_message_bytes:
        raise CodedError(
            ErrorCode.message_too_large,
            f"the batch has {len(fresh)} bytes as {_CODEC_NAMES[rules.codec]}; "
            f"the topic's max.message.bytes is {rules.max_message_bytes}",
        )
    return fresh, read_header(fresh)
