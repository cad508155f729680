"""Responses, and a client's requests, from plain values.

A handler answers with a dictionary in the newest version's field names, a client asks with one; fields that an older
version does not have are left out, fields that are not given take the schema's default. Times are integer
milliseconds, error codes are `ErrorCode` or int, ids are `UUID` or None.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from struct import Struct
from typing import Any, Final
from uuid import UUID

from headrace.kernels.varints import write_uvarint as write_uvarint

from .schema import REQUIRED, WireField, WireStruct, request_shape, response_shape, shape_of

Value = Any
Write = Callable[[bytearray, Value], None]

_PACKS: Final = {
    "int8": Struct(">b").pack,
    "int16": Struct(">h").pack,
    "int32": Struct(">i").pack,
    "int64": Struct(">q").pack,
    "uint8": Struct(">B").pack,
    "uint16": Struct(">H").pack,
    "uint32": Struct(">I").pack,
    "uint64": Struct(">Q").pack,
    "float64": Struct(">d").pack,
    "bool": Struct(">?").pack,
    "timedelta_i32": Struct(">i").pack,
    "timedelta_i64": Struct(">q").pack,
    "datetime_i64": Struct(">q").pack,
}
_I16: Final = Struct(">h").pack
_I32: Final = Struct(">i").pack
_ZERO_ID: Final = bytes(16)
LARGE: Final = 1_000
"""Entries of a response that is encoded in steps: some 5 ms."""
STEP: Final = 50


def encode_response(api_key: int, version: int, values: Mapping[str, Value]) -> bytearray:
    """The body of a response."""
    out = bytearray()
    _struct(response_shape(api_key, version))(out, values)
    return out


def encode_in_steps(api_key: int, version: int, values: Mapping[str, Value], out: bytearray) -> Iterator[None]:
    """The body of a response, written to `out` some entries at a time, so that others get a turn in between."""
    return _in_steps(response_shape(api_key, version), out, values)


def is_large(api_key: int, version: int, values: Mapping[str, Value]) -> bool:
    """Whether a response has so many entries that it is better encoded in steps."""
    return _count(response_shape(api_key, version), values, LARGE) >= LARGE


def encode_request(api_key: int, version: int, values: Mapping[str, Value]) -> bytearray:
    """The body of a request."""
    out = bytearray()
    _struct(request_shape(api_key, version))(out, values)
    return out


def encode_entity(entity: type, values: Mapping[str, Value]) -> bytearray:
    """The bytes of any kio entity, such as the key or value of a record in an internal topic."""
    out = bytearray()
    _struct(shape_of(entity))(out, values)
    return out


def blank_response(api_key: int, version: int, code: int) -> dict[str, Value]:
    """A response with nothing in it but, where the API has room for one at the top, an error code."""
    values: dict[str, Value] = {}
    for field in response_shape(api_key, version).fields:
        values[field.name] = code if field.name == "error_code" else _blank(field)
    return values


def _blank(field: WireField) -> Value:
    if field.is_array:
        return ()
    if field.default is not REQUIRED:
        return _plain(field.default)
    if field.struct is not None:
        return {inner.name: _blank(inner) for inner in field.struct.fields}
    if field.kafka_type in ("string", "bytes", "records"):
        return None if field.nullable else "" if field.kafka_type == "string" else b""
    return None if field.kafka_type == "uuid" else 0


def write_count(out: bytearray, count: int, flexible: bool) -> None:
    """The count of an array."""
    if flexible:
        write_uvarint(out, count + 1)
    else:
        out += _I32(count)


def write_text(out: bytearray, text: str | None, flexible: bool) -> None:
    """A string, or null."""
    if flexible:
        _write_compact(out, text)
    else:
        _write_legacy_text(out, text)


def write_topic(out: bytearray, name: str, topic_id: bytes | None, *, by_id: bool, flexible: bool) -> None:
    """A topic as the version names it."""
    if by_id:
        out += topic_id or _ZERO_ID
    else:
        write_text(out, name, flexible)


@cache
def _arrays(shape: WireStruct) -> tuple[tuple[str, WireStruct], ...]:
    return tuple((field.name, field.struct) for field in shape.fields if field.is_array and field.struct is not None)


def _count(shape: WireStruct, values: Mapping[str, Value], enough: int) -> int:
    """The entries of all arrays, or as many as are enough."""
    count = 0
    for name, struct in _arrays(shape):
        entries = values.get(name) or ()
        count += len(entries)
        if count < enough and _arrays(struct):
            for entry in entries:
                count += _count(struct, entry, enough - count)
                if count >= enough:
                    break
    return count


def _in_steps(shape: WireStruct, out: bytearray, values: Mapping[str, Value]) -> Iterator[None]:
    arrays = dict(_arrays(shape))
    for field in shape.fields:
        entries = values.get(field.name)
        struct = arrays.get(field.name)
        if struct is None or not entries:
            _struct_field(field, shape.flexible)(out, values)
            continue
        write_count(out, len(entries), shape.flexible)
        write, has_arrays, written = _struct(struct), bool(_arrays(struct)), 0
        for entry in entries:
            inner = _count(struct, entry, STEP) if has_arrays else 0
            if inner >= STEP:
                yield from _in_steps(struct, out, entry)
            else:
                write(out, entry)
            written += 1 + inner
            if written >= STEP:
                written = 0
                yield
    if shape.flexible:
        _write_tags(out, values, _tagged(shape))


@cache
def _struct_field(field: WireField, flexible: bool) -> Write:
    name, default, write = field.name, _plain(field.default), _field(field, flexible)

    def write_field(out: bytearray, values: Mapping[str, Value]) -> None:
        value = values.get(name, default)
        if value is REQUIRED:
            raise KeyError(f"{name} has no default and was not given")
        write(out, value)

    return write_field


@cache
def _tagged(shape: WireStruct) -> tuple[tuple[str, int, Value, Write], ...]:
    return tuple((f.name, f.tag or 0, _plain(f.default), _field(f, True)) for f in shape.tagged)


@cache
def _struct(shape: WireStruct) -> Write:
    plan = tuple((f.name, _plain(f.default), _field(f, shape.flexible)) for f in shape.fields)
    tagged = _tagged(shape)
    flexible = shape.flexible

    def write_struct(out: bytearray, values: Mapping[str, Value]) -> None:
        for name, default, write in plan:
            value = values.get(name, default)
            if value is REQUIRED:
                raise KeyError(f"{shape.name}.{name} has no default and was not given")
            write(out, value)
        if flexible:
            _write_tags(out, values, tagged)

    return write_struct


def _write_tags(out: bytearray, values: Mapping[str, Value], tagged: tuple[tuple[str, int, Value, Write], ...]) -> None:
    present = [
        (tag, write, values[name])
        for name, tag, default, write in tagged
        if values.get(name) is not None and values[name] != default
    ]
    write_uvarint(out, len(present))
    for tag, write, value in present:
        body = bytearray()
        write(body, value)
        write_uvarint(out, tag)
        write_uvarint(out, len(body))
        out += body


def _plain(default: object) -> Value:
    """kio's own default as a value of ours: milliseconds for durations, a dictionary for structs."""
    if hasattr(default, "total_seconds"):
        return round(default.total_seconds() * 1000)
    if hasattr(default, "__dataclass_fields__"):
        return {name: getattr(default, name) for name in default.__dataclass_fields__}
    return default


def _field(field: WireField, flexible: bool) -> Write:
    one = _struct(field.struct) if field.struct is not None else _primitive(field, flexible)
    if field.is_array:
        return _array(one, flexible)
    if field.struct is not None and field.nullable and field.tag is None:
        return _nullable_struct(one)
    return one


def _nullable_struct(inner: Write) -> Write:
    def write_nullable(out: bytearray, value: Value) -> None:
        out.append(0xFF if value is None else 1)
        if value is not None:
            inner(out, value)

    return write_nullable


def _array(one: Write, flexible: bool) -> Write:
    def write_array(out: bytearray, values: Value) -> None:
        count = -1 if values is None else len(values)
        if flexible:
            write_uvarint(out, count + 1)
        else:
            out += _I32(count)
        for value in values or ():
            one(out, value)

    return write_array


def _primitive(field: WireField, flexible: bool) -> Write:
    kafka_type = field.kafka_type
    assert kafka_type is not None
    if kafka_type in ("string", "bytes", "records"):
        if flexible:
            return _write_compact
        return _write_legacy_text if kafka_type == "string" else _write_legacy_bytes
    if kafka_type == "uuid":
        return _write_uuid
    if kafka_type == "error_code":
        return _write_code
    return _packed(_PACKS[kafka_type])


def _packed(pack: Callable[[Value], bytes]) -> Write:
    def write_packed(out: bytearray, value: Value) -> None:
        out += pack(value)

    return write_packed


def _write_code(out: bytearray, code: Value) -> None:
    out += _I16(getattr(code, "value", code))


def _write_uuid(out: bytearray, value: UUID | None) -> None:
    out += _ZERO_ID if value is None else value.bytes


def _write_compact(out: bytearray, value: str | bytes | None) -> None:
    if value is None:
        out.append(0)
        return
    data = value.encode() if isinstance(value, str) else value
    write_uvarint(out, len(data) + 1)
    out += data


def _write_legacy_text(out: bytearray, value: str | None) -> None:
    if value is None:
        out += b"\xff\xff"
        return
    data = value.encode()
    out += _I16(len(data))
    out += data


def _write_legacy_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out += b"\xff\xff\xff\xff"
        return
    out += _I32(len(value))
    out += value
