"""The records the scenarios send, and how two records are compared."""

import time
from collections.abc import Iterable, Sequence

from .model import Ability, ClientDriver, Headers, Position, Record, Span

PARTITIONS = 12
MIXED_HEADERS: tuple[Headers, ...] = (
    (),
    (("trace", b"4bf92f35"), ("empty", b"")),
    (("step", b"1"), ("step", b"2"), ("last", b"z")),
)
SAME_HEADERS: Headers = (("trace", b"4bf92f35"), ("step", b"1"), ("step", b"2"), ("empty", b""))


def hour_ago() -> int:
    """A recent time in milliseconds: retention must not take the records away while they are compared."""
    return int(time.time() * 1000) - 3_600_000


def sample(tag: str, partition: int, driver: ClientDriver) -> list[Record]:
    """Eight different records for one partition, within what the client can write."""
    values: list[bytes | None] = [
        b"plain",
        bytes(range(256)),
        "größer als 日本".encode(),
        b"",
        b"a line\nand another\r\n\ttab",
        tag.encode() * 500,
        b"x",
        None if Ability.MIXED_HEADERS not in driver.missing else b"last",
    ]
    base = hour_ago()
    shapes = MIXED_HEADERS if Ability.MIXED_HEADERS not in driver.missing else (SAME_HEADERS,)
    if Ability.NULL_HEADERS not in driver.missing:
        shapes = (*shapes[:-1], (*shapes[-1], ("null", None)))
    return [
        Record(
            key=None if index == 2 else f"{tag}-{index}".encode(),
            value=value,
            headers=shapes[index % len(shapes)],
            timestamp=base + index if Ability.TIMESTAMPS not in driver.missing else None,
            partition=partition,
        )
        for index, value in enumerate(values)
    ]


def spans_of(records: Iterable[Record]) -> list[Span]:
    """What to read from a fresh topic that holds just these records."""
    counts: dict[int, int] = {}
    for record in records:
        assert record.partition is not None
        counts[record.partition] = counts.get(record.partition, 0) + 1
    return [Span(partition=partition, start=0, end=count) for partition, count in sorted(counts.items())]


def check_equal(expected: Sequence[Record], received: Sequence[Record], start: int = 0) -> None:
    """Raise AssertionError unless each partition delivered exactly these records, in order, from `start` on."""
    for partition in sorted({record.partition for record in [*expected, *received]}, key=lambda p: p or 0):
        wanted = [record for record in expected if record.partition == partition]
        got = [record for record in received if record.partition == partition]
        assert len(got) == len(wanted), f"partition {partition}: {len(got)} of {len(wanted)} records came"
        for index, (sent, back) in enumerate(zip(wanted, got, strict=True)):
            where = f"partition {partition}, record {index}"
            assert back.offset == start + index, f"{where}: offset {back.offset}, not {start + index}"
            _check_record(where, sent, back)


def _check_record(where: str, sent: Record, back: Record) -> None:
    for name in ("key", "value", "headers", "timestamp"):
        wanted, got = getattr(sent, name), getattr(back, name)
        if name == "timestamp" and wanted is None:
            continue
        assert got == wanted, f"{where}: {name} is {_short(got)}, not {_short(wanted)}"


def check_positions(records: Sequence[Record], positions: Sequence[Position] | None) -> None:
    """Raise AssertionError unless the acknowledged places are those of a fresh topic, where the client is told."""
    if positions is None:
        return
    following: dict[int | None, int] = {}
    for record, (partition, offset) in zip(records, positions, strict=True):
        expected = following.get(record.partition, 0)
        place = (record.partition, expected)
        assert (partition, offset) == place, f"acknowledged at {(partition, offset)}, not {place}"
        following[record.partition] = expected + 1


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"
