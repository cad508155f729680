"""From bytes to records: what `headrace produce` reads, one at a time."""

import base64
import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from headrace.client.writer import MAX_RECORD_BYTES, OutgoingRecord

from .console import Failure, bad_input
from .progress import Advance

Clock = Callable[[], float]
Encode = Callable[["bytes | dict[str, str]"], bytes]
EncodeById = Callable[[Any, int, str, str], bytes]
Headers = list[tuple[str, bytes | None]]

_CHUNK: Final = 256 << 10
_LATEST_TIMESTAMP: Final = 2**63 - 1
_MOST_SHOWN: Final = 60
_TOO_DEEP: Final = "is nested too deeply"


class Readable(Protocol):
    def read1(self, size: int = ..., /) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a piece of input becomes a record."""

    key_separator: bytes | None = None
    key: bytes | None = None
    null_value: bytes | None = None
    headers: Headers | None = None
    timestamp: int = 0
    encode_key: Encode | None = None
    encode_value: Encode | None = None
    """What makes bytes of a schema from JSON, or from a row of CSV; None leaves a value as it is."""
    encode_by_id: EncodeById | None = None
    """The same for lines of JSON that name their schemas, where none is given for all."""

    def record(self, piece: bytes, number: int, source: str) -> OutgoingRecord:
        """The record of one piece, which is the `number`th of its source."""
        key, value = self.key, piece
        if self.key_separator is not None:
            key, found, value = piece.partition(self.key_separator)
            if not found:
                raise self._no_key(number, source)
        return self.made(key, value, number, source)

    def made(self, key: bytes | None, value: bytes | dict[str, str] | None, number: int, source: str) -> OutgoingRecord:
        """The record with this key and value, encoded where that was asked for."""
        kept = None if value is not None and value == self.null_value else value
        where = f"record {number} of {source}"
        return OutgoingRecord(
            key=_encoded(self.encode_key, key, f"{where}, key"),
            value=_encoded(self.encode_value, kept, where),
            headers=self.headers,
            timestamp=self.timestamp,
        )

    def _no_key(self, number: int, source: str) -> Failure:
        shown = (self.key_separator or b"").decode(errors="backslashreplace")
        return bad_input(
            f"record {number} of {source} has no key separator '{shown}'; --key-separator wants one in each"
        )


def _encoded(encode: Encode | None, value: bytes | dict[str, str] | None, label: str) -> bytes | None:
    if value is None:
        return None
    if encode is None:
        return json.dumps(value, ensure_ascii=False).encode() if isinstance(value, dict) else value
    try:
        return encode(value)
    except RecursionError as error:
        raise bad_input(f"{label} {_TOO_DEEP}") from error
    except ValueError as error:
        raise bad_input(f"{label}: {error}") from error


def pieces(
    stream: Readable, delimiter: bytes, label: str, on_bytes: Advance, limit: int = MAX_RECORD_BYTES
) -> Iterator[bytes]:
    """The stream, cut at each delimiter; a last piece without one counts, an empty last piece does not.

    Each piece is given as soon as it is read, so that a slow pipe is followed line by line.
    """
    rest = b""
    while chunk := stream.read1(_CHUNK):
        on_bytes(len(chunk))
        rest += chunk
        if len(chunk) < len(rest) and delimiter not in rest[-len(chunk) - len(delimiter) :]:
            _check_size(rest, label, limit)
            continue
        *whole, rest = rest.split(delimiter)
        yield from whole
    if rest:
        yield rest


def _check_size(rest: bytes, label: str, limit: int) -> None:
    if len(rest) > limit:
        raise bad_input(f"{label} has a record of more than {limit} bytes; is --delimiter right?")


def records_of(
    stream: Readable, recipe: Recipe, delimiter: bytes, name: str, on_bytes: Advance
) -> Iterator[OutgoingRecord]:
    """The records of one stream. A carriage return before a line's end belongs to the end."""
    lines = delimiter == b"\n"
    for number, piece in enumerate(pieces(stream, delimiter, name, on_bytes), 1):
        if lines and piece.endswith(b"\r"):
            piece = piece[:-1]
        yield recipe.record(piece, number, name)


def csv_records(
    stream: Readable,
    recipe: Recipe,
    name: str,
    on_bytes: Advance,
    *,
    columns: Sequence[str] = (),
    key_column: str | None = None,
) -> Iterator[OutgoingRecord]:
    """The rows of CSV as objects of JSON, by the columns that the first line names, or these."""
    csv.field_size_limit(MAX_RECORD_BYTES)
    reader = csv.reader(_lines(stream, name, on_bytes), strict=True)
    try:
        head = list(columns) or next(reader, [])
        if not head:
            return
        _check_head(head, key_column, name)
        for number, row in enumerate(reader, 1):
            if not row:
                continue
            if len(row) != len(head):
                raise bad_input(f"row {number} of {name} has {len(row)} cells, and there are {len(head)} columns")
            fields = dict(zip(head, row, strict=True))
            key = recipe.key if key_column is None else fields[key_column].encode()
            yield recipe.made(key, fields, number, name)
    except csv.Error as error:
        raise bad_input(f"line {reader.line_num} of {name} is not CSV: {error}") from error


def _lines(stream: Readable, name: str, on_bytes: Advance) -> Iterator[str]:
    for number, piece in enumerate(pieces(stream, b"\n", name, on_bytes), 1):
        try:
            text = piece.decode()
        except UnicodeDecodeError as error:
            raise bad_input(f"line {number} of {name} is not UTF-8: {error}") from error
        yield (text.removeprefix("\ufeff") if number == 1 else text) + "\n"


def _check_head(head: Sequence[str], key_column: str | None, name: str) -> None:
    doubled = next((column for column in head if head.count(column) > 1), None)
    if doubled is not None:
        raise bad_input(f"{name} has two columns '{doubled}'; name them with --columns")
    if key_column is not None and key_column not in head:
        raise bad_input(f"--key-column {key_column}: {name} has the columns {', '.join(head)}")


def json_records(
    stream: Readable, recipe: Recipe, name: str, on_bytes: Advance, *, partitions: int | None = None
) -> Iterator[OutgoingRecord]:
    """Lines as `headrace consume --json` prints them: key, value, headers, timestamp and partition of each record.

    With `partitions`, which is how many the topic has, each record goes to the one it names.
    """
    for number, piece in enumerate(pieces(stream, b"\n", name, on_bytes), 1):
        if not piece.strip():
            continue
        label = f"record {number} of {name}"
        try:
            fields = json.loads(piece)
        except RecursionError as error:
            raise bad_input(f"{label} {_TOO_DEEP}") from error
        except ValueError as error:
            raise bad_input(f"{label} is not JSON: {error}") from error
        if not isinstance(fields, dict) or "value" not in fields:
            raise bad_input(f'{label} is not an object with a value, such as {{"key": "k", "value": "v"}}')
        try:
            record = _json_record(fields, recipe, number, name, partitions)
        except RecursionError as error:
            raise bad_input(f"{label} {_TOO_DEEP}") from error
        except ValueError as error:
            raise bad_input(f"{label}: {error}") from error
        yield record


def _json_record(
    fields: dict[str, Any], recipe: Recipe, number: int, name: str, partitions: int | None
) -> OutgoingRecord:
    """ValueError says what is wrong with the fields."""
    by_schema = {part: _by_schema(fields, part, recipe) for part in ("key", "value")}
    plain = {part: _bytes(fields.get(part)) for part, encoded in by_schema.items() if encoded is None}
    record = recipe.made(plain.get("key"), plain.get("value"), number, name)
    record.key = by_schema["key"] or record.key
    record.value = by_schema["value"] or record.value
    record.headers = _headers(fields.get("headers")) or recipe.headers
    record.timestamp = _timestamp(fields.get("timestamp")) or recipe.timestamp
    if partitions is not None:
        record.partition = _partition(fields.get("partition"), partitions)
    return record


def _by_schema(fields: dict[str, Any], part: str, recipe: Recipe) -> bytes | None:
    """A key or value encoded by the schema that the line names for it; None where it names none that counts."""
    schema_id = fields.get(f"{part}_schema_id")
    for_all = recipe.encode_key if part == "key" else recipe.encode_value
    if schema_id is None or for_all is not None or recipe.encode_by_id is None:
        return None
    if type(schema_id) is not int:
        raise ValueError(f"{part}_schema_id {_shown(schema_id)} is not the id of a schema")
    message = fields.get(f"{part}_message") or ""
    return recipe.encode_by_id(fields.get(part), schema_id, str(message), f"{part}_schema_id")


def _headers(given: Any) -> Headers:
    """Headers as pairs, as an object of names and values, or as the gateway has them: objects with name and value."""
    pairs = list(given.items()) if isinstance(given, dict) else given or []
    if not isinstance(pairs, list):
        raise _no_headers(given)
    headers: Headers = []
    for pair in pairs:
        match pair:
            case [str(name), value] | {"name": str(name), "value": value}:
                name.encode()
                headers.append((name, _bytes(value)))
            case _:
                raise _no_headers(given)
    return headers


def _no_headers(given: Any) -> ValueError:
    return ValueError(f'headers {_shown(given)} are not [["name", "value"], ...] or {{"name": "value", ...}}')


def _timestamp(given: Any) -> int:
    """0 for none."""
    try:
        timestamp = int(given or 0)
    except (TypeError, ValueError, OverflowError):
        timestamp = _LATEST_TIMESTAMP + 1
    if not -1 <= timestamp <= _LATEST_TIMESTAMP:
        raise ValueError(f"timestamp {_shown(given)} is not a number of milliseconds since 1970")
    return max(timestamp, 0)


def _partition(given: Any, partitions: int) -> int:
    if given is None:
        return -1
    if type(given) is not int or given not in range(partitions):
        raise ValueError(
            f"partition {_shown(given)}: the topic has {partitions}, from 0 to {partitions - 1}; leave it out for"
            " keys to choose, or give --partition for all"
        )
    return given


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."


def _bytes(value: Any) -> bytes | None:
    """As `text_or_base64` has shown them; what is neither is JSON itself."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return base64.b64decode(str(value["base64"]), validate=True)
    return json.dumps(value, ensure_ascii=False).encode()


def whole_file(stream: io.BufferedIOBase, recipe: Recipe, name: str, on_bytes: Advance) -> Iterator[OutgoingRecord]:
    """All of a stream as one record."""
    content = stream.read(MAX_RECORD_BYTES + 1)
    if len(content) > MAX_RECORD_BYTES:
        raise bad_input(f"{name} is larger than {MAX_RECORD_BYTES} bytes, too large for one record")
    on_bytes(len(content))
    yield recipe.record(content, 1, name)


def paced(
    records: Iterator[OutgoingRecord], rate: float, now: Clock, wait: Callable[[float], None]
) -> Iterator[OutgoingRecord]:
    """The same records, no more than `rate` of them a second."""
    start = now()
    for number, record in enumerate(records):
        early = start + number / rate - now()
        if early > 0:
            wait(early)
        yield record
