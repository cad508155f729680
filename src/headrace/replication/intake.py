"""What a topic demands of a batch before it may enter the log.

The batch is sound already (`protocol.batch.check_batch`); here the topic's own rules apply: size, timestamps, codec.
Nothing loops over records unless the topic is compacted, where each needs a key, or recompresses.
"""

from typing import Final

from headrace.cluster.log_settings import IntakeSettings
from headrace.protocol.batch import (
    APPEND_TIME_BIT,
    CODEC_MASK,
    HEADER_SIZE,
    NO_TIMESTAMP,
    BatchHeader,
    read_header,
    replace_records,
    stamp_append_time,
)
from headrace.protocol.compression import CODECS, DECOMPRESSED_LIMIT, ZSTD, compress, decompress
from headrace.protocol.errors import CodedError, ErrorCode, RecordsRefused
from headrace.protocol.produce import FIRST_WITH_ZSTD
from headrace.protocol.records import decode_records

_CODEC_NAMES: Final = {codec: name for name, codec in CODECS.items()}


def admit(
    batch: memoryview, header: BatchHeader, rules: IntakeSettings, now_ms: int, version: int
) -> tuple[memoryview, BatchHeader]:
    """The batch as it goes into the log: the same bytes unless the topic changes codec or timestamps."""
    if len(batch) > rules.max_message_bytes:
        raise CodedError(
            ErrorCode.message_too_large,
            f"a batch of {len(batch)} bytes; the topic's max.message.bytes is {rules.max_message_bytes}",
        )
    codec = header.attributes & CODEC_MASK
    if codec > ZSTD or (codec == ZSTD and version < FIRST_WITH_ZSTD):
        raise CodedError(
            ErrorCode.unsupported_compression_type, f"compression codec {codec} cannot be used with Produce v{version}"
        )
    if header.attributes & APPEND_TIME_BIT and not rules.append_time:
        raise CodedError(ErrorCode.invalid_timestamp, "only the broker can set append time; the topic has CreateTime")
    if not rules.append_time:
        _check_timestamps(header, rules, now_ms)
    if rules.compacted:
        _check_keys(batch)
    if rules.codec is not None and rules.codec != codec:
        batch, header = _recompress(batch, header, rules)
    if rules.append_time:
        stamp_append_time(batch, now_ms)
        header = read_header(batch)
    return batch, header


def _check_timestamps(header: BatchHeader, rules: IntakeSettings, now_ms: int) -> None:
    latest, earliest = header.max_timestamp, header.base_timestamp
    if latest != NO_TIMESTAMP and latest - now_ms > rules.timestamp_after_max_ms:
        raise CodedError(
            ErrorCode.invalid_timestamp,
            f"timestamp {latest} is more than message.timestamp.after.max.ms={rules.timestamp_after_max_ms}"
            f" ahead of the broker's clock {now_ms}",
        )
    if earliest != NO_TIMESTAMP and now_ms - earliest > rules.timestamp_before_max_ms:
        raise CodedError(
            ErrorCode.invalid_timestamp,
            f"timestamp {earliest} is more than message.timestamp.before.max.ms={rules.timestamp_before_max_ms}"
            f" behind the broker's clock {now_ms}",
        )


def _check_keys(batch: memoryview) -> None:
    keyless = tuple((place, "no key") for place, record in enumerate(decode_records(batch)) if record.key is None)
    if keyless:
        message = f"a compacted topic takes only records that have a key; {len(keyless)} of the batch have none"
        raise RecordsRefused(ErrorCode.invalid_record, message, keyless)


def _recompress(batch: memoryview, header: BatchHeader, rules: IntakeSettings) -> tuple[memoryview, BatchHeader]:
    assert rules.codec is not None
    plain = decompress(header.codec, batch[HEADER_SIZE:], DECOMPRESSED_LIMIT)
    packed = compress(rules.codec, plain, rules.codec_level)
    fresh = replace_records(batch, packed, rules.codec)
    if len(fresh) > rules.max_message_bytes:
        raise CodedError(
            ErrorCode.message_too_large,
            f"the batch has {len(fresh)} bytes as {_CODEC_NAMES[rules.codec]}; "
            f"the topic's max.message.bytes is {rules.max_message_bytes}",
        )
    return fresh, read_header(fresh)
