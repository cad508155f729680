"""Which columns of a record a query gets."""

import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from headrace.config.setting import ConfigError
from headrace.spark.data_source import RECORD, columns


def test_a_schema_chooses_columns_and_their_order() -> None:
    assert columns(StructType([StructField("offset", LongType()), RECORD["value"]]), RECORD) == ["offset", "value"]


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (StructField("price", LongType()), "there is no column price to read; the columns are key, value"),
        (StructField("value", StringType()), "column value is binary and cannot be read as string"),
        (StructField("value", BinaryType(), False), "column value of a schema must be nullable: leave out NOT NULL"),
    ],
)
def test_a_column_that_is_not_so_is_refused(field: StructField, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        columns(StructType([field]), RECORD)
