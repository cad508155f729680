"""Rows to be written: which columns count, which topic and which partition each row goes to."""

from collections.abc import Iterator
from itertools import count as count_from
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute

from headrace.config.names import nearest, shown

from ..errors import ClientError
from .hashing import partitions_of, split_by_partition

WRITTEN: Final = ("key", "value", "timestamp", "headers")
"""Columns that end up in records."""
ROUTING: Final = ("topic", "partition")
LEFT_OUT: Final = ("offset", "timestampType")
"""Columns that reading gives and writing has no use for, so that what was read can be written as it is."""

_INVALID: Final = "_INVALID_ARG"
_UNDECIDED: Final = -1


def batches_of(rows: Any) -> Iterator[pa.RecordBatch]:
    """The batches of a table, a batch, a reader, or anything that gives an Arrow stream (pandas, polars, DuckDB)."""
    if isinstance(rows, pa.RecordBatch):
        return iter([rows])
    if isinstance(rows, pa.Table):
        return iter(rows.to_batches())
    if isinstance(rows, pa.RecordBatchReader):
        return iter(rows)
    if hasattr(rows, "__arrow_c_stream__"):
        return iter(pa.RecordBatchReader.from_stream(rows))
    if type(rows).__module__.partition(".")[0] == "pandas":
        return iter(pa.Table.from_pandas(rows, preserve_index=False).to_batches())
    raise ClientError(
        f"rows of type {type(rows).__name__} cannot be written; give a pyarrow Table or RecordBatch, "
        "or a DataFrame of pandas or polars",
        _INVALID,
    )


def check_columns(rows: pa.RecordBatch) -> None:
    """`ClientError` for a column that means nothing here, and where there is no value."""
    known = (*WRITTEN, *ROUTING, *LEFT_OUT)
    for name in rows.schema.names:
        if name not in known:
            raise ClientError(
                f"a column '{shown(name)}' means nothing to a topic, which takes {', '.join(known[:6])}"
                f"{nearest(name, known)}",
                _INVALID,
            )
    if "value" not in rows.schema.names:
        raise ClientError("rows need a column 'value', binary or strings", _INVALID)


def by_topic(rows: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic: all of `topic` where that is given, else as the column says."""
    if topic is not None:
        yield topic, _without(rows, "topic")
        return
    if "topic" not in rows.schema.names:
        raise ClientError("rows need a topic: name one, or give a column 'topic'", _INVALID)
    column = rows.column("topic")
    if column.null_count:
        raise ClientError("a row has no topic: its column 'topic' is null", _INVALID)
    names = compute.unique(column).to_pylist()
    plain = _without(rows, "topic")
    for name in names:
        if not isinstance(name, str):
            raise ClientError(f"column 'topic' must hold strings, not {column.type}; cast it first", _INVALID)
        yield name, plain if len(names) == 1 else plain.filter(compute.equal(column, name))


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def pieces(rows: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """The rows in pieces of about that many bytes."""
    length = max(1, rows.num_rows * most_bytes // max(rows.nbytes, 1))
    for start in range(0, rows.num_rows, length):
        yield rows.slice(start, length)


class Router:
    """Chooses partitions for the rows of one topic.

    A partition that a row names counts; then its key's, by the rule of the Java client; rows without a key fill one
    partition for about `block_bytes`, then the next, so that batches are full and all partitions get the same.
    """

    def __init__(self, topic: str, block_bytes: int, first: int = 0) -> None:
        self._topic = topic
        self._block_bytes = block_bytes
        self._blocks = count_from(first)
        self._current = next(self._blocks)
        self._left = block_bytes

    def split(self, rows: pa.RecordBatch, partitions: int) -> dict[int, pa.RecordBatch]:
        """The rows of each partition that gets any, in their order; `ClientError` for a partition that is not there."""
        chosen = self._chosen(rows, partitions)
        plain = _only(rows, WRITTEN)
        if partitions == 1 and chosen is None:
            return {0: plain}
        if chosen is None:
            chosen = np.full(rows.num_rows, _UNDECIDED, np.int32)
        undecided = np.flatnonzero(chosen == _UNDECIDED)
        if len(undecided):
            chosen[undecided] = self._spread(len(undecided), rows.nbytes // max(rows.num_rows, 1) + 1, partitions)
        return split_by_partition(plain, chosen, partitions)

    def _chosen(self, rows: pa.RecordBatch, partitions: int) -> npt.NDArray[np.int32] | None:
        """What rows say themselves, by partition or key; None when they say nothing."""
        names = rows.schema.names
        chosen = None
        if "key" in names and partitions > 1 and rows.column("key").null_count < rows.num_rows:
            chosen = partitions_of(rows.column("key"), partitions, _UNDECIDED)
        if "partition" not in names:
            return chosen
        named = _named_partitions(rows.column("partition"))
        if named.max(initial=_UNDECIDED) >= partitions:
            raise ClientError(
                f"topic '{self._topic}' has {partitions} partitions; there is no partition {named.max()}", _INVALID
            )
        if chosen is None:
            return named
        return np.where(named >= 0, named, chosen).astype(np.int32)

    def _spread(self, rows: int, row_bytes: int, partitions: int) -> npt.NDArray[np.int32]:
        spread = np.empty(rows, np.int32)
        start = 0
        while start < rows:
            taken = min(rows - start, max(1, self._left // row_bytes))
            spread[start : start + taken] = self._current % partitions
            start += taken
            self._left -= taken * row_bytes
            if self._left <= 0:
                self._current, self._left = next(self._blocks), self._block_bytes
        return spread


def highest_partition(rows: pa.RecordBatch) -> int:
    """The highest partition that a row names; -1 when none does."""
    if "partition" not in rows.schema.names:
        return _UNDECIDED
    return int(_named_partitions(rows.column("partition")).max(initial=_UNDECIDED))


def _named_partitions(column: pa.Array) -> npt.NDArray[np.int32]:
    if pa.types.is_null(column.type):
        return np.full(len(column), _UNDECIDED, np.int32)
    if not pa.types.is_integer(column.type):
        raise ClientError(f"column 'partition' must hold whole numbers, not {column.type}; cast it first", _INVALID)
    try:
        plain = compute.fill_null(column, pa.scalar(_UNDECIDED, column.type)).cast(pa.int32())
    except pa.ArrowInvalid:
        raise ClientError("column 'partition' has a number that no partition can have", _INVALID) from None
    return np.maximum(np.asarray(plain, np.int32), _UNDECIDED)


def _without(rows: pa.RecordBatch, name: str) -> pa.RecordBatch:
    return _only(rows, [n for n in rows.schema.names if n != name])


def _only(rows: pa.RecordBatch, names: Any) -> pa.RecordBatch:
    return rows.select([name for name in rows.schema.names if name in names])
