"""The columns of a DataFrame become records, or are refused by name, with their type and what would be taken."""

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from headrace.config.setting import ConfigError
from headrace.spark.data_source import HEADERS, RECORD
from headrace.spark.sink.columns import written_columns

TEXT = StringType()


def rows(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def headers(key: DataType, value: DataType) -> ArrayType:
    return ArrayType(rows(key=key, value=value))


def test_a_value_and_a_topic_are_enough() -> None:
    assert written_columns(rows(value=TEXT), "orders") == ["value"]
    assert written_columns(rows(value=BinaryType(), topic=TEXT), None) == ["value", "topic"]


def test_what_the_source_reads_can_be_written() -> None:
    everything = StructType([*RECORD.fields, HEADERS])
    assert written_columns(everything, None) == ["key", "value", "topic", "partition", "timestamp", "headers"]


def test_the_option_wins_over_the_column() -> None:
    assert written_columns(rows(topic=TEXT, value=TEXT), "orders") == ["value"]


def test_columns_that_mean_nothing_to_a_topic_are_left_out() -> None:
    assert written_columns(rows(id=LongType(), value=TEXT), "orders") == ["value"]


def test_text_of_limited_length_is_text() -> None:
    assert written_columns(rows(value=VarcharType(10)), "orders") == ["value"]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (rows(id=LongType()), "no column value to write; the columns are id bigint"),
        (rows(value=IntegerType()), "column value is int; a topic takes string or binary there"),
        (rows(value=TEXT, key=LongType()), "column key is bigint; a topic takes string or binary"),
        (rows(value=TEXT, partition=LongType()), "column partition is bigint; a topic takes int"),
        (rows(value=TEXT, headers=MapType(TEXT, TEXT)), "column headers is map<string,string>; a topic takes array"),
        (rows(value=TEXT, headers=headers(TEXT, TEXT)), "takes array<struct<key:string,value:binary>>"),
        (rows(value=TEXT, timestamp=TimestampNTZType()), "column timestamp is timestamp_ntz; a topic takes timestamp"),
    ],
)
def test_wrong_columns_are_refused_by_name_and_type(schema: StructType, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        written_columns(schema, "orders")
    assert words in str(refused.value)


def test_a_topic_column_must_be_text() -> None:
    with pytest.raises(ConfigError, match="column topic is int"):
        written_columns(rows(value=TEXT, topic=IntegerType()), None)


def test_rows_without_any_topic_are_refused() -> None:
    with pytest.raises(ConfigError, match="set option topic, or have a column topic"):
        written_columns(rows(value=TEXT), None)


def test_headers_and_time_are_written() -> None:
    schema = rows(value=TEXT, headers=headers(TEXT, BinaryType()), timestamp=TimestampType())
    assert written_columns(schema, "orders") == ["value", "headers", "timestamp"]
