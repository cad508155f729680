"""The topics of pipelines that are deployed.

- `__headrace_pipelines`: definitions by name. Whoever may write here has services run code.
- `__headrace_pipeline_status`: what services say of pipelines (`pipeline:NAME`), and of themselves (`service:ID`).
- `__headrace_pipeline_logs`: what pipelines have printed, by name; bounded by size and age.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from typing import Final

import pyarrow as pa

from headrace.client.columnar.administration import TopicNotMade, require_bounded_topic, require_compacted_topic
from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.fenced import Entry
from headrace.client.columnar.model import EARLIEST, LATEST, OffsetsGone, Range, TopicPartition, UnknownTopic
from headrace.client.columnar.reader import read_ranges
from headrace.client.columnar.writer import Writer
from headrace.client.errors import ClientError
from headrace.config.pipelines import DEFINITIONS

from .model import BadRecord, Deployment, ServiceReport, Status, decode_deployment, decode_service, decode_status

STATUSES: Final = "__headrace_pipeline_status"
LOGS: Final = "__headrace_pipeline_logs"
_PIPELINE: Final = b"pipeline:"
_SERVICE: Final = b"service:"
_SEGMENT_BYTES: Final = 4 << 20
_LOG_BYTES: Final = 64 << 20
_LOG_SEGMENT_BYTES: Final = 8 << 20
_IDENTITY_SECONDS: Final = 2.0
"""How long a topic may be another one before that is noticed."""
_LOG_MS: Final = 7 * 86_400_000


class TopicFollower:
    """What comes to the only partition of a topic, from its beginning on."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.cluster = cluster
        self._partition = TopicPartition(topic, 0)
        self.position = EARLIEST
        self._topic_id: bytes | None = None

    def read(self) -> Iterator[Entry | None]:
        """What was not read yet, up to the end as it is now; None where all that was read before no longer counts,
        as the topic was made anew. Nothing of a topic that is not there yet; UnknownTopic of one that was, as brokers
        may not know it for a moment, and nothing that it said is to be forgotten for that.
        """
        try:
            topic_id = self.cluster.describe([self._partition.topic], _IDENTITY_SECONDS)[self._partition.topic].id
            end = self._offset(LATEST)
        except UnknownTopic:
            if self.position > 0:
                raise
            return
        if end < self.position or (self._topic_id is not None and topic_id != self._topic_id):
            yield None
            self.position = EARLIEST
        self._topic_id = topic_id
        if self.position == EARLIEST:
            self.position = self._offset(EARLIEST) if end else EARLIEST
        if end <= max(self.position, 0):
            return
        try:
            yield from self._records(end)
        except OffsetsGone:
            self.position = EARLIEST  # Retention was faster; the next look starts at what is there.
            return
        self.position = end

    def skip_to(self, offset: int) -> None:
        """Read on from here."""
        self.position = offset

    def start_of(self, time_ms: int) -> int:
        """The first offset that is not older than a time; the end where none is."""
        offset = self.cluster.offsets({self._partition: time_ms})[self._partition]
        return self._offset(LATEST) if offset is None or offset < 0 else offset

    def _records(self, end: int) -> Iterator[Entry]:
        for batch in read_ranges(self.cluster, [Range(*self._partition, self.position, end)]):
            columns = [batch.column(name).to_pylist() for name in ("offset", "key", "value")]
            for offset, key, value in zip(*columns, strict=True):
                self.position = offset + 1
                yield Entry(offset, key or b"", value)

    def _offset(self, which: int) -> int:
        return self.cluster.offsets({self._partition: which})[self._partition] or 0


class TopicWriter:
    """Records to the internal topics, each durably before a call returns."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._writer: Writer | None = None

    def put(self, topic: str, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write all of them; ClientError if that is not known to have happened."""
        given = list(records)
        if not given:
            return
        if self._writer is None:
            self._writer = Writer(self._cluster, acks="all", compression="zstd")
        keys, values = zip(*given, strict=True)
        rows = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
        try:
            self._writer.write(pa.table({**rows, "partition": pa.array([0] * len(given), pa.int32())}), topic)
            self._writer.flush()
        except ClientError:
            self.close()
            raise

    def close(self) -> None:
        """Give back what it holds."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(ClientError):
                writer.close()


def require_topics(cluster: Cluster) -> None:
    """Make the topics that are not there; TopicNotMade with what to do where that is refused."""
    for topic in (DEFINITIONS, STATUSES):
        _require_compacted(cluster, topic)
    with _advice(LOGS, "cleanup.policy=delete"):
        require_bounded_topic(
            cluster, LOGS, segment_bytes=_LOG_SEGMENT_BYTES, retention_bytes=_LOG_BYTES, retention_ms=_LOG_MS
        )


def require_definitions(cluster: Cluster) -> None:
    """The same of the topic that deploying writes to."""
    _require_compacted(cluster, DEFINITIONS)


def _require_compacted(cluster: Cluster, topic: str) -> None:
    with _advice(topic, "cleanup.policy=compact"):
        require_compacted_topic(cluster, topic, segment_bytes=_SEGMENT_BYTES)


@contextmanager
def _advice(topic: str, policy: str) -> Iterator[None]:
    try:
        yield
    except TopicNotMade as error:
        raise TopicNotMade(
            f"the topic {topic} is not there and cannot be made: {error.message}. Have somebody who may make topics "
            f"start a service, or make it with one partition and {policy}",
            error.code,
        ) from error


class Definitions:
    """Deployed pipelines by name, as of the last look."""

    def __init__(self, cluster: Cluster) -> None:
        self._follower = TopicFollower(cluster, DEFINITIONS)
        self.deployments: dict[str, Deployment] = {}
        self.unreadable: dict[str, str] = {}
        """Names of records that are no definitions, and why."""

    def refresh(self) -> None:
        """Take in what was written since."""
        for entry in self._follower.read():
            if entry is None:
                self.deployments.clear()
                self.unreadable.clear()
            else:
                self._take(entry)

    def _take(self, entry: Entry) -> None:
        name = entry.key.decode(errors="replace")
        self.unreadable.pop(name, None)
        if entry.value is None:
            self.deployments.pop(name, None)
            return
        try:
            self.deployments[name] = decode_deployment(name, entry.value)
        except BadRecord as error:
            # What ran under this name goes on: a record that nobody understands asks for nothing.
            self.unreadable[name] = str(error)


class Statuses:
    """What services have said last."""

    def __init__(self, cluster: Cluster) -> None:
        self._follower = TopicFollower(cluster, STATUSES)
        self.pipelines: dict[str, Status] = {}
        self.services: dict[str, ServiceReport] = {}

    def refresh(self) -> None:
        """Take in what was written since."""
        for entry in self._follower.read():
            if entry is None:
                self.pipelines.clear()
                self.services.clear()
            else:
                with suppress(BadRecord):
                    self._take(entry)

    def _take(self, entry: Entry) -> None:
        key = entry.key.decode(errors="replace")
        kind, _, name = key.partition(":")
        if kind == "pipeline":
            self.pipelines.pop(name, None)
            if entry.value is not None:
                self.pipelines[name] = decode_status(entry.value)
        elif kind == "service":
            self.services.pop(name, None)
            if entry.value is not None:
                self.services[name] = decode_service(entry.value)


def status_record(status: Status) -> tuple[bytes, bytes]:
    return _PIPELINE + status.name.encode(), status.encode()


def forgotten_status(name: str) -> tuple[bytes, None]:
    return _PIPELINE + name.encode(), None


def service_record(report: ServiceReport) -> tuple[bytes, bytes]:
    return _SERVICE + report.id.encode(), report.encode()


def forgotten_service(service: str) -> tuple[bytes, None]:
    return _SERVICE + service.encode(), None


def deployment_record(deployment: Deployment) -> tuple[bytes, bytes]:
    return deployment.name.encode(), deployment.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line that a pipeline, or the service about it, has said."""

    pipeline: str
    time_ms: int
    service: str
    text: str

    def record(self) -> tuple[bytes, bytes]:
        """As a record of the topic of logs."""
        return self.pipeline.encode(), json.dumps(asdict(self), separators=(",", ":")).encode()


def log_line(entry: Entry) -> LogLine | None:
    """The line of a record, if it is one."""
    try:
        text = json.loads(entry.value or b"")
        return LogLine(**{one.name: text[one.name] for one in fields(LogLine)})
    except (ValueError, KeyError, TypeError):
        return None
