"""Bounds a request, or the answer to one, before it is decoded.

The native decoder takes memory for an array's whole count before it has seen an element, so that a count of two
billion in a frame of forty bytes would end the process. The guard walks the frame first, by the same shape: each
length and count must fit into what is left of the frame, and all arrays together may hold at most
`MAX_ELEMENTS`. It reads lengths only; the decoder still judges the values.

The decoder also refuses tagged fields that it does not know, which the protocol says to skip: a newer client or broker
may send them. The guard cuts them out.
"""

from collections.abc import Callable
from functools import cache
from struct import Struct
from typing import Final

from .encode import write_uvarint
from .errors import ProtocolViolation
from .schema import FIXED_SIZES, WireField, WireStruct, request_shape, response_shape

MAX_ELEMENTS: Final = 250_000
"""In what a client asks: enough for the offsets of a hundred thousand topics. Each is an object, and the garbage
collector looks at all of them while everybody waits.
"""
MAX_ELEMENTS_ANSWERED: Final = 20_000_000
"""In what a broker answers: the metadata of a million partitions has as many."""
MOST_TAGS: Final = 1_000
"""Tagged fields of one struct. They are read at once, and no version of any message has ten."""

_I16: Final = Struct(">h")
_I32: Final = Struct(">i")


Edit = tuple[int, int, bytes]
"""From where to where, and what to put there."""


class Walk:
    """One pass over one frame: where it ends, the array elements seen so far, what is to be cut out of it."""

    __slots__ = ("data", "edits", "elements", "end", "most_elements")

    def __init__(self, data: memoryview, most_elements: int = MAX_ELEMENTS) -> None:
        self.data = data
        self.most_elements = most_elements
        self.end = len(data)
        self.elements = 0
        self.edits: list[Edit] = []

    def advance(self, position: int, size: int) -> int:
        if size < 0 or size > self.end - position:
            raise ProtocolViolation(f"a length of {size} where {self.end - position} bytes are left")
        return position + size

    def count(self, position: int, count: int, smallest: int) -> None:
        if count * smallest > self.end - position or self.elements + count > self.most_elements:
            self.fits(position, count, smallest)
        self.elements += count

    def fits(self, position: int, count: int, smallest: int) -> None:
        """Whether there is room for so many elements, in the frame and in what a message may have."""
        if count * smallest > self.end - position:
            raise ProtocolViolation(f"an array of {count} where {self.end - position} bytes are left")
        if self.elements + count > self.most_elements:
            raise ProtocolViolation(f"more than {self.most_elements} array elements in one message")

    def array_count(self, position: int, flexible: bool) -> tuple[int, int]:
        """How many elements an array has, below 0 if it is null, and where they begin."""
        if flexible:
            count, position = self.uvarint(position)
            return count - 1, position
        return self.i32(position), position + 4

    def tag_count(self, position: int) -> tuple[int, int]:
        """How many tagged fields a struct has, and where they begin."""
        count, position = self.uvarint(position)
        if count > MOST_TAGS:
            raise ProtocolViolation(f"{count} tagged fields; the most is {MOST_TAGS}")
        self.count(position, count, 2)
        return count, position

    def text(self, position: int, flexible: bool) -> tuple[str, int]:
        """A string, and where it ends."""
        if flexible:
            size, position = self.uvarint(position)
            size -= 1
        else:
            size, position = self.i16(position), position + 2
        if size < 0:
            raise ProtocolViolation("null where a string has to be")
        end = self.advance(position, size)
        return str(self.data[position:end], "utf-8"), end

    def uvarint(self, position: int) -> tuple[int, int]:
        if position < self.end:
            byte = self.data[position]
            if byte < 0x80:
                return byte, position + 1
        value = shift = 0
        while True:
            if position >= self.end or shift > 28:
                raise ProtocolViolation("a varint that does not end")
            byte = self.data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position
            shift += 7

    def i16(self, position: int) -> int:
        self.advance(position, 2)
        return int(_I16.unpack_from(self.data, position)[0])

    def i32(self, position: int) -> int:
        self.advance(position, 4)
        return int(_I32.unpack_from(self.data, position)[0])


Step = Callable[[Walk, int], int]


def check_request(api_key: int, version: int, data: memoryview) -> memoryview | bytes:
    """The body as the decoder can take it; `ProtocolViolation` unless every length and count in it fits."""
    return _checked(request_shape(api_key, version), Walk(data))


def check_response(api_key: int, version: int, data: memoryview) -> memoryview | bytes:
    """The same for what a broker answered."""
    return _checked(response_shape(api_key, version), Walk(data, MAX_ELEMENTS_ANSWERED))


def skip_tags(data: memoryview, position: int) -> int:
    """The position after the tagged fields of a header."""
    walk = Walk(data)
    count, position = walk.tag_count(position)
    for _ in range(count):
        _, position = walk.uvarint(position)
        size, position = walk.uvarint(position)
        position = walk.advance(position, size)
    return position


def _checked(shape: WireStruct, walk: Walk) -> memoryview | bytes:
    struct_step(shape)(walk, 0)
    return edited(walk.data, 0, walk.end, walk.edits) if walk.edits else walk.data


def edited(data: memoryview, start: int, end: int, edits: list[Edit]) -> bytes:
    """The bytes from `start` to `end` with the edits, which are in order, carried out."""
    out = bytearray()
    for edit_start, edit_end, replacement in edits:
        out += data[start:edit_start]
        out += replacement
        start = edit_end
    out += data[start:end]
    return bytes(out)


@cache
def struct_step(shape: WireStruct) -> Step:
    """Walks over a struct."""
    steps = _merged([_field(field, shape.flexible) for field in shape.fields])
    if shape.flexible:
        steps.append(tags_step(shape))

    def walk_struct(walk: Walk, position: int) -> int:
        for step in steps:
            position = step(walk, position)
        return position

    return steps[0] if len(steps) == 1 else walk_struct


def _merged(parts: list[int | Step]) -> list[Step]:
    steps: list[Step] = []
    fixed = 0
    for part in parts:
        if isinstance(part, int):
            fixed += part
            continue
        if fixed:
            steps.append(_skip(fixed))
            fixed = 0
        steps.append(part)
    if fixed:
        steps.append(_skip(fixed))
    return steps


def _skip(size: int) -> Step:
    def walk_fixed(walk: Walk, position: int) -> int:
        after = position + size
        return after if after <= walk.end else walk.advance(position, size)

    return walk_fixed


def field_step(field: WireField, flexible: bool) -> Step:
    """Walks over a field."""
    step = _field(field, flexible)
    return _skip(step) if isinstance(step, int) else step


def _field(field: WireField, flexible: bool) -> int | Step:
    if field.struct is not None:
        inner: int | Step = struct_step(field.struct)
    else:
        assert field.kafka_type is not None
        inner = FIXED_SIZES.get(field.kafka_type) or _text(field.kafka_type, flexible)
    if field.is_array:
        return _array(inner, smallest_of(field, flexible), flexible)
    if field.struct is not None and field.nullable and field.tag is None:
        return _nullable_struct(struct_step(field.struct))
    return inner


def _nullable_struct(inner: Step) -> Step:
    def walk_nullable(walk: Walk, position: int) -> int:
        after = walk.advance(position, 1)
        return after if walk.data[position] == 0xFF else inner(walk, after)

    return walk_nullable


def _text(kafka_type: str, flexible: bool) -> Step:
    if flexible:
        return _compact_text
    return _legacy_text if kafka_type == "string" else _legacy_bytes


def _compact_text(walk: Walk, position: int) -> int:
    size, position = walk.uvarint(position)
    return walk.advance(position, size - 1) if size else position


def _legacy_text(walk: Walk, position: int) -> int:
    size = walk.i16(position)
    return walk.advance(position + 2, size) if size > 0 else position + 2


def _legacy_bytes(walk: Walk, position: int) -> int:
    size = walk.i32(position)
    return walk.advance(position + 4, max(size, 0))


def _array(inner: int | Step, smallest: int, flexible: bool) -> Step:
    def walk_array(walk: Walk, position: int) -> int:
        count, position = walk.array_count(position, flexible)
        if count <= 0:
            return position
        walk.count(position, count, smallest)
        if isinstance(inner, int):
            return walk.advance(position, count * inner)
        for _ in range(count):
            position = inner(walk, position)
        return position

    return walk_array


def tags_step(shape: WireStruct) -> Step:
    """Walks over the tagged fields of a struct, and cuts out those that the decoder does not know."""
    known = {field.tag: _field(field, True) for field in shape.tagged}

    def walk_tags(walk: Walk, start: int) -> int:
        if start < walk.end and not walk.data[start]:
            return start + 1
        count, position = walk.tag_count(start)
        if not count:
            return position
        edits_before = len(walk.edits)
        kept: list[tuple[int, int, int]] = []
        last = -1
        for _ in range(count):
            tag, position = walk.uvarint(position)
            if tag <= last:
                raise ProtocolViolation(f"tagged field {tag} of {shape.name} is out of order")
            last = tag
            size, position = walk.uvarint(position)
            after = walk.advance(position, size)
            step = known.get(tag)
            if step is not None:
                reached = position + step if isinstance(step, int) else step(walk, position)
                if reached != after:
                    raise ProtocolViolation(f"tagged field {tag} of {shape.name} does not have the size it says")
                kept.append((tag, position, after))
            position = after
        if len(kept) < count or len(walk.edits) > edits_before:
            inner = walk.edits[edits_before:]
            walk.edits[edits_before:] = [(start, position, _rewritten(walk.data, kept, inner))]
        return position

    return walk_tags


def _rewritten(data: memoryview, kept: list[tuple[int, int, int]], inner: list[Edit]) -> bytes:
    """A section of tagged fields with only those that are kept, and with what was cut inside them."""
    out = bytearray()
    write_uvarint(out, len(kept))
    for tag, start, end in kept:
        body = edited(data, start, end, [edit for edit in inner if start <= edit[0] < end])
        write_uvarint(out, tag)
        write_uvarint(out, len(body))
        out += body
    return bytes(out)


@cache
def _smallest_struct(shape: WireStruct) -> int:
    size = sum(_smallest_value(field, shape.flexible) for field in shape.fields)
    return size + (1 if shape.flexible else 0)


def smallest_of(field: WireField, flexible: bool) -> int:
    """The fewest bytes that one value of a field can have."""
    if field.struct is not None:
        return max(_smallest_struct(field.struct), 1)
    assert field.kafka_type is not None
    return FIXED_SIZES.get(field.kafka_type) or _empty_size(field.kafka_type, flexible)


def _smallest_value(field: WireField, flexible: bool) -> int:
    if field.is_array:
        return 1 if flexible else 4
    if field.struct is not None:
        return 1 if field.nullable else _smallest_struct(field.struct)
    return smallest_of(field, flexible)


def _empty_size(kafka_type: str, flexible: bool) -> int:
    if flexible:
        return 1
    return 2 if kafka_type == "string" else 4
