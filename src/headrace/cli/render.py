"""A record as bytes on stdout, in the format the user chose."""

import base64
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .console import bad_input

Render = Callable[["Shown"], bytes]

_FIELD: Final = re.compile(rb"\{(\w+)\}")
_FIELDS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What can be shown of a record."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


def shown(message: Any) -> Shown:
    """A `confluent_kafka.Message`, as what can be shown of it."""
    kind, timestamp = message.timestamp()
    return Shown(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        timestamp=timestamp if kind else None,
        key=message.key(),
        value=message.value(),
        headers=message.headers() or (),
    )


def renderer(format_: str, key_separator: bytes, end: bytes, null: bytes) -> Render:
    """The function for a format: a name, or a template with {fields}."""
    if format_ == "value":
        return lambda r: (null if r.value is None else r.value) + end
    if format_ == "key-value":
        return lambda r: (
            (null if r.key is None else r.key) + key_separator + (null if r.value is None else r.value) + end
        )
    if format_ == "raw":
        return lambda r: r.value or b""
    if format_ == "hex":
        return lambda r: (null if r.value is None else r.value.hex().encode()) + end
    if format_ == "json":
        return lambda r: as_json(r) + b"\n"
    if "{" in format_:
        return _template(format_.encode(), end, null)
    raise bad_input(
        f"--format '{format_}' is not known; use value, key-value, json, raw, hex, or a template"
        " such as '{partition}:{offset} {key} {value}'"
    )


def _template(template: bytes, end: bytes, null: bytes) -> Render:
    for found in _FIELD.finditer(template):
        if found[1].decode() not in _FIELDS:
            raise bad_input(f"--format has the field {{{found[1].decode()}}}; there are {', '.join(_FIELDS)}")

    def render(record: Shown) -> bytes:
        return _FIELD.sub(lambda found: _field(record, found[1].decode(), null), template) + end

    return render


def _field(record: Shown, name: str, null: bytes) -> bytes:
    if name == "size":
        return str(len(record.value or b"")).encode()
    if name == "headers":
        return b",".join(k.encode() + b"=" + (null if v is None else v) for k, v in record.headers)
    value = getattr(record, name)
    if value is None:
        return null
    return value if isinstance(value, bytes) else str(value).encode()


def as_json(record: Shown) -> bytes:
    """One line of JSON; bytes that are not UTF-8 stand as `{"base64": "..."}`."""
    return json.dumps(
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": _text(record.key),
            "value": _text(record.value),
            "headers": [[name, _text(value)] for name, value in record.headers],
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
