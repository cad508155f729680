"""Offsets as Spark keeps them, and as users write them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.columnar.model import TopicPartition
from headrace.config.setting import ConfigError
from headrace.spark.source.offsets import (
    NOT_STARTED,
    from_spark,
    ids_from_spark,
    named,
    parse_offsets,
    parse_partitions,
    parse_times,
    to_spark,
)

_PARTITIONS = st.builds(TopicPartition, st.text("ab-.1", min_size=1, max_size=3), st.integers(0, 20))


@given(st.dictionaries(_PARTITIONS, st.integers(0, 2**63 - 1)), st.randoms())
def test_the_same_offsets_are_always_the_same_text(offsets: dict[TopicPartition, int], shuffle: st.DataObject) -> None:
    items = list(offsets.items())
    shuffle.shuffle(items)  # type: ignore[attr-defined]
    text = json.dumps(to_spark(offsets))
    assert json.dumps(to_spark(dict(items))) == text
    assert from_spark(json.loads(text)) == offsets


@given(st.dictionaries(st.text("ab-.1", min_size=1, max_size=3), st.binary(min_size=16, max_size=16)), st.randoms())
def test_the_ids_of_topics_are_kept_beside_the_offsets(ids: dict[str, bytes], shuffle: st.DataObject) -> None:
    items = list(ids.items())
    shuffle.shuffle(items)  # type: ignore[attr-defined]
    offsets = {TopicPartition(topic, 0): 7 for topic in ids}
    text = json.dumps(to_spark(offsets, ids))
    assert json.dumps(to_spark(offsets, dict(items))) == text
    assert ids_from_spark(json.loads(text)) == ids
    assert from_spark(json.loads(text)) == offsets


def test_what_was_written_without_ids_has_none() -> None:
    assert ids_from_spark({"a": {"0": 3}}) == ids_from_spark(NOT_STARTED) == {}


def test_partitions_stand_in_the_order_of_their_numbers() -> None:
    offsets = {TopicPartition("b", 10): 1, TopicPartition("b", 9): 2, TopicPartition("a", 0): 3}
    assert json.dumps(to_spark(offsets)) == '{"a": {"0": 3}, "b": {"9": 2, "10": 1}}'


def test_partitions_in_a_message_are_short_and_sorted() -> None:
    assert named([TopicPartition("orders", 1), TopicPartition("orders", 0)]) == "orders-0, orders-1"


def test_json_offsets_may_say_earliest_and_latest() -> None:
    offsets = parse_offsets("startingOffsets", '{"a": {"0": 23, "1": -1, "2": -2}}')
    assert offsets == {TopicPartition("a", 0): 23, TopicPartition("a", 1): -1, TopicPartition("a", 2): -2}


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "[]", "{}", '{"a": 1}', '{"a": {}}', '{"a": {"x": 1}}', '{"a": {"-1": 1}}', '{"a": {"0": "1"}}',
     '{"a": {"0": true}}', '{"a": {"0": 1.5}}', '{"a": {"0": -3}}', '{"a": {"99999999999": 1}}',
     '{"a": {"0": 9223372036854775808}}'],
)  # fmt: skip
def test_offsets_that_are_not_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"option startingOffsets must be JSON like \{"):
        parse_offsets("startingOffsets", text)


def test_a_time_is_never_negative() -> None:
    assert parse_times("startingOffsetsByTimestamp", '{"a": {"0": 1000}}') == {TopicPartition("a", 0): 1000}
    with pytest.raises(ConfigError, match="startingOffsetsByTimestamp"):
        parse_times("startingOffsetsByTimestamp", '{"a": {"0": -1}}')


@pytest.mark.parametrize("text", ["{", "{}", '{"a": 1}', '{"a": ["0"]}', '{"a": [-1]}', '{"a": []}'])
def test_partitions_that_are_not_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"option assign must be JSON like"):
        parse_partitions("assign", text)


def test_assigned_partitions_are_read_from_json() -> None:
    expected = {TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1)}
    assert parse_partitions("assign", '{"a": [0, 2], "b": [1]}') == expected
