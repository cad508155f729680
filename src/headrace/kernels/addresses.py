"""Memory as compiled loops use it that work on addresses, as C does.

numba's arrays would cost twice: each is counted whenever a function is given it, and each index is looked at for being
negative. So an address must be right before it is used: kernels check every length against the end of its buffer, and
their callers keep the buffers alive. Tests run a build in which `bounds` looks at each address.
"""

from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .bounds import check_address

INT: Final = types.int64
INTS: Final = types.int64[::1]
TABLE: Final = types.int64[:, ::1]


def _loads(bits: int, *, signed: bool, swapped: bool = False) -> Any:
    """A function of an address: the integer there, as int64; `swapped` for one in network order."""

    @intrinsic  # type: ignore[untyped-decorator]
    def load(_: Any, address: Any) -> Any:  # noqa: ARG001 - numba goes by the names
        def generate(context: Any, builder: Any, __: Any, arguments: Any) -> Any:
            check_address(context, builder, arguments[0], ir.IntType(64)(bits // 8))
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
            check_address(context, builder, arguments[0], ir.IntType(64)(bits // 8))
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
        for address in arguments[:2]:
            check_address(context, builder, address, arguments[2])
        byte = ir.IntType(8).as_pointer()
        target, origin = (builder.inttoptr(address, byte) for address in arguments[:2])
        cgutils.raw_memcpy(builder, target, origin, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(INT, INT, INT), generate
