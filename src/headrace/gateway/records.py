"""Records as JSON and back.

A value is given in one of three ways, and shown in the same: `value` is JSON, kept as it was written; `value_text` is a
string; `value_base64` is any bytes. A key is `key` (a string) or `key_base64`. Headers are an object of strings, or a
list where a name comes twice or a value is not text.
"""

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from headrace.protocol.records import Headers, Record
from headrace.web.problem import Problem, bad_request
from headrace.web.shapes import Anything, Array, Described, Integer, Mapped, Nullable, Object, Shape, Text

from .names import PARTITION, TIMESTAMP
from .rawjson import Raw, is_json

FORMATS: Final = ("auto", "json", "text", "base64")
RAW_MEMBERS: Final = frozenset({"value"})
_encode: Final = json.JSONEncoder(ensure_ascii=False).encode
_TEXT: Final = Text(most=16 << 20)
_HEADER: Final = Object(
    {"name": Text(most=1000), "value": Nullable(_TEXT), "value_base64": Nullable(_TEXT)}, required=("name",)
)


class _HeadersShape:
    """An object of strings, or a list of names and values."""

    def __init__(self) -> None:
        self._object: Shape = Mapped(Nullable(_TEXT), most=1000)
        self._list: Shape = Array(_HEADER, most=1000)

    def read(self, value: Any, path: str) -> Headers:
        if isinstance(value, list):
            return tuple(_header(each, path) for each in self._list.read(value, path))
        found = self._object.read(value, path)
        return tuple((name, None if text is None else _encoded(text, path)) for name, text in found.items())

    def parse(self, text: str, path: str) -> Headers:
        raise bad_request(f"{path} must be an object or a list, not '{text[:80]}'")

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [self._object.schema(), self._list.schema()]}


HEADERS: Final = _HeadersShape()
RECORD: Final = Object(
    {
        "key": Described(Nullable(_TEXT), "Decides the partition."),
        "key_base64": _TEXT,
        "value": Described(Anything(), "JSON; written as it is."),
        "value_text": _TEXT,
        "value_base64": _TEXT,
        "headers": HEADERS,
        "partition": PARTITION,
        "timestamp": Described(TIMESTAMP, "Milliseconds since 1970; now where it is left out."),
    }
)
SHOWN: Final = Object(
    {
        "topic": Text(),
        "partition": Integer(),
        "offset": Integer(),
        "timestamp": Integer(),
        "key": Nullable(Text()),
        "key_base64": Text(),
        "value": Anything(),
        "value_text": Text(),
        "value_base64": Text(),
        "headers": Array(Object({"name": Text(), "value": Nullable(Text()), "value_base64": Text()}, open=True)),
    },
    required=("partition", "offset", "timestamp", "headers"),
)
"""A record as it is shown."""


_WAYS: Final = {"key": ("key", "key_base64"), "value": ("value", "value_text", "value_base64")}


def record_of(members: Mapping[str, Any], now_ms: int, path: str) -> tuple[Record, int | None]:
    """The record that an object describes, and the partition it asks for."""
    read = RECORD.read(members, path)
    key = _bytes_of(read, "key", path)
    value = _bytes_of(read, "value", path)
    timestamp = read.get("timestamp", now_ms)
    return Record(0, timestamp, key, value, read.get("headers", ())), read.get("partition")


def _bytes_of(read: Mapping[str, Any], name: str, path: str) -> bytes | None:
    """What is given in one of the ways; null where in none."""
    given = [way for way in _WAYS[name] if way in read]
    if len(given) > 1:
        raise bad_request(f"{path} has {' and '.join(given)}; one of them says what the {name} is")
    if not given:
        return None
    content = read[given[0]]
    if given[0].endswith("_base64"):
        return decode_base64(content, f"{path}.{given[0]}")
    if isinstance(content, Raw):
        return None if content == "null" else _encoded(content, path)
    return None if content is None else _encoded(content, f"{path}.{given[0]}")


def decode_base64(text: str, path: str) -> bytes:
    """Bytes out of base64, of either alphabet."""
    try:
        return base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except ValueError:
        raise bad_request(f"{path} is not base64") from None


def _header(entry: Mapping[str, Any], path: str) -> tuple[str, bytes | None]:
    if entry.get("value_base64") is not None:
        return entry["name"], decode_base64(entry["value_base64"], f"{path}.value_base64")
    text = entry.get("value")
    return entry["name"], None if text is None else _encoded(text, path)


def _encoded(text: str, path: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise bad_request(f"{path} holds half a surrogate pair, which is no text") from None


# Showing


def shown(topic: str, partition: int, record: Record, form: str = "auto") -> str:
    """A record as JSON text; `Problem` 422 when its value is not what the format asks for."""
    parts = [
        f'{{"topic":{json.dumps(topic)},"partition":{partition},"offset":{record.offset},"timestamp":{record.timestamp}'
    ]
    parts.append(_shown_key(record.key, form))
    parts.append(_shown_value(record, form))
    headers = _encode([_shown_header(*each) for each in record.headers]) if record.headers else "[]"
    return f'{",".join(parts)},"headers":{headers}}}'


def _shown_key(key: bytes | None, form: str) -> str:
    if key is None:
        return '"key":null'
    text = None if form == "base64" else _text(key)
    if text is None:
        return f'"key_base64":"{base64.b64encode(key).decode()}"'
    return f'"key":{_encode(text)}'


def _shown_value(record: Record, form: str) -> str:
    value = record.value
    if value is None:
        return '"value":null'
    if form in ("auto", "json") and is_json(value):
        return f'"value":{value.decode()}'
    if form == "json":
        raise _unlike(record, "JSON")
    text = None if form == "base64" else _text(value)
    if text is not None:
        return f'"value_text":{_encode(text)}'
    if form == "text":
        raise _unlike(record, "UTF-8 text")
    return f'"value_base64":"{base64.b64encode(value).decode()}"'


def _shown_header(name: str, value: bytes | None) -> dict[str, Any]:
    text = None if value is None else _text(value)
    if value is not None and text is None:
        return {"name": name, "value_base64": base64.b64encode(value).decode()}
    return {"name": name, "value": text}


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _unlike(record: Record, wanted: str) -> Problem:
    detail = f"the value at offset {record.offset} is not {wanted}; ask with format=base64 or format=auto"
    return Problem(422, detail, code="value-of-another-format", more={"offset": record.offset})


def joined(texts: Iterable[str]) -> str:
    """JSON texts as a list."""
    return f"[{','.join(texts)}]"
