"""The writers as Spark calls them, without Spark: rows in, records out, and what the driver does with the reports."""

import itertools
import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from headrace.client.columnar.writer import Writer
from headrace.client.errors import ClientError
from headrace.config.setting import ConfigError
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.spark.errors import QueryError
from headrace.spark.sink import slots as sink_slots
from headrace.spark.sink import task as sink_task
from headrace.spark.sink import writer as sink
from headrace.spark.sink.writer import SinkMessage, make_stream_writer, make_writer
from headrace.testing import Broker
from tests.support.columnar.scripted_cluster import FAST, TOPIC, ScriptedCluster, ScriptedLog
from tests.support.columnar.scripted_coordinator import ABORTED, COMMITTED, EMPTY, OPEN, ScriptedCoordinator
from tests.support.lacking import hide_transactions
from tests.support.scripted import Asked, Reply
from tests.support.spark.records import values

ROWS = StructType([StructField("key", StringType()), StructField("value", StringType())])
ROUTED = StructType([StructField("topic", StringType()), StructField("value", StringType())])


_task_ids = itertools.count(1)


class FakeContext:
    """A task of a streaming query, or of a job when it has no properties."""

    def __init__(self, partition: int = 0, attempt: int = 0, **properties: str) -> None:
        self._numbers = (partition, attempt)
        self._properties = properties

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return self._numbers[0]

    def attemptNumber(self) -> int:  # noqa: N802 - Spark's name
        return self._numbers[1]

    def taskAttemptId(self) -> int:  # noqa: N802 - Spark's name
        return next(_task_ids)

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        return self._properties.get(name)


class NoUpkeep:
    """Drivers that nobody looks after."""

    def begin(self, *_: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def _a_new_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is remembered from test to test."""
    monkeypatch.setattr(sink_slots, "_root", lambda: tmp_path)
    monkeypatch.setattr(sink, "_upkeep", NoUpkeep())
    for module, name in ((sink, "_lacks"), (sink, "_drivers"), (sink, "_latest"), (sink_task, "_journals")):
        monkeypatch.setattr(module, name, {})
    monkeypatch.setattr(sink, "_warned", set())


@pytest.fixture(scope="module")
def running() -> Iterator[Broker]:
    with Broker({"auto.create.topics.enable": "false"}) as running:
        yield running


@pytest.fixture
def broker(running: Broker, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """One without transactions."""
    hide_transactions(monkeypatch)
    return running


def options(bootstrap: str, **more: str) -> dict[str, str]:
    fast = {f"kafka.{name}": value for name, value in FAST.items()}
    return {"kafka.bootstrap.servers": bootstrap, "topic": TOPIC, **fast, **more}


def batch(*rows: str, **columns: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"key": list(rows), "value": list(rows), **columns})


def shipped(writer: Any) -> Any:
    """The writer as a task gets it."""
    return pickle.loads(pickle.dumps(writer))


# Where there are no transactions.


def test_rows_are_there_when_a_task_is_done(broker: Broker) -> None:
    topic = broker.create_topic("plain", 3)
    writer = shipped(make_writer(options(broker.bootstrap, topic=topic), ROWS, False))
    messages = [writer.write(iter([batch("a", "b"), batch()])), writer.write(iter([batch("c")]))]
    assert sorted(values(broker.bootstrap, topic), key=str) == [b"a", b"b", b"c"]
    writer.commit(messages)
    writer.abort([*messages, None])


def test_tasks_of_a_process_share_a_producer(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = broker.create_topic("shared", 1)
    monkeypatch.setattr(sink_task, "_idle_writers", {})
    writer = make_stream_writer(options(broker.bootstrap, topic=topic), ROWS, False)
    writer.write(iter([batch("a")]))
    (kept,) = sink_task._idle_writers.values()
    writer.write(iter([batch("b")]))
    assert list(sink_task._idle_writers.values()) == [kept]
    with pytest.raises(RuntimeError, match="upstream"):
        writer.write(_failing(batch("c")))
    assert not sink_task._idle_writers
    assert values(broker.bootstrap, topic)[:2] == [b"a", b"b"]


def _failing(*batches: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise RuntimeError("upstream")


def test_rows_go_to_the_topics_they_name(broker: Broker) -> None:
    topics = [broker.create_topic(f"named-{number}", 1) for number in range(2)]
    given = options(broker.bootstrap)
    del given["topic"]
    writer = make_writer(given, ROUTED, False)
    writer.write(iter([pa.RecordBatch.from_pydict({"topic": topics, "value": ["0", "1"]})]))
    assert [values(broker.bootstrap, topic) for topic in topics] == [[b"0"], [b"1"]]
    with pytest.raises(QueryError, match=r"topic 'nowhere' does not exist.*headrace topic create nowhere"):
        writer.write(iter([pa.RecordBatch.from_pydict({"topic": ["nowhere"], "value": ["2"]})]))


def test_a_topic_that_is_not_there_is_told_at_the_start(broker: Broker) -> None:
    with pytest.raises(ClientError, match="topic 'nowhere' does not exist, and the cluster makes none on demand"):
        make_writer(options(broker.bootstrap, topic="nowhere"), ROWS, False)


def test_at_least_once_is_said_once_where_nobody_asked_for_it(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    topic = broker.create_topic("weak", 1)
    with caplog.at_level(logging.WARNING, "headrace"):
        for _ in range(2):
            make_stream_writer(options(broker.bootstrap, topic=topic), ROWS, False).commit([SinkMessage()], 0)
    assert [record.getMessage() for record in caplog.records if "at least once" in record.getMessage()] == [
        "writing at least once, so a row may be there twice after a failure: "
        "the cluster does not serve ADD_PARTITIONS_TO_TXN"
    ]


def test_at_least_once_is_not_said_where_somebody_asked_for_it(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    given = options(broker.bootstrap, topic=broker.create_topic("asked", 1), delivery="at-least-once")
    make_writer(given, ROWS, False).commit([SinkMessage()])
    assert "at least once" not in caplog.text


def test_exactly_once_is_refused_where_it_cannot_be_kept(broker: Broker) -> None:
    given = options(broker.bootstrap, topic=broker.create_topic("strict", 1), delivery="exactly-once")
    with pytest.raises(ConfigError, match="exactly-once cannot be kept: the cluster does not serve"):
        make_stream_writer(given, ROWS, False)


def test_a_topic_is_not_overwritten_but_a_stream_may_be_complete(broker: Broker) -> None:
    given = options(broker.bootstrap, topic=broker.create_topic("complete", 1))
    with pytest.raises(ConfigError, match="cannot be overwritten"):
        make_writer(given, ROWS, True)
    make_stream_writer(given, ROWS, True)


def test_a_stream_is_no_series_of_batches(broker: Broker) -> None:
    given = options(broker.bootstrap, topic=broker.create_topic("series", 1), txnAppId="a", txnVersion="1")
    with pytest.raises(ConfigError, match="for batch writes"):
        make_stream_writer(given, ROWS, False)


# Where there are.


class Spark:
    """Calls the writers as Spark does, against a cluster of a script that has transactions."""

    def __init__(self, script: ScriptedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.coordinator = ScriptedCoordinator(script)
        self.script = script
        self._patch = monkeypatch

    def given(self, **more: str) -> dict[str, str]:
        checkpoint = {"checkpointLocation": "/c"}
        return options(self.script.brokers[0].bootstrap, decisionsTopic=TOPIC, **checkpoint | more)

    def stream(self, **more: str) -> sink.SinkStreamWriter:
        return make_stream_writer(self.given(**more), ROWS, False)

    def task(self, writer: Any, rows: Iterator[pa.RecordBatch], partition: int = 0, **where: Any) -> SinkMessage:
        """Run a task of a batch of a streaming query."""
        properties = {
            "sql.streaming.queryId": where.get("query", "q"),
            "spark.jobGroup.id": where.get("run", "r1"),
            "streaming.sql.batchId": str(where.get("batch", 0)),
        }
        context = FakeContext(partition, where.get("attempt", 0), **properties)
        self._patch.setattr(sink_task, "_context", lambda: context)
        message = shipped(writer).write(rows)
        assert isinstance(message, SinkMessage)
        return message

    def states(self) -> list[str]:
        """Of the transactions of tasks."""
        return sorted(one.state for name, one in self.coordinator.entries.items() if name.count("-") > 3)

    @property
    def rows(self) -> list[bytes | None]:
        """What tasks wrote; decisions are JSON."""
        return [value for value in self.script.logs[0].values if value and not value.startswith(b"{")]


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spark]:
    with ScriptedCluster({0: ScriptedLog()}) as script:
        yield Spark(script, monkeypatch)


def test_a_batch_is_committed_with_all_its_tasks(spark: Spark) -> None:
    writer = spark.stream()
    messages = [spark.task(writer, iter([batch("a")]), 0), spark.task(writer, iter([batch("b")]), 1)]
    assert spark.states() == [OPEN, OPEN]
    spark.stream().commit(messages, 0)
    assert spark.states() == [COMMITTED, COMMITTED]
    assert spark.rows == [b"a", b"b"]


def test_a_task_without_rows_opens_nothing(spark: Spark) -> None:
    writer = spark.stream()
    message = spark.task(writer, iter([batch()]))
    writer.commit([message], 0)
    assert spark.states() == []


def test_a_batch_that_an_earlier_run_decided_is_not_written_again(spark: Spark) -> None:
    writer = spark.stream()
    message = spark.task(writer, iter([batch("a")]), batch=4)
    spark.coordinator.errors = {ApiKey.END_TXN: [ErrorCode.transactional_id_authorization_failed]}
    with pytest.raises(QueryError):
        writer.commit([message], 4)
    again = spark.task(writer, iter([batch("a")]), batch=4, run="r2")
    writer.commit([again], 4)
    later = spark.task(writer, iter([batch("b")]), batch=5, run="r2")
    writer.commit([later], 5)
    assert spark.rows == [b"a", b"b"]
    assert spark.states() == [COMMITTED, COMMITTED]


def test_a_task_that_fails_aborts_what_it_wrote(spark: Spark) -> None:
    with pytest.raises(RuntimeError, match="upstream"):
        spark.task(spark.stream(), _failing(batch("a" * 1000), batch("b" * 9_000_000)))
    assert spark.states() == [ABORTED]


def test_a_stage_that_is_run_again_leaves_alone_what_its_first_run_wrote(spark: Spark) -> None:
    writer = spark.stream()
    first = spark.task(writer, iter([batch("a")]))
    spark.task(writer, iter([batch("a")]))
    assert spark.states() == [OPEN, OPEN]
    writer.commit([first], 0)
    assert spark.states() == [COMMITTED, EMPTY]
    assert spark.rows == [b"a", b"a"]


def test_transactional_ids_are_as_many_as_tasks_however_many_batches_there_are(spark: Spark) -> None:
    writer = spark.stream()
    for number in range(20):
        messages = [spark.task(writer, iter([batch("a")]), task, batch=number) for task in range(3)]
        assert spark.states().count(OPEN) == 3
        writer.commit(messages, number)
    assert spark.states() == [COMMITTED] * 6


def test_a_twin_that_pauses_before_it_begins_leaves_what_was_decided_alone(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, decided = Writer.begin, []

    def pause(writer: Writer) -> None:
        monkeypatch.setattr(Writer, "begin", begin)
        decided.append(spark.task(spark.stream(), iter([batch("a")])))
        spark.coordinator.errors = {ApiKey.END_TXN: [ErrorCode.transactional_id_authorization_failed]}
        with pytest.raises(QueryError, match="is decided, and could not be committed"):
            spark.stream().commit(decided, 0)
        begin(writer)

    monkeypatch.setattr(Writer, "begin", pause)
    spark.task(spark.stream(), iter([batch("a")]))
    spark.stream().commit(decided, 0)
    assert spark.states() == [COMMITTED, EMPTY]


def test_attempts_of_a_job_that_spark_numbers_alike_have_transactions_of_their_own(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make_writer(spark.given(), ROWS, False)
    monkeypatch.setattr(sink_task, "_context", FakeContext)
    first = shipped(writer).write(iter([batch("a")]))
    shipped(writer).write(iter([batch("a")]))
    assert spark.states() == [OPEN, OPEN]
    shipped(writer).commit([first])
    assert spark.states() == [COMMITTED, EMPTY]


def test_a_stopped_query_leaves_nothing_open_even_where_no_task_reported(spark: Spark) -> None:
    writer = spark.stream()
    writer.commit([spark.task(writer, iter([batch("a")]))], 0)
    spark.task(writer, iter([batch("b")]), batch=1)
    spark.stream().abort([None], 1)
    assert spark.states() == [COMMITTED, EMPTY]
    spark.stream(checkpointLocation="/other").abort([None], 0)


def test_a_job_is_committed_without_a_topic_of_decisions(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = make_writer(spark.given(), ROWS, False)
    monkeypatch.setattr(sink_task, "_context", FakeContext)
    message = shipped(writer).write(iter([batch("a")]))
    shipped(writer).commit([message])
    assert set(spark.states()) == {COMMITTED}
    assert spark.script.logs[0].values == [b"a"]


def test_a_version_of_a_series_is_written_once(spark: Spark) -> None:
    for version, run, row in ((3, "r1", "a"), (3, "r2", "a"), (4, "r2", "b")):
        writer = make_writer(spark.given(txnAppId="counts", txnVersion=str(version)), ROWS, False)
        writer.commit([spark.task(writer, iter([batch(row)]), run=run)])
    assert spark.rows == [b"a", b"b"]
    assert set(spark.states()) == {COMMITTED}


def test_a_batch_that_a_query_wrote_as_a_stream_is_not_written_again_as_a_version_under_its_id(spark: Spark) -> None:
    query = "0a9d2b2e-3c1f-4b7e-9a55-6f0e1d2c3b4a"
    stream = spark.stream()
    stream.commit([spark.task(stream, iter([batch("a")]), query=query, batch=3)], 3)
    for version, row in ((3, "a"), (4, "b")):
        writer = make_writer(spark.given(txnAppId=query, txnVersion=str(version)), ROWS, False)
        writer.commit([spark.task(writer, iter([batch(row)]), query=query, batch=version, run="r2")])
    for number, row in ((4, "b"), (5, "c")):
        stream.commit([spark.task(stream, iter([batch(row)]), query=query, batch=number, run="r3")], number)
    assert spark.rows == [b"a", b"b", b"c"]


def test_a_version_that_is_written_twice_in_one_run_is_visible_once(spark: Spark) -> None:
    for partition in range(2):
        writer = make_writer(spark.given(txnAppId="counts", txnVersion="3"), ROWS, False)
        writer.commit([spark.task(writer, iter([batch("a")]), partition)])
    assert spark.states() == [COMMITTED]
    assert spark.rows == [b"a"]


def test_an_attempt_that_starts_when_its_batch_is_decided_opens_nothing(spark: Spark) -> None:
    writer = spark.stream()
    writer.commit([spark.task(writer, iter([batch("a")]))], 0)
    late = spark.task(writer, iter([batch("a")]), attempt=1)
    assert late.report is not None
    assert late.report.found_decided
    assert spark.states() == [COMMITTED]


def test_a_version_that_one_of_two_clusters_has_is_still_written_to_the_other(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedCluster({0: ScriptedLog()}) as script:
        other = Spark(script, monkeypatch)
        for cluster, run in ((spark, "r1"), (spark, "r2"), (other, "r2")):
            writer = make_writer(cluster.given(txnAppId="counts", txnVersion="3"), ROWS, False)
            writer.commit([cluster.task(writer, iter([batch("a")]), run=run)])
        assert spark.rows == other.rows == [b"a"]


def test_a_timeout_that_brokers_do_not_allow_names_the_settings(spark: Spark) -> None:
    def refuse(node: int, asked: Asked) -> Reply | bool:
        if asked.api_key != ApiKey.INIT_PRODUCER_ID:
            return answer(node, asked)
        code = ErrorCode.invalid_transaction_timeout.value
        return {"throttle_time": 0, "error_code": code, "producer_id": -1, "producer_epoch": -1}

    answer = spark.script.before
    spark.script.before = refuse
    with pytest.raises(QueryError, match=r"transaction\.timeout\.ms=900000 .* transaction\.max\.timeout\.ms"):
        spark.task(spark.stream(), iter([batch("a")]))


def test_outside_of_a_stream_there_is_no_exactly_once(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_task, "_context", FakeContext)
    with pytest.raises(QueryError, match="use delivery=at-least-once"):
        spark.stream().write(iter([batch("a")]))
