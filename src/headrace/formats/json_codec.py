"""JSON documents."""

from functools import cached_property
from typing import Any, cast

import numpy as np
import pyarrow as pa

from . import types as t
from .arrow_types import all_nullable
from .assemble import with_rows_replaced
from .ddl import parse_schema
from .json_plan import JsonPlan, plan_of
from .json_rows import JsonRows
from .payload import Decoded, Payload


class JsonColumnDecoder:
    """Decodes documents of one struct; times without a zone are of the one given."""

    def __init__(self, schema: str, zone: str) -> None:
        self._schema = schema
        self._zone = zone
        self._per_row: Any = None

    @cached_property
    def spark_type(self) -> t.StructType:
        """What a value is in Spark."""
        return cast(t.StructType, all_nullable(parse_schema(self._schema)))

    def check(self) -> None:
        """Raise OptionError if the schema cannot be decoded to."""
        _ = self._plan

    @cached_property
    def _plan(self) -> JsonPlan:
        return plan_of(self.spark_type)

    @cached_property
    def _rows(self) -> JsonRows:
        return JsonRows(self.spark_type, self._zone)

    def decode(self, payload: Payload) -> Decoded:
        """The documents of a payload as a struct array."""
        values, odd = self._read(payload)
        rows = np.flatnonzero(odd)
        if not len(rows):
            return Decoded(values)
        others, errors = self.read_one_by_one(payload, rows)
        return Decoded(with_rows_replaced(values, rows, others), errors)

    def read_one_by_one(self, payload: Payload, rows: Any) -> tuple[pa.Array, dict[int, str]]:
        """These rows, each by itself: whatever they hold."""
        read = [self._rows.read(payload.row(int(row))) for row in rows]
        errors = {int(row): error for row, (_, error) in zip(rows, read, strict=True) if error}
        return pa.array([value for value, _ in read], self._plan.layout.root.type), errors

    def _read(self, payload: Payload) -> tuple[pa.Array, Any]:
        # Whoever only plans does without the compiled loops.
        from .assemble import Assembler
        from .column_buffers import COUNT, grown, new_buffers
        from .json_loop import DEEPEST, JsonTables, NodeStack, Side, decode

        plan = self._plan
        buffers = new_buffers(plan.layout, payload.rows, self._per_row)
        tables = JsonTables(plan.nodes, plan.names, plan.letters, plan.words, plan.masks)
        stack = NodeStack(np.zeros(DEEPEST, np.int64), np.zeros(DEEPEST, np.uint8), np.zeros(DEEPEST, np.int64))
        side = Side(np.empty(_size(payload), np.uint8), np.zeros(1, np.int64))
        odd = np.zeros(payload.rows, np.uint8)
        row, plain = 0, payload.plain()
        while (row := decode(plain, tables, buffers, stack, side, odd, row)) < payload.rows:
            buffers = grown(buffers, plan.layout)
        if payload.rows:
            self._per_row = buffers.scopes[:, COUNT] / payload.rows
        return Assembler(plan.layout, buffers, payload.data, side.text[: side.end[0]], self._zone).values(), odd


def _size(payload: Payload) -> int:
    return int(np.sum(payload.ends - payload.starts))
