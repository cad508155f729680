"""Bad records tried again: what can be decoded by now goes to the table of its topic, the rest stays.

A record is looked for in the table before it is added, by its partition and offset. So a run that was killed between
the two tables, or that ran twice, adds nothing twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from .archiving import UPSERT
from .errors import CommitConflict, LakeError
from .evolution import Incompatible, merged_schema
from .files import DataFile, spans_of
from .opening import Lake
from .records import OFFSET, PARTITION, TABLE_COLUMNS, to_records
from .tables.model import Change, LakeTable, Snapshot
from .writing import TableDecoder, TableTask, TopicResult, TopicWriter

_TRIES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Reprocessed:
    """What became of bad records. `error` is why the first one that is left is bad."""

    good: int
    left: int
    error: str = ""


def reprocess(lake: Lake, topic: str, decoder: TableDecoder | None) -> Reprocessed:
    """Try the bad records of a topic again."""
    table, bad_table = lake.table(topic), lake.bad_table(topic)
    for _ in range(_TRIES):
        snapshot, bad = table.snapshot(), bad_table.snapshot()
        if snapshot is None:
            raise LakeError(f"there is no table of topic '{topic}' in {lake.path}")
        if snapshot.state.mode == UPSERT:
            raise LakeError(
                f"{table.name} has one row for each key: an old record may have been replaced or deleted since, so bad "
                f"ones cannot be added later. Archive topic '{topic}' into a new table"
            )
        files = [] if bad is None else bad.files()
        if bad is None or not files:
            return Reprocessed(good=0, left=0)
        done = _tried(lake, topic, decoder, (table, snapshot), (bad_table, bad), files)
        if done is not None:
            return done
    raise LakeError(f"{table.name} was changed by others {_TRIES} times meanwhile; try again")


def _tried(
    lake: Lake,
    topic: str,
    decoder: TableDecoder | None,
    good: tuple[LakeTable, Snapshot],
    bad: tuple[LakeTable, Snapshot],
    files: Sequence[DataFile],
) -> Reprocessed | None:
    table, snapshot = good
    bad_table, bad_snapshot = bad
    writer = TopicWriter(
        TableTask(
            topic=topic,
            lake=lake,
            columns=snapshot.columns,
            partitioning=snapshot.partitioning,
            covered={},
            bad_covered={},
            decoder=decoder,
        )
    )
    for batch in bad_table.read(bad_snapshot, files, TABLE_COLUMNS.names):
        writer.write(to_records(_not_in(table, snapshot, batch), topic))
    result = writer.finish()
    if result.needs is not None:
        _evolve(table, snapshot, result.needs)
        return None
    try:
        if result.files:
            table.commit(snapshot, Change(state=snapshot.state, add=result.files))
        change = Change(state=bad_snapshot.state, add=result.bad_files, remove=files)
        bad_table.commit(bad_snapshot, change)
    except CommitConflict:
        _discard(table, bad_table, result)
        return None
    return Reprocessed(good=result.rows, left=result.bad, error=result.error)


def _evolve(table: LakeTable, snapshot: Snapshot, needs: pa.Schema) -> None:
    try:
        table.evolve(snapshot, merged_schema(snapshot.columns, needs))
    except (CommitConflict, Incompatible):
        return


def _discard(table: LakeTable, bad_table: LakeTable, result: TopicResult) -> None:
    """Remove the files that no table has got; of two commits the first may have been made."""
    snapshot = table.snapshot()
    known = set() if snapshot is None else {one.name for one in snapshot.files()}
    for one in result.files:
        if one.name not in known:
            table.place.remove(one.name)
    for one in result.bad_files:
        bad_table.place.remove(one.name)


def _not_in(table: LakeTable, snapshot: Snapshot, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows whose offsets a table has no row of."""
    spans = spans_of(batch)
    kept = np.ones(len(batch), np.bool_)
    offsets, partitions = batch.column(OFFSET).to_numpy(), batch.column(PARTITION).to_numpy()
    for partition, (first, last) in spans.items():
        there = _offsets_between(table, snapshot, partition, first, last)
        if len(there):
            kept &= ~((partitions == partition) & np.isin(offsets, there))
    return batch.filter(pa.array(kept))


def _offsets_between(table: LakeTable, snapshot: Snapshot, partition: int, first: int, last: int) -> np.ndarray:
    files = [
        one
        for one in snapshot.files()
        if not one.spans
        or (partition in one.spans and one.spans[partition][0] <= last and one.spans[partition][1] >= first)
    ]
    found = [np.empty(0, np.int64)]
    for batch in table.read(snapshot, files, [PARTITION, OFFSET]):
        offsets = batch.column(OFFSET).to_numpy()
        mine = batch.column(PARTITION).to_numpy() == partition
        found.append(offsets[mine & (offsets >= first) & (offsets <= last)])
    return np.concatenate(found)
