"""Protobuf messages of random types, read by the loop and by Google's library."""

import struct
from itertools import count
from random import Random
from typing import Any, Final

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from headrace.formats.options import FormatOptions
from headrace.formats.protobuf import ProtobufColumnDecoder
from tests.support.spark import messages as m

from .memory import MEMORY
from .mutation import payloads, with_absent
from .reading import Bad, Unclear, at_the_end, bits, compare

_ROWS: Final = 150
_SOUND: Final = 12
_KINDS: Final = [
    m.Proto.TYPE_INT32,
    m.Proto.TYPE_INT64,
    m.Proto.TYPE_UINT32,
    m.Proto.TYPE_UINT64,
    m.Proto.TYPE_SINT32,
    m.Proto.TYPE_SINT64,
    m.Proto.TYPE_FIXED32,
    m.Proto.TYPE_FIXED64,
    m.Proto.TYPE_SFIXED32,
    m.Proto.TYPE_SFIXED64,
    m.Proto.TYPE_BOOL,
    m.Proto.TYPE_FLOAT,
    m.Proto.TYPE_DOUBLE,
    m.Proto.TYPE_STRING,
    m.Proto.TYPE_BYTES,
]
_KEYS: Final = [m.Proto.TYPE_INT32, m.Proto.TYPE_STRING, m.Proto.TYPE_SINT64, m.Proto.TYPE_BOOL]
_TIMES: Final = (".google.protobuf.Timestamp", ".google.protobuf.Duration")
_PACKAGE: Final = "fuzz"
_MOST_SECONDS: Final = (2**63 - 1) // 1_000_000 - 1


class _Types:
    """Draws the types of messages, outermost last."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._is_old = random.random() < 0.3
        self._names = count()
        self.messages: list[Any] = []

    def message(self, depth: int) -> str:
        name = f"M{next(self._names)}" if depth < 2 else "Whole"
        fields: list[Any] = []
        nested: list[Any] = []
        oneofs = int(self._random.random() < 0.4)
        numbers = self._random.sample(range(1, 20), self._random.randint(1, 5))
        for place, number in enumerate(sorted(numbers)):
            in_oneof = oneofs == 1 and (place == 0 or self._random.random() < 0.4)
            fields.append(self._field(f"f{place}", number, depth, name, nested, in_oneof))
        self.messages.append(m.message(name, *fields, nested=tuple(nested), oneofs=oneofs))
        return name

    def _field(self, name: str, number: int, depth: int, whole: str, nested: list[Any], in_oneof: bool) -> Any:
        random = self._random
        kind = random.randrange(12)
        repeated = not in_oneof and random.random() < 0.3
        more: dict[str, Any] = {"oneof": 0} if in_oneof else {"repeated": repeated}
        if kind == 9:
            return m.field(name, number, m.Proto.TYPE_ENUM, of=f".{_PACKAGE}.State", **more)
        if kind == 10:
            return m.field(name, number, m.Proto.TYPE_MESSAGE, of=random.choice(_TIMES), **more)
        if kind == 11 and depth:
            return m.field(name, number, m.Proto.TYPE_MESSAGE, of=f".{_PACKAGE}.{self.message(depth - 1)}", **more)
        if kind == 8 and not in_oneof:
            entry = f"{name.title()}Entry"
            key, value = m.field("key", 1, random.choice(_KEYS)), m.field("value", 2, random.choice(_KINDS))
            nested.append(m.entry(entry, key, value))
            return m.field(name, number, m.Proto.TYPE_MESSAGE, of=f".{_PACKAGE}.{whole}.{entry}", repeated=True)
        if self._is_old and not in_oneof and not repeated and random.random() < 0.15:
            return m.field(name, number, random.choice(_KINDS), label=m.Proto.LABEL_REQUIRED)
        return m.field(name, number, random.choice(_KINDS), **more)

    def file(self) -> Any:
        self.message(2)
        states = m.enum("State", NEW=0, PAID=1, SENT=5, LOST=-2)
        syntax = "proto2" if self._is_old else "proto3"
        return m.file(*self.messages, syntax=syntax, enums=(states,), package=_PACKAGE)


def _fill(random: Random, message: Any) -> None:
    """Give some fields of a message values."""
    for part in message.DESCRIPTOR.fields:
        if random.random() < 0.25 and not part.is_required:
            continue
        if _is_map(part):
            key, value = (part.message_type.fields_by_name[name] for name in ("key", "value"))
            for _ in range(random.randrange(3)):
                getattr(message, part.name)[_value(random, key)] = _value(random, value)
        elif part.message_type is not None:
            for _ in range(random.randrange(3) if part.is_repeated else 1):
                inner = getattr(message, part.name)
                inner = inner.add() if part.is_repeated else inner
                inner.SetInParent()
                _fill_message(random, inner)
        elif part.is_repeated:
            getattr(message, part.name).extend(_value(random, part) for _ in range(random.randrange(5)))
        else:
            setattr(message, part.name, _value(random, part))


def _fill_message(random: Random, message: Any) -> None:
    if message.DESCRIPTOR.full_name.startswith("google."):
        message.seconds = random.choice((0, 1, -1, 10**9, 2**40))
        message.nanos = random.choice((0, 1, 999_999_999, 1_000, -5))
    else:
        _fill(random, message)


def _value(random: Random, part: Any) -> Any:
    if part.enum_type is not None:
        return random.choice((0, 1, 5, -2))
    kind = part.cpp_type
    if kind == part.CPPTYPE_STRING:
        text = random.choice(("", "a", "words of a text", "é", "😀"))
        return text if part.type == part.TYPE_STRING else text.encode()
    if kind in (part.CPPTYPE_FLOAT, part.CPPTYPE_DOUBLE):
        return random.choice((0.0, -0.0, 1.5, float("nan"), float("inf"), 1e30))
    if kind == part.CPPTYPE_BOOL:
        return random.random() < 0.5
    size = 32 if kind in (part.CPPTYPE_INT32, part.CPPTYPE_UINT32) else 64
    signed = kind in (part.CPPTYPE_INT32, part.CPPTYPE_INT64)
    low, high = (-(2 ** (size - 1)), 2 ** (size - 1) - 1) if signed else (0, 2**size - 1)
    return random.choice((0, 1, low, high, random.randint(low, high), 300))


def _shown(message: Any) -> dict[str, Any]:
    """A message as columns show it, read off the library's object. `Bad` where a value is more than they hold."""
    return {part.name: _field(message, part) for part in message.DESCRIPTOR.fields}


class _Entries(dict[Any, Any]):
    """A map, which columns show as a list of entries: of those with one key the last counts."""

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        return dict(self) == (dict(other) if isinstance(other, list) else other)


class _NotANumber:
    """Any of the many: the library does not keep which."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, size: int) -> None:
        self._size = size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and _float(other.to_bytes(self._size, "little", signed=True)) != _float(
            other.to_bytes(self._size, "little", signed=True)
        )


def _float(data: bytes) -> float:
    (value,) = struct.unpack("<f" if len(data) == 4 else "<d", data)
    return float(value)


def _bits(value: float, size: int) -> Any:
    return _NotANumber(size) if value != value else bits(struct.pack("<f" if size == 4 else "<d", value))


def _field(message: Any, part: Any) -> Any:
    found = getattr(message, part.name)
    if _is_map(part):
        key, value = (part.message_type.fields_by_name[name] for name in ("key", "value"))
        return _Entries({_one(each, key): _one(found[each], value) for each in found})
    if part.is_repeated:
        return [_one(item, part) for item in found]
    is_there = message.HasField(part.name) if part.has_presence else _is_something(found)
    return _one(found, part) if is_there else None


def _is_something(value: Any) -> bool:
    """Whether a field that does not say is written: minus zero is, as its bits are not all zero."""
    return bool(value) or (isinstance(value, float) and _bits(value, 8) != 0)


def _one(value: Any, part: Any) -> Any:
    if part.message_type is not None and part.message_type.full_name.startswith("google."):
        if not -_MOST_SECONDS <= value.seconds <= _MOST_SECONDS:
            raise Bad("a time out of range")
        nanos = value.nanos
        return value.seconds * 1_000_000 + (nanos // 1000 if nanos >= 0 else -(-nanos // 1000))
    if part.message_type is not None:
        return _shown(value)
    if part.enum_type is not None:
        known = part.enum_type.values_by_number.get(value)
        return known.name if known else f"UNKNOWN_ENUM_VALUE_{part.enum_type.name}_{value}"
    if part.cpp_type == part.CPPTYPE_FLOAT:
        return _bits(value, 4)
    if part.cpp_type == part.CPPTYPE_DOUBLE:
        return _bits(value, 8)
    if part.cpp_type in (part.CPPTYPE_UINT32, part.CPPTYPE_UINT64):
        size = 32 if part.cpp_type == part.CPPTYPE_UINT32 else 64
        return (value + 2 ** (size - 1)) % 2**size - 2 ** (size - 1)
    if part.type == part.TYPE_STRING and isinstance(value, bytes):  # which the library does not look at in old messages
        raise Bad("not UTF-8")
    return value


def _has_odd_entries(message: Any) -> bool:
    """Whether an entry of a map has fields besides its key and value: this library takes the whole entry for unknown,
    those of other languages take the entry without them, and so does the loop.
    """
    known = message.DESCRIPTOR.fields_by_number
    if any(one.field_number in known and _is_map(known[one.field_number]) for one in UnknownFieldSet(message)):
        return True
    return any(
        _has_odd_entries(inner)
        for part, value in message.ListFields()
        if part.message_type is not None and not _is_map(part)
        for inner in (value if part.is_repeated else [value])
    )


def _is_map(part: Any) -> bool:
    return part.message_type is not None and bool(part.message_type.GetOptions().map_entry)


def run(random: Random) -> int:
    """One type; what the loop reads, or leaves to the library, is what the library says of each message alone."""
    file = _Types(random).file()
    options = FormatOptions(format="protobuf", descriptors=m.descriptor_set(file), message_name=f"{_PACKAGE}.Whole")
    codec = ProtobufColumnDecoder(options)
    sound: list[bytes] = []
    for _ in range(_SOUND):
        message = codec.message()
        _fill(random, message)
        sound.append(message.SerializePartialToString())
    rows = with_absent(random, payloads(random, sound, _ROWS))

    def reference(data: bytes) -> Any:
        message = codec.message()
        try:
            message.ParseFromString(data)
        except DecodeError as error:
            raise Bad(str(error)) from error
        if not message.IsInitialized():
            raise Bad("required fields are missing")
        if _has_odd_entries(message):
            raise Unclear
        return _shown(message)

    def check(rows: list[bytes | None]) -> None:
        what = f"message {file.message_type}".replace("\n", " ")
        compare(codec.decode(MEMORY.payload(rows)), rows, reference, what)

    check(rows)
    return len(rows) + at_the_end(random, rows, check)
