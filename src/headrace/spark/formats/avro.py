"""Avro records without a file around them, as in messages."""

from functools import cached_property
from typing import Any, Final

import numpy as np
from pyspark.sql import types as t

from .assemble import Assembler
from .avro_loop import CUT_SHORT, LEFT_OVER, NO_SUCH_BRANCH, NOT_UTF8, OUT_OF_RANGE, decode
from .avro_plan import Plan, plan_of
from .payload import Decoded, Payload
from .sheet import COUNT, grown, new_sheet

_FAULTS: Final = {
    CUT_SHORT: "the record is cut short",
    OUT_OF_RANGE: "a number is out of range",
    NOT_UTF8: "a string is not UTF-8",
    NO_SUCH_BRANCH: "a union has no such branch",
    LEFT_OVER: "bytes are left over after the record",
}


class AvroCodec:
    """Decodes records of one schema."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._per_row: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_schema": self._schema, "_per_row": None}

    def check(self) -> None:
        """Raise OptionError if the schema cannot be decoded to."""
        _ = self._plan

    @cached_property
    def _plan(self) -> Plan:
        return plan_of(self._schema)

    @property
    def spark_type(self) -> t.DataType:
        """What a value is in Spark."""
        return self._plan.spark_type

    def decode(self, payload: Payload) -> Decoded:
        """The records of a payload as a struct array."""
        plan = self._plan
        sheet = new_sheet(plan.layout, payload.rows, self._per_row)
        faults, places = np.zeros(payload.rows, np.int64), np.zeros(payload.rows, np.int64)
        left = np.zeros(plan.layout.scopes, np.int64)
        row, plain = 0, payload.plain()
        while (row := decode(plain, plan.steps, plan.tables, sheet, faults, places, left, row)) < payload.rows:
            sheet = grown(sheet, plan.layout)
        if payload.rows:
            self._per_row = sheet.scopes[:, COUNT] / payload.rows
        return Decoded(Assembler(plan.layout, sheet, payload.data).values(), _errors(faults, places))


def _errors(faults: Any, places: Any) -> dict[int, str]:
    bad = np.flatnonzero(faults).tolist()
    return {row: f"{_FAULTS[int(faults[row])]}, at byte {places[row]}" for row in bad}
