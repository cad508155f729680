"""The buffers of Arrow arrays as kernels take them: by their addresses."""

from typing import Final, NamedTuple

from numba import types

from headrace.kernels.addresses import INT


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
