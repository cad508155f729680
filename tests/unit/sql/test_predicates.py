"""Filters as what is fetched: never less than they hold for."""

import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.topic_partition import TopicPartition
from headrace.sql.predicates import ALL, Call, Field, NotUnderstood, Reach, columns_in, reach, tree_of

RECORDS = {"_offset": "offset", "_partition": "partition", "_timestamp": "timestamp", "_topic": "topic"}
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
HERE = TopicPartition("t", 1)


def moment(milliseconds: int) -> pa.Scalar:
    return pa.scalar(milliseconds * 1000, pa.timestamp("us", "UTC"))


def found(expression: Any) -> Reach:
    return reach(tree_of(expression), HERE, RECORDS)


OFFSET, PARTITION, TIME, NAME = (pc.field(name) for name in ("_offset", "_partition", "_timestamp", "name"))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (OFFSET == 7, Reach(7, 8)),
        ((OFFSET > 7) & (OFFSET <= 9), Reach(8, 10)),
        (pc.scalar(7) <= OFFSET, Reach(7)),
        (OFFSET.isin([9, 4]), Reach(4, 10)),
        (pc.if_else(pc.is_valid(OFFSET), OFFSET.isin([4]), pa.scalar(None, pa.bool_())), Reach(4, 5)),
        ((OFFSET < 3) | (OFFSET == 9), Reach(0, 10)),
        ((OFFSET < 3) | (NAME == "x"), ALL),
        ((OFFSET < 3) & (NAME == "x"), Reach(0, 3)),
        (~(OFFSET < 3), ALL),
        (PARTITION == 1, ALL),
        (PARTITION.isin([0, 1]), ALL),
        (pc.field("_topic") == "t", ALL),
        (moment(5000) <= TIME, Reach(since=5000)),
        (moment(5000) > TIME, ALL),
        ((moment(5000) < TIME) | (moment(3000) < TIME), Reach(since=3000)),
        (moment(-1) == TIME, ALL),
        (pc.field("value", "_offset") == 7, ALL),
        (NAME == "_offset", ALL),
        (pc.field("other") == OFFSET, ALL),
    ],
)
def test_a_filter_says_what_of_a_partition_it_can_hold_for(expression: Any, expected: Reach) -> None:
    assert found(expression) == expected


@pytest.mark.parametrize(
    "expression",
    [PARTITION == 2, (OFFSET < 3) & (OFFSET > 5), PARTITION.isin([0, 2]), OFFSET.isin([]), OFFSET < 0],
)
def test_nothing_is_fetched_of_a_partition_that_a_filter_rejects(expression: Any) -> None:
    assert found(expression).is_empty


def test_columns_of_a_filter_are_known_also_those_within_others() -> None:
    assert columns_in(tree_of((NAME == "x") & (pc.field("value", "a") > 1) | (OFFSET == 1))) == {
        "name",
        "value",
        "_offset",
    }


def test_an_expression_is_taken_apart_with_keys_that_come_twice() -> None:
    tree = tree_of((OFFSET == 1) & (OFFSET == 2))
    assert isinstance(tree, Call)
    assert [one.arguments[0] for one in tree.arguments if isinstance(one, Call)] == [Field(("_offset",))] * 2


def test_what_is_no_expression_is_not_understood() -> None:
    with pytest.raises(NotUnderstood):
        tree_of("offset = 1")


_numbers = st.integers(-2, 12)
_comparisons = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])


def _compare(column: Any, operator: str, value: Any) -> Any:
    return {
        "==": column == value,
        "!=": column != value,
        "<": column < value,
        "<=": column <= value,
        ">": column > value,
        ">=": column >= value,
    }[operator]


_leaves = st.one_of(
    st.builds(lambda operator, value: _compare(OFFSET, operator, value), _comparisons, _numbers),
    st.builds(lambda operator, value: _compare(PARTITION, operator, value), _comparisons, st.integers(-1, 3)),
    st.builds(lambda operator, value: _compare(TIME, operator, moment(value * 1000)), _comparisons, _numbers),
    st.builds(OFFSET.isin, st.lists(_numbers, min_size=1, max_size=3)),
    st.sampled_from([NAME == "a", NAME.is_null(), pc.field("name") != "b"]),
)
_filters = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
    max_leaves=6,
)
ROWS = pa.record_batch(
    {
        "_offset": pa.array(list(range(10)) * 3, pa.int64()),
        "_partition": pa.array([p for p in range(3) for _ in range(10)], pa.int32()),
        "_timestamp": pa.array([(n * 7 % 11) * 1_000_000 for n in range(30)], pa.timestamp("us", "UTC")),
        "name": pa.array(["a", None, "b"] * 10),
    }
)


@given(_filters)
def test_no_row_that_a_filter_holds_for_is_out_of_its_reach(expression: Any) -> None:
    tree = tree_of(expression)
    for row in ROWS.filter(expression).to_pylist():
        part = reach(tree, TopicPartition("t", row["_partition"]), RECORDS)
        assert part.start <= row["_offset"] < part.end
        assert (row["_timestamp"] - EPOCH) // datetime.timedelta(milliseconds=1) >= part.since
