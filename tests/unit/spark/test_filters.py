"""Filters narrow what is read, and never leave out a record that they would let pass."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as ds

from headrace.client.columnar.model import Range, TopicPartition
from headrace.spark.source.filters import Narrowing

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COMPARED: dict[Any, Callable[[Any, Any], bool]] = {
    ds.EqualTo: lambda a, b: a == b,
    ds.GreaterThan: lambda a, b: a > b,
    ds.GreaterThanOrEqual: lambda a, b: a >= b,
    ds.LessThan: lambda a, b: a < b,
    ds.LessThanOrEqual: lambda a, b: a <= b,
    ds.In: lambda a, b: a in b,
}


def _filters(column: str) -> st.SearchStrategy[Any]:
    kinds = [kind for kind in _COMPARED if kind is not ds.In]
    return st.builds(lambda kind, value: kind((column,), value), st.sampled_from(kinds), st.integers(0, 20)) | st.lists(
        st.integers(0, 20), max_size=4
    ).map(lambda values: ds.In((column,), values))


@given(st.lists(_filters("offset") | _filters("partition"), max_size=4))
def test_what_is_read_is_what_the_filters_let_pass(filters: list[Any]) -> None:
    narrowing = Narrowing()
    unchecked = [one for one in filters if narrowing.take(one)]
    wanted = [Range("t", p, 0, 20) for p in range(4) if narrowing.keeps_partition(TopicPartition("t", p))]
    read = {(one.partition, offset) for one in narrowing.cut(wanted) for offset in range(one.start, one.end)}
    every = {(p, o) for p in range(4) for o in range(20)}
    assert {row for row in every if _passes(filters, *row)} <= read
    assert all(_passes(unchecked, *row) for row in read)


def _passes(filters: list[Any], partition: int, offset: int) -> bool:
    row = {"partition": partition, "offset": offset}
    return all(_COMPARED[type(one)](row[one.attribute[0]], one.value) for one in filters)


def test_a_topic_can_be_chosen() -> None:
    narrowing = Narrowing()
    assert narrowing.take(ds.In(("topic",), ["a", "b"]))
    assert narrowing.take(ds.IsNotNull(("topic",)))
    assert narrowing.keeps_partition(TopicPartition("a", 0))
    assert not narrowing.keeps_partition(TopicPartition("c", 0))


@pytest.mark.parametrize("kind", [ds.GreaterThan, ds.GreaterThanOrEqual, ds.EqualTo])
def test_a_time_gives_a_lower_bound_and_is_checked_again(kind: Any) -> None:
    narrowing = Narrowing()
    assert not narrowing.take(kind(("timestamp",), _EPOCH + timedelta(milliseconds=1500, microseconds=999)))
    assert narrowing.since == 1500
    assert not narrowing.take(kind(("timestamp",), _EPOCH + timedelta(milliseconds=900)))
    assert narrowing.since == 1500


def test_the_earliest_of_several_times_is_the_bound() -> None:
    narrowing = Narrowing()
    assert not narrowing.take(ds.In(("timestamp",), [_EPOCH + timedelta(seconds=3), _EPOCH + timedelta(seconds=2)]))
    assert narrowing.since == 2000


def test_times_before_the_epoch_are_all_times() -> None:
    narrowing = Narrowing()
    narrowing.take(ds.GreaterThan(("timestamp",), _EPOCH - timedelta(days=1)))
    assert narrowing.since == 0


@pytest.mark.parametrize(
    "filter_",
    [
        ds.LessThan(("timestamp",), _EPOCH),  # a later record may be earlier in time
        ds.GreaterThan(("timestamp",), datetime(2024, 1, 1)),  # of which time zone?
        ds.EqualTo(("value",), b"x"),
        ds.EqualTo(("headers", "key"), "x"),
        ds.Not(ds.EqualTo(("partition",), 1)),
        ds.EqualTo(("partition",), "1"),
        ds.EqualTo(("offset",), "1"),
        ds.IsNull(("partition",)),
        ds.IsNotNull(("timestamp",)),
        ds.IsNotNull(("key",)),
        ds.StringStartsWith(("topic",), "t"),
    ],
)
def test_other_filters_change_nothing_and_are_left_to_spark(filter_: Any) -> None:
    narrowing = Narrowing()
    assert not narrowing.take(filter_)
    assert narrowing == Narrowing()
