"""`df.write.format("headrace")` and `df.writeStream.format("headrace")`: rows of Arrow batches to topics.

Tasks write, the driver commits. With delivery exactly-once each attempt of a task writes in a transaction that it
leaves open, and `commit` tells how the driver makes a batch visible. With at-least-once a task's rows are there
when the task is done, once for each attempt of it that wrote them.
"""

import logging
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from headrace.client.columnar.cluster import Cluster, shared_cluster
from headrace.client.columnar.prepared import lack_of_transactions
from headrace.config.setting import ConfigError
from headrace.formats.writing import ValueEncoder, encoder_for

from ..errors import with_query_errors
from ..types import from_spark
from .columns import written_columns
from .commit import PREFIX, Report
from .driver import SinkDriver
from .journal import JobJournal, TopicJournal, require_journal
from .options import Delivery, SinkOptions, parse_sink_options
from .task import (
    SinkTarget,
    require_topic_to_write,
    task_of_job,
    task_of_series,
    task_of_stream,
    write_in_transactions,
    write_unless_decided,
    write_without_transaction,
)
from .upkeep import JOB_SECONDS, Upkeep

log = logging.getLogger(__name__)

_APPS: Final = uuid.UUID("5d0c2f0e-9e0f-4b55-8c3e-0b6e5f6f3a4d")
"""The namespace of names given with txnAppId."""
_QUERY_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class SinkMessage(WriterCommitMessage):
    """What a task tells the driver; `report` is None where there is nothing to commit."""

    report: Report | None = None


Messages = Sequence[WriterCommitMessage | None]


def make_writer(options: Mapping[str, str], schema: Any, overwrite: bool) -> "SinkWriter":
    """The writer of a batch; `ConfigError` or `ClientError` for what cannot be written so."""
    if overwrite:
        raise ConfigError('a topic cannot be overwritten: use mode("append"), or delete its records first')
    target = _target(options, schema)
    if target.is_exactly_once and target.options.version is not None:
        require_journal(target.cluster(), target.options.decisions_topic)
    return SinkWriter(target, uuid.uuid4().hex)


def make_stream_writer(options: Mapping[str, str], schema: Any, overwrite: bool) -> "SinkStreamWriter":
    """The writer of a stream. In every output mode the rows of a batch are appended, as by Spark's Kafka sink."""
    del overwrite
    target = _target(options, schema)
    if target.options.version is not None:
        raise ConfigError("options txnAppId and txnVersion are for batch writes; a stream knows its batches by itself")
    if target.is_exactly_once:
        require_journal(target.cluster(), target.options.decisions_topic)
    return SinkStreamWriter(target)


class SinkWriter(DataSourceArrowWriter):
    """Writes a batch; `job` is a name that no other job has.

    With options txnAppId and txnVersion it is one of a series, each of which is written once: what a stream's batches
    are to its query.
    """

    def __init__(self, target: SinkTarget, job: str) -> None:
        self._target = target
        self._job = job

    @with_query_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkMessage:
        """Write the rows of one task."""
        if not self._target.is_exactly_once:
            write_without_transaction(self._target, iterator)
            return SinkMessage()
        if self._target.options.version is None:
            return SinkMessage(write_in_transactions(self._target, task_of_job(self._job), iterator))
        task = task_of_series(self._series, self._number, self._job)
        return SinkMessage(write_unless_decided(self._target, task, iterator))

    @with_query_errors
    def commit(self, messages: Messages) -> None:
        """Make the rows visible."""
        _warn_of_weakness(self._target)
        if self._target.is_exactly_once:
            driver, rewrite_torn = self._driver(), self._target.options.rewrite_torn
            driver.commit(self._number, self._reports(messages), rewrite_torn=rewrite_torn)
            _upkeep.begin(driver, JOB_SECONDS)

    @with_query_errors
    def abort(self, messages: Messages) -> None:
        """Undo what can be undone."""
        if self._target.is_exactly_once:
            self._driver().abort(self._reports(messages))

    @property
    def _series(self) -> str:
        """No id is the beginning of another."""
        version = self._target.options.version
        return self._job if version is None else _series_of(version.app_id)

    @property
    def _number(self) -> int:
        version = self._target.options.version
        return 0 if version is None else version.version

    def _driver(self) -> SinkDriver:
        if self._target.options.version is not None:
            return _driver_of(self._target, self._series)
        return SinkDriver(self._target.cluster(), self._series, JobJournal(self._job))

    def _reports(self, messages: Messages) -> list[Report]:
        """At least one, so that the job is known by it even where no task came to its end."""
        return _reports(messages) or [Report(self._series, self._job, self._number)]


def _series_of(app_id: str) -> str:
    """What a series is called in the journal. One under the id of a query is that query: a pipeline writes its batches
    as a stream or, where it has dead letters or mode update by now, one by one, and a batch that was cut off comes
    again.
    """
    return app_id if _QUERY_ID.fullmatch(app_id) else uuid.uuid5(_APPS, app_id).hex


class SinkStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream."""

    def __init__(self, target: SinkTarget) -> None:
        self._target = target

    @with_query_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkMessage:
        """Write the rows of one task of a batch."""
        if not self._target.is_exactly_once:
            write_without_transaction(self._target, iterator)
            return SinkMessage()
        return SinkMessage(write_unless_decided(self._target, task_of_stream(), iterator))

    @with_query_errors
    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        """Make the rows of a batch visible."""
        _warn_of_weakness(self._target)
        reports = _reports(messages)
        if reports:
            _remember(self._target, reports[0])
            driver = _driver_of(self._target, reports[0].query)
            driver.commit(batchId, reports, rewrite_torn=self._target.options.rewrite_torn)
            _upkeep.begin(driver)

    @with_query_errors
    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        """Undo what is not decided. A query that is stopped before one task came to its end is known by an earlier
        batch, if at all; what nobody undoes, the next run does.
        """
        del batchId
        reports = _reports(messages) or _remembered(self._target)
        if reports:
            _driver_of(self._target, reports[0].query).abort(reports)


def _reports(messages: Messages) -> list[Report]:
    return [one.report for one in messages if isinstance(one, SinkMessage) and one.report is not None]


def _remember(target: SinkTarget, report: Report) -> None:
    if target.options.checkpoint is not None:
        _latest[target.options.checkpoint] = report._replace(parts=())


def _remembered(target: SinkTarget) -> list[Report]:
    latest = _latest.get(target.options.checkpoint or "")
    return [] if latest is None else [latest]


_latest: dict[str, Report] = {}
"""The query and run of the last batch that this process committed, by checkpoint."""


def _target(options: Mapping[str, str], schema: Any) -> SinkTarget:
    parsed = parse_sink_options(options)
    columns = written_columns(schema, parsed.topic, is_encoded=parsed.encoding is not None)
    cluster = shared_cluster(parsed.client)
    if parsed.topic is not None:
        require_topic_to_write(cluster, parsed.topic)
    weakness = _weakness(cluster, parsed)
    return SinkTarget(
        options=parsed, columns=tuple(columns), weakness=weakness, encoder=_encoder(cluster, parsed, schema)
    )


def _encoder(cluster: Cluster, options: SinkOptions, schema: Any) -> ValueEncoder | None:
    if options.encoding is None:
        return None
    if options.encoding.dead_letter_topic:
        require_topic_to_write(cluster, options.encoding.dead_letter_topic)
    return encoder_for(options.encoding, from_spark(schema["value"].dataType))


def _weakness(cluster: Cluster, options: SinkOptions) -> str | None:
    """Why the sink writes at least once only; None where it writes exactly once."""
    if options.delivery is Delivery.AT_LEAST_ONCE:
        return "option delivery says so"
    weakness = options.weakness
    if weakness is None:
        if cluster not in _lacks:
            _lacks[cluster] = lack_of_transactions(cluster, f"{PREFIX}-probe")
        weakness = _lacks[cluster]
    if weakness is not None and options.delivery is Delivery.EXACTLY_ONCE:
        raise ConfigError(
            f"option delivery=exactly-once cannot be kept: {weakness}. With auto or at-least-once the sink writes, and "
            "a row may be there twice after a failure"
        )
    return weakness


_lacks: dict[Cluster, str | None] = {}
"""What clusters lack, asked once in a process."""


def _warn_of_weakness(target: SinkTarget) -> None:
    """One line in the log of a process."""
    if target.weakness is not None and target.options.delivery is Delivery.AUTO and target.weakness not in _warned:
        _warned.add(target.weakness)
        log.warning("writing at least once, so a row may be there twice after a failure: %s", target.weakness)


_warned: set[str] = set()


def _driver_of(target: SinkTarget, query: str) -> SinkDriver:
    """The driver of a query in this process, which has the journal from one batch to the next."""
    key = (target.cluster(), target.options.decisions_topic, query)
    driver = _drivers.get(key)
    if driver is None:
        journal = TopicJournal(target.cluster(), target.options.decisions_topic, query)
        driver = _drivers[key] = SinkDriver(target.cluster(), query, journal)
    return driver


_upkeep: Final = Upkeep()
_drivers: dict[tuple[Cluster, str, str], SinkDriver] = {}
