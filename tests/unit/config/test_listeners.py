"""Several listeners: names, protocols, addresses, the one for brokers, and which are closed by default."""

import pytest

from headrace.config import BrokerConfig, ConfigError
from headrace.config.listeners import ListenerAddress

MAP = {"listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:SASL_SSL"}
TWO = {"listeners": "EXTERNAL://0.0.0.0:9093,INTERNAL://10.0.0.1:9092", **MAP}
ADVERTISED = {"advertised.listeners": "EXTERNAL://kafka.example.com:443,INTERNAL://10.0.0.1:9092"}
CLUSTER = {"zookeeper.connect": "z:2181"}


def test_each_listener_has_a_name_a_protocol_and_an_address_for_clients() -> None:
    config = BrokerConfig.parse({**TWO, **ADVERTISED, "inter.broker.listener.name": "internal"})
    assert config.listeners == (
        ("EXTERNAL", "SASL_SSL", "0.0.0.0", 9093),
        ("INTERNAL", "PLAINTEXT", "10.0.0.1", 9092),
    )
    assert config.advertised_listeners == (
        ("EXTERNAL", "SASL_SSL", "kafka.example.com", 443),
        ("INTERNAL", "PLAINTEXT", "10.0.0.1", 9092),
    )
    assert (config.inter_broker_listener, config.is_inter_broker_listener_set) == ("INTERNAL", True)
    assert config.listener.name == config.advertised.name == "EXTERNAL"


def test_a_listener_that_is_not_advertised_is_served_all_the_same() -> None:
    config = BrokerConfig.parse({**TWO, "advertised.listeners": "INTERNAL://10.0.0.1:9092"})
    assert [listener.name for listener in config.listeners] == ["EXTERNAL", "INTERNAL"]
    assert [listener.name for listener in config.advertised_listeners] == ["INTERNAL"]
    assert config.listener.name == "INTERNAL"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"listeners": "PLAINTEXT://a:1,PLAINTEXT://b:2"}, "more than one listener PLAINTEXT"),
        ({"listeners": "a://h:1,A://h:2", **MAP}, "what the listener A speaks is not known"),
        ({"listeners": "INTERNAL://h:1,internal://h:2", **MAP}, "more than one listener INTERNAL"),
        ({"listeners": "INTERNAL://10.0.0.1:1,EXTERNAL://10.0.0.2:1", **MAP}, "must have a different port than 1"),
        ({"listeners": "INTERNAL://[::1]:1,EXTERNAL://[::2]:1", **MAP}, "must have a different port than 1"),
        ({"listeners": "INTERNAL://h:1,EXTERNAL://127.0.0.1:1", **MAP}, "must have a different port than 1"),
        ({"listeners": "OTHER://h:1", **MAP}, "what the listener OTHER speaks is not known"),
        ({"listeners": "PLAINTEXT://h:99999"}, "must look like"),
        ({"listeners": "PLAINTEXT://h:٩"}, "must look like"),
        ({"listeners": "PLAINTEXT://a b:1"}, "must look like"),
        ({"listeners": "PLAINTEXT://::1:9092"}, "must look like"),
        ({"listeners": "PLAINTEXT://[zz]:9092"}, "'zz' is no IPv6 address"),
        ({"listeners": "PLAINTEXT://[10.0.0.1]:9092"}, "'10.0.0.1' is no IPv6 address"),
        ({"listeners": "PLAINTEXT://h:1\nx"}, "must look like"),
        ({"listeners": "PLAINTEXT"}, "must look like"),
        ({"listeners": "x" * 5000}, "must look like"),
        ({"listener.security.protocol.map": "A:TLS"}, "A speak TLS, which is none of"),
        ({"listener.security.protocol.map": "A:SSL,A:PLAINTEXT"}, "A speak both SSL and PLAINTEXT"),
        ({"listener.security.protocol.map": "A"}, "must be pairs like"),
        ({"listener.security.protocol.map": ":SSL"}, "must be pairs like"),
        ({**TWO, "advertised.listeners": "OTHER://h:1"}, "what the listener OTHER speaks is not known"),
        ({**TWO, "advertised.listeners": "PLAINTEXT://h:1"}, "names PLAINTEXT, which listeners does not"),
        ({**TWO, "advertised.listeners": "INTERNAL://h:1,INTERNAL://i:1"}, "more than one listener INTERNAL"),
        ({**TWO, "inter.broker.listener.name": "PLAINTEXT"}, "these are: EXTERNAL, INTERNAL"),
        ({**TWO, "security.inter.broker.protocol": "SASL_SSL"}, "these are: EXTERNAL, INTERNAL"),
        ({**TWO, "security.inter.broker.protocol": "TLS"}, "must be one of PLAINTEXT, SSL"),
        ({**TWO, "advertised.listeners": "EXTERNAL://h:1", "inter.broker.listener.name": "INTERNAL"}, "these are: EXT"),
        (
            {**TWO, "inter.broker.listener.name": "INTERNAL", "security.inter.broker.protocol": "PLAINTEXT"},
            "Only one of inter.broker.listener.name and security.inter.broker.protocol",
        ),
        ({**TWO, **CLUSTER}, "say at which one the brokers reach each other, inter.broker.listener.name=EXTERNAL"),
        ({**TWO, "listener.name.extrenal.ssl.client.auth": "required"}, "of a listener EXTRENAL that does not exist"),
        ({**TWO, "listener.name.external.num.partitions": "2"}, "Unknown broker setting"),
        ({"listeners": "CONTROLLER://:9093", "controller.listener.names": "CONTROLLER"}, "no controller of its own"),
    ],
)
def test_what_is_wrong_with_listeners_is_said_with_what_to_do(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.parse(given)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 600
    assert "\n" not in str(caught.value)


def test_two_listeners_share_a_port_at_an_ipv4_and_an_ipv6_address_as_in_kafka() -> None:
    config = BrokerConfig.parse({"listeners": "INTERNAL://127.0.0.1:1,EXTERNAL://[::1]:1", **MAP})
    assert [listener.host for listener in config.listeners] == ["127.0.0.1", "::1"]
    BrokerConfig.parse({"listeners": "INTERNAL://127.0.0.1:0,EXTERNAL://127.0.0.1:0", **MAP})


def test_a_wildcard_needs_an_address_for_clients() -> None:
    with pytest.raises(ConfigError, match=r"such as EXTERNAL://broker1\.example\.com:9093"):
        _ = BrokerConfig.parse(TWO).advertised_listeners
    with pytest.raises(ConfigError, match=r"Clients cannot connect to 0\.0\.0\.0"):
        _ = BrokerConfig.parse({**TWO, "advertised.listeners": "EXTERNAL://0.0.0.0:1"}).advertised_listeners


@pytest.mark.parametrize(
    ("given", "name", "is_set"),
    [
        ({}, "PLAINTEXT", False),
        ({"listeners": "SASL_PLAINTEXT://127.0.0.1:1"}, "SASL_PLAINTEXT", False),
        ({"listeners": "SSL://h:2,PLAINTEXT://h:1"}, "PLAINTEXT", False),
        ({"listeners": "SSL://h:2,PLAINTEXT://h:1", "security.inter.broker.protocol": "SSL"}, "SSL", True),
        ({**TWO, **ADVERTISED, "inter.broker.listener.name": "external"}, "EXTERNAL", True),
    ],
)
def test_brokers_reach_each_other_at_one_listener(given: dict[str, str], name: str, is_set: bool) -> None:
    config = BrokerConfig.parse({**given, **CLUSTER})
    assert (config.inter_broker_listener, config.is_inter_broker_listener_set) == (name, is_set)


def test_the_listener_for_brokers_does_not_stand_for_the_broker() -> None:
    given = {"listeners": "INTERNAL://10.0.0.1:9092,EXTERNAL://10.0.0.1:9093", **MAP}
    assert BrokerConfig.parse({**given, "inter.broker.listener.name": "INTERNAL"}).advertised.name == "EXTERNAL"
    assert BrokerConfig.parse(given).advertised.name == "INTERNAL"


def test_a_setting_of_one_listener_goes_before_that_of_all() -> None:
    given = {
        **TWO,
        **ADVERTISED,
        "listener.name.external.ssl.client.auth": "required",
        "listener.name.external.connections.max.reauth.ms": "5",
        "listener.name.external.plain.connections.max.reauth.ms": "6",
    }
    config = BrokerConfig.parse(given)
    assert config.of_listener("EXTERNAL", "ssl.client.auth") == "required"
    assert config.of_listener("INTERNAL", "ssl.client.auth") == "none"
    assert config.of_listener("EXTERNAL", "connections.max.reauth.ms", "PLAIN") == 6
    assert config.of_listener("EXTERNAL", "connections.max.reauth.ms", "SCRAM-SHA-256") == 5
    assert config.of_listener("INTERNAL", "connections.max.reauth.ms", "PLAIN") == 0


@pytest.mark.parametrize(
    "given",
    [
        {"listeners": "PLAINTEXT://127.0.0.1:9092"},
        {"listeners": "PLAINTEXT://127.8.9.1:9092"},
        {"listeners": "PLAINTEXT://[::1]:9092"},
        {"listeners": "PLAINTEXT://localhost:9092"},
        {"listeners": "SASL_PLAINTEXT://10.0.0.1:9092"},
        {"listeners": "SASL_SSL://10.0.0.1:9092"},
        {"listeners": "SSL://10.0.0.1:9092", "ssl.client.auth": "required"},
        {"listeners": "SSL://10.0.0.1:9092", "listener.name.ssl.ssl.client.auth": "required"},
        {"listeners": "PLAINTEXT://10.0.0.1:9092", "headrace.allow.anonymous.listeners": "true"},
    ],
)
def test_a_listener_whose_clients_are_known_or_near_may_be_open(given: dict[str, str]) -> None:
    BrokerConfig.parse(given).refuse_open_listeners()


@pytest.mark.parametrize(
    "given",
    [
        {"listeners": "PLAINTEXT://10.0.0.1:9092"},
        {"listeners": "PLAINTEXT://:9092", "advertised.listeners": "PLAINTEXT://127.0.0.1:9092"},
        {"listeners": "PLAINTEXT://[::]:9092"},
        {"listeners": "PLAINTEXT://127.0.0.1.example.com:9092"},
        {"listeners": "PLAINTEXT://localhost.example.com:9092"},
        {"listeners": "SSL://10.0.0.1:9092"},
        {"listeners": "SSL://10.0.0.1:9092", "ssl.client.auth": "requested"},
        {
            "listeners": "SSL://10.0.0.1:9092",
            "ssl.client.auth": "required",
            "listener.name.ssl.ssl.client.auth": "none",
        },
        {"listeners": "SASL_SSL://0.0.0.0:9093,PLAINTEXT://0.0.0.0:9092"},
    ],
)
def test_beyond_this_machine_nobody_is_let_in_without_a_name_unless_that_is_said(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.parse(given).refuse_open_listeners()
    for word in ("SASL_SSL", "ssl.client.auth=required", "127.0.0.1", "headrace.allow.anonymous.listeners=true"):
        assert word in str(caught.value)


def test_a_listener_is_written_as_it_is_read() -> None:
    assert str(ListenerAddress("A", "SSL", "::1", 1)) == "A://[::1]:1"
    assert str(ListenerAddress("A", "SSL", "h", 1)) == "A://h:1"
