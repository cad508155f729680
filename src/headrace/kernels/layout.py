"""Where CPython keeps what machine code needs of its objects, found by looking: it differs between versions."""

import ctypes
import sys
import sysconfig
from array import array
from functools import cache
from typing import Any, Final, NamedTuple

TYPE_AT: Final = 8
"""Of the type in every object; the count of references comes before it."""
SIZE_AFTER_DATA: Final = 16
"""Of the size of a memoryview, from the address of its data on: both are fields of a `Py_buffer`."""
_WORD: Final = 8


class Layout(NamedTuple):
    """Places in objects, in bytes."""

    view_data: int
    """Of the address of a memoryview's first byte."""
    array_items: int
    """Of the address of an array's first item."""


@cache
def layout() -> Layout | None:
    """The places, or None where this Python keeps its objects in another way."""
    without_gil = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    if sys.implementation.name != "cpython" or sys.byteorder != "little" or without_gil:
        return None
    data = bytearray(100)
    start = ctypes.addressof(ctypes.c_char.from_buffer(data))
    whole, part = memoryview(data), memoryview(data)[3:40]
    items = array("q", range(50))
    view_data = _place(whole, type(whole).__basicsize__, start)
    array_items = _place(items, type(items).__basicsize__, items.buffer_info()[0])
    if view_data is None or array_items is None or not _counts_references(items):
        return None
    said = [_word(part, at) for at in (TYPE_AT, view_data, view_data + SIZE_AFTER_DATA)]
    return Layout(view_data, array_items) if said == [id(memoryview), start + 3, len(part)] else None


def _place(thing: Any, size: int, word: int) -> int | None:
    return next((at for at in range(0, size - _WORD + 1, _WORD) if _word(thing, at) == word), None)


def _word(thing: Any, at: int) -> int:
    return ctypes.c_int64.from_address(id(thing) + at).value


def _counts_references(thing: Any) -> bool:
    """Whether the lower half of the first word of an object is the count of its references."""
    before = ctypes.c_int32.from_address(id(thing)).value
    more = [thing, thing]
    return ctypes.c_int32.from_address(id(thing)).value == before + len(more)
