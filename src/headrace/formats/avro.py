"""Avro records without a file around them, as in messages."""

import json
from functools import cached_property
from typing import Any, Final

import numpy as np

from headrace.registry.errors import InvalidSchemaError
from headrace.registry.schemas.avro import AvroModel

from . import types as t
from .assemble import Assembler
from .avro_columns import model_of
from .avro_loop import CUT_SHORT, LEFT_OVER, NO_SUCH_BRANCH, NOT_UTF8, OUT_OF_RANGE, TOO_DEEP, decode
from .avro_plan import UNRESOLVED, AvroPlan, plan_of
from .column_buffers import COUNT, grown, new_buffers
from .errors import OptionError
from .payload import Decoded, Payload

_FAULTS: Final = {
    CUT_SHORT: "the record is cut short",
    OUT_OF_RANGE: "a number is out of range",
    NOT_UTF8: "a string is not UTF-8",
    NO_SUCH_BRANCH: "a union has no such branch",
    TOO_DEEP: "values are nested too deep",
    LEFT_OVER: "bytes are left over after the record",
}


class AvroColumnDecoder:
    """Decodes records of one schema, or of another that a writer had."""

    def __init__(self, schema: str, writer: AvroModel | None = None) -> None:
        self._schema = schema
        self._writer = writer
        self._per_row: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_schema": self._schema, "_writer": self._writer, "_per_row": None}

    def check(self) -> None:
        """Raise OptionError if the schema cannot be decoded to."""
        _ = self._plan

    @cached_property
    def _plan(self) -> AvroPlan:
        reader = _reader(self._schema)
        return plan_of(reader, self._writer or reader)

    @property
    def spark_type(self) -> t.DataType:
        """What a value is in Spark."""
        return self._plan.spark_type

    def decode(self, payload: Payload) -> Decoded:
        """The records of a payload as a struct array."""
        plan = self._plan
        buffers = new_buffers(plan.layout, payload.rows, self._per_row)
        faults, positions = np.zeros(payload.rows, np.int64), np.zeros(payload.rows, np.int64)
        left = np.zeros(plan.depth + 1, np.int64)
        row, plain = 0, payload.plain()
        while (row := decode(plain, plan.steps, plan.tables, buffers, faults, positions, left, row)) < payload.rows:
            buffers = grown(buffers, plan.layout)
        if payload.rows:
            self._per_row = buffers.scopes[:, COUNT] / payload.rows
        errors = {row: _error(plan, int(faults[row]), positions[row]) for row in np.flatnonzero(faults).tolist()}
        return Decoded(Assembler(plan.layout, buffers, payload.data, plan.texts).values(), errors)


def _reader(text: str) -> AvroModel:
    try:
        json.loads(text)
        return model_of(text)
    except ValueError as error:
        raise OptionError(f"schema: not an Avro schema in JSON ({error})") from error
    except InvalidSchemaError as error:
        raise OptionError(f"schema: not a valid Avro schema: {error}") from error


def _error(plan: AvroPlan, fault: int, place: int) -> str:
    if fault <= UNRESOLVED:
        return plan.reasons[UNRESOLVED - fault]
    return f"{_FAULTS[fault]}, at byte {place}"
