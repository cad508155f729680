"""Fetched bytes to Arrow columns.

The heads of the batches decide what is shown (`_plan`); the records themselves are decoded by compiled loops
(`_decoding`) straight into Arrow's buffers (`_fill`).
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import ClientError
from ._damage import UnreadableBatch
from .model import SCHEMA, SCHEMA_WITH_HEADERS

if TYPE_CHECKING:
    from ._plan import DecodePlan

log = logging.getLogger(__name__)


class FetchDecoder:
    """Fetched bytes of one partition to Arrow. One object serves all fetches of a partition, one at a time."""

    def __init__(
        self, topic: str, partition: int, *, with_headers: bool, check_crcs: bool = True, skip_unreadable: bool = False
    ) -> None:
        from ._fill import Filled  # compiles or loads the kernels, and numba with them
        from ._heads import extent
        from ._plan import plan_fetch

        self._fill = Filled
        self._plan = plan_fetch
        self._extent = extent
        self._skip_unreadable = skip_unreadable
        self._topic = topic
        self._partition = partition
        self._with_headers = with_headers
        self._check_crcs = check_crcs
        self._topics = _Repeated(pa.scalar(topic, pa.string()))
        self._partitions = _Repeated(pa.scalar(partition, pa.int32()))
        self._time_types = [_Repeated(pa.scalar(kind, pa.int32())) for kind in (0, 1)]

    def decode(
        self,
        records: bytes | bytearray | memoryview,
        start: int,
        end: int,
        aborted: Sequence[tuple[int, int]] = (),
    ) -> tuple[pa.RecordBatch | None, int]:
        """Records with start <= offset < end, None if there are none, and the offset to go on from.

        That offset is past every batch that was seen whole, also control, aborted and empty ones; it is `start` when
        not one whole batch was there, and at least `end` when there is nothing left to fetch. A batch cut short at
        the end of `records` is left for the next fetch.

        One call decodes about 64 MiB of records after decompression, or a million rows. When `records` hold more, the
        offset to go on from is before their end: call again with the same bytes from that offset on, until a call
        gives no rows or an offset at the end. Fetching anew from there is right as well, only slower.

        `aborted` is (producer_id, first_offset) of each aborted transaction as Fetch names them to a read_committed
        reader. Raises `ClientError` with code CORRUPT_MESSAGE for a batch that cannot be read, or passes over it with a
        warning, as it was made to.
        """
        try:
            plan = self._plan(memoryview(records), start, end, aborted, check_crcs=self._check_crcs)
            return self._rows_of(plan, start, end), plan.next_offset
        except UnreadableBatch as bad:
            first, last = self._extent(memoryview(records), bad.offset)
            if not self._skip_unreadable or last < 0:
                raise self._unreadable(bad, last) from bad
            reason = bad.reason
        if first > start:
            return self.decode(records, start, min(first, end), aborted)
        where = f"'{self._topic}' partition {self._partition}"
        log.warning("%s: offsets %d to %d were skipped: %s", where, first, last, reason)
        return None, last + 1

    def _unreadable(self, bad: UnreadableBatch, last: int) -> ClientError:
        where = f"'{self._topic}' partition {self._partition} cannot be read at offset {bad.offset}: {bad.reason}"
        if last < 0:
            return ClientError(where, bad.code)
        return ClientError(f"{where}; go on at offset {last + 1}, or set unreadable.batches=skip", bad.code)

    def _rows_of(self, plan: "DecodePlan", start: int, end: int) -> pa.RecordBatch | None:
        if not len(plan.batches):
            return None
        filled = self._fill(plan, start, end, with_headers=self._with_headers)
        rows = filled.rows
        if not rows:
            return None
        columns = [
            filled.keys(),
            filled.values(),
            self._topics.take(rows),
            self._partitions.take(rows),
            filled.offsets(),
            filled.times(),
            self._types_of_time(filled.append_times(), rows),
        ]
        if not self._with_headers:
            return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        return pa.RecordBatch.from_arrays([*columns, filled.headers()], schema=SCHEMA_WITH_HEADERS)

    def _types_of_time(self, kinds: npt.NDArray[np.bool_], rows: int) -> pa.Array:
        if len(kinds) == 1:
            return self._time_types[int(kinds[0])].take(rows)
        return pa.array(kinds.astype(np.int32))


class _Repeated:
    """A column of one value, made once and cut to length."""

    def __init__(self, value: pa.Scalar) -> None:
        self._value = value
        self._column = pa.repeat(value, 0)

    def take(self, rows: int) -> pa.Array:
        if rows > len(self._column):
            self._column = pa.repeat(self._value, rows)
        return self._column.slice(0, rows)
