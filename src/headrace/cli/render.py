"""A record as bytes on stdout, in the format the user chose."""

import base64
import json
import re
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from .console import bad_input

Render = Callable[["Message"], bytes]

_FIELD: Final = re.compile(rb"\{(\w+)\}")
_FIELDS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "size")


class Message(Protocol):
    """What is used of a `confluent_kafka.Message`."""

    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def timestamp(self) -> tuple[int, int]: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> Sequence[tuple[str, bytes | None]] | None: ...


def renderer(format_: str, key_separator: bytes, end: bytes, null: bytes) -> Render:
    """The function for a format: a name, or a template with {fields}."""

    def or_null(data: bytes | None) -> bytes:
        return null if data is None else data

    named: dict[str, Render] = {
        "value": lambda m: or_null(m.value()) + end,
        "key-value": lambda m: or_null(m.key()) + key_separator + or_null(m.value()) + end,
        "raw": lambda m: m.value() or b"",
        "hex": lambda m: _hex(m.value(), null) + end,
        "json": lambda m: as_json(m) + b"\n",
    }
    if format_ in named:
        return named[format_]
    if "{" in format_:
        return _template(format_.encode(), end, null)
    raise bad_input(
        f"--format '{format_}' is not known; use {', '.join(named)}, or a template"
        " such as '{partition}:{offset} {key} {value}'"
    )


def _hex(data: bytes | None, null: bytes) -> bytes:
    return null if data is None else data.hex().encode()


def _template(template: bytes, end: bytes, null: bytes) -> Render:
    for found in _FIELD.finditer(template):
        if found[1].decode() not in _FIELDS:
            raise bad_input(f"--format has the field {{{found[1].decode()}}}; there are {', '.join(_FIELDS)}")

    def render(message: Message) -> bytes:
        return _FIELD.sub(lambda found: _field(message, found[1].decode(), null), template) + end

    return render


def _field(message: Message, name: str, null: bytes) -> bytes:
    if name == "size":
        return str(len(message.value() or b"")).encode()
    if name == "headers":
        return b",".join(k.encode() + b"=" + (null if v is None else v) for k, v in message.headers() or ())
    value = _timestamp(message) if name == "timestamp" else getattr(message, name)()
    if value is None:
        return null
    return value if isinstance(value, bytes) else str(value).encode()


def _timestamp(message: Message) -> int | None:
    kind, milliseconds = message.timestamp()
    return milliseconds if kind else None


def as_json(message: Message) -> bytes:
    """One line of JSON; bytes that are not UTF-8 stand as `{"base64": "..."}`."""
    return json.dumps(
        {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "timestamp": _timestamp(message),
            "key": _text(message.key()),
            "value": _text(message.value()),
            "headers": [[name, _text(value)] for name, value in message.headers() or ()],
        },
        ensure_ascii=False,
        separators=(",", ":"),
    ).encode()


def _text(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
