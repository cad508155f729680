"""Where compiled loops put what they decode, before it becomes Arrow.

A schema is a tree of nodes. Every node has one slot per element of its *scope*: the root scope has an element per
row, and each list or map opens a scope of its own, with an element per entry of all its lists together. So a struct
and its fields share their index, nothing has to be written for what is absent (a slot starts as null), and a list
only counts its entries: theirs are the next ones of its scope, in order.

A slot is a validity byte and an integer, `first`: a number, the bits of a floating point number, or where text starts.
Nodes that need more have a second one. The arrays of all nodes lie one behind the other: node `n` begins at
`nodes[n, BASE]`.

A row that turns out to be bad is taken back: the scopes shrink to what they were when it began. A scope that is full
stops the loop before the row that needs more; the buffers grow, and the loop goes on with that row.
"""

from typing import Any, Final, NamedTuple

import numpy as np

from headrace.kernels.bounds import pointer
from headrace.kernels.jit import called, inlined

from .layout import ROOT_SCOPE, ColumnLayout

BASE, SECOND_BASE, SCOPE, NODE_WIDTH = range(4)
"""Columns of `nodes`, and how many there are."""
COUNT, ROOM, SAVED, WANTING, MEMBERS, MEMBERS_END, SCOPE_WIDTH = range(7)
"""Columns of `scopes`: elements so far, the most there can be, elements when the row began, whether one did not fit,
and which entries of `members` are the nodes of the scope; and how many columns there are."""

_ROOM_PER_ROW: Final = 2
_LEAST_ROOM: Final = 64


class ColumnBuffers(NamedTuple):
    """Slots of all nodes, and where they are."""

    valid: Any
    first: Any
    second: Any
    nodes: Any
    scopes: Any
    members: Any


def new_buffers(layout: ColumnLayout, rows: int, per_row: Any = None) -> ColumnBuffers:
    """Empty buffers for so many rows; `per_row` tells how many entries per row each scope is likely to need."""
    room = np.full(layout.scopes, max(_LEAST_ROOM, rows * _ROOM_PER_ROW), np.int64)
    if per_row is not None:
        room = np.maximum(room, (per_row * rows).astype(np.int64))
    room[ROOT_SCOPE] = rows
    return _laid_out(layout, room)


def _laid_out(layout: ColumnLayout, room: Any) -> ColumnBuffers:
    base, total = _offsets(layout, room, np.ones(len(layout.nodes), np.bool_))
    second_base, second_total = _offsets(layout, room, layout.wide)
    nothing = np.zeros(layout.scopes, np.int64)
    scopes = [nothing, room, nothing, nothing, layout.member_bounds[:-1], layout.member_bounds[1:]]
    return ColumnBuffers(
        np.zeros(total, np.uint8),
        np.zeros(total, np.int64),
        np.zeros(max(second_total, 1), np.int64),
        np.stack([base, second_base, layout.scope_of], axis=1),
        np.stack(scopes, axis=1),
        layout.members,
    )


def _offsets(layout: ColumnLayout, room: Any, wanted: Any) -> tuple[Any, int]:
    sizes = np.where(wanted, room[layout.scope_of], 0)
    ends = np.cumsum(sizes)
    return ends - sizes, int(ends[-1])


def grown(buffers: ColumnBuffers, layout: ColumnLayout) -> ColumnBuffers:
    """The buffers with twice the room in the scope that was full."""
    room = buffers.scopes[:, ROOM] * np.where(buffers.scopes[:, WANTING] != 0, 2, 1)
    larger = _laid_out(layout, room)
    larger.scopes[:, COUNT] = buffers.scopes[:, COUNT]
    for node, scope in enumerate(layout.scope_of):
        count = buffers.scopes[scope, COUNT]
        old, new = buffers.nodes[node], larger.nodes[node]
        _move(buffers.valid, old[BASE], larger.valid, new[BASE], count)
        _move(buffers.first, old[BASE], larger.first, new[BASE], count)
        if layout.wide[node]:
            _move(buffers.second, old[SECOND_BASE], larger.second, new[SECOND_BASE], count)
    return larger


def _move(source: Any, start: int, target: Any, place: int, count: int) -> None:
    target[place : place + count] = source[start : start + count]


class Slots(NamedTuple):
    """Column buffers in pointers."""

    valid: Any
    first: Any
    second: Any
    nodes: Any
    scopes: Any
    members: Any
    scope_count: int


@inlined
def slots_of(buffers: ColumnBuffers) -> Slots:
    """Their pointers."""
    return Slots(
        pointer(buffers.valid),
        pointer(buffers.first),
        pointer(buffers.second),
        pointer(buffers.nodes),
        pointer(buffers.scopes),
        pointer(buffers.members),
        len(buffers.scopes),
    )


@inlined
def slot_of(slots: Slots, node: int) -> int:
    """Where the node's slot for the element under way is."""
    scope = slots.nodes[node * NODE_WIDTH + SCOPE]
    return slots.nodes[node * NODE_WIDTH + BASE] + slots.scopes[scope * SCOPE_WIDTH + COUNT] - 1  # type: ignore[no-any-return]


@inlined
def second_slot_of(slots: Slots, node: int) -> int:
    """Where the second integer of the same is."""
    scope = slots.nodes[node * NODE_WIDTH + SCOPE]
    return slots.nodes[node * NODE_WIDTH + SECOND_BASE] + slots.scopes[scope * SCOPE_WIDTH + COUNT] - 1  # type: ignore[no-any-return]


@inlined
def is_set(slots: Slots, node: int) -> bool:
    """Whether the node has a value in the element under way."""
    return slots.valid[slot_of(slots, node)] != 0  # type: ignore[no-any-return]


@inlined
def mark(slots: Slots, node: int) -> None:
    """Say that the node, a struct, list or map, is there in the element under way."""
    slots.valid[slot_of(slots, node)] = 1


@inlined
def put(slots: Slots, node: int, value: int) -> None:
    """Give the node its value in the element under way."""
    slot = slot_of(slots, node)
    slots.valid[slot], slots.first[slot] = 1, value


@inlined
def put_wide(slots: Slots, node: int, first: int, second: int) -> None:
    """The same for a node of two integers."""
    put(slots, node, first)
    slots.second[second_slot_of(slots, node)] = second


@inlined
def open_row(slots: Slots, row: int) -> None:
    """Begin a row, which `drop_row` can take back."""
    slots.scopes[COUNT] = row + 1
    for scope in range(1, slots.scope_count):
        slots.scopes[scope * SCOPE_WIDTH + SAVED] = slots.scopes[scope * SCOPE_WIDTH + COUNT]


@called
def drop_row(slots: Slots, row: int) -> None:
    """Make the row null, and what it put into lists unwritten."""
    _clear(slots, 0, row)
    for scope in range(1, slots.scope_count):
        slots.scopes[scope * SCOPE_WIDTH + COUNT] = slots.scopes[scope * SCOPE_WIDTH + SAVED]


@called
def open_element(slots: Slots, list_node: int, scope: int) -> bool:
    """Begin the next entry of a list or map, which is then there; False if its scope has no room for it."""
    mark(slots, list_node)
    index = slots.scopes[scope * SCOPE_WIDTH + COUNT]
    if index >= slots.scopes[scope * SCOPE_WIDTH + ROOM]:
        slots.scopes[scope * SCOPE_WIDTH + WANTING] = 1
        return False
    _clear(slots, scope, index)
    slots.scopes[scope * SCOPE_WIDTH + COUNT] = index + 1
    slots.first[slot_of(slots, list_node)] += 1
    return True


@called
def _clear(slots: Slots, scope: int, index: int) -> None:
    start, end = slots.scopes[scope * SCOPE_WIDTH + MEMBERS], slots.scopes[scope * SCOPE_WIDTH + MEMBERS_END]
    for member in range(start, end):
        slot = slots.nodes[slots.members[member] * NODE_WIDTH + BASE] + index
        slots.valid[slot] = 0
        slots.first[slot] = 0
