"""Changes merged by key: the last record of a key replaces its row, and one without a value deletes it.

Rows are replaced by writing the files anew that have them, and are committed together with the offsets they are from.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .files import DataFile
from .records import DELETED, KEY, OFFSET, PARTITION
from .state import TableState
from .tables.model import Change, LakeTable, Snapshot, new_files
from .tables.parquet import read_files
from .writing import last_of_keys


def merge_by_key(
    table: LakeTable, base: Snapshot, staged: Sequence[DataFile], state: TableState, file_bytes: int
) -> Snapshot:
    """Commit what staged files have, and then remove these."""
    changes = _changes(table, base, staged)
    if changes is None:
        return table.commit(base, Change(state=state))
    keys = changes.column(KEY)
    removed: list[DataFile] = []
    writer = new_files(table, base.columns, base.partitioning, file_bytes=file_bytes)
    try:
        for one in base.files():
            if _has_any(table, one, keys):
                removed.append(one)
                for batch in table.read(base, [one], base.columns.names):
                    writer.write(batch.filter(pc.invert(pc.is_in(batch.column(KEY), keys))))
        writer.write(changes.filter(pc.invert(changes.column(DELETED))).select(base.columns.names))
        added = writer.finish()
        snapshot = table.commit(base, Change(state=state, add=added, remove=removed))
    except BaseException:
        writer.discard()
        raise
    for one in staged:
        table.place.remove(one.name)
    return snapshot


def _changes(table: LakeTable, base: Snapshot, staged: Sequence[DataFile]) -> pa.RecordBatch | None:
    """The last change of each key. A key's records are in one partition, in their order, unless the number of
    partitions was changed; then the later partition counts.
    """
    columns = base.columns.append(pa.field(DELETED, pa.bool_()))
    batches = list(read_files(table.place, columns, staged, columns.names))
    if not batches:
        return None
    together = pa.Table.from_batches(batches).sort_by([(PARTITION, "ascending"), (OFFSET, "ascending")])
    return last_of_keys(together.combine_chunks().to_batches()[0])


def _has_any(table: LakeTable, one: DataFile, keys: pa.Array) -> bool:
    """Whether a file has a row of one of the keys, by its column of keys alone."""
    low, high = (pc.min_max(keys).as_py()[end] for end in ("min", "max"))
    with table.place.open(one.name) as source, pq.ParquetFile(source) as file:
        number = file.schema_arrow.names.index(KEY)
        column = next(n for n in range(file.metadata.num_columns) if file.schema.column(n).path == KEY)
        assert number >= 0
        for group in range(file.metadata.num_row_groups):
            found = file.metadata.row_group(group).column(column).statistics
            if found is not None and found.has_min_max and (found.max < low or found.min > high):
                continue
            if pc.any(pc.is_in(file.read_row_group(group, [KEY]).column(KEY), pa.array(keys))).as_py():
                return True
    return False
