"""From a declaration to Spark's DataFrames. Nothing runs yet: Spark only learns, and judges, what is to be run."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from .document import Place
from .failures import PipelineFailed, cause_of
from .model import Call, Declaration, Dedup, Sink, Source, Sql, Step, ToTopic, Watermark

BOOTSTRAP: Final = "kafka.bootstrap.servers"
ROWS_OUT: Final = "headrace_rows_out"
"""The name under which Spark counts the rows that reach a sink."""

_AS_TEXT: Final = ("key", "value")
_ANY: Final = ""
"""Stands for topics that are not known by name."""
_GROUP_NAMES: Final = ("group", "kafka.group.id")
_ISOLATION: Final = "kafka.isolation.level"
_NESTED: Final = ("struct", "array", "map")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltSink:
    """A sink and the rows for it. `tables` are all that the rows are made of."""

    sink: Sink
    rows: Any
    tables: Mapping[str, Any]

    def show_tables(self) -> None:
        """Make the names in queries mean this sink's tables.

        Spark Connect looks names up only when a query starts, so this must be called before each start.
        """
        for name, table in self.tables.items():
            table.createOrReplaceTempView(name)


def build(spark: Any, declaration: Declaration, bootstrap: str) -> list[BuiltSink]:
    """The rows for each sink; PipelineFailed names the step that Spark does not take.

    Every sink gets its own copy of the tables, as it is a query of its own that reads topics at its own pace.
    """
    return [_build_sink(spark, declaration, sink, bootstrap) for sink in declaration.sinks]


def _build_sink(spark: Any, declaration: Declaration, sink: Sink, bootstrap: str) -> BuiltSink:
    needed = declaration.needed_by(sink.table)
    groups = consumer_groups(declaration.name, sink.name, [one for one in needed if isinstance(one, Source)])
    tables: dict[str, Any] = {}
    for one in needed:
        with _blamed_on(one.place, one.name):
            if isinstance(one, Source):
                table = _source(spark, source_settings(one, bootstrap, groups[one.name]))
            else:
                table = _step(spark, one, tables)
            tables[one.name] = _watermarked(table, one.watermark)
            tables[one.name].createOrReplaceTempView(one.name)
    with _blamed_on(sink.place, sink.name):
        rows = _records(tables[sink.table], sink.output) if isinstance(sink.output, ToTopic) else tables[sink.table]
        return BuiltSink(sink=sink, rows=_counted(rows), tables=tables)


def consumer_groups(pipeline: str, sink: str, sources: list[Source]) -> dict[str, str]:
    """Under which group each source shows its lag: one for the sink, unless two sources may read the same topics."""
    subscriptions = [topic for source in sources for topic in _subscription(source)]
    name = f"{pipeline}-{sink}"
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
    return {**defaults, **source.options}


def _source(spark: Any, settings: Mapping[str, str]) -> Any:
    return _with_fields(spark.readStream.format("headrace").options(**settings).load())


def _with_fields(records: Any) -> Any:
    """Records with the fields of their values as columns; a field hides a record's column of the same name."""
    value = next(field.dataType for field in records.schema.fields if field.name == "value")
    if value.typeName() != "struct":
        return records
    fields = {name.lower() for name in value.fieldNames()}
    return records.select("value.*", *(name for name in records.columns if name.lower() not in {*fields, "value"}))


def _step(spark: Any, step: Step, tables: Mapping[str, Any]) -> Any:
    if isinstance(step.work, Sql):
        return spark.sql(step.work.query)
    if isinstance(step.work, Dedup):
        return _dedup(step.work, _named(tables, step.work.table))
    return _called(spark, step.work, tables)


def _dedup(work: Dedup, table: Any) -> Any:
    return _watermarked(table, work.watermark).dropDuplicatesWithinWatermark(list(work.keys))


def _called(spark: Any, work: Call, tables: Mapping[str, Any]) -> Any:
    arguments = {**work.arguments, **{name: _named(tables, name) for name in work.inputs}}
    if work.wants_spark:
        arguments["spark"] = spark
    answer = work.function(**arguments)
    if not hasattr(answer, "createOrReplaceTempView"):
        name = getattr(work.function, "__name__", "the function")
        raise TypeError(f"{name} must return a DataFrame, not {type(answer).__name__}")
    return answer


def _named(tables: Mapping[str, Any], name: str) -> Any:
    return next(table for known, table in tables.items() if known.lower() == name.lower())


def _watermarked(table: Any, watermark: Watermark | None) -> Any:
    return table if watermark is None else table.withWatermark(watermark.column, watermark.delay)


def _records(rows: Any, output: ToTopic) -> Any:
    """Rows in the columns of records, keys and values as text where they are neither text nor bytes."""
    if not output.columns:
        return rows
    made = rows.selectExpr(*(f"{expression} AS `{column}`" for column, expression in output.columns.items()))
    kinds = {field.name: field.dataType.typeName() for field in made.schema.fields}
    return made.selectExpr(*(_record_column(name, kind) for name, kind in kinds.items()))


def _record_column(name: str, kind: str) -> str:
    if name not in _AS_TEXT or kind in ("string", "binary"):
        return f"`{name}`"
    return f"to_json(`{name}`) AS `{name}`" if kind in _NESTED else f"CAST(`{name}` AS STRING) AS `{name}`"


def _counted(rows: Any) -> Any:
    from pyspark.sql.functions import count, lit

    return rows.observe(ROWS_OUT, count(lit(1)).alias("rows"))


@contextmanager
def _blamed_on(place: Place, name: str) -> Iterator[None]:
    """Errors of Spark and of users' functions within the block are told with the name and the place of a table."""
    try:
        yield
    except Exception as error:
        raise PipelineFailed(f"{place}: '{name}': {cause_of(error)}") from error
