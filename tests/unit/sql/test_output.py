"""Answers as text and files."""

import csv
import io
import json
import math
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.sql.errors import SqlError
from headrace.sql.output import format_for, opened, rows_of, writer_for

ROWS: dict[str, Any] = {
    "i": pa.array([1, None], pa.int64()),
    "f": pa.array([math.nan, 1.5]),
    "d": pa.array([Decimal("12345678901234567890.10"), None], pa.decimal128(38, 2)),
    "t": pa.array(["wörld\n\x1b[31m", None]),
    "b": pa.array([b"\xff", b"x"]),
    "m": pa.array([0, 300_000_000_000_000_000], pa.timestamp("us", "UTC")),
    "y": pa.array([date(2024, 1, 5), None]),
    "s": pa.array([{"x": [1, 2]}, None]),
    "k": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
}


def written(format_: str, *batches: pa.RecordBatch, **options: Any) -> str:
    out = io.BytesIO()
    writer = writer_for(format_, batches[0].schema, out, **options)
    for batch in batches:
        writer.write(batch)
    writer.close()
    return out.getvalue().decode()


def test_json_has_every_digit_and_what_it_lacks_as_text() -> None:
    first, second = written("json", pa.record_batch(ROWS)).splitlines()
    assert '"d":12345678901234567890.10,' in first
    found = json.loads(first)
    assert found["f"] == "NaN"
    assert found["b"] == {"base64": "/w=="}
    assert found["m"] == "1970-01-01 00:00:00.000000Z"
    assert found["y"] == "2024-01-05"
    assert found["s"] == {"x": [1, 2]}
    assert found["k"] == {"a": 1}
    assert json.loads(second)["m"].startswith("11476-")  # later than Python's last year


def test_csv_is_read_back_by_its_rules() -> None:
    header, first, second = csv.reader(io.StringIO(written("csv", pa.record_batch(ROWS)), newline=""))
    assert header == list(ROWS)
    assert first[:4] == ["1", "NaN", "12345678901234567890.10", "wörld\n\x1b[31m"]
    assert first[7] == '{"x":[1,2]}'
    assert second[:4] == ["", "1.5", "", ""]


def test_a_table_has_one_line_a_row_and_nothing_that_a_terminal_obeys() -> None:
    text = written("table", pa.record_batch(ROWS), is_terminal=True)
    assert len(text.splitlines()) == 4
    assert "\x1b" not in text
    assert "wörld\\n\\x1b[31m" in text


def test_columns_of_a_table_are_aligned_and_cut_on_terminals_alone() -> None:
    rows = pa.record_batch({"n": [1, 100], "text": ["x" * 200, "日本"]})
    whole = written("table", rows).splitlines()
    assert whole[0] == "  n  text"
    assert whole[2] == "  1  " + "x" * 200
    assert written("table", rows, is_terminal=True).splitlines()[2].endswith("x…")


def test_rows_are_shown_before_a_pause() -> None:
    out = io.BytesIO()
    rows = pa.record_batch({"a": [1]})
    writer = writer_for("table", rows.schema, out)
    writer.write(rows)
    assert out.getvalue() == b""
    writer.write(rows.slice(0, 0))
    assert out.getvalue() == b"a\n-\n1\n"


def test_parquet_is_read_back_as_it_was(tmp_path: Path) -> None:
    rows = pa.record_batch(ROWS)
    with opened(tmp_path / "a.parquet", io.BytesIO()) as out:
        writer = writer_for("parquet", rows.schema, out)
        writer.write(rows)
        writer.close()
    assert pq.read_table(tmp_path / "a.parquet").to_batches()[0].equals(rows) is False  # NaN is not equal to itself
    assert pq.read_table(tmp_path / "a.parquet").drop_columns("f").equals(pa.table(ROWS).drop_columns("f"))


def test_a_file_is_there_once_it_is_whole(tmp_path: Path) -> None:
    place = tmp_path / "a.csv"
    place.write_text("before")

    def fail_half_way() -> None:
        with opened(place, io.BytesIO()) as out:
            out.write(b"half")
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fail_half_way()
    assert place.read_text() == "before"
    assert list(tmp_path.iterdir()) == [place]


def test_the_format_is_that_of_the_file() -> None:
    assert format_for(None, Path("a.csv")) == "csv"
    assert format_for("json", Path("a.csv")) == "json"
    assert format_for(None, None) == "table"
    with pytest.raises(SqlError, match="table, json, csv, parquet"):
        format_for("xml", None)


def test_days_within_values_that_python_has_not_are_text() -> None:
    far = pa.array([-5_000_000], pa.int32()).cast(pa.date32())
    columns = {
        "struct": pa.StructArray.from_arrays([far], names=["day"]),
        "list": pa.ListArray.from_arrays([0, 1], far),
        "map": pa.MapArray.from_arrays([0, 1], pa.array(["a"]), far),
    }
    (row,) = rows_of(pa.RecordBatch.from_pydict(columns))
    (text,) = far.cast(pa.string()).to_pylist()
    assert row == ({"day": text}, [text], [("a", text)])
