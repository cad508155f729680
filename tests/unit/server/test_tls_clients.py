"""Clients that we did not write, over TLS: all of them, mutual TLS, large messages, certificates rotated under load."""

import asyncio
import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import kafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from headrace.testing import Broker
from tests.support.certificates import Authority, name
from tests.support.process import wait_for

pytestmark = pytest.mark.slow

MEBIBYTE = 1 << 20
SECONDS = 30.0


class Files:
    """An authority, the broker's certificate and a client's, as files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority()
        self.ca = self.authority.write(directory / "ca.pem")
        self.server = self.authority.sign().write(directory / "server.pem")
        self.client = self.authority.sign(name("alice", organization="y"), hosts=()).write(directory / "alice.pem")

    def broker(self, protocol: str = "SSL", **settings: str) -> dict[str, str]:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        return {
            "listeners": f"{protocol}://127.0.0.1:0",
            "ssl.keystore.location": self.server,
            "message.max.bytes": str(24 * MEBIBYTE),
            **given,
        }

    def librdkafka(self, bootstrap: str, **more: str | int) -> dict[str, str | int]:
        own = {name.replace("_", "."): value for name, value in more.items()}
        return {"bootstrap.servers": bootstrap, "security.protocol": "SSL", "ssl.ca.location": self.ca, **own}

    def context(self, *, shows_certificate: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        if shows_certificate:
            context.load_cert_chain(self.client)
        return context


def make_topic(settings: dict[str, Any], topic: str) -> None:
    admin = AdminClient(settings)
    admin.create_topics([NewTopic(topic, 1)])[topic].result(SECONDS)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def broker(files: Files) -> Iterator[Broker]:
    with Broker(files.broker()) as running:
        make_topic(files.librdkafka(running.bootstrap), "orders")
        yield running


def produced(settings: dict[str, Any], topic: str, values: list[bytes]) -> None:
    failures: list[KafkaError] = []
    producer = Producer({**settings, "message.max.bytes": 16 * MEBIBYTE})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(SECONDS) == 0
    assert failures == []


def consumed(settings: dict[str, Any], topic: str, count: int, group: str) -> list[bytes]:
    consumer = Consumer({**settings, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes] = []
    try:
        while len(found) < count:
            message = consumer.poll(SECONDS)
            assert message is not None
            assert message.error() is None
            found.append(message.value() or b"")
    finally:
        consumer.close()
    return found


def test_librdkafka_gets_back_what_it_sent_ten_megabytes_at_once_too(broker: Broker, files: Files) -> None:
    settings = files.librdkafka(broker.bootstrap)
    values = [os.urandom(size) for size in (10, 1000, 10_000_000, 300_000, 10_000_000)]
    produced(settings, "orders", values)
    assert consumed(settings, "orders", len(values), "librdkafka") == values


def test_kafka_python_gets_back_what_it_sent(broker: Broker, files: Files) -> None:
    settings: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap,
        "security_protocol": "SSL",
        "ssl_context": files.context(),
    }
    producer = kafka.KafkaProducer(**settings)
    sent = producer.send("python", b"x" * 100_000).get(SECONDS)
    producer.close()
    consumer = kafka.KafkaConsumer(
        "python", **settings, auto_offset_reset="earliest", consumer_timeout_ms=int(SECONDS * 1000)
    )
    message = next(consumer)
    consumer.close()
    assert (message.offset, message.value) == (sent.offset, b"x" * 100_000)


def test_aiokafka_gets_back_what_it_sent(broker: Broker, files: Files) -> None:
    settings: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap,
        "security_protocol": "SSL",
        "ssl_context": files.context(),
    }

    async def work() -> None:
        async with aiokafka.AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait("aio", b"y" * 100_000)
        async with aiokafka.AIOKafkaConsumer("aio", **settings, auto_offset_reset="earliest") as consumer:
            message = await asyncio.wait_for(consumer.getone(), SECONDS)
            assert message.value == b"y" * 100_000

    asyncio.run(work())


def test_a_client_that_trusts_another_authority_is_told_so(broker: Broker, tmp_path: Path) -> None:
    other = Authority("Another").write(tmp_path / "ca.pem")
    errors: list[KafkaError] = []
    client = AdminClient(
        {
            "bootstrap.servers": broker.bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": other,
            "error_cb": errors.append,
        }
    )
    with pytest.raises(KafkaException):
        client.list_topics(timeout=2)
    client.poll(0)
    assert any(error.code() == KafkaError._SSL for error in errors)


def test_mutual_tls_names_clients_and_lets_no_other_in(files: Files) -> None:
    settings = files.broker(
        ssl_client_auth="required",
        ssl_truststore_location=files.ca,
        ssl_principal_mapping_rules="RULE:^CN=(.*?),.*$/$1/",
        authorizer_class_name="headrace",
        super_users="User:alice",
    )
    with Broker(settings) as broker:
        own = files.librdkafka(broker.bootstrap, ssl_certificate_location=files.client, ssl_key_location=files.client)
        make_topic(own, "mine")
        produced(own, "mine", [b"a"])
        assert consumed(own, "mine", 1, "mutual") == [b"a"]
        with pytest.raises(KafkaException):
            AdminClient(files.librdkafka(broker.bootstrap, log_level=0)).list_topics(timeout=2)


def test_sasl_over_tls(files: Files) -> None:
    settings = files.broker("SASL_SSL") | {
        "listener.name.sasl_ssl.plain.sasl.jaas.config": 'PlainLoginModule required user_bob="hunter2";'
    }
    with Broker(settings) as broker:
        own = files.librdkafka(broker.bootstrap, sasl_mechanism="PLAIN", sasl_username="bob", sasl_password="hunter2")
        own["security.protocol"] = "SASL_SSL"
        make_topic(own, "mine")
        produced(own, "mine", [b"a"])
        assert consumed(own, "mine", 1, "sasl") == [b"a"]


def test_altering_a_listeners_keystore_takes_it_up(files: Files, tmp_path: Path) -> None:
    second = files.authority.sign("second")
    with Broker(files.broker()) as broker:
        name = "listener.name.ssl.ssl.keystore.location"
        entry = ConfigEntry(name, second.write(tmp_path / "second.pem"), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
        admin = AdminClient(files.librdkafka(broker.bootstrap))
        admin.incremental_alter_configs([resource])[resource].result(SECONDS)
        host, port = broker.bootstrap.split(":")
        wait_for(
            "the new certificate is shown",
            lambda: ssl.get_server_certificate((host, int(port)), ca_certs=files.ca) == second.chain_pem,
        )


def test_certificates_are_rotated_under_load_without_an_error(files: Files, tmp_path: Path) -> None:
    keystore = tmp_path / "server.pem"
    files.authority.sign("first").write(keystore)
    with Broker(files.broker() | {"ssl.keystore.location": str(keystore)}) as broker:
        settings = files.librdkafka(broker.bootstrap)
        make_topic(settings, "busy")
        errors: list[KafkaError] = []
        acknowledged = 0

        def delivered(error: KafkaError | None, _: object) -> None:
            nonlocal acknowledged
            acknowledged += error is None
            if error is not None:
                errors.append(error)

        producer = Producer({**settings, "error_cb": errors.append, "linger.ms": 1})
        sent = 0

        def goes_on() -> None:
            nonlocal sent
            for _ in range(100):
                producer.produce("busy", b"%d" % sent, on_delivery=delivered)
                sent += 1
            producer.poll(0.01)

        def shown() -> str:
            """The certificate that a new connection gets, while the producer goes on."""
            goes_on()
            host, port = broker.bootstrap.split(":")
            return ssl.get_server_certificate((host, int(port)), ca_certs=files.ca)

        first = shown()
        second = files.authority.sign("second")
        fresh = tmp_path / "fresh.pem"
        second.write(fresh)
        fresh.replace(keystore)
        wait_for("the new certificate is shown", lambda: shown() != first)
        keystore.write_text("garbled")
        for _ in range(20):
            goes_on()
        produced(settings, "busy", [b"end"])  # a new connection, with the certificate from before
        assert producer.flush(SECONDS) == 0
        assert (acknowledged, errors) == (sent, [])
        values = consumed(settings, "busy", sent + 1, "busy")
        assert sorted(values) == sorted([*(b"%d" % number for number in range(sent)), b"end"])
