"""Topics are made on demand where the brokers do that, and with settings of our own where we want them."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from headrace.client.admin import Admin
from headrace.client.columnar.administration import TopicNotMade, require_compacted_topic, require_topic
from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.model import UnknownTopic
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.testing import Broker
from tests.support.columnar.scripted_cluster import FAST, TOPIC, ScriptedCluster, ScriptedLog
from tests.support.scripted import Asked, Reply


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"auto.create.topics.enable": "true", "num.partitions": "3"}) as running:
        yield running


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    with Cluster({"bootstrap.servers": broker.bootstrap, **FAST}) as made:
        yield made


def test_a_topic_is_made_on_demand_as_for_any_producer(cluster: Cluster) -> None:
    require_topic(cluster, "on-demand")
    assert cluster.partitions(["on-demand"]) == {"on-demand": 3}
    require_topic(cluster, "on-demand")


def test_a_topic_that_brokers_do_not_make_is_unknown() -> None:
    with (
        Broker({"auto.create.topics.enable": "false"}) as broker,
        Cluster({"bootstrap.servers": broker.bootstrap, **FAST}) as cluster,
        pytest.raises(UnknownTopic, match="missing"),
    ):
        require_topic(cluster, "missing")


def test_a_compacted_topic_is_made_and_stays_as_it_is(broker: Broker, cluster: Cluster) -> None:
    require_compacted_topic(cluster, "journal", segment_bytes=1 << 20)
    require_compacted_topic(cluster, "journal", segment_bytes=2 << 20)
    configs = Admin(broker.bootstrap).describe_topic("journal").configs
    assert cluster.partitions(["journal"]) == {"journal": 1}
    assert (configs["cleanup.policy"], configs["segment.bytes"]) == ("compact", str(1 << 20))


def test_a_topic_that_cannot_be_made_says_why(cluster: Cluster) -> None:
    with pytest.raises(TopicNotMade, match=r"topic 'wrong' cannot be made.*segment.bytes"):
        require_compacted_topic(cluster, "wrong", segment_bytes=-1)


@pytest.mark.parametrize(("brokers", "replicas", "least"), [(1, 1, "1"), (2, 2, "1"), (4, 3, "2")])
def test_it_has_three_replicas_where_there_are_as_many_brokers_and_the_controller_makes_it(
    brokers: int, replicas: int, least: str
) -> None:
    made: list[Any] = []

    def made_by_the_last(node: int, asked: Asked) -> Reply | bool:
        if asked.api_key != ApiKey.CREATE_TOPICS:
            return False
        code = ErrorCode.not_controller
        if node == brokers - 1:
            made.extend(asked.entity.topics)
            code = ErrorCode.none
        topic = {"name": TOPIC, "topic_id": None, "error_code": code.value, "error_message": None, "configs": None}
        return {"throttle_time": 0, "topics": [topic]}

    def unknown_before(_node: int, asked: Asked, reply: Reply) -> Reply:
        if asked.api_key == ApiKey.METADATA and not made:
            assert isinstance(reply, Mapping)
            return {**reply, "topics": [{**topic, "error_code": 3, "partitions": ()} for topic in reply["topics"]]}
        return reply

    with ScriptedCluster({0: ScriptedLog()}, brokers=brokers) as script, Cluster(script.settings) as cluster:
        script.before, script.after = made_by_the_last, unknown_before
        require_compacted_topic(cluster, TOPIC, segment_bytes=1 << 20)
        assert script.count(ApiKey.CREATE_TOPICS) == brokers
    configs = {config.name: config.value for config in made[0].configs}
    assert (made[0].replication_factor, configs["min.insync.replicas"]) == (replicas, least)
