"""What compiled loops need of the processor and numba does not give by itself. Bounds are checked in tests alone."""

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .bounds import place

long: Final[Any] = np.int64
"""A number of 64 bits with a sign, which is what the loops count in."""
word: Final[Any] = np.int32
"""The lower 32 bits of one, with a sign."""


@intrinsic  # type: ignore[untyped-decorator]
def eight_bytes(_: Any, data: Any, pos: Any) -> Any:  # noqa: ARG001 - numba needs the names
    """The bytes from `data[pos]` on as one unsigned number, the first byte the lowest."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first = place(context, builder, signature.args[0], arguments[0], arguments[1], ir.IntType(64)(8))
        return builder.load(builder.bitcast(first, ir.IntType(64).as_pointer()), align=1)

    return types.uint64(data, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def low_zeros(_: Any, bits: Any) -> Any:  # noqa: ARG001
    """How many of the lowest bits are zero; 64 if all are."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator]
def copy(_: Any, target: Any, to: Any, source: Any, start: Any, size: Any) -> Any:  # noqa: ARG001
    """`target[to : to + size] = source[start : start + size]`, given pointers to bytes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds, count = signature.args, arguments[4]
        written = place(context, builder, kinds[0], arguments[0], arguments[1], count)
        read = place(context, builder, kinds[2], arguments[2], arguments[3], count)
        cgutils.raw_memcpy(builder, written, read, count, 1)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate
