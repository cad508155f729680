"""The bytes to decode: where each row's value lies in one buffer."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa


class Payload(NamedTuple):
    """Row `i` is `data[starts[i]:ends[i]]` where `present[i]`; a row that is not present has nothing to decode,
    being a tombstone or known to be bad already.
    """

    data: Any
    starts: Any
    ends: Any
    present: Any

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self.starts)

    def row(self, index: int) -> bytes:
        """The bytes of one row."""
        return bytes(self.data[self.starts[index] : self.ends[index]])

    def rows_at(self, rows: Any) -> "Payload":
        """These rows alone."""
        return self._replace(starts=self.starts[rows], ends=self.ends[rows], present=self.present[rows])

    def plain(self) -> "Payload":
        """The same as a loop takes it: in arrays of numbers alone."""
        return self._replace(present=self.present.view(np.uint8))


@dataclass(slots=True)
class Decoded:
    """What came of a payload: a value per row, null where the row was absent or is bad, and why it is bad."""

    values: Any
    errors: dict[int, str] = field(default_factory=dict)


def payload_of(column: pa.Array) -> Payload:
    """The payload of a binary column, without copying it."""
    validity, offsets, data = column.buffers()
    count, first = len(column), column.offset
    if not count:
        return Payload(read_only(data), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.bool_))
    ends = np.frombuffer(offsets, np.int32)[first : first + count + 1].astype(np.int64)
    return Payload(read_only(data), ends[:-1].copy(), ends[1:], _present(validity, first, count))


def payload_of_rows(rows: list[bytes | None]) -> Payload:
    """The payload of these values."""
    return payload_of(pa.array(rows, pa.binary()))


def read_only(buffer: pa.Buffer | bytes | None) -> Any:
    """The buffer as bytes of numpy's; always of the one type that the compiled loops are compiled for."""
    if buffer is None or not len(buffer):
        buffer = b"\0"
    held = np.frombuffer(buffer, np.uint8)
    held.setflags(write=False)
    return held


def _present(validity: pa.Buffer | None, first: int, count: int) -> Any:
    if validity is None:
        return np.ones(count, np.bool_)
    bits = np.unpackbits(np.frombuffer(validity, np.uint8), count=first + count, bitorder="little")
    return bits[first:].astype(np.bool_)
