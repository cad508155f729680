import logging
from dataclasses import replace
from typing import Any

import pytest

from headrace.config import BROKER_SETTINGS, TOPIC_SETTINGS
from headrace.config.log_levels import LogLevels
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from tests.support.handlers import Harness, versions

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS = 2, 4, 8, 16
SET, DELETE, APPEND, SUBTRACT = range(4)
IN_USE = {name for name, setting in TOPIC_SETTINGS.items() if not setting.obsolete}


def describe(broker: Harness, kind: int, name: str, version: int = 4, **options: Any) -> Any:
    keys = options.pop("keys", None)
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    (result,) = broker.ask(ApiKey.DESCRIBE_CONFIGS, version, resources=[resource], **options).results
    return result


def values(result: Any) -> dict[str, Any]:
    return {config.name: config.value for config in result.configs}


def alter(broker: Harness, kind: int, name: str, *changes: tuple[str, int, str | None], **options: Any) -> Any:
    configs = [{"name": n, "config_operation": operation, "value": v} for n, operation, v in changes]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    version = options.pop("version", 1)
    (result,) = broker.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, resources=[resource], **options).responses
    return result


def replace_all(broker: Harness, kind: int, name: str, configs: dict[str, str | None], **options: Any) -> Any:
    given = [{"name": n, "value": v} for n, v in configs.items()]
    resource = {"resource_type": kind, "resource_name": name, "configs": given}
    version = options.pop("version", 2)
    (result,) = broker.ask(ApiKey.ALTER_CONFIGS, version, resources=[resource], **options).responses
    return result


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_CONFIGS))
def test_a_topic_is_described_in_every_version(version: int) -> None:
    broker = Harness({"log.retention.hours": "2"})
    broker.topic("t", cleanup_policy="compact,delete")
    result = describe(broker, TOPIC, "t", version, include_synonyms=True, include_documentation=True)
    configs = {config.name: config for config in result.configs}
    assert (result.error_code, result.resource_name, set(configs)) == (ErrorCode.none, "t", IN_USE)
    policy, retention, size = (configs[n] for n in ("cleanup.policy", "retention.ms", "segment.bytes"))
    assert (policy.value, policy.config_source) == ("compact,delete", 1)
    assert (retention.value, retention.config_source) == ("7200000", 4)
    assert (size.value, size.config_source, size.read_only, size.is_sensitive) == ("1073741824", 5, False, False)
    assert [(s.name, s.value, s.source) for s in policy.synonyms] == [
        ("cleanup.policy", "compact,delete", 1),
        ("log.cleanup.policy", "delete", 5),
    ]
    assert [(s.name, s.value, s.source) for s in retention.synonyms] == [
        ("log.retention.hours", "2", 4),
        ("log.retention.ms", "604800000", 5),
    ]
    if version >= 3:
        assert (policy.config_type, retention.config_type, size.config_type) == (7, 5, 3)
        assert "deleted" in retention.documentation
    broker.close()


def test_only_the_settings_asked_for_are_described(broker: Harness) -> None:
    broker.topic("t")
    result = describe(broker, TOPIC, "t", keys=["retention.ms", "no.such"])
    assert values(result) == {"retention.ms": "604800000"}
    assert len(describe(broker, TOPIC, "t", keys=[]).configs) == len(IN_USE)
    (config,) = result.configs
    assert (config.synonyms, config.documentation) == ((), None)


def test_a_broker_is_described_by_itself(broker: Harness) -> None:
    result = describe(broker, BROKER, "1")
    configs = {config.name: config for config in result.configs}
    assert configs["log.retention.ms"].read_only is False
    assert configs["num.partitions"].read_only is True
    assert (configs["auto.create.topics.enable"].value, configs["auto.create.topics.enable"].config_source) == (
        "false",
        4,
    )
    assert configs["log.flush.interval.messages"].value == "1"
    assert configs["broker.rack"].value is None
    assert values(describe(broker, BROKER, "")) == {}


def test_a_password_is_described_without_its_value() -> None:
    name = next(setting.name for setting in BROKER_SETTINGS.values() if setting.sensitive)
    secret = 'PlainLoginModule required user_alice="hunter2";'
    broker = Harness({name: secret})
    (config,) = describe(broker, BROKER, "1", keys=[name], include_synonyms=True).configs
    assert (config.is_sensitive, config.value, config.config_source) == (True, None, 4)
    assert [s.value for s in config.synonyms] == [None]
    broker.close()


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "missing", ErrorCode.unknown_topic_or_partition),
        (TOPIC, "..", ErrorCode.invalid_topic_exception),
        (BROKER, "2", ErrorCode.invalid_request),
        (BROKER, "one", ErrorCode.invalid_request),
        (BROKER_LOGGER, "2", ErrorCode.invalid_request),
        (BROKER_LOGGER, "", ErrorCode.invalid_request),
        (CLIENT_METRICS, "", ErrorCode.invalid_request),
        (77, "1", ErrorCode.invalid_request),
    ],
)
def test_resources_that_have_no_settings_are_refused(broker: Harness, kind: int, name: str, code: ErrorCode) -> None:
    for result in (
        describe(broker, kind, name),
        alter(broker, kind, name, ("retention.ms", SET, "1")),
        replace_all(broker, kind, name, {"retention.ms": "1"}),
    ):
        assert (result.error_code, result.resource_type, result.resource_name) == (code, kind, name)
        assert result.error_message


@pytest.mark.parametrize("version", versions(ApiKey.INCREMENTAL_ALTER_CONFIGS))
def test_settings_change_one_by_one_in_every_version(broker: Harness, version: int) -> None:
    broker.topic("t", retention_ms="1000", segment_bytes="2000")
    result = alter(broker, TOPIC, "t", ("retention.ms", SET, "5"), ("segment.bytes", DELETE, None), version=version)
    assert result.error_code is ErrorCode.none
    topic = broker.image.topic("t")
    assert topic is not None
    assert topic.configs == {"retention.ms": "5"}
    assert broker.replicas.applied[-1] is topic


def test_lists_grow_and_shrink(broker: Harness) -> None:
    broker.topic("t")

    def policy() -> str | None:
        found: str | None = values(describe(broker, TOPIC, "t"))["cleanup.policy"]
        return found

    assert alter(broker, TOPIC, "t", ("cleanup.policy", APPEND, "compact")).error_code is ErrorCode.none
    assert policy() == "delete,compact"
    assert alter(broker, TOPIC, "t", ("cleanup.policy", APPEND, "compact")).error_code is ErrorCode.none
    assert policy() == "delete,compact"
    assert alter(broker, TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete")).error_code is ErrorCode.none
    assert policy() == "compact"
    assert alter(broker, TOPIC, "t", ("cleanup.policy", SUBTRACT, "compact")).error_code is ErrorCode.none
    assert policy() == ""
    assert alter(broker, TOPIC, "t", ("cleanup.policy", APPEND, "compact")).error_code is ErrorCode.none
    assert policy() == "compact"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([("retention.ms", SET, "soon")], ErrorCode.invalid_config),
        ([("retention", SET, "1")], ErrorCode.invalid_config),
        ([("retention.ms", SET, None)], ErrorCode.invalid_request),
        ([("retention.ms", 9, "1")], ErrorCode.invalid_request),
        ([("retention.ms", APPEND, "1")], ErrorCode.invalid_config),
        ([("nothing", APPEND, "1")], ErrorCode.invalid_config),
        ([("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], ErrorCode.invalid_request),
        ([("min.compaction.lag.ms", SET, "9"), ("max.compaction.lag.ms", SET, "8")], ErrorCode.invalid_config),
        ([("preallocate", SET, "true")], ErrorCode.invalid_config),
        ([(f"x{number}", SET, "1") for number in range(1_001)], ErrorCode.invalid_request),
    ],
)
def test_changes_that_cannot_be_are_refused(broker: Harness, changes: list[Any], code: ErrorCode) -> None:
    topic = broker.topic("t")
    result = alter(broker, TOPIC, "t", *changes)
    assert result.error_code is code
    assert result.error_message
    assert broker.image.topic("t") is topic


@pytest.mark.parametrize("version", versions(ApiKey.ALTER_CONFIGS))
def test_alter_configs_replaces_all_in_every_version(broker: Harness, version: int) -> None:
    broker.topic("t", retention_ms="1000")
    assert replace_all(broker, TOPIC, "t", {"segment.bytes": "5000"}, version=version).error_code is ErrorCode.none
    topic = broker.image.topic("t")
    assert topic is not None
    assert topic.configs == {"segment.bytes": "5000"}
    assert replace_all(broker, TOPIC, "t", {"segment.bytes": None}, version=version).error_code is (
        ErrorCode.invalid_request
    )


def test_validate_only_changes_nothing(broker: Harness) -> None:
    topic = broker.topic("t")
    assert alter(broker, TOPIC, "t", ("retention.ms", SET, "5"), validate_only=True).error_code is ErrorCode.none
    assert replace_all(broker, TOPIC, "t", {"retention.ms": "5"}, validate_only=True).error_code is ErrorCode.none
    assert alter(broker, BROKER, "", ("log.retention.ms", SET, "5"), validate_only=True).error_code is ErrorCode.none
    assert broker.image.topic("t") is topic
    assert broker.image.broker_configs == {}


def test_a_resource_that_stands_twice_is_refused(broker: Harness) -> None:
    broker.topic("t")
    resource = {"resource_type": TOPIC, "resource_name": "t", "configs": []}
    answer = broker.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource, resource])
    assert [r.error_code for r in answer.responses] == [ErrorCode.invalid_request] * 2


def test_broker_settings_change_for_all_and_for_one(broker: Harness) -> None:
    broker.topic("t")
    assert alter(broker, BROKER, "", ("log.retention.ms", SET, "100")).error_code is ErrorCode.none
    assert alter(broker, BROKER, "1", ("log.retention.ms", SET, "50")).error_code is ErrorCode.none
    assert broker.config["log.retention.ms"] == 50
    (config,) = describe(broker, TOPIC, "t", keys=["retention.ms"], include_synonyms=True).configs
    assert (config.value, config.config_source) == ("50", 2)
    assert [(s.value, s.source) for s in config.synonyms] == [("50", 2), ("100", 3), ("604800000", 5)]
    assert values(describe(broker, BROKER, "")) == {"log.retention.ms": "100"}
    assert broker.replicas.applied[-1].name == "t"
    assert alter(broker, BROKER, "1", ("log.retention.ms", DELETE, None)).error_code is ErrorCode.none
    assert broker.config["log.retention.ms"] == 100


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("num.partitions", "5", "restart the broker"),
        ("log.retention", "5", "did you mean log.retention"),
        ("log.retention.ms", "x", "whole number"),
    ],
)
def test_broker_settings_that_cannot_change_say_why(broker: Harness, name: str, value: str, words: str) -> None:
    result = alter(broker, BROKER, "1", (name, SET, value))
    assert result.error_code is ErrorCode.invalid_request
    assert words in result.error_message


@pytest.mark.parametrize("version", versions(ApiKey.LIST_CONFIG_RESOURCES))
def test_resources_are_listed_in_every_version(broker: Harness, version: int) -> None:
    broker.topic("t")
    answer = broker.ask(ApiKey.LIST_CONFIG_RESOURCES, version)
    listed = [(r.resource_type, r.resource_name) for r in answer.config_resources] if version else []
    assert answer.error_code is ErrorCode.none
    assert listed == ([(TOPIC, "t"), (BROKER, "1"), (BROKER_LOGGER, "1")] if version else [])
    if version:
        only = broker.ask(ApiKey.LIST_CONFIG_RESOURCES, version, resource_types=[CLIENT_METRICS, BROKER])
        assert [r.resource_name for r in only.config_resources] == ["1"]
        with pytest.raises(CodedError) as caught:
            broker.ask(ApiKey.LIST_CONFIG_RESOURCES, version, resource_types=[3])
        assert caught.value.code is ErrorCode.unsupported_version


@pytest.fixture
def levels(broker: Harness) -> LogLevels:
    """Of the broker, in place of those of this process."""
    own = LogLevels()
    broker.context = replace(broker.context, log_levels=own)
    return own


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_CONFIGS))
def test_loggers_are_described_in_every_version(broker: Harness, levels: LogLevels, version: int) -> None:
    levels.set("headrace.replication", "DEBUG")
    result = describe(broker, BROKER_LOGGER, "1", version, include_synonyms=True, include_documentation=True)
    found = values(result)
    assert found["ROOT"] == found["headrace.server.dispatch"] == "INFO"
    assert found["headrace.replication"] == found["headrace.replication.isr"] == "DEBUG"
    assert {(config.config_source, config.read_only) for config in result.configs} == {(6, False)}
    assert values(describe(broker, BROKER_LOGGER, "1", version, keys=["ROOT"])) == {"ROOT": "INFO"}


@pytest.mark.parametrize("version", versions(ApiKey.INCREMENTAL_ALTER_CONFIGS))
def test_levels_of_loggers_change_at_once_in_every_version(broker: Harness, levels: LogLevels, version: int) -> None:
    name = "headrace.server.dispatch"
    changes = (name, SET, "DEBUG"), ("ROOT", SET, "WARN")
    assert alter(broker, BROKER_LOGGER, "1", *changes, version=version, validate_only=True).error_code is ErrorCode.none
    assert levels.of(name) == "INFO"
    assert alter(broker, BROKER_LOGGER, "1", *changes, version=version).error_code is ErrorCode.none
    assert (levels.of(name), levels.of("headrace.server.broker")) == ("DEBUG", "WARN")
    assert levels.allows(name, logging.DEBUG)
    assert not levels.allows("headrace.server.broker", logging.INFO)
    assert alter(broker, BROKER_LOGGER, "1", (name, DELETE, None), version=version).error_code is ErrorCode.none
    assert levels.of(name) == "WARN"
    assert broker.image.broker_configs == {}


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (("headrace.server.dispach", SET, "INFO"), ErrorCode.invalid_config, "did you mean headrace.server.dispatch?"),
        (("ROOT", SET, "LOUD"), ErrorCode.invalid_config, "Valid log levels are TRACE, DEBUG"),
        (("ROOT", SET, None), ErrorCode.invalid_config, "Valid log levels"),
        (("ROOT", DELETE, None), ErrorCode.invalid_request, "not allowed"),
        (("ROOT", APPEND, "INFO"), ErrorCode.invalid_request, "not allowed"),
    ],
)
def test_levels_that_cannot_be_are_refused_and_change_nothing(
    broker: Harness, levels: LogLevels, change: tuple[str, int, str | None], code: ErrorCode, words: str
) -> None:
    result = alter(broker, BROKER_LOGGER, "1", ("headrace.server", SET, "DEBUG"), change)
    assert result.error_code is code
    assert words in result.error_message
    assert levels.of("headrace.server") == "INFO"
    assert replace_all(broker, BROKER_LOGGER, "1", {"ROOT": "INFO"}).error_code is ErrorCode.invalid_request


@pytest.mark.parametrize("version", versions(ApiKey.INCREMENTAL_ALTER_CONFIGS))
def test_subscriptions_to_client_metrics_are_kept_described_and_listed(broker: Harness, version: int) -> None:
    changes = ("metrics", SET, "org.apache.kafka.producer."), ("interval.ms", SET, "60000")
    assert alter(broker, CLIENT_METRICS, "basic", *changes, version=version).error_code is ErrorCode.none
    match = ("match", APPEND, "client_id=orders.*")
    assert alter(broker, CLIENT_METRICS, "basic", match, version=version).error_code is ErrorCode.none
    broker.image.client_metrics.clear()
    broker.run(broker.controller.load())
    result = describe(broker, CLIENT_METRICS, "basic", include_synonyms=True)
    assert values(result) == {
        "interval.ms": "60000",
        "match": "client_id=orders.*",
        "metrics": "org.apache.kafka.producer.",
    }
    assert {config.config_source for config in result.configs} == {7}
    assert values(describe(broker, CLIENT_METRICS, "other")) == {"interval.ms": "300000", "match": "", "metrics": ""}
    assert [r.resource_name for r in broker.ask(ApiKey.LIST_CONFIG_RESOURCES, 0).config_resources] == ["basic"]
    gone = [(name, DELETE, None) for name in ("metrics", "interval.ms", "match")]
    assert alter(broker, CLIENT_METRICS, "basic", *gone, version=version).error_code is ErrorCode.none
    assert broker.ask(ApiKey.LIST_CONFIG_RESOURCES, 0).config_resources == ()


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("interval.ms", "1", ErrorCode.invalid_request),
        ("interval", "1000", ErrorCode.invalid_request),
        ("match", "client=a", ErrorCode.invalid_config),
        ("match", "client_id=(", ErrorCode.invalid_config),
    ],
)
def test_subscriptions_that_cannot_be_are_refused(broker: Harness, name: str, value: str, code: ErrorCode) -> None:
    assert alter(broker, CLIENT_METRICS, "basic", (name, SET, value)).error_code is code
    assert broker.image.client_metrics == {}


def test_settings_without_effect_are_set_and_shown_as_such(broker: Harness) -> None:
    names = (
        "background.threads",
        "num.io.threads",
        "num.replica.fetchers",
        "log.cleaner.threads",
        "sasl.kerberos.min.time.before.relogin",
    )
    for name in names:
        assert alter(broker, BROKER, "", (name, SET, "3")).error_code is ErrorCode.none
    configs = describe(broker, BROKER, "1", keys=names, include_documentation=True).configs
    assert {config.name: config.value for config in configs} == dict.fromkeys(names, "3")
    assert all(config.documentation.startswith("No effect here: ") for config in configs)
    refused = alter(broker, BROKER, "1", ("socket.send.buffer.bytes", SET, "1"))
    assert refused.error_code is ErrorCode.invalid_request
    assert "no effect here" in refused.error_message
    assert alter(broker, BROKER, "1", ("num.io.threads", SET, "many")).error_code is ErrorCode.invalid_request


def test_settings_that_only_older_kafkas_had_are_shown_where_they_are_set() -> None:
    broker = Harness({"inter.broker.protocol.version": "3.9-IV0"})
    found = values(describe(broker, BROKER, "1"))
    assert found["inter.broker.protocol.version"] == "3.9-IV0"
    assert "log.message.format.version" not in found
    broker.close()
