"""Spark's way to write a schema as text, read without Spark: planners and executors have no session to ask."""

import json
import re
from collections.abc import Callable
from typing import Any, Final, NoReturn

from . import types as t
from .errors import OptionError

_TOKEN: Final = re.compile(r"\s*(?:`((?:[^`]|``)*)`|('(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\")|(\w+)|([<>(),:])|(\S))")
_MOST_NESTED: Final = 100
_MOST_DIGITS: Final = 38

_SIMPLE: Final[dict[str, Callable[[], t.DataType]]] = {
    "boolean": t.BooleanType,
    "tinyint": t.ByteType,
    "byte": t.ByteType,
    "smallint": t.ShortType,
    "short": t.ShortType,
    "int": t.IntegerType,
    "integer": t.IntegerType,
    "bigint": t.LongType,
    "long": t.LongType,
    "float": t.FloatType,
    "real": t.FloatType,
    "double": t.DoubleType,
    "date": t.DateType,
    "timestamp": t.TimestampType,
    "timestamp_ltz": t.TimestampType,
    "timestamp_ntz": t.TimestampNTZType,
    "string": t.StringType,
    "binary": t.BinaryType,
}
_DECIMAL: Final = frozenset({"decimal", "dec", "numeric"})


def parse_schema(text: str) -> t.StructType:
    """The struct that a schema in DDL (`id BIGINT, name STRING`, `struct<id: bigint>`) or in Spark's JSON describes."""
    if text.lstrip().startswith("{"):
        return _from_json(text)
    reader = _Reader(text)
    if reader.words_ahead("struct", "<"):
        found = reader.data_type()
        reader.expect_end()
        return _struct(found)
    return reader.fields("")


def _struct(found: t.DataType) -> t.StructType:
    if not isinstance(found, t.StructType) or not found.fields:
        raise OptionError("schema: the top level must be a struct with at least one field")
    return found


def _from_json(text: str) -> t.StructType:
    try:
        return _struct(t.of_json(json.loads(text)))
    except OptionError:
        raise
    except Exception as error:  # an odd document may lead to anything
        raise OptionError(f"schema: not a Spark schema in JSON, as df.schema.json() gives it ({error})") from error


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [self._token(match) for match in _TOKEN.finditer(text)]
        self._next = 0
        self._depth = 0

    @staticmethod
    def _token(match: re.Match[str]) -> tuple[str, str, int]:
        quoted, literal, word, mark, other = match.groups()
        place = match.start(match.lastindex or 0)
        if quoted is not None:
            return "name", quoted.replace("``", "`"), place
        if literal is not None:
            return "literal", literal, place
        return ("word", word, place) if word is not None else ("mark", mark or other, place)

    def _fail(self, wanted: str) -> NoReturn:
        if self._next < len(self._tokens):
            _, found, place = self._tokens[self._next]
            raise OptionError(f"schema: expected {wanted} but found '{found}' at character {place + 1}")
        raise OptionError(f"schema: expected {wanted} at the end")

    def _peek(self) -> tuple[str, str]:
        kind, text, _ = self._tokens[self._next] if self._next < len(self._tokens) else ("end", "", 0)
        return kind, text

    def words_ahead(self, *words: str) -> bool:
        ahead = self._tokens[self._next : self._next + len(words)]
        return tuple(text.lower() for kind, text, _ in ahead if kind != "name") == words

    def _take(self, *words: str) -> bool:
        if not self.words_ahead(*words):
            return False
        self._next += len(words)
        return True

    def _expect(self, mark: str) -> None:
        if not self._take(mark):
            self._fail(f"'{mark}'")

    def expect_end(self) -> None:
        if self._peek()[0] != "end":
            self._fail("the end")

    def fields(self, closing: str) -> t.StructType:
        """Fields up to the closing mark, or the end."""
        fields: list[t.StructField] = []
        if closing and self._take(closing):
            return t.StructType(fields)
        while True:
            fields.append(self._field())
            if not self._take(","):
                break
        self._expect(closing) if closing else self.expect_end()
        names = [field.name for field in fields]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise OptionError(f"schema: the field '{twice[0]}' is there twice")
        return t.StructType(fields)

    def _field(self) -> t.StructField:
        kind, name = self._peek()
        if kind not in ("name", "word"):
            self._fail("a field's name")
        self._next += 1
        self._take(":")
        data_type = self.data_type()
        nullable = not self._take("not", "null")
        if self._take("comment"):
            if self._peek()[0] != "literal":
                self._fail("a comment in quotes")
            self._next += 1
        return t.StructField(name, data_type, nullable)

    def data_type(self) -> t.DataType:
        """One type."""
        self._depth += 1
        if self._depth > _MOST_NESTED:
            raise OptionError(f"schema: types are nested more than {_MOST_NESTED} deep")
        kind, text = self._peek()
        if kind != "word":
            self._fail("a type")
        self._next += 1
        found = self._named(text.lower())
        self._depth -= 1
        return found

    def _named(self, name: str) -> t.DataType:
        if name == "array":
            return self._inside(lambda: t.ArrayType(self.data_type()))
        if name == "map":
            return self._inside(self._map)
        if name == "struct":
            self._expect("<")
            return self.fields(">")
        if name in _DECIMAL:
            return self._decimal()
        if name not in _SIMPLE:
            self._next -= 1
            self._fail("a type that can be decoded, such as STRING, BIGINT, DOUBLE, TIMESTAMP or ARRAY<STRING>,")
        return _SIMPLE[name]()

    def _inside(self, read: Callable[[], t.DataType]) -> t.DataType:
        self._expect("<")
        found = read()
        self._expect(">")
        return found

    def _map(self) -> t.DataType:
        key = self.data_type()
        self._expect(",")
        return t.MapType(key, self.data_type())

    def _decimal(self) -> t.DataType:
        sizes = [10, 0]
        if self._take("("):
            sizes[0] = self._number()
            if self._take(","):
                sizes[1] = self._number()
            self._expect(")")
        if not 1 <= sizes[0] <= _MOST_DIGITS or sizes[1] > sizes[0]:
            raise OptionError(
                f"schema: decimal({sizes[0]},{sizes[1]}) cannot be: it has 1 to {_MOST_DIGITS} digits, the second "
                "number of them behind the point"
            )
        return t.DecimalType(*sizes)

    def _number(self) -> int:
        kind, text = self._peek()
        if kind != "word" or not text.isdecimal():
            self._fail("a number")
        self._next += 1
        return int(text)


__all__: Final[list[Any]] = ["parse_schema"]
