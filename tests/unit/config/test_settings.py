from pathlib import Path

import pytest

from headrace.config import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    ConfigError,
    ConfigSource,
    Setting,
    Type,
    effective_topic,
    parse_listener,
    render,
    render_docs,
    validate_topic_overrides,
)
from headrace.config.properties import parse_properties
from headrace.config.setting import one_of
from headrace.protocol.errors import CodedError, ErrorCode

EVERY_SETTING = [*TOPIC_SETTINGS.values(), *BROKER_SETTINGS.values()]


@pytest.mark.parametrize("setting", EVERY_SETTING, ids=lambda setting: setting.name)
def test_every_default_is_allowed_and_reads_back(setting: Setting) -> None:
    if setting.default is not None:
        assert render(setting.parse(setting.default)) == setting.default
    assert setting.doc


TOPICS_OWN = {
    "errors.deadletterqueue.group.enable",
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
    "headrace.schema.validation",
    "headrace.schema.validation.key",
    "headrace.storage.quota.bytes",
}


@pytest.mark.parametrize("setting", TOPIC_SETTINGS.values(), ids=lambda setting: setting.name)
def test_every_topic_setting_has_its_broker_twin(setting: Setting) -> None:
    if not setting.obsolete and setting.name not in TOPICS_OWN:
        assert setting.broker_name is not None
        twin = BROKER_SETTINGS[setting.broker_name]
        assert (twin.type, twin.default, twin.dynamic) == (setting.type, setting.default, True)


@pytest.mark.parametrize(
    ("name", "value", "parsed"),
    [
        ("num.partitions", " 12 ", 12),
        ("auto.create.topics.enable", "FALSE", False),
        ("log.cleaner.min.cleanable.ratio", "0.25", 0.25),
        ("log.cleanup.policy", "compact, delete", ("compact", "delete")),
        ("log.cleanup.policy", "", ()),
        ("log.retention.bytes", "9223372036854775807", 2**63 - 1),
        ("broker.rack", "eu-1a", "eu-1a"),
    ],
)
def test_values_have_the_type_of_their_setting(name: str, value: str, parsed: object) -> None:
    assert BrokerConfig.parse({name: value})[name] == parsed


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("num.partitions", "0", "at least 1"),
        ("num.partitions", "many", "a whole number from -2147483648 to 2147483647"),
        ("num.partitions", "2147483648", "a whole number"),
        ("num.partitions", "1_000", "a whole number"),
        ("num.partitions", "٣", "a whole number"),
        ("num.partitions", "", "a whole number"),
        ("num.partitions", "9" * 5000, "a whole number"),
        ("delete.topic.enable", "yes", "true or false"),
        ("log.cleaner.min.cleanable.ratio", "nan", "a number"),
        ("log.cleaner.min.cleanable.ratio", "1.5", "between 0 and 1"),
        ("log.cleanup.policy", "remove", "any of compact, delete"),
        ("log.cleanup.policy", "delete,delete", "each once"),
        ("group.consumer.assignors", "", "one or more of"),
        ("compression.type", "brotli", "one of uncompressed, zstd"),
        ("compression.gzip.level", "0", "-1, or between 1 and 9"),
        ("log.dirs", "/a,/b", "one directory"),
        ("listeners", "localhost:9092", "PLAINTEXT://127.0.0.1:9092"),
        ("listeners", "TLS://localhost:9092", "PLAINTEXT"),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(name: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.parse({name: value})
    assert name in str(caught.value)
    assert words in str(caught.value)


def test_a_password_is_never_repeated() -> None:
    setting = Setting(name="secret", type=Type.PASSWORD, default=None, doc="-", rule=one_of("right"))
    with pytest.raises(ConfigError) as caught:
        setting.parse("hunter2")
    assert "hunter2" not in str(caught.value)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"Unknown broker setting num.partition; did you mean num.partitions\?"):
        BrokerConfig.parse({"num.partition": "1"})
    with pytest.raises(ConfigError, match=r"Unknown broker setting zzzz$"):
        BrokerConfig.parse({"zzzz": "1"})


def test_a_lone_broker_syncs_before_it_acknowledges() -> None:
    assert effective_topic({}, BrokerConfig.parse({}))["flush.messages"] == 1
    assert effective_topic({}, BrokerConfig.parse({}, lone=False))["flush.messages"] == 2**63 - 1
    given = BrokerConfig.parse({"log.flush.interval.messages": "500"})
    assert effective_topic({}, given)["flush.messages"] == 500
    assert effective_topic({"flush.messages": "7"}, given)["flush.messages"] == 7


@pytest.mark.parametrize(
    ("given", "milliseconds"),
    [
        ({}, 604_800_000),
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_the_finest_unit_wins(given: dict[str, str], milliseconds: int) -> None:
    config = BrokerConfig.parse(given)
    assert config["log.retention.ms"] == effective_topic({}, config)["retention.ms"] == milliseconds


def test_older_names_still_count() -> None:
    assert BrokerConfig.parse({"broker.id": "7"}).node_id == 7
    assert BrokerConfig.parse({"node.id": "7"})["broker.id"] == 7
    assert BrokerConfig.parse({"log.dir": "/d"})["log.dirs"] == "/d"


def test_dynamic_settings_go_before_given_ones_until_they_are_taken_back() -> None:
    config = BrokerConfig.parse({"log.retention.ms": "1"})
    config.use_dynamic(cluster={"log.retention.ms": "2"}, own={})
    assert config["log.retention.ms"] == 2
    config.use_dynamic(cluster={"log.retention.ms": "2"}, own={"log.retention.ms": "3"})
    assert config["log.retention.ms"] == config.topic_defaults["retention.ms"] == 3
    assert [(found.text, found.source) for found in config.trace_topic("retention.ms", {"retention.ms": "4"})] == [
        ("4", ConfigSource.DYNAMIC_TOPIC),
        ("3", ConfigSource.DYNAMIC_BROKER),
        ("2", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ("1", ConfigSource.STATIC_BROKER),
        ("604800000", ConfigSource.DEFAULT),
    ]
    config.use_dynamic(cluster={}, own={})
    assert config["log.retention.ms"] == 1


def test_what_is_remembered_is_forgotten_when_a_setting_changes() -> None:
    config = BrokerConfig.parse({})
    first = config.remember("key", object)
    assert config.remember("key", object) is first
    config.use_dynamic(cluster={}, own={"log.retention.ms": "3"})
    assert config.remember("key", object) is not first


def test_a_setting_that_a_later_version_dropped_does_not_stop_a_topic() -> None:
    assert "gone" not in effective_topic({"gone": "1"}, BrokerConfig.parse({}))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"retention.msec": "1"}, "Unknown topic config name: retention.msec; did you mean retention.ms?"),
        ({"retention.ms": "-2"}, "Invalid value '-2' for configuration retention.ms: must be at least -1"),
        ({"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"}, "lower the first or raise the second"),
        ({"message.format.version": "0.10.2"}, "leave it out"),
    ],
)
def test_bad_topic_settings_are_invalid_config(overrides: dict[str, str], words: str) -> None:
    with pytest.raises(CodedError) as caught:
        validate_topic_overrides(overrides)
    assert caught.value.code is ErrorCode.invalid_config
    assert words in caught.value.message


@pytest.mark.parametrize("version", ["0.11.0", "1.0", "2.8-IV1", "3.0-IV1", "3.9.1"])
def test_settings_of_old_tools_that_hold_here_are_accepted(version: str) -> None:
    validate_topic_overrides({"message.format.version": version, "message.downconversion.enable": "true"})


def test_addresses() -> None:
    assert parse_listener("PLAINTEXT://[::1]:9092") == ("PLAINTEXT", "PLAINTEXT", "::1", 9092)
    assert BrokerConfig.parse({"listeners": "PLAINTEXT://h:1"}).advertised == ("PLAINTEXT", "PLAINTEXT", "h", 1)
    for host in ("", "0.0.0.0", "[::]"):
        config = BrokerConfig.parse({"listeners": f"PLAINTEXT://{host}:9092"})
        with pytest.raises(ConfigError, match=r"set advertised\.listeners"):
            _ = config.advertised
    with pytest.raises(ConfigError, match="must look like"):
        parse_listener("PLAINTEXT://h:99999")


def test_a_file_of_kafkas_is_read(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("# comment\n! another\n\nnode.id = 3\nlog.dirs:/tmp/x\nbroker.rack eu\\u002D1\\\n   b\n")
    config = BrokerConfig.from_file(file, overrides={"node.id": "4"})
    assert (config.node_id, config["log.dirs"], config["broker.rack"]) == (4, "/tmp/x", "eu-1b")


def test_what_is_wrong_with_a_file_is_said_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing"):
        BrokerConfig.from_file(tmp_path / "missing")
    file = tmp_path / "bad.properties"
    file.write_text("num.partitions=x")
    with pytest.raises(ConfigError, match=r"bad\.properties: Invalid value 'x'"):
        BrokerConfig.from_file(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        BrokerConfig.from_file(file)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("a", {"a": ""}),
        ("a\\=b=c=d", {"a=b": "c=d"}),
        ("p=C:\\\\x\\ty", {"p": "C:\\x\ty"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=1\\", {"a": "1"}),
        ("a=\\u00e9\\u12", {"a": "éu12"}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, parsed: dict[str, str]) -> None:
    assert parse_properties(text) == parsed


def test_the_docs_name_every_setting() -> None:
    page = render_docs()
    assert all(f"`{setting.name}`" in page for setting in EVERY_SETTING)


def test_every_type_has_a_parser() -> None:
    for kind in Type:
        Setting(name="x", type=kind, default=None, doc=".").parse("1" if kind is not Type.BOOLEAN else "true")
