"""Rules about the rows of a table: what is expected of each row, and what becomes of one that is otherwise.

A rule holds for a row if its predicate is true; null is not. All rules of a table look at the same rows. One that fails
a rule of `quarantine` goes there, whatever else it fails; one that fails a rule of `drop` is left out; one that fails a
rule of `warn` is counted. A row that fails a rule of `fail` ends the query.
"""

import re
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Final

from headrace.config.names import shown
from headrace.lake.opening import FORMATS, Lake
from headrace.lake.places import is_object_store

from ..archive.rows import LakeRows
from .document import Section

WARN, DROP, FAIL, QUARANTINE = ACTIONS = ("warn", "drop", "fail", "quarantine")
EXPECTED: Final = "headrace_expect_"
"""What starts the name under which Spark counts the rows of a table that fail its rules."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_TABLE: Final = ("format", "storage", "catalog")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """One rule; `topic` or `table` is where rows go that fail it, with the action `quarantine`."""

    name: str
    predicate: str
    action: str = WARN
    topic: str = ""
    table: LakeRows | None = None

    @property
    def aside(self) -> str:
        """What tells the place where rows go that fail the rule; empty if they go nowhere."""
        return self.topic if self.table is None else self.table.name


def read_expectations(section: Section, directory: Path) -> tuple[Expectation, ...]:
    """The rules under `expect:` of a source or a step; paths start at the directory."""
    inner = section.section("expect")
    if inner is None:
        return ()
    found = []
    for name in inner.names():
        if not _NAME.fullmatch(name):
            inner.wrong(name, f"the name '{shown(name)}' of a rule must be letters, digits and '_'")
        node = inner.node(name)
        assert node is not None
        if isinstance(node.value, dict):
            found.append(
                _rule(name, Section(node, f"{section.what}: rule '{shown(name)}'", section.problems), directory)
            )
        else:
            found.append(Expectation(name=name, predicate=(inner.text(name) or "").strip()))
        if not found[-1].predicate:
            inner.wrong(name, f"rule '{shown(name)}' needs a predicate, for example `cents > 0`")
    return tuple(found)


def _rule(name: str, rule: Section, directory: Path) -> Expectation:
    rule.allow(["that", "action", "topic", "table", *_OF_TABLE])
    action = rule.choice("action", ACTIONS, WARN)
    topic, table = rule.text("topic") or "", _table(rule, directory)
    if (action == QUARANTINE) != (len([one for one in (topic, table) if one]) == 1):
        rule.wrong(
            "table" if table is not None else "topic",
            "'topic' or 'table' is where rows go with `action: quarantine`, which needs one of them",
        )
    predicate = rule.required("that", "cents > 0").strip()
    return Expectation(name=name, predicate=predicate, action=action, topic=topic, table=table)


def _table(rule: Section, directory: Path) -> LakeRows | None:
    path = (rule.text("table") or "").rstrip("/")
    if not path:
        for key in _OF_TABLE:
            if rule.has(key):
                rule.wrong(key, f"'{key}' is of a 'table', for example `table: lake/bad_orders`")
        return None
    if not (is_object_store(path) or path.startswith("file:")):
        path = str(directory.resolve() / path)
    above, _, name = path.rpartition("/")
    options, catalog = ({} if (inner := rule.section(key)) is None else inner.options() for key in _OF_TABLE[1:])
    lake = Lake(path=above, format=rule.choice("format", FORMATS, FORMATS[0]), options=options, catalog=catalog)
    return LakeRows(lake=lake, table=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A table after its rules, and the rows that go elsewhere, by where: `row`, as JSON, and the `rule` that failed."""

    rows: Any
    quarantined: dict[str, Any]


def checked(rows: Any, table: str, rules: tuple[Expectation, ...], *, count: bool = True) -> Checked:
    """Rows held to their rules, failures counted by `observe`."""
    if not rules:
        return Checked(rows=rows, quarantined={})
    from pyspark.sql.functions import coalesce, count_if, expr, lit, raise_error, when

    holds = {rule.name: coalesce(expr(rule.predicate).cast("boolean"), lit(False)) for rule in rules}
    if count:
        rows = rows.observe(EXPECTED + table, *(count_if(~holds[rule.name]).alias(rule.name) for rule in rules))
    for rule in rules:
        if rule.action == FAIL:
            words = raise_error(lit(f"table '{table}': a row fails the rule '{rule.name}' ({rule.predicate})"))
            rows = rows.where(when(holds[rule.name], lit(True)).otherwise(words.cast("boolean")))
    aside = [rule for rule in rules if rule.action == QUARANTINE]
    quarantined = {}
    for place in dict.fromkeys(rule.aside for rule in aside):
        broken = [rule for rule in aside if rule.aside == place]
        others = [rule for rule in aside[: aside.index(broken[0])] if rule.aside != place]
        bad = reduce(lambda one, other: one | other, (~holds[rule.name] for rule in broken))
        for rule in others:  # A row goes to one place, that of the first rule that it fails.
            bad = bad & holds[rule.name]
        reason = reduce(
            lambda otherwise, rule: when(~holds[rule.name], lit(rule.name)).otherwise(otherwise),
            reversed(broken),
            lit(""),
        )
        quarantined[place] = _set_aside(rows.where(bad), reason)
    for rule in rules:
        if rule.action in (DROP, QUARANTINE):
            rows = rows.where(holds[rule.name])
    return Checked(rows=rows, quarantined=quarantined)


def _set_aside(rows: Any, rule: Any) -> Any:
    from pyspark.sql.functions import col, struct, to_json

    columns = [col(f"`{name.replace('`', '``')}`") for name in rows.columns]
    return rows.select(to_json(struct(*columns), {"ignoreNullFields": "false"}).alias("row"), rule.alias("rule"))


def letters(aside: Any, table: str) -> Any:
    """Rows that were set aside as records, with the table and the rule as headers."""
    from pyspark.sql.functions import array, col, lit, struct

    def header(name: str, value: Any) -> Any:
        return struct(lit(name).alias("key"), value.cast("binary").alias("value"))

    headers = array(header("headrace.table", lit(table)), header("headrace.rule", col("rule")))
    return aside.select(col("row").cast("binary").alias("value"), headers.alias("headers"))


def table_rows(aside: Any, table: str) -> Any:
    """The same as rows of a table of a lake."""
    from pyspark.sql.functions import col, lit

    return aside.select(lit(table).alias("_table"), col("rule").alias("_rule"), col("row").alias("_row"))


def outlet_rows(aside: Any, table: str, rules: tuple[Expectation, ...], place: str) -> Any:
    """Rows that were set aside as the place takes them."""
    is_table = any(rule.table is not None and rule.aside == place for rule in rules)
    return table_rows(aside, table) if is_table else letters(aside, table)
