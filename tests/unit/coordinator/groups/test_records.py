"""The bytes of the internal topic: Kafka's own."""

from collections.abc import Callable
from struct import pack

import pytest

from headrace.coordinator.groups.classic.records import StoredGroup, StoredMember, decode_group, encode_group, group_key
from headrace.coordinator.groups.group import group_of
from headrace.coordinator.groups.offsets.records import (
    Committed,
    decode_offset,
    encode_offset,
    offset_key,
    offset_prefix,
    offset_times,
    read_prefix,
    split_offset_key,
)
from headrace.coordinator.runtime.batches import build_batch, read_batches
from headrace.coordinator.runtime.fields import BadRecord, key_kind
from headrace.coordinator.runtime.partitions import java_hash, partition_of
from headrace.protocol.batch import check_batch
from headrace.protocol.compression import ZSTD
from headrace.protocol.records import Record, decode_records, encode_batch

MEMBER = StoredMember(
    member_id="m-1",
    instance_id="i",
    client_id="c",
    client_host="/h",
    rebalance_timeout_ms=30,
    session_timeout_ms=10,
    subscription=b"sub",
    assignment=b"asg",
)
GROUP = StoredGroup(
    protocol_type="consumer", generation=3, protocol="range", leader="m-1", state_timestamp=99, members=(MEMBER,)
)


def test_keys_are_kafkas() -> None:
    key = offset_key(offset_prefix("g", "t"), 5)
    assert key == b"\x00\x01" + b"\x00\x01g" + b"\x00\x01t" + b"\x00\x00\x00\x05"
    assert (key_kind(key), group_of(key)) == (1, "g")
    old = b"\x00\x00" + key[2:]
    assert split_offset_key(old) == split_offset_key(key) == (offset_prefix("g", "t"), 5)
    assert read_prefix(offset_prefix("größe", "t")) == ("größe", "t")
    assert group_key("g") == b"\x00\x02\x00\x01g"


def test_an_offset_is_written_as_version_3_and_with_its_own_expiry_as_version_1() -> None:
    assert encode_offset(7, 2, "m", 99, -1) == pack(">hqih", 3, 7, 2, 1) + b"m" + pack(">q", 99)
    assert encode_offset(7, 2, "", 99, -1) == pack(">hqihq", 3, 7, 2, 0, 99)
    assert encode_offset(7, 2, "m", 99, 100) == pack(">hqh", 1, 7, 1) + b"m" + pack(">qq", 99, 100)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (pack(">hqh", 0, 7, 1) + b"m" + pack(">q", 99), Committed(7, -1, "m", 99)),
        (pack(">hqh", 1, 7, 1) + b"m" + pack(">qq", 99, 100), Committed(7, -1, "m", 99, 100)),
        (pack(">hqh", 2, 7, 1) + b"m" + pack(">q", 99), Committed(7, -1, "m", 99)),
        (pack(">hqih", 3, 7, 2, 1) + b"m" + pack(">q", 99), Committed(7, 2, "m", 99)),
        (pack(">hqib", 4, 7, 2, 2) + b"m" + pack(">q", 99) + b"\0", Committed(7, 2, "m", 99)),
    ],
)
def test_every_version_of_an_offset_is_read(value: bytes, expected: Committed) -> None:
    assert decode_offset(value) == expected
    assert offset_times(value) == (expected.commit_timestamp, expected.expire_timestamp)


def test_a_group_is_written_as_version_3() -> None:
    value = encode_group(GROUP)
    assert value.startswith(b"\x00\x03" + b"\x00\x08consumer" + pack(">i", 3) + b"\x00\x05range\x00\x03m-1")
    assert decode_group(value) == GROUP
    empty = StoredGroup(protocol_type="", generation=0, protocol=None, leader=None, state_timestamp=-1)
    assert decode_group(encode_group(empty)) == empty


def test_a_group_of_an_old_broker_and_of_a_new_one_is_read() -> None:
    old = pack(">h", 0) + b"\x00\x08consumer" + pack(">i", 3) + b"\x00\x05range\x00\x03m-1" + pack(">i", 1)
    old += b"\x00\x03m-1\x00\x01c\x00\x02/h" + pack(">i", 10) + pack(">i", 3) + b"sub" + pack(">i", 3) + b"asg"
    member = decode_group(old).members[0]
    assert (member.session_timeout_ms, member.rebalance_timeout_ms, member.instance_id) == (10, 10, None)
    new = pack(">h", 4) + b"\x09consumer" + pack(">i", 3) + b"\x06range\x04m-1" + pack(">q", 99) + b"\x02"
    new += b"\x04m-1\x02i\x02c\x03/h" + pack(">ii", 30, 10) + b"\x04sub\x04asg\x00" + b"\x00"
    assert decode_group(new) == GROUP


@pytest.mark.parametrize("value", [b"", b"\x00\x09", b"\x00\x03\x00\xffx", encode_group(GROUP)[:-1]])
def test_what_cannot_be_read_is_told(value: bytes) -> None:
    with pytest.raises(BadRecord):
        decode_group(value)


def test_what_is_cut_short_anywhere_is_bad() -> None:
    reads: list[tuple[Callable[[bytes], object], bytes]] = [
        (decode_group, encode_group(GROUP)),
        (decode_offset, encode_offset(7, 2, "m", 99, -1)),
        (decode_offset, encode_offset(7, 2, "m", 99, 100)),
        (group_of, group_key("group")),
        (read_prefix, offset_prefix("g", "t")),
    ]
    for read, data in reads:
        for end in range(len(data)):
            with pytest.raises(BadRecord):
                read(data[:end])


def test_batches_are_what_any_consumer_reads() -> None:
    pairs = [(b"k%d" % number, None if number % 7 == 0 else b"v" * (number % 300)) for number in range(3_000)]
    batch = build_batch(pairs, 1_700_000_000_000)
    assert check_batch(batch).record_count == 3_000
    records = decode_records(batch)
    assert [(record.key, record.value) for record in records] == pairs
    assert {record.timestamp for record in records} == {1_700_000_000_000}
    ((_, found),) = read_batches(bytes(batch))
    assert found == pairs


def test_batches_of_others_are_read_too() -> None:
    pairs = [(b"key", b"value"), (b"gone", None), (b"long" * 5_000, b"x" * 70_000)]
    records = [Record(number, 5 + number, key, value) for number, (key, value) in enumerate(pairs)]
    plain = encode_batch(records)
    packed = encode_batch(records, base_offset=3, codec=ZSTD)
    cut = encode_batch(records)[:-1]
    assert [found for _, found in read_batches(bytes(plain + packed + cut))] == [pairs, pairs]


def test_a_damaged_batch_is_not_taken_in() -> None:
    batch = bytearray(build_batch([(b"k", b"v")], 1))
    batch[-1] ^= 1
    with pytest.raises(BadRecord, match="CRC"):
        list(read_batches(bytes(batch)))


def hash_by_its_definition(text: str) -> int:
    units, number = text.encode("utf-16-be", "surrogatepass"), 0
    for position in range(0, len(units), 2):
        number = (31 * number + int.from_bytes(units[position : position + 2], "big")) % (1 << 32)
    return number - (1 << 32) if number >> 31 else number


def test_groups_are_in_kafkas_partitions() -> None:
    assert [java_hash(text) for text in ("", "a", "hello", "😀")] == [0, 97, 99162322, 1772899]
    for text in ("g" * 32_767, "日本" * 5_000, "ab😀" * 77, "\ud800x"):
        assert java_hash(text) == hash_by_its_definition(text)
    assert partition_of("polygenelubricants", 50) == 0, "the hash is the smallest integer, which has no absolute value"
