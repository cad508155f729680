"""Columns as bytes: each place of a schema makes parts of all its values at once, and rows are joined from those."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import compute

Part: TypeAlias = pa.Array | bytes
"""The bytes of each value, none of them null; or those that all values have."""

_NONE: Final = pa.scalar(b"", pa.binary())
_LOW_BITS: Final = 127

MICROS_OF_DAY: Final = 86_400_000_000
FIRST_DAY: Final = -719_162
END_DAY: Final = 2_932_897
"""The days from the year 1 to the year 10000, which dates as text have, since the epoch."""


class Column(NamedTuple):
    """The values of a place. One that cannot be written is refused; what is made of its row is not looked at then."""

    values: pa.Array
    rows: Any
    """The row of the batch that each is of."""
    faults: dict[int, str]
    """Why rows cannot be written, the first reason of each."""

    @property
    def valid(self) -> Any:
        """Which are not null."""
        return self.values.is_valid().to_numpy(zero_copy_only=False)

    @property
    def numbers(self) -> Any:
        """The values of a column of integers, days or moments, none of which is null."""
        days = pa.types.is_date32(self.values.type)
        return (self.values.cast(pa.int32()) if days else self.values).cast(pa.int64()).to_numpy()

    def refuse(self, bad: Any, why: str | Callable[[Any], str]) -> None:
        """`why`, if it is no text, is given each bad value. Of structs it is one: Python may not have all of theirs."""
        for place in np.flatnonzero(bad):
            if self.rows[place] not in self.faults:
                said = why if isinstance(why, str) else why(self.values[int(place)].as_py())
                self.faults[int(self.rows[place])] = said

    def given(self) -> "Column":
        """Without those that are null."""
        return Column(self.values.drop_null(), self.rows[self.valid], self.faults) if self.values.null_count else self

    def field(self, place: int) -> "Column":
        """A field of structs, none of which is null."""
        return self._replace(values=self.values.field(place))

    def elements(self) -> tuple["Column", Any]:
        """All elements of lists, or entries of maps, none of which is null; and how many each has."""
        edges = self.values.offsets.to_numpy()
        counts = np.diff(edges)
        inner = self.values.values.slice(edges[0], edges[-1] - edges[0])
        return Column(inner, np.repeat(self.rows, counts), self.faults), counts


Write = Callable[[Column], list[Part]]
"""The parts of values, none of which is null."""


def join(parts: Sequence[Part], count: int) -> pa.Array:
    """The bytes of `count` values, given their parts."""
    merged: list[Part] = []
    for part in parts:
        if merged and isinstance(part, bytes) and isinstance(merged[-1], bytes):
            merged[-1] += part
        else:
            merged.append(part)
    if all(isinstance(part, bytes) for part in merged):
        return chosen([b"".join(merged)], np.zeros(count, np.int8))
    if len(merged) == 1:
        return merged[0]
    parts = [pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part for part in merged]
    return compute.binary_join_element_wise(*parts, _NONE)


def grouped(parts: Sequence[Part], counts: Any) -> pa.Array:
    """The bytes of so many values each, one behind the other."""
    whole = join(parts, int(counts.sum()))
    edges = _edges(whole)
    return _binary(edges[np.concatenate(([0], np.cumsum(counts)))], whole.buffers()[2])


def spread(column: Column, write: Write) -> list[Part]:
    """The parts of values, with nothing for those that are null."""
    return [grouped(write(column.given()), column.valid)] if column.values.null_count else write(column)


def chosen(among: Sequence[bytes], which: Any) -> pa.Array:
    """For each value one of a few."""
    return pa.array(among, pa.binary()).take(pa.array(which.astype(np.int32)))


def sizes(pieces: pa.Array) -> Any:
    """How many bytes each has."""
    return np.diff(_edges(pieces)).astype(np.int64)


def content(pieces: pa.Array) -> Any:
    """All bytes, one value behind the other."""
    edges = _edges(pieces)
    return np.frombuffer(pieces.buffers()[2] or b"", np.uint8)[edges[0] : edges[-1]]


def varints(numbers: Any) -> pa.Array:
    """Numbers of 64 bits, seven to a byte, the lowest first."""
    bits = numbers.view(np.uint64)
    width = max(1, -(-int(bits.max(initial=0)).bit_length() // 7))
    data, kept = np.empty((len(bits), width), np.uint8), np.ones((len(bits), width), bool)
    for place in range(width):
        rest = bits >> np.uint64(7)
        goes_on = rest != 0
        data[:, place] = bits.astype(np.uint8) & _LOW_BITS | goes_on.astype(np.uint8) << 7
        if place + 1 < width:
            kept[:, place + 1] = goes_on
        bits = rest
    return ragged(data, kept)


def folded(numbers: Any) -> pa.Array:
    """Numbers with a sign as varints: 0, -1, 1, -2 and so on are 0, 1, 2, 3."""
    return varints(numbers << 1 ^ numbers >> 63)


def fixed(numbers: Any) -> pa.Array:
    """The bytes of numbers, or of rows of bytes, as they are in memory."""
    size = numbers.strides[0]
    return _binary(np.arange(len(numbers) + 1) * size, pa.py_buffer(np.ascontiguousarray(numbers)))


def ragged(data: Any, kept: Any) -> pa.Array:
    """The bytes that are kept of each row of a matrix."""
    edges = np.concatenate(([0], np.cumsum(kept.sum(1))))
    return _binary(edges, pa.py_buffer(data[kept]))


def texts(column: Column, path: str) -> pa.Array:
    """The bytes of strings. Spark lets through those that are not UTF-8, which are refused."""
    data = column.values.cast(pa.binary())
    try:
        data.cast(pa.string())
    except pa.ArrowInvalid:
        column = column._replace(values=data)
        column.refuse(
            [not _is_utf8(one) for one in data.to_pylist()], lambda it: f"{path} is {it!r}, which is no UTF-8"
        )
    return data


def within_calendar(column: Column, day: int, path: str) -> None:
    """Refuse days or moments of no year with four digits; `day` is how much one is."""
    numbers = column.numbers
    bad = (numbers < FIRST_DAY * day) | (numbers >= END_DAY * day)
    if bad.any():
        plain = column._replace(values=pa.array(numbers // day))
        plain.refuse(bad, lambda value: f"{path} is {value} days from 1970, outside of the years 1 to 9999")


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _edges(pieces: pa.Array) -> Any:
    return np.frombuffer(pieces.buffers()[1], np.int32)[pieces.offset : pieces.offset + len(pieces) + 1]


def _binary(edges: Any, data: Any) -> pa.Array:
    offsets = pa.py_buffer(np.ascontiguousarray(edges, np.int32))
    return pa.Array.from_buffers(pa.binary(), len(edges) - 1, [None, offsets, data], 0)
