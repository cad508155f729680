"""A payload as compiled loops take it: pointers to its bytes and to where rows begin and end."""

from typing import Any, NamedTuple

from headrace.kernels.bounds import pointer
from headrace.kernels.jit import inlined

from .payload import Payload


class PayloadPointers(NamedTuple):
    """A payload as compiled loops take it."""

    data: Any
    starts: Any
    ends: Any
    present: Any
    rows: int
    size: int
    """How many bytes there are from `data[0]` on."""


@inlined
def pointers_of(payload: Payload) -> PayloadPointers:
    """The payload's pointers."""
    return PayloadPointers(
        pointer(payload.data),
        pointer(payload.starts),
        pointer(payload.ends),
        pointer(payload.present),
        len(payload.starts),
        len(payload.data),
    )
