"""How a loop over records is compiled: once for each machine, then loaded from numba's cache.

Kernels work on addresses, as C does, where numba's arrays would cost twice: each is counted whenever a function is
given it, and each index is looked at for being negative. So an address must be right before it is used: kernels
check every length against the end of its buffer, and their callers keep the buffers alive.

Each kernel has one explicit signature. It is compiled when its module is imported, so that no call is ever slow, and
two processes that compile for the first time at once write the same file, which numba moves into place whole.
numba does not notice a change in another file that a kernel's code came from: what kernels take from here is part
of their cache by its name alone. Change the name with the meaning.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

INT: Final = types.int64
INTS: Final = types.int64[::1]
TABLE: Final = types.int64[:, ::1]


class Input(NamedTuple):
    """Addresses of the buffers of an Arrow array of binary, or of lists, that a kernel reads.

    `offsets` of 0 say that the column is not there: every element is null. `bits` of 0 say that no element is null.
    """

    offsets: int
    width: int
    """Bytes of an offset, 4 or 8."""
    data: int
    bits: int
    first: int
    """The array's own offset: where its first element is."""


class Output(NamedTuple):
    """Addresses of the buffers of an Arrow array of binary that a kernel fills, their bits all set at first."""

    offsets: int
    data: int
    bits: int


# Signatures hold no types of our own: numba pickles them into its cache, which outlives what we name and rename.
INPUT: Final = types.UniTuple(INT, len(Input._fields))
OUTPUT: Final = types.UniTuple(INT, len(Output._fields))


def kernel(result: Any, *arguments: Any) -> Callable[[Kernel], Kernel]:
    """Compile a function for these types; it runs without the GIL."""

    def compiled(function: Kernel) -> Kernel:
        signature = result(*arguments)
        try:
            made: Kernel = njit(signature, cache=True, **_OPTIONS)(function)
        except Exception:  # nowhere to keep a cache, or one that cannot be read: numba raises whatever it meets
            made = njit(signature, **_OPTIONS)(function)
        return made

    return compiled


def helper(function: Kernel) -> Kernel:
    """A function that kernels of the same file call; it becomes part of their code."""
    made: Kernel = njit(no_cpython_wrapper=True, **_OPTIONS)(function)
    return made


_OPTIONS: Final = {"nogil": True, "boundscheck": False, "error_model": "numpy", "no_cfunc_wrapper": True}


def _loads(bits: int, *, signed: bool, swapped: bool = False) -> Any:
    """A function of an address: the integer there, as int64; `swapped` for one in network order."""

    @intrinsic  # type: ignore[untyped-decorator]
    def load(_: Any, address: Any) -> Any:  # noqa: ARG001 - numba goes by the names
        def generate(__: Any, builder: Any, ___: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            value = builder.load(pointer, align=1)
            if swapped:
                value = builder.bswap(value)
            if bits == 64:
                return value
            return builder.sext(value, ir.IntType(64)) if signed else builder.zext(value, ir.IntType(64))

        return INT(INT), generate

    return load


def _stores(bits: int) -> Any:
    """A function of an address and an int64, which writes its low bits there."""

    @intrinsic  # type: ignore[untyped-decorator]
    def store(_: Any, address: Any, value: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, __: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            low = arguments[1] if bits == 64 else builder.trunc(arguments[1], ir.IntType(bits))
            builder.store(low, pointer, align=1)
            return context.get_dummy_value()

        return types.void(INT, INT), generate

    return store


load_u8: Final = _loads(8, signed=False)
load_u32: Final = _loads(32, signed=False)
load_i64: Final = _loads(64, signed=True)
load_net_u16: Final = _loads(16, signed=False, swapped=True)
load_net_u32: Final = _loads(32, signed=False, swapped=True)
load_net_i32: Final = _loads(32, signed=True, swapped=True)
load_net_i64: Final = _loads(64, signed=True, swapped=True)
store_8: Final = _stores(8)
store_32: Final = _stores(32)
store_64: Final = _stores(64)


@intrinsic  # type: ignore[untyped-decorator]
def copy(_: Any, to: Any, source: Any, size: Any) -> Any:  # noqa: ARG001
    """Copy bytes from one address to another; a loop comes out ten times slower."""

    def generate(context: Any, builder: Any, __: Any, arguments: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        target, origin = (builder.inttoptr(address, byte) for address in arguments[:2])
        cgutils.raw_memcpy(builder, target, origin, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(INT, INT, INT), generate
