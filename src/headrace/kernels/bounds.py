"""Memory whose bounds compiled loops check, for tests: `HEADRACE_CHECKED_LOOPS=1` before the process starts.

The loops read by pointers and addresses, which no compiler checks. A checked build is made of the same sources, but
each access is compared with what it may touch, and raises IndexError. A pointer knows the array that it was made of;
an address must be within what `allow` was told. It costs half of the speed or more, so it is never the default.
"""

import operator
import os
from typing import Any, Final

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, register_model

CHECKED: Final = os.environ.get("HEADRACE_CHECKED_LOOPS", "") == "1"

_MOST_REGIONS: Final = 4096
_SYMBOL: Final = "headrace_allowed_regions"
_regions: Final = np.zeros(1 + 2 * _MOST_REGIONS, np.int64)
"""How many there are, and where each begins and ends."""
llvm.add_symbol(_SYMBOL, _regions.ctypes.data)  # by a name, so that code in the cache finds it in every process


def allow(address: int, size: int) -> None:
    """Let addresses of this region be read and written."""
    count = int(_regions[0])
    if count == _MOST_REGIONS:
        raise MemoryError(f"more than {_MOST_REGIONS} regions")
    _regions[1 + 2 * count], _regions[2 + 2 * count] = address, address + size
    _regions[0] = count + 1


def allow_nothing() -> None:
    """Forget all regions."""
    _regions[0] = 0


class Bounded(types.Type):  # type: ignore[misc]
    """A pointer to the elements of an array, and how many there are."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Bounded({dtype})")


@register_model(Bounded)
class _Model(models.StructModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, [("data", types.CPointer(kind.dtype)), ("size", types.int64)])


@intrinsic  # type: ignore[untyped-decorator]
def pointer(_: Any, array: Any) -> Any:
    """Where the array's elements are, to be read and written by their index, in the order of memory.

    The array must be an argument of the function that is called from Python: one that is made in compiled code is freed
    after its last use, and its pointer is none.
    """
    kind = Bounded(array.dtype) if CHECKED else types.CPointer(array.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        if not CHECKED:
            return made.data
        bounded = cgutils.create_struct_proxy(kind)(context, builder)
        bounded.data, bounded.size = made.data, made.nitems
        return bounded._getvalue()

    return kind(array), generate


def place(context: Any, builder: Any, kind: Any, memory: Any, index: Any, count: Any) -> Any:
    """Where element `index` of a pointer's memory is; where bounds are checked, `count` elements must be there."""
    if not isinstance(kind, Bounded):
        return builder.gep(memory, [index])
    bounded = cgutils.create_struct_proxy(kind)(context, builder, value=memory)
    last = builder.sub(bounded.size, count)
    is_nothing = builder.icmp_signed("==", count, count.type(0))
    is_within = builder.and_(builder.icmp_signed(">=", index, index.type(0)), builder.icmp_signed("<=", index, last))
    is_within = builder.and_(is_within, builder.icmp_signed(">", count, count.type(0)))
    _refuse_unless(context, builder, builder.or_(is_nothing, is_within))
    return builder.gep(bounded.data, [index])


def check_address(context: Any, builder: Any, address: Any, size: Any) -> None:
    """Where bounds are checked, refuse an address unless so many bytes from it on are allowed."""
    if CHECKED:
        is_within = context.compile_internal(
            builder, _is_allowed, types.boolean(types.int64, types.int64), (address, size)
        )
        _refuse_unless(context, builder, is_within)


def _refuse_unless(context: Any, builder: Any, is_within: Any) -> None:
    with cgutils.if_unlikely(builder, builder.not_(is_within)):
        context.call_conv.return_user_exc(builder, IndexError, ("out of bounds",))


def _is_allowed(address: int, size: int) -> bool:
    for n in range(_region(0)):
        if _region(1 + 2 * n) <= address and size <= _region(2 + 2 * n) - address:
            return size >= 0
    return bool(size == 0)


@intrinsic  # type: ignore[untyped-decorator]
def _region(_: Any, cell: Any) -> Any:  # noqa: ARG001 - numba goes by the names
    def generate(__: Any, builder: Any, ___: Any, arguments: Any) -> Any:
        table = (
            cgutils.add_global_variable(builder.module, ir.ArrayType(ir.IntType(64), len(_regions)), _SYMBOL)
            if _SYMBOL not in builder.module.globals
            else builder.module.globals[_SYMBOL]
        )
        return builder.load(builder.gep(table, [ir.IntType(64)(0), arguments[0]]))

    return types.int64(types.int64), generate


class _Indexed(AbstractTemplate):  # type: ignore[misc]
    def generic(self, arguments: Any, _: Any) -> Any:
        if len(arguments) < 2 or not isinstance(arguments[0], Bounded) or not isinstance(arguments[1], types.Integer):
            return None
        memory, written = arguments[0], arguments[2:]
        returns = types.none if written else memory.dtype
        return signature(returns, memory, types.int64, *[memory.dtype] * len(written))


@infer_global(operator.getitem)
class _Get(_Indexed):
    pass


@infer_global(operator.setitem)
class _Set(_Indexed):
    pass


@lower_builtin(operator.getitem, Bounded, types.int64)  # type: ignore[untyped-decorator]
def _load(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    kind = signature.args[0]
    at = place(context, builder, kind, arguments[0], arguments[1], ir.IntType(64)(1))
    return context.unpack_value(builder, kind.dtype, at)


@lower_builtin(operator.setitem, Bounded, types.int64, types.Any)  # type: ignore[untyped-decorator]
def _store(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    kind = signature.args[0]
    at = place(context, builder, kind, arguments[0], arguments[1], ir.IntType(64)(1))
    context.pack_value(builder, kind.dtype, arguments[2], at)
    return context.get_dummy_value()
