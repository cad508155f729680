"""How loops are compiled in a process that can afford numba: once for each machine, then loaded from a cache.

A function marked `jit` is called from Python, once per batch, with arrays, and compiled when it is first called.
`kernel` has one explicit signature and is compiled when its module is imported, so that no call is ever slow. Functions
marked `inlined` become part of their callers; `called` ones stay apart, where they are used for few values or in many
places, as inlining takes time to compile. All run without the GIL.
"""

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache

from .bounds import CHECKED

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS: Final = {"nogil": True, "boundscheck": CHECKED, "error_model": "numpy", "no_cfunc_wrapper": True}


@cache
def _sources(directory: Path) -> str:
    """The state of a package that has loops, and of this one."""
    files = [path for each in (Path(__file__).parent, directory) for path in sorted(each.glob("*.py"))]
    return sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


class _Files(CompileResultCacheImpl):  # type: ignore[misc]
    def __init__(self, function: Any) -> None:
        self._state = _sources(Path(function.__code__.co_filename).parent)[:16] + ("-checked" if CHECKED else "")
        super().__init__(function)

    def get_filename_base(self, *of: Any) -> str:
        return f"{super().get_filename_base(*of)}-{self._state}"


class _Cache(FunctionCache):  # type: ignore[misc]
    """numba's own cache takes a loop for unchanged when only a function that it calls from another file changed, and
    fails to load what was kept of types that have been renamed since. So each state of a package has its own files.
    Two processes that compile for the first time at once write the same file, which numba moves into place whole.
    """

    _impl_class = _Files


def jit(function: Function) -> Function:
    """The function as machine code, kept on disk between processes where there is a place for it.

    Spark starts many short Python workers, so a compilation that is not kept is paid for by each of them.
    """
    return cast(Function, _cached(function))


def kernel(result: Any, *arguments: Any) -> Callable[[Function], Function]:
    """The function as machine code for these types alone, compiled or loaded at once."""

    def compiled(function: Function) -> Function:
        signature = result(*arguments)
        made = _cached(function)
        try:
            made.compile(signature)
        except Exception:  # a cache that cannot be read or written: numba raises whatever it meets
            made = numba.njit(**_OPTIONS)(function)
            made.compile(signature)
        made.disable_compile()
        return cast(Function, made)

    return compiled


def _cached(function: Callable[..., Any]) -> Any:
    made = numba.njit(**_OPTIONS)(function)
    try:
        made._cache = _Cache(function)
    except (RuntimeError, OSError):  # no directory that may be written, or no sources to tell versions apart
        pass
    return made


def inlined(function: Function) -> Function:
    """The function as a part of the loops that call it."""
    return cast(Function, numba.njit(forceinline=True, no_cpython_wrapper=True, **_OPTIONS)(function))


def called(function: Function) -> Function:
    """The function as machine code that the loops call."""
    return cast(Function, numba.njit(no_cpython_wrapper=True, **_OPTIONS)(function))
