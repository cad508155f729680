# ruff: noqa: SIM109 - plain comparisons and loops are what compiles well
"""The loop that reads JSON documents by the tables of a plan.

It reads what serializers write. A document with anything else, right or wrong (an escape in a name, a field that is
there twice, a time in another form, a value of another type), it leaves to be read by itself.

It is here for its speed, twice to four times that of `pyarrow.json` and a multiple of it where some documents are bad
(`python -m bench --only json-formats`), and as a document cannot be told from its neighbours in what pyarrow reads.
"""

from typing import Any, Final, NamedTuple

from headrace.kernels.bounds import pointer
from headrace.kernels.intrinsics import eight_bytes, long
from headrace.kernels.jit import called, inlined, jit

from .column_buffers import ColumnBuffers, Slots, drop_row, is_set, mark, open_element, open_row, put_wide, slots_of
from .json_plan import (
    FIRST,
    KIND,
    LIST,
    MAP,
    NAME_NODE,
    NAME_SIZE,
    NAME_START,
    NAME_WIDTH,
    NAME_WORDS,
    SECOND,
    STRUCT,
    THIRD,
    WIDTH,
)
from .json_scalars import scalar
from .json_text import after_space, string_end
from .payload import Payload
from .payload_pointers import pointers_of

ODD: Final = -1
NO_ROOM: Final = -2

DEEPEST: Final = 128

_VALUE, _AFTER, _NAME = range(3)
"""What comes next: a value; a comma or the end of what is open; the name of a field."""

_IGNORED: Final = -1
"""In place of the node of a value that no column takes."""

_OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_LIST, _CLOSE_LIST, _COMMA, _COLON, _QUOTE = 0x7B, 0x7D, 0x5B, 0x5D, 0x2C, 0x3A, 0x22


class JsonTables(NamedTuple):
    """The tables of a plan; pointers to them in the loop."""

    nodes: Any
    names: Any
    letters: Any
    words: Any
    masks: Any


class NodeStack(NamedTuple):
    """Room for DEEPEST numbers: the node of each object or list that is open, from the outermost on, whether it is a
    list, and the name that is likely next in it.
    """

    inside: Any
    is_list: Any
    likely: Any


class Side(NamedTuple):
    """Where strings go whose escapes are resolved, and the end of what is there."""

    text: Any
    end: Any


@jit
def decode(
    payload: Payload, tables: JsonTables, buffers: ColumnBuffers, stack: NodeStack, side: Side, odd: Any, row: int
) -> int:
    """Decode the rows from `row` on; the answer is the row that found no room, or the number of rows.
    Rows that are to be read by themselves are marked `odd`, and null.
    """
    source, slots = pointers_of(payload), slots_of(buffers)
    table = JsonTables(
        pointer(tables.nodes),
        pointer(tables.names),
        pointer(tables.letters),
        pointer(tables.words),
        pointer(tables.masks),
    )
    frames = NodeStack(pointer(stack.inside), pointer(stack.is_list), pointer(stack.likely))
    texts = Side(pointer(side.text), pointer(side.end))
    while row < source.rows:
        if source.present[row]:
            open_row(slots, row)
            start, end = source.starts[row], source.ends[row]
            fault = _document(source.data, start, end, source.size, table, slots, frames, texts)
            if fault < 0:
                drop_row(slots, row)
                if fault == NO_ROOM:
                    return row
                odd[row] = 1
        row += 1
    return row


@called
def _document(
    data: Any, pos: int, end: int, size: int, tables: JsonTables, slots: Slots, stack: NodeStack, side: Side
) -> int:
    """Where the document ends, or what is the matter with it. `size` is how much of `data` may be read."""
    pos = after_space(data, pos, end)
    if pos == end or data[pos] != _OPEN_OBJECT:
        return ODD
    node, depth, expected = long(0), long(-1), _VALUE
    while pos >= 0:
        pos = after_space(data, pos, end)
        if pos == end:
            return pos if depth < 0 and expected == _AFTER else ODD
        byte = data[pos]
        if expected == _NAME:
            node, pos = _name(data, pos, end, size, tables, slots, stack, depth)
            expected = _VALUE
        elif expected == _VALUE:
            expected = _AFTER
            if byte == _OPEN_OBJECT or byte == _OPEN_LIST:
                depth += 1
                pos = _begun(pos, byte == _OPEN_LIST, tables, slots, stack, depth, node)
                node, depth, expected, pos = _next(data, pos, end, tables, slots, stack, depth, False)
            else:
                pos = scalar(data, pos, end, node, tables.nodes, side, slots)
        else:
            node, depth, expected, pos = _next(data, pos, end, tables, slots, stack, depth, True)
    return pos


@inlined
def _begun(pos: int, is_list: bool, tables: JsonTables, slots: Slots, stack: NodeStack, depth: int, node: int) -> int:
    """Begin an object or a list, if it may be this node's value."""
    if depth == DEEPEST:
        return ODD
    stack.inside[depth], stack.is_list[depth], stack.likely[depth] = node, is_list, 0
    if node >= 0:
        kind = tables.nodes[node * WIDTH + KIND]
        if is_set(slots, node) or (kind != LIST if is_list else kind != STRUCT and kind != MAP):
            return ODD
        mark(slots, node)
        stack.likely[depth] = tables.nodes[node * WIDTH + FIRST]
    return pos + 1


@inlined
def _next(
    data: Any, pos: int, end: int, tables: JsonTables, slots: Slots, stack: NodeStack, depth: int, goes_on: bool
) -> tuple[int, int, int, int]:
    """After something that was begun or, where it `goes_on`, after a value in it: the node of the value that comes
    next, how deep that is, what is expected, and the position.
    """
    if pos < 0 or depth < 0:
        return 0, depth, _AFTER, ODD
    pos = after_space(data, pos, end)
    if pos == end:
        return 0, depth, _AFTER, ODD
    is_list = stack.is_list[depth] != 0
    if data[pos] == (_CLOSE_LIST if is_list else _CLOSE_OBJECT):
        return 0, depth - 1, _AFTER, pos + 1
    if goes_on:
        if data[pos] != _COMMA:
            return 0, depth, _AFTER, ODD
        pos += 1
    node = stack.inside[depth]
    if not is_list:
        return node, depth, _NAME, pos
    if node < 0:
        return _IGNORED, depth, _VALUE, pos
    if not open_element(slots, node, tables.nodes[node * WIDTH + FIRST]):
        return 0, depth, _VALUE, NO_ROOM
    return tables.nodes[node * WIDTH + SECOND], depth, _VALUE, pos


@inlined
def _name(
    data: Any, pos: int, end: int, size: int, tables: JsonTables, slots: Slots, stack: NodeStack, depth: int
) -> tuple[int, int]:
    """The node of the value that a name announces, and where that begins."""
    node = stack.inside[depth]
    if node < 0 or tables.nodes[node * WIDTH + KIND] != STRUCT:
        return _key(data, pos, end, tables, slots, node)
    name = stack.likely[depth]
    if name < tables.nodes[node * WIDTH + SECOND] and _matches(data, pos, end, size, tables, name):
        pos += tables.names[name * NAME_WIDTH + NAME_SIZE]
    else:
        name, pos = _field(data, pos, end, tables, node)
        if name < 0:
            return _IGNORED, pos
    stack.likely[depth] = name + 1
    return tables.names[name * NAME_WIDTH + NAME_NODE], pos


@inlined
def _matches(data: Any, pos: int, end: int, size: int, tables: JsonTables, name: int) -> bool:
    """Whether this name, with nothing between it and its colon, is at `pos`. Words are compared, which may go on behind
    the end of the document; the name may not.
    """
    first = tables.names[name * NAME_WIDTH + NAME_WORDS]
    length = tables.names[name * NAME_WIDTH + NAME_SIZE]
    count = (length + 7) >> 3
    if pos + length > end or pos + 8 * count > size:
        return False
    for step in range(count):
        if eight_bytes(data, pos + 8 * step) & tables.masks[first + step] != tables.words[first + step]:
            return False
    return True


@called
def _field(data: Any, pos: int, end: int, tables: JsonTables, node: int) -> tuple[int, int]:
    """Which of a struct's fields the name at `pos` is, -1 if none, and where its value begins."""
    close, after = _name_end(data, pos, end)
    if after < 0:
        return -1, ODD
    size = close - pos + 1
    for name in range(tables.nodes[node * WIDTH + FIRST], tables.nodes[node * WIDTH + SECOND]):
        if tables.names[name * NAME_WIDTH + NAME_SIZE] == size + 1:  # it has a colon at its end
            start = tables.names[name * NAME_WIDTH + NAME_START]
            same = True
            for step in range(size):
                same &= data[pos + step] == tables.letters[start + step]
            if same:
                return name, after
    return -1, after


@called
def _key(data: Any, pos: int, end: int, tables: JsonTables, slots: Slots, node: int) -> tuple[int, int]:
    """Take a name as the key of a map's next entry; the same for an object that no column takes."""
    close, after = _name_end(data, pos, end)
    if node < 0 or after < 0:
        return _IGNORED, after
    if not open_element(slots, node, tables.nodes[node * WIDTH + FIRST]):
        return _IGNORED, NO_ROOM
    put_wide(slots, tables.nodes[node * WIDTH + THIRD], pos + 1, close - pos - 1)
    return tables.nodes[node * WIDTH + SECOND], after


@called
def _name_end(data: Any, pos: int, end: int) -> tuple[int, int]:
    """The closing quote of a name, and where its value begins."""
    if data[pos] != _QUOTE:
        return -1, ODD
    close, escaped = string_end(data, pos + 1, end)
    if close < 0 or escaped:
        return -1, ODD
    colon = after_space(data, close + 1, end)
    if colon == end or data[colon] != _COLON:
        return -1, ODD
    return close, colon + 1
