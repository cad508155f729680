"""Batch queries: what is read is what was written, however it is asked for."""

import time
from hashlib import sha256
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from tests.support.spark.topics import Topics

DataFrame = Any


def _read(spark: Any, topics: Topics, **options: str) -> DataFrame:
    return spark.read.format("headrace").option("kafka.bootstrap.servers", topics.bootstrap).options(**options).load()


def _rows(frame: DataFrame) -> list[tuple[int, int, bytes | None]]:
    """Partition, offset and value of each row, in the order Spark gives them."""
    return [
        (row.partition, row.offset, None if row.value is None else bytes(row.value))
        for row in frame.select("partition", "offset", "value").collect()
    ]


def _numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_topic_reads_as_it_was_written(spark: Any, topics: Topics, codec: str) -> None:
    topic = topics.create(partitions=3)
    values = [number * 20 for number in _numbers(3000)]
    topics.fill(topic, values, partition=lambda number: number % 3, **{"compression.type": codec})
    rows = _rows(_read(spark, topics, subscribe=topic))
    assert rows == [(p, offset, values[3 * offset + p]) for p in range(3) for offset in range(1000)]


def test_the_columns_are_those_of_sparks_own_connector(spark: Any, topics: Topics) -> None:
    topic = topics.create()
    before = int(time.time() * 1000)
    topics.fill(topic, [b"v", None, b""])
    frame = _read(spark, topics, subscribe=topic, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    rows = frame.withColumn("ms", F.unix_millis("timestamp")).orderBy("offset").collect()
    assert [(row.key, row.value, row.topic, row.offset, row.timestampType) for row in rows] == [
        (b"k0", b"v", topic, 0, 0),
        (b"k1", None, topic, 1, 0),
        (b"k2", b"", topic, 2, 0),
    ]
    assert all(before <= row.ms <= before + 60_000 for row in rows)


def test_large_messages_are_read_whole(spark: Any, topics: Topics) -> None:
    topic = topics.create()
    values = [bytes([number]) * 900_000 for number in range(12)]
    topics.fill(topic, values)
    sums = _read(spark, topics, subscribe=topic).select(F.sha2("value", 256).alias("sum")).collect()
    assert [row.sum for row in sums] == [sha256(value).hexdigest() for value in values]


def test_tasks_that_share_a_partition_read_each_record_once(spark: Any, topics: Topics) -> None:
    topic = topics.create(partitions=2)
    topics.fill(topic, _numbers(2000), partition=lambda number: int(number % 10 == 0))
    frame = _read(spark, topics, subscribe=topic, minPartitions="7")
    assert 6 <= frame.rdd.getNumPartitions() <= 8
    assert [row[:2] for row in _rows(frame)] == [(0, o) for o in range(1800)] + [(1, o) for o in range(200)]
    assert _read(spark, topics, subscribe=topic, maxRecordsPerPartition="500").rdd.getNumPartitions() == 5


def test_a_batch_reads_between_offsets_and_between_times(spark: Any, topics: Topics) -> None:
    topic = topics.create(partitions=2)
    topics.fill(topic, _numbers(10), partition=lambda number: number % 2)
    time.sleep(0.01)  # so that the two halves differ in their milliseconds
    middle = int(time.time() * 1000)
    topics.fill(topic, _numbers(10, 10), partition=lambda number: number % 2)

    offsets = {
        "startingOffsets": f'{{"{topic}": {{"0": 3, "1": -2}}}}',
        "endingOffsets": f'{{"{topic}": {{"0": -1, "1": 2}}}}',
    }
    rows = _rows(_read(spark, topics, subscribe=topic, **offsets))
    assert [row[:2] for row in rows] == [(0, o) for o in range(3, 10)] + [(1, o) for o in range(2)]

    newer = _rows(_read(spark, topics, subscribe=topic, startingTimestamp=str(middle)))
    older = _rows(_read(spark, topics, subscribe=topic, endingTimestamp=str(middle)))
    assert [row[:2] for row in newer] == [(p, o) for p in range(2) for o in range(5, 10)]
    assert [row[:2] for row in older] == [(p, o) for p in range(2) for o in range(5)]


def test_topics_can_be_chosen_by_pattern_and_partitions_by_number(spark: Any, topics: Topics) -> None:
    first, second = topics.create(partitions=2), topics.create()
    for topic in (first, second):
        topics.fill(topic, _numbers(4), partition=lambda _: 0)
    pattern = _read(spark, topics, subscribePattern=first.rpartition("-")[0] + "-[0-9]+")
    assert {row.topic for row in pattern.select("topic").distinct().collect()} == {first, second}
    assert _read(spark, topics, subscribePattern="no-such-topic-.*").count() == 0
    assert _read(spark, topics, assign=f'{{"{first}": [0]}}').count() == 4
    assert _read(spark, topics, assign=f'{{"{first}": [1]}}').count() == 0


def test_a_schema_chooses_columns(spark: Any, topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"v"])
    reader = spark.read.format("headrace").option("bootstrap", topics.bootstrap).option("subscribe", topic)
    assert reader.schema("offset long, value binary").load().collect() == [(0, bytearray(b"v"))]
    with pytest.raises(Exception, match="column value is binary and cannot be read as string"):
        reader.schema("value string").load().collect()
    with pytest.raises(Exception, match="there is no column price to read"):
        reader.schema("price int").load().collect()


def test_filters_narrow_what_is_read(spark: Any, topics: Topics) -> None:
    topic = topics.create(partitions=3)
    topics.fill(topic, _numbers(300), partition=lambda number: number % 3)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = _read(spark, topics, subscribe=topic, pushFilters="true")
        found = frame.filter("partition = 1 and offset >= 90 and timestamp > '2001-01-01' and value like '2%'")
        assert found.rdd.getNumPartitions() == 1
        assert [row[:2] for row in _rows(found)] == [(1, offset) for offset in range(90, 100)]
        frame = _read(spark, topics, subscribe=topic, pushFilters="true")
        assert frame.filter("timestamp > current_timestamp() + interval 1 day").count() == 0
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_filters_give_the_same_rows_whether_spark_may_push_them_or_not(spark: Any, topics: Topics) -> None:
    topic = topics.create(partitions=2)
    topics.fill(topic, _numbers(40), partition=lambda number: number % 2)
    for enabled in ("false", "true"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
        try:
            frame = _read(spark, topics, subscribe=topic)
            both = frame.filter("partition = 0").union(frame.filter("partition = 1")).union(frame)
            assert both.count() == 80
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")
        assert _read(spark, topics, subscribe=topic, pushFilters="true").filter("partition = 1").count() == 20


def test_expired_offsets_fail_a_batch_or_are_passed_over(spark: Any, topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, _numbers(10))
    topics.delete_records(topic, 0, before=4)
    options = {"subscribe": topic, "startingOffsets": f'{{"{topic}": {{"0": 1}}}}'}
    with pytest.raises(Exception, match=r"but the log has 4 up to 10\..*failOnDataLoss to false"):
        _read(spark, topics, **options).count()
    assert _read(spark, topics, **options, failOnDataLoss="false").count() == 6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "no-such-topic"}, "topic 'no-such-topic' does not exist"),
        ({"subscribes": "t"}, "unknown option subscribes; did you mean subscribe?"),
        ({"subscribe": "t", "startingOffsets": "latest"}, "startingOffsets cannot be latest in a batch query"),
        (
            {"subscribe": "t", "bootstrap": "127.0.0.1:1", "kafka.default.api.timeout.ms": "500"},
            "no broker answers at 127.0.0.1:1",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(spark: Any, topics: Topics, options: dict[str, str], words: str) -> None:
    reader = spark.read.format("headrace").options(**{"bootstrap": topics.bootstrap, **options})
    with pytest.raises(Exception, match=r"spark\.errors\.(QueryError|Unreachable): ") as failure:
        reader.load().count()
    assert words in str(failure.value)
    assert len(str(failure.value).splitlines()) < 25
