"""Values that serializers of a schema registry wrote: each is read with the schema it was written with, found by the id
that stands before it, and resolved to the schema of the reader.

An id that the registry does not know, a schema of another type and one that cannot be resolved make records bad. A
registry that does not answer makes none bad: the task fails, and is tried again.

A worker process outlives its tasks, and keeps what it has made of the schemas.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from headrace.client.registry import NotRegistered, RegisteredSchema, SchemaRegistry, shared_registry
from headrace.registry.errors import InvalidSchemaError
from headrace.registry.references import dependencies
from headrace.registry.schemas.model import Dependency

from . import types as t
from .arrow_types import arrow_type
from .errors import OptionError
from .options import FormatOptions
from .payload import Decoded, Payload

SCHEMA_TYPES: Final = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}
"""What a registry calls the schemas of each format."""

_MOST_KEPT: Final = 1000


class ValueReader(Protocol):
    """Decodes to the columns of the reader's schema."""

    @property
    def spark_type(self) -> t.DataType:
        """What a value is in Spark."""

    def check(self) -> None:
        """Raise OptionError if the schema cannot be decoded to."""

    def decode(self, payload: Payload) -> Decoded:
        """The values of a payload."""


class Unreadable(Exception):
    """Why nothing that was written with a schema can be read."""


class RegisteredCodec:
    """Decodes framed values; the reader's schema is that of the options."""

    def __init__(self, options: FormatOptions, registry: Callable[[], SchemaRegistry] | None = None) -> None:
        self._options = options
        self._given = registry

    @property
    def _registry(self) -> SchemaRegistry:
        if self._given is not None:
            return self._given()
        assert self._options.registry is not None
        return shared_registry(self._options.registry)

    @cached_property
    def _reader(self) -> ValueReader:
        return _plain_codec(self._options)

    def check(self) -> None:
        """Raise OptionError if the schema cannot be decoded to."""
        self._reader.check()

    @property
    def spark_type(self) -> t.DataType:
        """What a value is in Spark."""
        return self._reader.spark_type

    def decode(self, payload: Payload) -> Decoded:
        """The values of a payload, those of one schema together."""
        from .framing import NO_HEAD, confluent

        framed = confluent(payload, has_indexes=self._options.format == "protobuf")
        codecs: dict[int, ValueReader] = {}
        members: dict[int, list[int]] = {}
        errors = framed.errors
        for number, head in enumerate(framed.heads):
            try:
                codec = self._codec(head)
            except Unreadable as error:
                errors |= dict.fromkeys(np.flatnonzero(framed.which == number).tolist(), str(error))
            else:
                codecs[id(codec)] = codec
                members.setdefault(id(codec), []).append(number)
        if len(codecs) == 1 and not errors and NO_HEAD not in framed.which:
            return next(iter(codecs.values())).decode(framed.payload)
        groups = [(codec, np.flatnonzero(np.isin(framed.which, members[key]))) for key, codec in codecs.items()]
        return self._merged(framed.payload, groups, errors)

    def _merged(self, payload: Payload, groups: list[tuple[ValueReader, Any]], errors: dict[int, str]) -> Decoded:
        pieces = [pa.nulls(1, arrow_type(self.spark_type))]
        positions = np.zeros(payload.rows, np.int64)
        begin = 1
        for codec, rows in groups:
            decoded = codec.decode(payload.rows_at(rows))
            errors |= {int(rows[row]): error for row, error in decoded.errors.items()}
            pieces.append(decoded.values)
            positions[rows] = begin + np.arange(len(rows))
            begin += len(rows)
        return Decoded(pa.concat_arrays(pieces).take(pa.array(positions)), errors)

    def _codec(self, head: Any) -> ValueReader:
        """What decodes values with this head; Unreadable if nothing can."""
        key = (self._options.registry, self._options.reader_key, head)
        codec = _codecs.get(key)
        if codec is None:
            codec = self._compiled(head)
            if len(_codecs) >= _MOST_KEPT:
                _codecs.clear()
            _codecs[key] = codec
        return codec

    def _compiled(self, head: Any) -> ValueReader:
        registry, schema_id = self._registry, head.schema_id
        schema = registry.schema(schema_id, self._options.context)
        if schema is None:
            raise Unreadable(f"the schema id {schema_id} is not known to {registry.name}")
        wanted = SCHEMA_TYPES[self._options.format]
        if schema.type != wanted:
            raise Unreadable(f"the schema id {schema_id} is of type {schema.type}, not {wanted}")
        try:
            needed = dependencies(registry, schema, self._options.context)
            codec = self._writers_codec(schema, needed, head.indexes)
            codec.check()
        except (InvalidSchemaError, NotRegistered, OptionError, RecursionError) as error:
            raise Unreadable(f"the schema id {schema_id} cannot be used: {error}") from error
        return codec

    def _writers_codec(
        self, schema: RegisteredSchema, needed: list[Dependency], indexes: tuple[int, ...]
    ) -> ValueReader:
        if self._options.format == "avro":
            from .avro import AvroColumnDecoder
            from .avro_columns import model_of

            return AvroColumnDecoder(self._options.schema, model_of(schema.text, needed))
        if self._options.format == "protobuf":
            from .protobuf import ProtobufColumnDecoder
            from .protobuf_writer import message_type

            return ProtobufColumnDecoder(self._options, message_type(schema.text, needed, indexes))
        return self._reader


_codecs: dict[tuple[Any, ...], ValueReader] = {}


def _plain_codec(options: FormatOptions) -> ValueReader:
    from .decoder import codec_of

    return codec_of(options)
