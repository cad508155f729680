"""`format("headrace")` of Spark, to read and to write, in batches and as streams: topics as rows of Arrow batches."""

import sys
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

from headrace.config.setting import ConfigError

from .errors import with_query_errors
from .formats import OPTION_NAMES, ValueDecoder, decoder_for
from .source.options import SourceOptions, parse
from .source.reading import Rows

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

_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class HeadraceSource(DataSource):
    """Topics of a Kafka-compatible cluster, read and written in batches or as a stream."""

    _decided: tuple[ValueDecoder | None] | None = None

    @classmethod
    def name(cls) -> str:
        """What to write in `format(...)`."""
        return "headrace"

    @with_query_errors
    def schema(self) -> StructType:
        """The columns of a row; every option is checked here, when `load()` is called."""
        options = self._options()
        return row_type(options, self._decoder(options))

    @with_query_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads a batch."""
        from .source.batch import BatchReader, FilteringReader

        rows = self._rows(self._options().for_batch(), schema)
        options = rows.options
        # Spark asks for filters in a worker of its own, and only where it may push them.
        pushes = options.push_filters and _PUSHDOWN_WORKER in sys.modules
        return FilteringReader(rows) if pushes else BatchReader(rows)

    @with_query_errors
    def streamReader(self, schema: StructType) -> "StreamReader":  # noqa: N802 - Spark's name
        """Reads a stream."""
        from .source.stream import StreamReader

        return StreamReader(self._rows(self._options().for_stream(), schema))

    def _options(self) -> SourceOptions:
        return parse(self.options, OPTION_NAMES)

    def _decoder(self, options: SourceOptions) -> ValueDecoder | None:
        """Decided once: Spark keeps this object from the look at its columns to the planning of tasks, and a schema
        that is registered meanwhile must not come between.
        """
        if self._decided is None:
            self._decided = (decoder_for(self.options, options.client),)
        return self._decided[0]

    def _rows(self, options: SourceOptions, schema: StructType) -> Rows:
        decoder = self._decoder(options)
        return Rows(options, columns(schema, row_type(options, decoder)), decoder)

    @with_query_errors
    def writer(self, schema: StructType, overwrite: bool) -> "SinkWriter":
        """Writes a batch."""
        from .sink.writer import make_writer

        return make_writer(self.options, schema, overwrite)

    @with_query_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> "SinkStreamWriter":  # noqa: N802 - Spark's name
        """Writes a stream."""
        from .sink.writer import make_stream_writer

        return make_stream_writer(self.options, schema, overwrite)


def row_type(options: SourceOptions, decoder: ValueDecoder | None) -> StructType:
    """The type of a row."""
    record = StructType([*RECORD.fields, HEADERS]) if options.with_headers else RECORD
    return record if decoder is None else decoder.spark_schema(record)


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
