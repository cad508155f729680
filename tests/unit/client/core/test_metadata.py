import asyncio
from dataclasses import replace

import pytest

from headrace.client.aio.client import Client
from headrace.client.columnar.cluster import Cluster
from headrace.client.core.handshake import ConnectionSettings
from headrace.client.core.metadata import (
    UNKNOWN_TOPIC_TRIES,
    CoordinatorKind,
    Leader,
    Metadata,
    MetadataImage,
    PartitionRoute,
    TopicImage,
)
from headrace.client.errors import UnknownPartition, UnknownTopic
from headrace.net.address import Address, parse_address
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.topic_partition import TopicPartition
from tests.support.columnar.scripted_cluster import TOPIC, ScriptedCluster, ScriptedLog
from tests.support.scripted import Asked, Reply

ONE, TWO = Address("one", 1), Address("two", 2)
ORDERS = TopicImage(name="orders", id=b"i" * 16, is_internal=False, leaders={0: Leader(1, 5), 1: Leader(-1, 6)})
IMAGE = MetadataImage(
    cluster_id="c",
    controller_id=2,
    nodes={1: ONE, 2: TWO},
    topics={"orders": ORDERS},
    errors={"secret": ErrorCode.topic_authorization_failed},
)


def test_a_partition_is_routed_to_its_leader_while_it_has_one() -> None:
    assert ORDERS.route(0) == PartitionRoute(1, 5, b"i" * 16)
    assert ORDERS.route(1) is None
    assert ORDERS.led == (0,)


def test_why_there_is_no_image_of_a_topic_is_told() -> None:
    assert IMAGE.error_of("orders") is None
    assert IMAGE.error_of("secret") is ErrorCode.topic_authorization_failed
    assert IMAGE.error_of("nowhere") is ErrorCode.unknown_topic_or_partition


def test_what_is_older_than_wanted_or_was_forgotten_is_not_known() -> None:
    metadata = Metadata()
    metadata.learn(IMAGE, now=10.0)
    assert metadata.topic("orders", since=9.0) is ORDERS
    assert metadata.topic("orders", since=10.0) is None
    metadata.forget_topics(["orders"])
    assert metadata.topic("orders", since=0.0) is None


def test_a_coordinator_that_is_no_broker_any_more_is_looked_for_again() -> None:
    metadata = Metadata()
    metadata.learn_coordinator(CoordinatorKind.GROUP, "g", 7, TWO)
    assert metadata.coordinator(CoordinatorKind.GROUP, "g") == 7
    assert metadata.coordinator(CoordinatorKind.TRANSACTION, "g") is None
    metadata.learn(IMAGE, now=1.0)
    assert metadata.coordinator(CoordinatorKind.GROUP, "g") is None


def test_brokers_are_kept_when_an_answer_names_none() -> None:
    metadata = Metadata()
    metadata.learn(IMAGE, now=1.0)
    metadata.learn(replace(IMAGE, nodes={}), now=2.0)
    assert metadata.nodes == {1: ONE, 2: TWO}


# What both drivers make of it


def test_an_unknown_topic_is_asked_for_equally_often_by_both_drivers() -> None:
    with ScriptedCluster({0: ScriptedLog()}) as scripted, Cluster(scripted.settings) as cluster:
        with pytest.raises(UnknownTopic):
            cluster.locate(TopicPartition("nowhere", 0))
        assert scripted.count(ApiKey.METADATA) == UNKNOWN_TOPIC_TRIES
    with ScriptedCluster({0: ScriptedLog()}) as scripted:
        assert unknown_on_a_loop(scripted, "nowhere") is ErrorCode.unknown_topic_or_partition
        assert scripted.count(ApiKey.METADATA) == UNKNOWN_TOPIC_TRIES


def test_a_partition_that_there_is_not_is_unknown_to_both_drivers() -> None:
    with ScriptedCluster({0: ScriptedLog()}) as scripted, Cluster(scripted.settings) as cluster:
        with pytest.raises(UnknownPartition):
            cluster.locate(TopicPartition(TOPIC, 3))
        assert unknown_on_a_loop(scripted, TOPIC) is ErrorCode.unknown_topic_or_partition


def test_a_topic_that_a_broker_has_not_heard_of_yet_is_asked_of_another() -> None:
    def before(node: int, asked: Asked) -> Reply | bool:
        is_asked = asked.api_key == ApiKey.METADATA and node == 0 and bool(asked.entity.topics)
        return unknown(scripted, asked) if is_asked else False

    with ScriptedCluster({0: ScriptedLog(leader=1)}, brokers=2) as scripted, Cluster(scripted.settings) as cluster:
        scripted.before = before
        cluster.brokers()
        assert cluster.locate(TopicPartition(TOPIC, 0)).node == 1
        assert asyncio.run(leader_of(scripted, TOPIC, 0)) == 1


def unknown(scripted: ScriptedCluster, asked: Asked) -> Reply:
    """What a broker answers that knows the others, and no topic."""
    reply = scripted.metadata(0, asked)
    assert isinstance(reply, dict)
    missing = [{"error_code": 3, "name": t.name, "topic_id": None, "partitions": ()} for t in asked.entity.topics]
    return {**reply, "topics": missing}


def unknown_on_a_loop(scripted: ScriptedCluster, topic: str) -> ErrorCode:
    with pytest.raises(CodedError) as unknown:
        asyncio.run(leader_of(scripted, topic, 3))
    return unknown.value.code


async def leader_of(scripted: ScriptedCluster, topic: str, partition: int) -> int:
    settings = ConnectionSettings(client_id="test", connect_timeout=60.0, request_timeout=60.0)
    async with Client([parse_address(scripted.brokers[0].bootstrap)], settings, patience=60.0) as client:
        return await client.cluster.leader(topic, partition)
