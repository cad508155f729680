"""What a serializer puts before the value: Confluent's five bytes, the id of the schema in a registry."""

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.kernels.bounds import pointer
from headrace.kernels.jit import inlined, jit
from headrace.kernels.varint_loops import read_uvarint, unzigzag

from .payload import Payload
from .text import gathered

HEAD: Final = 5
"""A zero byte, and the schema's id in four bytes."""

NO_HEAD: Final = -1


class Head(NamedTuple):
    """What stands before a value: the id of the schema that it was written with, and for Protobuf which of the
    schema's messages it is, by its place among them and among those inside of it.
    """

    schema_id: int
    indexes: tuple[int, ...] = ()


class Framed(NamedTuple):
    """The values without their heads, the heads that there are, which one each row has, and why some have none."""

    payload: Payload
    heads: list[Head]
    which: Any
    errors: dict[int, str]


def confluent(payload: Payload, *, has_indexes: bool = False) -> Framed:
    """Values and their heads. Rows that are absent, and those that have no head, have NO_HEAD."""
    starts = payload.starts + HEAD
    present = payload.present & (starts <= payload.ends) & (_first_bytes(payload) == 0)
    errors = _errors(
        payload.present & ~present,
        "does not start with a zero byte and four bytes of schema id, which framing=confluent expects",
    )
    if has_indexes:
        framed = present.copy()
        _pass_indexes(payload.data, starts, payload.ends, present)
        errors |= _errors(framed & ~present, "the message indexes behind the schema's id are cut short")
    heads, which = _heads(payload._replace(ends=np.where(present, starts, payload.starts), present=present))
    return Framed(payload._replace(starts=starts, present=present), heads, which, errors)


def _heads(payload: Payload) -> tuple[list[Head], Any]:
    encoded = gathered(payload, payload.present, pa.binary()).dictionary_encode()
    which = encoded.indices.fill_null(NO_HEAD).to_numpy(zero_copy_only=False)
    return [_head(data) for data in encoded.dictionary.to_pylist()], which


def _head(data: bytes) -> Head:
    numbers = _numbers(data[HEAD:])
    # A single zero stands for the first message, which is most of them.
    return Head(int.from_bytes(data[1:HEAD], "big"), tuple(numbers[1:]) or (0,) if numbers else ())


def _numbers(data: bytes) -> list[int]:
    numbers, bits, shift = [], 0, 0
    for byte in data:
        bits |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            numbers.append((bits >> 1) ^ -(bits & 1))
            bits = shift = 0
    return numbers


def _first_bytes(payload: Payload) -> Any:
    last = max(len(payload.data) - 1, 0)
    return payload.data[np.minimum(payload.starts, last)]


def _errors(rows: Any, error: str) -> dict[int, str]:
    return dict.fromkeys(np.flatnonzero(rows).tolist(), error)


@jit
def _pass_indexes(data: Any, starts: Any, ends: Any, present: Any) -> None:
    for row in range(len(starts)):
        if present[row]:
            starts[row] = _after_indexes(pointer(data), starts[row], ends[row])
            present[row] = starts[row] >= 0


@inlined
def _after_indexes(data: Any, pos: int, end: int) -> int:
    bits, pos = read_uvarint(data, pos, end)
    count = unzigzag(bits)
    if pos < 0 or count < 0 or count > end - pos:
        return -1
    for _ in range(count):
        _, pos = read_uvarint(data, pos, end)
        if pos < 0:
            return -1
    return pos
