"""How a running pipeline looks: a live table on a terminal, lines elsewhere, JSON lines for programs."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, Protocol

from .console import note, say, say_json

if TYPE_CHECKING:
    from headrace.spark.pipeline.model import Declaration
    from headrace.spark.pipeline.places import Places
    from headrace.spark.pipeline.progress import Progress
    from headrace.spark.pipeline.session import SparkPlace

LINE_SECONDS: Final = 5.0
_COLUMNS: Final = ("SINK", "STATE", "BATCH", "ROWS/S", "ROWS IN", "ROWS OUT", "LAG", "BATCH TIME")


class View(Protocol):
    """Who is told how a run goes and how it ended."""

    def phase(self, words: str) -> None: ...
    def started(self, declaration: "Declaration", places: "Places", spark: "SparkPlace") -> None: ...
    def progress(self, sinks: "Sequence[Progress]") -> None: ...
    def ended(self, sinks: "Sequence[Progress]") -> None: ...
    def failed(self, message: str) -> None: ...


@contextmanager
def view_for(json: bool) -> Iterator[View]:
    """The view that suits where the output goes."""
    if json:
        yield JsonView()
    elif sys.stdout.isatty():
        with _live() as live:
            yield LiveView(live)
    else:
        yield LineView()


def cells(sink: "Progress") -> tuple[str, ...]:
    """A sink as a row of the table."""
    return (
        sink.sink,
        sink.state,
        "-" if sink.batch is None else str(sink.batch),
        f"{sink.rows_per_second:,.0f}",
        f"{sink.rows_in:,}",
        f"{sink.rows_out:,}",
        "-" if sink.lag is None else f"{sink.lag:,}",
        "-" if sink.latency_ms is None else f"{sink.latency_ms:,} ms",
    )


def line(sink: "Progress") -> str:
    """A sink as a line."""
    _, state, batch, speed, rows_in, rows_out, lag, latency = cells(sink)
    return f"{sink.sink}: {state}, batch {batch}, in {rows_in} ({speed}/s), out {rows_out}, lag {lag}, took {latency}"


def _opening(declaration: "Declaration", places: "Places", spark: "SparkPlace") -> str:
    return f"pipeline {declaration.name} runs on {spark}, checkpoint {places.checkpoints}; Ctrl-C stops it"


class JsonView:
    """One JSON document a line; a sink's line whenever it has changed."""

    def __init__(self) -> None:
        self._shown: dict[str, Progress] = {}

    def phase(self, words: str) -> None:
        say_json({"event": "phase", "phase": words})

    def started(self, declaration: "Declaration", places: "Places", spark: "SparkPlace") -> None:
        say_json(
            {
                "event": "started",
                "pipeline": declaration.name,
                "spark": str(spark),
                "checkpoint": places.checkpoints,
                "log": str(places.log),
                "sinks": [sink.name for sink in declaration.sinks],
            }
        )

    def progress(self, sinks: "Sequence[Progress]") -> None:
        for sink in sinks:
            if self._shown.get(sink.sink) != sink and sink.batch is not None:
                self._shown[sink.sink] = sink
                say_json({"event": "progress", "time": round(time.time(), 3), **asdict(sink)})

    def ended(self, sinks: "Sequence[Progress]") -> None:
        say_json({"event": "ended", "sinks": [asdict(sink) for sink in sinks]})

    def failed(self, message: str) -> None:
        say_json({"event": "failed", "error": message})
        note(f"headrace: {message}")


class LineView:
    """A line for each sink that moved, every few seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = clock()
        self._shown: dict[str, Progress] = {}

    def phase(self, words: str) -> None:
        note(words)

    def started(self, declaration: "Declaration", places: "Places", spark: "SparkPlace") -> None:
        note(_opening(declaration, places, spark))

    def progress(self, sinks: "Sequence[Progress]") -> None:
        if self._clock() < self._next:
            return
        self._next = self._clock() + LINE_SECONDS
        for sink in sinks:
            if sink.batch is not None and self._shown.get(sink.sink) != sink:
                self._shown[sink.sink] = sink
                say(line(sink))

    def ended(self, sinks: "Sequence[Progress]") -> None:
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

    def started(self, declaration: "Declaration", places: "Places", spark: "SparkPlace") -> None:
        self._title = _opening(declaration, places, spark)

    def progress(self, sinks: "Sequence[Progress]") -> None:
        self._live.update(self._table(sinks), refresh=True)

    def ended(self, sinks: "Sequence[Progress]") -> None:
        self._title = ""
        self._live.update(self._table(sinks), refresh=True)

    def failed(self, message: str) -> None:
        self._live.stop()
        note(f"headrace: {message}")

    def _table(self, sinks: "Sequence[Progress]") -> Any:
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
        return table


@contextmanager
def _live() -> Iterator[Any]:
    from rich.live import Live

    with Live(auto_refresh=True, refresh_per_second=4) as live:
        yield live
