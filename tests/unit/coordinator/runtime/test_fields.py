"""Whatever bytes are read as fields, they are what was written or a `BadRecord`: never another error, never misread."""

from collections.abc import Callable
from struct import Struct, pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.runtime.fields import (
    BadRecord,
    FieldReader,
    i32s,
    plain_bytes,
    plain_text,
    write_compact_bytes,
    write_compact_text,
    write_tags,
)
from headrace.protocol.encode import write_uvarint

NULL_TEXT, NULL = pack(">h", -1), pack(">i", -1)
PLAIN = b"".join(
    (
        pack(">bhiqQ", -1, -2, -3, -4, 2**64 - 1),
        plain_text("größe") + plain_text("") + NULL_TEXT,
        plain_bytes(b"\xff\0") + NULL,
        pack(">i", 3) + i32s([1, -1, 2**31 - 1]) + NULL,
        b"end",
    )
)
Read = Callable[[FieldReader], object]
READS: list[Read] = [
    FieldReader.i8,
    FieldReader.i16,
    FieldReader.i32,
    FieldReader.i64,
    FieldReader.u64,
    FieldReader.uvarint,
    FieldReader.text,
    FieldReader.nullable_text,
    FieldReader.data,
    FieldReader.count,
    FieldReader.i32s,
    FieldReader.tags,
    lambda reader: reader.take(4),
    lambda reader: reader.fixed(Struct(">hq")),
    lambda reader: reader.version(4, 2),
]


def compact() -> bytes:
    out = bytearray(pack(">h", 2))
    write_compact_text(out, "größe")
    write_compact_text(out, "")
    write_compact_text(out, None)
    write_compact_text(out, "x" * 300)
    write_compact_bytes(out, b"\xff\0")
    out.append(0)
    out += b"\x03" + i32s([5, -5])
    write_tags(out, {0: b"zero", 200: b""})
    write_tags(out, {})
    return bytes(out)


def read_plain(data: bytes) -> list[object]:
    reader = FieldReader(data)
    found: list[object] = [reader.i8(), reader.i16(), reader.i32(), reader.i64(), reader.u64()]
    found += [reader.text(), reader.text(), reader.nullable_text(), reader.data(), reader.data()]
    found += [reader.i32s(), reader.count(), reader.tags(), reader.take(3)]
    assert reader.is_done
    return found


def read_compact(data: bytes) -> list[object]:
    reader = FieldReader(data)
    found: list[object] = [reader.version(newest=2, first_compact=2)]
    found += [reader.text(), reader.text(), reader.nullable_text(), reader.text(), reader.data(), reader.data()]
    found += [reader.i32s(), reader.tags(), reader.tags()]
    assert reader.is_done
    return found


def uvarint(value: int) -> bytes:
    out = bytearray()
    write_uvarint(out, value)
    return bytes(out)


def test_plain_fields_are_read_as_they_were_written() -> None:
    assert read_plain(PLAIN) == [
        *(-1, -2, -3, -4, 2**64 - 1),
        *("größe", "", None, b"\xff\0", b""),
        *((1, -1, 2**31 - 1), 0, {}, b"end"),
    ]


def test_compact_fields_are_read_as_they_were_written() -> None:
    assert read_compact(compact()) == [
        *(2, "größe", "", None, "x" * 300, b"\xff\0", b""),
        *((5, -5), {0: b"zero", 200: b""}, {}),
    ]


def test_the_bytes_are_kafkas() -> None:
    out = bytearray()
    write_compact_text(out, "ab")
    write_compact_text(out, None)
    write_tags(out, {0: b"\x07", 300: b""})
    assert out == b"\x03ab" + b"\0" + b"\x02" + b"\x00\x01\x07" + b"\xac\x02\x00"
    assert plain_text("ab") == b"\0\2ab"
    assert plain_bytes(b"ab") == b"\0\0\0\2ab"
    assert i32s([1, -1]) == b"\0\0\0\1" + b"\xff" * 4


@pytest.mark.parametrize(("data", "read"), [(PLAIN, read_plain), (compact(), read_compact)], ids=["plain", "compact"])
def test_a_record_that_is_cut_short_anywhere_is_bad(data: bytes, read: Callable[[bytes], object]) -> None:
    for end in range(len(data)):
        with pytest.raises(BadRecord):
            read(data[:end])


def test_an_error_tells_where_and_what() -> None:
    reader = FieldReader(b"\0\1a\0\5b")
    assert reader.text() == "a"
    with pytest.raises(BadRecord, match="a field of 5 bytes at byte 5 of 6"):
        reader.text()


@pytest.mark.parametrize("size", [-2, -(2**15)])
def test_a_negative_length_of_a_text_is_bad(size: int) -> None:
    for read in (FieldReader.text, FieldReader.nullable_text):
        with pytest.raises(BadRecord, match=f"is {size}"):
            read(FieldReader(pack(">h", size) + b"abc"))


@pytest.mark.parametrize("size", [-2, -(2**31), 4, 2**31 - 1])
def test_a_length_of_bytes_or_an_array_that_cannot_be_is_bad(size: int) -> None:
    reads: list[Read] = [FieldReader.data, FieldReader.count, FieldReader.i32s]
    for read in reads:
        with pytest.raises(BadRecord):
            read(FieldReader(pack(">i", size) + b"abc"))


@pytest.mark.parametrize("size", [5, 2**31, 2**32 - 1])
def test_a_compact_length_beyond_the_record_is_bad(size: int) -> None:
    reads: list[Read] = [
        FieldReader.text,
        FieldReader.nullable_text,
        FieldReader.data,
        FieldReader.count,
        FieldReader.i32s,
        FieldReader.tags,
    ]
    for read in reads:
        with pytest.raises(BadRecord):
            read(FieldReader(uvarint(size) + b"abc", compact=True))


def test_an_array_of_numbers_needs_four_bytes_for_each() -> None:
    with pytest.raises(BadRecord):
        FieldReader(pack(">i", 4) + bytes(15)).i32s()
    assert FieldReader(pack(">i", 4) + bytes(16)).i32s() == (0, 0, 0, 0)


def test_a_tagged_field_ends_within_its_record() -> None:
    with pytest.raises(BadRecord, match="a field of 4 bytes"):
        FieldReader(b"\x01\x00\x04abc", compact=True).tags()


def test_nothing_is_taken_backwards() -> None:
    reader = FieldReader(b"abc", 2)
    with pytest.raises(BadRecord):
        reader.take(-1)
    assert reader.take(1) == b"c"


def test_a_text_must_be_there_and_be_text() -> None:
    for reader in (FieldReader(NULL_TEXT), FieldReader(b"\0", compact=True)):
        with pytest.raises(BadRecord, match="null"):
            reader.text()
    for reader in (FieldReader(b"\0\1\xff"), FieldReader(b"\2\xff", compact=True)):
        with pytest.raises(BadRecord, match="UTF-8"):
            reader.nullable_text()


@given(st.integers(0, 2**32 - 1))
def test_every_number_of_32_bits_is_a_varint(value: int) -> None:
    assert FieldReader(uvarint(value)).uvarint() == value


@pytest.mark.parametrize("data", [b"\x80" * 5, b"\xff" * 1_000_000, b"\x80" * 5 + b"\0", uvarint(2**32), b"\xff" * 5])
def test_a_varint_ends_after_five_bytes_and_32_bits(data: bytes) -> None:
    reader = FieldReader(data)
    with pytest.raises(BadRecord, match="the varint before byte 5 has more than 32 bits"):
        reader.uvarint()


@pytest.mark.parametrize("version", [-1, 3, 2**15 - 1])
def test_a_version_that_nobody_knows_is_bad(version: int) -> None:
    with pytest.raises(BadRecord, match=f"version {version}"):
        FieldReader(pack(">h", version)).version(newest=2, first_compact=1)


def test_lengths_are_read_as_the_version_writes_them() -> None:
    for value, is_compact in ((b"\0\0\0\1a", False), (b"\0\1\2a", True)):
        reader = FieldReader(value)
        assert reader.version(newest=1, first_compact=1) == is_compact
        assert reader.text() == "a"


@given(st.binary(max_size=64), st.booleans(), st.lists(st.sampled_from(READS), max_size=8))
def test_any_bytes_are_read_or_bad(data: bytes, is_compact: bool, reads: list[Read]) -> None:
    reader = FieldReader(data, compact=is_compact)
    try:
        for read in reads:
            read(reader)
    except BadRecord:
        pass
