"""Running a built pipeline: start its queries, watch them all, start again those that failed, stop them together."""

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Protocol

from headrace.client.columnar.model import TopicPartition

from ..errors import is_unreachable
from ..source.offsets import Offsets
from .building import BuiltGraph
from .failures import PipelineFailed, cause_of
from .file_sink import require_own_files
from .model import Declaration, Restart, ToFiles, Trigger
from .outputs import outlets_of, writer_for
from .paths import PipelinePaths
from .progress import SinkProgress, behind, positions_of
from .queries import SinkGraph
from .reach import Outage

POLL_SECONDS: Final = 0.5
_STARTING: Final = "Initializing "
_TOO_SLOW: Final = ("Python worker failed to connect back", "CANNOT_OPEN_SOCKET")
"""Spark gives a Python process ten seconds to start, and one that wants its rows fifteen to fetch them, which a busy
machine may not have."""
_CRASHED: Final = "Python worker exited unexpectedly"
"""Somebody killed a Python process, such as the system when memory was short."""
Report = Callable[[Sequence[SinkProgress]], None]


class Brokers(Protocol):
    """What is known of the brokers beside the queries."""

    @property
    def outage(self) -> Outage | None: ...
    @property
    def ends(self) -> Mapping[TopicPartition, int]: ...
    def follow(self, partitions: Iterable[TopicPartition]) -> None: ...


class UnknownBrokers:
    """Of brokers that cannot be asked from here, nothing is known."""

    outage: Outage | None = None
    ends: Mapping[TopicPartition, int] = MappingProxyType({})

    def follow(self, partitions: Iterable[TopicPartition]) -> None: ...


class StreamingQuery(Protocol):
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


class HeldLease(Protocol):
    """What is used of the lease of a checkpoint."""

    @property
    def outage(self) -> Outage | None:
        """Why queries must rest, if they must."""

    def require(self) -> None:
        """PipelineFailed when another runner has taken over."""

    def explain(self) -> None:
        """The same, asked anew when a query has failed: that may be why."""


@dataclass(slots=True)
class Running:
    """A query that was started, and what is known of it."""

    graph: SinkGraph
    query: StreamingQuery
    again: Callable[[], StreamingQuery]
    """Starts the query anew, from its checkpoint."""
    restart: Restart = field(default_factory=Restart)
    clock: Callable[[], float] = time.time
    sinks: list[SinkProgress] = field(default_factory=list)
    failed: int = 0
    """How often it failed since its last batch."""
    due: float | None = None
    """When it starts again, if it failed."""
    refusal: PipelineFailed | None = None
    """Why it could not be started again."""
    is_starting: bool = True
    """Whether it has reported nothing since it was started."""
    is_over: bool = False
    """Whether it has ended for good, as of the last look: it may end, or fail, between one question and the next."""
    final: BaseException | None = None
    """The failure that ended it for good."""
    seen: set[tuple[str, int]] = field(default_factory=set)
    positions: list[Offsets] = field(default_factory=list)
    """Up to where its sources have read."""

    def __post_init__(self) -> None:
        self.sinks = self.sinks or [SinkProgress(sink=sink.name) for sink in self.graph.sinks]

    def look(self, outage: Outage | None = None) -> None:
        """Take in what happened since the last look, and decide what is to become of it."""
        self._take_in_reports()
        if self.due is not None or self.is_over:
            return
        if self.refusal is None and self.query.isActive:
            if outage is not None and outage.must_rest:
                self._rest(outage)
            else:
                self._reached(outage)
        elif (failure := self.refusal or self.query.exception()) is not None:
            self._failed(failure)
        else:
            self.is_over = True
            self.sinks = [sink.now("stopped") for sink in self.sinks]

    def _take_in_reports(self) -> None:
        last = self.query.lastProgress
        for report in self._new(json.loads(last.json)) if last is not None else ():
            self.sinks = [sink.after(report) for sink in self.sinks]
            self.positions = positions_of(report)
            self.failed = 0
            self.is_starting = False

    def ended(self) -> list[SinkProgress]:
        """Where the sinks stand when the query has been stopped."""
        self._take_in_reports()
        return [sink.now("stopped") for sink in self.sinks]

    def measure(self, ends: Mapping[TopicPartition, int]) -> None:
        """Take in where the topics end now, while it runs: Spark's reports tell where they ended when a batch began."""
        if self.query.isActive and self.positions and all(ends.keys() >= one.keys() for one in self.positions):
            lag = sum(behind(one, {where: ends[where] for where in one}) for one in self.positions)
            self.sinks = [sink.behind_by(lag) if sink.state == "running" else sink for sink in self.sinks]

    def start_if_due(self, outage: Outage | None) -> None:
        """Start it where it stopped, if it is time for that and the brokers are there."""
        if self.due is None or self.clock() < self.due or outage is not None:
            return
        self.due = self.refusal = None
        self.is_starting = True
        self.sinks = [_restarted(sink) for sink in self.sinks]
        try:
            self.query = self.again()
        except PipelineFailed as error:
            self.refusal = error

    def _failed(self, failure: BaseException) -> None:
        self.failed += 1
        now = self.clock()
        delay = delay_before(self.restart, failure, self.failed)
        if delay is None:
            self.is_over, self.final = True, failure
            self.sinks = [sink.now("failed") for sink in self.sinks]
        else:
            self.due = now + delay
            self.sinks = [sink.to_restart(cause_of(failure), now) for sink in self.sinks]

    def _rest(self, outage: Outage) -> None:
        """Stop at once, to start again from the checkpoint when the outage is over."""
        self.query.stop()
        self.due = self.clock()
        self.sinks = [sink.to_restart(outage.message, outage.since) for sink in self.sinks]

    def _reached(self, outage: Outage | None) -> None:
        for number, sink in enumerate(self.sinks):
            if outage is not None:
                self.sinks[number] = sink.cut_off(outage)
            elif sink.state == "unreachable":
                self.sinks[number] = sink.now("starting" if self.is_starting else "running")

    def _new(self, last: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Reports not seen before. Mostly the last is all there is, and asking for all of them is dear."""
        if not self._is_new(last):
            return []
        missed = self._batch is None or last["batchId"] > self._batch + 1
        recent = [json.loads(one.json) for one in self.query.recentProgress] if missed else [last]
        reports = [one for one in recent if self._is_new(one)]
        self.seen = {(one["timestamp"], one["batchId"]) for one in reports[-1:]}
        return reports

    def _is_new(self, report: Mapping[str, Any]) -> bool:
        batch = self._batch
        if batch is None or report["batchId"] > batch:
            return True
        return report["batchId"] == batch and (report["timestamp"], batch) not in self.seen

    @property
    def _batch(self) -> int | None:
        return self.sinks[0].batch


def _restarted(sink: SinkProgress) -> SinkProgress:
    return replace(sink.now("starting"), restarts=sink.restarts + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetting:
    """What all queries of a run share. `trigger` takes the place of those declared, if it is given."""

    spark: Any
    declaration: Declaration
    paths: PipelinePaths
    bootstrap: str
    is_connect: bool = False
    trigger: Trigger | None = None
    restart: Restart = field(default_factory=Restart)


def start(built: BuiltGraph, setting: RunSetting) -> Running:
    """Start a query and wait until it knows its sources; PipelineFailed says why it cannot be.

    Spark gives a Python process of a source ten seconds to answer. A busy machine may take longer, so queries start
    one after the other.
    """

    def again() -> StreamingQuery:
        return _start(built, setting)

    running = Running(built.graph, again(), again, setting.restart)
    _settle(running.query)
    return running


def _start(built: BuiltGraph, setting: RunSetting) -> StreamingQuery:
    graph = built.graph
    try:
        built.show_tables()
        checkpoint = setting.paths.checkpoint_of(graph.name)
        if not setting.is_connect:
            for outlet in outlets_of(built, setting.declaration, setting.bootstrap):
                if isinstance(outlet.output, ToFiles):
                    require_own_files(setting.spark, outlet.output.path, checkpoint)
        writer = writer_for(built, setting.declaration, setting.bootstrap, checkpoint)
        writer = writer.queryName(graph.name).outputMode(graph.mode).option("checkpointLocation", checkpoint)
        query: StreamingQuery = _triggered(
            writer, setting.trigger or graph.trigger or setting.declaration.trigger
        ).start()
    except Exception as error:
        raise PipelineFailed(f"{graph.position}: {graph.title}: {cause_of(error)}") from error
    return query


def _settle(query: StreamingQuery) -> None:
    """Wait until a new query has its sources or has failed."""
    while query.isActive and query.status["message"].startswith(_STARTING):
        time.sleep(0.05)


def _triggered(writer: Any, trigger: Trigger) -> Any:
    if trigger.available_now:
        return writer.trigger(availableNow=True)
    return writer if trigger.interval is None else writer.trigger(processingTime=trigger.interval)


def watch(
    queries: Sequence[Running],
    stop: threading.Event,
    report: Report,
    poll: float = POLL_SECONDS,
    brokers: Brokers | None = None,
    lease: HeldLease | None = None,
) -> None:
    """Return when a stop is asked for or every query has ended; PipelineFailed as soon as one has failed for good, or
    another runner has taken over.
    """
    brokers = brokers or UnknownBrokers()
    while True:
        if lease is not None:
            lease.require()
        away = brokers.outage if lease is None else lease.outage or brokers.outage
        for one in queries:
            one.look(away)
            one.measure(brokers.ends)
        brokers.follow(where for one in queries for offsets in one.positions for where in offsets)
        report([sink for one in queries for sink in one.sinks])
        if lease is not None and any(one.final is not None for one in queries):
            lease.explain()
        _raise_failure(queries)
        if stop.is_set() or all(one.is_over for one in queries):
            return
        for one in queries:
            one.start_if_due(away)
        if stop.wait(poll):
            return


def _raise_failure(queries: Sequence[Running]) -> None:
    for one in queries:
        failure = one.final
        if failure is not None:
            tries = f" (started again {one.failed - 1} times)" if one.failed > 1 else ""
            raise PipelineFailed(f"{one.graph.title} failed: {cause_of(failure)}{tries}") from failure


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


def _between_batches(query: StreamingQuery, batch: int) -> bool:
    return not query.isActive or not query.status["isTriggerActive"] or _batch(query) > batch


def _batch(query: StreamingQuery) -> int:
    last = query.lastProgress
    return -1 if last is None else int(last.batchId)


def _stop(one: Running) -> None:
    """Stop a query; what it has done until then is counted."""
    try:
        one.query.stop()
    except Exception as error:
        raise PipelineFailed(f"{one.graph.title}: the query does not stop: {cause_of(error)}") from error
    one.due = None


def passes_by_itself(failure: BaseException) -> bool:
    """Whether nothing is wrong with the query: the cluster was away, the machine too busy, or a worker was killed."""
    told = [failure, failure.__cause__] if failure.__cause__ is not None else [failure]
    return any(is_unreachable(one) or any(words in str(one) for words in (*_TOO_SLOW, _CRASHED)) for one in told)


def delay_before(restart: Restart, failure: BaseException, failed: int) -> float | None:
    """The seconds until a query starts again that failed `failed` times since its last batch, or None: never."""
    if restart.attempts is not None and failed > restart.attempts:
        return None
    if restart.on != "any" and not passes_by_itself(failure):
        return None
    return float(min(restart.delay * 2.0 ** min(failed - 1, 30), restart.max_delay))
