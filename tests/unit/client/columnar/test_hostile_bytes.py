"""Bytes that no broker sends: they give an error or rows, never a dead process."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.columnar._damage import UnreadableBatch
from headrace.client.columnar._heads import check_rest, read_heads
from headrace.client.errors import ClientError
from headrace.protocol.batch import HEADER_SIZE
from headrace.protocol.records import Record
from tests.support.columnar.batches import a_decoder, batch, codecs, joined, record, records_in, some_batches

END = 2**62


def _decode(fetched: bytes | bytearray) -> ClientError | None:
    try:
        rows, following = a_decoder(check_crcs=False).decode(fetched, 0, END)
    except ClientError as error:
        return error
    if rows is not None:
        rows.validate(full=True)
        assert following > rows.column("offset")[-1].as_py()
    return None


@given(some_batches(), st.data())
def test_changed_bytes_never_crash(batches: list[list[Record]], data: st.DataObject) -> None:
    fetched = bytearray(joined(batch(records, codec=data.draw(codecs)) for records in batches))
    for _ in range(data.draw(st.integers(1, 8))):
        fetched[data.draw(st.integers(0, len(fetched) - 1))] = data.draw(st.integers(0, 255))
    _decode(fetched)


@given(st.binary(max_size=300), st.integers(0, 40), st.integers(0, 100))
def test_garbage_in_place_of_records_never_crashes(garbage: bytes, count: int, last_delta: int) -> None:
    head = bytearray(batch([record(0)])[:HEADER_SIZE])
    head[8:12] = (HEADER_SIZE - 12 + len(garbage)).to_bytes(4)
    head[23:27] = last_delta.to_bytes(4)
    head[57:61] = count.to_bytes(4)
    _decode(head + garbage)


@given(st.binary(max_size=400))
def test_garbage_alone_never_crashes(garbage: bytes) -> None:
    _decode(garbage)


def test_every_byte_of_a_batch_may_be_anything() -> None:
    good = batch([record(0, key=b"k", headers=(("h", b"v"),)), record(1, value=None)])
    for position in range(len(good)):
        for byte in (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF):
            fetched = bytearray(good)
            fetched[position] = byte
            _decode(fetched)


@pytest.mark.parametrize(
    "varint", [b"\xff" * 9 + b"\x01", b"\xfe" * 9 + b"\x01", b"\x80" * 12, b"\xff\xff\xff\xff\x0f"]
)
def test_a_length_of_any_size_stays_within_its_record(varint: bytes) -> None:
    good = bytes(batch([record(0, key=b"kkkk", value=b"vvvv", headers=(("hhhh", b"wwww"),))]))
    for place in range(HEADER_SIZE, len(good)):
        fetched = bytearray(good[:place] + varint + good[place + len(varint) :])
        fetched[8:12] = (len(fetched) - 12).to_bytes(4)
        _decode(fetched)


def _with_base_time(records: list[Record], time: int) -> bytes:
    made = bytearray(batch(records))
    made[27:35] = time.to_bytes(8, signed=True)
    return bytes(made)


@pytest.mark.parametrize(("base", "latest"), [(2**63 - 1, (2**63 - 1) // 1000), (-(2**63), -((2**63 - 1) // 1000))])
def test_a_time_that_64_bits_cannot_hold_is_the_last_one_on_its_side(base: int, latest: int) -> None:
    records = [record(0, timestamp=0), record(1, timestamp=5 if base > 0 else -5)]
    rows, _ = a_decoder(check_crcs=False).decode(_with_base_time(records, base), 0, END)
    assert [found.timestamp for found in records_in(rows)] == [latest, latest]


def test_a_number_of_more_than_64_bits_is_no_number() -> None:
    good = bytes(batch([record(0, key=b"k", value=b"v")]))
    body = bytearray(good[HEADER_SIZE:])
    assert body[2] == 0  # the timestamp's delta
    longer = body[:2] + b"\x80" * 9 + b"\x02" + body[3:]
    longer[0] += 2 * 9
    fetched = bytearray(good[:HEADER_SIZE] + longer)
    fetched[8:12] = (len(fetched) - 12).to_bytes(4)
    assert _decode(fetched) is not None


def test_a_small_batch_that_decompresses_to_very_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.client.columnar._plan.BATCH_LIMIT", 1 << 20)
    for codec in (1, 2, 3, 4):
        bomb = batch([record(0, value=bytes(2 << 20))], codec=codec)
        error = _decode(bomb)
        assert isinstance(error, ClientError)
        assert "more than 1048576 bytes" in error.message


@given(some_batches())
def test_bytes_that_are_sound_are_not_refused(batches: list[list[Record]]) -> None:
    rows, _ = a_decoder(check_crcs=False).decode(joined(map(batch, batches)), 0, END)
    assert records_in(rows) == [one for records in batches for one in records]


@given(st.binary(min_size=HEADER_SIZE, max_size=HEADER_SIZE), st.data())
def test_a_head_that_the_kernel_refuses_has_a_reason(head: bytes, data: st.DataObject) -> None:
    """Else the batch would be taken for one that is cut short, and fetched for ever."""
    sound = batch([record(0)])[:HEADER_SIZE]
    mixed = bytearray(head)
    for first, last in ((0, 8), (8, 12), (16, 17), (21, 23), (23, 27), (57, 61)):
        if data.draw(st.booleans()):
            mixed[first:last] = sound[first:last]
    size = int.from_bytes(mixed[8:12], signed=True) + 12
    fetched = bytes(mixed) + bytes(max(min(size, 1 << 16) - HEADER_SIZE, 0))
    table, stop = read_heads(memoryview(fetched))
    if len(table):
        check_rest(memoryview(fetched), 0, 0)
    elif size <= len(fetched):
        with pytest.raises(UnreadableBatch):
            check_rest(memoryview(fetched), stop, 0)
