"""How a loop over records is compiled: once for each machine, then loaded from numba's cache.

Each kernel has one explicit signature. It is compiled when its module is imported, so that no call is ever slow, and
two processes that compile for the first time at once write the same file, which numba moves into place whole.

numba does not notice a change in another file that a kernel's code came from: kernels share only `copy`, which stands
here and is part of their cache by its name alone. Change its name with its meaning.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

SOURCE = types.Array(types.uint8, 1, "C", readonly=True)
"""Bytes that are only read; a view of `read_only`."""
BYTES = types.uint8[::1]
INT32S = types.int32[::1]
INT64S = types.int64[::1]
TABLE = types.int64[:, ::1]


class Input(NamedTuple):
    """The buffers of an Arrow array of binary, or of the ends of lists, that a kernel reads.

    No offsets: the column is not there, every element is null. No bits: no element is null.
    """

    offsets: Any
    data: Any
    bits: Any
    first_bit: int


class Binary(NamedTuple):
    """The buffers of an Arrow array of binary that a kernel fills."""

    offsets: Any
    data: Any
    bits: Any
    """The validity bitmap, all ones at first."""


INPUT = types.NamedTuple((types.Array(types.int64, 1, "C", readonly=True), SOURCE, SOURCE, types.int64), Input)
BINARY = types.NamedTuple((INT32S, BYTES, BYTES), Binary)


def kernel(result: Any, *arguments: Any) -> Callable[[Kernel], Kernel]:
    """Compile a function for these types. It holds no GIL and checks no bounds: that is for its code to do."""

    def compiled(function: Kernel) -> Kernel:
        options = {"nogil": True, "boundscheck": False, "error_model": "numpy"}
        signature = result(*arguments)
        try:
            made: Kernel = njit(signature, cache=True, **options)(function)
        except RuntimeError:  # nowhere to keep the cache: neither beside the package nor in the user's directories
            made = njit(signature, **options)(function)
        return made

    return compiled


def helper(function: Kernel) -> Kernel:
    """A function that kernels of the same file call; it becomes part of their code."""
    made: Kernel = njit(nogil=True, boundscheck=False, error_model="numpy")(function)
    return made


@intrinsic  # type: ignore[untyped-decorator]
def copy(_: Any, target: Any, to: Any, source: Any, at: Any, size: Any) -> Any:  # noqa: ARG001 - seen as arguments
    """`target[to : to + size] = source[at : at + size]` for arrays of bytes, with no check whatsoever.

    A loop or a slice assignment comes out five to ten times slower.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        into, start, out_of, begin, length = arguments
        to_array = context.make_array(signature.args[0])(context, builder, into)
        from_array = context.make_array(signature.args[2])(context, builder, out_of)
        cgutils.raw_memcpy(
            builder, builder.gep(to_array.data, [start]), builder.gep(from_array.data, [begin]), length, 1
        )
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate
