"""Record batches for the tests of the columnar client, and the rows they should become."""

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from headrace.client.columnar.decode import FetchDecoder
from headrace.protocol.compression import CODECS
from headrace.protocol.records import Headers, Record, encode_batch

TOPIC = "orders"
PARTITION = 3

small_bytes = st.none() | st.binary(max_size=200)
times = st.integers(-1, 2**42)
headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3).map(tuple)


@st.composite
def some_records(draw: st.DrawFn, *, first: int = 0, most: int = 12, gaps: bool = False) -> list[Record]:
    """Records in the order of their offsets; with `gaps`, as compaction leaves them."""
    offset = first
    records: list[Record] = []
    for _ in range(draw(st.integers(1, most))):
        offset += draw(st.integers(0, 5)) if gaps else 0
        records.append(Record(offset, draw(times), draw(small_bytes), draw(small_bytes), draw(headers)))
        offset += 1
    return records


@st.composite
def some_batches(draw: st.DrawFn) -> list[list[Record]]:
    """The records of some batches, with gaps between and within them."""
    batches: list[list[Record]] = []
    first = draw(st.integers(0, 1000))
    for _ in range(draw(st.integers(1, 5))):
        batches.append(draw(some_records(first=first, gaps=True)))
        first = batches[-1][-1].offset + 1
    return batches


codecs = st.sampled_from(sorted(CODECS.values()))


def record(offset: int, **fields: Any) -> Record:
    """A record with a value, and whatever else is given."""
    values: dict[str, Any] = {"timestamp": 1_700_000_000_000, "key": None, "value": b"v%d" % offset}
    return Record(offset, **(values | fields))


def batch(records: Iterable[Record], **fields: Any) -> bytearray:
    """A batch whose records keep their offsets."""
    return encode_batch(records, base_offset=None, **fields)


def joined(batches: Iterable[bytes | bytearray]) -> bytes:
    return b"".join(batches)


def records_in(rows: pa.RecordBatch | None) -> list[Record]:
    """Arrow rows as records, after a check that every array is sound."""
    if rows is None:
        return []
    rows.validate(full=True)
    assert rows.num_rows
    assert set(rows.column("topic").to_pylist()) == {TOPIC}
    assert set(rows.column("partition").to_pylist()) == {PARTITION}
    all_headers: Sequence[Any] = [None] * rows.num_rows
    if "headers" in rows.schema.names:
        all_headers = rows.column("headers").to_pylist()
    times_ms = [time // 1000 for time in rows.column("timestamp").cast(pa.int64()).to_pylist()]
    columns = (rows.column(name).to_pylist() for name in ("offset", "key", "value"))
    return [
        Record(offset, time, key, value, _plain(pairs))
        for offset, key, value, time, pairs in zip(*columns, times_ms, all_headers, strict=True)
    ]


def _plain(pairs: Sequence[dict[str, Any]] | None) -> Headers:
    return tuple((pair["key"], pair["value"]) for pair in pairs or ())


def a_decoder(**options: Any) -> FetchDecoder:
    return FetchDecoder(TOPIC, PARTITION, **({"with_headers": True} | options))
