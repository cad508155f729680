"""`format("headrace")` of Spark, to read and to write, in batches and as streams: topics as rows of Arrow batches."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.config.names import shown
from headrace.config.setting import ConfigError
from headrace.formats import OPTION_NAMES, decoder_for
from headrace.formats.flat import FlatDecoder, RecordDecoder

from .errors import with_query_errors
from .source.options import SourceOptions, parse
from .source.reading import Rows
from .table_options import is_made_a_table, options_in, plain_options, with_options
from .types import struct_from_spark, to_spark

if TYPE_CHECKING:
    from .sink.writer import SinkStreamWriter, SinkWriter
    from .source.stream import StreamReader

RECORD: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
"""A row, as Spark's Kafka connector has it."""

HEADERS: Final = StructField(
    "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
)

FLATTEN: Final = "flatten"
"""The option that makes the fields of values columns of their own, as a table of SQL has them."""
_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class HeadraceSource(DataSource):
    """Topics of a Kafka-compatible cluster, read and written in batches or as a stream."""

    options: dict[str, str]
    _decided: tuple[RecordDecoder | None] | None = None

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(plain_options(options))
        self._is_made_a_table = is_made_a_table(options)

    @classmethod
    def name(cls) -> str:
        """What to write in `format(...)`."""
        return "headrace"

    @with_query_errors
    def schema(self) -> StructType:
        """The columns of a row; every option is checked here, when `load()` is called."""
        options = self._options()
        rows = row_type(options, self._decoder(options))
        return with_options(rows, self.options) if self._is_made_a_table else rows

    @with_query_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads a batch."""
        from .source.batch import BatchReader, FilteringReader

        self._read_table(schema)
        rows = self._rows(self._options().for_batch(), schema)
        options = rows.options
        if options.archive:
            from .source.archived import ArchivedReader

            return ArchivedReader(rows)
        # Spark asks for filters in a worker of its own, and only where it may push them.
        pushes = options.push_filters and _PUSHDOWN_WORKER in sys.modules
        return FilteringReader(rows) if pushes else BatchReader(rows)

    @with_query_errors
    def streamReader(self, schema: StructType) -> "StreamReader":  # noqa: N802 - Spark's name
        """Reads a stream."""
        from .source.stream import StreamReader

        self._read_table(schema)
        return StreamReader(self._rows(self._options().for_stream(), schema))

    def _read_table(self, schema: StructType) -> None:
        """Take the options of a table of Spark's catalog, which come with its schema."""
        self.options = {**options_in(schema), **self.options}

    def _refuse_table(self, schema: StructType) -> None:
        if not self.options or options_in(schema):
            raise ConfigError("a table of a topic is only read; write with .write.format('headrace') and option topic")

    def _options(self) -> SourceOptions:
        return parse(self.options, (*OPTION_NAMES, FLATTEN))

    def _decoder(self, options: SourceOptions) -> RecordDecoder | None:
        """Decided once: Spark keeps this object from the look at its columns to the planning of tasks, and a schema
        that is registered meanwhile must not come between.
        """
        if self._decided is None:
            self._decided = (table_decoder_for(self.options, options.client),)
        return self._decided[0]

    def _rows(self, options: SourceOptions, schema: StructType) -> Rows:
        decoder = self._decoder(options)
        return Rows(options, columns(schema, row_type(options, decoder)), decoder)

    @with_query_errors
    def writer(self, schema: StructType, overwrite: bool) -> "SinkWriter":
        """Writes a batch."""
        from .sink.writer import make_writer

        self._refuse_table(schema)
        return make_writer(self.options, schema, overwrite)

    @with_query_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> "SinkStreamWriter":  # noqa: N802 - Spark's name
        """Writes a stream."""
        from .sink.writer import make_stream_writer

        self._refuse_table(schema)
        return make_stream_writer(self.options, schema, overwrite)


def table_decoder_for(given: Mapping[str, str], client: Mapping[str, str]) -> RecordDecoder | None:
    """The decoder that a source's options ask for, or None if its records stay as they are."""
    options = {name.lower(): value for name, value in given.items()}
    flatten = options.get(FLATTEN, "false").strip()
    if flatten.lower() not in ("true", "false"):
        raise ConfigError(f"option {FLATTEN} must be true or false, not '{shown(flatten)}'")
    if flatten.lower() == "false":
        return decoder_for(options, client)
    return FlatDecoder(decoder_for({**options, "includeheaders": "true"}, client))


def row_type(options: SourceOptions, decoder: RecordDecoder | None) -> StructType:
    """The type of a row."""
    record = StructType([*RECORD.fields, HEADERS]) if options.with_headers else RECORD
    return record if decoder is None else to_spark(decoder.spark_schema(struct_from_spark(record)))


def columns(schema: StructType, row: StructType) -> list[str]:
    """The names of the columns wanted: all, or those of a schema that the user gave, in its order."""
    there = {field.name: field.dataType for field in row.fields}
    for field in schema.fields:
        if field.name not in there:
            raise ConfigError(f"there is no column {field.name} to read; the columns are {', '.join(there)}")
        if field.dataType != there[field.name]:
            raise ConfigError(
                f"column {field.name} is {there[field.name].simpleString()} and cannot be read as "
                f"{field.dataType.simpleString()}; leave the schema out and cast the column"
            )
        if not field.nullable:
            raise ConfigError(f"column {field.name} of a schema must be nullable: leave out NOT NULL")
    return [field.name for field in schema.fields]
