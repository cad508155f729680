"""JSON documents of random structs, read by the loop and one by one with Python's own parser."""

import json
from random import Random
from typing import Any, Final

import numpy as np

from headrace.formats import types as t
from headrace.formats.json_codec import JsonColumnDecoder
from tests.support.spark.documents import SCALARS

from .memory import MEMORY
from .mutation import payloads, with_absent
from .reading import at_the_end, raw

_ROWS: Final = 200
_SOUND: Final = 12
_TYPES: Final[list[t.DataType]] = [*SCALARS, t.LongType(), t.StringType()]
"""Twice those that most documents have."""
_NAMES: Final = ["a", "b", "id", "four", "fives", "a_name_of_two_words", "seven77", "é", 'q"uote', ""]
_NUMERALS: Final = [
    "0",
    "-0",
    "127",
    "-129",
    "2147483648",
    "9223372036854775807",
    "-9223372036854775808",
    "0.1",
    "1e5",
    "1E-3",
    "01",
    "1.",
    "-",
    "1e400",
    "9223372036854775808",
    "123456789012345678901234567890",
    "0.10",
    "12345.678",
    "9007199254740993",
    "0.30000000000000004",
    "1" * 60,
    "99999999999",
    "-1.5e-7",
    "5e-324",
]
_TIMES: Final = [
    "2024-01-05T10:11:12Z",
    "2024-01-05 10:11:12.5",
    "1969-12-31T23:59:59.999999999+01:00",
    "2024-1-5",
    "2024-02-29T00:00:00-18:00",
    "2023-02-29",
    "0001-01-01T00:00:00",
    "9999-12-31T23:59:59.999999",
    "2024-01-05",
    "2024-03-31T02:30:00",
    "2024-01-05T24:00:00Z",
    "2024-01-05T10:11",
    "0000-01-01",
]
_TEXTS: Final = [
    "",
    "x",
    "plain words of a text",
    "é",
    "日本語",
    "😀",
    'say "it"',
    "a\\b",
    "tab\there",
    "\u2028",
    "\x00",
]
_TOKENS: Final = [
    b'"',
    b"\\",
    b"\\u",
    b"\\ud83d",
    b"\\ude00",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"null",
    b"true",
    b"-",
    b"e",
    b".",
    b"0",
    b"1e",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xf0\x9f",
    b"\x00",
    b"\n",
    b" " * 9,
    b'"a":',
    b'{"a":',
    b"[[",
]
_ZONES: Final = ("UTC", "Europe/Paris")


def _struct(random: Random, depth: int) -> t.StructType:
    names = random.sample(_NAMES, random.randint(1, 5))
    return t.StructType([t.StructField(name, _type(random, depth)) for name in names])


def _type(random: Random, depth: int) -> t.DataType:
    kind = random.randrange(9 if depth else 6)
    if kind == 6:
        return _struct(random, depth - 1)
    if kind == 7:
        return t.ArrayType(_type(random, depth - 1))
    if kind == 8:
        return t.MapType(t.StringType(), _type(random, depth - 1))
    return random.choice(_TYPES)


def _document(random: Random, kind: t.DataType) -> str:
    chance = random.random()
    if chance < 0.05:
        return random.choice(("null", "true", "{}", "[]", '"x"', "1", '{"a":[{"b":null}]}', "[[[1]]]"))
    if isinstance(kind, t.StructType):
        fields = [field for field in kind.fields if random.random() < 0.9]
        if random.random() < 0.2:
            random.shuffle(fields)
        items = [f"{_text(random, field.name)}:{_document(random, field.data_type)}" for field in fields]
        if random.random() < 0.15:
            items.insert(random.randrange(len(items) + 1), f'"unknown": {_document(random, t.StringType())}')
        return "{" + random.choice((",", ", ")).join(items) + "}"
    if isinstance(kind, t.ArrayType):
        return "[" + ",".join(_document(random, kind.element_type) for _ in range(random.randrange(4))) + "]"
    if isinstance(kind, t.MapType):
        keys = [_text(random, random.choice(("k", "l", "é"))) for _ in range(random.randrange(3))]
        return "{" + ",".join(f"{key}: {_document(random, kind.value_type)}" for key in keys) + "}"
    return _scalar(random, kind)


def _text(random: Random, text: str) -> str:
    return json.dumps(text, ensure_ascii=random.random() < 0.5)


def _scalar(random: Random, kind: t.DataType) -> str:
    if isinstance(kind, t.BooleanType):
        return random.choice(("true", "false", "null"))
    if isinstance(kind, t.NumericType):
        if random.random() < 0.6:
            return str(random.randrange(-128, 128))
        text = random.choice(_NUMERALS)
        return f'"{text}"' if random.random() < 0.2 else text
    if isinstance(kind, t.BinaryType):
        return random.choice(('"aGk="', '""', '"YQ=="', '"aGk"'))
    if isinstance(kind, t.StringType):
        return _text(random, random.choice(_TEXTS)) if random.random() < 0.8 else random.choice(_NUMERALS)
    return json.dumps(random.choice(_TIMES)) if random.random() < 0.9 else str(random.randrange(-(10**12), 10**12))


def _with_tokens(random: Random, rows: list[bytes]) -> list[bytes]:
    """What means something in JSON, put where it does not belong."""
    return [_with_token(random, row) if random.random() < 0.3 else row for row in rows]


def _with_token(random: Random, row: bytes) -> bytes:
    at = random.randrange(len(row) + 1)
    return row[:at] + random.choice(_TOKENS) + row[at + random.choice((0, 0, 1)) :]


def run(random: Random) -> int:
    """One struct; what the loop reads is what is read one by one, with the same reasons where a document is bad."""
    kind = _struct(random, 2)
    sound = [_document(random, kind).encode() for _ in range(_SOUND)]
    rows = with_absent(random, _with_tokens(random, payloads(random, sound, _ROWS)))
    codec = JsonColumnDecoder(kind.json(), random.choice(_ZONES))
    what = f"struct {kind.simple_string()}"
    _check(codec, rows, what)
    return len(rows) + at_the_end(random, rows, lambda rows: _check(codec, rows, what))


def _check(codec: JsonColumnDecoder, rows: list[bytes | None], what: str) -> None:
    payload = MEMORY.payload(rows)
    found = codec.decode(payload)
    found.values.validate(full=True)
    there = np.flatnonzero(payload.present)
    single, errors = codec.read_one_by_one(payload, there)
    assert found.errors == errors, f"{_first_difference(found.errors, errors, rows)}; {what}"
    values = raw(found.values)
    for row, expected in zip(there.tolist(), raw(single), strict=True):
        assert values[row] == expected, f"row {row} is {expected}, not {values[row]}: {rows[row]!r}; {what}"
    assert all(values[row] is None for row, data in enumerate(rows) if data is None), what


def _first_difference(found: dict[int, Any], errors: dict[int, Any], rows: list[bytes | None]) -> str:
    row = min(row for row in {*found, *errors} if found.get(row) != errors.get(row))
    return f"row {row} is {errors.get(row, 'sound')!r}, not {found.get(row, 'sound')!r}: {rows[row]!r}"
