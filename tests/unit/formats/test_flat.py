"""Rows as tables of SQL have them."""

import pyarrow as pa
import pytest

from headrace.client.columnar.model import SCHEMA_WITH_HEADERS
from headrace.formats import decoder_for
from headrace.formats.flat import FlatDecoder


def decoder(**options: str) -> FlatDecoder:
    return FlatDecoder(decoder_for({"includeheaders": "true", **options}))


def records(*values: bytes | None) -> pa.RecordBatch:
    count = len(values)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([b"k"] * count, pa.binary()),
            pa.array(values, pa.binary()),
            pa.array(["t"] * count),
            pa.array([0] * count, pa.int32()),
            pa.array(range(count), pa.int64()),
            pa.array([0] * count, pa.timestamp("us", "UTC")),
            pa.array([0] * count, pa.int32()),
            pa.array([None] * count, SCHEMA_WITH_HEADERS.field("headers").type),
        ],
        schema=SCHEMA_WITH_HEADERS,
    )


BESIDE = ["_key", "_topic", "_partition", "_offset", "_timestamp", "_headers", "_tombstone", "_error"]


def test_fields_come_first_and_records_columns_after_them() -> None:
    found = decoder(format="json", schema="id BIGINT, at STRUCT<x INT>", keyFormat="string")
    rows = found.decode(records(b'{"id": 1, "at": {"x": 2}}', None, b"oops"))
    assert rows.schema.equals(found.arrow_schema)
    assert rows.schema.names == ["id", "at", *BESIDE]
    assert rows.column("id").to_pylist() == [1, None, None]
    assert rows.column("at").to_pylist() == [{"x": 2}, None, None]
    assert rows.column("_key").to_pylist() == ["k", "k", "k"]
    assert rows.column("_tombstone").to_pylist() == [False, True, False]
    assert [error is None for error in rows.column("_error").to_pylist()] == [True, True, False]


@pytest.mark.parametrize(
    ("schema", "fields", "offset"),
    [
        ("id INT, Id INT, ID INT", ["id", "Id_1", "ID_2"], "_offset"),
        ("a INT, A INT, a_1 INT", ["a", "A_2", "a_1"], "_offset"),
        ("_offset INT, __offset INT", ["_offset", "__offset"], "___offset"),
        ("`_OFFSET` INT", ["_OFFSET"], "__offset"),
    ],
)
def test_no_two_columns_have_a_name_but_for_case(schema: str, fields: list[str], offset: str) -> None:
    names = [one.name for one in decoder(format="json", schema=schema).columns]
    assert names[: len(fields)] == fields
    assert offset in names
    assert len({name.lower() for name in names}) == len(names)


def test_what_has_no_fields_is_a_table_of_values() -> None:
    assert decoder().arrow_schema.names == ["value", *BESIDE[:-1]]
    assert decoder(format="string").arrow_schema.names == ["value", *BESIDE]
    rows = decoder(format="string").decode(records(b"x", b"\xff"))
    assert rows.column("value").to_pylist() == ["x", None]
    assert rows.column("_error").to_pylist() == [None, "value: not UTF-8"]


def test_columns_that_are_not_decoded_need_no_decoding() -> None:
    found = decoder(format="json", schema="id INT", keyFormat="string")
    assert not found.needs_decoding(["_offset", "_tombstone", "_timestamp"])
    assert all(found.needs_decoding([name]) for name in ("id", "_error", "_key"))
    assert found.needs_record_headers(["_headers"])
    assert not found.needs_record_headers(["id"])
    assert found.decode(records(b"oops"), ["_offset", "_tombstone"]).to_pydict() == {
        "_offset": [0],
        "_tombstone": [False],
    }


def test_columns_of_the_record_are_known_by_the_names_that_tables_have_for_them() -> None:
    found = decoder(format="json", schema="offset INT")
    assert found.record_column("_offset") == "offset"
    assert found.record_column("offset") is None
    assert found.record_column("_error") is None
    assert decoder().record_column("_offset") == "offset"


def test_dead_letters_leave_no_row_and_no_column() -> None:
    letters: list[pa.RecordBatch] = []
    from headrace.formats import ValueDecoder
    from headrace.formats.options import read_options

    options = {"format": "json", "schema": "id INT", "deadLetterTopic": "dead", "includeHeaders": "true"}
    found = FlatDecoder(ValueDecoder(read_options(options), letters.append))
    rows = found.decode(records(b'{"id": 1}', b"oops", None), ["_offset", "_tombstone"])
    assert rows.to_pydict() == {"_offset": [0, 2], "_tombstone": [False, True]}
    assert len(letters[0]) == 1
    assert "_error" not in found.arrow_schema.names
