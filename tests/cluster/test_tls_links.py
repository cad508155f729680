"""Brokers that reach each other over mutual TLS: they replicate, rotate, and take nobody without a certificate."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing import Broker
from tests.support.certificates import Authority
from tests.support.process import wait_for
from tests.support.zookeeper import Service

pytestmark = pytest.mark.slow

SECONDS = 30.0


def test_brokers_replicate_over_mutual_tls_and_keep_on_while_certificates_are_rotated(
    tmp_path: Path, zookeeper: Service
) -> None:
    authority = Authority()
    ca, client = authority.write(tmp_path / "ca.pem"), authority.sign("alice", hosts=()).write(tmp_path / "alice.pem")
    url = zookeeper.new_url().removeprefix("zookeeper://")
    settings = {
        "listeners": "SSL://127.0.0.1:0",
        "security.inter.broker.protocol": "SSL",
        "ssl.truststore.location": ca,
        "ssl.client.auth": "required",
        "zookeeper.connect": url,
    }
    keystores = [tmp_path / f"{number}.pem" for number in (1, 2)]
    with ExitStack() as held:
        brokers = []
        for number, keystore in enumerate(keystores, 1):
            authority.sign(f"broker {number}").write(keystore)
            own = {"node.id": str(number), "ssl.keystore.location": str(keystore)}
            brokers.append(held.enter_context(Broker(settings | own)))
        known: dict[str, Any] = {
            "bootstrap.servers": ",".join(broker.bootstrap for broker in brokers),
            "security.protocol": "SSL",
            "ssl.ca.location": ca,
            "ssl.certificate.location": client,
            "ssl.key.location": client,
        }
        admin = AdminClient(known)
        wait_for("both brokers are members", lambda: len(admin.list_topics(timeout=SECONDS).brokers) == 2)
        topic = NewTopic("orders", 4, 2, config={"min.insync.replicas": "2"})
        admin.create_topics([topic])["orders"].result(SECONDS)
        failures: list[object] = []
        producer = Producer({**known, "acks": "all"})

        def produce(count: int) -> None:
            for number in range(count):
                producer.produce(
                    "orders",
                    b"x" * 10_000,
                    partition=number % 4,
                    on_delivery=lambda e, _: failures.append(e) if e else None,
                )
            assert producer.flush(SECONDS) == 0
            assert failures == []

        produce(400)
        for number, keystore in enumerate(keystores, 1):
            authority.sign(f"broker {number} anew").write(keystore)
        brokers[1].restart()  # every link is made anew
        wait_for("both are in sync", lambda: all(len(p.isrs) == 2 for p in partitions(admin)))
        produce(400)


def partitions(admin: AdminClient) -> list[Any]:
    return list(admin.list_topics("orders", timeout=SECONDS).topics["orders"].partitions.values())
