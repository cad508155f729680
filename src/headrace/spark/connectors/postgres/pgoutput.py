"""The messages of PostgreSQL's logical decoding plugin `pgoutput`, protocol version 1: bytes in, values out.

Of a transaction come Begin, then its changes, then Commit. A Relation message precedes the first change of a table, and
comes again when the table was altered. Values are text, as PostgreSQL writes them; a large value that an update did not
change is not sent (`UNCHANGED`) unless the table has REPLICA IDENTITY FULL.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from struct import Struct
from typing import Final

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")


class _Unchanged:
    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = _Unchanged()
"""In the place of a value that was not sent."""
Value = str | None | _Unchanged


class BadMessage(Exception):
    """Bytes that are no message of this protocol."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction begins; `lsn` is where its commit is."""

    lsn: int
    time: datetime
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """It ends; `end_lsn` is the position behind it."""

    lsn: int
    end_lsn: int
    time: datetime


@dataclass(frozen=True, slots=True)
class Relation:
    """A table. `keys` are the columns that tell its rows apart."""

    id: int
    schema: str
    name: str
    columns: tuple[str, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A row that was inserted (`c`), updated (`u`) or deleted (`d`), by the columns of its relation.

    `before` is the row before, or its key alone with null for all else; None where neither was sent, as with an update
    that left the key as it was. Of a deleted row there is no `after`.
    """

    op: str
    relation: int
    before: tuple[Value, ...] | None
    after: tuple[Value, ...] | None


@dataclass(frozen=True, slots=True)
class Truncate:
    """All rows of tables are gone."""

    relations: tuple[int, ...]


Message = Begin | Commit | Relation | Change | Truncate


class _Bytes:
    """Reads one message; BadMessage beyond its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        if count < 0 or self._at + count > len(self._data):
            raise BadMessage("it ends too early")
        self._at += count
        return self._data[self._at - count : self._at]

    def text(self) -> str:
        """Up to a zero."""
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise BadMessage("a name does not end")
        found = self._data[self._at : end].decode()
        self._at = end + 1
        return found

    def int8(self) -> int:
        return self.take(1)[0]

    def int16(self) -> int:
        return int(_INT16.unpack(self.take(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self.take(4))[0])

    def int64(self) -> int:
        return int(_INT64.unpack(self.take(8))[0])

    def time(self) -> datetime:
        return _EPOCH + timedelta(microseconds=self.int64())

    def row(self) -> tuple[Value, ...]:
        return tuple(self._value() for _ in range(self.int16()))

    def _value(self) -> Value:
        kind = self.take(1)
        if kind == b"n":
            return None
        if kind == b"u":
            return UNCHANGED
        if kind != b"t":
            raise BadMessage(f"a value is of kind {kind!r}")
        return self.take(self.int32()).decode()


def parse(data: bytes) -> Message | None:
    """A message; None for one that says nothing about rows (types, origins)."""
    message = _Bytes(data)
    kind = message.take(1)
    if kind == b"B":
        return Begin(message.int64(), message.time(), message.int32() & 0xFFFFFFFF)
    if kind == b"C":
        message.int8()
        return Commit(message.int64(), message.int64(), message.time())
    if kind == b"R":
        return _relation(message)
    if kind in (b"I", b"U", b"D"):
        return _change(kind, message)
    if kind == b"T":
        count = message.int32()
        message.int8()
        return Truncate(tuple(message.int32() for _ in range(count)))
    if kind in (b"Y", b"O", b"M"):
        return None
    raise BadMessage(f"its kind is {kind!r}")


def _relation(message: _Bytes) -> Relation:
    number, schema, name = message.int32(), message.text(), message.text()
    message.int8()
    columns: list[str] = []
    keys: list[str] = []
    for _ in range(message.int16()):
        is_key = message.int8() & 1
        columns.append(message.text())
        message.take(8)
        if is_key:
            keys.append(columns[-1])
    return Relation(number, schema or "pg_catalog", name, tuple(columns), tuple(keys))


def _change(kind: bytes, message: _Bytes) -> Change:
    relation = message.int32()
    part = message.take(1)
    before = None
    if part in (b"K", b"O"):
        before = message.row()
        if kind == b"D":
            return Change("d", relation, before, None)
        part = message.take(1)
    if part != b"N":
        raise BadMessage(f"a row is of kind {part!r}")
    return Change("c" if kind == b"I" else "u", relation, before, message.row())
