"""A task's part of a write, on an executor: Arrow batches in, records out.

Worker processes live on from task to task, and with them what is expensive to have anew: connections, the producer id
of plain writes, and what the journal said at the start of a run.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyarrow import compute
from pyspark import TaskContext

from headrace.client.columnar.administration import require_topic
from headrace.client.columnar.cluster import Cluster, shared_cluster
from headrace.client.columnar.model import UnknownTopic
from headrace.client.columnar.writer import Writer
from headrace.client.errors import ClientError
from headrace.formats.writing import ValueEncoder

from .commit import CommitDecision, Duty, Part, Report, duty
from .journal import TopicJournal
from .options import SinkOptions
from .parts import PartOrigin, PartsWriter

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_RUN: Final = "spark.jobGroup.id"
"""Local properties of a task; a stream has the id of its run as the group of its jobs."""


@dataclass(frozen=True, kw_only=True)
class SinkTarget:
    """Where and how to write, as the driver found it to be."""

    options: SinkOptions
    columns: tuple[str, ...]
    weakness: str | None
    """Why rows are written at least once only; None where they are written exactly once."""
    encoder: ValueEncoder | None = None
    """What makes bytes of the column value; None where it is bytes or text already."""

    @property
    def is_exactly_once(self) -> bool:
        return self.weakness is None

    @property
    def common_topic(self) -> str | None:
        """The topic of all rows; None where each says its own, since those that cannot be encoded go to another."""
        return None if self.encoder is not None and self.encoder.dead_letter_topic else self.options.topic

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
    reuses_ids: bool = True
    """Whether later batches of the same run use its transactional ids again."""
    was_retried: bool = False

    def report(self, parts: tuple[Part, ...] = (), *, found_decided: bool = False) -> Report:
        return Report(self.query, self.run, self.batch, parts, found_decided, self.was_retried)

    @property
    def origin(self) -> PartOrigin:
        return PartOrigin(self.query, self.run, self.batch, self.partition, self.reuses_ids)


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
    return replace(_of_stream(context, query, job, batch), reuses_ids=False)


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


def write_without_transaction(target: SinkTarget, batches: Iterable[pa.RecordBatch]) -> None:
    """Write all rows; they are acknowledged when this returns."""
    cluster = target.cluster()
    writer = _idle_writers.pop(cluster, None) or Writer(cluster)
    with ExitStack() as on_failure:
        on_failure.enter_context(writer)
        for rows in _rows(target, batches):
            writer.write(rows, target.common_topic)
        writer.flush()
        on_failure.pop_all()
    _idle_writers[cluster] = writer


_idle_writers: dict[Cluster, Writer] = {}
"""Kept for the next task: a producer id for each would be remembered by brokers for a day. One that failed is not."""


def write_in_transactions(target: SinkTarget, task: Task, batches: Iterable[pa.RecordBatch]) -> Report:
    """Write all rows in transactions of this attempt, and leave them open for the driver to end."""
    writer = PartsWriter(target.cluster(), task.origin, target.common_topic)
    return task.report(writer.write_all(_rows(target, batches)))


def write_unless_decided(target: SinkTarget, task: Task, batches: Iterable[pa.RecordBatch]) -> Report:
    """The same, but for a batch that was decided, by an earlier run of the query or without this attempt."""
    if duty(_last_decision(target, task), task.batch) is Duty.WRITE:
        return write_in_transactions(target, task, batches)
    for _ in batches:
        pass  # Spark ends a worker that leaves rows unread.
    return task.report(found_decided=True)


def _last_decision(target: SinkTarget, task: Task) -> CommitDecision | None:
    where = (target.cluster(), target.options.decisions_topic, task.query)
    if where not in _journals:
        _journals[where] = TopicJournal(*where)
    return _journals[where].look()[1]


_journals: dict[tuple[Cluster, str, str], TopicJournal] = {}
"""Read so far by earlier tasks: a batch that is written to two clusters may be decided in one of them only."""


def _rows(target: SinkTarget, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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
        rows = batch.select(target.columns)
        yield from (rows,) if target.encoder is None else _encoded(target.encoder, rows, target.options.topic)


def _encoded(encoder: ValueEncoder, rows: pa.RecordBatch, topic: str | None) -> Iterator[pa.RecordBatch]:
    """The rows with their values in bytes, and letters of those that cannot be encoded, which are written once too."""
    encoded = encoder.encode(rows)
    if not encoder.dead_letter_topic or topic is None:
        yield encoded.rows
    else:
        yield _to(encoded.rows, topic)
    if encoded.letters is not None:
        yield _to(encoded.letters, encoder.dead_letter_topic)


def _to(rows: pa.RecordBatch, topic: str) -> pa.RecordBatch:
    return rows.append_column("topic", pa.repeat(pa.scalar(topic), len(rows)))


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
