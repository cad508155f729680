"""Protobuf messages."""

from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from . import types as t
from .assemble import Assembler, with_rows_replaced
from .column_buffers import COUNT, grown, new_buffers
from .options import FormatOptions
from .payload import Decoded, Payload, payload_of_rows
from .protobuf_loop import MessageStack, ProtobufTables, decode
from .protobuf_plan import ProtobufPlan, is_repeated, plan_of

_UNREADABLE: Final = "a string is not UTF-8, a time is out of range, or what the reader needs is not there"


class ProtobufColumnDecoder:
    """Decodes messages of one type, or of another version of it that a writer had."""

    def __init__(self, options: FormatOptions, writer: Descriptor | None = None) -> None:
        self._options = options
        self._writer = writer
        self._per_row: Any = None

    def check(self) -> None:
        """Raise OptionError if the message type cannot be decoded to."""
        _ = self._plan

    @cached_property
    def _plan(self) -> ProtobufPlan:
        return plan_of(self._options, self._writer)

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
            int(row): error or _UNREADABLE
            for row, (_, error), still_odd in zip(rows, settled, unreadable, strict=True)
            if error or still_odd
        }
        return Decoded(with_rows_replaced(values, rows, others), errors)

    def _read(self, payload: Payload) -> tuple[pa.Array, Any]:
        plan = self._plan
        buffers = new_buffers(plan.layout, payload.rows, self._per_row)
        odd = np.zeros(payload.rows, np.uint8)
        stack = MessageStack(*(np.zeros(len(plan.messages) + 1, np.int64) for _ in MessageStack._fields))
        tables = ProtobufTables(plan.fields, plan.messages, plan.numbers)
        row, plain = 0, payload.plain()
        while (row := decode(plain, tables, buffers, stack, odd, row)) < payload.rows:
            buffers = grown(buffers, plan.layout)
        if payload.rows:
            self._per_row = buffers.scopes[:, COUNT] / payload.rows
        return Assembler(plan.layout, buffers, payload.data).values(), odd

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
        for refused in self._plan.refused:
            if _is_set(message, refused.numbers):
                return None, refused.reason
        message.DiscardUnknownFields()
        return message.SerializeToString(), ""


def _is_set(message: Any, numbers: tuple[int, ...]) -> bool:
    """Whether a field is there, given its number behind those of the fields that it is inside of."""
    field = message.DESCRIPTOR.fields_by_number.get(numbers[0])
    if field is None:
        return any(unknown.field_number == numbers[0] for unknown in UnknownFieldSet(message))
    values = _values(message, field)
    if len(numbers) == 1 or not values:
        return bool(values)
    if field.message_type.GetOptions().map_entry:
        # Of an entry, whose key and value are fields 1 and 2, only the value has fields.
        return len(numbers) == 2 or any(_is_set(value, numbers[2:]) for value in values)
    return any(_is_set(value, numbers[1:]) for value in values)


def _values(message: Any, field: Any) -> list[Any]:
    found = next((value for listed, value in message.ListFields() if listed.number == field.number), None)
    if found is None:
        return []
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return list(found.values())
    return list(found) if is_repeated(field) else [found]
