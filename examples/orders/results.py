"""What the demo's pipeline wrote, beside what it should have written."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from examples.orders.expected import Expected, Window, expected
from examples.orders.generator import Message
from headrace.client.columnar import LATEST, Cluster, Range, TopicPartition, read_ranges

LIMIT, SECONDS = 5, 60
"""The settings of the step `flagged` in pipeline.yaml."""


def show_and_check(bootstrap: str, archive: Path, messages: list[Message]) -> int:
    """Print the results; 0 if all of them are as they should be, else 1."""
    should = expected(messages, LIMIT, SECONDS)
    revenue = [_document(value) for value in _values("revenue", bootstrap)]
    frauds = [_document(value) for value in _values("frauds", bootstrap)]
    paid = pq.read_table(archive, columns=["order_id"]).column("order_id").to_pylist()
    screen = Console()
    screen.print(_countries(revenue))
    screen.print(_cards(frauds))
    checks = [_paid(paid, should), _revenue(revenue, should), _frauds(frauds, should)]
    for good, words in checks:
        screen.print(f"[green]ok[/]    {words}" if good else f"[red]WRONG[/] {words}")
    return 0 if all(good for good, _ in checks) else 1


def _values(topic: str, bootstrap: str) -> list[bytes]:
    cluster = Cluster({"bootstrap.servers": bootstrap})
    partitions = [TopicPartition(topic, number) for number in range(cluster.partitions([topic])[topic])]
    ends = cluster.offsets(dict.fromkeys(partitions, LATEST))
    ranges = [Range(topic, where.partition, 0, end or 0) for where, end in ends.items()]
    values = [batch.column("value").to_pylist() for batch in read_ranges(cluster, ranges)]
    cluster.close()
    return list(chain.from_iterable(values))


def _document(value: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(value)
    return found


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


def _revenue(revenue: list[dict[str, Any]], should: Expected) -> tuple[bool, str]:
    made: dict[Window, tuple[int, int]] = {
        (row["minute"], row["country"]): (row["orders"], row["cents"]) for row in revenue
    }
    last = max((minute for minute, _ in made), default="")
    due = {window: sums for window, sums in should.revenue.items() if window[0] <= last}
    words = f"{len(revenue)} sums of a minute and a country in the topic, {len(due)} due, each as it should be"
    return bool(made) and made == due and len(revenue) == len(made), words


def _frauds(frauds: list[dict[str, Any]], should: Expected) -> tuple[bool, str]:
    flagged: dict[str, int] = {}
    for row in frauds:
        flagged[row["card"]] = max(flagged.get(row["card"], 0), row["orders"])
    return flagged == should.sprees, f"{len(flagged)} cards flagged, {len(should.sprees)} sprees took place"
