"""Spark's types of columns, without Spark: what values are decoded to and encoded from, with or without a session.

Names, texts and JSON are Spark's, so that a schema written for one is read by the other; `headrace.spark.types` turns
one into the other.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final


@dataclass(frozen=True, slots=True)
class DataType:
    """The type of a column, or of something in it."""

    name: ClassVar[str] = ""

    def simple_string(self) -> str:
        """As it is written in DDL."""
        return self.name

    def json_value(self) -> Any:
        """As it is in the JSON of a schema."""
        return self.name

    def json(self) -> str:
        """The JSON of a schema, as text."""
        return json.dumps(self.json_value())


@dataclass(frozen=True, slots=True)
class NumericType(DataType):
    """A number."""


@dataclass(frozen=True, slots=True)
class NullType(DataType):
    """Nothing but nulls."""

    name = "void"


@dataclass(frozen=True, slots=True)
class BooleanType(DataType):
    """True or false."""

    name = "boolean"


@dataclass(frozen=True, slots=True)
class ByteType(NumericType):
    """Integers of 8 bits."""

    name = "tinyint"

    def json_value(self) -> Any:
        """As it is in the JSON of a schema."""
        return "byte"


@dataclass(frozen=True, slots=True)
class ShortType(NumericType):
    """Integers of 16 bits."""

    name = "smallint"

    def json_value(self) -> Any:
        """As it is in the JSON of a schema."""
        return "short"


@dataclass(frozen=True, slots=True)
class IntegerType(NumericType):
    """Integers of 32 bits."""

    name = "int"

    def json_value(self) -> Any:
        """As it is in the JSON of a schema."""
        return "integer"


@dataclass(frozen=True, slots=True)
class LongType(NumericType):
    """Integers of 64 bits."""

    name = "bigint"

    def json_value(self) -> Any:
        """As it is in the JSON of a schema."""
        return "long"


@dataclass(frozen=True, slots=True)
class FloatType(NumericType):
    """Floating point numbers of 32 bits."""

    name = "float"


@dataclass(frozen=True, slots=True)
class DoubleType(NumericType):
    """Floating point numbers of 64 bits."""

    name = "double"


@dataclass(frozen=True, slots=True)
class StringType(DataType):
    """Text."""

    name = "string"


@dataclass(frozen=True, slots=True)
class BinaryType(DataType):
    """Bytes."""

    name = "binary"


@dataclass(frozen=True, slots=True)
class DateType(DataType):
    """Days."""

    name = "date"


@dataclass(frozen=True, slots=True)
class TimestampType(DataType):
    """Moments, to the microsecond."""

    name = "timestamp"


@dataclass(frozen=True, slots=True)
class TimestampNTZType(DataType):
    """What a clock shows, wherever it hangs."""

    name = "timestamp_ntz"


@dataclass(frozen=True, slots=True)
class DayTimeIntervalType(DataType):
    """Durations, to the microsecond."""

    name = "interval day to second"


@dataclass(frozen=True, slots=True)
class OtherType(DataType):
    """A type of Spark that no format reads or writes."""

    text: str

    def simple_string(self) -> str:
        """As it is written in DDL."""
        return self.text

    def json_value(self) -> Any:
        """As it is in the JSON of a schema."""
        return self.text


@dataclass(frozen=True, slots=True)
class DecimalType(NumericType):
    """Numbers with `precision` digits, `scale` of them behind the point."""

    precision: int = 10
    scale: int = 0

    def simple_string(self) -> str:
        """As it is written in DDL."""
        return f"decimal({self.precision},{self.scale})"

    def json_value(self) -> Any:
        """As it is in the JSON of a schema."""
        return self.simple_string()


@dataclass(frozen=True, slots=True)
class ArrayType(DataType):
    """Lists."""

    element_type: DataType
    contains_null: bool = True

    def simple_string(self) -> str:
        """As it is written in DDL."""
        return f"array<{self.element_type.simple_string()}>"

    def json_value(self) -> Any:
        """As it is in the JSON of a schema."""
        element = self.element_type.json_value()
        return {"type": "array", "elementType": element, "containsNull": self.contains_null}


@dataclass(frozen=True, slots=True)
class MapType(DataType):
    """Values by key."""

    key_type: DataType
    value_type: DataType
    value_contains_null: bool = True

    def simple_string(self) -> str:
        """As it is written in DDL."""
        return f"map<{self.key_type.simple_string()},{self.value_type.simple_string()}>"

    def json_value(self) -> Any:
        """As it is in the JSON of a schema."""
        types = {"keyType": self.key_type.json_value(), "valueType": self.value_type.json_value()}
        return {"type": "map", **types, "valueContainsNull": self.value_contains_null}


@dataclass(frozen=True, slots=True)
class StructField:
    """A field of a struct."""

    name: str
    data_type: DataType
    nullable: bool = True

    def json_value(self) -> Any:
        """As it is in the JSON of a schema."""
        return {"name": self.name, "type": self.data_type.json_value(), "nullable": self.nullable, "metadata": {}}


@dataclass(frozen=True, slots=True, init=False)
class StructType(DataType):
    """Fields, in their order."""

    fields: tuple[StructField, ...] = field(default=())

    def __init__(self, fields: Iterable[StructField] = ()) -> None:
        object.__setattr__(self, "fields", tuple(fields))

    @property
    def names(self) -> list[str]:
        """The names of the fields."""
        return [one.name for one in self.fields]

    def simple_string(self) -> str:
        """As it is written in DDL."""
        return f"struct<{','.join(f'{one.name}:{one.data_type.simple_string()}' for one in self.fields)}>"

    def json_value(self) -> Any:
        """As it is in the JSON of a schema."""
        return {"type": "struct", "fields": [one.json_value() for one in self.fields]}


SIMPLE: Final[tuple[type[DataType], ...]] = (
    NullType,
    BooleanType,
    ByteType,
    ShortType,
    IntegerType,
    LongType,
    FloatType,
    DoubleType,
    StringType,
    BinaryType,
    DateType,
    TimestampType,
    TimestampNTZType,
    DayTimeIntervalType,
)
"""The types that are made without arguments."""

_BY_JSON: Final[dict[str, type[DataType]]] = {kind().json_value(): kind for kind in SIMPLE}
_DECIMAL: Final = re.compile(r"decimal(?:\(\s*(\d+)\s*,\s*(\d+)\s*\))?")
_INTERVAL: Final = re.compile(r"interval (day|hour|minute|second)( to (hour|minute|second))?")


def of_json(written: Any) -> DataType:
    """The type that the JSON of a schema describes; ValueError, TypeError or KeyError if it is none."""
    if isinstance(written, str):
        return _named(written)
    match written["type"]:
        case "struct":
            return StructType(
                StructField(str(one["name"]), of_json(one["type"]), bool(one.get("nullable", True)))
                for one in written["fields"]
            )
        case "array":
            return ArrayType(of_json(written["elementType"]), bool(written.get("containsNull", True)))
        case "map":
            key, value = of_json(written["keyType"]), of_json(written["valueType"])
            return MapType(key, value, bool(written.get("valueContainsNull", True)))
    raise ValueError(f"there is no type {written['type']}")


def _named(text: str) -> DataType:
    if text in _BY_JSON:
        return _BY_JSON[text]()
    if _INTERVAL.fullmatch(text):
        return DayTimeIntervalType()
    decimal = _DECIMAL.fullmatch(text)
    if decimal is None:
        return OtherType(text)
    return DecimalType(int(decimal[1]), int(decimal[2])) if decimal[1] else DecimalType()
