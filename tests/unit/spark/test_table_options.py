"""The options of tables of Spark's catalog travel with their schema, secrets excepted."""

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headrace.config.setting import ConfigError
from headrace.spark.table_options import is_made_a_table, options_in, plain_options, with_options

SCHEMA = StructType([StructField("id", LongType()), StructField("_offset", LongType())])


def test_options_come_back_out_of_the_schema() -> None:
    options = {"subscribe": "orders", "format": "json", "kafka.bootstrap.servers": "127.0.0.1:9092"}
    taken = with_options(SCHEMA, options)
    assert options_in(taken) == options
    assert [(one.name, one.dataType) for one in taken.fields] == [("id", LongType()), ("_offset", LongType())]
    assert options_in(StructType.fromJson(taken.jsonValue())) == options
    assert options_in(SCHEMA) == options_in(StructType([StructField("a", StringType(), True, {"x": 1})])) == {}


def test_what_the_catalog_adds_to_options_is_left_aside() -> None:
    given = {"subscribe": "a", "option.subscribe": "a", "option.flatten": "true", "provider": "headrace", "owner": "me"}
    assert is_made_a_table(given)
    assert plain_options(given) == {"subscribe": "a", "flatten": "true"}
    assert plain_options({"subscribe": "a"}) == {"subscribe": "a"}
    assert not is_made_a_table({"subscribe": "a"})


@pytest.mark.parametrize(
    "name",
    ["kafka.sasl.password", "kafka.sasl.jaas.config", "kafka.ssl.key.password", "schema.registry.basic.auth.user.info",
     "schema.registry.bearer.auth.token", "basic.auth.user.info", "KAFKA.SASL.PASSWORD"],
)  # fmt: skip
def test_secrets_do_not_travel(name: str) -> None:
    with pytest.raises(ConfigError, match="TEMPORARY VIEW"):
        with_options(SCHEMA, {"subscribe": "a", name: "secret"})
