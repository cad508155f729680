"""Rules about the rows of a table: what is expected of each row, and what becomes of one that is otherwise.

A rule holds for a row if its predicate is true; null is not. All rules of a table look at the same rows. One that fails
a rule of `quarantine` goes there, whatever else it fails; one that fails a rule of `drop` is left out; one that fails a
rule of `warn` is counted. A row that fails a rule of `fail` ends the query.
"""

import re
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from headrace.config.names import shown

from .document import Section

WARN, DROP, FAIL, QUARANTINE = ACTIONS = ("warn", "drop", "fail", "quarantine")
EXPECTED: Final = "headrace_expect_"
"""What starts the name under which Spark counts the rows of a table that fail its rules."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """One rule; `topic` is where rows go that fail it, with the action `quarantine`."""

    name: str
    predicate: str
    action: str = WARN
    topic: str = ""


def read_expectations(section: Section) -> tuple[Expectation, ...]:
    """The rules under `expect:` of a source or a step."""
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
            found.append(_rule(name, Section(node, f"{section.what}: rule '{shown(name)}'", section.problems)))
        else:
            found.append(Expectation(name=name, predicate=(inner.text(name) or "").strip()))
        if not found[-1].predicate:
            inner.wrong(name, f"rule '{shown(name)}' needs a predicate, for example `cents > 0`")
    return tuple(found)


def _rule(name: str, rule: Section) -> Expectation:
    rule.allow(["that", "action", "topic"])
    action = rule.choice("action", ACTIONS, WARN)
    topic = rule.text("topic") or ""
    if (action == QUARANTINE) != bool(topic):
        rule.wrong("topic", "'topic' is where rows go with `action: quarantine`, which needs it")
    return Expectation(name=name, predicate=rule.required("that", "cents > 0").strip(), action=action, topic=topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A table after its rules, and the rows that go elsewhere, by their topics."""

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
    for topic in dict.fromkeys(rule.topic for rule in aside):
        broken = [rule for rule in aside if rule.topic == topic]
        others = [rule for rule in aside[: aside.index(broken[0])] if rule.topic != topic]
        bad = reduce(lambda one, other: one | other, (~holds[rule.name] for rule in broken))
        for rule in others:  # A row goes to one topic, that of the first rule that it fails.
            bad = bad & holds[rule.name]
        reason = reduce(
            lambda otherwise, rule: when(~holds[rule.name], lit(rule.name)).otherwise(otherwise),
            reversed(broken),
            lit(""),
        )
        quarantined[topic] = letters(rows.where(bad), table, reason)
    for rule in rules:
        if rule.action in (DROP, QUARANTINE):
            rows = rows.where(holds[rule.name])
    return Checked(rows=rows, quarantined=quarantined)


def letters(rows: Any, table: str, rule: Any) -> Any:
    """Rows as records: all columns as JSON, with the table and the rule as headers."""
    from pyspark.sql.functions import array, col, lit, struct, to_json

    def header(name: str, value: Any) -> Any:
        return struct(lit(name).alias("key"), value.cast("binary").alias("value"))

    columns = [col(f"`{name.replace('`', '``')}`") for name in rows.columns]
    whole = to_json(struct(*columns), {"ignoreNullFields": "false"})
    headers = array(header("headrace.table", lit(table)), header("headrace.rule", rule))
    return rows.select(whole.cast("binary").alias("value"), headers.alias("headers"))
