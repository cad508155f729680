"""Protobuf messages."""

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError
from pyspark.sql import types as t

from .assemble import Assembler
from .mend import mended
from .options import FormatOptions
from .payload import Decoded, Payload, payload_of_rows
from .protobuf_loop import Stack, Tables, decode
from .protobuf_plan import Plan, plan_of
from .sheet import COUNT, grown, new_sheet


class ProtobufCodec:
    """Decodes messages of one type."""

    def __init__(self, options: FormatOptions) -> None:
        self._options = options
        self._per_row: Any = None

    def check(self) -> None:
        """Raise OptionError if the message type cannot be decoded to."""
        _ = self._plan

    @cached_property
    def _plan(self) -> Plan:
        return plan_of(self._options)

    @property
    def message(self) -> Any:
        """The class of the messages."""
        return self._plan.message

    @property
    def spark_type(self) -> t.DataType:
        """What a value is in Spark."""
        return self._plan.spark_type

    def decode(self, payload: Payload) -> Decoded:
        """The messages of a payload as a struct array."""
        values, odd = self._read(payload)
        rows = np.flatnonzero(odd)
        if not len(rows):
            return Decoded(values)
        settled = [self._settled(payload.row(row)) for row in rows.tolist()]
        others, unreadable = self._read(payload_of_rows([data for data, _ in settled]))
        errors = {
            int(row): error or "a string is not UTF-8, or a time is out of range"
            for row, (_, error), still_odd in zip(rows, settled, unreadable, strict=True)
            if error or still_odd
        }
        return Decoded(mended(values, rows, others), errors)

    def _read(self, payload: Payload) -> tuple[pa.Array, Any]:
        plan = self._plan
        sheet = new_sheet(plan.layout, payload.rows, self._per_row)
        odd = np.zeros(payload.rows, np.uint8)
        stack = Stack(*(np.zeros(len(plan.messages) + 1, np.int64) for _ in Stack._fields))
        tables = Tables(plan.fields, plan.messages, plan.numbers)
        row, plain = 0, payload.plain()
        while (row := decode(plain, tables, sheet, stack, odd, row)) < payload.rows:
            sheet = grown(sheet, plan.layout)
        if payload.rows:
            self._per_row = sheet.scopes[:, COUNT] / payload.rows
        return Assembler(plan.layout, sheet, payload.data).values(), odd

    def _settled(self, data: bytes) -> tuple[bytes | None, str]:
        """A message that the loop found odd, as the library writes it after reading it; or why it cannot."""
        message = self._plan.message()
        try:
            message.ParseFromString(data)
        except DecodeError as error:
            reason = str(error).rpartition(": ")[2]
            return None, f"not a {message.DESCRIPTOR.full_name}: {reason}"
        if not message.IsInitialized():
            return None, f"required fields are missing: {', '.join(message.FindInitializationErrors())}"
        message.DiscardUnknownFields()
        return message.SerializeToString(), ""
