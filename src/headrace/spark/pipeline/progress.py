"""What a streaming query has done, out of the reports that Spark makes after each batch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .building import ROWS_OUT


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a sink stands. Rows are counted since the start of this run; `lag` is None where a source tells none."""

    sink: str
    state: str = "starting"
    batch: int | None = None
    rows_in: int = 0
    rows_out: int = 0
    rows_per_second: float = 0.0
    latency_ms: int | None = None
    lag: int | None = None
    watermark: str | None = None
    state_rows: int = 0
    dropped_late: int = 0

    def after(self, report: Mapping[str, Any]) -> "Progress":
        """This, with one more report of a batch taken in."""
        state = report.get("stateOperators") or []
        return replace(
            self,
            state="running",
            batch=report["batchId"],
            rows_in=self.rows_in + int(report.get("numInputRows") or 0),
            rows_out=self.rows_out + _rows_out(report),
            rows_per_second=float(report.get("inputRowsPerSecond") or 0.0),
            latency_ms=(report.get("durationMs") or {}).get("triggerExecution"),
            lag=lag_of(report),
            watermark=(report.get("eventTime") or {}).get("watermark"),
            state_rows=sum(int(one.get("numRowsTotal") or 0) for one in state),
            dropped_late=self.dropped_late + sum(int(one.get("numRowsDroppedByWatermark") or 0) for one in state),
        )

    def now(self, state: str) -> "Progress":
        """This, in another state; what no longer runs has no speed."""
        return replace(self, state=state, rows_per_second=self.rows_per_second if state == "running" else 0.0)


def _rows_out(report: Mapping[str, Any]) -> int:
    observed = (report.get("observedMetrics") or {}).get(ROWS_OUT)
    if observed:
        return int(_by_name(observed)["rows"])
    return max(int((report.get("sink") or {}).get("numOutputRows") or 0), 0)


def _by_name(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row that was observed. Spark Connect tells its values and their schema apart."""
    if "values" not in row:
        return row
    names = [field["name"] for field in row["schema"]["fields"]]
    return dict(zip(names, row["values"], strict=True))


def lag_of(report: Mapping[str, Any]) -> int | None:
    """Records that are in the topics and not yet read, over all sources; None if no source tells."""
    known = [one for source in report.get("sources") or [] if (one := _source_lag(source)) is not None]
    return sum(known) if known else None


def _source_lag(source: Mapping[str, Any]) -> int | None:
    latest, end = _offsets(source.get("latestOffset")), _offsets(source.get("endOffset"))
    if latest is None or end is None:
        return None
    return sum(max(offset - end.get(where, 0), 0) for where, offset in latest.items())


def _offsets(text: Any) -> dict[tuple[str, str], int] | None:
    """Offsets by topic and partition, from the text or the value that Spark's report has."""
    try:
        written = json.loads(text) if isinstance(text, str) else text
        return {
            (topic, partition): int(offset)
            for topic, partitions in written.items()
            for partition, offset in partitions.items()
        }
    except (ValueError, AttributeError, TypeError):
        return None
