"""docs/metrics.md, from the table of names."""

from collections.abc import Iterable, Mapping
from itertools import groupby

from .names import BROKER, GATEWAY, PIPELINES, Metric

_HEAD = """# Metrics

What brokers, gateways and services of pipelines tell Prometheus; [Monitoring](monitoring.md) says how to scrape them,
what to watch and what each alert means. Durations are histograms with bounds at powers of two of a microsecond, from
64 µs to 16.8 s. Series of one topic, one partition or one partition of a group are limited to
`headrace.metrics.max.partitions` of each kind; sums have all of them.
"""


def render_docs() -> str:
    """The page as markdown."""
    brokers = f"## Brokers\n\n`/metrics` on the port of `--metrics`.\n{_tables(BROKER)}"
    gateways = f"## Gateways\n\n`/metrics` on the port of `--http`.\n{_tables(GATEWAY)}"
    pipelines = f"## Pipelines\n\n`/metrics` of `headrace pipeline service`, at `--metrics`.\n{_tables(PIPELINES)}"
    return f"{_HEAD}\n{brokers}\n{gateways}\n{pipelines}"


def _tables(metrics: Mapping[str, Metric]) -> str:
    sections = groupby(metrics.values(), key=lambda metric: metric.section)
    return "".join(f"\n### {section}\n\n{_table(rows)}" for section, rows in sections)


def _table(metrics: Iterable[Metric]) -> str:
    lines = ["| metric | type | labels | what it is |", "|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.doc} |")
    return "\n".join(lines) + "\n"
