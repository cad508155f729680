"""From filled buffers to Arrow, column by column."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kernels.bounds import pointer
from headrace.kernels.intrinsics import copy
from headrace.kernels.jit import jit

from .column_buffers import BASE, COUNT, ROOM, SECOND_BASE, ColumnBuffers
from .layout import ROOT_SCOPE, ColumnLayout, ColumnNode, Form
from .payload import read_only
from .times import utc_of_local


class Assembler:
    """Makes Arrow arrays of column buffers; `data` and `side` are the bytes that its text is in. Defaults and a side
    buffer do not go together: the texts of defaults take its place.
    """

    def __init__(
        self, layout: ColumnLayout, buffers: ColumnBuffers, data: Any, side: Any = None, zone: str = "UTC"
    ) -> None:
        self._layout = layout
        self._buffers = buffers
        self._data = data
        self._side = read_only(side)
        self._zone = zone

    def values(self) -> pa.Array:
        """The array of the root node: one value per row."""
        self._fill_in_defaults()
        return self._array(self._layout.root)

    def _fill_in_defaults(self) -> None:
        with_defaults = [node for node in self._layout.nodes if node.default is not None]
        if with_defaults:
            texts = bytearray()
            for node in with_defaults:
                self._fill_in(node, texts)
            self._side = read_only(bytes(texts))

    def _fill_in(self, node: ColumnNode, texts: bytearray) -> None:
        absent = self._valid(node) == 0
        if node.parent is not None:
            absent &= self._valid(node.parent) != 0
        self._valid(node)[absent] = 1
        if isinstance(node.default, bytes):
            self._first(node)[absent] = -1 - len(texts)
            self._second(node)[absent] = len(node.default)
            texts += node.default
        else:
            self._first(node)[absent] = node.default

    def _count(self, node: ColumnNode) -> int:
        return int(self._buffers.scopes[node.scope, ROOM if node.scope == ROOT_SCOPE else COUNT])

    def _valid(self, node: ColumnNode) -> Any:
        start = self._buffers.nodes[node.index, BASE]
        return self._buffers.valid[start : start + self._count(node)]

    def _first(self, node: ColumnNode) -> Any:
        start = self._buffers.nodes[node.index, BASE]
        return self._buffers.first[start : start + self._count(node)]

    def _second(self, node: ColumnNode) -> Any:
        start = self._buffers.nodes[node.index, SECOND_BASE]
        return self._buffers.second[start : start + self._count(node)]

    def _array(self, node: ColumnNode) -> pa.Array:
        return _READERS[node.form](self, node)

    def _bitmap(self, node: ColumnNode) -> pa.Buffer | None:
        valid = self._valid(node)
        return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))

    def _nothing(self, node: ColumnNode) -> pa.Array:
        return pa.nulls(self._count(node), node.type)

    def _number(self, node: ColumnNode) -> pa.Array:
        return self._fixed(node, _stored(self._first(node), node.type))

    def _fixed(self, node: ColumnNode, stored: Any) -> pa.Array:
        return pa.Array.from_buffers(node.type, self._count(node), [self._bitmap(node), pa.py_buffer(stored)])

    def _float_bits(self, node: ColumnNode) -> pa.Array:
        bits = self._first(node)
        return self._fixed(node, bits.astype(np.uint32) if node.type == pa.float32() else bits)

    def _bytes(self, node: ColumnNode) -> pa.Array:
        return self._texts(node.type, self._first(node), self._second(node), self._valid(node), self._bitmap(node))

    def _texts(
        self, arrow_type: pa.DataType, starts: Any, sizes: Any, valid: Any, bitmap: pa.Buffer | None
    ) -> pa.Array:
        offsets = np.zeros(len(valid) + 1, np.int32)
        np.cumsum(np.where(valid, sizes, 0), out=offsets[1:])
        held = np.empty(offsets[-1], np.uint8)
        _gather(self._data, self._side, starts, valid, offsets, held)
        return pa.Array.from_buffers(arrow_type, len(valid), [bitmap, pa.py_buffer(offsets), pa.py_buffer(held)])

    def _numeral(self, node: ColumnNode) -> pa.Array:
        bits, sizes, valid = self._first(node), self._second(node), self._valid(node)
        unread = np.flatnonzero(valid & (sizes != 0))
        if len(unread):
            texts = self._texts(pa.string(), bits[unread], sizes[unread], np.ones(len(unread), np.uint8), None)
            numbers = pc.cast(texts, node.type).to_numpy(zero_copy_only=False)
            bits[unread] = numbers.view(f"uint{node.type.bit_width}")
        return self._float_bits(node)

    def _symbol(self, node: ColumnNode) -> pa.Array:
        numbers, known = self._first(node), list(range(len(node.names)))
        if len(numbers) and not (node.names_are_dense and 0 <= numbers.min() <= numbers.max() < len(known)):
            found, numbers = np.unique(numbers, return_inverse=True)
            known = found.tolist()
        names = pa.array([node.name_of(number) for number in known], pa.string())
        return names.take(pa.array(numbers, mask=self._valid(node) == 0))

    def _decimal(self, node: ColumnNode) -> pa.Array:
        return self._fixed(node, np.stack([self._first(node), self._second(node)], axis=1).reshape(-1))

    def _local_time(self, node: ColumnNode) -> pa.Array:
        local = self._second(node) != 0
        micros = self._first(node)
        if self._zone != "UTC" and local.any():
            micros = np.where(local, utc_of_local(micros, local, self._zone), micros)
        return self._fixed(node, micros)

    def _struct(self, node: ColumnNode) -> pa.Array:
        children = [self._array(child) for child in node.children]
        return pa.Array.from_buffers(node.type, self._count(node), [self._bitmap(node)], children=children)

    def _list(self, node: ColumnNode) -> pa.Array:
        return self._of_entries(node, self._array(node.children[0]))

    def _map(self, node: ColumnNode) -> pa.Array:
        entries = [self._array(child) for child in node.children]
        entry_type = pa.struct([node.type.key_field, node.type.item_field])
        return self._of_entries(node, pa.Array.from_buffers(entry_type, len(entries[0]), [None], children=entries))

    def _of_entries(self, node: ColumnNode, entries: pa.Array) -> pa.Array:
        counts = self._first(node)
        offsets = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        buffers = [self._bitmap(node), pa.py_buffer(offsets)]
        return pa.Array.from_buffers(node.type, len(counts), buffers, children=[entries])


_READERS: Final[dict[Form, Callable[[Assembler, ColumnNode], pa.Array]]] = {
    Form.NOTHING: Assembler._nothing,
    Form.NUMBER: Assembler._number,
    Form.FLOAT_BITS: Assembler._float_bits,
    Form.BYTES: Assembler._bytes,
    Form.NUMERAL: Assembler._numeral,
    Form.SYMBOL: Assembler._symbol,
    Form.DECIMAL: Assembler._decimal,
    Form.LOCAL_TIME: Assembler._local_time,
    Form.STRUCT: Assembler._struct,
    Form.LIST: Assembler._list,
    Form.MAP: Assembler._map,
}


def _stored(numbers: Any, arrow_type: pa.DataType) -> Any:
    if pa.types.is_boolean(arrow_type):
        return np.packbits(numbers != 0, bitorder="little")
    return numbers.astype(f"int{arrow_type.bit_width}", copy=False)


@jit
def _gather(data: Any, side: Any, starts: Any, valid: Any, offsets: Any, held: Any) -> None:
    for index in range(len(starts)):
        if valid[index]:
            start, place = starts[index], offsets[index]
            size = offsets[index + 1] - place
            if start >= 0:
                copy(pointer(held), place, pointer(data), start, size)
            else:
                copy(pointer(held), place, pointer(side), -1 - start, size)


def with_rows_replaced(values: pa.Array, rows: Any, others: pa.Array) -> pa.Array:
    """The values, with those of `rows` taken from `others` in their order."""
    places = np.arange(len(values))
    places[rows] = len(values) + np.arange(len(rows))
    return pa.concat_arrays([values, others]).take(pa.array(places))
