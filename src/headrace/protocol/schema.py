"""The shape of each message, read once out of kio's schemas and kept as plain data.

`guard` walks a shape over the bytes of a request before they are decoded; `encode` walks it over the values of
a response. Both compile a shape on first use and keep the result.
"""

from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

from kio.index import load_request_schema, load_response_schema

FIXED_SIZES: Final = {
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float64": 8,
    "bool": 1,
    "uuid": 16,
    "error_code": 2,
    "timedelta_i32": 4,
    "timedelta_i64": 8,
    "datetime_i64": 8,
}
REQUIRED: Final = object()
"""The default of a field that has none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WireField:
    """One field: a primitive when `kafka_type` is set, else a struct; an array of them when `is_array`."""

    name: str
    kafka_type: str | None
    struct: "WireStruct | None"
    is_array: bool
    nullable: bool
    tag: int | None
    default: object


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WireStruct:
    """A struct: its untagged fields in wire order, its tagged ones by tag."""

    name: str
    flexible: bool
    fields: tuple[WireField, ...]
    tagged: tuple[WireField, ...]

    def has(self, name: str) -> bool:
        return any(field.name == name for field in self.fields)


@cache
def request_shape(api_key: int, version: int) -> WireStruct:
    return shape_of(load_request_schema(api_key, version))


@cache
def response_shape(api_key: int, version: int) -> WireStruct:
    return shape_of(load_response_schema(api_key, version))


@cache
def shape_of(entity: type) -> WireStruct:
    """The shape of a kio entity."""
    every = [_field(f) for f in fields(entity)]
    tagged = sorted((f for f in every if f.tag is not None), key=lambda f: f.tag or 0)
    return WireStruct(
        name=entity.__name__,
        flexible=bool(entity.__flexible__),  # type: ignore[attr-defined]
        fields=tuple(f for f in every if f.tag is None),
        tagged=tuple(tagged),
    )


def _field(field: Any) -> WireField:
    inner, nullable = _without_none(field.type)
    is_array = get_origin(inner) is tuple
    if is_array:
        inner = get_args(inner)[0]
        inner, nullable_items = _without_none(inner)
        nullable = nullable or nullable_items
    default = field.default if field.default is not MISSING else REQUIRED
    return WireField(
        name=field.name,
        kafka_type=field.metadata.get("kafka_type"),
        struct=shape_of(inner) if is_dataclass(inner) and isinstance(inner, type) else None,
        is_array=is_array,
        nullable=nullable,
        tag=field.metadata.get("tag"),
        default=default,
    )


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) not in (UnionType, Union):
        return annotation, False
    present = [arg for arg in get_args(annotation) if arg is not NoneType]
    return present[0], True
