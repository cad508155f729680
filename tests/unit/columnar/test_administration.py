"""Topics are made on demand where the brokers do that, and with settings of our own where we want them."""

from collections.abc import Iterator

import pytest

from headrace.client.admin import Admin
from headrace.client.columnar.administration import create_topic, require_topic
from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.model import UnknownTopic
from headrace.client.errors import ClientError
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.testing import Broker
from tests.scripted import Asked, Reply

from .scripted_cluster import FAST, ScriptedCluster, ScriptedLog


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


def test_a_topic_is_made_with_settings_and_stays_as_it_is(broker: Broker, cluster: Cluster) -> None:
    create_topic(cluster, "journal", partitions=1, configs={"cleanup.policy": "compact"})
    create_topic(cluster, "journal", partitions=5, configs={})
    assert cluster.partitions(["journal"]) == {"journal": 1}
    assert Admin(broker.bootstrap).describe_topic("journal").configs["cleanup.policy"] == "compact"


def test_a_topic_that_cannot_be_made_says_why(cluster: Cluster) -> None:
    with pytest.raises(ClientError, match=r"topic 'a b' cannot be made"):
        create_topic(cluster, "a b", partitions=1, configs={})


def test_the_controller_is_found_where_only_it_makes_topics() -> None:
    def made_by_the_second(node: int, asked: Asked) -> Reply | bool:
        if asked.api_key != ApiKey.CREATE_TOPICS:
            return False
        code = ErrorCode.none if node == 1 else ErrorCode.not_controller
        topic = {"name": "t", "topic_id": None, "error_code": code.value, "error_message": None, "configs": None}
        return {"throttle_time": 0, "topics": [topic]}

    with ScriptedCluster({0: ScriptedLog()}, brokers=3) as script, Cluster(script.settings) as cluster:
        script.before = made_by_the_second
        create_topic(cluster, "t", partitions=1, configs={})
        assert script.count(ApiKey.CREATE_TOPICS) == 2
