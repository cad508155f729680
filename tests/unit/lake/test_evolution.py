"""Columns as values change."""

from typing import Any

import pyarrow as pa
import pytest

from headrace.lake.evolution import Incompatible, conformed, fits, merged, widened
from headrace.lake.state import TableState, overlap, state_of, united, without

TABLE = pa.struct(
    [
        pa.field("id", pa.int64()),
        pa.field("inner", pa.struct([pa.field("x", pa.float64())])),
        pa.field("list", pa.list_(pa.field("element", pa.struct([pa.field("a", pa.string())])))),
        pa.field("map", pa.map_(pa.string(), pa.int64())),
    ]
)

DEEPER = pa.struct(
    [TABLE[0], pa.field("inner", pa.struct([("x", pa.float64()), ("y", pa.int64())])), TABLE[2], TABLE[3]]
)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.struct([("id", pa.int32())]), TABLE),
        (pa.struct([("inner", pa.struct([("x", pa.float32())]))]), TABLE),
        (pa.struct([("id", pa.null())]), TABLE),
        (
            pa.struct([("inner", pa.struct([("y", pa.int16())]))]),
            DEEPER,
        ),
        (pa.struct([("new", pa.date32())]), pa.struct([*TABLE, pa.field("new", pa.date32())])),
    ],
)
def test_a_table_gets_what_it_lacks(values: pa.DataType, expected: pa.DataType) -> None:
    assert merged(TABLE, values).equals(expected)
    assert fits(TABLE, values) == expected.equals(TABLE)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.struct([("id", pa.string())]), "field 'id' is STRING, and the table has BIGINT"),
        (pa.struct([("inner", pa.struct([("x", pa.string())]))]), "field 'inner.x' is STRING"),
        (pa.struct([("ID", pa.int64())]), "by its case alone"),
        (pa.struct([("list", pa.int64())]), "field 'list' is BIGINT"),
        (pa.struct([("inner", pa.int64())]), "field 'inner' is BIGINT, and the table has STRUCT<x: DOUBLE>"),
    ],
)
def test_what_a_column_cannot_have_is_named(values: pa.DataType, message: str) -> None:
    with pytest.raises(Incompatible, match=message):
        merged(TABLE, values)


VALUES: list[Any] = [
    {"id": 1, "inner": {"x": 0.5}, "list": [{"a": "p"}, None], "map": [("k", 1)]},
    None,
    {"id": None, "inner": None, "list": [], "map": None},
    {"id": 4, "inner": {"x": None}, "list": [{"a": None}], "map": []},
]


@pytest.mark.parametrize("slicing", [slice(0, 4), slice(1, 4), slice(0, 1), slice(2, 2)])
def test_values_stay_what_they_are(slicing: slice) -> None:
    narrow = pa.struct(
        [
            pa.field("map", pa.map_(pa.string(), pa.int32())),
            pa.field("list", pa.list_(pa.struct([pa.field("a", pa.string())]))),
            pa.field("inner", pa.struct([pa.field("x", pa.float32())])),
            pa.field("id", pa.int16()),
        ]
    )
    array = pa.array(VALUES, narrow)[slicing]
    wide = conformed(array, pa.struct([*TABLE, pa.field("more", pa.string())]))
    expected = [None if one is None else {**one, "more": None} for one in VALUES[slicing]]
    assert wide.to_pylist() == [
        None if one is None else {name: one[name] for name in wide.type.names} for one in expected
    ]


def test_new_columns_are_wide() -> None:
    kind = pa.struct([("i", pa.int8()), ("f", pa.float32()), ("l", pa.large_list(pa.large_string())), ("n", pa.null())])
    expected = pa.struct(
        [("i", pa.int64()), ("f", pa.float64()), ("l", pa.list_(pa.field("element", pa.string()))), ("n", pa.string())]
    )
    assert widened(kind).equals(expected)


def test_ranges_of_offsets_are_put_together_and_taken_apart() -> None:
    assert united([(5, 7), (0, 3), (3, 4), (6, 9), (20, 20)]) == ((0, 4), (5, 9))
    assert without((2, 12), ((0, 4), (5, 9))) == [(4, 5), (9, 12)]
    assert overlap((2, 12), ((0, 4), (5, 9))) == [(2, 4), (5, 9)]
    state = TableState(topic="t", offsets={0: ((0, 4),)}).adding({0: [(4, 6)], 1: [(3, 3)]}).at_version("w", 3)
    assert state.offsets == {0: ((0, 6),)}
    assert state_of(state.text()) == state
