"""A record as bytes on stdout, in the format the user chose."""

import base64
import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from .console import bad_input

if TYPE_CHECKING:
    from headrace.registry.serde import DecodedValue

Render = Callable[["ConsumedMessage"], bytes]

_FIELD: Final = re.compile(rb"\{(\w+)\}")
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_FIELDS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "size")
_EXTRA: Final = ("_key", "_partition", "_offset", "_timestamp")


class ConsumedMessage(Protocol):
    """What is used of a `confluent_kafka.Message`."""

    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def timestamp(self) -> tuple[int, int]: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> Sequence[tuple[str, bytes | None]] | None: ...


Decode = Callable[[bytes | None], "DecodedValue | None"]
"""What a value is that was written with a schema; None for all others."""


def renderer(
    format_: str,
    key_separator: bytes,
    end: bytes,
    null: bytes,
    *,
    decode: Decode = lambda _data: None,
    columns: Sequence[str] = (),
    is_terminal: bool = False,
) -> Render:
    """The function for a format: a name, or a template with {fields}.

    What was written with a schema is shown as JSON, but for raw and hex. For a terminal, bytes that it might take for
    more than text are escaped.
    """

    def text(data: bytes | None) -> bytes:
        if data is None:
            return null
        found = decode(data)
        if found is not None:
            return _json(found.value)
        return escaped(data) if is_terminal else data

    named: dict[str, Render] = {
        "value": lambda m: text(m.value()) + end,
        "key-value": lambda m: text(m.key()) + key_separator + text(m.value()) + end,
        "raw": lambda m: m.value() or b"",
        "hex": lambda m: _hex(m.value(), null) + end,
        "json": lambda m: as_json(m, decode) + b"\n",
        "csv": Csv(decode, columns),
    }
    if columns and format_ != "csv":
        raise bad_input("--columns is for --format csv")
    if format_ in named:
        return named[format_]
    if "{" in format_:
        return _template(format_.encode(), end, null, text)
    raise bad_input(
        f"--format '{format_}' is not known; use {', '.join(named)}, or a template"
        " such as '{partition}:{offset} {key} {value}'"
    )


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class Csv:
    """Rows of CSV, with a header: the fields of values that are objects of JSON, or key and value.

    `_key`, `_partition`, `_offset` and `_timestamp` may be asked for as columns, too.
    """

    def __init__(self, decode: Decode, columns: Sequence[str]) -> None:
        self._decode = decode
        self._columns = list(columns)
        self._has_begun = False

    def __call__(self, message: ConsumedMessage) -> bytes:
        fields = self._fields(message.value())
        rows: list[list[Any]] = []
        if not self._has_begun:
            self._has_begun = True
            self._columns = self._columns or (["key", "value"] if fields is None else list(fields))
            rows.append(self._columns)
        rows.append([self._cell(column, fields, message) for column in self._columns])
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows(rows)
        return out.getvalue().encode(errors="surrogateescape")

    def _fields(self, data: bytes | None) -> dict[str, Any] | None:
        found = self._decode(data)
        try:
            value = found.value if found is not None else json.loads(data or b"null")
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    def _cell(self, column: str, fields: dict[str, Any] | None, message: ConsumedMessage) -> Any:
        if column in _EXTRA:
            value = _timestamp(message) if column == "_timestamp" else getattr(message, column[1:])()
        elif fields is not None:
            value = fields.get(column)
        else:
            value = getattr(message, column)() if column in ("key", "value") else None
        if isinstance(value, bytes):
            found = self._decode(value)
            return escaped(value).decode() if found is None else _json(found.value).decode()
        return _json(value).decode() if isinstance(value, dict | list | bool) else value


def _hex(data: bytes | None, null: bytes) -> bytes:
    return null if data is None else data.hex().encode()


def _template(template: bytes, end: bytes, null: bytes, text: Callable[[bytes | None], bytes]) -> Render:
    for found in _FIELD.finditer(template):
        if found[1].decode() not in _FIELDS:
            raise bad_input(f"--format has the field {{{found[1].decode()}}}; there are {', '.join(_FIELDS)}")

    def render(message: ConsumedMessage) -> bytes:
        return _FIELD.sub(lambda found: _field(message, found[1].decode(), null, text), template) + end

    return render


def _field(message: ConsumedMessage, name: str, null: bytes, text: Callable[[bytes | None], bytes]) -> bytes:
    if name == "size":
        return str(len(message.value() or b"")).encode()
    if name == "headers":
        return b",".join(k.encode() + b"=" + text(v) for k, v in message.headers() or ())
    value = _timestamp(message) if name == "timestamp" else getattr(message, name)()
    if value is None:
        return null
    return text(value) if isinstance(value, bytes) else str(value).encode()


def _timestamp(message: ConsumedMessage) -> int | None:
    kind, milliseconds = message.timestamp()
    return milliseconds if kind else None


def as_json(message: ConsumedMessage, decode: Decode = lambda _data: None) -> bytes:
    """One line of JSON; bytes that are not UTF-8 stand as `{"base64": "..."}`, what has a schema as what it is."""
    values: dict[str, Any] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": _timestamp(message),
        "key": text_or_base64(message.key()),
        "value": text_or_base64(message.value()),
        "headers": [[name, text_or_base64(value)] for name, value in message.headers() or ()],
    }
    for name, data in (("key", message.key()), ("value", message.value())):
        found = decode(data)
        if found is not None:
            values[name] = found.value
            values[f"{name}_schema_id"] = found.schema_id
            if found.message:
                values[f"{name}_message"] = found.message
    return _json(values)


def text_or_base64(data: bytes | None) -> str | dict[str, str] | None:
    """Bytes for JSON: text, or `{"base64": "..."}` where they are none."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def escaped(data: bytes) -> bytes:
    """Bytes that a terminal takes for text and nothing else: what is not printable stands as `\\xHH`."""
    text = data.decode("utf-8", "backslashreplace")
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text).encode()
