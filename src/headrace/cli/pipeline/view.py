"""How a running pipeline looks: a live table on a terminal, lines elsewhere, JSON lines for programs."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..console import note, say, say_json

if TYPE_CHECKING:
    from headrace.spark.pipeline.model import Declaration
    from headrace.spark.pipeline.paths import PipelinePaths
    from headrace.spark.pipeline.progress import SinkProgress
    from headrace.spark.pipeline.session import SparkTarget

LINE_SECONDS: Final = 5.0
STALE_SECONDS: Final = 30.0
"""Spark reports every ten seconds also where there is nothing to do; what is older than this is told with its time."""
_COLUMNS: Final = ("SINK", "STATE", "BATCH", "ROWS/S", "ROWS IN", "ROWS OUT", "BAD", "LAG", "BATCH TIME", "PROGRESS")
_CONDITIONS: Final = {"unreachable": "cannot reach the broker", "restarting": "restarting"}


class PipelineView(Protocol):
    """Who is told how a run goes and how it ended."""

    def phase(self, words: str) -> None: ...
    def started(self, declaration: "Declaration", paths: "PipelinePaths", spark: "SparkTarget") -> None: ...
    def progress(self, sinks: "Sequence[SinkProgress]") -> None: ...
    def ended(self, sinks: "Sequence[SinkProgress]") -> None: ...
    def failed(self, message: str) -> None: ...


@contextmanager
def view_for(json: bool) -> Iterator[PipelineView]:
    """The view that suits where the output goes."""
    if json:
        yield JsonView()
    elif sys.stdout.isatty():
        with _live() as live:
            yield LiveView(live)
    else:
        yield LineView()


def cells(sink: "SinkProgress") -> tuple[str, ...]:
    """A sink as a row of the table."""
    return (
        sink.sink,
        sink.state,
        "-" if sink.batch is None else str(sink.batch),
        f"{sink.rows_per_second:,.0f}",
        f"{sink.rows_in:,}",
        f"{sink.rows_out:,}",
        f"{sink.bad_records:,}",
        "-" if sink.lag is None else f"{sink.lag:,}",
        "-" if sink.latency_ms is None else f"{sink.latency_ms:,} ms",
        _clock_time(sink.last_progress),
    )


def line(sink: "SinkProgress", now: float | None = None) -> str:
    """A sink as a line; `now` is the time by which its last progress is judged."""
    if sink.state == "starting" and sink.batch is None:
        return f"{sink.sink}: starting, no batch is done yet{f', restarts {sink.restarts}' if sink.restarts else ''}"
    _, state, batch, speed, rows_in, rows_out, bad, lag, latency, last = cells(sink)
    parts = [condition(sink) or state, f"batch {batch}", f"in {rows_in} ({speed}/s)", f"out {rows_out}"]
    if sink.bad_records:
        parts.append(f"bad {bad}")
    parts += [f"failed {name} {count:,}" for name, count in sink.expectations.items() if count]
    parts += [f"lag {lag}", f"took {latency}"]
    if sink.restarts:
        parts.append(f"restarts {sink.restarts}")
    if sink.problem is not None or is_stale(sink, now):
        parts.append(f"last progress {last}")
    return f"{sink.sink}: {', '.join(parts)}"


def condition(sink: "SinkProgress") -> str | None:
    """What keeps a sink from running, and since when."""
    if sink.problem is None:
        return None
    return f"{_CONDITIONS.get(sink.state, sink.state)} since {_clock_time(sink.since)} ({_one_line(sink.problem)})"


def is_stale(sink: "SinkProgress", now: float | None) -> bool:
    """Whether a sink that runs has not been heard of for longer than an idle one would be silent."""
    if now is None or sink.last_progress is None or sink.state != "running":
        return False
    return now - datetime.fromisoformat(sink.last_progress).timestamp() > STALE_SECONDS


def _clock_time(text: str | None) -> str:
    """The time of day, UTC, of a time as Spark writes it."""
    return "-" if text is None else f"{text[11:19]} UTC"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _steady(sink: "SinkProgress") -> "SinkProgress":
    """A sink without what changes while nothing happens."""
    return replace(sink, last_progress=None)


def _opening(declaration: "Declaration", paths: "PipelinePaths", spark: "SparkTarget") -> str:
    return f"pipeline {declaration.name} runs on {spark}, checkpoint {paths.checkpoints}; Ctrl-C stops it"


class JsonView:
    """One JSON document a line; a sink's line whenever it has changed."""

    def __init__(self) -> None:
        self._shown: dict[str, SinkProgress] = {}

    def phase(self, words: str) -> None:
        say_json({"event": "phase", "phase": words})

    def started(self, declaration: "Declaration", paths: "PipelinePaths", spark: "SparkTarget") -> None:
        say_json(
            {
                "event": "started",
                "pipeline": declaration.name,
                "spark": str(spark),
                "checkpoint": paths.checkpoints,
                "log": str(paths.log),
                "sinks": [sink.name for sink in declaration.sinks],
            }
        )

    def progress(self, sinks: "Sequence[SinkProgress]") -> None:
        for sink in sinks:
            if self._shown.get(sink.sink) != _steady(sink):
                self._shown[sink.sink] = _steady(sink)
                say_json({"event": "progress", "time": round(time.time(), 3), **asdict(sink)})

    def ended(self, sinks: "Sequence[SinkProgress]") -> None:
        say_json({"event": "ended", "sinks": [asdict(sink) for sink in sinks]})

    def failed(self, message: str) -> None:
        say_json({"event": "failed", "error": message})
        note(f"headrace: {message}")


class LineView:
    """A line for each sink that moved, every few seconds."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, time_of_day: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._time = time_of_day
        self._next = clock()
        self._shown: dict[str, tuple[SinkProgress, bool]] = {}

    def phase(self, words: str) -> None:
        note(words)

    def started(self, declaration: "Declaration", paths: "PipelinePaths", spark: "SparkTarget") -> None:
        note(_opening(declaration, paths, spark))

    def progress(self, sinks: "Sequence[SinkProgress]") -> None:
        if self._clock() < self._next:
            return
        self._next = self._clock() + LINE_SECONDS
        now = self._time()
        for sink in sinks:
            shown = _steady(sink), is_stale(sink, now)
            if self._shown.get(sink.sink) != shown:
                self._shown[sink.sink] = shown
                say(line(sink, now))

    def ended(self, sinks: "Sequence[SinkProgress]") -> None:
        for sink in sinks:
            say(line(sink))

    def failed(self, message: str) -> None:
        note(f"headrace: {message}")


class LiveView:
    """A table that is drawn anew."""

    def __init__(self, live: Any) -> None:
        self._live = live
        self._title = ""

    def phase(self, words: str) -> None:
        from rich.spinner import Spinner

        self._live.update(Spinner("dots", words), refresh=True)

    def started(self, declaration: "Declaration", paths: "PipelinePaths", spark: "SparkTarget") -> None:
        self._title = _opening(declaration, paths, spark)

    def progress(self, sinks: "Sequence[SinkProgress]") -> None:
        self._live.update(self._table(sinks), refresh=True)

    def ended(self, sinks: "Sequence[SinkProgress]") -> None:
        self._title = ""
        self._live.update(self._table(sinks), refresh=True)

    def failed(self, message: str) -> None:
        self._live.stop()
        note(f"headrace: {message}")

    def _table(self, sinks: "Sequence[SinkProgress]") -> Any:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(
            box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", caption=self._title, caption_justify="left"
        )
        for number, column in enumerate(_COLUMNS):
            table.add_column(column, justify="left" if number < 2 else "right", no_wrap=True)
        for sink in sinks:
            table.add_row(*(Text(cell) for cell in cells(sink)))
        problems = dict.fromkeys(f"{words}" for sink in sinks if (words := condition(sink)) is not None)
        if problems:
            table.caption = Text("\n".join([*problems, self._title]).strip())
        return table


@contextmanager
def _live() -> Iterator[Any]:
    from rich.live import Live

    with Live(auto_refresh=True, refresh_per_second=4) as live:
        yield live
