"""The columns of a DataFrame that a topic takes: those of Spark's Kafka sink, by the same rules, and `timestamp`."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType, StructType, TimestampType

from headrace.config.names import shown
from headrace.config.setting import ConfigError


class TopicColumn(NamedTuple):
    """A column that means something to a topic."""

    fits: Callable[[Any], bool]
    accepted: str
    hint: str


def _is_text(kind: Any) -> bool:
    return isinstance(kind, StringType) or kind.typeName() in ("char", "varchar")


def _is_bytes(kind: Any) -> bool:
    return isinstance(kind, BinaryType) or _is_text(kind)


def _is_headers(kind: Any) -> bool:
    if not (isinstance(kind, ArrayType) and isinstance(kind.elementType, StructType)):
        return False
    fields = kind.elementType.fields
    names = [field.name for field in fields]
    return names == ["key", "value"] and _is_text(fields[0].dataType) and isinstance(fields[1].dataType, BinaryType)


COLUMNS: Final = {
    "key": TopicColumn(_is_bytes, "string or binary", "cast it, for example CAST(key AS STRING)"),
    "value": TopicColumn(
        _is_bytes, "string or binary", "cast it, or write all columns with to_json(struct(*)) AS value"
    ),
    "headers": TopicColumn(_is_headers, "array<struct<key:string,value:binary>>", "build it with array(struct(...))"),
    "topic": TopicColumn(_is_text, "string", "cast it"),
    "partition": TopicColumn(lambda kind: isinstance(kind, IntegerType), "int", "cast it"),
    "timestamp": TopicColumn(
        lambda kind: isinstance(kind, TimestampType), "timestamp", "cast it, or drop it to write the time of writing"
    ),
}
"""What is written. Other columns are left out, as Spark's Kafka sink does, so that what was read can be written."""


def written_columns(schema: Any, topic: str | None, *, is_encoded: bool = False) -> list[str]:
    """The names of the columns to write, in their order; `ConfigError` where a column is missing or of a wrong type.

    `topic` is the option, which wins over the column. Where the value is encoded, its type is not judged here.
    """
    types = {field.name: field.dataType for field in schema.fields}
    if "value" not in types:
        raise ConfigError(
            f"there is no column value to write; the columns are {_named(types)}. "
            f"Name one so, or write all columns with {'struct(*)' if is_encoded else 'to_json(struct(*))'} AS value"
        )
    if topic is None and "topic" not in types:
        raise ConfigError("nothing says where to write: set option topic, or have a column topic")
    for name, column in COLUMNS.items():
        if name in types and not column.fits(types[name]) and not (is_encoded and name == "value"):
            raise ConfigError(
                f"column {name} is {types[name].simpleString()}; a topic takes {column.accepted} there: {column.hint}"
            )
    return [name for name in types if name in COLUMNS and not (name == "topic" and topic is not None)]


def _named(types: dict[str, Any]) -> str:
    return shown(", ".join(f"{name} {kind.simpleString()}" for name, kind in types.items()) or "none")
