"""Fetched bytes to Arrow, against a reader of Kafka's format."""

from random import Random
from typing import Any, Final

from headrace.client.columnar import _fill, _heads, _memory, _outputs
from headrace.client.columnar._decoding import MOST_RECORDS
from headrace.client.columnar._plan import ROWS_AT_ONCE
from headrace.client.columnar.decode import FetchDecoder
from headrace.client.errors import ClientError
from headrace.protocol.batch import SMALLEST_RECORD
from headrace.protocol.compression import decompress
from headrace.protocol.errors import CodedError
from headrace.protocol.records import Record, encode_batch

from .kafka import HEADER, Parsed, Records, with_head_changed
from .memory import MEMORY
from .mutation import mutated, payloads
from .reading import Bad, raw

_FETCHES: Final = 40
_FAR: Final = 2**62
_LAST_OFFSET: Final = 2**63 - 2
_LATEST_MS: Final = (2**63 - 1) // 1000
_LIMIT: Final = 1 << 24

Row = tuple[int, int, bytes | None, bytes | None, Any]
"""Offset, time in microseconds, key, value and headers."""

for _module in (_memory, _outputs, _heads, _fill):
    _module.pool_array = MEMORY.array  # type: ignore[attr-defined]


class _Head:
    def __init__(self, data: bytes, at: int) -> None:
        self.base, length, _, self.magic, _, self.attributes, self.delta, self.time, self.newest, *_, self.count = (
            HEADER.unpack_from(data, at)
        )
        self.size = length + 12
        self.body = data[at + HEADER.size : at + self.size]

    @property
    def last(self) -> int:
        return int(self.base) + int(self.delta)

    @property
    def is_sound(self) -> bool:
        return (
            self.magic == 2
            and self.size >= HEADER.size
            and self.delta >= 0
            and self.base >= 0
            and self.last <= _LAST_OFFSET
            and 0 <= self.count <= MOST_RECORDS
            and self.attributes & 7 <= 4
        )

    def unpacked(self) -> bytes:
        """The bytes of its records; `Bad` where they cannot be decompressed."""
        if not self.attributes & 7:
            return self.body
        try:
            return bytes(decompress(self.attributes & 7, self.body, _LIMIT))
        except CodedError as error:
            raise Bad(error.message) from error

    def rows(self, body: bytes, start: int, end: int, with_headers: bool) -> list[Row]:
        """Those with start <= offset < end; `Bad` where a record is wrong."""
        if self.count > len(body) // SMALLEST_RECORD:
            raise Bad("more records than bytes")
        reader = Records(body)
        found = [self._row(reader.record(), start, end, with_headers) for _ in range(self.count)]
        if reader.left:
            raise Bad("bytes follow the last record")
        return [row for row in found if row is not None]

    def _row(self, record: Parsed, start: int, end: int, with_headers: bool) -> Row | None:
        if not 0 <= record.offset_delta <= self.delta:
            raise Bad("an offset that is not within its batch")
        offset = self.base + record.offset_delta
        if not start <= offset < end:
            return None
        if with_headers and record.headers is None:
            raise Bad("headers")
        time = self.newest if self.attributes & 8 else self.time + record.timestamp_delta
        headers = [{"key": key.decode(errors="replace"), "value": value} for key, value in record.headers or ()]
        micros = max(-_LATEST_MS, min(time, _LATEST_MS)) * 1000
        return offset, micros, record.key, record.value, (headers or None) if with_headers else None


def _reference(data: bytes, start: int, end: int, with_headers: bool) -> tuple[list[Row], int]:
    at = 0
    heads: list[_Head] = []
    while len(data) - at >= HEADER.size:
        head = _Head(data, at)
        if not head.is_sound or head.size > len(data) - at:
            break
        heads.append(head)
        at += head.size
    within = next((n for n, head in enumerate(heads) if head.base >= end), len(heads))
    rows: list[Row] = []
    promised = 0
    for n, head in enumerate(heads[:within]):
        if head.last < start or not head.count or head.attributes & 0x20:
            continue
        body = head.unpacked()
        if promised and promised + head.count > ROWS_AT_ONCE:  # which is for the next call
            return rows, _after(heads[:n], start)
        promised += head.count
        rows += head.rows(body, start, end, with_headers)
    following = _after(heads[:within], start)
    if within < len(heads):
        return rows, max(following, end)
    rest = data[at:]
    if (len(rest) >= HEADER.size and not _Head(data, at).is_sound) or (len(rest) > 16 and rest[16] != 2):
        raise Bad("what follows is no batch")
    return rows, following


def _after(heads: list[_Head], start: int) -> int:
    return max([start, *(head.last + 1 for head in heads)])


def _fetches(random: Random) -> list[bytes]:
    """Some batches each, one after the other; some are compressed."""
    made = []
    for _ in range(4):
        offset, parts = random.choice((0, 0, 1000)), []
        for _ in range(random.randrange(1, 5)):
            records = []
            for _ in range(random.randrange(1, 7)):
                offset += random.choice((0, 0, 2))
                records.append(_record(random, offset))
                offset += 1
            codec = random.choice((0, 0, 0, 0, 1, 2, 3, 4))
            parts.append(bytes(encode_batch(records, base_offset=None, codec=codec)))
        made.append(b"".join(parts))
    return made


def _record(random: Random, offset: int) -> Record:
    def some() -> bytes | None:
        return random.choice((None, random.randbytes(random.choice((0, 1, 5, 63, 64, 200)))))

    headers = tuple((random.choice("aé") * random.randrange(3), some()) for _ in range(random.choice((0, 0, 1, 3))))
    return Record(offset, random.choice((-1, 0, 1_700_000_000_000, random.randrange(2**42))), some(), some(), headers)


def _with_records_changed(random: Random, fetched: bytes) -> bytes:
    """The records of the first batch mutated, and its size made to fit: else most changes only cut batches short."""
    if len(fetched) < HEADER.size:
        return fetched
    size = max(HEADER.unpack_from(fetched)[1] + 12, HEADER.size)
    body = mutated(random, fetched[HEADER.size : size], [fetched])
    head = fetched[:8] + (HEADER.size - 12 + len(body)).to_bytes(4, "big") + fetched[12 : HEADER.size]
    return head + body + fetched[size:]


def run(random: Random) -> int:
    """Fetches from some offset on, with headers or without."""
    sound = _fetches(random)
    fetches = payloads(random, sound, _FETCHES // 2)
    for _ in range(_FETCHES // 4):
        fetches.append(_with_records_changed(random, random.choice(sound)))
        fetches.append(with_head_changed(random, random.choice(fetches)))
    for fetched in fetches:
        with_headers, start = random.random() < 0.7, random.choice((0, 0, 3, 1001))
        end = start + random.choice((4, _FAR))
        decoder = FetchDecoder("topic", 0, with_headers=with_headers, check_crcs=False)
        try:
            expected: Any = _reference(fetched or b"\0", start, end, with_headers)
        except Bad as bad:
            expected = str(bad)
        try:
            found, following = decoder.decode(MEMORY.holding(fetched).data, start, end)
            said: Any = _rows(found, with_headers), following
        except ClientError as error:
            said = error.message
        is_same = said == expected if not isinstance(expected, str) else isinstance(said, str)
        what = f"{start} to {end}, {with_headers=}: {fetched.hex()}"
        assert is_same, f"{str(expected)[:300]}, not {str(said)[:300]}: {what}"
        found = None
        MEMORY.clear(random)
    return len(fetches)


def _rows(found: Any, with_headers: bool) -> list[Row]:
    if found is None:
        return []
    found.validate(full=True)
    columns = [raw(found.column(name)) for name in ("offset", "timestamp", "key", "value")]
    headers = found.column("headers").to_pylist() if with_headers else [None] * len(found)
    return list(zip(*columns, headers, strict=True))
