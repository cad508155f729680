"""Rows as a table, as JSON, and as docs/benchmarks.md."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from . import machine
from .model import Aim, Of, Row

DOCUMENT: Final = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
_HEAD: Final = ("work", "ceiling", "broker", "ratio", "aim", "met", "CPU: ceiling", "CPU: broker")
_MET: Final = {True: "yes", False: "no", None: ""}


def show(rows: list[Row], console: Console) -> None:
    """Print a table of the rows."""
    table = Table(*_HEAD, title=f"{machine.shape()}; {machine.placement()}", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        cells = _cells(row)
        colour = {True: "green", False: "red", None: ""}[row.is_met]
        table.add_row(*cells, style=colour)
    console.print(table)


def as_json(rows: list[Row]) -> str:
    """Everything measured, each round's values included."""
    return json.dumps({"machine": machine.shape(), "rows": [_plain(row) for row in rows]}, indent=2)


def _plain(row: Row) -> dict[str, object]:
    values = asdict(row)
    aim = row.figure.aim
    values["figure"] = {"key": row.figure.key, "unit": row.figure.unit, "aim": _aim(aim, row.figure.unit)}
    return values


def _cells(row: Row) -> tuple[str, ...]:
    unit = row.figure.unit
    return (
        f"{row.title}{', ' + row.figure.label if row.figure.label else ''}",
        _number(row.ceiling, unit),
        _number(row.broker, unit),
        "" if row.ratio is None else f"{row.ratio:.2f}",
        _aim(row.figure.aim, unit),
        _MET[row.is_met],
        _number(row.ceiling_cpu, row.cpu_unit),
        _number(row.broker_cpu, row.cpu_unit),
    )


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}"


def _aim(aim: Aim | None, unit: str) -> str:
    if aim is None:
        return ""
    sign = "≥" if aim.at_least else "≤"
    return f"{sign} {aim.bound:g} {aim.of.value}" if aim.of is Of.RATIO else f"{sign} {aim.bound:,g} {unit}"


_PREFACE: Final = """\
# Benchmarks

Written by `make bench ARGS=--write`. Each figure stands beside its ceiling: the least that could be called the same
work, measured in the same run, in turns with the broker. What counts is the ratio; another machine has other figures.

Machine: {shape}; {placement}; loopback; logs on the disk.
Medians of at most {rounds} rounds of {seconds:g} s, a fresh broker with default settings for each. CPU is the server's
processor time, user and system; of Spark's formats and sinks, that of the server and all of its clients' processes. A
run of some works alone renews their rows, and what follows is said of it.
Other work took {before:.0f} % of the machine before the run and {after:.0f} % after it.

"""


def write(rows: list[Row], rounds: int, seconds: float, busy: tuple[float, float]) -> Path:
    """Renew these rows of docs/benchmarks.md, others stay; `busy` is what other work took before and after, in percent.

    Rows that a full run no longer has go when the file is removed before it.
    """
    before, after = busy
    preface = _PREFACE.format(
        shape=machine.shape(),
        placement=machine.placement(),
        rounds=rounds,
        seconds=seconds,
        before=before,
        after=after,
    )
    DOCUMENT.parent.mkdir(exist_ok=True)
    old = DOCUMENT.read_text() if DOCUMENT.exists() else ""
    DOCUMENT.write_text(preface + renewed(old, rows))
    return DOCUMENT


def renewed(old: str, rows: list[Row]) -> str:
    """The table and the list of ceilings of a document, with these rows in the place of their former selves."""
    was = [tuple(line[2:-2].split(" | ")) for line in old.splitlines() if line.startswith("| ")]
    table = {_row_key(cells): cells for cells in was if cells != _HEAD}
    table |= {_row_key(cells): cells for cells in map(_cells, rows)}
    said = [line[2:].split(": ", 1) for line in old.splitlines() if line.startswith("- ")]
    against = dict(said) | {row.title: row.against for row in rows if row.against}
    lines = ["| " + " | ".join(cells) + " |" for cells in (_HEAD, *table.values())]
    lines.insert(1, "|---|" + "---:|" * (len(_HEAD) - 1))
    ceilings = [f"- {title}: {words}" for title, words in against.items()]
    return "\n".join([*lines, "", "The ceilings:", "", *ceilings, ""])


def _row_key(cells: tuple[str, ...]) -> tuple[str, str]:
    """What a row is about: its title and its unit."""
    return cells[0], cells[_HEAD.index("broker")].partition(" ")[2]
