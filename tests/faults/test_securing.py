"""From a plain cluster to TLS, SCRAM and ACLs by rolling restarts, as docs/security.md tells it, while clients go on.

No write fails, no read fails, nothing is lost or comes twice; and in the end nobody gets in who may not.
"""

import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer

from headrace.cli.certificates import authority_path, issue, make_authority
from headrace.client.admin import Admin
from headrace.client.errors import ClientError
from headrace.ops.operations import Operations
from headrace.ops.security import SecurityOperations
from headrace.protocol.acl import (
    AclBinding,
    AclEntry,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from headrace.protocol.scram import ScramMechanism
from tests.support.faults.load import GIVE_UP_MS, IMPATIENT
from tests.support.process import ClusterProcesses, free_port, wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

TOPIC, GROUP, PARTITIONS = "orders", "billing", 3
PASSWORDS = {"admin": "admin-secret", "app": "app-secret"}
TICK_SECONDS = 0.01
Client = Mapping[str, Any]


class Worker:
    """A thread that goes on until it is closed, and what went wrong meanwhile."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.problems: list[str] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop; safe to call twice."""
        self._is_over.set()
        self._thread.join(2 * GIVE_UP_MS / 1000)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:
            self.problems.append(repr(error))

    def _work(self) -> None:
        raise NotImplementedError


class Writer(Worker):
    """Writes numbers with acks=all, and remembers those that were acknowledged."""

    def __init__(self, client: Client, name: str) -> None:
        super().__init__(client)
        self.acknowledged: list[str] = []
        self._name = name

    def wait_for_more(self) -> None:
        count = len(self.acknowledged)
        wait_for(f"{self._name} is acknowledged", lambda: len(self.acknowledged) > count + 20)

    def _work(self) -> None:
        settings = {"enable.idempotence": True, "linger.ms": 1, "message.timeout.ms": GIVE_UP_MS, **IMPATIENT}
        producer = Producer({**settings, **self.client})
        number = 0
        while not self._is_over.is_set():
            value = f"{self._name} {number}"
            producer.produce(TOPIC, value.encode(), partition=number % PARTITIONS, on_delivery=self._told)
            number += 1
            producer.poll(TICK_SECONDS)
        if left := producer.flush(GIVE_UP_MS / 1000):
            self.problems.append(f"{left} records were never answered")

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged.append((message.value() or b"").decode())
        else:
            self.problems.append(str(error))


class Reader(Worker):
    """A member of the group."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.seen: Counter[tuple[int, int, str]] = Counter()
        """Partition, offset and value: what a member commits too late its successor sees again."""

    def _work(self) -> None:
        settings = {"group.id": GROUP, "auto.offset.reset": "earliest", "session.timeout.ms": 10_000, **IMPATIENT}
        consumer = Consumer({**settings, **self.client})
        try:
            consumer.subscribe([TOPIC])
            while not self._is_over.is_set():
                for message in consumer.consume(500, timeout=0.2):
                    if (error := message.error()) is not None:
                        self.problems.append(str(error))
                    else:
                        value = (message.value() or b"").decode()
                        self.seen[message.partition() or 0, message.offset() or 0, value] += 1
        finally:
            consumer.close()


class Securing:
    """The cluster on its way."""

    def __init__(self, cluster: ClusterProcesses, directory: Path) -> None:
        self._cluster = cluster
        self._secrets = directory / "secrets"
        self._ports = {number: free_port() for number in cluster.brokers}
        self.plain = {"bootstrap.servers": cluster.bootstrap}
        self.secure_bootstrap = ",".join(f"127.0.0.1:{port}" for port in self._ports.values())
        authority = make_authority(self._secrets, "Test CA")
        for number in cluster.brokers:
            issue(self._secrets, f"broker-{number}", authority, hosts=["127.0.0.1"])

    def secure(self, user: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.secure_bootstrap,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": PASSWORDS[user],
            "ssl.ca.location": str(authority_path(self._secrets)),
        }

    def restart_all(self, client: Client, settings: Mapping[str, str | None], writer: Writer) -> None:
        """A rolling restart with other settings; between two brokers all replicas are in sync, and writes go on."""
        for number, broker in self._cluster.brokers.items():
            for name, value in settings.items():
                if value is None:
                    broker.settings.pop(name, None)
                else:
                    broker.settings[name] = value.format(
                        plain=broker.bootstrap,
                        secure=f"127.0.0.1:{self._ports[number]}",
                        keystore=self._secrets / f"broker-{number}.keystore.pem",
                        ca=authority_path(self._secrets),
                    )
            assert broker.stop() == 0
            broker.start()
            wait_for("all replicas are in sync", lambda: self.is_whole(client))
            writer.wait_for_more()

    def is_whole(self, client: Client) -> bool:
        settings = {name: value for name, value in client.items() if name != "bootstrap.servers"}
        try:
            with Operations(client["bootstrap.servers"], settings) as operations:
                view = operations.view()
        except ClientError:
            return False
        alive = [broker for broker in view.brokers if broker.is_alive]
        return len(alive) == 3 and all(len(part.isr) == len(part.replicas) for part in view.partitions)


def rule(resource: ResourceType, name: str, operation: AclOperation) -> AclBinding:
    return AclBinding(
        resource=ResourcePattern(type=resource, name=name, pattern=PatternType.LITERAL),
        entry=AclEntry(principal="User:app", host="*", operation=operation, permission=PermissionType.ALLOW),
    )


RULES = [
    rule(ResourceType.TOPIC, TOPIC, AclOperation.WRITE),
    rule(ResourceType.TOPIC, TOPIC, AclOperation.READ),
    rule(ResourceType.GROUP, GROUP, AclOperation.READ),
]
SECOND_LISTENER: dict[str, str | None] = {
    "listeners": "PLAINTEXT://{plain},SASL_SSL://{secure}",
    "ssl.keystore.location": "{keystore}",
    "ssl.truststore.location": "{ca}",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
    "allow.everyone.if.no.acl.found": "true",
    "headrace.audit": "topic",
}
BROKERS_MOVED: dict[str, str | None] = {"inter.broker.listener.name": "SASL_SSL"}
CLOSED: dict[str, str | None] = {"listeners": "SASL_SSL://{secure}", "allow.everyone.if.no.acl.found": None}


def refusal(client: Client) -> str:
    """Why a record cannot be written; empty where it can."""
    told: list[str] = []
    producer = Producer({**client, "message.timeout.ms": 5_000, "log_level": 0})
    producer.produce(TOPIC, b"of nobody", on_delivery=lambda error, _: told.append(error.name() if error else ""))
    producer.flush(30)
    return told[0]


def test_a_plain_cluster_is_secured_by_rolling_restarts_under_load_without_a_failed_operation(tmp_path: Path) -> None:
    settings = {"auto.create.topics.enable": "false", "offsets.topic.replication.factor": "3"}
    with ClusterProcesses(tmp_path, 3, settings=settings) as cluster:
        way = Securing(cluster, tmp_path)
        created = Admin(cluster.bootstrap).create_topics([TOPIC], PARTITIONS, 3, {"min.insync.replicas": "2"})
        assert created == {TOPIC: None}
        with Writer(way.plain, "plain") as before, Reader(way.plain) as reader_before:
            before.wait_for_more()
            way.restart_all(way.plain, SECOND_LISTENER, before)
            with SecurityOperations(cluster.bootstrap) as operations:
                for user, password in PASSWORDS.items():
                    operations.set_password(user, [ScramMechanism.SHA_512], password)
            with Writer(way.secure("app"), "secure") as after, Reader(way.secure("app")) as reader_after:
                after.wait_for_more()
                before.close()
                reader_before.close()
                admin = way.secure("admin")
                way.restart_all(admin, BROKERS_MOVED, after)
                with SecurityOperations(
                    way.secure_bootstrap, {**admin, "bootstrap.servers": way.secure_bootstrap}
                ) as ops:
                    ops.create_acls(RULES)
                assert refusal(way.plain) == "TOPIC_AUTHORIZATION_FAILED"
                way.restart_all(admin, CLOSED, after)
                assert refusal(way.plain) == "_MSG_TIMED_OUT"
                after.wait_for_more()
                after.close()
                acknowledged = Counter(before.acknowledged + after.acknowledged)
                seen = reader_before.seen + reader_after.seen

                def is_all_read() -> bool:
                    nonlocal seen
                    seen = reader_before.seen + reader_after.seen
                    return {value for _, _, value in seen} >= acknowledged.keys()

                wait_for("everything is read", is_all_read, 60)
        assert [each.problems for each in (before, after, reader_before, reader_after)] == [[], [], [], []]
        values = Counter(value for _, _, value in seen)
        assert set(values) == set(acknowledged)
        assert all(count == 1 for count in values.values()), "a value stands at two offsets"
