"""Batches of records with their values decoded, as executors hand them to Spark."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from . import types as t
from .arrow_types import arrow_field
from .bad_records import BAD, BAD_FIELD, bad_column, dead_letter_writer, dead_letters
from .options import FormatOptions
from .payload import Decoded, Payload, payload_of


class ColumnDecoder(Protocol):
    """Decodes values of one type; made where the query is planned, used where it runs."""

    @property
    def spark_type(self) -> t.DataType:
        """What a value is in Spark."""

    def check(self) -> None:
        """Raise OptionError if the schema cannot be decoded to."""

    def decode(self, payload: Payload) -> Decoded:
        """The values of a payload."""


class ValueDecoder:
    """Decodes the `value` column of batches, and the `key` column where it is asked to.

    A record that cannot be decoded never raises: it gets a null and a row in the column `bad`, or is written to the
    dead letter topic and left out. A value that is null stays null and is not bad.
    """

    def __init__(
        self, options: FormatOptions, write_dead_letters: Callable[[pa.RecordBatch], None] | None = None
    ) -> None:
        self._options = options
        self._given_writer = write_dead_letters

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_given_writer": self._given_writer}

    def check(self) -> None:
        """Raise OptionError if the schema is none."""
        for codec in self._codecs.values():
            codec.check()

    @property
    def needs_headers(self) -> bool:
        """Whether `decode` wants batches with `headers` even where the query does not: a dead letter keeps them."""
        return bool(self._options.dead_letter_topic)

    @cached_property
    def _value_codec(self) -> ColumnDecoder | None:
        return _codec(self._options)

    @cached_property
    def _key_codec(self) -> ColumnDecoder | None:
        return _string_codec() if self._options.key_format == "string" else None

    def spark_schema(self, base: t.StructType) -> t.StructType:
        """The schema that the source has, given the one of records that are not decoded."""
        fields = [self._spark_field(field) for field in base.fields]
        return t.StructType(fields if self._options.dead_letter_topic else [*fields, BAD_FIELD])

    def _spark_field(self, field: t.StructField) -> t.StructField:
        codec = self._codecs.get(field.name)
        return t.StructField(field.name, codec.spark_type, True) if codec else field

    def arrow_schema(self, base: pa.Schema) -> pa.Schema:
        """The schema of the batches that `decode` gives, given that of its argument."""
        fields = [self._arrow_field(field) for field in base if self._is_kept(field.name)]
        return pa.schema(fields if self._options.dead_letter_topic else [*fields, arrow_field(BAD_FIELD)])

    def _arrow_field(self, field: pa.Field) -> pa.Field:
        codec = self._codecs.get(field.name)
        return arrow_field(t.StructField(field.name, codec.spark_type, True)) if codec else field

    def _is_kept(self, name: str) -> bool:
        return name != "headers" or self._options.include_headers or not self.needs_headers

    @cached_property
    def _codecs(self) -> dict[str, ColumnDecoder]:
        found = {"key": self._key_codec, "value": self._value_codec}
        return {name: codec for name, codec in found.items() if codec is not None}

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with its columns decoded. Dead letters are written, and safe, when it returns."""
        decoded, errors = self._decoded(batch)
        columns = {name: decoded.get(name, batch.column(name)) for name in batch.schema.names if self._is_kept(name)}
        if not self._options.dead_letter_topic:
            columns[BAD] = bad_column(batch, errors)
        result = pa.RecordBatch.from_arrays(list(columns.values()), schema=self.arrow_schema(batch.schema))
        return self._without_dead(batch, result, errors) if self._options.dead_letter_topic else result

    def _decoded(self, batch: pa.RecordBatch) -> tuple[dict[str, pa.Array], dict[int, str]]:
        columns, errors = {}, {}
        for name, codec in self._codecs.items():
            found = codec.decode(payload_of(batch.column(name)))
            columns[name] = found.values
            errors.update({row: f"{name}: {error}" for row, error in found.errors.items()})
        return columns, errors

    def _without_dead(self, batch: pa.RecordBatch, result: pa.RecordBatch, errors: dict[int, str]) -> pa.RecordBatch:
        if not errors:
            return result
        self._write_dead_letters(dead_letters(batch, errors))
        good = np.ones(len(batch), np.bool_)
        good[list(errors)] = False
        return result.filter(pa.array(good))

    def _write_dead_letters(self, letters: pa.RecordBatch) -> None:
        if self._given_writer is not None:
            self._given_writer(letters)
            return
        dead_letter_writer(self._options.dead_letter_topic, self._options.client)(letters)


def _string_codec(*, is_framed: bool = False) -> ColumnDecoder:
    from .text import StringCodec

    return StringCodec(is_framed=is_framed)


def _codec(options: FormatOptions) -> ColumnDecoder | None:
    """The codec of values, which may have a head before them."""
    if options.format == "raw":
        return None
    if options.framing != "confluent":
        return codec_of(options)
    if options.format == "string":
        return _string_codec(is_framed=True)
    from .registered import RegisteredCodec

    return RegisteredCodec(options)


def codec_of(options: FormatOptions) -> ColumnDecoder:
    """The codec of values of the reader's schema; each format brings libraries that the others do without."""
    if options.format == "json":
        from .json_codec import JsonColumnDecoder

        return JsonColumnDecoder(options.schema, options.time_zone)
    if options.format == "avro":
        from .avro import AvroColumnDecoder

        return AvroColumnDecoder(options.schema)
    if options.format == "protobuf":
        from .protobuf import ProtobufColumnDecoder

        return ProtobufColumnDecoder(options)
    return _string_codec()
