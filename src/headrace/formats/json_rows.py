"""JSON one record at a time: what any record means, for those that the loop does not take.

As Spark's `from_json` reads it, but that a record which does not fit is bad as a whole, and that these are bad too:
text behind the document, an empty value, strings in single quotes, half a surrogate pair, a time without a date,
a number that its type cannot hold (Spark lets a TINYINT wrap around). A number read as a STRING keeps its digits.
Of a struct's fields of one name the last counts; a map has all entries of one key.
"""

import base64
import binascii
import decimal
import json
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from . import types as t
from .times import MICROS, days_of_text, micros_of_text

Convert = Callable[[Any], Any]

_SPECIAL: Final = {
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "+Infinity": float("inf"),
    "+INF": float("inf"),
    "-Infinity": float("-inf"),
    "-INF": float("-inf"),
}
_LIMITS: Final = {t.ByteType: 2**7, t.ShortType: 2**15, t.IntegerType: 2**31, t.LongType: 2**63}
_LONGEST_INTEGER: Final = 20
_LONGEST_SHOWN: Final = 60
_ARITHMETIC: Final = decimal.Context(prec=80, rounding=decimal.ROUND_HALF_UP, traps=[decimal.InvalidOperation])


class Misfit(ValueError):
    """A value that is not of its field's type."""


class Numeral(str):
    """A number as it was written."""

    __slots__ = ()


class Document(dict[str, Any]):
    """An object: the last of the fields of one name, and in `pairs` all of them as they were written."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


class JsonRows:
    """Reads records of one struct."""

    def __init__(self, spark_type: t.StructType, zone: str) -> None:
        self._convert = _struct(spark_type, zone, "")
        self._load = json.JSONDecoder(
            parse_int=Numeral,
            parse_float=Numeral,
            parse_constant=lambda name: _SPECIAL[name],
            object_pairs_hook=Document,
        ).decode

    def read(self, data: bytes) -> tuple[dict[str, Any] | None, str]:
        """The record as Arrow takes it, or why it is bad."""
        try:
            found = self._load(data.decode())
            if found is None:
                return None, "the value is null, not an object"
            return self._convert(found), ""
        except Misfit as error:
            return None, str(error)
        except UnicodeDecodeError as error:
            return None, f"not UTF-8, at byte {error.start}"
        except json.JSONDecodeError as error:
            return None, f"not JSON: {error}" if data.strip() else "the value is empty"
        except RecursionError:
            return None, "not JSON: it is nested too deep"


def _converter(spark_type: t.DataType, zone: str, path: str) -> Convert:
    if isinstance(spark_type, t.StructType):
        return _struct(spark_type, zone, path)
    if isinstance(spark_type, t.ArrayType):
        return _list(spark_type, zone, path)
    if isinstance(spark_type, t.MapType):
        return _map(spark_type, zone, path)
    convert = _scalar(spark_type, zone)
    name = spark_type.simple_string()

    def checked(value: Any) -> Any:
        if value is None:
            return None
        try:
            return convert(value)
        except (ValueError, decimal.DecimalException, TypeError, KeyError, binascii.Error) as error:
            raise Misfit(f"{path}: {_shown(value)} is not {name}") from error

    return checked


def _shown(value: Any) -> str:
    text = "an object" if isinstance(value, Document) else "a list" if isinstance(value, list) else rendered(value)
    whole = text.encode("utf-8", "backslashreplace").decode()  # half a surrogate pair would not go into a column
    return whole if len(whole) <= _LONGEST_SHOWN else whole[: _LONGEST_SHOWN - 3] + "..."


def _struct(spark_type: t.StructType, zone: str, path: str) -> Convert:
    fields = [(field.name, _converter(field.data_type, zone, _below(path, field.name))) for field in spark_type.fields]

    def convert(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, Document):
            raise Misfit(f"{path or 'the value'}: {_shown(value)} is not an object")
        return {name: read(value.get(name)) for name, read in fields}

    return convert


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _list(spark_type: t.ArrayType, zone: str, path: str) -> Convert:
    read = _converter(spark_type.element_type, zone, f"{path}[]")

    def convert(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, list):
            raise Misfit(f"{path}: {_shown(value)} is not a list")
        return [read(item) for item in value]

    return convert


def _map(spark_type: t.MapType, zone: str, path: str) -> Convert:
    read = _converter(spark_type.value_type, zone, f"{path}[]")

    def convert(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, Document):
            raise Misfit(f"{path}: {_shown(value)} is not an object")
        return [(_sound(key), read(item)) for key, item in value.pairs]

    return convert


def _scalar(spark_type: t.DataType, zone: str) -> Convert:
    kind = type(spark_type)
    if kind in _LIMITS:
        return lambda value: _integer(value, _LIMITS[kind])
    if isinstance(spark_type, t.DecimalType):
        return lambda value: _decimal(value, spark_type.precision, spark_type.scale)
    if kind is t.TimestampType:
        return lambda value: _timestamp(value, zone)
    return _SCALARS[kind]


def _integer(value: Any, limit: int) -> int:
    if not isinstance(value, Numeral) or len(value) > _LONGEST_INTEGER:
        raise ValueError
    number = int(value)
    if not -limit <= number < limit:
        raise ValueError
    return number


def _double(value: Any) -> float:
    if isinstance(value, Numeral | float):
        return float(value)
    return _SPECIAL[_text(value)]


def _float(value: Any) -> Any:
    if isinstance(value, Numeral):  # not by way of a double, which would round twice
        return pa.scalar(str(value)).cast(pa.float32()).as_py()
    return _double(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or isinstance(value, Numeral):
        raise TypeError
    return value


def _sound(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Misfit(f"half a surrogate pair in {text!a}") from error
    return text


def _string(value: Any) -> str:
    return _sound(value if isinstance(value, str) else rendered(value))


def rendered(value: Any) -> str:
    """A value as JSON without spaces, numbers as they were written."""
    if isinstance(value, Numeral):
        return str(value)
    if isinstance(value, Document):
        return "{" + ",".join(f"{_quoted(key)}:{rendered(item)}" for key, item in value.pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(rendered(item) for item in value) + "]"
    return _quoted(value) if isinstance(value, str | float) else json.dumps(value)


def _quoted(value: str | float) -> str:
    return json.dumps(value, ensure_ascii=False)


def _decimal(value: Any, precision: int, scale: int) -> decimal.Decimal:
    text = str(value) if isinstance(value, Numeral) else _text(value).replace(",", "")
    if text.strip() != text or "_" in text or not text.isascii():
        raise ValueError
    number = decimal.Decimal(text)
    if not number.is_finite() or (number and number.adjusted() >= precision):
        raise ValueError
    rounded = number.quantize(decimal.Decimal(1).scaleb(-scale), context=_ARITHMETIC)
    if rounded and rounded.adjusted() >= precision - scale:
        raise ValueError
    return rounded


def _timestamp(value: Any, zone: str) -> int:
    if not isinstance(value, Numeral):
        return micros_of_text(_text(value), zone)
    micros = _integer(value, 2**63) * MICROS
    if not -(2**63) <= micros < 2**63:
        raise ValueError
    return micros


_SCALARS: Final[dict[Any, Convert]] = {
    t.BooleanType: _boolean,
    t.FloatType: _float,
    t.DoubleType: _double,
    t.StringType: _string,
    t.BinaryType: lambda value: base64.b64decode(_text(value), validate=True),
    t.DateType: lambda value: days_of_text(_text(value)),
    t.TimestampNTZType: lambda value: micros_of_text(_text(value), None),
}
