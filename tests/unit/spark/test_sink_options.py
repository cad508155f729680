"""Every option of the sink is understood, or refused with words that say what to write."""

import pytest

from headrace.config.setting import ConfigError
from headrace.spark.sink.options import DECISIONS_TOPIC, Delivery, parse_sink_options

BROKERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


def test_only_the_brokers_must_be_given() -> None:
    options = parse_sink_options(BROKERS)
    assert options.topic is None
    assert options.delivery is Delivery.AUTO
    assert not options.rewrite_torn
    assert options.decisions_topic == DECISIONS_TOPIC
    assert options.client["bootstrap.servers"] == "127.0.0.1:9092"


def test_names_are_taken_in_any_case() -> None:
    given = {"KAFKA.Bootstrap.Servers": "h:1", "Topic": "orders", "DELIVERY": "Exactly-Once", "tornbatch": "rewrite"}
    options = parse_sink_options(given)
    assert options.topic == "orders"
    assert options.delivery is Delivery.EXACTLY_ONCE
    assert options.rewrite_torn


def test_client_settings_are_passed_on() -> None:
    settings = {
        "kafka.acks": "1",
        "kafka.compression.type": "zstd",
        "kafka.batch.size": "50000",
        "kafka.linger.ms": "5",
    }
    client = parse_sink_options(BROKERS | settings).client
    assert {name.removeprefix("kafka."): value for name, value in settings.items()}.items() <= client.items()


def test_a_transaction_may_take_as_long_as_brokers_allow_unless_said_otherwise() -> None:
    assert parse_sink_options(BROKERS).client["transaction.timeout.ms"] == "900000"
    given = BROKERS | {"kafka.transaction.timeout.ms": "60000"}
    assert parse_sink_options(given).client["transaction.timeout.ms"] == "60000"


def test_a_batch_write_can_be_one_of_a_series() -> None:
    given = BROKERS | {"txnAppId": "orders", "txnVersion": "12"}
    assert parse_sink_options(given).version == ("orders", 12)


def test_the_checkpoint_tells_queries_apart() -> None:
    assert parse_sink_options(BROKERS | {"checkpointLocation": "/c"}).checkpoint == "/c"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tpic": "orders"}, "unknown option tpic of the sink; did you mean topic"),
        ({"tornbatc": "fail"}, "did you mean tornBatch"),
        ({"kafka.compresion.type": "zstd"}, "did you mean kafka.compression.type"),
        ({"kafka.batch.size": "many"}, "batch.size"),
        ({"kafka.transactional.id": "mine"}, "names its transactions itself"),
        ({"kafka.key.serializer": "x"}, "keys are written as they are"),
        ({"kafka.partitioner.class": "x"}, "column partition"),
        ({"delivery": "once"}, "delivery must be auto, exactly-once or at-least-once, not 'once'"),
        ({"tornBatch": "ignore"}, "tornBatch must be fail or rewrite"),
        ({"topic": " "}, "topic is empty"),
        ({"txnAppId": "app"}, "txnAppId and txnVersion belong together"),
        ({"txnAppId": "app", "txnVersion": "first"}, "txnVersion must be a whole number"),
        ({"path": "/tmp/x"}, "a topic has no path"),
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers is missing"),
        ({"bootstrap": "other:1"}, "given twice"),
        ({"delivery": "exactly-once", "kafka.acks": "1"}, "remove kafka.acks=1"),
        ({"delivery": "exactly-once", "kafka.enable.idempotence": "false"}, "remove kafka.enable.idempotence=false"),
    ],
)
def test_what_cannot_be_is_refused_in_words(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_sink_options(BROKERS | given)


@pytest.mark.parametrize(
    ("settings", "weakness"),
    [
        ({}, None),
        ({"kafka.acks": "all"}, None),
        ({"kafka.acks": "0"}, "kafka.acks=0"),
        ({"kafka.enable.idempotence": "false"}, "kafka.enable.idempotence=false"),
    ],
)
def test_settings_without_acknowledgement_rule_transactions_out(settings: dict[str, str], weakness: str | None) -> None:
    assert parse_sink_options(BROKERS | settings).weakness == weakness


def test_what_spark_adds_for_a_named_query_is_taken() -> None:
    given = BROKERS | {"queryname": "orders", "checkpointlocation": "/data/checkpoint", "topic": "orders"}
    assert parse_sink_options(given).topic == "orders"
