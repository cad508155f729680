"""A pipeline from its declaration to its end."""

import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from .building import build
from .functions import modules_beside
from .model import Declaration, Trigger
from .places import Places, only_runner, places_of
from .preflight import require_sources
from .progress import Progress
from .running import Running, Setting, start, stop_all, watch
from .session import SparkPlace, open_session

GRACE_SECONDS: Final = 30.0


class View(Protocol):
    """Who is told how a run goes."""

    def phase(self, words: str) -> None:
        """Something that takes seconds begins."""

    def started(self, declaration: Declaration, places: Places, spark: SparkPlace) -> None:
        """Every query runs."""

    def progress(self, sinks: Sequence[Progress]) -> None:
        """Where each sink stands now; called about twice a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the caller of a run may choose."""

    bootstrap: str
    spark: SparkPlace = field(default_factory=SparkPlace)
    checkpoint: str | None = None
    once: bool = False
    grace: float = GRACE_SECONDS
    stop: threading.Event = field(default_factory=threading.Event)
    take_signals: Callable[[], None] = lambda: None
    """Called before Spark starts, so that a stop asked for meanwhile waits until Spark can be ended in good order: a
    JVM that loses us half-way stays. And called again when it has started, as Spark takes Ctrl-C for itself."""

    @property
    def trigger(self) -> Trigger | None:
        """What takes the place of the declared triggers, if anything does."""
        return Trigger(available_now=True) if self.once else None


def run(declaration: Declaration, wishes: Wishes, view: View) -> list[Progress]:
    """Run until a stop is asked for or nothing is left to do; the last progress of each sink.

    PipelineFailed tells why it could not start, or which sink failed and why; then all of them are stopped.
    ClientError tells that the brokers, or a topic to read, are not there.
    """
    places = places_of(declaration, wishes.checkpoint)
    if wishes.spark.remote is None:
        # Behind Spark Connect it is the server that must reach the brokers, which may be out of reach from here.
        require_sources(declaration, wishes.bootstrap)
    with only_runner(places) as lock:
        view.phase(f"starting Spark ({wishes.spark})")
        wishes.take_signals()
        with open_session(wishes.spark, declaration.name, declaration.spark, places.log, lock) as spark:
            wishes.take_signals()
            return [] if wishes.stop.is_set() else run_with(spark, declaration, places, wishes, view)


def run_with(spark: Any, declaration: Declaration, places: Places, wishes: Wishes, view: View) -> list[Progress]:
    """The same in a session that is there already."""
    ship_functions(declaration)
    view.phase("preparing the queries")
    built = build(spark, declaration, wishes.bootstrap)
    setting = Setting(declaration=declaration, places=places, bootstrap=wishes.bootstrap, trigger=wishes.trigger)
    queries: list[Running] = []
    try:
        for one in built:
            if wishes.stop.is_set():
                break
            # One at a time, so that those started before a failure are known and stopped.
            queries.append(start(one, setting))
        if not wishes.stop.is_set():
            view.started(declaration, places, wishes.spark)
        watch(queries, wishes.stop, view.progress)
        if wishes.stop.is_set():
            view.phase("stopping when the current batches are done")
    finally:
        stop_all(queries, wishes.grace)
    for query in queries:
        query.look()
    return [query.progress for query in queries]


def ship_functions(declaration: Declaration) -> None:
    """Let the code beside the file travel to Spark's workers with the functions that use it."""
    from pyspark.cloudpickle import register_pickle_by_value

    for module in modules_beside(declaration.directory):
        if module.__name__ != "__main__":
            register_pickle_by_value(module)


def plan(declaration: Declaration, bootstrap: str) -> dict[str, str]:
    """What Spark makes of the pipeline without running it: the columns of each table and sink."""
    with tempfile.TemporaryDirectory(prefix="headrace-plan-") as directory:
        log = Path(directory) / "spark.log"
        with open_session(SparkPlace(master="local[1]"), declaration.name, declaration.spark, log) as spark:
            ship_functions(declaration)
            built = build(spark, declaration, bootstrap)
            return {name: _columns(table) for one in built for name, table in one.tables.items()}


def _columns(table: Any) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in table.schema.fields)
