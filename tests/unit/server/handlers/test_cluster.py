import pytest

from headrace.protocol.acl import ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.server.handlers.authorized import EVERYTHING, NOT_ASKED
from tests.support.handlers import CLUSTER_ID, Harness, Producer, versions


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_CLUSTER))
def test_the_cluster_is_described_in_every_version(broker: Harness, version: int) -> None:
    answer = broker.ask(ApiKey.DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=True)
    assert (answer.error_code, answer.cluster_id, answer.controller_id) == (ErrorCode.none, CLUSTER_ID, 1)
    assert [(b.broker_id, b.host, b.port, b.rack) for b in answer.brokers] == [(1, "localhost", 9092, "r1")]
    assert answer.cluster_authorized_operations == EVERYTHING[ResourceType.CLUSTER]
    assert broker.ask(ApiKey.DESCRIBE_CLUSTER, version).cluster_authorized_operations == NOT_ASKED
    if version >= 2:
        assert answer.brokers[0].is_fenced is False


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_CLUSTER, since=1))
def test_only_brokers_are_described(broker: Harness, version: int) -> None:
    controllers = broker.ask(ApiKey.DESCRIBE_CLUSTER, version, endpoint_type=2)
    assert (controllers.error_code, controllers.brokers) == (ErrorCode.mismatched_endpoint_type, ())
    other = broker.ask(ApiKey.DESCRIBE_CLUSTER, version, endpoint_type=9)
    assert other.error_code is ErrorCode.unsupported_endpoint_type


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_LOG_DIRS))
def test_the_log_directory_is_described_in_every_version(broker: Harness, version: int) -> None:
    broker.topic("a", 2)
    broker.topic("b")
    broker.replicas.partition("a", 1).append(1, 2, 3)
    answer = broker.ask(ApiKey.DESCRIBE_LOG_DIRS, version, topics=None)
    (directory,) = answer.results
    sizes = {t.name: {p.partition_index: p.partition_size for p in t.partitions} for t in directory.topics}
    assert (directory.error_code, directory.log_dir) == (ErrorCode.none, "/data")
    assert sizes == {"a": {0: 0, 1: 300}, "b": {0: 0}}
    if version >= 3:
        assert answer.error_code is ErrorCode.none
    if version >= 4:
        assert (directory.total_bytes, directory.usable_bytes) == (1000, 400)
    if version >= 5:
        assert directory.is_cordoned is False


def test_only_the_partitions_asked_for_and_held_are_sized(broker: Harness) -> None:
    broker.topic("a", 2)
    asked = [{"topic": "a", "partitions": [1, 1, 5]}, {"topic": "missing", "partitions": [0]}]
    (directory,) = broker.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=asked).results
    assert [(t.name, [p.partition_index for p in t.partitions]) for t in directory.topics] == [("a", [1])]
    (directory,) = broker.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=[]).results
    assert directory.topics == ()


def test_the_producers_of_a_partition_are_described(broker: Harness) -> None:
    broker.topic("a")
    broker.replicas.partition("a", 0).log.known_producers[42] = Producer(epoch=3, transaction_first_offset=17)
    (topic,) = broker.ask(ApiKey.DESCRIBE_PRODUCERS, 0, topics=[{"name": "a", "partition_indexes": [0, 1]}]).topics
    held, missing = topic.partitions
    (producer,) = held.active_producers
    assert (held.error_code, producer.producer_id, producer.producer_epoch) == (ErrorCode.none, 42, 3)
    assert (producer.last_sequence, producer.last_timestamp) == (7, 1234)
    assert (producer.coordinator_epoch, producer.current_txn_start_offset) == (-1, 17)
    assert missing.error_code is ErrorCode.unknown_topic_or_partition
    assert missing.error_message
