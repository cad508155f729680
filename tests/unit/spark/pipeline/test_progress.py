from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headrace.formats.bad_records import BAD_TYPE
from headrace.spark.data_source import HEADERS, RECORD
from headrace.spark.pipeline.building import consumer_groups, kept_columns, source_settings
from headrace.spark.pipeline.document import DocumentPosition
from headrace.spark.pipeline.model import Source
from headrace.spark.pipeline.progress import SinkProgress, lag_of
from headrace.spark.source.options import TriggerLimits, parse
from headrace.spark.types import to_spark

BAD_FIELD = StructField("bad", to_spark(BAD_TYPE))

REPORT: dict[str, Any] = {
    "batchId": 7,
    "timestamp": "2026-01-01T00:00:00.000Z",
    "numInputRows": 100,
    "inputRowsPerSecond": 50.0,
    "durationMs": {"triggerExecution": 210},
    "eventTime": {"watermark": "2026-01-01T00:00:00.000Z"},
    "stateOperators": [{"numRowsTotal": 3, "numRowsDroppedByWatermark": 1}, {"numRowsTotal": 4}],
    "sources": [{"endOffset": {"orders": {"0": 5, "1": 7}}, "latestOffset": {"orders": {"0": 8, "1": 7}}}],
    "sink": {"numOutputRows": -1},
    "observedMetrics": {
        "headrace_out_revenue": {"rows": 9},
        "headrace_in_orders": {"rows": 60, "bad": 2},
        "headrace_in_payments": {"rows": 10},
    },
}


def test_reports_add_up() -> None:
    progress = SinkProgress(sink="revenue").after(REPORT).after({**REPORT, "batchId": 8})
    assert progress == SinkProgress(
        sink="revenue",
        state="running",
        batch=8,
        rows_in=140,
        rows_out=18,
        bad_records=4,
        rows_per_second=50.0,
        latency_ms=210,
        lag=3,
        watermark="2026-01-01T00:00:00.000Z",
        state_rows=7,
        dropped_late=2,
        last_progress="2026-01-01T00:00:00.210Z",
    )


def test_rows_out_are_told_behind_spark_connect_too() -> None:
    schema = {"type": "struct", "fields": [{"name": "rows", "type": "long", "nullable": False, "metadata": {}}]}
    report = {**REPORT, "observedMetrics": {"headrace_out_revenue": {"values": [9], "schema": schema}}}
    assert SinkProgress(sink="revenue").after(report).rows_out == 9


def test_a_row_counts_once_however_many_sinks_it_goes_to() -> None:
    assert SinkProgress(sink="revenue").after(REPORT).rows_in == 70
    assert SinkProgress(sink="revenue").after({**REPORT, "observedMetrics": {}}).rows_in == 100


def test_a_bare_report_is_enough() -> None:
    assert SinkProgress(sink="x").after({"batchId": 0}) == SinkProgress(sink="x", state="running", batch=0)


def test_what_stopped_has_no_speed() -> None:
    assert SinkProgress(sink="x").after(REPORT).now("stopped").rows_per_second == 0.0


@pytest.mark.parametrize(
    ("sources", "lag"),
    [
        ([], None),
        ([{"endOffset": 7, "latestOffset": 8}], None),
        ([{"endOffset": None, "latestOffset": None}], None),
        ([{"endOffset": '{"a": {"0": 1}}', "latestOffset": '{"a": {"0": 4, "1": 2}}'}], 5),
        ([{"endOffset": {"a": {"0": 9}}, "latestOffset": {"a": {"0": 4}}}], 0),
        ([{"endOffset": 7, "latestOffset": 8}, {"endOffset": {"a": {"0": 1}}, "latestOffset": {"a": {"0": 2}}}], 1),
    ],
)
def test_lag_is_what_is_there_and_not_read(sources: list[dict[str, Any]], lag: int | None) -> None:
    assert lag_of({"sources": sources}) == lag


def source(name: str, topics: str, **options: str) -> Source:
    return Source(name=name, position=DocumentPosition("p.yaml", 1), options={"subscribe": topics, **options})


def test_a_sink_has_one_group_for_all_its_topics() -> None:
    assert consumer_groups("shop", "revenue", [source("orders", "orders"), source("payments", "cards,cash")]) == {
        "orders": "shop-revenue",
        "payments": "shop-revenue",
    }


def test_two_readers_of_a_topic_have_groups_of_their_own() -> None:
    assert consumer_groups("shop", "pairs", [source("left", "orders"), source("right", "orders")]) == {
        "left": "shop-pairs-left",
        "right": "shop-pairs-right",
    }


def test_a_pattern_may_match_what_another_source_reads() -> None:
    pattern = Source(name="all", position=DocumentPosition("p.yaml", 1), options={"subscribePattern": "orders.*"})
    assert consumer_groups("shop", "pairs", [pattern]) == {"all": "shop-pairs"}
    assert consumer_groups("shop", "pairs", [pattern, source("eu", "orders-eu")]) == {
        "all": "shop-pairs-all",
        "eu": "shop-pairs-eu",
    }


@pytest.mark.parametrize("name", ["group", "kafka.group.id", "kafka.Group.Id"])
def test_a_source_may_name_its_group_as_the_source_takes_it(name: str) -> None:
    assert source_settings(source("orders", "orders"), "b:1", "shop-revenue")["group"] == "shop-revenue"
    settings = source_settings(source("orders", "orders", **{name: "mine"}), "b:1", "shop-revenue")
    assert parse(settings).group == "mine"


def test_a_pipeline_reads_what_is_committed_unless_its_source_says_otherwise() -> None:
    assert parse(source_settings(source("orders", "orders"), "b:1", "g")).read_committed
    for name in ("kafka.isolation.level", "kafka.Isolation.Level"):
        settings = source_settings(source("orders", "orders", **{name: "read_uncommitted"}), "b:1", "g")
        assert not parse(settings).read_committed


FIELDS = StructType([StructField("id", LongType()), StructField("Topic", StringType())])


def row(value: Any, *more: StructField) -> StructType:
    fields = [StructField("value", value) if field.name == "value" else field for field in RECORD.fields]
    return StructType([*fields, *more])


def table(read: StructType, metadata: tuple[str, ...] | None = None, **options: str) -> list[str]:
    found = Source(
        name="o", position=DocumentPosition("p.yaml", 1), options={"subscribe": "o", **options}, metadata=metadata
    )
    return kept_columns(found, read)


def test_a_table_has_the_fields_of_values_and_nothing_of_kafkas() -> None:
    assert table(row(FIELDS, BAD_FIELD)) == ["value.`id`", "value.`Topic`", "bad"]


def test_the_records_columns_are_there_where_they_are_asked_for() -> None:
    assert table(row(FIELDS), ("offset", "key")) == ["value.`id`", "value.`Topic`", "key", "offset"]
    assert table(row(FIELDS), ("topic",)) == ["value.`id`", "value.`Topic`"], "a field hides it"
    assert table(row(FIELDS, HEADERS), includeHeaders="true") == ["value.`id`", "value.`Topic`", "headers"]
    assert table(row(FIELDS, HEADERS)) == ["value.`id`", "value.`Topic`"], "headers that letters alone need"


def test_a_record_without_a_value_is_told_from_one_without_fields_and_from_a_bad_one() -> None:
    assert table(row(FIELDS), ("tombstone",)) == ["value.`id`", "value.`Topic`", "value IS NULL AS tombstone"]
    assert table(row(FIELDS, BAD_FIELD), ("tombstone",))[2:] == ["bad", "value IS NULL AND `bad` IS NULL AS tombstone"]
    assert table(row(StringType()), ("tombstone",)) == ["value", "value IS NULL AS tombstone"]


def test_a_value_without_fields_stands_beside_all_of_the_record_or_what_is_asked_for() -> None:
    assert table(RECORD) == [field.name for field in RECORD.fields]
    assert table(row(StringType(), BAD_FIELD), ("timestamp",)) == ["value", "timestamp", "bad"]


def test_headers_are_read_where_they_are_asked_for_or_letters_need_them() -> None:
    asked = Source(name="o", position=DocumentPosition("p.yaml", 1), options={"subscribe": "o"}, metadata=("headers",))
    assert parse(source_settings(asked, "b:1", "g")).with_headers
    options = {"subscribe": "o", "format": "string", "deadLetterTopic": "dead"}
    letters = Source(name="o", position=DocumentPosition("p.yaml", 1), options=options, dead_letter_topic="dead")
    settings = source_settings(letters, "b:1", "g")
    assert settings["includeHeaders"] == "true"
    assert "deadLetterTopic" not in settings


def test_a_batch_of_a_pipeline_is_bounded_unless_the_source_says_how() -> None:
    assert parse(source_settings(source("orders", "orders"), "b:1", "g")).trigger == TriggerLimits(max_bytes=256 << 20)
    settings = source_settings(source("orders", "orders", maxOffsetsPerTrigger="9"), "b:1", "g")
    assert parse(settings).trigger == TriggerLimits(max_records=9)
