"""`python -m tests.fuzz.trespass`: accesses out of bounds, each of which the checked build must refuse."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from headrace.kernels import bounds
from headrace.kernels.addresses import copy, load_i64, load_u8, store_32
from headrace.kernels.bounds import pointer
from headrace.kernels.intrinsics import copy as copy_elements
from headrace.kernels.intrinsics import eight_bytes
from headrace.kernels.jit import jit


@jit
def _get(array: Any, index: int) -> Any:
    return pointer(array)[index]


@jit
def _set(array: Any, index: int) -> None:
    pointer(array)[index] = 1


@jit
def _eight(array: Any, index: int) -> Any:
    return eight_bytes(pointer(array), index)


@jit
def _copy(array: Any, start: int, size: int) -> None:
    copy_elements(pointer(array), 0, pointer(array), start, size)


@jit
def _load(address: int) -> int:
    return load_u8(address) + load_i64(address)  # type: ignore[no-any-return]


@jit
def _store(address: int) -> None:
    store_32(address, 1)


@jit
def _move(to: int, source: int, size: int) -> None:
    copy(to, source, size)


_MEMORY: Final = np.zeros(16, np.uint8)
_AT: Final = _MEMORY.ctypes.data

ALLOWED: Final[list[Callable[[], Any]]] = [
    lambda: _get(_MEMORY, 15),
    lambda: _set(_MEMORY, 0),
    lambda: _eight(_MEMORY, 8),
    lambda: _copy(_MEMORY, 8, 8),
    lambda: _copy(_MEMORY, 99, 0),
    lambda: _load(_AT + 8),
    lambda: _store(_AT + 12),
    lambda: _move(_AT, _AT + 8, 8),
]
REFUSED: Final[list[Callable[[], Any]]] = [
    lambda: _get(_MEMORY, 16),
    lambda: _get(_MEMORY, -1),
    lambda: _set(_MEMORY, 16),
    lambda: _eight(_MEMORY, 9),
    lambda: _eight(_MEMORY, -1),
    lambda: _copy(_MEMORY, 9, 8),
    lambda: _copy(_MEMORY, 0, -1),
    lambda: _copy(_MEMORY, 2**62, 2**62),
    lambda: _load(_AT + 9),
    lambda: _load(_AT - 1),
    lambda: _store(_AT + 13),
    lambda: _move(_AT + 9, _AT, 8),
    lambda: _move(_AT, _AT + 9, 8),
    lambda: _move(_AT, _AT, -1),
    lambda: _move(_AT, _AT, 2**63 - 1),
]


def is_refused(access: Callable[[], Any]) -> bool:
    """Whether it is an IndexError."""
    try:
        access()
    except IndexError:
        return True
    return False


def main() -> None:
    """Fails where an access is judged wrong."""
    bounds.allow_nothing()
    bounds.allow(_AT, len(_MEMORY))
    assert [is_refused(access) for access in ALLOWED] == [False] * len(ALLOWED)
    assert [is_refused(access) for access in REFUSED] == [True] * len(REFUSED)


if __name__ == "__main__":
    main()
