"""Messages as JSON and back.

A message that was read has its `value` in base64, as text, or as JSON kept as it was written, whichever `format` asks
for; `value_encoding` says which, unless base64 was asked for. A key is text, or base64 where it is no UTF-8, and then
`key_encoding` says so. Headers are an object: a value is text, `{"base64": …}` where it is no UTF-8, and a list of
these where a name comes several times. What was read can be published again: there `value` is JSON unless
`value_encoding` says otherwise.
"""

import base64
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from headrace.protocol.records import Headers, Record
from headrace.web.problem import Problem, bad_request

from .names import Partition, Timestamp

Format = Annotated[
    Literal["base64", "json", "text", "auto"],
    Meta(description="How values are shown; `auto` is JSON, else text, else base64, and says which."),
]
MOST_TEXT: Final = 16 << 20
_decode_text: Final = msgspec.json.Decoder(str).decode
_is_json: Final = msgspec.json.Decoder(Raw).decode
encode: Final = msgspec.json.Encoder().encode


class Base64(Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes that are no text."""

    base64: Annotated[str, Meta(examples=["/w=="])]


HeaderValue = str | Base64 | list[str | Base64 | None] | None
MessageHeaders = Annotated[
    dict[str, HeaderValue],
    Meta(description="By name; a list where a name comes several times.", examples=[{"source": "web"}]),
]


class NewMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message to publish."""

    key: Annotated[
        Raw | UnsetType,
        Meta(
            description="Text, or a number as it is written. Decides the partition.",
            extra_json_schema={"type": ["string", "number", "null"]},
            examples=["alice"],
        ),
    ] = UNSET
    key_encoding: Literal["text", "base64"] = "text"
    value: Annotated[
        Raw | UnsetType,
        Meta(description="JSON, kept as it is written, or text or base64.", examples=[{"total": 3}]),
    ] = UNSET
    value_encoding: Literal["json", "text", "base64"] = "json"
    headers: MessageHeaders = {}
    partition: Partition | UnsetType | None = UNSET
    timestamp: Timestamp | UnsetType = UNSET


class Message(Struct, kw_only=True):
    """A message that was read."""

    topic: Annotated[str | UnsetType, Meta(description="Where several are read together.", examples=["orders"])] = UNSET
    partition: Annotated[int | UnsetType, Meta(examples=[0])] = UNSET
    offset: Annotated[int, Meta(examples=[41])]
    key: Annotated[str | None, Meta(examples=["alice"])]
    key_encoding: Annotated[Literal["base64"] | UnsetType, Meta(description="Where the key is no UTF-8.")] = UNSET
    value: Annotated[
        Any, Meta(description="As `format` asks for; null where there is none.", examples=["eyJ0b3RhbCI6IDN9"])
    ]
    value_encoding: Annotated[
        Literal["json", "text", "base64"] | UnsetType,
        Meta(description="What `value` is, where not base64 was asked for."),
    ] = UNSET
    timestamp: Annotated[int, Meta(description="Milliseconds since 1970.", examples=[1_700_000_000_000])]
    headers: MessageHeaders


EMPTY: Final = NewMessage()
_Value = tuple[Any, Literal["json", "text", "base64"] | UnsetType]


# Publishing


def record_of(message: NewMessage, now_ms: int, path: str) -> Record:
    """The record that a message describes."""
    headers = message.headers
    return Record(
        0,
        now_ms if message.timestamp is UNSET else message.timestamp,
        _key(message, path),
        _value(message, path),
        _record_headers(headers, path) if headers else (),
    )


def partition_of(message: NewMessage) -> int | None:
    """The partition that a message asks for."""
    return None if message.partition is UNSET else message.partition


def _key(message: NewMessage, path: str) -> bytes | None:
    if message.key is UNSET:
        return None
    raw = bytes(message.key)
    if raw == b"null":
        return None
    if raw[:1] == b'"':
        text = _text_of(raw)
        return text if message.key_encoding == "text" else decode_base64(text, f"{path}.key")
    if message.key_encoding == "base64" or raw[:1] not in b"-0123456789":
        raise bad_request(f"{path}.key must be text, a number or null")
    return raw


def _value(message: NewMessage, path: str) -> bytes | None:
    if message.value is UNSET:
        return None
    raw = bytes(message.value)
    if raw == b"null":
        return None
    if message.value_encoding == "json":
        return raw
    if raw[:1] != b'"':
        raise bad_request(f"{path}.value must be text, as its value_encoding says")
    text = _text_of(raw)
    return text if message.value_encoding == "text" else decode_base64(text, f"{path}.value")


def _text_of(raw: bytes) -> bytes:
    """What a JSON text stands for, as UTF-8."""
    return raw[1:-1] if b"\\" not in raw else _decode_text(raw).encode()


def decode_base64(text: bytes, path: str) -> bytes:
    """Bytes out of base64, of either alphabet."""
    try:
        return base64.b64decode(text.replace(b"-", b"+").replace(b"_", b"/"), validate=True)
    except ValueError:
        raise bad_request(f"{path} is not base64") from None


def _record_headers(headers: dict[str, HeaderValue], path: str) -> Headers:
    found: list[tuple[str, bytes | None]] = []
    for name, value in headers.items():
        for each in value if isinstance(value, list) else (value,):
            if isinstance(each, Base64):
                found.append((name, decode_base64(each.base64.encode(), f"{path}.headers.{name[:80]}")))
            else:
                found.append((name, None if each is None else each.encode()))
    return tuple(found)


# Reading


def shown(record: Record, form: str, topic: str | UnsetType = UNSET, partition: int | UnsetType = UNSET) -> Message:
    """A message as it is answered; `Problem` 422 when its value is not what the format asks for."""
    key, value, headers = record.key, record.value, record.headers
    key_encoding: Literal["base64"] | UnsetType = UNSET
    shown_key = None
    if key is not None:
        shown_key = _utf8(key)
        if shown_key is None:
            shown_key, key_encoding = base64.b64encode(key).decode(), "base64"
    shown_value, value_encoding = (None, UNSET) if value is None else _SHOWING[form](record, value)
    return Message(
        topic=topic,
        partition=partition,
        offset=record.offset,
        key=shown_key,
        key_encoding=key_encoding,
        value=shown_value,
        value_encoding=value_encoding,
        timestamp=record.timestamp,
        headers=_shown_headers(headers) if headers else {},
    )


def _as_base64(record: Record, value: bytes) -> _Value:
    return bytes(value), UNSET  # msgspec writes bytes as base64


def _as_json(record: Record, value: bytes) -> _Value:
    if not is_json(value):
        raise _unlike(record, "JSON")
    return Raw(bytes(value)), "json"


def _as_text(record: Record, value: bytes) -> _Value:
    text = _utf8(value)
    if text is None:
        raise _unlike(record, "UTF-8 text")
    return text, "text"


def _as_fits(record: Record, value: bytes) -> _Value:
    if is_json(value):
        return Raw(bytes(value)), "json"
    text = _utf8(value)
    return (bytes(value), "base64") if text is None else (text, "text")


_SHOWING: Final[dict[str, Callable[[Record, bytes], _Value]]] = {
    "base64": _as_base64,
    "json": _as_json,
    "text": _as_text,
    "auto": _as_fits,
}


def is_json(data: bytes) -> bool:
    """Whether bytes are one JSON value."""
    try:
        if not data.isascii():
            data.decode()
        _is_json(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _shown_headers(headers: Headers) -> dict[str, HeaderValue]:
    found: dict[str, HeaderValue] = {}
    several: dict[str, list[str | Base64 | None]] = {}
    for name, value in headers:
        each = _shown_header(value)
        if name not in found:
            found[name] = each
        elif name in several:
            several[name].append(each)
        else:
            first = found[name]
            assert not isinstance(first, list)
            found[name] = several[name] = [first, each]
    return found


def _shown_header(value: bytes | None) -> str | Base64 | None:
    if value is None:
        return None
    text = _utf8(value)
    return Base64(base64.b64encode(value).decode()) if text is None else text


def _utf8(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _unlike(record: Record, wanted: str) -> Problem:
    detail = f"the value at offset {record.offset} is not {wanted}; ask with format=base64 or format=auto"
    return Problem(422, detail, code="value-of-another-format", more={"offset": record.offset})
