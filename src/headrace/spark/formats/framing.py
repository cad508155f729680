"""What a serializer puts before the value: Confluent's five bytes, the number of the schema in a registry."""

from typing import Any, Final

import numpy as np

from headrace.kernels.jit import inlined, jit

from .machine import pointer
from .payload import Payload
from .wire import varint, zigzag

HEAD: Final = 5
"""A zero byte, and the schema's number in four bytes."""

Unframed = tuple[Payload, dict[int, str]]


def confluent(payload: Payload) -> Unframed:
    """The values without Confluent's head, and why some rows have none."""
    starts = payload.starts + HEAD
    framed = payload.present & (starts <= payload.ends) & (_first_bytes(payload) == 0)
    return payload._replace(starts=starts, present=framed), _unframed_rows(payload.present & ~framed)


def confluent_protobuf(payload: Payload) -> Unframed:
    """The values without Confluent's head and the path of the message type that Protobuf has behind it."""
    headless, errors = confluent(payload)
    starts = headless.starts.copy()
    present = headless.present.copy()
    _skip_paths(headless.data, starts, headless.ends, present)
    lost = headless.present & ~present
    errors |= dict.fromkeys(
        np.flatnonzero(lost).tolist(), "the message indexes behind the schema's number are cut short"
    )
    return headless._replace(starts=starts, present=present), errors


def _first_bytes(payload: Payload) -> Any:
    last = max(len(payload.data) - 1, 0)
    return payload.data[np.minimum(payload.starts, last)]


def _unframed_rows(rows: Any) -> dict[int, str]:
    error = "does not start with a zero byte and four bytes of schema number, which framing=confluent expects"
    return dict.fromkeys(np.flatnonzero(rows).tolist(), error)


@jit
def _skip_paths(data: Any, starts: Any, ends: Any, present: Any) -> None:
    for row in range(len(starts)):
        if present[row]:
            starts[row] = _after_path(pointer(data), starts[row], ends[row])
            present[row] = starts[row] >= 0


@inlined
def _after_path(data: Any, pos: int, end: int) -> int:
    bits, pos = varint(data, pos, end)
    count = zigzag(bits)
    if pos < 0 or count < 0 or count > end - pos:
        return -1
    for _ in range(count):
        _, pos = varint(data, pos, end)
        if pos < 0:
            return -1
    return pos
