"""Types of PostgreSQL and Spark, and values out of PostgreSQL's text."""

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Final, NamedTuple

from ..base import ConnectorError

_MOST_DIGITS: Final = 38
Convert = Callable[[str], object]


class Column(NamedTuple):
    """A column of a table."""

    name: str
    kind: str
    """Its type, as format_type() writes it."""
    is_key: bool

    @property
    def ddl(self) -> str:
        """As Spark's DDL has it; every column may be null, as of deleted rows only the key is known."""
        return f"`{self.name.replace('`', '``')}` {_sparks(self.kind)[0]}"

    @property
    def convert(self) -> Convert:
        """From PostgreSQL's text to what Spark takes."""
        return _sparks(self.kind)[1]


def value_of(column: Column, text: str | None) -> object:
    """A value; ConnectorError for one that Spark has no value for, as `infinity` of a time."""
    if text is None:
        return None
    try:
        return column.convert(text)
    except (ValueError, LookupError, ArithmeticError) as error:
        raise ConnectorError(
            f"column '{column.name}' ({column.kind}) has the value '{text[:60]}', which Spark does not have; leave the "
            "column out with `columns`, or change the value"
        ) from error


def _sparks(kind: str) -> tuple[str, Convert]:
    base, _, rest = kind.partition("(")
    base = base.strip() + rest.partition(")")[2]
    if base == "numeric" and rest:
        digits, _, scale = rest.partition(")")[0].partition(",")
        if 0 <= int(scale or 0) <= int(digits) <= _MOST_DIGITS:
            return f"DECIMAL({int(digits)},{int(scale or 0)})", Decimal
        return "STRING", str
    return _TYPES.get(base, ("STRING", str))


def _bytes(text: str) -> bytes:
    if not text.startswith("\\x"):
        raise ValueError("bytea_output is not hex")
    return bytes.fromhex(text[2:])


def _zoned(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError("a time without a zone")
    return found


_TYPES: Final[dict[str, tuple[str, Convert]]] = {
    "smallint": ("SMALLINT", int),
    "integer": ("INT", int),
    "bigint": ("BIGINT", int),
    "oid": ("BIGINT", int),
    "real": ("FLOAT", float),
    "double precision": ("DOUBLE", float),
    "boolean": ("BOOLEAN", lambda text: {"t": True, "f": False, "true": True, "false": False}[text]),
    "date": ("DATE", date.fromisoformat),
    "timestamp without time zone": ("TIMESTAMP_NTZ", datetime.fromisoformat),
    "timestamp with time zone": ("TIMESTAMP", _zoned),
    "bytea": ("BINARY", _bytes),
}
"""All others are text: as PostgreSQL writes it, which JSON, arrays, uuid and money come back from."""
