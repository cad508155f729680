"""Spark's types in Arrow, exactly as Spark expects them from a data source."""

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from . import types as t
from .errors import OptionError

_SIMPLE: Final[dict[type[Any], Any]] = {
    t.BooleanType: pa.bool_(),
    t.ByteType: pa.int8(),
    t.ShortType: pa.int16(),
    t.IntegerType: pa.int32(),
    t.LongType: pa.int64(),
    t.FloatType: pa.float32(),
    t.DoubleType: pa.float64(),
    t.StringType: pa.string(),
    t.BinaryType: pa.binary(),
    t.DateType: pa.date32(),
    t.TimestampType: pa.timestamp("us", tz="UTC"),
    t.TimestampNTZType: pa.timestamp("us"),
    t.DayTimeIntervalType: pa.duration("us"),
    t.NullType: pa.null(),
}


def arrow_type(spark_type: t.DataType, path: str = "value") -> pa.DataType:
    """The Arrow type of a Spark type; `path` is how an error names the place of one that has none."""
    build = _NESTED.get(type(spark_type))
    if build is not None:
        return build(spark_type, path)
    if type(spark_type) not in _SIMPLE:
        raise OptionError(f"schema: {path} has the type {spark_type.simple_string()}, which cannot be decoded")
    return _SIMPLE[type(spark_type)]


def arrow_field(field: t.StructField, path: str = "value") -> pa.Field:
    """The Arrow field of a Spark field."""
    return pa.field(field.name, arrow_type(field.data_type, f"{path}.{field.name}"), nullable=field.nullable)


def _decimal(spark_type: t.DecimalType, _: str) -> pa.DataType:
    return pa.decimal128(spark_type.precision, spark_type.scale)


def _list(spark_type: t.ArrayType, path: str) -> pa.DataType:
    element = arrow_type(spark_type.element_type, f"{path}[]")
    return pa.list_(pa.field("element", element, nullable=spark_type.contains_null))


def _map(spark_type: t.MapType, path: str) -> pa.DataType:
    key = pa.field("key", arrow_type(spark_type.key_type, f"{path}{{key}}"), nullable=False)
    value = arrow_type(spark_type.value_type, f"{path}{{}}")
    return pa.map_(key, pa.field("value", value, nullable=spark_type.value_contains_null))


def _struct(spark_type: t.StructType, path: str) -> pa.DataType:
    return pa.struct([arrow_field(field, path) for field in spark_type.fields])


_NESTED: Final[dict[type[Any], Callable[[Any, str], Any]]] = {
    t.DecimalType: _decimal,
    t.ArrayType: _list,
    t.MapType: _map,
    t.StructType: _struct,
}


def all_nullable(spark_type: t.DataType) -> t.DataType:
    """The type with every field, element and map value nullable, as Spark's own decoders make it where a record
    may turn out to be bad.
    """
    if isinstance(spark_type, t.StructType):
        return t.StructType([t.StructField(f.name, all_nullable(f.data_type), True) for f in spark_type.fields])
    if isinstance(spark_type, t.ArrayType):
        return t.ArrayType(all_nullable(spark_type.element_type), True)
    if isinstance(spark_type, t.MapType):
        return t.MapType(spark_type.key_type, all_nullable(spark_type.value_type), True)
    return spark_type
