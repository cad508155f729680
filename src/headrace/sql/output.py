"""Answers as tables, JSON, CSV and Parquet, written as their rows come."""

import base64
import csv
import io
import json
import math
import os
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import pyarrow as pa

from .errors import SqlError

TABLE: Final = "table"
JSON: Final = "json"
CSV: Final = "csv"
PARQUET: Final = "parquet"
FORMATS: Final = (TABLE, JSON, CSV, PARQUET)
_BY_SUFFIX: Final = {
    ".json": JSON,
    ".jsonl": JSON,
    ".ndjson": JSON,
    ".csv": CSV,
    ".parquet": PARQUET,
    ".pq": PARQUET,
    ".txt": TABLE,
}
_MEASURED: Final = 1000
"""Rows that the widths of a table's columns are measured by; what comes after is cut to them."""
_WIDEST: Final = 80


class Writer(Protocol):
    """Writes rows."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch; an empty one stands for a pause, before which all is to be seen."""

    def close(self) -> None:
        """Write what is left."""


def format_for(chosen: str | None, output: Path | None) -> str:
    """The format to write: as chosen, else by the name of the file, else a table."""
    if chosen is not None:
        if chosen not in FORMATS:
            raise SqlError(f"--format {chosen} is not known; use {', '.join(FORMATS)}")
        return chosen
    return TABLE if output is None else _BY_SUFFIX.get(output.suffix.lower(), JSON)


def writer_for(format_: str, schema: pa.Schema, out: BinaryIO, *, is_terminal: bool = False) -> Writer:
    """What writes rows of a schema."""
    if format_ == JSON:
        return _Lines(schema, out)
    if format_ == CSV:
        return _Csv(schema, out)
    if format_ == PARQUET:
        return _Parquet(schema, out)
    return _Text(schema, out, is_terminal=is_terminal)


@contextmanager
def opened(output: Path | None, stdout: BinaryIO) -> Iterator[BinaryIO]:
    """Where to write: a file, which is there under its name once it is whole, or stdout."""
    if output is None:
        yield stdout
        stdout.flush()
        return
    if not output.parent.is_dir():
        raise SqlError(f"--output {output}: there is no directory {output.parent}")
    if output.exists() and not output.is_file():  # such as /dev/stdout
        with output.open("wb") as file:
            yield file
        return
    partial = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)


def rows_of(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """The rows of a batch as Python has their values; moments and days as text, as Python has not all of them."""
    columns = [_values(column) for column in batch.columns]
    return zip(*columns, strict=True) if columns else iter(())


def _values(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        column = column.cast(pa.string())
    try:
        values: list[Any] = column.to_pylist()
        return values
    except (ValueError, OverflowError):  # a moment within a value that Python has not
        return column.cast(_with_text_for_times(column.type)).to_pylist()  # type: ignore[no-any-return]


def _with_text_for_times(kind: pa.DataType) -> pa.DataType:
    """A type with text in the place of moments and days, in any depth."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([one.with_type(_with_text_for_times(one.type)) for one in kind])
    if pa.types.is_map(kind):
        return pa.map_(_with_text_for_times(kind.key_type), _with_text_for_times(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_text_for_times(kind.value_type)))
    return kind


def json_text(value: Any) -> str:
    """A value as JSON: numbers with all their digits, bytes as text or base64, what JSON has not as text."""
    match value:
        case None:
            return "null"
        case bool() | int():
            return json.dumps(value)
        case float():
            return json.dumps(value) if math.isfinite(value) else json.dumps(_odd(value))
        case Decimal():
            return format(value, "f") if value.is_finite() else json.dumps(str(value))
        case str():
            return json.dumps(value, ensure_ascii=False)
        case bytes():
            return _bytes_json(value)
        case dict():
            return "{" + ",".join(f"{json_text(str(key))}:{json_text(one)}" for key, one in value.items()) + "}"
        case list() if value and all(isinstance(one, tuple) and len(one) == 2 for one in value):
            return "{" + ",".join(f"{json_text(_plain(key))}:{json_text(one)}" for key, one in value) + "}"
        case list() | tuple():
            return "[" + ",".join(map(json_text, value)) + "]"
    return json.dumps(_plain(value), ensure_ascii=False)


def _odd(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _bytes_json(value: bytes) -> str:
    try:
        return json.dumps(value.decode(), ensure_ascii=False)
    except UnicodeDecodeError:
        return json.dumps({"base64": base64.b64encode(value).decode()})


def _plain(value: Any) -> str:
    """A value as text."""
    match value:
        case str():
            return value
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return str(value)
    return str(value)


def cell(value: Any) -> str:
    """A value in a cell: text as it is, everything else as JSON; nothing for null."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return "base64:" + base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return _odd(value)
    if isinstance(value, (bool, int, float, Decimal, dict, list, tuple)):
        return json_text(value)
    return _plain(value)


class _Lines:
    """One object of JSON in each line."""

    def __init__(self, schema: pa.Schema, out: BinaryIO) -> None:
        self._names = [json.dumps(name, ensure_ascii=False) for name in schema.names]
        self._out = out

    def write(self, batch: pa.RecordBatch) -> None:
        for row in rows_of(batch):
            fields = (f"{name}:{json_text(value)}" for name, value in zip(self._names, row, strict=True))
            self._out.write(("{" + ",".join(fields) + "}\n").encode("utf-8", "backslashreplace"))
        if not len(batch):
            self._out.flush()

    def close(self) -> None:
        self._out.flush()


class _Csv:
    """A header, then rows; null is an empty cell."""

    def __init__(self, schema: pa.Schema, out: BinaryIO) -> None:
        self._out = out
        self._write([schema.names])

    def _write(self, rows: Sequence[Sequence[Any]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self._out.write(text.getvalue().encode("utf-8", "backslashreplace"))

    def write(self, batch: pa.RecordBatch) -> None:
        self._write([[cell(value) for value in row] for row in rows_of(batch)])
        if not len(batch):
            self._out.flush()

    def close(self) -> None:
        self._out.flush()


class _Parquet:
    """A file of Parquet, a row group for each batch."""

    def __init__(self, schema: pa.Schema, out: BinaryIO) -> None:
        import pyarrow.parquet as pq

        self._writer = pq.ParquetWriter(out, schema, compression="zstd")

    def write(self, batch: pa.RecordBatch) -> None:
        if len(batch):
            self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()


class _Text:
    """Aligned columns. A terminal is shown nothing but text, and lines that fit together."""

    def __init__(self, schema: pa.Schema, out: BinaryIO, *, is_terminal: bool) -> None:
        self._names = [_line(name) for name in schema.names]
        self._right = [pa.types.is_integer(one) or pa.types.is_floating(one) for one in schema.types]
        self._out = out
        self._is_terminal = is_terminal
        self._held: list[list[str]] = []
        self._widths: list[int] | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        for row in rows_of(batch):
            self._held.append([_line(cell(value)) for value in row])
            if len(self._held) >= _MEASURED:
                self._show()
        if not len(batch) and (self._held or self._widths is None):
            self._show()

    def close(self) -> None:
        self._show()

    def _show(self) -> None:
        if self._widths is None:
            self._widths = [
                max([_width(name), *(_width(row[place]) for row in self._held)])
                for place, name in enumerate(self._names)
            ]
            if self._is_terminal:
                self._widths = [min(width, max(_WIDEST, 1)) for width in self._widths]
            self._put(self._names)
            self._put(["-" * width for width in self._widths])
        for row in self._held:
            self._put(row)
        self._held = []
        self._out.flush()

    def _put(self, row: Sequence[str]) -> None:
        assert self._widths is not None
        fitted = [
            _fitted(text, width, is_right=is_right, cuts=self._is_terminal)
            for text, width, is_right in zip(row, self._widths, self._right, strict=True)
        ]
        self._out.write(("  ".join(fitted).rstrip() + "\n").encode("utf-8", "backslashreplace"))


def _line(text: str) -> str:
    """Text in one line, with what a terminal would take for more than text in escapes."""
    return "".join(letter if letter.isprintable() else _escape(letter) for letter in text)


def _escape(letter: str) -> str:
    named: dict[str, str] = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    code = ord(letter)
    return named.get(letter) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(one) else 1 + (unicodedata.east_asian_width(one) in "WF") for one in text)


def _fitted(text: str, width: int, *, is_right: bool, cuts: bool) -> str:
    if cuts and _width(text) > width:
        text = text[: max(0, width - 1)]
        while _width(text) > width - 1:
            text = text[:-1]
        text += "…"
    padding = " " * (width - _width(text))
    return padding + text if is_right else text + padding
