"""Rows of Spark in topics: every column where it belongs, batches and streams alike, and mistakes told in words."""

import datetime
from pathlib import Path
from typing import Any

import pytest

from headrace.ops.transactions import TransactionOperations
from headrace.protocol.partitioner import partition_for
from tests.support.process import wait_for
from tests.support.spark.queries import started
from tests.support.spark.records import records, values, wait_until_decided
from tests.support.spark.topics import Topics

HEADERS = "array<struct<key:string,value:binary>>"
NOON = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)


def _write(frame: Any, topics: Topics, **options: str) -> None:
    given = {"kafka.bootstrap.servers": topics.bootstrap, **options}
    frame.write.format("headrace").mode("append").options(**given).save()


def test_every_column_is_written_where_it_belongs(spark: Any, topics: Topics) -> None:
    topic = topics.create(partitions=4)
    rows = [
        ("k1", b"v1", 3, [("trace", b"\x01"), ("trace", None)], topic, NOON),
        (None, None, 0, None, topic, NOON + datetime.timedelta(milliseconds=1)),
    ]
    schema = f"key string, value binary, partition int, headers {HEADERS}, topic string, timestamp timestamp"
    _write(spark.createDataFrame(rows, schema), topics)
    second, first = records(topics.bootstrap, topic)
    assert (first["key"], first["value"], first["partition"]) == (b"k1", b"v1", 3)
    assert first["headers"] == [{"key": "trace", "value": b"\x01"}, {"key": "trace", "value": None}]
    assert first["timestamp"] == NOON
    assert (second["key"], second["value"], second["partition"]) == (None, None, 0)
    assert second["timestamp"] == NOON + datetime.timedelta(milliseconds=1)


def test_keys_lead_where_the_java_client_sends_them(spark: Any, topics: Topics) -> None:
    topic = topics.create(partitions=5)
    frame = spark.range(1000).selectExpr("concat('key-', id) AS key", "cast(id AS string) AS value")
    _write(frame, topics, topic=topic)
    found = records(topics.bootstrap, topic)
    assert len(found) == 1000
    assert all(row["partition"] == partition_for(row["key"], 5) for row in found)


def test_each_row_goes_to_its_topic_and_the_option_wins(spark: Any, topics: Topics) -> None:
    even, odd, third = topics.create(), topics.create(), topics.create()
    named = f"if(id % 2 = 0, '{even}', '{odd}') AS topic"
    frame = spark.range(10).selectExpr("cast(id AS string) AS value", named, "id AS ignored")
    _write(frame, topics)
    _write(frame, topics, topic=third)
    assert sorted(int(value or b"") for value in values(topics.bootstrap, even)) == [0, 2, 4, 6, 8]
    assert sorted(int(value or b"") for value in values(topics.bootstrap, odd)) == [1, 3, 5, 7, 9]
    assert len(values(topics.bootstrap, third)) == 10


def test_rows_are_written_in_transactions_of_the_tasks(spark: Any, topics: Topics) -> None:
    topic = topics.create(partitions=2)
    frame = spark.range(100, numPartitions=2).selectExpr("cast(id AS string) AS value")
    _write(frame, topics, topic=topic, delivery="exactly-once")
    wait_until_decided(topics.bootstrap, topic)
    found = values(topics.bootstrap, topic, read_committed=True)
    assert sorted(int(value or b"") for value in found) == list(range(100))
    with TransactionOperations(topics.bootstrap) as operations:
        # The coordinator notes that all is done after the last marker is written.
        wait_for(
            "two transactions that were committed",
            lambda: len(operations.list_transactions(["CompleteCommit"], pattern="headrace-sink-.*")) >= 2,
        )


def test_a_topic_is_made_on_demand(spark: Any, topics: Topics) -> None:
    topic = f"{topics.create()}-on-demand"
    _write(spark.range(3).selectExpr("cast(id AS string) AS value"), topics, topic=topic)
    assert sorted(values(topics.bootstrap, topic), key=str) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_client_settings_reach_the_writer(spark: Any, topics: Topics, compression: str) -> None:
    topic = topics.create()
    frame = spark.range(1000).selectExpr("repeat('x', 100) AS value")
    _write(frame, topics, topic=topic, **{"kafka.compression.type": compression, "kafka.acks": "1"})
    assert values(topics.bootstrap, topic) == [b"x" * 100] * 1000


@pytest.mark.parametrize(
    ("expression", "options", "words"),
    [
        ("id AS value", {}, "column value is bigint; a topic takes string or binary there"),
        ("id AS other", {}, "there is no column value to write; the columns are other bigint"),
        ("'v' AS value", {"topik": "x"}, "unknown option topik of the sink; did you mean topic"),
        ("'v' AS value, cast(null AS string) AS topic", {"topic": ""}, "option topic is empty"),
    ],
)
def test_what_cannot_be_written_is_refused_in_words(
    spark: Any, topics: Topics, expression: str, options: dict[str, str], words: str
) -> None:
    frame = spark.range(1).selectExpr(*expression.split(", "))
    with pytest.raises(Exception, match="headrace") as refused:
        _write(frame, topics, **{"topic": topics.create(), **options})
    assert words in str(refused.value)


def test_a_row_without_a_topic_is_refused(spark: Any, topics: Topics) -> None:
    frame = spark.range(1).selectExpr("'v' AS value", "cast(null AS string) AS topic")
    with pytest.raises(Exception, match="a row has no topic"):
        _write(frame, topics)


def test_a_topic_is_not_overwritten(spark: Any, topics: Topics) -> None:
    writer = spark.range(1).selectExpr("'v' AS value").write.format("headrace").mode("overwrite")
    with pytest.raises(Exception, match="a topic cannot be overwritten"):
        writer.option("kafka.bootstrap.servers", topics.bootstrap).option("topic", topics.create()).save()


class Copy:
    """A stream from one topic to another, started as often as a test likes."""

    def __init__(self, spark: Any, topics: Topics, place: Path) -> None:
        self._spark = spark
        self._topics = topics
        self._place = place

    def run(self, source: str, target: str, mode: str = "append") -> None:
        """Copy what is there, or count it by value where the mode is not append, and end."""
        brokers = self._topics.bootstrap
        frame = (
            self._spark.readStream.format("headrace")
            .option("kafka.bootstrap.servers", brokers)
            .options(subscribe=source, startingOffsets="earliest", includeHeaders="true")
            .load()
        )
        if mode != "append":
            frame = frame.groupBy("value").count().selectExpr("value AS key", "cast(count AS string) AS value")
        writer = (
            frame.writeStream.format("headrace")
            .option("kafka.bootstrap.servers", brokers)
            .option("checkpointLocation", str(self._place / "checkpoint"))
            .option("topic", target)
            .outputMode(mode)
            .trigger(availableNow=True)
        )

        def ends(query: Any) -> None:
            assert query.awaitTermination(240)

        started(writer.start, ends)


@pytest.fixture
def copy(spark: Any, topics: Topics, tmp_path: Path) -> Copy:
    return Copy(spark, topics, tmp_path)


def test_a_topic_is_copied_with_keys_headers_and_times_over_restarts(copy: Copy, topics: Topics) -> None:
    source, target = topics.create(partitions=3), topics.create(partitions=3)
    for run in range(2):
        topics.fill(source, [b"%d-%d" % (run, number) for number in range(300)])
        copy.run(source, target)
    written = ("partition", "key", "value", "timestamp", "headers")
    copied = [[row[name] for name in written] for row in records(topics.bootstrap, target)]
    assert copied == [[row[name] for name in written] for row in records(topics.bootstrap, source)]


def test_complete_mode_appends_the_whole_result_of_each_batch(copy: Copy, topics: Topics) -> None:
    source, target = topics.create(), topics.create()
    topics.fill(source, [b"a", b"b", b"a"])
    copy.run(source, target, "complete")
    topics.fill(source, [b"a"])
    copy.run(source, target, "complete")
    found = [(row["key"], row["value"]) for row in records(topics.bootstrap, target)]
    assert sorted(found) == [(b"a", b"2"), (b"a", b"3"), (b"b", b"1"), (b"b", b"1")]
