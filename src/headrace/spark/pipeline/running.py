"""Running a built pipeline: start a query for each sink, watch them all, stop them together."""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from .building import BuiltSink
from .failures import PipelineFailed, cause_of
from .model import Declaration, Sink, Trigger
from .outputs import writer_for
from .places import Places
from .progress import Progress

POLL_SECONDS: Final = 0.5
_TRIES: Final = 3
_STARTING: Final = "Initializing "
_TOO_SLOW: Final = "Python worker failed to connect back"
Report = Callable[[Sequence[Progress]], None]


class Query(Protocol):
    """What is used of Spark's StreamingQuery."""

    @property
    def isActive(self) -> bool: ...  # noqa: N802 - Spark's name
    @property
    def status(self) -> Mapping[str, Any]: ...
    @property
    def lastProgress(self) -> Any: ...  # noqa: N802 - Spark's name
    @property
    def recentProgress(self) -> Sequence[Any]: ...  # noqa: N802 - Spark's name
    def exception(self) -> BaseException | None: ...
    def stop(self) -> None: ...


@dataclass(slots=True)
class Running:
    """A query that was started, and what is known of it."""

    sink: Sink
    query: Query
    progress: Progress
    seen: set[tuple[str, int]] = field(default_factory=set)
    again: Callable[[], Query] | None = None
    """Starts the query anew, from its checkpoint."""
    tries: int = _TRIES
    """How often it may still be started because the machine was too slow for it; full again after each batch."""

    def look(self) -> None:
        """Take in what happened since the last look."""
        last = self.query.lastProgress
        for report in self._new(json.loads(last.json)) if last is not None else ():
            self.progress = self.progress.after(report)
            self.tries = _TRIES
        if not self.query.isActive:
            self.progress = self.progress.now("stopped" if self.failure() is None else "failed")

    def failure(self) -> BaseException | None:
        return None if self.query.isActive else self.query.exception()

    @property
    def can_start_again(self) -> bool:
        """Whether the query failed for want of time alone, so that nothing is wrong with it."""
        failure = self.failure()
        return failure is not None and _TOO_SLOW in str(failure) and self.again is not None and self.tries > 0

    def start_again(self) -> None:
        """Start the query where it stopped."""
        assert self.again is not None
        self.tries -= 1
        self.query = self.again()
        self.progress = self.progress.now("starting")

    def _new(self, last: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Reports not seen before. Mostly the last is all there is, and asking for all of them is dear."""
        if not self._is_new(last):
            return []
        missed = self.progress.batch is not None and last["batchId"] > self.progress.batch + 1
        recent = [json.loads(one.json) for one in self.query.recentProgress] if missed else [last]
        reports = [one for one in recent if self._is_new(one)]
        self.seen = {(one["timestamp"], one["batchId"]) for one in reports[-1:]}
        return reports

    def _is_new(self, report: Mapping[str, Any]) -> bool:
        batch = self.progress.batch
        if batch is None or report["batchId"] > batch:
            return True
        return report["batchId"] == batch and (report["timestamp"], batch) not in self.seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all sinks of a run share. `trigger` takes the place of those declared, if it is given."""

    declaration: Declaration
    places: Places
    bootstrap: str
    trigger: Trigger | None = None


def start(built: BuiltSink, setting: Setting) -> Running:
    """Start the query of a sink and wait until it knows its sources; PipelineFailed says why it cannot be.

    Spark gives a Python process of a source ten seconds to answer. A busy machine may take longer, so queries start
    one after the other, and one that failed for this alone starts again, then and later.
    """
    running = Running(
        built.sink, _start(built, setting), Progress(sink=built.sink.name), again=lambda: _start(built, setting)
    )
    while _settled(running.query) is not None and running.can_start_again:
        running.start_again()
    return running


def _start(built: BuiltSink, setting: Setting) -> Query:
    sink = built.sink
    try:
        built.show_tables()
        checkpoint = setting.places.checkpoint_of(sink.name)
        writer = writer_for(built, setting.declaration, setting.bootstrap, checkpoint)
        writer = writer.queryName(sink.name).outputMode(sink.mode).option("checkpointLocation", checkpoint)
        query: Query = _triggered(writer, setting.trigger or sink.trigger or setting.declaration.trigger).start()
    except Exception as error:
        raise PipelineFailed(f"{sink.place}: sink '{sink.name}': {cause_of(error)}") from error
    return query


def _settled(query: Query) -> BaseException | None:
    """Wait until a new query has its sources or has failed; its failure."""
    while query.isActive and query.status["message"].startswith(_STARTING):
        time.sleep(0.05)
    return None if query.isActive else query.exception()


def _triggered(writer: Any, trigger: Trigger) -> Any:
    if trigger.available_now:
        return writer.trigger(availableNow=True)
    return writer if trigger.interval is None else writer.trigger(processingTime=trigger.interval)


def watch(queries: Sequence[Running], stop: threading.Event, report: Report, poll: float = POLL_SECONDS) -> None:
    """Return when a stop is asked for or every query has ended; PipelineFailed as soon as one has failed."""
    while True:
        for one in queries:
            one.look()
        report([one.progress for one in queries])
        _raise_failure(queries)
        slow = [one for one in queries if one.can_start_again]
        for one in slow:
            one.start_again()
        if not (slow or any(one.query.isActive for one in queries)) or stop.wait(poll):
            return


def _raise_failure(queries: Sequence[Running]) -> None:
    for one in queries:
        failure = one.failure()
        if failure is not None and not one.can_start_again:
            raise PipelineFailed(f"sink '{one.sink.name}' failed: {cause_of(failure)}") from failure


def stop_all(queries: Sequence[Running], grace: float, clock: Callable[[], float] = time.monotonic) -> None:
    """Let each query finish the batch it is at, for `grace` seconds in all, then stop it.

    A batch cut off is no loss: it is run again, from the same offsets, when the pipeline starts next.
    """
    deadline = clock() + grace
    waiting = list(queries)
    at = {id(one): _batch(one.query) for one in waiting}
    while waiting and clock() < deadline:
        for one in [one for one in waiting if _between_batches(one.query, at[id(one)])]:
            _stop(one)
            waiting.remove(one)
        if waiting:
            time.sleep(0.02)
    for one in waiting:
        _stop(one)


def _between_batches(query: Query, batch: int) -> bool:
    return not query.isActive or not query.status["isTriggerActive"] or _batch(query) > batch


def _batch(query: Query) -> int:
    last = query.lastProgress
    return -1 if last is None else int(last.batchId)


def _stop(one: Running) -> None:
    try:
        one.query.stop()
    except Exception as error:
        raise PipelineFailed(f"sink '{one.sink.name}' does not stop: {cause_of(error)}") from error
    one.progress = one.progress.now("stopped")
