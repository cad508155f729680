"""Types of columns, from Spark's own classes to those of `headrace.formats` and back."""

from typing import Any, Final

from pyspark.sql import types as spark

from headrace.formats import types as t

_SIMPLE: Final = {kind.__name__: kind for kind in t.SIMPLE}


def from_spark(spark_type: spark.DataType) -> t.DataType:
    """A type of Spark's; `OtherType` for what no format knows."""
    kind = type(spark_type)
    if kind.__name__ in _SIMPLE:
        return _SIMPLE[kind.__name__]()
    if kind is spark.DecimalType:
        return t.DecimalType(spark_type.precision, spark_type.scale)
    if kind is spark.ArrayType:
        return t.ArrayType(from_spark(spark_type.elementType), spark_type.containsNull)
    if kind is spark.MapType:
        types = from_spark(spark_type.keyType), from_spark(spark_type.valueType)
        return t.MapType(*types, spark_type.valueContainsNull)
    if kind is spark.StructType:
        return struct_from_spark(spark_type)
    return t.OtherType(spark_type.simpleString())


def struct_from_spark(spark_type: spark.StructType) -> t.StructType:
    """A schema of Spark's."""
    return t.StructType(t.StructField(one.name, from_spark(one.dataType), one.nullable) for one in spark_type.fields)


def to_spark(data_type: t.DataType) -> Any:
    """The same type as Spark has it."""
    if isinstance(data_type, t.DecimalType):
        return spark.DecimalType(data_type.precision, data_type.scale)
    if isinstance(data_type, t.ArrayType):
        return spark.ArrayType(to_spark(data_type.element_type), data_type.contains_null)
    if isinstance(data_type, t.MapType):
        types = to_spark(data_type.key_type), to_spark(data_type.value_type)
        return spark.MapType(*types, data_type.value_contains_null)
    if isinstance(data_type, t.StructType):
        fields = [spark.StructField(one.name, to_spark(one.data_type), one.nullable) for one in data_type.fields]
        return spark.StructType(fields)
    return getattr(spark, type(data_type).__name__)()
