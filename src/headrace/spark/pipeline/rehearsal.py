"""A pipeline's tables out of rows that are given, as a batch and without a broker: what `headrace pipeline test` runs.

Tests stand in a YAML file beside the pipeline's:

    tests:
      sums by country:
        given:
          orders: [{order_id: a, country: DE, cents: 5}, {order_id: b, country: DE, cents: 6}]
        expect:
          revenue: [{country: DE, cents: 11}]

Rows are compared by the columns that are named, in any order.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from headrace.config.names import nearest

from .building import checked_table, schema_of, step_table
from .connected import plain_value
from .document import DocumentNode, Problems, Section
from .failures import PipelineFailed, cause_of
from .model import Declaration, Source, Step

QUARANTINED: Final = ".quarantined"
_MOST_SHOWN: Final = 5
Rows = list[dict[str, object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTest:
    """Rows in and rows out, by table; `fails` are words of the error that is expected instead."""

    name: str
    given: Mapping[str, Rows]
    expect: Mapping[str, Rows]
    fails: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a test; no problems: it has passed."""

    name: str
    problems: list[str] = field(default_factory=list)


def place_of_tests(file: Path) -> Path:
    """Where the tests of a pipeline stand."""
    return file.with_name(f"{file.stem}.test.yaml")


def read_tests(tree: DocumentNode, declaration: Declaration) -> list[PipelineTest]:
    """The tests of a document; InvalidPipeline with all that is wrong with them, and its line."""
    problems = Problems()
    top = Section(tree, "the file", problems)
    top.allow(["tests"])
    section = top.section("tests")
    names = section.names() if section is not None else []
    if not names:
        problems.add(top.position, "there are no tests; write `tests:`, a name, and under it `given:` and `expect:`")
    found = [_test(name, section, declaration, problems) for name in names if section is not None]
    problems.raise_any()
    return found


def _test(name: str, tests: Section, declaration: Declaration, problems: Problems) -> PipelineTest:
    node = tests.node(name)
    assert node is not None
    section = Section(node, f"test '{name}'", problems)
    section.allow(["given", "expect", "fails"])
    tables = [table.name for table in declaration.tables]
    given = _rows(section, "given", tables)
    expect = _rows(section, "expect", [*tables, *(f"{table}{QUARANTINED}" for table in tables)])
    if bool(expect) == section.has("fails"):
        problems.add(
            section.position, f"{section.what} needs 'expect', or 'fails' with words of the error; one of them"
        )
    return PipelineTest(name=name, given=given, expect=expect, fails=section.text("fails") or "")


def _rows(section: Section, key: str, tables: list[str]) -> dict[str, Rows]:
    inner = section.section(key)
    found: dict[str, Rows] = {}
    for table in inner.names() if inner is not None else ():
        assert inner is not None
        rows = plain_value(inner.node(table))
        if table not in tables:
            inner.wrong(table, f"there is no source or step '{table}'{nearest(table, tables)}")
        elif not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            inner.wrong(table, f"'{table}' must be a list of rows, each a mapping of columns to values")
        else:
            found[table] = rows
    return found


def run_tests(spark: Any, declaration: Declaration, tests: list[PipelineTest]) -> Iterator[Outcome]:
    """Each test's outcome as it is known. PipelineFailed where the pipeline itself cannot be built."""
    for test in tests:
        yield Outcome(name=test.name, problems=list(_problems(spark, declaration, test)))


def _problems(spark: Any, declaration: Declaration, test: PipelineTest) -> Iterator[str]:
    try:
        tables = build_batch(spark, declaration, test.given)
        told = [problem for table, rows in test.expect.items() for problem in _compared(spark, table, rows, tables)]
        if test.fails:
            for table in tables.values():
                table.count()
    except Exception as error:
        cause = cause_of(error)
        if not test.fails:
            yield cause
        elif test.fails not in cause:
            yield f"it fails with other words: {cause}"
        return
    if test.fails:
        yield f"it does not fail, and '{test.fails}' was expected"
    yield from told


def build_batch(spark: Any, declaration: Declaration, given: Mapping[str, Rows]) -> dict[str, Any]:
    """All tables as batches; those of `given` have these rows, sources that are not there have none."""
    tables: dict[str, Any] = {}
    for one in declaration.tables:
        schema = schema_of(spark, one) if isinstance(one, Source) else None
        try:
            if one.name in given or schema is not None:
                table = frame(spark, given.get(one.name, []), schema or _connected_schema(spark, one))
            else:
                assert isinstance(one, Step)
                table = step_table(spark, one, tables, is_batch=True)
            held = checked_table(table, one, count=False)
        except Exception as error:
            raise PipelineFailed(f"'{one.name}': {cause_of(error)}") from error
        tables[one.name] = held.rows
        held.rows.createOrReplaceTempView(one.name)
        for rows in held.quarantined.values():
            name = f"{one.name}{QUARANTINED}"
            tables[name] = tables[name].unionAll(rows) if name in tables else rows
    return tables


def _connected_schema(spark: Any, one: Source | Step) -> Any:
    """The columns of a table that is not a source of topics, asked of itself."""
    assert isinstance(one, Step)
    return step_table(spark, replace(one, expect=()), {}, is_batch=True).schema


def frame(spark: Any, rows: Rows, schema: Any) -> Any:
    """Rows as a DataFrame; ValueError for a column that is not there, or a value that is none of its type."""
    from pyspark.sql.functions import col, from_json
    from pyspark.sql.types import BinaryType, StringType, StructField, StructType

    names = [one.name for one in schema.fields]
    for row in rows:
        for name in row:
            if name not in names:
                raise ValueError(f"there is no column '{name}'{nearest(name, names)}; there are {', '.join(names)}")
    texts = StructType(
        [StructField(one.name, StringType() if one.dataType == BinaryType() else one.dataType) for one in schema.fields]
    )
    lines = spark.createDataFrame([(json.dumps(row, default=str),) for row in rows], "line STRING")
    parsed = lines.select(from_json(col("line"), texts, {"mode": "FAILFAST"}).alias("row"))
    return parsed.select(*(col("row").getField(one.name).cast(one.dataType).alias(one.name) for one in schema.fields))


def _compared(spark: Any, table: str, rows: Rows, tables: Mapping[str, Any]) -> Iterator[str]:
    found: Any = tables.get(table)
    if found is None:
        if rows:
            yield f"{table}: the table has no rule that sets rows aside"
        return
    if table.endswith(QUARANTINED):
        found = _parsed_rows(spark, found, rows)
    wanted = list(dict.fromkeys(name for row in rows for name in row)) or list(found.columns)
    missing = [name for name in wanted if name not in found.columns]
    if missing:
        known = ", ".join(found.columns)
        yield f"{table}: there is no column '{missing[0]}'{nearest(missing[0], found.columns)}; there are {known}"
        return
    chosen = found.select(*(f"`{name}`" for name in wanted))
    actual, expected = _texts(chosen), _texts(frame(spark, rows, chosen.schema))
    for words, lines in (("is missing", expected - actual), ("is too much", actual - expected)):
        for line in list(lines.elements())[:_MOST_SHOWN]:
            yield f"{table}: {words}: {line}"
        if lines.total() > _MOST_SHOWN:
            yield f"{table}: and {lines.total() - _MOST_SHOWN} more"


def _parsed_rows(spark: Any, aside: Any, rows: Rows) -> Any:
    """Rows that were set aside, as the columns that they had."""
    texts = [str(row["row"]) for row in aside.select("row").collect()]
    if texts:
        schema = spark.sql("SELECT 1 AS one").select(_schema_of_json(texts)).first()[0]
        return frame(spark, [json.loads(text) for text in texts], _struct(schema))
    return frame(spark, [], _struct("STRUCT<" + ", ".join(f"`{name}`: STRING" for row in rows for name in row) + ">"))


def _schema_of_json(texts: list[str]) -> Any:
    from pyspark.sql.functions import lit, schema_of_json

    return schema_of_json(lit("[" + ",".join(texts) + "]"))


def _struct(ddl: str) -> Any:
    from pyspark.sql.types import ArrayType, _parse_datatype_string

    found = _parse_datatype_string(ddl)
    return found.elementType if isinstance(found, ArrayType) else found


def _texts(rows: Any) -> Counter[str]:
    """Rows as JSON, counted: an order is nobody's promise."""
    from pyspark.sql.functions import struct, to_json

    whole = to_json(struct(*(f"`{name}`" for name in rows.columns)), {"ignoreNullFields": "false"})
    return Counter(row[0] for row in rows.select(whole).collect())
