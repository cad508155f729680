"""A broker with several listeners, as other people's client sees it, and as the commands show it."""

import json
import socket

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from headrace.config import ConfigError
from headrace.net.ports import free_ports
from headrace.testing import Broker
from tests.support.cli import Run, run

pytestmark = pytest.mark.slow

__all__ = ["run"]

PLAIN = "PLAINTEXT:PLAINTEXT,SECOND:PLAINTEXT"
MAP = "INSIDE:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT"
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "alice",
    "sasl.password": "secret",
}


def settings(inside: int, outside: int) -> dict[str, object]:
    return {
        "listeners": f"INSIDE://127.0.0.1:{inside},OUTSIDE://127.0.0.1:{outside}",
        "advertised.listeners": f"INSIDE://127.0.0.1:{inside},OUTSIDE://localhost:{outside}",
        "listener.security.protocol.map": MAP,
        "listener.name.outside.plain.sasl.jaas.config": 'PlainLoginModule required user_alice="secret";',
    }


def test_librdkafka_is_told_the_addresses_of_the_listener_that_it_asks_and_works_with_them() -> None:
    inside, outside = free_ports(2)
    with Broker(settings(inside, outside)) as broker:
        broker.create_topic("t")
        for port, host, login in ((inside, "127.0.0.1", {}), (outside, "localhost", LOGIN)):
            given = {"bootstrap.servers": f"127.0.0.1:{port}", **login}
            (found,) = AdminClient(given).list_topics(timeout=20).brokers.values()
            assert (found.host, found.port) == (host, port)
            producer = Producer(given)
            producer.produce("t", value=str(port))
            assert producer.flush(20) == 0
        consumer = Consumer({**given, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["t"])
        values = {str(consumer.poll(30).value(), "utf-8") for _ in range(2)}
        consumer.close()
        assert values == {str(inside), str(outside)}
        plain = AdminClient({"bootstrap.servers": f"127.0.0.1:{outside}"})
        with pytest.raises(KafkaException):
            plain.list_topics(timeout=1)


def test_the_commands_show_each_listener(run: Run) -> None:
    inside, outside = free_ports(2)
    with Broker(settings(inside, outside)) as broker:
        described = run("cluster", "describe", "-b", broker.bootstrap)
        for text in ("INSIDE", "OUTSIDE", "SASL_PLAINTEXT", f"127.0.0.1:{outside}", f"localhost:{outside}"):
            assert text in described.stdout
        (values,) = json.loads(run("cluster", "describe", "-b", broker.bootstrap, "--json").stdout)["brokers"]
        assert [each["name"] for each in values["listeners"]] == ["INSIDE", "OUTSIDE"]
        assert [each["anonymous"] for each in values["listeners"]] == [True, False]
        checked = json.loads(run("doctor", "-b", broker.bootstrap, "--check", "listeners", "--json").stdout)
        assert "INSIDE, OUTSIDE" in json.dumps(checked)


def test_a_listener_at_an_ipv6_address_is_told_in_brackets() -> None:
    with Broker(
        {"listeners": "PLAINTEXT://[::1]:0,SECOND://127.0.0.1:0", "listener.security.protocol.map": PLAIN}
    ) as broker:
        assert broker.bootstrap.startswith("[::1]:")
        (found,) = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=20).brokers.values()
        assert found.host == "::1"


def test_all_listeners_are_given_back_when_one_cannot_be_had() -> None:
    (free,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as holder:
        taken = int(holder.getsockname()[1])
        with pytest.raises(OSError) as caught, Broker(settings(free, taken)):
            pass
        assert caught.value.__notes__ == [f"OUTSIDE://127.0.0.1:{taken}"]
    socket.create_server(("127.0.0.1", free)).close()


def test_a_broker_does_not_start_where_everybody_could_come_in() -> None:
    with (
        pytest.raises(ConfigError, match="anybody who reaches this machine"),
        Broker({"listeners": "PLAINTEXT://0.0.0.0:0", "advertised.listeners": "PLAINTEXT://127.0.0.1:0"}),
    ):
        pass
