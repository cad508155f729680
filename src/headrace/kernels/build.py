"""`python -m headrace.kernels.build`: compiles `records` and `heads`, keeps machine code for the brokers of this user.

The code is made for the plainest processor of this kind of machine, so that one cache serves hosts that differ, and
it is compared with the Python source on many batches (`trials`) before it is kept.
"""

import os
import sys
from collections.abc import Callable
from operator import attrgetter
from types import FunctionType
from typing import Any, Final

from . import heads, native, records, trials
from .elf import Code, NotSelfContained, code_of

_ENTRY: Final = "headrace_walk"
_SOURCES: Final = {native.RECORDS: records, native.HEADS: heads}
_HELPERS: Final = {
    native.RECORDS: ("varint", "behind", "headers", "word", "spread", "faulty", "parts", "likeness", "known_time"),
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

_compiled_parts: Final = attrgetter("fndesc", "library")
"""Of what numba compiled: how to call it, and its code."""


def compiled(kernel: str) -> Code:
    """The machine code of a kernel's `walk`, which needs nothing but its arguments."""
    os.environ["NUMBA_CPU_NAME"], os.environ["NUMBA_CPU_FEATURES"] = "generic", ""
    import llvmlite.binding as llvm
    from numba import types

    arguments = (types.CPointer(types.uint8), types.CPointer(types.int64))
    walk = loop(kernel)
    walk.compile(types.int64(*arguments))
    result = walk.overloads[arguments]
    library = _library(result, arguments, types.int64)
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


def _library(result: Any, arguments: tuple[Any, ...], returns: Any) -> Any:
    """The compiled function behind an entry that is called as C calls: numba's own also takes places for errors."""
    from llvmlite import ir
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.registry import cpu_target

    description, code = _compiled_parts(result)
    context = cpu_target.target_context
    library = context.codegen().create_library(_ENTRY)
    module = library.create_ir_module(_ENTRY)
    values = [context.get_value_type(each) for each in arguments]
    entry = ir.Function(module, ir.FunctionType(context.get_value_type(returns), values), _ENTRY)
    builder = ir.IRBuilder(entry.append_basic_block())
    callee = context.declare_function(module, description)
    _, out = context.call_conv.call_function(builder, callee, returns, arguments, entry.args)
    builder.ret(out)
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
    os.nice(_NICENESS)
    try:
        for kernel in native.KERNELS:
            code = compiled(kernel)
            trials.check(kernel, native.run(code))
            native.store(kernel, code)
    except (native.Unusable, NotSelfContained, ImportError, OSError):
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
