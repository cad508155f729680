"""What the demo's pipeline wrote, beside what it should have written."""

import json
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from examples.orders.expected import Expected, Window, expected
from examples.orders.generator import Message
from headrace.client.columnar import LATEST, Cluster, Range, TopicPartition, read_ranges
from headrace.spark.pipeline.files import committed_files

LIMIT, SECONDS = 5, 60
"""The settings of the step `flagged` in pipeline.yaml."""
CLOSED_AFTER = timedelta(seconds=60 + 180, milliseconds=1)
"""By how much the watermark must have passed the beginning of a minute whose sums are out: it takes 60 s, and its
orders wait 180 s for payments."""


class Results(NamedTuple):
    """What is in the topics and in the archive: JSON objects, and the ids of paid orders."""

    revenue: list[dict[str, Any]]
    frauds: list[dict[str, Any]]
    paid: list[str]


def closed_by(watermark: str | None) -> str:
    """The last minute whose sums must be out when the pipeline's watermark has come so far; empty if there is none."""
    if watermark is None:
        return ""
    last = datetime.fromisoformat(watermark) - CLOSED_AFTER
    return f"{last.astimezone(UTC):%Y-%m-%dT%H:%M}:00.000Z"


def results(bootstrap: str, archive: Path) -> Results:
    """What the pipeline wrote."""
    return Results(
        revenue=[json.loads(value) for value in _values("revenue", bootstrap)],
        frauds=[json.loads(value) for value in _values("frauds", bootstrap)],
        paid=_archived(archive),
    )


def checks(found: Results, messages: list[Message], watermark: str | None) -> list[tuple[bool, str]]:
    """Whether each of the results is as it should be, and what was compared.

    `watermark` is how far the pipeline says that it has come.
    """
    should = expected(messages, LIMIT, SECONDS)
    closed = closed_by(watermark)
    return [_paid(found.paid, should), _revenue(found.revenue, should, closed), _frauds(found.frauds, should)]


def show(found: Results, outcome: list[tuple[bool, str]]) -> None:
    """Print the results and how they were judged."""
    screen = Console()
    screen.print(_countries(found.revenue))
    screen.print(_cards(found.frauds))
    for good, words in outcome:
        screen.print(f"[green]ok[/]    {words}" if good else f"[red]WRONG[/] {words}")


def _archived(archive: Path) -> list[str]:
    files = committed_files(archive)
    return pq.read_table(files, columns=["order_id"]).column("order_id").to_pylist() if files else []


def _values(topic: str, bootstrap: str) -> list[bytes]:
    """What is committed: a batch that was cut off when the pipeline stopped is not there."""
    with Cluster({"bootstrap.servers": bootstrap}) as cluster:
        partitions = [TopicPartition(topic, number) for number in range(cluster.partitions([topic])[topic])]
        ends = cluster.offsets(dict.fromkeys(partitions, LATEST), read_committed=True)
        ranges = [Range(topic, where.partition, 0, end or 0) for where, end in ends.items()]
        batches = read_ranges(cluster, ranges, read_committed=True)
        return list(chain.from_iterable(batch.column("value").to_pylist() for batch in batches))


def _countries(revenue: list[dict[str, Any]]) -> Table:
    totals: dict[str, tuple[int, int]] = {}
    for row in revenue:
        orders, cents = totals.get(row["country"], (0, 0))
        totals[row["country"]] = orders + row["orders"], cents + row["cents"]
    table = Table("COUNTRY", "PAID ORDERS", "REVENUE", title="Top countries, in the minutes that are closed")
    for country, (orders, cents) in sorted(totals.items(), key=lambda one: -one[1][1])[:5]:
        table.add_row(country, f"{orders:,}", f"{cents / 100:,.2f}")
    return table


def _cards(frauds: list[dict[str, Any]]) -> Table:
    last = {row["card"]: row for row in sorted(frauds, key=lambda row: int(row["orders"]))}
    table = Table("CARD", "ORDERS", "AMOUNT", "COUNTRIES", "SINCE", title="Flagged cards")
    for card, row in sorted(last.items(), key=lambda one: str(one[1]["first_time"])):
        table.add_row(card, str(row["orders"]), f"{row['cents'] / 100:,.2f}", row["countries"], row["first_time"])
    return table


def _paid(paid: list[str], should: Expected) -> tuple[bool, str]:
    twice, missing = len(paid) - len(set(paid)), len(should.paid - set(paid))
    words = f"{len(paid):,} paid orders in Parquet of {len(should.paid):,}: {missing} missing, {twice} twice"
    return set(paid) == should.paid and not twice, words


def _revenue(revenue: list[dict[str, Any]], should: Expected, closed: str) -> tuple[bool, str]:
    made: dict[Window, tuple[int, int]] = {
        (row["minute"], row["country"]): (row["orders"], row["cents"]) for row in revenue
    }
    last = max([closed, *(minute for minute, _ in made)])
    due = {window: sums for window, sums in should.revenue.items() if window[0] <= last}
    if not due and not revenue:
        return True, "no minute's sum is due: the shop was not open for long enough"
    wrong = sum(sums != due.get(window) for window, sums in made.items())
    words = (
        f"{len(revenue)} sums of a minute and a country in the topic, {len(due)} due, {wrong} other than they should be"
    )
    return made == due and len(revenue) == len(made), words


def _frauds(frauds: list[dict[str, Any]], should: Expected) -> tuple[bool, str]:
    flagged: dict[str, int] = {}
    for row in frauds:
        flagged[row["card"]] = max(flagged.get(row["card"], 0), row["orders"])
    return flagged == should.sprees, f"{len(flagged)} cards flagged, {len(should.sprees)} sprees took place"
