"""How the rows of a query leave Spark.

A query with one sink has Spark's own way where Spark has one. A query with several, or with dead letters, is computed
once for each batch, kept, and written to each outlet in turn. A batch that fails in between is run again from the same
offsets, and outlets that have it leave it out: a topic knows the batch by the query and its number, a directory of
files by its log.
"""

import json
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any, Final

from headrace.client.errors import ClientError

from ..archive.sink import ArchiveSink
from ..connectors.base import Batch
from ..errors import QueryError, Unreachable, is_unreachable, plain_error
from .building import BOOTSTRAP, OUTLET, BuiltGraph, dead_letters_of, quarantine_of, records
from .expectations import Expectation
from .failures import cause_of
from .file_sink import FileSink
from .model import (
    Declaration,
    Output,
    Sink,
    Source,
    ToArchive,
    ToConnector,
    ToConsole,
    ToFiles,
    ToFunction,
    ToTable,
    ToTopic,
)
from .paths import declared_path
from .reach import clients_of
from .vocabulary import client_of

BatchFunction = Callable[[Any, int], None]
_APPEND: Final = "append"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlet:
    """Where the rows of a stream of the query go. `label` tells the stream where there are several."""

    name: str
    output: Output | ToTable
    label: str | None
    app_id: str | None = None
    """What tells its batches from those of the query's other outlets."""


def writer_for(built: BuiltGraph, declaration: Declaration, bootstrap: str, checkpoint: str) -> Any:
    """A writer of a query's rows, to be given a name and a trigger, and started."""
    outlets = outlets_of(built, declaration, bootstrap)
    if len(outlets) > 1:
        return built.rows.writeStream.foreachBatch(FanOut(outlets, checkpoint))
    (sink,) = built.graph.sinks
    return _writer(built.rows, sink, outlets[0], checkpoint)


def outlets_of(built: BuiltGraph, declaration: Declaration, bootstrap: str) -> list[Outlet]:
    """What is written of each batch."""
    sinks = built.graph.sinks
    outlets = [
        Outlet(
            name=f"sink '{sink.name}'",
            output=_resolved(sink.output, declaration, bootstrap),
            label=sink.table if len(built.outlets) > 1 else None,
            app_id=sink.name if len(sinks) > 1 else None,
        )
        for sink in sinks
    ]
    return (
        outlets
        + [
            Outlet(
                name=f"the dead letters of source '{source.name}'",
                output=ToTopic(columns={}, options=_letter_options(source, bootstrap)),
                label=dead_letters_of(source.name),
                app_id=dead_letters_of(source.name),
            )
            for source in declaration.sources
            if dead_letters_of(source.name) in built.outlets
        ]
        + [
            Outlet(
                name=f"the rows of '{table.name}' that go to '{rule.aside}'",
                output=_aside(rule, declaration, bootstrap),
                label=quarantine_of(table.name, rule.aside),
                app_id=quarantine_of(table.name, rule.aside),
            )
            for table in declaration.tables
            for rule in {rule.aside: rule for rule in table.expect if rule.aside}.values()
            if quarantine_of(table.name, rule.aside) in built.outlets
        ]
    )


def _aside(rule: Expectation, declaration: Declaration, bootstrap: str) -> ToTopic | ToTable:
    if rule.table is not None:
        return ToTable(rows=rule.table)
    return ToTopic(columns={}, options={**quarantine_client(declaration, bootstrap), "topic": rule.topic})


def quarantine_client(declaration: Declaration, bootstrap: str) -> dict[str, str]:
    """Rows that fail rules go to the cluster that the pipeline names first, with the settings that it has there."""
    first = next(iter(clients_of(declaration, bootstrap)), {"bootstrap.servers": bootstrap})
    return {f"kafka.{name}": value for name, value in first.items()}


def _resolved(output: Output, declaration: Declaration, bootstrap: str) -> Output:
    match output:
        case ToTopic():
            return ToTopic(columns=output.columns, options={BOOTSTRAP: bootstrap, **output.options})
        case ToFiles():
            path = declared_path(declaration, output.path) or output.path
            return ToFiles(path=path, partition_by=output.partition_by, options=output.options)
        case _:
            return output


def _writer(rows: Any, sink: Sink, outlet: Outlet, checkpoint: str) -> Any:
    """The writer of the only sink of a query."""
    output = outlet.output
    match output:
        case ToTopic() if sink.mode != "update":  # Spark does not let a Python sink be in mode update.
            return records(rows, output).writeStream.format("headrace").options(**output.options)
        case ToFiles():
            writer = rows.writeStream.format("parquet").options(**output.options).option("path", output.path)
            return writer.partitionBy(*output.partition_by) if output.partition_by else writer
        case _:
            return rows.writeStream.foreachBatch(FanOut([outlet], checkpoint))


class FanOut:
    """Writes each batch of a query to its outlets."""

    def __init__(self, outlets: list[Outlet], checkpoint: str) -> None:
        self._outlets = outlets
        self._checkpoint = checkpoint
        self._query: str | None = None
        self._archive: ArchiveSink | None = None

    def __call__(self, batch: Any, number: int) -> None:
        if self._query is None:
            self._query = query_id(batch.sparkSession, self._checkpoint)
        if len(self._outlets) == 1:
            self._write(self._outlets[0], batch, number)
            return
        batch.persist()
        try:
            full = _labels(batch) if self._outlets[0].label is not None else None
            for outlet in self._outlets:
                if full is None or outlet.label in full or not isinstance(outlet.output, (ToTopic, ToTable)):
                    self._write(outlet, _rows_for(batch, outlet.label), number)
        finally:
            batch.unpersist()

    def _write(self, outlet: Outlet, rows: Any, number: int) -> None:
        try:
            self._write_to(outlet, rows, number)
        except Exception as error:
            error = plain_error(error) if isinstance(error, ClientError) else error
            kind = Unreachable if is_unreachable(error) else QueryError
            raise kind(f"{outlet.name}: {cause_of(error)}") from error

    def _write_to(self, outlet: Outlet, rows: Any, number: int) -> None:
        match outlet.output:
            case ToTopic() as output:
                app_id = self._query if outlet.app_id is None else f"{self._query}/{outlet.app_id}"
                version = {"txnAppId": app_id, "txnVersion": str(number)}
                writer = records(rows, output).write.format("headrace").mode(_APPEND)
                writer.options(**output.options, **version).save()
            case ToFiles() as output:
                FileSink(output.path, output.partition_by, output.options).add(rows, number)
            case ToArchive() as output:
                self._add_to_archive(output, rows, number)
            case ToTable() as output:
                output.rows.add(rows, f"{self._query}/{outlet.app_id}", number)
            case ToFunction() as output:
                output.function(rows, number)
            case ToConnector() as output:
                name = self._query if outlet.app_id is None else f"{self._query}/{outlet.app_id}"
                output.connector.write(rows, Batch(query=str(name), number=number))
            case ToConsole() as output:
                _show(rows, output.rows)

    def _add_to_archive(self, output: ToArchive, rows: Any, number: int) -> None:
        if self._archive is None:
            self._archive = ArchiveSink(output.options, output.values, self._checkpoint)
        for added in self._archive.add(rows, number):
            if added.bad:
                words = (
                    f"{added.bad} records of topic '{added.topic}' cannot be decoded; they have a table of their own"
                )
                sys.stderr.write(f"headrace: warning: {words}\n")


def _labels(batch: Any) -> set[str]:
    """The streams that have rows in a batch."""
    return {row[0] for row in batch.select(OUTLET).distinct().collect()}


def _rows_for(batch: Any, label: str | None) -> Any:
    if label is None:
        return batch
    from pyspark.sql.functions import col

    return batch.where(col(f"`{OUTLET}`") == label).select(f"`{label}`.*")


def query_id(spark: Any, checkpoint: str) -> str:
    """What a query is called in its checkpoint; a new checkpoint, which counts batches from 0 again, has another."""
    return str(json.loads(spark.read.text(f"{checkpoint}/metadata").first()[0])["id"])


def _letter_options(source: Source, bootstrap: str) -> dict[str, str]:
    """Letters go to the cluster that the source reads, with the source's own settings of the client."""
    client = client_of({BOOTSTRAP: bootstrap, **source.options})
    return {**{f"kafka.{name}": value for name, value in client.items()}, "topic": source.dead_letter_topic}


def _show(rows: Any, limit: int) -> None:
    """Prints the first rows of a batch to stderr; Spark's own console sink would write to Spark's log."""
    with redirect_stdout(sys.stderr):
        rows.show(limit, truncate=False)
