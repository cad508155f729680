"""Kafka's own settings files, of 4.x and 3.x, and those that were made for more than a broker does here."""

import pytest

from headrace.config import BROKER_SETTINGS, BrokerConfig, ConfigError

KAFKA_4 = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.bootstrap.servers": "localhost:9093",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "inter.broker.listener.name": "PLAINTEXT",
    "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": (
        "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL"
    ),
    "num.network.threads": "3",
    "num.io.threads": "8",
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
    "socket.request.max.bytes": "104857600",
    "log.dirs": "/tmp/kraft-combined-logs",
    "num.partitions": "1",
    "num.recovery.threads.per.data.dir": "1",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.retention.hours": "168",
    "log.segment.bytes": "1073741824",
    "log.retention.check.interval.ms": "300000",
}
"""config/server.properties of Kafka 4.1."""
KAFKA_3 = {
    "broker.id": "0",
    "num.network.threads": "3",
    "num.io.threads": "8",
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
    "socket.request.max.bytes": "104857600",
    "log.dirs": "/tmp/kafka-logs",
    "num.partitions": "1",
    "num.recovery.threads.per.data.dir": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.retention.hours": "168",
    "log.retention.check.interval.ms": "300000",
    "zookeeper.connect": "localhost:2181",
    "zookeeper.connection.timeout.ms": "18000",
    "group.initial.rebalance.delay.ms": "0",
}
"""config/server.properties of Kafka 3.9."""


def test_kafka_4s_own_file_is_a_lone_broker() -> None:
    config = BrokerConfig.parse(KAFKA_4)
    assert config.lone
    assert config.listeners == (("PLAINTEXT", "PLAINTEXT", "0.0.0.0", 9092),)
    assert config.advertised == ("PLAINTEXT", "PLAINTEXT", "localhost", 9092)
    assert config["log.retention.ms"] == 168 * 3_600_000
    (_, plain), (words, quorum) = config.without_effect()
    assert plain == [
        "num.io.threads",
        "num.network.threads",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
    ]
    assert quorum == ["controller.listener.names", "controller.quorum.bootstrap.servers", "process.roles"]
    assert "zookeeper.connect" in words
    assert "alone" in words


def test_kafka_3s_own_file_is_a_broker_of_a_cluster() -> None:
    config = BrokerConfig.parse(KAFKA_3)
    assert not config.lone
    assert (config.node_id, config["zookeeper.connect"]) == (0, "localhost:2181")
    ((_, names),) = config.without_effect()
    assert "zookeeper.connection.timeout.ms" in names


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.parse({"num.partition": "1", "log.retention.hour": "2", "zzz": "1", "num.partitions": "x"})
    assert str(caught.value).splitlines() == [
        "4 settings are wrong",
        "Unknown broker setting num.partition; did you mean num.partitions?",
        "Unknown broker setting log.retention.hour; did you mean log.retention.hours?",
        "Unknown broker setting zzz",
        "Invalid value 'x' for configuration num.partitions: must be a whole number from -2147483648 to 2147483647",
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"process.roles": "controller"}, "leave this node out"),
        ({"process.roles": "broker"}, "set zookeeper.connect="),
        ({"controller.quorum.voters": "1@a:9093,2@b:9093,3@c:9093"}, "names 3 controllers"),
        ({"controller.quorum.bootstrap.servers": "a:9093,b:9093"}, "set zookeeper.connect="),
    ],
)
def test_nodes_of_a_quorum_do_not_start_each_alone(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.parse(given)
    assert words in str(caught.value)
    if given != {"process.roles": "controller"}:
        BrokerConfig.parse({**given, "zookeeper.connect": "a:2181"})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("authorizer.class.name", "com.example.Authorizer", "headrace, org.apache.kafka"),
        ("super.users", "alice", "User:alice;User:bob"),
        ("remote.log.storage.system.enable", "true", "tiered storage"),
        ("create.topic.policy.class.name", "com.example.Policy", "Java"),
        ("log.cleaner.enable", "false", "always compacted"),
    ],
)
def test_protection_and_functions_that_are_not_there_are_refused(name: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.parse({name: value})
    assert words in str(caught.value)


def test_the_addresses_of_controllers_are_left_out() -> None:
    with pytest.raises(ConfigError, match="is no controller of its own"):
        BrokerConfig.parse({"listeners": "CONTROLLER://:9093", "controller.listener.names": "CONTROLLER"})
    assert BrokerConfig.parse(KAFKA_4)["listeners"] == "PLAINTEXT://:9092"


def test_the_older_limit_of_timestamps_still_counts() -> None:
    config = BrokerConfig.parse({"log.message.timestamp.difference.max.ms": "5"})
    assert config.topic_defaults["message.timestamp.before.max.ms"] == 5
    assert config.topic_defaults["message.timestamp.after.max.ms"] == 5


def test_a_file_that_is_read_again_changes_what_is_dynamic_alone() -> None:
    config = BrokerConfig.parse({"log.retention.hours": "2", "num.partitions": "1", "max.connections": "10"})
    new = {"log.retention.hours": "3", "num.partitions": "4", "num.io.threads": "9", "min.insync.replicas": "2"}
    reloaded = config.reload(BrokerConfig.parse(new))
    assert reloaded.changed == ["log.retention.hours 2 -> 3", "max.connections 10 -> not set"]
    assert reloaded.needs_restart == ["min.insync.replicas", "num.partitions"]
    assert reloaded.overridden == []
    assert config["log.retention.ms"] == config.topic_defaults["retention.ms"] == 3 * 3_600_000
    assert (config["num.partitions"], config["num.io.threads"], config["min.insync.replicas"]) == (1, 9, 1)
    assert config["max.connections"] == 2**31 - 1
    assert config.reload(BrokerConfig.parse(new)).needs_restart == ["min.insync.replicas", "num.partitions"]


def test_what_alter_configs_has_set_goes_before_a_file_that_is_read_again() -> None:
    config = BrokerConfig.parse({"log.retention.ms": "1"})
    config.use_dynamic(cluster={}, own={"log.retention.ms": "5"})
    reloaded = config.reload(BrokerConfig.parse({"log.retention.ms": "2"}))
    assert (reloaded.changed, reloaded.overridden) == ([], ["log.retention.ms 1 -> 2"])
    assert config["log.retention.ms"] == 5
    config.use_dynamic(cluster={}, own={})
    assert config["log.retention.ms"] == 2


def test_another_unit_that_comes_to_the_same_is_no_change() -> None:
    config = BrokerConfig.parse({"log.retention.hours": "2"})
    assert config.reload(BrokerConfig.parse({"log.retention.minutes": "120"})) == ([], [], [])
    assert config.reload(BrokerConfig.parse({"log.retention.minutes": "120", "log.retention.hours": "9"})) == (
        [],
        [],
        [],
    )
    assert config["log.retention.ms"] == 7_200_000


def test_settings_without_effect_say_so_where_they_are_described() -> None:
    for name in ("background.threads", "num.io.threads", "num.replica.fetchers", "log.cleaner.threads"):
        assert BROKER_SETTINGS[name].doc.startswith("No effect here: ")
        assert BROKER_SETTINGS[name].dynamic
