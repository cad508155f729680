"""What is done to a broker is found in its audit topic, with who did it and what came of it."""

import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from headrace.cli.certificates import authority_path, issue, make_authority
from headrace.ops.operations import Operations
from headrace.protocol.api import ApiKey
from headrace.security.audit import TOPIC
from headrace.server.audited import AUDITED, HIDDEN
from headrace.testing import Broker

READING: frozenset[str] = frozenset(
    {
        "PRODUCE", "FETCH", "LIST_OFFSETS", "METADATA", "OFFSET_FETCH", "FIND_COORDINATOR", "JOIN_GROUP", "HEARTBEAT",
        "LEAVE_GROUP", "SYNC_GROUP", "DESCRIBE_GROUPS", "LIST_GROUPS", "SASL_HANDSHAKE", "API_VERSIONS",
        "OFFSET_FOR_LEADER_EPOCH", "ADD_PARTITIONS_TO_TXN", "ADD_OFFSETS_TO_TXN", "END_TXN", "TXN_OFFSET_COMMIT",
        "DESCRIBE_CONFIGS", "DESCRIBE_LOG_DIRS", "SASL_AUTHENTICATE", "LIST_PARTITION_REASSIGNMENTS",
        "DESCRIBE_QUORUM", "ALTER_PARTITION", "DESCRIBE_CLUSTER", "DESCRIBE_PRODUCERS", "DESCRIBE_TRANSACTIONS",
        "LIST_TRANSACTIONS", "CONSUMER_GROUP_HEARTBEAT", "CONSUMER_GROUP_DESCRIBE", "LIST_CONFIG_RESOURCES",
        "DESCRIBE_TOPIC_PARTITIONS", "DESCRIBE_ACLS", "DESCRIBE_USER_SCRAM_CREDENTIALS", "DESCRIBE_CLIENT_QUOTAS",
        "DESCRIBE_DELEGATION_TOKEN", "READ_SHARE_GROUP_STATE", "READ_SHARE_GROUP_STATE_SUMMARY",
        "SHARE_GROUP_HEARTBEAT", "SHARE_GROUP_DESCRIBE", "DESCRIBE_SHARE_GROUP_OFFSETS",
        "SHARE_FETCH", "SHARE_ACKNOWLEDGE",
    }
)  # fmt: skip
"""APIs of daily work, and those that only ask."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"headrace.audit": "topic", "headrace.audit.level": "all"}) as running:
        yield running


@pytest.fixture(scope="module")
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap, "client.id": "the-tool"})


class Reader:
    """Reads the topic from where it ended last."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        given = {**settings, "group.id": "-", "enable.auto.commit": False}
        self._consumer = Consumer(given)
        self._consumer.assign([TopicPartition(TOPIC, 0, 0)])
        self.seen: list[dict[str, Any]] = []

    def until(self, operation: str, name: str) -> dict[str, Any]:
        """The next event of an operation on a resource."""
        for _ in range(200):
            message = self._consumer.poll(0.1)
            if message is None or message.error():
                continue
            value = message.value()
            assert value is not None
            event: dict[str, Any] = json.loads(value)
            self.seen.append(event)
            if event["operation"] == operation and any(each["name"] == name for each in event.get("resources", [])):
                return event
        raise AssertionError(f"no {operation} of {name} in {self.seen}")

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture(scope="module")
def events(broker: Broker, admin: AdminClient) -> Iterator[Reader]:
    admin.create_topics([NewTopic("first", 1)])["first"].result(10)
    reader = Reader({"bootstrap.servers": broker.bootstrap})
    yield reader
    reader.close()


def test_every_api_is_either_recorded_or_only_asks() -> None:
    assert {ApiKey(key).name for key in AUDITED} == {key.name for key in ApiKey} - READING


def test_a_topic_that_was_made_is_recorded_with_who_made_it(admin: AdminClient, events: Reader) -> None:
    admin.create_topics([NewTopic("made", 3, config={"retention.ms": "60000"})])["made"].result(10)
    event = events.until("CreateTopics", "made")
    assert event["principal"] == "User:ANONYMOUS"
    assert (event["outcome"], event["host"], event["client_id"]) == ("succeeded", "127.0.0.1", "the-tool")
    assert event["resources"] == [{"type": "Topic", "name": "made", "retention.ms": "60000", "num_partitions": "3"}]


def test_what_failed_is_recorded_apart_from_what_was_done(admin: AdminClient, events: Reader) -> None:
    admin.create_topics([NewTopic("twice", 1)])["twice"].result(10)
    futures = admin.create_topics([NewTopic("twice", 1), NewTopic("once", 1)])
    futures["once"].result(10)
    with pytest.raises(KafkaException):
        futures["twice"].result(10)
    assert events.until("CreateTopics", "twice")["outcome"] == "succeeded"
    second = events.until("CreateTopics", "twice")
    assert (second["outcome"], second["error"], len(second["resources"])) == ("failed", "TOPIC_ALREADY_EXISTS", 1)


def test_a_dry_run_is_recorded_as_one(admin: AdminClient, events: Reader) -> None:
    admin.create_topics([NewTopic("idea", 1)], validate_only=True)["idea"].result(10)
    assert events.until("CreateTopics", "idea")["dry_run"] is True


def test_changes_of_topics_are_recorded(admin: AdminClient, events: Reader) -> None:
    admin.create_topics([NewTopic("changed", 1)])["changed"].result(10)
    admin.create_partitions([NewPartitions("changed", 2)])["changed"].result(10)
    assert events.until("CreatePartitions", "changed")["resources"][0]["partitions"] == "2"
    entry = ConfigEntry("retention.ms", "5000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "changed", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(10)
    assert events.until("IncrementalAlterConfigs", "changed")["resources"][0]["retention.ms"] == "5000"
    admin.delete_topics(["changed"])["changed"].result(10)
    assert events.until("DeleteTopics", "changed")["outcome"] == "succeeded"


def test_the_value_of_a_setting_that_may_be_secret_is_not_recorded(admin: AdminClient, events: Reader) -> None:
    name = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
    entry = ConfigEntry(name, 'user_eve="hunter2"', incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    with pytest.raises(KafkaException):
        admin.incremental_alter_configs([resource])[resource].result(10)
    assert events.until("IncrementalAlterConfigs", "1")["resources"][0][name] == HIDDEN
    assert "hunter2" not in json.dumps(events.seen)


def test_deleted_records_and_reset_offsets_are_recorded(broker: Broker, admin: AdminClient, events: Reader) -> None:
    admin.create_topics([NewTopic("trimmed", 1)])["trimmed"].result(10)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("trimmed", b"one")
    assert producer.flush(10) == 0
    (trimmed,) = admin.delete_records([TopicPartition("trimmed", 0, 1)]).values()
    trimmed.result(10)
    assert events.until("DeleteRecords", "trimmed-0")["resources"][0]["before"] == "1"
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "billing"})
    for _ in range(2):
        consumer.commit(offsets=[TopicPartition("trimmed", 0, 1)], asynchronous=False)
    consumer.close()
    assert events.until("OffsetCommit", "billing")["resources"][0]["topic"] == "trimmed"
    admin.delete_consumer_groups(["billing"])["billing"].result(10)
    assert events.until("DeleteGroups", "billing")["outcome"] == "succeeded"
    assert sum(each["operation"] == "OffsetCommit" for each in events.seen) == 1, "the second is only counted"


def test_a_raise_of_the_feature_level_is_recorded(broker: Broker, events: Reader) -> None:
    with Operations(broker.bootstrap) as operations:
        operations.update_level(None, dry_run=False)
    assert events.until("UpdateLevel", "feature level")["outcome"] == "succeeded"


def test_nobody_else_writes_to_the_topic(broker: Broker, events: Reader) -> None:
    refusals: list[str] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(TOPIC, b"{}", on_delivery=lambda error, _: refusals.append("" if error is None else error.name()))
    producer.flush(10)
    assert refusals == ["TOPIC_EXCEPTION"]


def test_events_are_there_after_a_restart(broker: Broker, admin: AdminClient) -> None:
    admin.create_topics([NewTopic("last", 1)])["last"].result(10)
    broker.restart()
    reader = Reader({"bootstrap.servers": broker.bootstrap})
    reader.until("CreateTopics", "last")
    reader.close()
    ids = [event["id"] for event in reader.seen]
    assert len(ids) == len(set(ids))


def test_without_a_setting_nothing_is_recorded() -> None:
    with Broker(topics=["orders"]) as plain:
        listed = AdminClient({"bootstrap.servers": plain.bootstrap}).list_topics(timeout=10).topics
        assert TOPIC not in listed


def test_who_a_certificate_names_is_recorded_and_a_handshake_that_fails(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "Test CA")
    broker = issue(tmp_path, "broker", authority, hosts=["127.0.0.1"])
    alice = issue(tmp_path, "alice", authority, is_client=True)
    settings = {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.keystore.location": str(broker.keystore),
        "ssl.truststore.location": str(authority_path(tmp_path)),
        "ssl.client.auth": "required",
        "headrace.audit": "topic",
        "headrace.audit.level": "all",
    }
    with Broker(settings) as secured:
        by_certificate = {
            "bootstrap.servers": secured.bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": str(authority_path(tmp_path)),
            "ssl.certificate.location": str(alice.certificate),
            "ssl.key.location": str(alice.key),
        }
        host, _, port = secured.bootstrap.rpartition(":")
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(b"\0\0\0\4none of this is TLS")
            assert stranger.recv(100) is not None
        client = AdminClient(by_certificate)
        client.create_topics([NewTopic("made", 1)])["made"].result(10)
        reader = Reader(by_certificate)
        assert reader.until("CreateTopics", "made")["principal"] == "User:CN=alice"
        reader.close()
    logins = {(e["outcome"], e.get("principal", "")) for e in reader.seen if e["kind"] == "login"}
    assert logins == {("denied", ""), ("succeeded", "User:CN=alice")}
