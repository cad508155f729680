"""What a filter says of where and when records are, so that no others are fetched.

The engine hands a filter over as an Arrow expression. It is taken apart here as Arrow writes expressions down, and
asked one thing for each partition: which offsets, and which times, it can hold for. What is not understood holds for
all. So a filter never leaves out a record that it holds for; the filter itself is applied to what was fetched.

A comparison of the timestamp only gives a first offset: the broker knows the first one of a time or later, so that all
before it are earlier; but a record after it may be earlier again, since producers set the time.
"""

import ctypes
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from headrace.config.setting import MAX_LONG
from headrace.protocol.topic_partition import TopicPartition


@dataclass(frozen=True, slots=True)
class Field:
    """A column, or something in it."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Literal:
    """A value; `value` is an Arrow scalar."""

    value: Any


@dataclass(frozen=True, slots=True)
class Call:
    """A function and its arguments."""

    function: str
    arguments: tuple["Node", ...]
    options: Any = None


Node = Field | Literal | Call


class NotUnderstood(ValueError):
    """An expression is not written down as it was so far."""


def tree_of(expression: Any) -> Node:
    """An expression's tree; NotUnderstood if Arrow has come to write it down in another way."""
    try:
        (written,) = expression.__reduce__()[1]
        reader = pa.ipc.open_file(written)
        values = reader.get_batch(0).columns
        tokens = iter(_pairs(reader.schema))
        tree = _node(*next(tokens), tokens, values)
    except NotUnderstood:
        raise
    except Exception as error:
        raise NotUnderstood(f"{type(error).__name__}: {error}") from error
    if next(tokens, None) is not None:
        raise NotUnderstood("something is left over")
    return tree


def columns_in(tree: Node) -> set[str]:
    """The columns that a filter looks at."""
    if isinstance(tree, Field):
        return {tree.path[0]}
    return {name for one in tree.arguments for name in columns_in(one)} if isinstance(tree, Call) else set()


def _node(key: str, value: str, tokens: Iterator[tuple[str, str]], values: Any) -> Node:
    match key:
        case "field_ref":
            return Field((value,))
        case "nested_field_ref":
            return Field(tuple(_expected("field_ref", tokens) for _ in range(int(value))))
        case "literal":
            return Literal(values[int(value)][0])
        case "call":
            return _call(value, tokens, values)
    raise NotUnderstood(f"'{key}' is not known")


def _expected(key: str, tokens: Iterator[tuple[str, str]]) -> str:
    found, value = next(tokens)
    if found != key:
        raise NotUnderstood(f"'{found}' stands in the place of '{key}'")
    return value


def _call(function: str, tokens: Iterator[tuple[str, str]], values: Any) -> Call:
    arguments: list[Node] = []
    options: Any = None
    for key, value in tokens:
        if key == "end":
            return Call(function, tuple(arguments), options)
        if key == "options":
            options = values[int(value)][0]
        else:
            arguments.append(_node(key, value, tokens, values))
    raise NotUnderstood(f"the call of {function} has no end")


class _ArrowSchema(ctypes.Structure):
    """The head of the structure by which Arrow's C data interface hands schemas over."""

    _fields_ = (("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p))


def _pairs(schema: pa.Schema) -> list[tuple[str, str]]:
    """The schema's metadata in its order and with keys that are there twice, which a dictionary would lose."""
    capsule = schema.__arrow_c_schema__()
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = _ArrowSchema.from_address(pointer_of(capsule, b"arrow_schema")).metadata
    texts: list[str] = []
    count = ctypes.c_int32.from_address(address).value if address else 0
    position = (address or 0) + 4
    for _ in range(2 * count):
        size = ctypes.c_int32.from_address(position).value
        texts.append(ctypes.string_at(position + 4, size).decode())
        position += 4 + size
    return list(zip(texts[::2], texts[1::2], strict=True))


class Reach(NamedTuple):
    """The records of a partition that a filter can hold for."""

    start: int = 0
    end: int = MAX_LONG
    since: int = 0
    """None that is earlier, in milliseconds; 0 for any time."""

    @property
    def is_empty(self) -> bool:
        """Whether it holds for none."""
        return self.start >= self.end


ALL: Final = Reach()
NONE: Final = Reach(0, 0)

_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "less": operator.lt,
    "less_equal": operator.le,
}
_SWAPPED: Final = {"greater": "less", "greater_equal": "less_equal", "less": "greater", "less_equal": "greater_equal"}


def reach(tree: Node, where: TopicPartition, records: dict[str, str]) -> Reach:
    """What a filter can hold for in a partition; `records` are the record's columns by the names that the filter has
    for them.
    """
    if isinstance(tree, Literal):
        return ALL if tree.value.as_py() is True else NONE if tree.value.as_py() is False else ALL
    if isinstance(tree, Field):
        return ALL
    match tree.function, tree.arguments:
        case "and_kleene" | "and", (left, right):
            return _both(reach(left, where, records), reach(right, where, records))
        case "or_kleene" | "or", (left, right):
            return _either(reach(left, where, records), reach(right, where, records))
        case "if_else", (Call("is_valid"), then, Literal(value)) if value.as_py() is None:
            return reach(then, where, records)
        case "is_in", (Field((name,)),):
            return _among(records.get(name), _value_set(tree.options), where)
        case function, (Field((name,)), Literal(value)) if function in _COMPARISONS:
            return _compared(function, records.get(name), value, where)
        case function, (Literal(value), Field((name,))) if function in _COMPARISONS:
            return _compared(_SWAPPED.get(function, function), records.get(name), value, where)
    return ALL


def _both(one: Reach, other: Reach) -> Reach:
    met = Reach(max(one.start, other.start), min(one.end, other.end), max(one.since, other.since))
    return NONE if met.is_empty else met


def _either(one: Reach, other: Reach) -> Reach:
    if one.is_empty or other.is_empty:
        return other if one.is_empty else one
    return Reach(min(one.start, other.start), max(one.end, other.end), min(one.since, other.since))


def _value_set(options: Any) -> list[Any]:
    """The values among which something is to be, as scalars."""
    return list(options["value_set"].values)


def _among(column: str | None, values: list[Any], where: TopicPartition) -> Reach:
    found = NONE
    for value in values:
        found = _either(found, _compared("equal", column, value, where))
    return found


def _compared(function: str, column: str | None, scalar: Any, where: TopicPartition) -> Reach:
    value = _plain(scalar)
    match column:
        case "topic" if isinstance(value, str):
            return ALL if _COMPARISONS[function](where.topic, value) else NONE
        case "partition" if isinstance(value, int):
            return ALL if _COMPARISONS[function](where.partition, value) else NONE
        case "offset" if isinstance(value, int):
            return _of_offsets(function, value)
        case "timestamp" if function in ("equal", "greater", "greater_equal") and isinstance(value, int):
            return ALL._replace(since=max(0, value))
    return ALL


def _plain(scalar: Any) -> Any:
    """A value as Python has it; a moment in milliseconds, rounded down."""
    if not scalar.is_valid:
        return None
    if pa.types.is_timestamp(scalar.type):
        in_micros = scalar.cast(pa.timestamp("us", scalar.type.tz), safe=False)
        return in_micros.value // 1000 if scalar.type.tz else None
    value = scalar.as_py()
    return value if isinstance(value, (int, str)) and not isinstance(value, bool) else None


def _of_offsets(function: str, value: int) -> Reach:
    match function:
        case "equal":
            found = Reach(value, value + 1)
        case "greater":
            found = Reach(value + 1)
        case "greater_equal":
            found = Reach(value)
        case "less":
            found = Reach(0, value)
        case "less_equal":
            found = Reach(0, value + 1)
        case _:
            return ALL
    return NONE if found.is_empty or found.end <= 0 else found
