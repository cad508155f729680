"""Values of a topic as the columns of its table.

A value of a schema registry is read with the schema that it was written with, and with no other: so a record keeps all
fields that its producer gave it, whichever version of the schema is the newest, and the table has the fields of all of
them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.client.registry import NotRegistered, shared_registry
from headrace.formats.decoder import ColumnDecoder, codec_of
from headrace.formats.errors import OptionError
from headrace.formats.options import FormatOptions, read_options
from headrace.formats.payload import Payload, payload_of
from headrace.registry.errors import InvalidSchemaError

from .errors import LakeError
from .writing import DecodedValues, TableDecoder, ValueGroup

_MOST_KEPT: Final = 1000
_SCHEMA_TYPES: Final = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}


def decoder_for_topic(topic: str, options: Mapping[str, str]) -> TableDecoder | None:
    """What decodes a topic's values, by options as a source has them; None where they stay bytes.

    LakeError if the options cannot be meant.
    """
    if not options or options.get("format", "raw") == "raw":
        return None
    try:
        read = read_options({"subscribe": topic, **options})
        if read.framing == "confluent" and read.format != "string":
            return RegisteredValues(read)
        plain = PlainValues(read)
        plain.codec.check()
    except OptionError as error:
        raise LakeError(f"values of topic '{topic}': {error}") from error
    return plain


@dataclass(slots=True)
class PlainValues:
    """Values of one schema."""

    options: FormatOptions
    _codec: ColumnDecoder | None = field(default=None, repr=False)

    def __getstate__(self) -> FormatOptions:
        return self.options

    def __setstate__(self, options: FormatOptions) -> None:
        self.options, self._codec = options, None

    @property
    def codec(self) -> ColumnDecoder:
        """Made where it is used."""
        if self._codec is None:
            if self.options.framing == "confluent":
                from headrace.formats.text import StringCodec

                self._codec = StringCodec(is_framed=True)
            else:
                self._codec = codec_of(self.options)
        return self._codec

    def decode(self, values: pa.Array) -> DecodedValues:
        """The values of records."""
        payload = payload_of(values)
        decoded = self.codec.decode(payload)
        return DecodedValues(*_grouped(decoded.values, decoded.errors, np.asarray(payload.present), ""))


@dataclass(slots=True)
class RegisteredValues:
    """Values of a schema registry."""

    options: FormatOptions

    def decode(self, values: pa.Array) -> DecodedValues:
        """The values of records, those of one schema together."""
        from headrace.formats.framing import confluent

        framed = confluent(payload_of(values), has_indexes=self.options.format == "protobuf")
        groups: list[ValueGroup] = []
        errors = dict(framed.errors)
        for number, head in enumerate(framed.heads):
            rows = np.flatnonzero(framed.which == number)
            try:
                codec = self._codec(head)
            except _Unreadable as error:
                errors |= dict.fromkeys(rows.tolist(), str(error))
                continue
            found, wrong = _decoded_rows(codec, framed.payload, rows, f"schema id {head.schema_id}")
            groups += found
            errors |= wrong
        return DecodedValues(groups, errors)

    def _codec(self, head: Any) -> ColumnDecoder:
        key = (self.options.registry, self.options.reader_key, head)
        codec = _codecs.get(key)
        if codec is None:
            codec = self._compiled(head)
            if len(_codecs) >= _MOST_KEPT:
                _codecs.clear()
            _codecs[key] = codec
        return codec

    def _compiled(self, head: Any) -> ColumnDecoder:
        assert self.options.registry is not None
        registry = shared_registry(self.options.registry)
        schema = registry.schema(head.schema_id, self.options.context)
        if schema is None:
            raise _Unreadable(f"the schema id {head.schema_id} is not known to {registry.name}")
        wanted = _SCHEMA_TYPES[self.options.format]
        if schema.type != wanted:
            raise _Unreadable(f"the schema id {head.schema_id} is of type {schema.type}, not {wanted}")
        try:
            codec = self._own_codec(registry, schema, head)
            codec.check()
        except (InvalidSchemaError, NotRegistered, OptionError, RecursionError) as error:
            raise _Unreadable(f"the schema id {head.schema_id} cannot be used: {error}") from error
        return codec

    def _own_codec(self, registry: Any, schema: Any, head: Any) -> ColumnDecoder:
        from headrace.formats.subjects import with_schema

        options = with_schema(self.options, registry, schema)
        if options.format != "protobuf":
            return codec_of(options)
        from dataclasses import replace

        from headrace.formats.protobuf import ProtobufColumnDecoder
        from headrace.formats.protobuf_writer import message_type
        from headrace.registry.references import dependencies

        message = message_type(schema.text, dependencies(registry, schema, options.context), head.indexes)
        return ProtobufColumnDecoder(replace(options, message_name=message.full_name), message)


class _Unreadable(Exception):
    """Why nothing that was written with a schema can be read."""


_codecs: dict[tuple[Any, ...], ColumnDecoder] = {}


def _decoded_rows(
    codec: ColumnDecoder, payload: Payload, rows: Any, origin: str
) -> tuple[list[ValueGroup], dict[int, str]]:
    whole = len(rows) == payload.rows
    decoded = codec.decode(payload if whole else payload.rows_at(rows))
    groups, errors = _grouped(decoded.values, decoded.errors, np.ones(len(rows), np.bool_), origin)
    return (
        [ValueGroup(rows[group.rows], group.values, origin) for group in groups],
        {int(rows[row]): error for row, error in errors.items()},
    )


def _grouped(
    values: pa.Array, errors: Mapping[int, str], present: Any, origin: str
) -> tuple[list[ValueGroup], dict[int, str]]:
    """The rows that have a value, which are those that are there and are not bad."""
    good = present.astype(np.bool_, copy=True)
    good[list(errors)] = False
    rows = np.flatnonzero(good)
    if not len(rows):
        return [], dict(errors)
    kept = values if len(rows) == len(values) else values.take(pa.array(rows))
    return [ValueGroup(rows, kept, origin)], dict(errors)
