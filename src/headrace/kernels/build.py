"""`python -m headrace.kernels.build`: compiles `records.walk` and keeps the machine code for the brokers of this user.

The code is made for the plainest processor of this kind of machine, so that one cache serves hosts that differ, and
it is compared with the Python source on many batches before it is kept.
"""

import ctypes
import os
import sys
from array import array
from collections.abc import Callable, Iterator
from random import Random
from types import FunctionType
from typing import Any, Final

from . import native, records
from .elf import Code, NotSelfContained, code_of

_ENTRY: Final = "headrace_walk"
_HELPERS: Final = ("varint", "field", "headers", "word", "spread")
_OPTIONS: Final = {
    "nogil": True,
    "boundscheck": False,
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
_NICENESS: Final = 5
_TRIALS: Final = 1_000
_LIKE: Final = 0.1
"""The share of trials in which records are like each other."""


def compiled() -> Code:
    """The machine code of `records.walk`, which needs nothing but its arguments."""
    os.environ["NUMBA_CPU_NAME"], os.environ["NUMBA_CPU_FEATURES"] = "generic", ""
    import llvmlite.binding as llvm
    from numba import njit, types

    names = {**vars(records), "_COMPARES": True}
    for name in _HELPERS:
        names[name] = njit(forceinline=True, **_OPTIONS)(_renamed(getattr(records, name), names))
    arguments = (types.CPointer(types.uint8), types.CPointer(types.int64))
    walk = njit(types.int64(*arguments), forceinline=True, **_OPTIONS)(_renamed(records.walk, names))
    result = walk.overloads[arguments]
    library = _library(result, arguments, types.int64)
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(cpu="generic", opt=3, reloc="pic", codemodel="small")
    return code_of(machine.emit_object(llvm.parse_assembly(library.get_llvm_str())), _ENTRY)


def _library(result: Any, arguments: tuple[Any, ...], returns: Any) -> Any:
    """The compiled function behind an entry that is called as C calls: numba's own also takes places for errors."""
    from llvmlite import ir
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.registry import cpu_target

    context = cpu_target.target_context
    library = context.codegen().create_library(_ENTRY)
    module = library.create_ir_module(_ENTRY)
    values = [context.get_value_type(each) for each in arguments]
    entry = ir.Function(module, ir.FunctionType(context.get_value_type(returns), values), _ENTRY)
    builder = ir.IRBuilder(entry.append_basic_block())
    callee = context.declare_function(module, result.fndesc)
    _, out = context.call_conv.call_function(builder, callee, returns, arguments, entry.args)
    builder.ret(out)
    with global_compiler_lock:
        library.add_ir_module(module)
        library.add_linking_library(result.library)
        library.finalize()
    return library


def _renamed(function: Callable[..., Any], names: dict[str, Any]) -> FunctionType:
    """The function, calling what has these names."""
    assert isinstance(function, FunctionType)
    return FunctionType(function.__code__, names, function.__name__)


def check(function: native.Function, trials: int = _TRIALS) -> None:
    """`Unusable` when the compiled code differs from its source on any of many batches, sound and damaged."""
    random = Random(0)
    for _ in range(trials):
        for body, count in _bodies(random):
            if both_say := differing(function, body, count):
                raise native.Unusable(f"the compiled code is wrong: {both_say}")


def differing(function: native.Function, body: bytes, count: int) -> str:
    """What the compiled code and its source say of some bytes, where they do not say the same."""
    said = []
    for call in (lambda data, state: function(_address(data), _address(state)), records.walk):
        state = array("q", [len(body), count, *[0] * (records.STATE_SIZE - 2)])
        said.append((call(bytearray(body), state), list(state)))
    return "" if said[0] == said[1] else f"{said} for {count} records in {body.hex()}"


def _address(buffer: Any) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer)) if len(buffer) else 0


def _bodies(random: Random) -> Iterator[tuple[bytes, int]]:
    if random.random() < _LIKE:
        count = random.randrange(60, 70)
        body = b"".join(_like_record(random, place) for place in range(count))
    else:
        count = random.randrange(1, 5)
        body = b"".join(_record(random, place) for place in range(count))
    yield body, count
    at = random.randrange(len(body))
    yield body[:at], count
    yield body[:at] + bytes([random.randrange(256)]) + body[at + 1 :], count
    yield random.randbytes(random.randrange(1, 40)), count


def _record(random: Random, place: int) -> bytes:
    fields = [b"\0", _varint(random.randrange(-(1 << 40), 1 << 40)), _varint(place)]
    fields += [_bytes(random) for _ in range(2)]
    headers = random.choice((0, 0, 1, 3))
    fields.append(_varint(headers))
    for _ in range(headers):
        fields += [_varint(1) + b"h", _bytes(random)]
    body = b"".join(fields)
    return _varint(len(body)) + body


def _like_record(random: Random, place: int) -> bytes:
    body = b"\0" + _varint(random.randrange(-70, 70)) + _varint(place) + b"\1\xc8\1" + bytes(100) + b"\0"
    return _varint(len(body)) + body


def _bytes(random: Random) -> bytes:
    size = random.choice((-1, 0, 1, 20, 100))
    return _varint(size) + random.randbytes(max(size, 0))


def _varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def main() -> int:
    os.nice(_NICENESS)
    try:
        code = compiled()
        check(native.run(code))
        native.store(code)
    except (native.Unusable, NotSelfContained, ImportError, OSError):
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
