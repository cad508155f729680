"""A task's part of a write, on an executor: Arrow batches in, records out.

Worker processes live on from task to task, and with them what is expensive to have anew: connections, the producer id
of plain writes, and what the journal said at the start of a run.
"""

import itertools
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
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

from .sink_commit import Decision, Duty, Prepared, Report, duty, suffix_of, transactional_id
from .sink_journal import TopicJournal
from .sink_options import SinkOptions
from .sink_slots import slots_of

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_RUN: Final = "spark.jobGroup.id"
"""Local properties of a task; a stream has the id of its run as the group of its jobs."""
_UNFINISHED: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")


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
    slot: str | None = None
    """What tells its transactional id from those of all other attempts; None where it is to have one for a while."""
    was_retried: bool = False

    def report(self, prepared: Prepared | None = None, *, found_decided: bool = False) -> Report:
        return Report(self.query, self.run, self.batch, prepared, found_decided, self.was_retried)


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
    return replace(_of_stream(context, query, job, batch), slot=str(context.taskAttemptId()))


def _of_stream(context: TaskContext, query: str, run: str, batch: int) -> Task:
    return Task(
        query=query,
        run=run,
        batch=batch,
        partition=context.partitionId(),
        was_retried=context.attemptNumber() > 0,
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
    with _slot(target.cluster(), task) as slot:
        return _write_under(slot, target, task, itertools.chain([first], remaining))


def _slot(cluster: Cluster, task: Task) -> AbstractContextManager[str]:
    """What tells the attempt's transactional id from others, for as long as it writes."""
    if task.slot is not None:
        return nullcontext(task.slot)

    def are_free(slots: Collection[str]) -> list[str]:
        names = {transactional_id(task.query, task.run, suffix_of(slot, task.batch)): slot for slot in slots}
        found = describe_transactions(cluster, names)
        return [names[name] for name, one in found.items() if one is None or one.state not in _UNFINISHED]

    return slots_of(task.query, task.run).lease(are_free)


def _write_under(slot: str, target: Target, task: Task, batches: Iterable[pa.RecordBatch]) -> Report:
    suffix = suffix_of(slot, task.batch)
    writer = Writer(target.cluster(), transactional_id=transactional_id(task.query, task.run, suffix))
    writer.begin()
    try:
        for rows in batches:
            writer.write(rows, target.options.topic)
        done = writer.prepare()
    except ClusterUnreachable:
        raise  # Nobody is there to abort it: the cluster does, or the driver.
    except BaseException:
        with suppress(ClientError):
            writer.close()
        raise
    return task.report(Prepared(task.run, task.partition, suffix, done.producer_id, done.epoch))


def write_unless_decided(target: Target, task: Task, batches: Iterable[pa.RecordBatch]) -> Report:
    """The same, but for a batch that was decided, by an earlier run of the query or without this attempt."""
    if duty(_last_decision(target, task), task.batch) is Duty.WRITE:
        return write_in_transaction(target, task, batches)
    for _ in batches:
        pass  # Spark ends a worker that leaves rows unread.
    return task.report(found_decided=True)


def _last_decision(target: Target, task: Task) -> Decision | None:
    where = (target.cluster(), target.options.decisions_topic, task.query)
    if where not in _journals:
        _journals[where] = TopicJournal(*where)
    return _journals[where].look()[1]


_journals: dict[tuple[Cluster, str, str], TopicJournal] = {}
"""Read so far by earlier tasks: a batch that is written to two clusters may be decided in one of them only."""


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
