"""What a codec made of payloads, compared with what a reader of single ones makes of each."""

from collections.abc import Callable
from random import Random
from typing import Any, Final

import pyarrow as pa

from headrace.formats.payload import Decoded

_ALONE: Final = 8
_MARKS: Final = b'[]{},:"'


class Bad(Exception):
    """The payload is none of its kind."""


class Unclear(Exception):
    """The reference does not count here."""


def compare(found: Decoded, rows: list[bytes | None], reference: Callable[[bytes], Any], what: str) -> None:
    """Each row is what the reference reads it as, or bad where the reference says `Bad`."""
    found.values.validate(full=True)
    assert len(found.values) == len(rows), f"{len(found.values)} values of {len(rows)} rows; {what}"
    values = raw(found.values)
    for row, data in enumerate(rows):
        said = f"bad: {found.errors[row]}" if row in found.errors else values[row]
        if row in found.errors:
            assert values[row] is None, f"row {row} is bad, but has a value: {values[row]}; {what}"
        if data is None:
            assert said is None, f"row {row} is absent, but {said}; {what}"
            continue
        try:
            expected, reason = _read(reference, data)
        except Unclear:
            continue
        is_same = row in found.errors if reason else row not in found.errors and values[row] == expected
        assert is_same, f"row {row} is {reason or expected}, not {said}: {data.hex()}; {what}"


def at_the_end(random: Random, rows: list[bytes | None], check: Callable[[list[bytes | None]], None]) -> int:
    """Check some of the rows alone, and cut into two, so that each ends where the memory ends; how many payloads that
    were.
    """
    for _ in range(_ALONE):
        row = random.choice(rows) or b""
        check([row])
        middle, end = sorted((_place(random, row), _place(random, row)))
        check([row[:middle], row[middle:end]])
    return 3 * _ALONE


def _place(random: Random, row: bytes) -> int:
    """A place to cut: anywhere, or where something begins or ends in a format that is text."""
    at = random.randrange(len(row) + 1)
    if random.random() < 0.5:
        return at
    return next((place + 1 for place in range(at, len(row)) if row[place] in _MARKS), at)


def _read(reference: Callable[[bytes], Any], data: bytes) -> tuple[Any, str]:
    try:
        return reference(data), ""
    except Bad as bad:
        return None, f"bad: {bad}"


def raw(values: pa.Array) -> list[Any]:
    """The values, with floating point numbers as their bits and times as numbers, which compare as they are."""
    return _plain(values).to_pylist()  # type: ignore[no-any-return]


def _plain(values: pa.Array) -> pa.Array:
    return values.view(_plain_type(values.type)) if not pa.types.is_nested(values.type) else _nested(values)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_floating(kind):
        return pa.int64() if kind.bit_width == 64 else pa.int32()
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return pa.int64()
    return pa.int32() if pa.types.is_date32(kind) else kind


def _nested(values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_struct(kind):
        parts = [_plain(values.field(n)) for n in range(kind.num_fields)]
        fields = [pa.field(kind.field(n).name, part.type) for n, part in enumerate(parts)]
        return pa.Array.from_buffers(pa.struct(fields), len(values), values.buffers()[:1], children=parts)
    if pa.types.is_map(kind):
        keys, items = values.keys, _plain(values.items)
        entries = pa.StructArray.from_arrays(
            [keys, items], fields=[pa.field("key", keys.type, nullable=False), pa.field("value", items.type)]
        )
        return pa.Array.from_buffers(
            pa.map_(keys.type, items.type), len(values), values.buffers()[:2], children=[entries]
        )
    items = _plain(values.values)
    return pa.Array.from_buffers(pa.list_(items.type), len(values), values.buffers()[:2], children=[items])


def bits(data: bytes) -> int:
    """A floating point number, given its bytes, as `raw` shows it."""
    return int.from_bytes(data, "little", signed=True)
