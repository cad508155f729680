"""`python -m headrace.kernels.build [DIR]`: compiles `records` and `heads`, keeps machine code for brokers.

It is kept for those of this user, or in DIR for all whose environment names it (`HEADRACE_KERNELS=DIR`).

The code is made for the plainest processor of this kind of machine, so that one cache serves hosts that differ, and
it is compared with the Python source on many batches (`trials`) before it is kept.
"""

import os
import sys
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import FunctionType
from typing import Any, Final

from . import heads, native, records, trials
from .elf import FunctionCode, NotSelfContained, code_of
from .layout import SIZE_AFTER_DATA, TYPE_AT, Layout, layout

_ENTRY: Final = "headrace_walk"
_SOURCES: Final = {native.RECORDS: records, native.HEADS: heads}
_HELPERS: Final = {
    native.RECORDS: ("varint", "behind", "headers", "word", "spread", "faulty", "parts", "likeness", "run"),
    native.HEADS: ("u32", "low_u32", "crc32c"),
}
_OPTIONS: Final = {
    "nogil": True,
    "boundscheck": False,
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
_NICENESS: Final = 5
_BATCH_HEADER: Final = 61
_COUNT_AT: Final = 57
"""Of the number of records in a batch."""

_compiled_parts: Final = attrgetter("fndesc", "library")
"""Of what numba compiled: how to call it, and its code."""


def compiled(kernel: str) -> FunctionCode:
    """The machine code of a kernel's `walk`, which needs nothing but its arguments."""
    return _emitted(kernel, _plain_entry)


def compiled_check(places: Layout) -> FunctionCode:
    """The machine code of a `native.Check`, for objects that are laid out like this."""
    return _emitted(native.RECORDS, partial(_check_entry, places))


def _emitted(kernel: str, write_entry: Callable[[Any, Any], None]) -> FunctionCode:
    os.environ["NUMBA_CPU_NAME"], os.environ["NUMBA_CPU_FEATURES"] = "generic", ""
    os.environ["NUMBA_LOOP_VECTORIZE"] = "0"  # vectors come from constants outside of the function
    import llvmlite.binding as llvm
    from numba import types

    arguments = (types.CPointer(types.uint8), types.CPointer(types.int64))
    walk = loop(kernel)
    walk.compile(types.int64(*arguments))
    library = _library(walk.overloads[arguments], arguments, types.int64, write_entry)
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(cpu="generic", opt=3, reloc="pic", codemodel="small")
    return code_of(machine.emit_object(llvm.parse_assembly(library.get_llvm_str())), _ENTRY)


def loop(kernel: str) -> Any:
    """A kernel's `walk` as part of compiled code, whatever the types that it is called with."""
    from numba import njit

    source = _SOURCES[kernel]
    names = {**vars(source), "_COMPARES": True}
    for name in _HELPERS[kernel]:
        names[name] = njit(forceinline=True, **_OPTIONS)(_renamed(getattr(source, name), names))
    return njit(forceinline=True, **_OPTIONS)(_renamed(source.walk, names))


def _plain_entry(module: Any, call: Any) -> None:
    """`walk` as C calls it, with the addresses of data and state."""
    from llvmlite import ir

    kinds = [ir.IntType(8).as_pointer(), ir.IntType(64).as_pointer()]
    entry = ir.Function(module, ir.FunctionType(ir.IntType(64), kinds), _ENTRY)
    builder = ir.IRBuilder(entry.append_basic_block())
    builder.ret(call(builder, entry.args))


def _check_entry(layout: Layout, module: Any, call: Any) -> None:
    """`walk` as CPython calls a method of one argument: of an array, the state, with a memoryview of a whole batch.

    It returns the array, as a new reference, and leaves other objects than a memoryview alone.
    """
    from llvmlite import ir

    byte, half, long = (ir.IntType(bits) for bits in (8, 32, 64))
    pointer = byte.as_pointer()
    entry = ir.Function(module, ir.FunctionType(pointer, [pointer, pointer]), _ENTRY)
    owner, view = entry.args
    start, walk, end = (entry.append_basic_block() for _ in range(3))
    builder = ir.IRBuilder(start)

    def at(thing: Any, place: int, kind: Any) -> Any:
        return builder.bitcast(builder.gep(thing, [long(place)]), kind.as_pointer())

    state = builder.load(at(owner, layout.array_items, long.as_pointer()))
    fault = builder.gep(state, [long(records.FAULT)])
    builder.store(long(records.CUT_SHORT), fault)
    count = at(owner, 0, half)
    builder.store(builder.add(builder.load(count), half(1)), count)
    kind = builder.load(at(view, TYPE_AT, long))
    is_view = builder.icmp_unsigned("==", kind, builder.load(builder.gep(state, [long(records.VIEW_TYPE)])))
    builder.cbranch(is_view, walk, end)
    builder.position_at_end(walk)
    data = builder.load(at(view, layout.view_data, pointer))
    size = builder.load(at(view, layout.view_data + SIZE_AFTER_DATA, long))
    number = builder.bswap(builder.load(at(data, _COUNT_AT, half), align=1))
    builder.store(builder.sub(size, long(_BATCH_HEADER)), builder.gep(state, [long(records.SIZE)]))
    builder.store(builder.sext(number, long), builder.gep(state, [long(records.COUNT)]))
    builder.store(call(builder, (builder.gep(data, [long(_BATCH_HEADER)]), state)), fault)
    builder.branch(end)
    builder.position_at_end(end)
    builder.ret(owner)


def _library(result: Any, arguments: tuple[Any, ...], returns: Any, write_entry: Callable[[Any, Any], None]) -> Any:
    """The compiled function behind an entry that is called as C calls: numba's own also takes places for errors."""
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.registry import cpu_target

    description, code = _compiled_parts(result)
    context = cpu_target.target_context
    library = context.codegen().create_library(_ENTRY)
    module = library.create_ir_module(_ENTRY)
    callee = context.declare_function(module, description)

    def call(builder: Any, values: Any) -> Any:
        return context.call_conv.call_function(builder, callee, returns, arguments, values)[1]

    write_entry(module, call)
    with global_compiler_lock:
        library.add_ir_module(module)
        library.add_linking_library(code)
        library.finalize()
    return library


def _renamed(function: Callable[..., Any], names: dict[str, Any]) -> FunctionType:
    """The function, calling what has these names."""
    assert isinstance(function, FunctionType)
    return FunctionType(function.__code__, names, function.__name__)


def main() -> int:
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    os.nice(_NICENESS)
    try:
        for kernel in native.KERNELS:
            code = compiled(kernel)
            trials.check(kernel, native.run(code))
            native.store(kernel, code, directory)
        places = layout()
        if places is not None:
            code = compiled_check(places)
            trials.check_bound(native.bound(code))
            native.store(native.BATCH, code, directory)
    except (native.Unusable, NotSelfContained, ImportError, OSError):
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
