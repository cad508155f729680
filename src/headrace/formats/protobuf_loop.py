# ruff: noqa: SIM109, SIM110 - plain comparisons and loops are what compiles well
"""The loop that reads Protobuf messages by the tables of a plan.

It reads what encoders write. Whatever is odd, even if it may be right (fields of a group, several members of a oneof,
a field with another type on the wire), it leaves to the library, whose answer counts.
"""

from typing import Any, Final, NamedTuple

from headrace.kernels.bounds import pointer
from headrace.kernels.intrinsics import long, word
from headrace.kernels.jit import called, inlined, jit
from headrace.kernels.varint_loops import read_uvarint, unzigzag

from .column_buffers import (
    ColumnBuffers,
    Slots,
    drop_row,
    is_set,
    mark,
    open_element,
    open_row,
    put,
    put_wide,
    second_slot_of,
    slot_of,
    slots_of,
)
from .payload import Payload
from .payload_pointers import pointers_of
from .protobuf_plan import (
    BOOL,
    BYTES,
    CLOSED_ENUM,
    CODE,
    EXPLICIT,
    FIXED32,
    FIXED64,
    INNER,
    INT32,
    LIST_NODE,
    LIST_SCOPE,
    MESSAGE,
    NODE,
    NUMBER,
    ONEOF,
    REFUSED,
    REQUIRED,
    SINT32,
    SINT64,
    STRING,
    TIME,
    UINT32,
    UINT64_WIDE,
    WIDTH,
)
from .wire import is_utf8, little_endian

ODD: Final = -1
NO_ROOM: Final = -2

_VARINT, _EIGHT_BYTES, _SPAN, _FOUR_BYTES = 0, 1, 2, 5
_NO_TAG: Final = 7
_LAST_TAG: Final = 2**32 - 1
_LONGEST: Final = 5
"""Bytes of a tag or a size. Encoders write no more, and not all decoders read them."""
_LOW_HALF: Final = 2**32 - 1
_MOST_SECONDS: Final = (2**63 - 1) // 1_000_000 - 1


class ProtobufTables(NamedTuple):
    """The tables of a plan; pointers to them in the loop."""

    fields: Any
    messages: Any
    numbers: Any


class MessageStack(NamedTuple):
    """Room for a number per message of the plan, and one more: the messages under way, from the outermost on, the
    field of each that is likely next, and where each ends.
    """

    inside: Any
    likely: Any
    until: Any


@jit
def decode(
    payload: Payload, tables: ProtobufTables, buffers: ColumnBuffers, stack: MessageStack, odd: Any, row: int
) -> int:
    """Decode the rows from `row` on; the answer is the row that found no room, or the number of rows.
    Rows that the library has to see are marked `odd`, and null.
    """
    source, slots = pointers_of(payload), slots_of(buffers)
    table = ProtobufTables(pointer(tables.fields), pointer(tables.messages), pointer(tables.numbers))
    frames = MessageStack(pointer(stack.inside), pointer(stack.likely), pointer(stack.until))
    while row < source.rows:
        if source.present[row]:
            open_row(slots, row)
            fault = _message(source.data, source.starts[row], source.ends[row], table, slots, frames)
            if fault < 0:
                drop_row(slots, row)
                if fault == NO_ROOM:
                    return row
                odd[row] = 1
        row += 1
    return row


@called
def _message(data: Any, pos: int, end: int, tables: ProtobufTables, slots: Slots, stack: MessageStack) -> int:
    """Where the message ends, or what is the matter with it."""
    mark(slots, 0)
    depth = long(0)
    stack.inside[0], stack.likely[0], stack.until[0] = 0, tables.messages[0], end
    while True:
        message, end = stack.inside[depth], stack.until[depth]
        if pos == end:
            if not _complete(tables, message, slots):
                return ODD
            if depth == 0:
                return pos
            depth -= 1
            continue
        start = pos
        tag, pos = read_uvarint(data, pos, end)
        if pos < 0 or pos - start > _LONGEST or tag <= _NO_TAG or tag > _LAST_TAG:
            return ODD
        wire = tag & 7
        field = _find(tables, message, stack.likely[depth], tag >> 3)
        if field < 0:
            pos = _skip(data, pos, end, wire)
        elif tables.fields[field * WIDTH + CODE] != MESSAGE:
            stack.likely[depth] = field + 1
            pos = _scalars(data, pos, end, wire, tables, message, field, slots)
        else:
            stack.likely[depth] = field
            size, pos = _begun(data, pos, end, wire, tables, message, field, slots)
            depth += 1
            inner = tables.fields[field * WIDTH + INNER]
            stack.inside[depth], stack.likely[depth], stack.until[depth] = inner, tables.messages[2 * inner], pos + size
        if pos < 0:
            return pos


@inlined
def _find(tables: ProtobufTables, message: int, likely: int, number: int) -> int:
    """The row of a message's field, -1 if it has none of this number."""
    end = tables.messages[2 * message + 1]
    if likely < end and tables.fields[likely * WIDTH + NUMBER] == number:
        return likely
    for field in range(tables.messages[2 * message], end):
        if tables.fields[field * WIDTH + NUMBER] == number:
            return field
    return -1


@called
def _complete(tables: ProtobufTables, message: int, slots: Slots) -> bool:
    """Whether every required field is there."""
    for field in range(tables.messages[2 * message], tables.messages[2 * message + 1]):
        if tables.fields[field * WIDTH + REQUIRED] and not is_set(slots, tables.fields[field * WIDTH + NODE]):
            return False
    return True


@called
def _skip(data: Any, pos: int, end: int, wire: int) -> int:
    if wire == _VARINT:
        _, pos = read_uvarint(data, pos, end)
        return pos
    size = 8 if wire == _EIGHT_BYTES else 4
    if wire == _SPAN:
        size, pos = _size(data, pos, end)
    elif wire != _EIGHT_BYTES and wire != _FOUR_BYTES:
        return ODD
    return pos + size if pos >= 0 and size <= end - pos else ODD


@inlined
def _size(data: Any, pos: int, end: int) -> tuple[int, int]:
    """The size of what begins behind it, and where that is; ODD in its place if it does not end before `end`."""
    size, begin = read_uvarint(data, pos, end)
    if begin < 0 or begin - pos > _LONGEST or size < 0 or size > end - begin:
        return 0, ODD
    return size, begin


@inlined
def _begun(
    data: Any, pos: int, end: int, wire: int, tables: ProtobufTables, message: int, field: int, slots: Slots
) -> tuple[int, int]:
    """How long the message in a field is, and where it begins; it is marked as there."""
    size, pos = _size(data, pos, end)
    if wire != _SPAN or pos < 0 or _taken(tables, message, field, slots):
        return 0, ODD
    if not _entered(tables, field, slots):
        return 0, NO_ROOM
    if tables.fields[field * WIDTH + NODE] >= 0:  # the entry of a map has none of its own
        mark(slots, tables.fields[field * WIDTH + NODE])
    return size, pos


@inlined
def _taken(tables: ProtobufTables, message: int, field: int, slots: Slots) -> bool:
    """Whether another member of the field's oneof is set."""
    group = tables.fields[field * WIDTH + ONEOF]
    return group >= 0 and _other_is_set(tables, message, field, group, slots)


@called
def _other_is_set(tables: ProtobufTables, message: int, field: int, group: int, slots: Slots) -> bool:
    for other in range(tables.messages[2 * message], tables.messages[2 * message + 1]):
        is_member = other != field and tables.fields[other * WIDTH + ONEOF] == group
        if is_member and is_set(slots, tables.fields[other * WIDTH + NODE]):
            return True
    return False


@inlined
def _entered(tables: ProtobufTables, field: int, slots: Slots) -> bool:
    """Begin the next entry of a repeated field; False if there is no room for it."""
    whole = tables.fields[field * WIDTH + LIST_NODE]
    return whole < 0 or open_element(slots, whole, tables.fields[field * WIDTH + LIST_SCOPE])


@inlined
def _scalars(
    data: Any, pos: int, end: int, wire: int, tables: ProtobufTables, message: int, field: int, slots: Slots
) -> int:
    """Read one value, or several that are packed."""
    code = tables.fields[field * WIDTH + CODE]
    if wire == _wire_of(code) and code != REFUSED:
        if _taken(tables, message, field, slots):
            return ODD
        if not _entered(tables, field, slots):
            return NO_ROOM
        return _scalar(data, pos, end, code, tables, field, slots)
    if wire != _SPAN or tables.fields[field * WIDTH + LIST_NODE] < 0 or code == REFUSED:
        return ODD
    size, pos = _size(data, pos, end)
    if pos < 0:
        return ODD
    end = pos + size
    while 0 <= pos < end:
        if not _entered(tables, field, slots):
            return NO_ROOM
        pos = _scalar(data, pos, end, code, tables, field, slots)
    return pos


@inlined
def _wire_of(code: int) -> int:
    if code < FIXED32:
        return _VARINT
    if code >= STRING:
        return _SPAN
    return _EIGHT_BYTES if code == FIXED64 else _FOUR_BYTES


@called
def _scalar(data: Any, pos: int, end: int, code: int, tables: ProtobufTables, field: int, slots: Slots) -> int:
    node = tables.fields[field * WIDTH + NODE]
    if code >= STRING:
        pos = _span(data, pos, end, code, slots, node)
    elif code < FIXED32:
        bits, pos = read_uvarint(data, pos, end)
        number = _number(bits, code)
        put(slots, node, number)
        if code == UINT64_WIDE:
            put_wide(slots, node, number, 0)
        if code == CLOSED_ENUM and not _is_known(tables.numbers, tables.fields[field * WIDTH + INNER], number):
            return ODD
    else:
        size = 8 if code == FIXED64 else 4
        if size > end - pos:
            return ODD
        bits = little_endian(data, pos, size)
        put(slots, node, long(word(bits)) if code == FIXED32 else bits)
        pos += size
    if pos >= 0 and not tables.fields[field * WIDTH + EXPLICIT]:
        slots.valid[slot_of(slots, node)] = _is_something(code, slots, node)
    return pos


@inlined
def _is_something(code: int, slots: Slots, node: int) -> bool:
    if code == STRING or code == BYTES:
        return slots.second[second_slot_of(slots, node)] != 0  # type: ignore[no-any-return]
    return slots.first[slot_of(slots, node)] != 0  # type: ignore[no-any-return]


@inlined
def _number(bits: int, code: int) -> Any:
    if code == INT32 or code == CLOSED_ENUM:
        return long(word(bits))
    if code == BOOL:
        return long(bits != 0)
    if code == SINT64:
        return unzigzag(bits)
    if code == SINT32:
        return long(word(unzigzag(bits & _LOW_HALF)))
    return bits & _LOW_HALF if code == UINT32 else bits


@called
def _is_known(numbers: Any, enum: int, number: int) -> bool:
    for place in range(enum + 1, enum + 1 + numbers[enum]):
        if numbers[place] == number:
            return True
    return False


@inlined
def _span(data: Any, pos: int, end: int, code: int, slots: Slots, node: int) -> int:
    size, pos = _size(data, pos, end)
    if pos < 0:
        return ODD
    if code != TIME:
        put_wide(slots, node, pos, size)
        return pos + size if code == BYTES or is_utf8(data, pos, pos + size) else ODD
    if is_set(slots, node):  # a message that comes again is merged with what was there
        return ODD
    micros, sound = _micros(data, pos, pos + size)
    put(slots, node, micros)
    return pos + size if sound else ODD


@called
def _micros(data: Any, pos: int, end: int) -> tuple[int, bool]:
    """Seconds and nanoseconds as microseconds, as Java counts them: towards zero."""
    seconds, nanos = 0, 0
    while pos < end:
        tag, pos = read_uvarint(data, pos, end)
        if pos < 0 or (tag != (1 << 3) and tag != (2 << 3)):
            return 0, False
        bits, pos = read_uvarint(data, pos, end)
        if pos < 0:
            return 0, False
        if tag == 1 << 3:
            seconds = bits
        else:
            nanos = long(word(bits))
    sound = -_MOST_SECONDS <= seconds <= _MOST_SECONDS
    micros = nanos // 1000 if nanos >= 0 else -(-nanos // 1000)
    return seconds * 1_000_000 + micros, sound
