"""A task's part of a write, on an executor: Arrow batches in, records out.

Worker processes live on from task to task, and with them what is expensive to have anew: connections, the producer id
of plain writes, and what the journal said at the start of a run.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyarrow import compute
from pyspark import TaskContext

from headrace.client.columnar.administration import require_topic
from headrace.client.columnar.cluster import Cluster, shared_cluster
from headrace.client.columnar.model import UnknownTopic
from headrace.client.columnar.prepared import describe_transactions
from headrace.client.columnar.writer import Writer
from headrace.client.errors import ClientError, ClusterUnreachable

from .sink_commit import Decision, Duty, Prepared, Report, duty, transactional_id
from .sink_journal import TopicJournal
from .sink_options import SinkOptions

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_RUN: Final = "spark.jobGroup.id"
"""Local properties of a task; a stream has the id of its run as the group of its jobs."""
_ONGOING: Final = "Ongoing"
_STAGE: Final = 1000
"""More than the attempts that Spark makes at a task before it gives a stage up."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where and how to write, as the driver found it to be."""

    options: SinkOptions
    columns: tuple[str, ...]
    weakness: str | None
    """Why rows are written at least once only; None where they are written exactly once."""

    @property
    def is_exactly_once(self) -> bool:
        return self.weakness is None

    def cluster(self) -> Cluster:
        """The cluster, as this process knows it."""
        return shared_cluster(self.options.client)


@dataclass(frozen=True, kw_only=True)
class Task:
    """Which attempt of which task of which batch this is."""

    query: str
    run: str
    batch: int
    partition: int
    attempt: int
    """What tells its transactional id from those of the task's other attempts."""
    shares_ids: bool = False
    """Whether other batches, and attempts that Spark numbers alike, have the same id."""

    @property
    def transactional_id(self) -> str:
        return transactional_id(self.query, self.run, self.partition, self.attempt)

    def report(self, prepared: Prepared | None = None, *, found_decided: bool = False) -> Report:
        return Report(self.query, self.run, self.batch, prepared, found_decided)


def task_of_job(job: str) -> Task:
    """The task that runs here, of a batch job that stands for itself."""
    return _of_one_job(_context(), job, 0, job)


def task_of_series(series: str, number: int, job: str) -> Task:
    """The task that runs here, of a batch job that is one of a series.

    Inside of a stream its run is the stream's: transactional ids are used again from one batch to the next.
    """
    context = _context()
    run = context.getLocalProperty(_RUN) if context.getLocalProperty(_QUERY) is not None else None
    return _of_one_job(context, series, number, job) if run is None else _of_stream(context, series, run, number)


def task_of_stream() -> Task:
    """The task that runs here, of a streaming query."""
    context = _context()
    query, run, batch = (context.getLocalProperty(name) for name in (_QUERY, _RUN, _BATCH))
    if query is None or run is None or batch is None:
        raise ClientError(
            "Spark does not say which batch of which query this task belongs to, so it cannot be written exactly once; "
            "use delivery=at-least-once"
        )
    return _of_stream(context, query, run, int(batch))


def _of_one_job(context: TaskContext, query: str, batch: int, job: str) -> Task:
    """Not with the number of the attempt, which starts anew when Spark runs a stage again beside what is left of it."""
    return Task(query=query, run=job, batch=batch, partition=context.partitionId(), attempt=context.taskAttemptId())


def _of_stream(context: TaskContext, query: str, run: str, batch: int) -> Task:
    return Task(
        query=query,
        run=run,
        batch=batch,
        partition=context.partitionId(),
        attempt=context.attemptNumber(),
        shares_ids=True,
    )


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise ClientError("the sink writes in tasks of Spark only")
    return context


def write_plainly(target: Target, batches: Iterable[pa.RecordBatch]) -> None:
    """Write all rows; they are acknowledged when this returns."""
    cluster = target.cluster()
    writer = _idle_writers.pop(cluster, None) or Writer(cluster)
    with ExitStack() as on_failure:
        on_failure.enter_context(writer)
        for rows in _rows(target, batches):
            writer.write(rows, target.options.topic)
        writer.flush()
        on_failure.pop_all()
    _idle_writers[cluster] = writer


_idle_writers: dict[Cluster, Writer] = {}
"""Kept for the next task: a producer id for each would be remembered by brokers for a day. One that failed is not."""


def write_in_transaction(target: Target, task: Task, batches: Iterable[pa.RecordBatch]) -> Report:
    """Write all rows in a transaction of this attempt, and leave it open for the driver to end."""
    remaining = _rows(target, batches)
    first = next(remaining, None)
    if first is None:
        return task.report()
    task = _with_free_id(target.cluster(), task)
    writer = Writer(target.cluster(), transactional_id=task.transactional_id)
    writer.begin()
    try:
        writer.write(first, target.options.topic)
        for rows in remaining:
            writer.write(rows, target.options.topic)
        done = writer.prepare()
    except ClusterUnreachable:
        raise  # Nobody is there to abort it: the cluster does, or the driver.
    except BaseException:
        with suppress(ClientError):
            writer.close()
        raise
    return task.report(Prepared(task.run, task.partition, task.attempt, done.producer_id, done.epoch))


def _with_free_id(cluster: Cluster, task: Task) -> Task:
    """The task with an attempt's number under which no transaction is open.

    When Spark runs a stage again (shuffle files were lost), it counts attempts from 0, while attempts of the first run
    go on and may be the first to report. To begin under the id of such a one would abort what it has written, in the
    worst case after the driver has decided to commit it. One that has written nothing yet can be fenced: it fails.
    """
    while task.shares_ids:
        found = describe_transactions(cluster, [task.transactional_id])[task.transactional_id]
        if found is None or found.state != _ONGOING:
            break
        task = replace(task, attempt=task.attempt + _STAGE)
    return task


def write_unless_decided(target: Target, task: Task, batches: Iterable[pa.RecordBatch]) -> Report:
    """The same, but for a batch that an earlier run of the query decided: its rows are in the topic."""
    if duty(_decision_at_start(target, task), task.batch) is Duty.WRITE:
        return write_in_transaction(target, task, batches)
    for _ in batches:
        pass  # Spark ends a worker that leaves rows unread.
    return task.report(found_decided=True)


def _decision_at_start(target: Target, task: Task) -> Decision | None:
    """The last decision before this run. Later ones are of batches that its tasks have behind them."""
    where = (target.cluster(), target.options.decisions_topic, task.query)
    known = _decisions.get(where)
    if known is None or known[0] != task.run:
        known = _decisions[where] = (task.run, TopicJournal(*where).look()[1])
    return known[1]


_decisions: dict[tuple[Cluster, str, str], tuple[str, Decision | None]] = {}
"""By journal: a batch that is written to two clusters under one name may be decided in one of them only."""


def _rows(target: Target, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What is to be written of the batches that have rows, their topics being there."""
    known: set[str] = set() if target.options.topic is None else {target.options.topic}
    cluster = target.cluster()
    for batch in batches:
        if not batch.num_rows:
            continue
        if target.options.topic is None:
            named = {name for name in compute.unique(batch.column("topic")).to_pylist() if name is not None}
            for name in named - known:
                require_topic_to_write(cluster, name)
            known |= named
        yield batch.select(target.columns)


def require_topic_to_write(cluster: Cluster, topic: str) -> None:
    """Make sure of a topic; `ClientError` says how to make it where the cluster does not."""
    try:
        require_topic(cluster, topic)
    except UnknownTopic as error:
        raise ClientError(
            f"{error.message}, and the cluster makes none on demand: make it, for example with "
            f"`headrace topic create {topic} --partitions 6`",
            error.code,
        ) from error
