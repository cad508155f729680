"""What a topic demands of a batch."""

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

import pytest

from headrace.cluster.image import Topic
from headrace.cluster.log_settings import IntakeSettings, intake_settings
from headrace.config import BrokerConfig
from headrace.protocol import compression
from headrace.protocol.batch import (
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    check_batch,
    crc_matches,
    read_header,
    seal,
)
from headrace.protocol.compression import DECOMPRESSED_LIMIT, GZIP, LZ4, NONE, SNAPPY, ZSTD, compress
from headrace.protocol.errors import CodedError, ErrorCode, RecordsRefused
from headrace.protocol.records import Record, encode_batch
from headrace.protocol.validation import SlowBatch
from headrace.replication.intake import admit
from tests.support.intake import RULES

NEEDS_KEYS = replace(RULES, requires_keys=True)


def keyed(*keys: bytes | None, codec: int = NONE) -> memoryview:
    return memoryview(encode_batch([Record(at, 1, key, b"v", ()) for at, key in enumerate(keys)], codec=codec))


@pytest.mark.parametrize("codec", [NONE, ZSTD])
def test_records_without_a_key_are_named_when_a_compacted_topic_refuses_them(codec: int) -> None:
    batch = keyed(b"a", None, b"", None, codec=codec)
    with pytest.raises(RecordsRefused) as refused:
        admit(batch, check_batch(batch), NEEDS_KEYS, now_ms=1, version=9)
    assert refused.value.code is ErrorCode.invalid_record
    assert [place for place, _ in refused.value.records] == [1, 3]


def test_a_compacted_topic_takes_a_batch_in_which_every_record_has_a_key() -> None:
    batch = keyed(b"a", b"")
    assert admit(batch, check_batch(batch), NEEDS_KEYS, now_ms=1, version=9)[0] is batch


# What the records are


def batch_of(body: bytes, count: int, codec: int = NONE, *, base: int = 1, newest: int = 1) -> memoryview:
    """A batch with a sound header and CRC, whatever its records are."""
    head = read_header(encode_batch([Record(0, base, None, None, ())]))
    fields = {"attributes": codec, "record_count": count, "last_offset_delta": count - 1, "max_timestamp": newest}
    batch = bytearray(HEADER_SIZE) + body
    HEADER.pack_into(batch, 0, *head._replace(batch_length=len(batch) - LOG_OVERHEAD, **fields))
    seal(memoryview(batch))
    return memoryview(batch)


def admitted(batch: memoryview, rules: IntakeSettings = RULES) -> BatchHeader:
    batch, header = admit(batch, check_batch(batch), rules, now_ms=1, version=9)
    assert header == read_header(batch)
    assert crc_matches(batch, header.crc)
    return header


def refusal(batch: memoryview, rules: IntakeSettings = RULES) -> ErrorCode:
    with pytest.raises(CodedError) as refused:
        admit(batch, check_batch(batch), rules, now_ms=1, version=9)
    return refused.value.code


FULL = replace(RULES, reads_records=True)
ONE = b"\x0c\0\0\0\x01\x01\0"
SECOND = b"\x0c\0\0\2\x01\x01\0"
MALFORMED = {
    "garbage": (b"\x99" * 40, 1),
    "a varint that does not end": (b"\xff" * 40, 1),
    "a record longer than the batch": (b"\x0e\0\0\0\x01\x01\0", 1),
    "a negative length": (b"\x0b\0\0\0\x01\x01\0", 1),
    "a key longer than its record": (b"\x0c\0\0\0\x40\x01\0", 1),
    "a key of length -2": (b"\x0c\0\0\0\x03\x01\0", 1),
    "a value longer than its record": (b"\x0c\0\0\0\x01\x40\0", 1),
    "headers beyond the record": (b"\x0c\0\0\0\x01\x01\x40", 1),
    "a header without a name": (b"\x10\0\0\0\x01\x01\x02\x01\x01", 1),
    "bytes after the last field": (b"\x0e\0\0\0\x01\x01\0\0", 1),
    "bytes after the last record": (ONE + SECOND, 1),
    "fewer records than the header says": (ONE + b"\0" * 7, 2),
    "an offset twice": (ONE + ONE, 2),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_records_that_are_not_what_the_header_says_are_refused(name: str) -> None:
    body, count = MALFORMED[name]
    assert refusal(batch_of(body, count)) is ErrorCode.invalid_record


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_full_validation_refuses_them_in_a_compressed_batch(name: str, codec: int) -> None:
    body, count = MALFORMED[name]
    assert refusal(batch_of(compress(codec, body), count, codec), FULL) is ErrorCode.invalid_record


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize("rules", [RULES, FULL])
def test_sound_batches_pass_unchanged(codec: int, rules: IntakeSettings) -> None:
    records = [Record(at, 1 + at, b"k" * at, b"v" * at * 9, (("h", None), ("i", b"x"))) for at in range(300)]
    for one in (records, records[:1]):
        batch = memoryview(encode_batch(one, codec=codec))
        assert admit(batch, check_batch(batch), rules, now_ms=1, version=9)[0] is batch


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_what_is_no_stream_of_its_codec_is_refused_by_its_frame(codec: int) -> None:
    assert refusal(batch_of(b"nothing of that kind at all", 1, codec)) is ErrorCode.invalid_record


@pytest.mark.parametrize("packed", [b"\xff\xff\xff\xff\x0f" + bytes(20), b"\x82SNAPPY\0" + bytes(8) + b"\0\0\7\7xx"])
def test_a_snappy_stream_that_cannot_be_is_refused_by_its_frame(packed: bytes) -> None:
    assert refusal(batch_of(packed, 1, SNAPPY)) is ErrorCode.invalid_record


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_a_compressed_batch_cannot_have_more_records_than_bytes(codec: int) -> None:
    assert refusal(batch_of(compress(codec, ONE), 2**31 - 1, codec)) is ErrorCode.invalid_record


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_batches_that_compress_well_are_taken_whatever_they_decompress_to(codec: int) -> None:
    """The Java client fills a batch by what it expects to be left after compression."""
    bomb = compress(codec, bytes(DECOMPRESSED_LIMIT + 1))
    assert admitted(batch_of(bomb, 1, codec)).record_count == 1


@pytest.mark.parametrize("codec", [GZIP, ZSTD])
def test_what_announces_more_than_the_limit_is_refused_unread_where_records_are_read(codec: int) -> None:
    bomb = compress(codec, bytes(DECOMPRESSED_LIMIT + 1))
    assert refusal(batch_of(bomb, 1, codec), FULL) is ErrorCode.invalid_record


def test_a_stream_of_several_frames_is_read_before_it_is_refused() -> None:
    packed = compress(ZSTD, ONE) + compress(ZSTD, SECOND)
    assert admitted(batch_of(packed, 2, ZSTD)).record_count == 2


@pytest.mark.parametrize("codec", [GZIP, LZ4])
def test_several_parts_are_refused_where_some_clients_read_the_first_alone(codec: int) -> None:
    full = replace(RULES, reads_records=True)
    assert admitted(batch_of(compress(codec, ONE + SECOND), 2, codec), full).record_count == 2
    for parts in ((ONE, SECOND), (b"", ONE + SECOND)):
        packed = b"".join(compress(codec, part) for part in parts)
        assert refusal(batch_of(packed, 2, codec), full) is ErrorCode.invalid_record


def topic(name: str, configs: Mapping[str, str] | None = None) -> Topic:
    return Topic(name=name, id=UUID(int=1), partitions=(), configs=configs or {})


def test_headraces_own_topics_and_those_with_schemas_are_always_read() -> None:
    config = BrokerConfig.parse({})
    assert not intake_settings(topic("orders"), config).reads_records
    assert intake_settings(topic("_headrace_schemas"), config).reads_records
    assert intake_settings(topic("orders", {"headrace.schema.validation": "true"}), config).reads_records
    assert intake_settings(topic("orders", {"headrace.record.validation": "full"}), config).reads_records
    full = BrokerConfig.parse({"headrace.record.validation": "full"})
    assert intake_settings(topic("orders"), full).reads_records
    assert not intake_settings(topic("orders", {"headrace.record.validation": "frame"}), full).reads_records


# Timestamps


def stamped(codec: int = NONE, *, newest: int) -> memoryview:
    """Records of 1000, 1500 and 1200 in a batch whose header says another maximum."""
    sound = encode_batch([Record(0, time, None, b"v", ()) for time in (1000, 1500, 1200)])
    return batch_of(compress(codec, sound[HEADER_SIZE:]), 3, codec, base=1000, newest=newest)


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
def test_a_missing_max_timestamp_is_computed_from_the_records(codec: int) -> None:
    assert admitted(stamped(codec, newest=-1)).max_timestamp == 1500


@pytest.mark.parametrize("codec", [NONE, ZSTD])
@pytest.mark.parametrize("claimed", [-1, 999, 1000, 1501, 1 << 62])
def test_a_max_timestamp_that_the_records_do_not_have_is_corrected(codec: int, claimed: int) -> None:
    assert admitted(stamped(codec, newest=claimed), FULL).max_timestamp == 1500


def test_the_time_limits_hold_for_every_record() -> None:
    late = replace(RULES, timestamp_after_max_ms=1400)
    assert refusal(stamped(newest=1000), late) is ErrorCode.invalid_timestamp
    early = memoryview(encode_batch([Record(0, time, None, b"v", ()) for time in (1000, 10)]))
    rules = replace(RULES, timestamp_before_max_ms=500)
    with pytest.raises(CodedError) as refused:
        admit(early, check_batch(early), rules, now_ms=1000, version=9)
    assert refused.value.code is ErrorCode.invalid_timestamp


def test_a_timestamp_beyond_64_bits_is_refused() -> None:
    assert refusal(batch_of(b"\x0c\0\x02\0\x01\x01\0", 1, base=2**63 - 1)) is ErrorCode.invalid_timestamp


def test_append_time_does_not_ask_what_the_producer_wrote() -> None:
    rules = replace(RULES, append_time=True)
    batch, header = admit(stamped(newest=-1), check_batch(stamped(newest=-1)), rules, now_ms=77, version=9)
    assert header.max_timestamp == 77
    assert crc_matches(batch, header.crc)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_no_more_than_a_mebibyte_is_decompressed_where_others_wait(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int] = []
    unpack = compression.unpack

    def noted(codec: int, data: memoryview, limit: int, *, guess: int) -> memoryview:
        limits.append(limit)
        return unpack(codec, data, limit, guess=guess)

    monkeypatch.setattr(compression, "unpack", noted)
    batch = memoryview(encode_batch([Record(0, 1, b"key", bytes(2 << 20), ())], codec=codec))
    with pytest.raises(SlowBatch):
        admit(batch, check_batch(batch), FULL, now_ms=1, version=9)
    assert all(limit <= 1 << 20 for limit in limits)
    admit(batch, check_batch(batch), FULL, now_ms=1, version=9, in_thread=True)
    small = keyed(b"a", codec=codec)
    admit(small, check_batch(small), FULL, now_ms=1, version=9)
