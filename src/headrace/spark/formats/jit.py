"""How this package compiles its loops.

A function marked `jit` is called from Python, once per batch, with arrays. It hands on pointers to them (`pointer` of
`machine`), gathered in tuples: an array is reference-counted wherever it goes, which made the loops several times as
slow. Tables of rows are then indexed by hand, row times width plus column. Functions marked `inlined` become part of
their callers; `called` ones stay apart, where they are used for few values or in many places, as inlining takes time
to compile.
"""

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS: Final = {"nogil": True, "boundscheck": False, "error_model": "numpy", "no_cfunc_wrapper": True}


@cache
def _sources() -> str:
    return sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))).hexdigest()


class _Files(CompileResultCacheImpl):
    def get_filename_base(self, *of: Any) -> str:
        return f"{super().get_filename_base(*of)}-{_sources()[:16]}"


class _Cache(FunctionCache):
    """numba's own cache takes a loop for unchanged when only a function that it calls from another file changed, and
    fails to load what was kept of types that have been renamed since. So each state of the package has its own files.
    """

    _impl_class = _Files


def jit(function: Function) -> Function:
    """The function as machine code, kept on disk between processes where there is a place for it.

    Spark starts many short Python workers, so a compilation that is not kept is paid for by each of them.
    """
    made = numba.njit(**_OPTIONS)(function)
    try:
        _sources()
        made._cache = _Cache(function)
    except (RuntimeError, OSError):  # no directory that may be written, or no sources to tell versions apart
        pass
    return cast(Function, made)


def inlined(function: Function) -> Function:
    """The function as a part of the loops that call it."""
    return cast(Function, numba.njit(forceinline=True, no_cpython_wrapper=True, **_OPTIONS)(function))


def called(function: Function) -> Function:
    """The function as machine code that the loops call."""
    return cast(Function, numba.njit(no_cpython_wrapper=True, **_OPTIONS)(function))
