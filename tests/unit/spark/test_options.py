"""Options as users write them."""

import pickle
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from headrace.client.columnar.model import EARLIEST, LATEST, TopicPartition
from headrace.config.setting import ConfigError
from headrace.formats import OPTION_NAMES
from headrace.spark.sink import options as sink_options
from headrace.spark.source.options import (
    OPTIONS,
    Assigned,
    AtEnd,
    AtOffsets,
    AtTime,
    AtTimes,
    SourceOptions,
    TopicPattern,
    Topics,
    TriggerLimits,
    parse,
)
from headrace.spark.source.planning import Splitting

WHERE = {"kafka.bootstrap.servers": "localhost:9092"}
T0 = TopicPartition("t", 0)


def _parsed(**options: str) -> SourceOptions:
    return parse({**WHERE, "subscribe": "t", **options})


def test_little_needs_to_be_said() -> None:
    options = parse({"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders, payments,orders,"})
    assert options.client == {"bootstrap.servers": "localhost:9092"}
    assert options.subscription == Topics(("orders", "payments"))
    assert options.fail_on_data_loss
    assert not options.with_headers
    assert options.starting is None


@pytest.mark.parametrize("name", ["kafka.bootstrap.servers", "bootstrap.servers", "bootstrap", "BOOTSTRAP"])
def test_brokers_may_be_named_in_several_ways(name: str) -> None:
    assert parse({name: "h:1", "subscribe": "t"}).client == {"bootstrap.servers": "h:1"}


def test_case_does_not_matter() -> None:
    options = parse({"KAFKA.bootstrap.servers": "h:1", "SUBSCRIBE": "T", "INCLUDEHEADERS": "True"})
    assert options.subscription == Topics(("T",))
    assert options.with_headers


def test_a_pattern_and_partitions_can_be_read() -> None:
    pattern = parse({**WHERE, "subscribePattern": "orders-.*"}).subscription
    assert pattern == TopicPattern(re.compile("orders-.*"))
    assert parse({**WHERE, "assign": '{"t": [0]}'}).subscription == Assigned(frozenset({T0}))


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("startingOffsets", "earliest", AtEnd(EARLIEST)),
        ("startingOffsets", " Latest ", AtEnd(LATEST)),
        ("startingOffsets", '{"t": {"0": -2}}', AtOffsets({T0: EARLIEST})),
        ("startingTimestamp", "1700000000000", AtTime(1700000000000)),
        ("startingOffsetsByTimestamp", '{"t": {"0": 5}}', AtTimes({T0: 5})),
    ],
)
def test_a_start_can_be_a_word_offsets_or_times(name: str, text: str, expected: object) -> None:
    assert _parsed(**{name: text}).starting == expected


def test_a_time_comes_before_times_by_partition_and_those_before_offsets() -> None:
    everything = {
        "endingTimestamp": "1",
        "endingOffsetsByTimestamp": '{"t": {"0": 5}}',
        "endingOffsets": '{"t": {"0": 7}}',
    }
    assert _parsed(**everything).ending == AtTime(1)
    del everything["endingTimestamp"]
    assert _parsed(**everything).ending == AtTimes({T0: 5})
    del everything["endingOffsetsByTimestamp"]
    assert _parsed(**everything).ending == AtOffsets({T0: 7})


def test_limits_are_read_with_their_units() -> None:
    options = _parsed(
        maxOffsetsPerTrigger="1000", minOffsetsPerTrigger="10", maxTriggerDelay="90s", maxBytesPerTrigger="64m"
    )
    assert options.trigger == TriggerLimits(max_records=1000, min_records=10, max_delay=90.0, max_bytes=64 << 20)
    assert _parsed(minPartitions="7", maxRecordsPerPartition="500").splitting == Splitting(
        min_partitions=7, max_records=500
    )


def test_the_client_gets_its_settings() -> None:
    options = _parsed(**{"kafka.security.protocol": "PLAINTEXT", "kafka.isolation.level": "read_committed"})
    assert options.client == {"bootstrap.servers": "localhost:9092", "security.protocol": "PLAINTEXT"}
    assert options.read_committed


def test_settings_of_a_group_member_are_taken_without_effect() -> None:
    assert _parsed(**{"kafka.session.timeout.ms": "1", "groupIdPrefix": "x"}).client == _parsed().client


def test_waiting_for_records_has_a_limit_by_either_name() -> None:
    assert _parsed(**{"kafkaConsumer.pollTimeoutMs": "7000"}).client["default.api.timeout.ms"] == "7000"
    both = {"kafkaConsumer.pollTimeoutMs": "7000", "kafka.default.api.timeout.ms": "9"}
    assert _parsed(**both).client["default.api.timeout.ms"] == "9"


def test_a_group_has_two_names_that_must_agree() -> None:
    assert _parsed(group="g").group == "g"
    assert _parsed(**{"kafka.group.id": "g"}).group == "g"
    assert _parsed(**{"kafka.group.id": "g", "group": "g"}).group == "g"
    with pytest.raises(ConfigError, match=r"group is 'g' but kafka.group.id is 'h'"):
        _parsed(**{"kafka.group.id": "h", "group": "g"})


def test_options_travel_to_executors() -> None:
    options = parse({**WHERE, "subscribePattern": "t.*", "startingOffsets": '{"t": {"0": 1}}'})
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "t"}, "kafka.bootstrap.servers is missing"),
        ({**WHERE, "bootstrap": "other:1", "subscribe": "t"}, "given twice, differently"),
        (WHERE, "exactly one of subscribe, subscribePattern and assign"),
        ({**WHERE, "subscribe": "t", "assign": "{}"}, "subscribe and assign exclude each other"),
        ({**WHERE, "subscribe": " , "}, "names no topic"),
        ({**WHERE, "subscribePattern": " "}, "subscribePattern is empty"),
        ({**WHERE, "subscribePattern": "("}, "no regular expression"),
        ({**WHERE, "assign": "t"}, "option assign must be JSON"),
    ],
)
def test_what_to_read_must_be_clear(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(options)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("startingOffset", "earliest", "unknown option startingoffset; did you mean startingOffsets?"),
        ("subscribed", "t", "unknown option subscribed; did you mean subscribe?"),
        ("kafka.security.protocl", "SSL", "did you mean kafka.security.protocol?"),
        ("kafka.bootstrap.server", "h:1", "did you mean kafka.bootstrap.servers?"),
        ("completelyDifferent", "1", "unknown option completelydifferent"),
        ("path", "t", "load() takes no path here: name the topics with option subscribe"),
        ("kafka.auto.offset.reset", "earliest", "say where to start with startingOffsets"),
        ("kafka.enable.auto.commit", "true", "option group"),
        ("kafka.key.deserializer", "x", "keys are binary"),
        ("kafka.value.deserializer", "x", "values are binary"),
        ("kafka.interceptor.classes", "x", "no Java code"),
        ("kafka.isolation.level", "dirty", "read_uncommitted or read_committed, not 'dirty'"),
        ("kafka.security.protocol", "nonsense", "security.protocol"),
        ("startingOffsets", "now", "earliest, latest or JSON, not 'now'"),
        ("startingTimestamp", "yesterday", "a whole number from 0"),
        ("startingTimestamp", "-1", "a whole number from 0"),
        ("startingOffsetsByTimestampStrategy", "x", "error or latest, not 'x'"),
        ("maxOffsetsPerTrigger", "0", "option maxOffsetsPerTrigger must be a whole number from 1"),
        ("maxOffsetsPerTrigger", "many", "option maxOffsetsPerTrigger must be a whole number"),
        ("maxBytesPerTrigger", "0", "a size such as 512k"),
        ("maxBytesPerTrigger", "10x", "a size such as 512k"),
        ("maxTriggerDelay", "10 fortnights", "a time such as 500ms"),
        ("minPartitions", "-1", "option minPartitions must be a whole number from 1"),
        ("maxRecordsPerPartition", "1e3", "option maxRecordsPerPartition must be a whole number"),
        ("failOnDataLoss", "maybe", "option failOnDataLoss must be true or false, not 'maybe'"),
        ("includeHeaders", "", "option includeHeaders must be true or false"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(name: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        _parsed(**{name: text})


def test_the_least_must_not_be_more_than_the_most() -> None:
    with pytest.raises(ConfigError, match=r"minOffsetsPerTrigger \(10\) is higher than maxOffsetsPerTrigger \(5\)"):
        _parsed(minOffsetsPerTrigger="10", maxOffsetsPerTrigger="5")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets cannot be latest in a batch query"),
        ({"startingOffsets": '{"t": {"0": -1}}'}, r"cannot be latest \(-1\) for t-0"),
        ({"endingOffsets": "earliest"}, "endingOffsets cannot be earliest in a batch query"),
        ({"endingOffsets": '{"t": {"0": -2}}'}, r"cannot be earliest \(-2\) for t-0"),
        ({"startingOffsets": '{"t": {"0": 1}}', "endingOffsets": '{"t": {"1": 5}}'}, "differ in their partitions"),
        ({"startingOffsets": '{"t": {"0": 9}}', "endingOffsets": '{"t": {"0": 5}}'}, "behind the end for t-0"),
        (
            {
                "startingOffsetsByTimestamp": '{"t": {"0": 9}}',
                "endingOffsetsByTimestamp": '{"t": {"0": 5}}',
            },
            "behind the end for t-0",
        ),
    ],
)
def test_a_batch_cannot_start_at_the_end_nor_end_before_its_start(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        _parsed(**options).for_batch()


def test_a_batch_may_go_from_an_offset_to_the_latest() -> None:
    options = _parsed(startingOffsets='{"t": {"0": 9}}', endingOffsets='{"t": {"0": -1}}')
    assert options.for_batch() is options


@pytest.mark.parametrize(
    "options",
    [
        {"endingOffsets": "latest"},
        {"endingTimestamp": "5"},
        {"endingOffsetsByTimestamp": '{"t": {"0": 5}}'},
    ],
)
def test_a_stream_has_no_end(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="a stream has no end"):
        _parsed(**options).for_stream()


def test_a_stream_may_stop_at_offsets() -> None:
    options = _parsed(stopAtOffsets='{"t": {"0": 5}}').for_stream()
    assert options.stop_at == {TopicPartition("t", 0): 5}
    with pytest.raises(ConfigError, match="stopAtOffsets is for streams"):
        options.for_batch()
    with pytest.raises(ConfigError, match="must have offsets from 0 on"):
        _parsed(stopAtOffsets='{"t": {"0": -1}}')


def test_names_that_others_understand_are_let_through() -> None:
    given = {**WHERE, "subscribe": "t", "format": "json"}
    assert parse(given, others=["format"]).subscription == Topics(("t",))
    with pytest.raises(ConfigError, match="did you mean format"):
        parse({**WHERE, "subscribe": "t", "formats": "json"}, others=["format"])


@pytest.mark.parametrize(
    ("document", "names"),
    [
        ("spark-source.md", OPTIONS),
        ("spark-sink.md", sink_options.OPTIONS),
        ("formats.md", OPTION_NAMES),
        ("pipelines.md", [*OPTIONS, *sink_options.OPTIONS]),
    ],
)
def test_every_option_is_documented(document: str, names: Iterable[str]) -> None:
    text = (Path(__file__).parents[3] / "docs" / document).read_text()
    assert [name for name in names if f"`{name}`" not in text] == []
