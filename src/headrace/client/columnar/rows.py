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
from .model import HEADERS

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


def checked(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows in types that can be sorted; `ClientError` for a column that means nothing here, or without a value."""
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
    return _without_views(rows)


def _without_views(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Polars and DuckDB give views, pandas dictionaries, which Arrow itself can neither reorder nor join."""
    columns = [_without_view(column) for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def _without_view(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_string_view(kind):
        return column.cast(pa.large_string())
    if pa.types.is_binary_view(kind):
        return column.cast(pa.large_binary())
    if _is_list(kind) and pa.types.is_struct(kind.value_type) and kind != HEADERS:
        try:
            return column.cast(HEADERS)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            return column
    return column


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


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
    """The rows in pieces of about the same size, each of about that many bytes at most."""
    count = -(-rows.nbytes // most_bytes) or 1
    length = max(1, -(-rows.num_rows // count))
    for start in range(0, rows.num_rows, length):
        yield rows.slice(start, length)


class RowRouter:
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

    def split(self, rows: pa.RecordBatch, partitions: int) -> list[tuple[int, pa.RecordBatch]]:
        """The rows of each partition, in their order; `ClientError` for a partition that is not there."""
        chosen = self._chosen(rows, partitions)
        plain = _only(rows, WRITTEN)
        if chosen is None:
            return [(number, plain.slice(start, length)) for number, start, length in self._runs(rows, partitions)]
        undecided = np.flatnonzero(chosen == _UNDECIDED)
        if len(undecided):
            for number, start, length in self._runs(rows.slice(0, len(undecided)), partitions):
                chosen[undecided[start : start + length]] = number
        return list(split_by_partition(plain, chosen, partitions).items())

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

    def _runs(self, rows: pa.RecordBatch, partitions: int) -> Iterator[tuple[int, int, int]]:
        """Partition, first row and number of rows of each block of rows that may go anywhere."""
        if partitions == 1:
            yield 0, 0, rows.num_rows
            return
        row_bytes = rows.nbytes // max(rows.num_rows, 1) + 1
        start = 0
        while start < rows.num_rows:
            taken = min(rows.num_rows - start, max(1, self._left // row_bytes))
            yield self._current % partitions, start, taken
            start += taken
            self._left -= taken * row_bytes
            if self._left <= 0:
                self._current, self._left = next(self._blocks), self._block_bytes


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
        plain = compute.fill_null(column.cast(pa.int64()), _UNDECIDED).cast(pa.int32())
    except pa.ArrowInvalid:
        raise ClientError("column 'partition' has a number that no partition can have", _INVALID) from None
    named = np.asarray(plain, np.int32)
    if named.min(initial=_UNDECIDED) < _UNDECIDED:
        raise ClientError(f"column 'partition' has {named.min()}, which no partition can be", _INVALID)
    return named


def _without(rows: pa.RecordBatch, name: str) -> pa.RecordBatch:
    return _only(rows, [n for n in rows.schema.names if n != name])


def _only(rows: pa.RecordBatch, names: Any) -> pa.RecordBatch:
    return rows.select([name for name in rows.schema.names if name in names])
