"""Records of a writer's Avro schema as a program that fills the columns of a reader's.

The steps follow the writer's schema, which is what the bytes are made of; where their values go is the reader's word,
by Avro's rules of schema resolution. A step is four integers: what to do, the node it fills, and two arguments. A
union is a SWITCH over a table of steps to go on with; each branch ends with a JUMP behind the union. An array is an
ARRAY step, the steps of one element, and a NEXT that goes back to them; a map is an array whose elements start with
their key. What the reader does not have is passed over, records by a CALL of steps that end with a RETURN, as they may
be inside of themselves; what the writer does not have is a constant, the default.

Where the two cannot be resolved stands a FAIL with the reason: a record that comes there is bad, others are not.
Logical types give numbers their meaning, so that different ones are not resolved, but for times in other units.
"""

import struct
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from headrace.registry.schemas.avro import AvroModel, Enum, Field, Fixed, Items, Named, Node, Record, Union
from headrace.registry.schemas.avro_compat import PROMOTIONS

from . import types as t
from .avro_columns import AvroColumn, columns_of, is_default_of, logical_type, resolved, takes_no_bytes
from .layout import ColumnLayout, ColumnNode, Form

BOOLEAN, INT, LONG, MILLIS, FLOAT, FLOAT_AS_DOUBLE, DOUBLE, BYTES, STRING, FIXED, ENUM, DECIMAL = range(12)
FIXED_DECIMAL, LONG_AS_FLOAT, LONG_AS_DOUBLE, PASS_VARINT, PASS_SPAN, PASS_FIXED, END = range(12, 19)
RECORD, SWITCH, JUMP, ARRAY, NEXT, CALL, RETURN, CONSTANT, WIDE_CONSTANT, ELEMENT, FAIL = range(19, 30)

UNRESOLVED: Final = -16
"""The fault of the first reason; that of the next is one less, and so on."""

NOT_OPENED: Final = -1
"""In place of an array's scope where its elements are passed over."""

_PASSED: Final = {"int": (PASS_VARINT, 0), "long": (PASS_VARINT, 0), "enum": (PASS_VARINT, 0)} | {
    "string": (PASS_SPAN, 0),
    "bytes": (PASS_SPAN, 0),
    "boolean": (PASS_FIXED, 1),
    "float": (PASS_FIXED, 4),
    "double": (PASS_FIXED, 8),
}
_NUMBERS: Final = {"boolean": BOOLEAN, "int": INT, "long": LONG}
_TO_FLOAT: Final = {"int": LONG_AS_FLOAT, "long": LONG_AS_FLOAT, "float": FLOAT}
_TO_DOUBLE: Final = {"int": LONG_AS_DOUBLE, "long": LONG_AS_DOUBLE, "float": FLOAT_AS_DOUBLE, "double": DOUBLE}
_MEANINGFUL: Final = ("date", "time-", "timestamp-", "local-timestamp-")
_UNITS: Final = ("millis", "micros")
_MOMENTS: Final = (t.TimestampType, t.TimestampNTZType)
_MOST_MILLIS: Final = (2**63 - 1) // 1000
_MOST_CALLS: Final = 1000


class AvroPlan(NamedTuple):
    """What the loop needs to know of a pair of schemas."""

    spark_type: t.DataType
    layout: ColumnLayout
    steps: Any
    tables: Any
    texts: bytes
    """The texts of constants."""
    reasons: tuple[str, ...]
    """Why records that come to a FAIL are bad."""
    depth: int
    """How many arrays and calls may be inside of each other."""


def plan_of(reader: AvroModel, writer: AvroModel) -> AvroPlan:
    """How to read what the writer wrote; OptionError where the reader's schema cannot become columns."""
    layout, root = columns_of(reader)
    program = _Program(reader, writer)
    program.value(writer.root, root, "value")
    program.emit(END)
    program.add_called()
    return AvroPlan(
        spark_type=root.spark_type,
        layout=layout,
        steps=np.array(program.steps, np.int64),
        tables=np.array(program.tables or [0], np.int64),
        texts=bytes(program.texts),
        reasons=tuple(program.reasons),
        depth=program.deepest + (_MOST_CALLS if program.calls else 0),
    )


class _Unresolvable(Exception):
    """Why a value of the writer's cannot be one of the reader's."""


@dataclass(frozen=True, slots=True)
class _Match:
    """Which of the reader's fields takes each of the writer's, and those that none is for."""

    targets: dict[str, tuple[Field, AvroColumn]]
    absent: list[tuple[Field, AvroColumn]]


class _Program:
    def __init__(self, reader: AvroModel, writer: AvroModel) -> None:
        self.steps: list[list[int]] = []
        self.tables: list[int] = []
        self.texts = bytearray()
        self.reasons: list[str] = []
        self.deepest = 0
        self.calls: dict[str, list[int]] = {}
        """The records that are passed over by a call, and the steps that call."""
        self._depth = 0
        self._reader = reader.names
        self._writer = writer.names

    def emit(self, code: int, column: ColumnNode | None = None, first: int = 0, second: int = 0) -> int:
        self.steps.append([code, column.index if column else 0, first, second])
        return len(self.steps) - 1

    def _fail(self, reason: str) -> None:
        self.emit(FAIL, None, self._fault(reason))

    def _fault(self, reason: str) -> int:
        self.reasons.append(reason)
        return UNRESOLVED - (len(self.reasons) - 1)

    def value(self, writer: Node, reader_column: AvroColumn, path: str) -> None:
        """The steps for a value of the writer's that goes to a place of the reader's."""
        writer = resolved(writer, self._writer)
        try:
            if isinstance(writer, Union):
                self._switch(writer, lambda branch: self.value(branch, reader_column, path))
            elif isinstance(reader_column.schema, Union):
                branch = self._branch(writer, reader_column)
                if reader_column.has_members and branch.schema.kind != "null":
                    self.emit(RECORD, reader_column.column)
                self.value(writer, branch, path)
            elif isinstance(writer, Record) and isinstance(reader_column.schema, Record):
                self._record(writer, reader_column, path)
            elif isinstance(writer, Items) and writer.kind == reader_column.schema.kind:
                self._items(writer, reader_column, path)
            else:
                self._scalar(writer, reader_column)
        except _Unresolvable as error:
            self._fail(f"{path}: {error}")

    def _switch(self, writer: Union, each: Any) -> None:
        table = len(self.tables)
        self.emit(SWITCH, None, table, len(writer.branches))
        self.tables += [0] * len(writer.branches)
        jumps = []
        for number, branch in enumerate(writer.branches):
            self.tables[table + number] = len(self.steps)
            each(branch)
            jumps.append(self.emit(JUMP))
        for jump in jumps:
            self.steps[jump][2] = len(self.steps)

    def _branch(self, writer: Node, reader_column: AvroColumn) -> AvroColumn:
        """The branch of the reader's union that takes a value: of the same name, else of the same type, else the first
        that it can be promoted to.
        """
        for matches in (_is_same, _is_alike, _is_promoted):
            for branch in reader_column.parts:
                if matches(branch.schema, writer):
                    return branch
        raise _Unresolvable(f"the reader's union has no branch for {_shown(writer)}")

    def _record(self, writer: Record, reader_column: AvroColumn, path: str) -> None:
        match = self._matched(writer, reader_column)
        self.emit(RECORD, reader_column.column)
        for one in writer.fields:
            target = match.targets.get(one.name)
            if target is None:
                self._pass(one.type, f"{path}.{one.name}")
            else:
                self.value(one.type, target[1], f"{path}.{target[0].name}")
        for reader_field, part in match.absent:
            if not is_default_of(reader_field.default, part.schema, self._reader):
                raise _Unresolvable(f"the default of the reader's field {reader_field.name} is not of its type")
            self._constant(reader_field.default, part)

    def _matched(self, writer: Record, reader_column: AvroColumn) -> _Match:
        reader = reader_column.schema
        assert isinstance(reader, Record)
        if not _is_alike(reader, writer):
            raise _Unresolvable(
                f"the writer's record is {writer.name}, the reader's {reader.name} and has no such alias"
            )
        written = {one.name for one in writer.fields}
        own = dict(
            zip((one.name for one in reader.fields), zip(reader.fields, reader_column.parts, strict=True), strict=True)
        )
        renamed = {alias: one.name for one in reader.fields if one.name not in written for alias in one.aliases}
        targets: dict[str, tuple[Field, AvroColumn]] = {}
        taken: set[str] = set()
        for one in writer.fields:
            name = renamed.get(one.name, one.name)
            if name in own and name not in taken:
                taken.add(name)
                targets[one.name] = own[name]
        absent = [entry for name, entry in own.items() if name not in taken]
        for one, _ in absent:
            if not one.has_default:
                raise _Unresolvable(f"the writer has no field {one.name}, and the reader's has no default")
        return _Match(targets, absent)

    def _items(self, writer: Items, reader_column: AvroColumn, path: str) -> None:
        if takes_no_bytes(writer.of, self._writer) and writer.kind == "array":
            raise _Unresolvable("the writer's items take no bytes, so nothing bounds how many there are")
        column, (item,) = reader_column.column, reader_column.parts

        def element() -> None:
            if writer.kind == "map":
                self.emit(STRING, column.children[0])
            self.value(writer.of, item, f"{path}[]")

        self._loop(column, column.inner_scope, element)

    def _loop(self, column: ColumnNode | None, scope: int, element: Any) -> None:
        self._depth += 1
        self.deepest = max(self.deepest, self._depth)
        start = self.emit(ARRAY, column, scope)
        element()
        self.emit(NEXT, column, scope, start + 1)
        self.steps[start][3] = len(self.steps)
        self._depth -= 1

    def _scalar(self, writer: Node, reader_column: AvroColumn) -> None:
        reader, column = reader_column.schema, reader_column.column
        if not (_is_alike(reader, writer) or _is_promoted(reader, writer)):
            raise _Unresolvable(f"the writer's {_shown(writer)} cannot be read as {_shown(reader)}")
        _check_meaning(reader, writer)
        if column.form is Form.DECIMAL and writer.kind == "string":
            raise _Unresolvable("the writer's string is no decimal")
        if writer.kind == "null":
            return
        if isinstance(writer, Enum) and isinstance(reader, Enum):
            self._enum(writer, reader, column)
        elif column.form is Form.DECIMAL:
            is_fixed = isinstance(writer, Fixed)
            size = writer.size if isinstance(writer, Fixed) else 0
            digits = getattr(reader_column.spark_type, "precision", 0)
            self.emit(FIXED_DECIMAL if is_fixed else DECIMAL, column, size, digits)
        elif isinstance(writer, Fixed):
            self.emit(FIXED, column, writer.size)
        elif column.form is Form.BYTES:
            self.emit(STRING if isinstance(reader_column.spark_type, t.StringType) else BYTES, column)
        elif column.form is Form.FLOAT_BITS:
            codes = _TO_FLOAT if isinstance(reader_column.spark_type, t.FloatType) else _TO_DOUBLE
            self.emit(codes[writer.kind], column)
        elif column.form is Form.NUMBER:
            in_millis = isinstance(reader_column.spark_type, _MOMENTS) and _is_in_millis(reader, writer)
            self.emit(MILLIS if in_millis else _NUMBERS[writer.kind], column)

    def _enum(self, writer: Enum, reader: Enum, column: ColumnNode) -> None:
        table = len(self.tables)
        numbers = {symbol: number for number, symbol in enumerate(reader.symbols)}
        default = None if reader.default is None else numbers[reader.default]
        for symbol in writer.symbols:
            number = numbers.get(symbol, default)
            unknown = f"the reader's enum {reader.name} has no {symbol}, and no default"
            self.tables.append(self._fault(unknown) if number is None else number)
        self.emit(ENUM, column, len(writer.symbols), table)

    def _pass(self, writer: Node, path: str) -> None:
        """The steps past a value that the reader does not have."""
        writer = resolved(writer, self._writer)
        if isinstance(writer, Union):
            self._switch(writer, lambda branch: self._pass(branch, path))
        elif isinstance(writer, Record):
            self.calls.setdefault(writer.name, []).append(self.emit(CALL))
        elif isinstance(writer, Items):
            self._pass_items(writer, path)
        elif isinstance(writer, Fixed):
            self.emit(PASS_FIXED, None, writer.size)
        elif writer.kind != "null":
            code, size = _PASSED[writer.kind]
            self.emit(code, None, size)

    def add_called(self) -> None:
        """Add the steps that are called, which may call others."""
        added: set[str] = set()
        while waiting := self.calls.keys() - added:
            name = min(waiting)
            added.add(name)
            entry = len(self.steps)
            record = self._writer[name]
            assert isinstance(record, Record)
            for one in record.fields:
                self._pass(one.type, f"{name}.{one.name}")
            self.emit(RETURN)
            self.calls[name].insert(0, entry)
        for entry, *callers in self.calls.values():
            for caller in callers:
                self.steps[caller][2] = entry

    def _pass_items(self, writer: Items, path: str) -> None:
        if writer.kind == "array" and takes_no_bytes(writer.of, self._writer):
            self._fail(f"{path}: the writer's items take no bytes, so nothing bounds how many there are")
            return

        def element() -> None:
            if writer.kind == "map":
                self.emit(PASS_SPAN)
            self._pass(writer.of, f"{path}[]")

        self._loop(None, NOT_OPENED, element)

    def _constant(self, value: Any, reader_column: AvroColumn) -> None:
        """The steps that put a default."""
        schema, column = reader_column.schema, reader_column.column
        if isinstance(schema, Union):
            self._constant_branch(value, reader_column)
        elif isinstance(schema, Record):
            self.emit(RECORD, column)
            for one, part in zip(schema.fields, reader_column.parts, strict=True):
                self._constant(value.get(one.name, one.default), part)
        elif isinstance(schema, Items):
            self._constant_items(value, reader_column)
        elif schema.kind != "null":
            self._constant_scalar(value, reader_column)

    def _constant_branch(self, value: Any, reader_column: AvroColumn) -> None:
        branch = next(part for part in reader_column.parts if is_default_of(value, part.schema, self._reader))
        if reader_column.has_members and branch.schema.kind != "null":
            self.emit(RECORD, reader_column.column)
        self._constant(value, branch)

    def _constant_items(self, value: Any, reader_column: AvroColumn) -> None:
        column, (item,) = reader_column.column, reader_column.parts
        self.emit(RECORD, column)
        for entry in value:
            self.emit(ELEMENT, column, column.inner_scope)
            if reader_column.schema.kind == "map":
                self._constant_text(column.children[0], entry.encode())
            self._constant(value[entry] if reader_column.schema.kind == "map" else entry, item)

    def _constant_scalar(self, value: Any, reader_column: AvroColumn) -> None:
        schema, column = reader_column.schema, reader_column.column
        if isinstance(schema, Enum):
            self.emit(CONSTANT, column, schema.symbols.index(value))
        elif column.form is Form.DECIMAL:
            self.emit(WIDE_CONSTANT, column, *_halves(value.encode("latin-1"), reader_column.spark_type))
        elif column.form is Form.BYTES:
            self._constant_text(column, value.encode() if schema.kind == "string" else value.encode("latin-1"))
        elif column.form is Form.FLOAT_BITS:
            is_float = isinstance(reader_column.spark_type, t.FloatType)
            self.emit(CONSTANT, column, _bits(float(value), is_float, schema.kind == "float"))
        else:
            in_millis = isinstance(reader_column.spark_type, _MOMENTS) and _is_in_millis(schema, schema)
            self.emit(CONSTANT, column, _micros(int(value)) if in_millis else int(value))

    def _constant_text(self, column: ColumnNode, text: bytes) -> None:
        self.emit(WIDE_CONSTANT, column, -1 - len(self.texts), len(text))
        self.texts += text


def _is_same(reader: Node, writer: Node) -> bool:
    if isinstance(reader, Named) and isinstance(writer, Named):
        return _is_alike(reader, writer) and reader.name == writer.name
    return _is_alike(reader, writer)


def _is_alike(reader: Node, writer: Node) -> bool:
    """Whether both are of one type, by names without their namespaces or by the reader's aliases."""
    if not (isinstance(reader, Named) and isinstance(writer, Named)):
        return reader.kind == writer.kind
    if isinstance(reader, Record) != isinstance(writer, Record):
        return False
    if not isinstance(reader, Record) and reader.kind != writer.kind:
        return False
    if isinstance(reader, Fixed) and isinstance(writer, Fixed) and reader.size != writer.size:
        return False
    return reader.simple == writer.simple or writer.name in reader.aliases


def _is_promoted(reader: Node, writer: Node) -> bool:
    return reader.kind in PROMOTIONS.get(writer.kind, ())


def _shown(node: Node) -> str:
    name = f"{node.kind} {node.name}" if isinstance(node, Named) else node.kind
    return f"{name} ({logical_type(node)})" if logical_type(node) else name


def _check_meaning(reader: Node, writer: Node) -> None:
    mine, theirs = logical_type(reader), logical_type(writer)
    if mine == theirs == "decimal" and reader.extra.get("scale", 0) != writer.extra.get("scale", 0):
        raise _Unresolvable("decimals of another scale are other numbers")
    if mine == theirs or not (mine.startswith(_MEANINGFUL) and theirs.startswith(_MEANINGFUL)):
        return
    (kind, _, unit), (other_kind, _, other_unit) = mine.rpartition("-"), theirs.rpartition("-")
    if kind != other_kind or not kind.endswith("timestamp") or not {unit, other_unit} <= set(_UNITS):
        raise _Unresolvable(f"the writer's {_shown(writer)} does not mean what {_shown(reader)} does")


def _is_in_millis(reader: Node, writer: Node) -> bool:
    """Whether a number counts milliseconds, where the column counts microseconds."""
    if "timestamp-" not in logical_type(reader) or logical_type(reader).endswith("nanos"):
        return False
    return (logical_type(writer) or logical_type(reader)).endswith("millis")


def _micros(value: int) -> int:
    if not -_MOST_MILLIS <= value <= _MOST_MILLIS:
        raise _Unresolvable("the default that the reader's schema gives is out of range")
    return value * 1000


def _bits(value: float, as_float: bool, is_float: bool) -> int:
    try:
        if is_float and not as_float:
            (value,) = struct.unpack("<f", struct.pack("<f", value))
        return int.from_bytes(struct.pack("<f" if as_float else "<d", value), "little", signed=not as_float)
    except OverflowError:
        raise _Unresolvable("the default that the reader's schema gives is out of range") from None


def _halves(value: bytes, spark_type: t.DataType) -> tuple[int, int]:
    number = int.from_bytes(value, "big", signed=True)
    if not value or abs(number) >= 10 ** getattr(spark_type, "precision", 0):
        raise _Unresolvable("the default that the reader's schema gives is out of range")
    low = number & (2**64 - 1)
    return low - 2**64 if low >= 2**63 else low, number >> 64
