"""Text, and the heads of Confluent's serializers before values."""

from random import Random
from typing import Any, Final

from headrace.formats.framing import NO_HEAD, Head, confluent
from headrace.formats.text import StringCodec

from .memory import MEMORY
from .mutation import payloads, with_absent
from .reading import Bad, at_the_end, compare

_ROWS: Final = 250
_TEXTS: Final = [
    "",
    "a",
    "plain words of a text",
    "é",
    "日本語",
    "😀",
    "x😀y",
    "\ud7ff\ue000",
    "\U0010ffff",
    "\x7f\x80߿ࠀ",
]
_INDEXES: Final = [b"\0", b"\x02\0", b"\x04\x02\x06", b"\x02\x80\x01"]


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Bad("not UTF-8") from error


def _value_of(data: bytes) -> str:
    if len(data) < 5 or data[0]:
        raise Bad("no head")
    return _decoded(data[5:])


def run(random: Random) -> int:
    """Texts alone, texts behind heads, and heads with the indexes of messages."""
    sound = [text.encode() for text in _TEXTS]
    rows = with_absent(random, payloads(random, sound, _ROWS))
    compare(StringCodec().decode(MEMORY.payload(rows)), rows, _decoded, "text")
    heads = [b"\0" + random.choice((1, 7, 2**31, 2**32 - 1)).to_bytes(4, "big") for _ in range(4)]
    framed = [random.choice(heads) + text for text in sound]
    rows = with_absent(random, payloads(random, framed, _ROWS))
    compare(StringCodec(is_framed=True).decode(MEMORY.payload(rows)), rows, _value_of, "framed text")
    indexed = [random.choice(heads) + random.choice(_INDEXES) + text for text in sound]
    rows = with_absent(random, payloads(random, indexed, _ROWS))
    _compare_heads(rows)
    return 3 * _ROWS + at_the_end(random, rows, _compare_heads)


def _compare_heads(rows: list[bytes | None]) -> None:
    found = confluent(MEMORY.payload(rows), has_indexes=True)
    for row, data in enumerate(rows):
        head = found.heads[found.which[row]] if found.which[row] != NO_HEAD else None
        assert (row in found.errors) == (data is not None and head is None), f"row {row}: {data!r}"
        expected, value = _head(data)
        assert head == expected, f"row {row} has {expected}, not {head}: {data!r}"
        if head is not None:
            assert found.payload.row(row) == value, f"row {row} is {value!r}: {data!r}"


def _head(data: bytes | None) -> tuple[Head | None, bytes]:
    if data is None or len(data) < 5 or data[0]:
        return None, b""
    numbers: list[int] = []
    try:
        count, rest = _number(data[5:])
        if count < 0:
            return None, b""
        for _ in range(count):
            number, rest = _number(rest)
            numbers.append(number)
    except Bad:
        return None, b""
    return Head(int.from_bytes(data[1:5], "big"), tuple(numbers) or (0,)), rest


def _number(data: bytes) -> tuple[int, bytes]:
    folded: Any = 0
    for place, byte in enumerate(data[:10]):
        folded |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            if folded >= 2**64:
                raise Bad("more than 64 bits")
            return (folded >> 1) ^ -(folded & 1), data[place + 1 :]
    raise Bad("cut short")
