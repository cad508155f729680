"""DuckDB, with topics for tables.

DuckDB parses, plans and computes. The tables that a query names are looked up before it runs: each topic is given to
DuckDB as a dataset, which it asks for columns and, with a filter, for rows (`datasets`, `reading`).

A query is no door. It reads topics and computes; it opens no file, loads no extension and reaches no network but the
cluster's, whatever its text says. Only directories that the caller names can be read. All of that is locked before the
first query is looked at.
"""

import gc
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa

from headrace.client.columnar.cluster import Cluster, shared_cluster
from headrace.config.names import shown

from .datasets import Table, TableDataset
from .definition import TableDefinition, define
from .errors import SqlError
from .reading import KEEP, ON_BAD, Begin, Snapshot, TopicTable, from_beginning, snapshot
from .statement import (
    DATABASE,
    TableName,
    explained,
    first_line,
    no_such_table,
    single_statement,
    table_names,
    topic_of,
)
from .union import as_table

_BATCH_ROWS: Final = 1024
"""Rows that are held before they are handed on: few, as records may have megabytes."""
_FILES: Final = "Queries read topics alone: name the directories they may read with --files DIR, or files="
_SCAN: Final = "scan of "
_NO_TABLE: Final = re.compile(r"Table with name (\S+) does not exist")
_WRITING: Final = frozenset({"JSON_EXECUTE_SERIALIZED_SQL"})
"""Operators that may write to files, beside those that copy: this one runs any statement, unseen by the plan."""
_SETTINGS: Final = {
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What a user said beside the query."""

    client: Mapping[str, str] = field(repr=False)
    """Settings of the columnar client, by Kafka's names."""
    registry: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Where the schema registry is, as options of the Spark source; empty where none is named."""
    find_registry: Callable[[], Mapping[str, str]] = dict
    """Looks for one that is not named, once values are met that carry the ids of schemas."""
    declared: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    """How the values of topics are read, by topic, as options of the Spark source."""
    read_committed: bool = True
    on_bad: str = KEEP
    begin: Begin = from_beginning
    files: Sequence[Path] = ()
    """Directories that queries may read."""
    memory_limit: str | None = None
    temporary: Path | None = None
    """Where DuckDB puts what does not fit into memory; nowhere unless it is said."""
    pushes: bool = True


class Engine:
    """A connection to DuckDB, in which queries see topics; of one thread at a time."""

    def __init__(
        self,
        options: EngineOptions,
        tables: Mapping[str, Any] | None = None,
        report: Report | None = None,
    ) -> None:
        if options.on_bad not in ON_BAD:
            raise SqlError(f"bad records are {', '.join(ON_BAD)}, not '{shown(options.on_bad)}'")
        self._options = options
        self._report = report or (lambda _: None)
        self._given = {name: as_table(table) for name, table in (tables or {}).items()}
        self._cluster: Cluster | None = None
        self._topics: dict[str, TopicTable] = {}
        self._read: dict[str, TopicTable] = {}
        self._definitions: dict[str, TableDefinition] = {}
        self._views: set[TableName] = set()
        self._connection = _connect(options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give everything back."""
        self._connection.close()
        self._connection = None
        gc.collect()  # DuckDB's bindings complain when the interpreter ends before they are gone

    @property
    def cluster(self) -> Cluster:
        """The cluster that has the topics."""
        if self._cluster is None:
            self._cluster = shared_cluster(self._options.client)
        return self._cluster

    @property
    def read_topics(self) -> Mapping[str, TopicTable]:
        """The topics that the prepared query reads."""
        return self._read

    @property
    def reads_only_topics(self) -> bool:
        """Whether no table of the queries so far was given to this engine."""
        return not any(table.name in self._given for table in self._views)

    def definition(self, topic: str) -> TableDefinition:
        """What the table of a topic is, decided when it is first asked for."""
        if topic not in self._definitions:
            options = self._options
            self._definitions[topic] = define(
                self.cluster,
                topic,
                options.declared.get(topic),
                options.registry,
                find_registry=options.find_registry,
                read_committed=options.read_committed,
            )
        return self._definitions[topic]

    def topic_table(self, topic: str) -> TopicTable:
        """The table of a topic, as it is now."""
        options = self._options
        return TopicTable(
            topic=topic,
            cluster=self.cluster,
            decoder=self.definition(topic).decoder(),
            snapshot=self._snapshot(topic),
            read_committed=options.read_committed,
            on_bad=options.on_bad,
            pushes=options.pushes,
        )

    def prepare(self, sql: str) -> str:
        """The query, with all its tables there to be read; SqlError if it cannot be run."""
        statement = single_statement(self._connection, sql)
        self._read = {}
        for table in table_names(self._connection, statement):
            self._provide(table)
        if self._options.files:
            self._refuse_to_write(statement)
        return statement

    def run(self, statement: str) -> pa.RecordBatchReader:
        """The rows of a prepared query, as they come."""
        with self._explained():
            relation = self._connection.sql(statement)
            reader = relation.to_arrow_reader(_BATCH_ROWS)
        return pa.RecordBatchReader.from_batches(reader.schema, self._batches(reader))

    def query(self, sql: str) -> pa.RecordBatchReader:
        """The rows of a query, as they come."""
        return self.run(self.prepare(sql))

    def operators(self, statement: str) -> list[str]:
        """The operators of a prepared query's plan."""
        import json

        with self._explained():
            (_, plan) = self._connection.execute(f"EXPLAIN (FORMAT JSON) {explained(statement)}").fetchall()[0]
        return [name for node in json.loads(plan) for name in _operators(node)]

    def advance(self) -> bool:
        """Have the topics read from where the last query ended to where they end now; whether any has something new."""
        for table in self._read.values():
            table.snapshot = self._snapshot(table.topic, table.snapshot)
        return any(one.start < one.end for table in self._read.values() for one in table.snapshot.ranges)

    def _snapshot(self, topic: str, after: Snapshot | None = None) -> Snapshot:
        options = self._options
        return snapshot(self.cluster, topic, read_committed=options.read_committed, begin=options.begin, after=after)

    def report_bad(self) -> None:
        """Say how many records could not be decoded since this was last said."""
        for table in self._read.values():
            bad = table.bad
            if bad.records:
                kept = "left out" if self._options.on_bad != KEEP else "kept with null for its fields"
                what = f"{bad.records} record{'s' if bad.records > 1 else ''} could not be decoded, each {kept}"
                self._report(f"{table.topic}: {what}; the first is {bad.first}")
                bad.records, bad.first = 0, ""

    def _batches(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        with self._explained():
            for batch in reader:
                if len(batch):
                    yield batch
        self.report_bad()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise what ended a scan itself, and DuckDB's own errors in one line."""
        try:
            yield
        except Exception as error:
            for table in self._read.values():
                if table.failure is not None:
                    failure, table.failure = table.failure, None
                    raise failure from None
            if isinstance(error, SqlError) or not _is_duckdbs(error):
                raise
            raise SqlError(self._in_words(error)) from None

    def _in_words(self, error: Exception) -> str:
        text = first_line(error)
        if "file system operations are disabled" in text or "Loading external extensions is disabled" in text:
            return f"{text}. {_FILES}"
        lacking = _NO_TABLE.search(text)
        if lacking:
            hint = f". {_FILES}" if "/" in lacking[1] else ""
            return f"{no_such_table(lacking[1], self.cluster.topics()).message}, nor a table of the query{hint}"
        return text

    def _provide(self, table: TableName) -> None:
        """Let DuckDB know a table, unless it is none of ours."""
        if table.database not in ("", DATABASE):
            return
        given = self._given[table.name] if table.name in self._given else self._topic_for(table)
        if given is not None and table not in self._views:
            self._refuse_alike(table)
            self._show(table, given)
            self._views.add(table)

    def _topic_for(self, table: TableName) -> TopicTable | None:
        """The topic that a table stands for, as it is now; None if there is none and DuckDB may know the table, as it
        does those of the query's own.
        """
        topics = self.cluster.topics()
        topic = topic_of(table.name, topics)
        if topic is None:
            if table.database == DATABASE:
                raise no_such_table(table.name, topics)
            return None
        known = self._topics.get(topic)
        if known is None:
            known = self._topics[topic] = self.topic_table(topic)
        elif topic not in self._read:
            known.snapshot = self._snapshot(topic)
        self._read[topic] = known
        return known

    def _refuse_to_write(self, statement: str) -> None:
        """SqlError if a query would write to the directories that it may read, also by a text that it runs as SQL."""
        for operator in self.operators(statement):
            if operator in _WRITING or operator.endswith("COPY_TO_FILE"):
                raise SqlError(f"queries only read files, they write none: no {operator}; --output writes the answer")

    def _refuse_alike(self, table: TableName) -> None:
        for other in self._views:
            if other.name != table.name and other.name.lower() == table.name.lower():
                raise SqlError(
                    f"SQL does not tell {shown(other.name)} and {shown(table.name)} apart: read one in each query"
                )

    def _show(self, table: TableName, given: Table) -> None:
        first = given.cheapest if isinstance(given, TopicTable) else None
        scan = f"{_SCAN}{table.name}"
        columns = ", ".join(map(quoted, given.schema.names))
        view = f"VIEW {DATABASE}.{quoted(table.name)}" if table.database else f"TEMP VIEW {quoted(table.name)}"
        with self._explained():
            self._connection.register(scan, TableDataset(given, first))
            self._connection.execute(f"CREATE {view} AS SELECT {columns} FROM temp.main.{quoted(scan)}")


def quoted(name: str) -> str:
    """A name as SQL takes any."""
    return '"' + name.replace('"', '""') + '"'


def _connect(options: EngineOptions) -> Any:
    duckdb = duckdb_module()
    try:
        connection = duckdb.connect(":memory:", config=_settings(options))
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET streaming_buffer_size = '2MB'")
        connection.execute(f"ATTACH ':memory:' AS {DATABASE}")
        directories = ", ".join(_literal(f"{one.resolve()}/") for one in options.files)
        connection.execute(f"SET allowed_directories = [{directories}]")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
    except Exception as error:
        if _is_duckdbs(error):
            raise SqlError(first_line(error)) from None
        raise
    return connection


def _settings(options: EngineOptions) -> dict[str, str]:
    settings = dict(_SETTINGS)
    settings["temp_directory"] = "" if options.temporary is None else str(options.temporary)
    if options.memory_limit is not None:
        settings["memory_limit"] = options.memory_limit
    return settings


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def duckdb_module() -> Any:
    """DuckDB; SqlError with what to install where it is missing."""
    try:
        import duckdb
    except ModuleNotFoundError as error:
        if error.name != "duckdb":
            raise
        raise SqlError("SQL needs DuckDB: pip install 'headrace[sql]'", "MISSING_PACKAGE") from None
    return duckdb


def _is_duckdbs(error: Exception) -> bool:
    return any("duckdb" in kind.__module__ for kind in type(error).__mro__)


def _operators(node: Mapping[str, Any]) -> Iterator[str]:
    yield node["name"].strip()
    for child in node["children"]:
        yield from _operators(child)
