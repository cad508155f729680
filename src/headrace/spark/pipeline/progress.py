"""What a streaming query has done, out of the reports that Spark makes after each batch."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from headrace.client.columnar.model import TopicPartition

from ..source.offsets import Offsets, from_spark
from .building import ROWS_IN, ROWS_OUT
from .expectations import EXPECTED
from .reach import Outage


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkProgress:
    """Where a sink stands. Rows are counted since the start of this run; `lag` is None where it is not known.

    `state` is starting, running, unreachable (no broker answers), restarting, stopped or failed. `problem` tells why
    it is neither running nor stopped, and `since` from when on.
    """

    sink: str
    state: str = "starting"
    batch: int | None = None
    rows_in: int = 0
    rows_out: int = 0
    bad_records: int = 0
    rows_per_second: float = 0.0
    latency_ms: int | None = None
    lag: int | None = None
    watermark: str | None = None
    state_rows: int = 0
    state_bytes: int = 0
    dropped_late: int = 0
    expectations: Mapping[str, int] = field(default_factory=dict)
    """Rows that failed a rule, by TABLE.RULE."""
    restarts: int = 0
    last_progress: str | None = None
    """When the last batch ended; Spark reports every ten seconds also where there is nothing to do."""
    problem: str | None = None
    since: str | None = None

    def after(self, report: Mapping[str, Any]) -> "SinkProgress":
        """This, with one more report of a batch taken in."""
        state = report.get("stateOperators") or []
        rows_in = _sum(report, "rows")
        return replace(
            self,
            state="running",
            batch=report["batchId"],
            rows_in=self.rows_in + (int(report.get("numInputRows") or 0) if rows_in is None else rows_in),
            rows_out=self.rows_out + _rows_out(report, self.sink),
            bad_records=self.bad_records + (_sum(report, "bad") or 0),
            rows_per_second=float(report.get("inputRowsPerSecond") or 0.0),
            latency_ms=(report.get("durationMs") or {}).get("triggerExecution"),
            lag=lag_of(report),
            watermark=(report.get("eventTime") or {}).get("watermark") or self.watermark,
            state_rows=sum(int(one.get("numRowsTotal") or 0) for one in state),
            state_bytes=sum(int(one.get("memoryUsedBytes") or 0) for one in state),
            dropped_late=self.dropped_late + sum(int(one.get("numRowsDroppedByWatermark") or 0) for one in state),
            expectations=_failures(self.expectations, report),
            last_progress=_ended(report),
            problem=None,
            since=None,
        )

    def now(self, state: str) -> "SinkProgress":
        """This, in another state; what does not run has no speed."""
        speed = self.rows_per_second if state == "running" else 0.0
        return replace(self, state=state, rows_per_second=speed, problem=None, since=None)

    def behind_by(self, lag: int) -> "SinkProgress":
        """This, as far behind as is known now."""
        return replace(self, lag=lag)

    def cut_off(self, outage: Outage) -> "SinkProgress":
        """This, while no broker answers: how far behind it is, nobody knows."""
        since = moment(outage.since)
        return replace(self.now("unreachable"), lag=None, problem=outage.message, since=since)

    def to_restart(self, problem: str, since: float) -> "SinkProgress":
        """This, after a failure, until it has started again."""
        return replace(self.now("restarting"), lag=None, problem=problem, since=moment(since))


def moment(seconds: float) -> str:
    """A time since 1970, as Spark writes it in its reports."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _ended(report: Mapping[str, Any]) -> str | None:
    """When the batch of a report ended."""
    start, took = report.get("timestamp"), (report.get("durationMs") or {}).get("triggerExecution") or 0
    return None if start is None else moment(datetime.fromisoformat(start).timestamp() + took / 1000)


def _rows_out(report: Mapping[str, Any], sink: str) -> int:
    observed = (report.get("observedMetrics") or {}).get(ROWS_OUT + sink)
    if observed:
        return int(_by_name(observed)["rows"])
    return max(int((report.get("sink") or {}).get("numOutputRows") or 0), 0)


def _sum(report: Mapping[str, Any], name: str) -> int | None:
    """What was counted at all sources; None if it was at none.

    Spark's own count of a query's input has a row as often as there are ways for it to the sinks.
    """
    counts = list(_at_sources(report, name))
    return sum(counts) if counts else None


def _at_sources(report: Mapping[str, Any], name: str) -> Iterator[int]:
    for metric, observed in (report.get("observedMetrics") or {}).items():
        if metric.startswith(ROWS_IN) and (counts := _by_name(observed)).get(name) is not None:
            yield int(counts[name])


def _failures(before: Mapping[str, int], report: Mapping[str, Any]) -> dict[str, int]:
    """Rows that have failed rules, with those of one more report."""
    found = dict(before)
    for metric, observed in (report.get("observedMetrics") or {}).items():
        if metric.startswith(EXPECTED):
            for rule, count in _by_name(observed).items():
                name = f"{metric.removeprefix(EXPECTED)}.{rule}"
                found[name] = found.get(name, 0) + int(count or 0)
    return found


def _by_name(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row that was observed. Spark Connect tells its values and their schema apart."""
    if "values" not in row:
        return row
    names = [field["name"] for field in row["schema"]["fields"]]
    return dict(zip(names, row["values"], strict=True))


def lag_of(report: Mapping[str, Any]) -> int | None:
    """Records that were in the topics and not yet read when the batch began; None if no source tells."""
    known = [one for source in report.get("sources") or [] if (one := _source_lag(source)) is not None]
    return sum(known) if known else None


def _source_lag(source: Mapping[str, Any]) -> int | None:
    latest, end = _offsets(source.get("latestOffset")), _offsets(source.get("endOffset"))
    return None if latest is None or end is None else behind(end, latest)


def positions_of(report: Mapping[str, Any]) -> list[Offsets]:
    """Up to where each source that tells has read."""
    found = [_offsets(source.get("endOffset")) for source in report.get("sources") or []]
    return [one for one in found if one]


def behind(position: Offsets, ends: Mapping[TopicPartition, int]) -> int:
    """How many records a position is behind the ends of its topics."""
    return sum(max(end - position.get(where, 0), 0) for where, end in ends.items())


def _offsets(text: Any) -> Offsets | None:
    """Offsets by partition, from the text or the value that Spark's report has."""
    try:
        return from_spark(json.loads(text) if isinstance(text, str) else text)
    except (ValueError, AttributeError, TypeError):
        return None
