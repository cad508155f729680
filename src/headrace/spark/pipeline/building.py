"""From a declaration to Spark's DataFrames. Nothing runs yet: Spark only learns, and judges, what is to be run."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

from headrace.config.names import nearest
from headrace.config.setting import ConfigError

from ..sink.columns import written_columns
from .document import DocumentPosition
from .expectations import Checked, checked, outlet_rows
from .failures import cause_of
from .model import (
    Call,
    Connected,
    Declaration,
    Dedup,
    Sink,
    Source,
    Sql,
    Step,
    ToConnector,
    ToFiles,
    ToTopic,
    Watermark,
)
from .queries import SinkGraph
from .vocabulary import METADATA, TOMBSTONE, without_dead_letters

BOOTSTRAP: Final = "kafka.bootstrap.servers"
ROWS_OUT: Final = "headrace_out_"
"""What starts the name under which Spark counts the rows that reach a sink."""
ROWS_IN: Final = "headrace_in_"
"""The same of a source: its `rows`, and those of them that are `bad`."""
OUTLET: Final = "its outlet"
"""The column that tells for which outlet a row of a query with several is; no table has such a name."""

_AS_TEXT: Final = ("key", "value")
_ANY: Final = ""
"""Stands for topics that are not known by name."""
_GROUP_NAMES: Final = ("group", "kafka.group.id")
_ISOLATION: Final = "kafka.isolation.level"
_LIMITS: Final = ("maxbytespertrigger", "maxoffsetspertrigger")
_BYTES_PER_BATCH: Final = "256m"
"""A first batch over all of a large topic would show no progress for hours, and be begun anew after a failure."""
_NESTED: Final = ("struct", "array", "map")
_BAD: Final = "bad"
_NOWHERE: Final = "127.0.0.1:1"
_UNRESOLVED: Final = re.compile(r"\[UNRESOLVED_COLUMN.*?name `(\w+)`", re.DOTALL)


Problem = tuple[DocumentPosition, str, Exception]
"""What is wrong with a pipeline: where, the mistake, and the words of whoever found it, such as Spark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """A source as a table, and the dead letters of the records that it leaves out."""

    rows: Any
    letters: Any = None


@dataclass(slots=True)
class BuiltGraph:
    """The tables of a query. `outlets` are the streams that leave it, by name: a table that sinks write, or letters."""

    graph: SinkGraph
    tables: dict[str, Any] = field(default_factory=dict)
    outlets: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @property
    def rows(self) -> Any:
        """What the query computes: the rows of its outlets, all in one stream where there are several."""
        if len(self.outlets) == 1:
            return next(iter(self.outlets.values()))
        return reduce(lambda one, other: one.unionAll(other), map(self._labelled, self.outlets))

    def _labelled(self, outlet: str) -> Any:
        """Rows as a struct in the column of their outlet, null in those of the others."""
        from pyspark.sql.functions import col, lit, struct

        rows = self.outlets[outlet]
        own = struct(*(col(f"`{name.replace('`', '``')}`") for name in rows.columns))
        columns = [
            (own if name == outlet else lit(None).cast(other.schema)).alias(name)
            for name, other in self.outlets.items()
        ]
        return rows.select(lit(outlet).alias(OUTLET), *columns)

    def show_tables(self) -> None:
        """Make the names in queries mean this graph's tables.

        Spark Connect looks names up only when a query starts, so this must be called before each start.
        """
        for name, table in self.tables.items():
            table.createOrReplaceTempView(name)


def build(spark: Any, declaration: Declaration, graph: SinkGraph, bootstrap: str) -> BuiltGraph:
    """The tables and outlets of a query, as far as Spark takes them; `problems` has each step that it does not take."""
    built = BuiltGraph(graph)
    needed = graph.tables(declaration)
    groups = consumer_groups(declaration.name, graph.name, [one for one in needed if isinstance(one, Source)])
    letters: dict[str, Any] = {}
    for one in needed:
        if isinstance(one, Step) and any(_find(built.tables, name) is None for name in one.inputs):
            continue  # What it reads is wrong, which is told of that.
        with _noted(built, one.position, one.name):
            if isinstance(one, Source):
                made = _source(spark, one, source_settings(one, bootstrap, groups[one.name]))
                table = made.rows
                if made.letters is not None:
                    letters[dead_letters_of(one.name)] = made.letters
            else:
                table = _step(spark, one, built.tables)
            held = checked_table(table, one)
            letters |= {
                quarantine_of(one.name, place): outlet_rows(rows, one.name, one.expect, place)
                for place, rows in held.quarantined.items()
            }
            built.tables[one.name] = _watermarked(held.rows, one.watermark)
            built.tables[one.name].createOrReplaceTempView(one.name)
    for sink in graph.sinks:
        if sink.table in built.tables:
            with _noted(built, sink.position, sink.name):
                rows = built.outlets.get(sink.table, built.tables[sink.table])
                _require_writable(rows, sink)
                built.outlets[sink.table] = _counted(rows, ROWS_OUT + sink.name)
    built.outlets |= dict(sorted(letters.items()))
    return built


def _require_writable(rows: Any, sink: Sink) -> None:
    """Check that a sink can write its rows before the query starts."""
    match sink.output:
        case ToTopic() as output:
            is_encoded = "format" in output.options
            written_columns(records(rows, output).schema, output.options.get("topic"), is_encoded=is_encoded)
        case ToFiles() as output:
            missing = [name for name in output.partition_by if name not in rows.columns]
            if missing:
                raise ConfigError(
                    f"there is no column '{missing[0]}' to partition by{nearest(missing[0], rows.columns)}"
                )
        case ToConnector() as output:
            output.connector.check(list(rows.columns))
    jvm = getattr(rows.sparkSession, "_jvm", None)
    if jvm is not None:  # There is none behind Spark Connect, where Spark judges when the query starts.
        mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, sink.mode.capitalize())()
        checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
        checker.checkForStreaming(rows._jdf.queryExecution().analyzed(), mode)


def dead_letters_of(source: str) -> str:
    """The outlet of a source's dead letters; no table has such a name."""
    return f"letters of {source}"


def quarantine_of(table: str, place: str) -> str:
    """The outlet of rows that a table's rules send to a topic, or to a table of a lake."""
    return f"quarantine of {table} to {place}"


def consumer_groups(pipeline: str, query: str, sources: list[Source]) -> dict[str, str]:
    """Under which group each source shows its lag: one for the query, unless two sources may read the same topics."""
    subscriptions = [topic for source in sources for topic in _subscription(source)]
    name = f"{pipeline}-{query}"
    are_apart = _ANY not in subscriptions and len(set(subscriptions)) == len(subscriptions)
    if are_apart or len(sources) == 1:
        return {source.name: name for source in sources}
    return {source.name: f"{name}-{source.name}" for source in sources}


def _subscription(source: Source) -> list[str]:
    topics = source.options.get("subscribe")
    return [topic.strip() for topic in topics.split(",")] if topics is not None else [_ANY]


def source_settings(source: Source, bootstrap: str, group: str) -> dict[str, str]:
    """The options of a source, with the pipeline's own where it does not say otherwise.

    What a topic holds of aborted transactions is not its content: another pipeline that wrote it may have failed there.
    """
    given = {name.lower() for name in source.options}
    defaults = {BOOTSTRAP: bootstrap}
    if given.isdisjoint(_GROUP_NAMES):
        defaults["group"] = group
    if _ISOLATION not in given:
        defaults[_ISOLATION] = "read_committed"
    if given.isdisjoint(_LIMITS):
        defaults["maxBytesPerTrigger"] = _BYTES_PER_BATCH
    options = without_dead_letters(source.options) if source.dead_letter_topic else dict(source.options)
    if "headers" in (source.metadata or ()):
        options = {name: value for name, value in options.items() if name.lower() != "includeheaders"}
        options["includeHeaders"] = "true"
    return {**defaults, **options}


def _source(spark: Any, source: Source, settings: Mapping[str, str]) -> SourceTable:
    read = spark.readStream.format("headrace").options(**settings).load()
    kept = kept_columns(source, read.schema)
    rows = _with_counts(read, source.name)
    if not source.dead_letter_topic:
        return SourceTable(rows=rows.selectExpr(*kept))
    good = rows.where(f"`{_BAD}` IS NULL").selectExpr(*(name for name in kept if name != _BAD))
    return SourceTable(rows=good, letters=rows.where(f"`{_BAD}` IS NOT NULL").selectExpr(*_LETTER))


_LETTER: Final = (
    f"`{_BAD}`.key AS key",
    f"`{_BAD}`.value AS value",
    "concat(coalesce(headers, array()), array("
    f"named_struct('key', 'headrace.error', 'value', CAST(`{_BAD}`.error AS BINARY)),"
    "named_struct('key', 'headrace.topic', 'value', CAST(topic AS BINARY)),"
    "named_struct('key', 'headrace.partition', 'value', CAST(CAST(partition AS STRING) AS BINARY)),"
    "named_struct('key', 'headrace.offset', 'value', CAST(CAST(offset AS STRING) AS BINARY)))) AS headers",
)
"""A record that cannot be decoded, as it was, with the reason and its origin as further headers."""


def kept_columns(source: Source, row: Any) -> list[str]:
    """What a source's table has: the fields of its value, or the value, and what is asked for of the record.

    A field hides a record's column of the same name.
    """
    kinds = {field.name: field.dataType for field in row.fields}
    with_fields = kinds["value"].typeName() == "struct"
    fields = kinds["value"].fieldNames() if with_fields else []
    names = source.metadata
    if names is None:
        is_asked = any(name.lower() == "includeheaders" and text == "true" for name, text in source.options.items())
        names = tuple(name for name in METADATA if not with_fields or (name == "headers" and is_asked))
    hidden = {name.lower() for name in fields}
    kept = [name for name in kinds if name in (*names, _BAD) and name.lower() not in hidden]
    if not with_fields:
        kept = [name for name in kinds if name == "value" or name in kept]
    if TOMBSTONE in names and source.metadata is not None and TOMBSTONE not in hidden:
        kept.append(f"value IS NULL{f' AND `{_BAD}` IS NULL' if _BAD in kinds else ''} AS {TOMBSTONE}")
    return [*(f"value.`{name}`" for name in fields), *kept]


def _with_counts(rows: Any, source: str) -> Any:
    from pyspark.sql.functions import col, count, lit

    counts = [count(lit(1)).alias("rows")]
    if _BAD in rows.columns:
        counts.append(count(col(_BAD)).alias("bad"))
    return rows.observe(ROWS_IN + source, *counts)


def checked_table(rows: Any, table: Source | Step, *, count: bool = True) -> Checked:
    """A table held to its rules."""
    return checked(rows, table.name, table.expect, count=count)


def schema_of(spark: Any, source: Source) -> Any:
    """The columns of a source, found without a broker."""
    return _source(spark, source, source_settings(source, _NOWHERE, "")).rows.schema


def step_table(spark: Any, step: Step, tables: Mapping[str, Any], *, is_batch: bool = False) -> Any:
    """A step's table; in a batch the first row of equal keys passes, however far apart they are."""
    if is_batch and isinstance(step.work, Dedup):
        return _find(tables, step.work.table).dropDuplicates(list(step.work.keys))
    return _step(spark, step, tables)


def _step(spark: Any, step: Step, tables: Mapping[str, Any]) -> Any:
    if isinstance(step.work, Sql):
        return spark.sql(step.work.query)
    if isinstance(step.work, Connected):
        return _with_counts(step.work.connector.frame(spark), step.name)
    if isinstance(step.work, Dedup):
        return _dedup(step.work, _find(tables, step.work.table))
    return _called(spark, step.work, tables)


def _dedup(work: Dedup, table: Any) -> Any:
    return _watermarked(table, work.watermark).dropDuplicatesWithinWatermark(list(work.keys))


def _called(spark: Any, work: Call, tables: Mapping[str, Any]) -> Any:
    arguments = {**work.arguments, **{name: _find(tables, name) for name in work.inputs}}
    if work.wants_spark:
        arguments["spark"] = spark
    answer = work.function(**arguments)
    if not hasattr(answer, "createOrReplaceTempView"):
        name = getattr(work.function, "__name__", "the function")
        raise TypeError(f"{name} must return a DataFrame, not {type(answer).__name__}")
    return answer


def _find(tables: Mapping[str, Any], name: str) -> Any:
    return next((table for known, table in tables.items() if known.lower() == name.lower()), None)


def _watermarked(table: Any, watermark: Watermark | None) -> Any:
    return table if watermark is None else table.withWatermark(watermark.column, watermark.delay)


def records(rows: Any, output: ToTopic) -> Any:
    """Rows in the columns of records, keys and values as text where they are neither text nor bytes."""
    if not output.columns:
        return rows
    made = rows.selectExpr(*(f"{expression} AS `{column}`" for column, expression in output.columns.items()))
    kinds = {field.name: field.dataType.typeName() for field in made.schema.fields}
    whole = ("value",) if "format" in output.options else ()
    return made.selectExpr(
        *(f"`{name}`" if name in whole else _record_column(name, kind) for name, kind in kinds.items())
    )


def _record_column(name: str, kind: str) -> str:
    if name not in _AS_TEXT or kind in ("string", "binary"):
        return f"`{name}`"
    return f"to_json(`{name}`) AS `{name}`" if kind in _NESTED else f"CAST(`{name}` AS STRING) AS `{name}`"


def _counted(rows: Any, name: str) -> Any:
    from pyspark.sql.functions import count, lit

    return rows.observe(name, count(lit(1)).alias("rows"))


@contextmanager
def _noted(built: BuiltGraph, position: DocumentPosition, name: str) -> Iterator[None]:
    """Errors of Spark and of users' functions within the block are noted with the name and the place of a table."""
    try:
        yield
    except Exception as error:
        cause = cause_of(error)
        built.problems.append((position, f"'{name}': {cause}{_hint(cause)}", error))


def _hint(cause: str) -> str:
    """What to do where a column is missing that every record has."""
    missing = _UNRESOLVED.search(cause)
    if missing is None or missing[1] not in METADATA:
        return ""
    return f" A source has the record's own columns if it asks for them: `metadata: [{missing[1]}]`"
