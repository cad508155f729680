"""Tables of every format: what is committed is there, what is not is not, and of two that commit at once one fails."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.lake.errors import CommitConflict
from headrace.lake.evolution import merged_schema
from headrace.lake.files import BY_TIME, DataFile
from headrace.lake.opening import FORMATS, Lake, format_of
from headrace.lake.records import TABLE_COLUMNS
from headrace.lake.state import TableState
from headrace.lake.tables.model import Change, LakeTable, Snapshot, new_files

DAY = 86_400_000_000
COLUMNS = pa.schema([*TABLE_COLUMNS, pa.field("n", pa.int64())])


def rows(offsets: Sequence[int], schema: pa.Schema = COLUMNS, **more: Any) -> pa.RecordBatch:
    fields = {
        "_key": [f"k{one}".encode() for one in offsets],
        "_value": [f"v{one}".encode() for one in offsets],
        "_partition": [0 for _ in offsets],
        "_offset": list(offsets),
        "_timestamp": [one * DAY // 4 for one in offsets],
        "_timestamp_type": [0 for _ in offsets],
        "_headers": [[{"key": "h", "value": b"x"}] for _ in offsets],
        "n": [one * 10 for one in offsets],
        **more,
    }
    return pa.record_batch([pa.array(fields[one.name], one.type) for one in schema], schema=schema)


def written(table: LakeTable, snapshot: Snapshot, batch: pa.RecordBatch) -> list[DataFile]:
    writer = new_files(table, snapshot.columns, snapshot.partitioning)
    writer.write(batch)
    return writer.finish()


def content(table: LakeTable, columns: Sequence[str] = ("_offset", "n")) -> list[dict[str, Any]]:
    snapshot = table.snapshot()
    assert snapshot is not None
    found = [row for batch in table.read(snapshot, snapshot.files(), columns) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: row["_offset"])


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(path=str(tmp_path / "lake"), format=request.param)


def test_rows_and_the_state_of_a_commit_are_there_together(lake: Lake) -> None:
    table = lake.table("orders")
    assert table.snapshot() is None
    snapshot = table.create(COLUMNS, BY_TIME["day"], TableState(topic="orders"))
    assert content(table) == []
    add = written(table, snapshot, rows(range(10)))
    assert len(add) == 3
    state = snapshot.state.adding({0: [(0, 10)]})
    snapshot = table.commit(snapshot, Change(state=state, add=add))
    other = lake.table("orders")
    found = other.snapshot()
    assert found is not None
    assert found.state == state
    assert content(other) == [{"_offset": one, "n": one * 10} for one in range(10)]
    assert [one.name for one in found.partitioning] == ["_day"]
    assert format_of(lake.path, "orders") == lake.format


def test_of_two_commits_to_one_version_one_is_refused(lake: Lake) -> None:
    table, other = lake.table("orders"), lake.table("orders")
    first = table.create(COLUMNS, (), TableState(topic="orders"))
    second = other.snapshot()
    assert second is not None
    state = first.state.adding({0: [(0, 5)]})
    table.commit(first, Change(state=state, add=written(table, first, rows(range(5)))))
    add = written(other, second, rows(range(5)))
    with pytest.raises(CommitConflict):
        other.commit(second, Change(state=state, add=add))
    assert [row["_offset"] for row in content(table)] == list(range(5))
    third = other.snapshot()
    assert third is not None
    assert third.state == state


def test_a_commit_of_state_alone_is_refused_too_after_another(lake: Lake) -> None:
    table, other = lake.table("orders"), lake.table("orders")
    first = table.create(COLUMNS, (), TableState(topic="orders"))
    second = other.snapshot()
    assert second is not None
    table.commit(first, Change(state=first.state.adding({0: [(0, 5)]})))
    with pytest.raises(CommitConflict):
        other.commit(second, Change(state=first.state.adding({0: [(5, 9)]})))


def test_files_are_replaced_in_one_commit(lake: Lake) -> None:
    table = lake.table("orders")
    snapshot = table.create(COLUMNS, (), TableState(topic="orders"))
    for start in (0, 5):
        add = written(table, snapshot, rows(range(start, start + 5)))
        snapshot = table.commit(snapshot, Change(state=snapshot.state.adding({0: [(start, start + 5)]}), add=add))
    add = written(table, snapshot, rows(range(10)))
    before = snapshot.files()
    snapshot = table.commit(snapshot, Change(state=snapshot.state, add=add, remove=before, is_rewrite=True))
    assert len(snapshot.files()) == 1
    assert [row["_offset"] for row in content(table)] == list(range(10))
    assert table.sweep(time.time() + 60 if lake.format != "delta" else time.time()) >= (
        0 if lake.format == "delta" else 2
    )
    assert [row["_offset"] for row in content(table)] == list(range(10))


def test_a_table_gets_columns_and_old_rows_have_nulls_there(lake: Lake) -> None:
    table = lake.table("orders")
    snapshot = table.create(COLUMNS, BY_TIME["day"], TableState(topic="orders"))
    add = written(table, snapshot, rows([1]))
    snapshot = table.commit(snapshot, Change(state=snapshot.state.adding({0: [(0, 2)]}), add=add))
    more = pa.schema([pa.field("n", pa.int64()), pa.field("inner", pa.struct([pa.field("a", pa.string())]))])
    wider = merged_schema(snapshot.columns, more)
    snapshot = table.evolve(snapshot, wider)
    assert snapshot.columns.field("inner").type == pa.struct([pa.field("a", pa.string())])
    assert snapshot.state.covered(0) == ((0, 2),)
    add = written(table, snapshot, rows([2], wider, inner=[{"a": "x"}]))
    snapshot = table.commit(snapshot, Change(state=snapshot.state.adding({0: [(2, 3)]}), add=add))
    assert content(table, ("_offset", "inner")) == [{"_offset": 1, "inner": None}, {"_offset": 2, "inner": {"a": "x"}}]
    deeper = merged_schema(
        snapshot.columns, pa.schema([pa.field("inner", pa.struct([pa.field("b", pa.list_(pa.int32()))]))])
    )
    snapshot = table.evolve(snapshot, deeper)
    assert content(table, ("_offset", "inner"))[1]["inner"] == {"a": "x", "b": None}


def test_many_commits_are_read_again_from_the_start(lake: Lake) -> None:
    table = lake.table("orders")
    snapshot = table.create(COLUMNS, (), TableState(topic="orders"))
    for start in range(25):
        add = written(table, snapshot, rows([start]))
        snapshot = table.commit(snapshot, Change(state=snapshot.state.adding({0: [(start, start + 1)]}), add=add))
    found = lake.table("orders").snapshot()
    assert found is not None
    assert found.state.covered(0) == ((0, 25),)
    assert [row["_offset"] for row in content(lake.table("orders"))] == list(range(25))
