"""Tables that others made are gone on with: their rows stay, records come, and what cannot be is said beforehand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.lake import reading
from headrace.lake.archiving import UPSERT, Archive, ArchiveOptions
from headrace.lake.compacting import compact
from headrace.lake.errors import LakeError
from headrace.lake.opening import Lake
from headrace.lake.values import decoder_for_topic
from tests.unit.lake.test_archiving import Record, batch_of, by_workers

deltalake = pytest.importorskip("deltalake")

OWN = pa.table({"n": pa.array([1, 2], pa.int64()), "note": ["a", "b"]})
ROWS: list[Record] = [(0, offset, b"k%d" % offset, b'{"n": %d, "more": "x"}' % (10 + offset)) for offset in range(5)]


def delta(lake: Lake, table: pa.Table, **options: Any) -> None:
    deltalake.write_deltalake(f"{lake.path}/orders", table, **options)


def iceberg(lake: Lake, table: pa.Table, *, partitioned: str = "", location: str = "") -> None:
    catalog = lake._catalog({})
    catalog.create_namespace_if_not_exists("headrace")
    place = location or f"file://{lake.path}/orders"
    made = catalog.create_table("headrace.orders", schema=table.schema, location=place)
    if partitioned:
        with made.update_spec() as spec:
            spec.add_identity(partitioned)
    if len(table):
        made.append(table)


MAKERS: dict[str, Callable[..., None]] = {"delta": delta, "iceberg": iceberg}


@pytest.fixture(params=MAKERS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(path=str(tmp_path / "lake"), format=request.param)


def archived(lake: Lake, rows: list[Record] = ROWS, **options: Any) -> tuple[int, int]:
    archive = Archive(
        options=ArchiveOptions(lake=lake, **options),
        decoders=lambda topic: decoder_for_topic(topic, {"format": "json", "schema": "n BIGINT, more STRING"}),
    )
    (added,) = archive.add([batch_of(rows)], by_workers(rows))
    return added.rows, added.bad


def seen(lake: Lake) -> list[dict[str, Any]]:
    """The table as its own library reads it."""
    if lake.format == "delta":
        found = deltalake.DeltaTable(f"{lake.path}/orders").to_pyarrow_table()
    else:
        found = lake._catalog({}).load_table("headrace.orders").scan().to_arrow()
    names = ["n", "note", "more", "_offset", "_value"]
    return sorted(found.select(names).to_pylist(), key=lambda row: row["n"])


EXPECTED = [
    *({"n": n, "note": note, "more": None, "_offset": None, "_value": None} for n, note in ((1, "a"), (2, "b"))),
    *({"n": 10 + one, "note": None, "more": "x", "_offset": one, "_value": ROWS[one][3]} for one in range(5)),
]


def test_records_come_to_the_rows_that_are_there(lake: Lake) -> None:
    MAKERS[lake.format](lake, OWN)
    assert archived(lake) == (5, 0)
    assert seen(lake) == EXPECTED
    more = [(0, 5, b"k", b'{"n": 99}')]
    assert archived(lake, [*ROWS, *more]) == (1, 0)
    assert [row["n"] for row in seen(lake)] == [1, 2, *range(10, 15), 99]
    compact(lake.table("orders"))
    assert [row["n"] for row in seen(lake)] == [1, 2, *range(10, 15), 99]


def test_records_are_read_back_from_among_the_rows_of_others(lake: Lake) -> None:
    MAKERS[lake.format](lake, OWN)
    archived(lake)
    compact(lake.table("orders"))
    found = reading.archived(lake, "orders", as_log=False)
    assert found.partitions() == [0]
    batches = list(found.records(0, (1, 4)))
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == [1, 2, 3]


def test_a_column_that_was_renamed_keeps_its_values_when_files_are_put_together(tmp_path: Path) -> None:
    lake = Lake(path=str(tmp_path / "lake"), format="iceberg")
    iceberg(lake, OWN.rename_columns(["n", "old"]))
    with lake._catalog({}).load_table("headrace.orders").update_schema() as update:
        update.rename_column("old", "note")
    assert archived(lake) == (5, 0)
    compact(lake.table("orders"))
    assert seen(lake) == EXPECTED


def test_rows_of_both_are_in_the_partitions_of_the_table(lake: Lake) -> None:
    own = OWN.append_column("_partition", pa.array([0, 0], pa.int32()))
    if lake.format == "delta":
        delta(lake, own, partition_by=["_partition"])
    else:
        iceberg(lake, own, partitioned="_partition")
    assert archived(lake) == (5, 0)
    assert seen(lake) == EXPECTED


def test_a_field_that_the_column_cannot_hold_is_a_bad_record(lake: Lake) -> None:
    MAKERS[lake.format](lake, pa.table({"n": ["one"]}))
    assert archived(lake) == (0, 5)


def test_a_column_of_records_of_another_type_is_said_before_anything_is_written(lake: Lake) -> None:
    MAKERS[lake.format](lake, OWN.append_column("_offset", pa.array(["x", "y"])))
    with pytest.raises(LakeError, match=r"cannot have records: field '_offset' is BIGINT, and the table has STRING"):
        archived(lake)
    assert len(list(Path(lake.path).rglob("*.parquet"))) == 1


def test_a_column_that_must_have_a_value_is_said_before_anything_is_written(lake: Lake) -> None:
    must = OWN.cast(pa.schema([pa.field("n", pa.int64()), pa.field("note", pa.string(), nullable=False)]))
    MAKERS[lake.format](lake, must)
    with pytest.raises(LakeError, match="column 'note' may not be null, and a record may lack it"):
        archived(lake)
    assert len(list(Path(lake.path).rglob("*.parquet"))) == 1


def test_partitions_by_a_column_that_records_lack_are_refused(lake: Lake) -> None:
    if lake.format == "delta":
        delta(lake, OWN, partition_by=["note"])
    else:
        iceberg(lake, OWN, partitioned="note")
    with pytest.raises(LakeError, match="is partitioned by 'note', which records do not have"):
        archived(lake)


def test_one_row_for_each_key_needs_a_table_of_its_own(lake: Lake) -> None:
    MAKERS[lake.format](lake, OWN)
    with pytest.raises(LakeError, match=r"archive with --upsert into a new table"):
        archived(lake, mode=UPSERT)


def test_a_delta_table_with_rules_of_its_own_is_refused(tmp_path: Path) -> None:
    lake = Lake(path=str(tmp_path / "lake"), format="delta")
    delta(lake, OWN)
    deltalake.DeltaTable(f"{lake.path}/orders").alter.add_constraint({"small": "n < 5"})
    with pytest.raises(LakeError, match="it has the constraint 'small', which is not checked here"):
        archived(lake)


def test_a_plain_directory_of_parquet_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    lake = Lake(path=str(tmp_path / "lake"), format="parquet")
    (tmp_path / "lake" / "orders").mkdir(parents=True)
    pq.write_table(OWN, tmp_path / "lake" / "orders" / "part-0.parquet")
    with pytest.raises(LakeError, match=r"part-0.parquet, that belong to no table of Headrace: give another directory"):
        archived(lake)
    assert [one.name for one in (tmp_path / "lake" / "orders").rglob("*")] == ["part-0.parquet"]


def test_an_iceberg_table_elsewhere_is_refused(tmp_path: Path) -> None:
    lake = Lake(path=str(tmp_path / "lake"), format="iceberg")
    iceberg(lake, OWN, location=f"file://{tmp_path}/elsewhere")
    with pytest.raises(
        LakeError, match=r"its location is file://.*/elsewhere, and files of an archive go to .*/lake/or"
    ):
        archived(lake)


def test_a_delta_table_whose_columns_have_other_names_in_files_is_refused(tmp_path: Path) -> None:
    lake = Lake(path=str(tmp_path / "lake"), format="delta")
    delta(lake, OWN, configuration={"delta.columnMapping.mode": "name"})
    with pytest.raises(LakeError, match=r"delta.columnMapping.mode"):
        archived(lake)
