"""A pipeline from its declaration to its end."""

import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.model import UnknownTopic
from headrace.client.errors import ClientError
from headrace.client.probe import require_listener

from ..sink.task import require_topic_to_write
from ..source.options import Topics
from .building import BOOTSTRAP, BuiltGraph, Problem, build
from .document import InvalidPipeline
from .file_sink import names_in
from .functions import modules_beside
from .history import note_queries, require_same_queries
from .lease import Lease, Leases, held_lease, is_lease_needed
from .model import Declaration, Restart, Trigger
from .paths import PipelinePaths, only_runner, paths_of
from .progress import SinkProgress
from .queries import SinkGraph, graphs_of
from .reach import PATIENCE, clients_of, reach_of
from .running import Running, RunSetting, start, stop_all, watch
from .session import SparkTarget, open_session
from .vocabulary import parsed_source

GRACE_SECONDS: Final = 30.0
_ONCE: Final = Restart(attempts=3)
"""How often a run that is to end starts a query again, unless the file says otherwise."""


class RunView(Protocol):
    """Who is told how a run goes."""

    def phase(self, words: str) -> None:
        """Something that takes seconds begins."""

    def started(self, declaration: Declaration, paths: PipelinePaths, spark: SparkTarget) -> None:
        """Every query runs."""

    def progress(self, sinks: Sequence[SinkProgress]) -> None:
        """Where each sink stands now; called about twice a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedLease:
    """A lease that a run holds under a name, wherever its checkpoint is; `client` are the settings of the cluster that
    keeps it. `dead` are runners that are known to have ended, by their ids."""

    name: str
    runner_id: str
    client: Mapping[str, str]
    dead: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the caller of a run may choose."""

    bootstrap: str
    spark: SparkTarget = field(default_factory=SparkTarget)
    checkpoint: str | None = None
    lease: NamedLease | None = None
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


def run(declaration: Declaration, options: RunOptions, view: RunView) -> list[SinkProgress]:
    """Run until a stop is asked for or nothing is left to do; the last progress of each sink.

    InvalidPipeline tells what Spark does not take of it. PipelineFailed tells why it could not start, or which sinks
    failed and why; then all of them are stopped.
    ClientError tells that the brokers, or a topic to read, are not there.
    """

    def work(spark: Any, paths: PipelinePaths, lease: Leases | None) -> list[SinkProgress]:
        return run_with(spark, declaration, paths, options, view, lease)

    return in_session(declaration, options, view, work)


def in_session(
    declaration: Declaration,
    options: RunOptions,
    view: RunView,
    work: Callable[[Any, PipelinePaths, Leases | None], list[SinkProgress]],
) -> list[SinkProgress]:
    """Have `work` done in a session of Spark, as the only runner of the pipeline; nothing if a stop is asked for."""
    paths = paths_of(declaration, options.checkpoint)
    if not options.spark.is_connect:
        # Behind Spark Connect it is the server that must reach the brokers, which may be out of reach from here.
        _require_topics(declaration, options.bootstrap)
    with only_runner(paths) as lock, ExitStack() as stack:
        held = [_named_lease(options, view, stack), _lease(declaration, paths, options, view, stack)]
        leases = [one for one in held if one is not None]
        lease = Leases(leases) if leases else None
        view.phase(f"starting Spark ({options.spark})")
        options.take_signals()
        with open_session(options.spark, declaration.name, declaration.spark, paths.log, lock) as spark:
            options.take_signals()
            return [] if options.stop.is_set() else work(spark, paths, lease)


def _named_lease(options: RunOptions, view: RunView, stack: ExitStack) -> Lease | None:
    asked = options.lease
    if asked is None:
        return None
    cluster = stack.enter_context(Cluster({**asked.client, **PATIENCE}))
    return stack.enter_context(
        held_lease(
            cluster,
            asked.name,
            lambda holder: view.phase(f"waiting whether {holder} still runs"),
            asked.runner_id,
            asked.dead,
        )
    )


def _lease(
    declaration: Declaration, paths: PipelinePaths, options: RunOptions, view: RunView, stack: ExitStack
) -> Lease | None:
    """The lease of a checkpoint that other hosts can reach, held until `stack` ends, if a broker can keep it.

    Behind Spark Connect brokers may be out of reach from here; then sinks that are exactly once guard themselves.
    """
    clients, named = clients_of(declaration, options.bootstrap), options.lease
    if not clients or not is_lease_needed(paths, options.spark):
        return None
    cluster = stack.enter_context(Cluster({**clients[0], **PATIENCE}))
    try:
        return stack.enter_context(
            held_lease(
                cluster,
                paths.checkpoints,
                lambda holder: view.phase(f"waiting whether {holder} still runs"),
                named.runner_id if named is not None else None,
                named.dead if named is not None else (),
            )
        )
    except ClientError as error:
        if not options.spark.is_connect:
            raise
        view.phase(f"starting without a lease of the checkpoint, nothing stops a second runner: {error.message}")
        return None


def run_with(
    spark: Any,
    declaration: Declaration,
    paths: PipelinePaths,
    options: RunOptions,
    view: RunView,
    lease: Leases | None = None,
) -> list[SinkProgress]:
    """The same in a session that is there already."""
    is_connect = options.spark.is_connect
    graphs = graphs_of(declaration, files_apart=is_connect)
    require_same_queries(paths, graphs, None if is_connect else _started(spark, paths))
    ship_functions(declaration)
    view.phase("preparing the queries")
    built = build_all(spark, declaration, graphs, options.bootstrap)
    setting = RunSetting(
        spark=spark,
        declaration=declaration,
        paths=paths,
        bootstrap=options.bootstrap,
        is_connect=is_connect,
        trigger=options.trigger,
        restart=declaration.restart or (_ONCE if options.once else Restart()),
    )
    queries: list[Running] = []
    with ExitStack() as stack:
        stack.callback(lambda: stop_all(queries, options.grace if lease is None or lease.is_held else 0.0))
        for one in built:
            if options.stop.is_set():
                break
            if lease is not None:
                lease.require()
            # One at a time, so that those started before a failure are known and stopped.
            queries.append(start(one, setting))
        note_queries(paths, graphs[: len(queries)])
        if not options.stop.is_set():
            view.started(declaration, paths, options.spark)
        reach = None if is_connect else reach_of(declaration, options.bootstrap, stack)
        watch(queries, options.stop, view.progress, brokers=reach, lease=lease)
        if options.stop.is_set():
            view.phase("stopping when the current batches are done")
    return in_order_of(declaration, [sink for query in queries for sink in query.ended()])


def _started(spark: Any, paths: PipelinePaths) -> list[str]:
    """The queries that have ever run a batch with these checkpoints."""
    return [
        name for name in names_in(spark, paths.checkpoints) if names_in(spark, f"{paths.checkpoint_of(name)}/offsets")
    ]


def in_order_of(declaration: Declaration, sinks: Sequence[SinkProgress]) -> list[SinkProgress]:
    """The progress of sinks in the order in which they are declared."""
    order = [sink.name for sink in declaration.sinks]
    return sorted(sinks, key=lambda one: order.index(one.sink))


def build_all(
    spark: Any, declaration: Declaration, graphs: Sequence[SinkGraph], bootstrap: str, known: Sequence[Problem] = ()
) -> list[BuiltGraph]:
    """The queries; InvalidPipeline with all that Spark has against them, beside what is `known` already."""
    built = [build(spark, declaration, graph, bootstrap) for graph in graphs]
    found = [*known, *(problem for one in built for problem in one.problems)]
    found.sort(key=lambda one: (one[0].file, one[0].line))
    if found:
        raise InvalidPipeline(dict.fromkeys(f"{position}: {words}" for position, words, _ in found)) from found[0][2]
    return built


def ship_functions(declaration: Declaration) -> None:
    """Let the code beside the file travel to Spark's workers with the functions that use it."""
    from pyspark.cloudpickle import register_pickle_by_value

    for module in modules_beside(declaration.directory):
        if module.__name__ != "__main__":
            register_pickle_by_value(module)


def plan(declaration: Declaration, bootstrap: str, target: SparkTarget, phase: Callable[[str], None]) -> dict[str, str]:
    """What Spark makes of the pipeline without running it: the columns of each table.

    InvalidPipeline has every mistake that Spark finds, and every topic to read that is not there; `phase` is told what
    takes seconds, and what could not be looked at.
    """
    absent = [] if target.is_connect else _absent_topics(declaration, bootstrap, phase)
    with tempfile.TemporaryDirectory(prefix="headrace-plan-") as directory:
        log = Path(directory) / "spark.log"
        phase(f"starting Spark ({target})")
        with open_session(target, declaration.name, declaration.spark, log) as spark:
            ship_functions(declaration)
            phase("preparing the queries")
            built = build_all(spark, declaration, graphs_of(declaration), bootstrap, absent)
            return {name: _columns(table) for one in built for name, table in one.tables.items()}


def _absent_topics(declaration: Declaration, bootstrap: str, phase: Callable[[str], None]) -> list[Problem]:
    """Each source whose topics are not all there, found without making any."""
    absent: list[Problem] = []
    for source in declaration.sources:
        try:
            _require({BOOTSTRAP: bootstrap, **source.options}, dead_letters="")
        except UnknownTopic as error:
            absent.append((source.position, f"source '{source.name}': {error.message}", error))
        except ClientError as error:
            phase(f"whether the topics are there is not checked: {error.message}")
            return []
    return absent


def _columns(table: Any) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in table.schema.fields)


def _require_topics(declaration: Declaration, bootstrap: str) -> None:
    """Return if each topic that is read by name, or that dead letters go to, exists; asked before Spark starts, which
    takes seconds and hides the answer in its own.

    ClusterUnreachable or UnknownTopic if not: a dead letter topic that is found missing only by the first
    bad record would stop a pipeline in the middle of the night.
    """
    for source in declaration.sources:
        _require({BOOTSTRAP: bootstrap, **source.options}, source.dead_letter_topic)
    aside = dict.fromkeys(rule.topic for table in declaration.tables for rule in table.expect if rule.topic)
    if aside:
        client = next(iter(clients_of(declaration, bootstrap)), {"bootstrap.servers": bootstrap})
        require_listener(client["bootstrap.servers"])
        with Cluster(client) as cluster:
            for topic in aside:
                require_topic_to_write(cluster, topic)


def _require(options: Mapping[str, str], dead_letters: str) -> None:
    require_listener(options[BOOTSTRAP])
    parsed = parsed_source(options)
    with Cluster(parsed.client) as cluster:
        if isinstance(parsed.subscription, Topics):
            cluster.partitions(parsed.subscription.names)
        if dead_letters:
            require_topic_to_write(cluster, dead_letters)
