"""A batch may take longer than a transaction: what the cluster aborts before the batch is decided is copied."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.prepared import describe_transactions, open_transactions
from headrace.client.columnar.writer import Writer
from headrace.client.errors import ClusterUnreachable
from headrace.spark.sink import parts as sink_parts
from headrace.spark.sink import slots as sink_slots
from headrace.spark.sink.commit import CommitError, Part, Report, id_prefix, transactional_id
from headrace.spark.sink.driver import SinkDriver
from headrace.spark.sink.journal import TopicJournal, require_journal
from headrace.spark.sink.parts import PartOrigin, PartsWriter
from headrace.testing import Broker
from tests.support.process import wait_for
from tests.support.spark.logs import FakeClock
from tests.support.spark.records import records, wait_until_decided
from tests.support.spark.topics import Topics

pytestmark = pytest.mark.slow

TIMEOUT_MS = 1500
RUN = "r1"
HEADERS = [[{"key": "h", "value": b"1"}]]

_queries = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"transaction.abort.timed.out.transaction.cleanup.interval.ms": "50"}) as broker:
        yield broker


@pytest.fixture
def topics(broker: Broker, request: pytest.FixtureRequest) -> Topics:
    return Topics(broker.bootstrap, request.node.name)


@pytest.fixture
def cluster(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(sink_slots, "_root", lambda: tmp_path)
    settings = {"bootstrap.servers": broker.bootstrap, "transaction.timeout.ms": str(TIMEOUT_MS)}
    with Cluster(settings) as cluster:
        require_journal(cluster, "decisions")
        yield cluster


@pytest.fixture
def query() -> str:
    return f"q{next(_queries)}"


def rows(*values: bytes) -> pa.RecordBatch:
    columns = {
        "key": [b"k"] * len(values),
        "value": list(values),
        "headers": HEADERS * len(values),
        "timestamp": pa.array([1_600_000_000_000] * len(values), pa.timestamp("ms", "UTC")),
    }
    return pa.record_batch(columns)


def until_aborted(cluster: Cluster, query: str, parts: tuple[Part, ...]) -> None:
    names = [transactional_id(query, RUN, part.prepared.suffix) for part in parts]

    def are_aborted() -> bool:
        found = describe_transactions(cluster, names).values()
        return all(one is not None and one.state == "CompleteAbort" for one in found)

    wait_for("the cluster aborts the transactions", are_aborted)


def driver(cluster: Cluster, query: str) -> SinkDriver:
    return SinkDriver(cluster, query, TopicJournal(cluster, "decisions", query))


def rows_of(topics: Topics, topic: str) -> list[dict[str, Any]]:
    """What readers of committed records are shown."""
    wait_until_decided(topics.bootstrap, topic)
    return records(topics.bootstrap, topic, read_committed=True)


def committed(topics: Topics, topic: str) -> list[bytes]:
    return [row["value"] for row in rows_of(topics, topic)]


def origin(query: str, partition: int = 0) -> PartOrigin:
    return PartOrigin(query, RUN, 0, partition, reuses_ids=True)


def report(query: str, parts: tuple[Part, ...]) -> Report:
    return Report(query, RUN, 0, parts)


def test_a_batch_that_took_longer_than_its_transactions_may_is_visible_once(
    cluster: Cluster, topics: Topics, query: str
) -> None:
    topic = topics.create()
    early = PartsWriter(cluster, origin(query), topic).write_all([rows(b"a", b"b"), rows(b"c")])
    until_aborted(cluster, query, early)
    late = PartsWriter(cluster, origin(query, 1), topic).write_all([rows(b"d")])
    driver(cluster, query).commit(0, [report(query, early), report(query, late)])
    assert sorted(committed(topics, topic)) == [b"a", b"b", b"c", b"d"]
    for row in rows_of(topics, topic):
        assert (row["key"], row["headers"], row["timestamp"].timestamp()) == (b"k", *HEADERS, 1_600_000_000)
    assert open_transactions(cluster, id_prefix(query)) == []


def test_a_task_that_takes_longer_than_its_transaction_may_goes_on_in_another(
    cluster: Cluster, topics: Topics, query: str
) -> None:
    topic, clock = topics.create(), FakeClock()

    def slowly() -> Iterator[pa.RecordBatch]:
        for value in (b"a", b"b", b"c"):
            yield rows(value)
            clock.now += 0.6 * TIMEOUT_MS / 1000

    parts = PartsWriter(cluster, origin(query), topic, clock).write_all(slowly())
    assert len(parts) == 3
    assert len({part.prepared.suffix for part in parts}) == 3
    driver(cluster, query).commit(0, [report(query, parts)])
    assert committed(topics, topic) == [b"a", b"b", b"c"]


def test_rows_on_their_way_when_a_transaction_is_aborted_are_written_in_the_next(
    cluster: Cluster, topics: Topics, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_parts, "_KEPT_BYTES", 2_000)
    topic, clock = topics.create(), FakeClock()
    writer = PartsWriter(cluster, origin(query), topic, clock)

    def until_overdue() -> None:
        open_part = writer._open
        assert open_part is not None
        until_aborted(cluster, query, (open_part.part(),))
        clock.now += TIMEOUT_MS / 1000

    def stalling() -> Iterator[pa.RecordBatch]:
        yield rows(b"a" * 2_000)  # enough to be flushed
        yield rows(b"b")
        until_overdue()
        yield rows(b"c")

    parts = writer.write_all(stalling())
    assert [part.prepared.suffix != parts[-1].prepared.suffix for part in parts] == [True, True, False]
    driver(cluster, query).commit(0, [report(query, parts)])
    assert sorted(committed(topics, topic)) == [b"a" * 2_000, b"b", b"c"]


def test_records_that_are_not_there_to_be_copied_fail_the_batch_and_nothing_is_visible(
    cluster: Cluster, topics: Topics, query: str
) -> None:
    topic = topics.create()
    early = PartsWriter(cluster, origin(query), topic).write_all([rows(b"a", b"b")])
    until_aborted(cluster, query, early)
    topics.delete_records(topic, 0, 1)
    late = PartsWriter(cluster, origin(query, 1), topic).write_all([rows(b"c")])
    one, reports = driver(cluster, query), [report(query, early), report(query, late)]
    with pytest.raises(CommitError, match=r"task 0, and their records are no longer in the log"):
        one.commit(0, reports)
    one.abort(reports)
    assert open_transactions(cluster, id_prefix(query)) == []


def test_an_attempt_that_fails_leaves_nothing_open(cluster: Cluster, topics: Topics, query: str) -> None:
    topic, clock = topics.create(), FakeClock()

    def failing() -> Iterator[pa.RecordBatch]:
        yield rows(b"a")
        clock.now += 0.6 * TIMEOUT_MS / 1000
        yield rows(b"b")
        raise RuntimeError("upstream")

    with pytest.raises(RuntimeError, match="upstream"):
        PartsWriter(cluster, origin(query), topic, clock).write_all(failing())
    assert open_transactions(cluster, id_prefix(query)) == []
    assert committed(topics, topic) == []


def test_an_attempt_whose_cluster_is_away_leaves_its_name_to_nobody_else_while_it_is_open(
    cluster: Cluster, topics: Topics, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.create()

    def unreachable(_: Writer) -> None:
        raise ClusterUnreachable("no broker answers", "_TRANSPORT")

    writer = PartsWriter(cluster, origin(query), topic)
    with monkeypatch.context() as patch:
        patch.setattr(Writer, "prepare", unreachable)
        with pytest.raises(ClusterUnreachable):
            writer.write_all([rows(b"a")])
    (left,) = open_transactions(cluster, id_prefix(query))
    (part,) = PartsWriter(cluster, origin(query), topic).write_all([rows(b"a")])
    assert transactional_id(query, RUN, part.prepared.suffix) != left
