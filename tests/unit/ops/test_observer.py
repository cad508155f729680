"""The observer against a broker in this process, and against brokers that hang, are gone, or are not ours."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.client.errors import ClientError
from headrace.health import ProblemCode
from headrace.ops.inspection import InspectionScope, inspect
from headrace.ops.observer import GROUPS_AT_ONCE, Observer, PollPace
from headrace.ops.rates import RateModel
from headrace.ops.reading import BATCH
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.protocol.peer import InternalApi, PeerMessage, encode_message
from headrace.testing import Broker
from tests.support.process import free_port
from tests.support.scripted import Asked, Reply, ScriptedBroker
from tests.unit.ops.test_rates import health

pytestmark = pytest.mark.slow

PATIENCE = 60.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {"auto.create.topics.enable": False, "transaction.state.log.num.partitions": 1}
    with Broker({**settings, "offsets.topic.num.partitions": 1}) as broker:
        yield broker


def produce(broker: Broker, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for _ in range(count):
        producer.produce(topic, b"value", partition=0)
    assert producer.flush(PATIENCE) == 0


def test_a_broker_is_read_whole_health_ends_sizes_clock_and_groups(broker: Broker) -> None:
    topic = broker.create_topic("read-whole", partitions=2)
    produce(broker, topic, 10)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "whole"})
    consumer.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
    consumer.close()
    with Observer(broker.bootstrap) as observer:
        sample = observer.observe(whole=True)
    assert (sample.reason, sample.view is not None) == ("", True)
    (reading,) = sample.brokers.values()
    assert reading.health is not None
    assert reading.clock is not None
    assert abs(reading.clock.ahead_ms) <= reading.clock.uncertainty_ms + 1
    assert (reading.ends[topic, 0], reading.ends[topic, 1]) == (10, 0)  # type: ignore[index]
    assert reading.sizes is not None
    assert reading.sizes[topic, 0] > 50  # type: ignore[index]
    assert reading.listed is not None
    assert "whole" in reading.listed
    rows = {row.name: row for row in RateModel().add(sample).groups}
    assert (rows["whole"].lag, rows["whole"].state, rows["whole"].members) == (6, "Empty", 0)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_of_groups_of_both_protocols_are_counted(broker: Broker, protocol: str) -> None:
    topic = broker.create_topic(f"members-{protocol}", partitions=2)
    group = f"group-{protocol}"
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "group.protocol": protocol}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    deadline = time.monotonic() + PATIENCE
    with Observer(broker.bootstrap) as observer:
        while True:
            consumer.poll(0.1)
            (reading,) = observer.observe(whole=True).brokers.values()
            found = [g for g in reading.groups if g.group == group]
            if found and found[0].assigned == {(topic, 0), (topic, 1)}:
                break
            assert time.monotonic() < deadline
        (again,) = observer.observe().brokers.values()
    consumer.close()
    assert {where: start for where, start in again.starts.items() if where.topic == topic} == {
        (topic, 0): 0,
        (topic, 1): 0,
    }
    assert (found[0].members, found[0].type, found[0].state) == (1, protocol, "Stable")


@pytest.mark.slow
def test_transactions_that_are_open_for_long_are_found_by_coordinator_and_partition(broker: Broker) -> None:
    topic = broker.create_topic("hanging")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "hangs"})
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    producer.produce(topic, b"x")
    producer.flush(PATIENCE)
    try:
        with Observer(broker.bootstrap) as observer:
            found = inspect(observer, InspectionScope(older_than_ms=0), pause=0)
            none = inspect(observer, InspectionScope(older_than_ms=600_000), pause=0)
    finally:
        producer.abort_transaction(PATIENCE)
    (opened,) = found.transactions
    assert (opened.id, opened.state, opened.partitions) == ("hangs", "Ongoing", ((topic, 0),))
    (held,) = found.producers
    assert (held.partition, held.producer.producer_id, held.producer.start_offset) == (
        (topic, 0),
        opened.producer_id,
        0,
    )
    assert (none.transactions, none.producers) == ((), ())
    assert found.topics[topic]["min.insync.replicas"] == "1"


def test_a_lone_port_that_refuses_is_a_reason() -> None:
    address = f"127.0.0.1:{free_port()}"
    with Observer(address) as observer:
        sample = observer.observe()
    assert (sample.view, sample.brokers) == (None, {})
    assert sample.reason == f"no broker answers at {address}: connection refused"


@contextmanager
def silent_port() -> Iterator[int]:
    """Takes connections, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


def test_a_silent_broker_beside_one_that_answers_keeps_nobody_waiting(broker: Broker) -> None:
    with silent_port() as port, Observer(f"127.0.0.1:{port},{broker.bootstrap}", seconds=30.0) as observer:
        assert observer.observe().reason == ""


def test_a_broker_that_stops_is_read_as_down_with_what_was_known_of_it() -> None:
    with Broker() as broker, Observer(broker.bootstrap, seconds=5.0) as observer:
        assert observer.observe().reason == ""
        broker.stop()
        sample = observer.observe()
        assert "no broker answers" in sample.reason
        assert sample.view is not None
        assert all(reading.reason for reading in sample.brokers.values())


def test_settings_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ClientError, match="securty"):
        Observer("127.0.0.1:9092", {"securty.protocol": "SSL"})


def test_what_takes_long_is_asked_seldom() -> None:
    pace = PollPace(2.0)
    assert pace.is_due(100.0)
    pace.took(100.0, 100.01)
    assert (pace.is_due(101.9), pace.is_due(102.0)) == (False, True)
    pace.took(102.0, 103.0)
    assert (pace.is_due(121.9), pace.is_due(122.0)) == (False, True)


# Brokers that are not ours

PARTITIONS = 2 * BATCH + 500
GROUPS = GROUPS_AT_ONCE + 10
KAFKA = {
    ApiKey.METADATA: (4, 9),
    ApiKey.LIST_OFFSETS: (1, 5),
    ApiKey.LIST_GROUPS: (0, 2),
    ApiKey.DESCRIBE_GROUPS: (0, 4),
    ApiKey.OFFSET_FETCH: (1, 5),
    ApiKey.DESCRIBE_LOG_DIRS: (1, 1),
}
"""What an older release of Apache Kafka serves of what is asked."""


def answer_as_kafka(asked: Asked, port: int) -> Reply:
    """A large broker that knows nothing of health reports, new listings and disks."""
    if asked.api_key == ApiKey.METADATA:
        return _metadata(asked.entity, port)
    if asked.api_key == ApiKey.LIST_OFFSETS:
        return {"throttle_time": 0, "topics": [_ends(topic) for topic in asked.entity.topics]}
    if asked.api_key == ApiKey.LIST_GROUPS:
        groups = [{"group_id": f"g{number:03}", "protocol_type": "consumer"} for number in range(GROUPS)]
        return {"throttle_time": 0, "error_code": ErrorCode.none, "groups": groups}
    if asked.api_key == ApiKey.DESCRIBE_GROUPS:
        return {"throttle_time": 0, "groups": [_group(name) for name in asked.entity.groups]}
    if asked.api_key == ApiKey.OFFSET_FETCH:
        partition = {
            "partition_index": 0,
            "committed_offset": 90,
            "metadata": "",
            "error_code": ErrorCode.none,
            "committed_leader_epoch": -1,
        }
        topics = [{"name": "large", "partitions": [partition]}]
        return {"throttle_time": 0, "topics": topics, "error_code": ErrorCode.none}
    if asked.api_key == ApiKey.DESCRIBE_LOG_DIRS:
        partitions = [{"partition_index": 0, "partition_size": 5, "offset_lag": 0, "is_future_key": False}]
        topics = [{"name": "large", "partitions": partitions}]
        return {
            "throttle_time": 0,
            "results": [{"error_code": ErrorCode.none, "log_dir": "/data", "topics": topics}],
        }
    return None


def _metadata(request: Any, port: int) -> dict[str, Any]:
    partitions = [
        {
            "error_code": ErrorCode.none,
            "partition_index": index,
            "leader_id": 1,
            "leader_epoch": 0,
            "replica_nodes": [1],
            "isr_nodes": [1],
            "offline_replicas": [],
        }
        for index in range(PARTITIONS)
    ]
    topic = {"error_code": ErrorCode.none, "name": "large", "is_internal": False, "partitions": partitions}
    return {
        "throttle_time": 0,
        "brokers": [{"node_id": 1, "host": "127.0.0.1", "port": port, "rack": None}],
        "cluster_id": "kafka",
        "controller_id": 1,
        "topics": [topic] if request.topics is None else [],
    }


def _ends(topic: Any) -> dict[str, Any]:
    partitions = [
        {"partition_index": p.partition_index, "error_code": ErrorCode.none, "timestamp": -1, "offset": 100}
        for p in topic.partitions
    ]
    return {"name": topic.name, "partitions": partitions}


def _group(name: str) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "group_id": name,
        "group_state": "Empty",
        "protocol_type": "consumer",
        "protocol_data": "",
        "members": [],
    }


def test_a_large_cluster_of_apache_kafka_is_read_in_batches_and_in_turns_without_health() -> None:
    ports: list[int] = []
    served = {int(api): versions for api, versions in KAFKA.items()}
    now = [0.0]
    with ScriptedBroker(lambda asked: answer_as_kafka(asked, ports[0]), served) as scripted:
        ports.append(scripted.port)
        with Observer(f"127.0.0.1:{scripted.port}", seconds=PATIENCE, clock=lambda: now[0]) as observer:
            sizes, groups = [], set()
            for _ in range(3):
                now[0] += 10.0
                sample = observer.observe()
                reading = sample.brokers[1]
                assert (sample.reason, reading.reason, reading.health) == ("", "", None)
                sizes.append(len(reading.ends))
                groups |= {group.group for group in reading.groups}
                assert len(reading.groups) <= GROUPS_AT_ONCE
            whole = observer.observe(whole=True).brokers[1]
    assert sizes == [BATCH, BATCH, 500]
    assert len(groups) == GROUPS
    assert (len(whole.ends), len(whole.groups)) == (PARTITIONS, GROUPS)
    assert (whole.sizes, whole.disk_free) == ({("large", 0): 5}, None)


# Brokers that have lost their cluster

LOST = health(1, ProblemCode.STORE_UNREACHABLE)
MODERN = {**KAFKA, ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0), ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0)}


class LostBroker:
    """Answers Metadata once and then hangs up, or never; says in any case how it is."""

    def __init__(self, *, tells_metadata: bool, is_silent: bool = False) -> None:
        self._tells_metadata = tells_metadata
        self._is_silent = is_silent
        self._hangs_up = False
        self.released = threading.Event()
        served = {int(api): versions for api, versions in MODERN.items()}
        self.scripted = ScriptedBroker(self._answer, served)

    def _answer(self, asked: Asked) -> Reply:
        if asked.api_key == InternalApi.DESCRIBE_HEALTH:
            return b"".join(map(bytes, encode_message(PeerMessage(LOST.to_json()))))
        if self._is_silent:
            self.released.wait(PATIENCE)
            return None
        if self._hangs_up or not self._tells_metadata:
            self._hangs_up = False
            return None
        if asked.api_key == ApiKey.METADATA:
            self._hangs_up = True
            return _metadata(asked.entity, self.scripted.port)
        if asked.api_key == ApiKey.DESCRIBE_TOPIC_PARTITIONS:
            return {"throttle_time": 0, "topics": [_topic()], "next_cursor": None}
        return answer_as_kafka(asked, self.scripted.port)


def _topic() -> dict[str, Any]:
    partition = {
        "error_code": ErrorCode.none,
        "partition_index": 0,
        "leader_id": 1,
        "leader_epoch": 0,
        "replica_nodes": [1],
        "isr_nodes": [1],
        "eligible_leader_replicas": None,
        "last_known_elr": None,
        "offline_replicas": [],
    }
    return {
        "error_code": ErrorCode.none,
        "name": "large",
        "topic_id": None,
        "is_internal": False,
        "partitions": [partition],
        "topic_authorized_operations": 0,
    }


def test_a_broker_that_hangs_up_after_its_metadata_is_read_whole_with_its_health() -> None:
    lost = LostBroker(tells_metadata=True)
    with lost.scripted, Observer(lost.scripted.bootstrap, seconds=PATIENCE) as observer:
        sample = observer.observe(whole=True)
    assert (sample.reason, sample.is_reached) == ("", True)
    assert sample.view is not None
    assert [(p.key, p.leader) for p in sample.view.partitions] == [(("large", 0), 1)]
    assert sample.brokers[1].health == LOST
    assert "ZooKeeper unreachable" in RateModel().add(sample).headline


def test_brokers_that_tell_their_health_and_nothing_else_are_shown_with_it() -> None:
    lost = LostBroker(tells_metadata=False)
    with lost.scripted, Observer(lost.scripted.bootstrap, seconds=PATIENCE) as observer:
        sample = observer.observe(whole=True)
        again = observer.observe(whole=True)
    for seen in (sample, again):
        assert seen.is_reached
        assert "metadata cannot be read" in seen.reason
        assert (seen.brokers[1].health, seen.brokers[1].reason) == (LOST, "")
        dashboard = RateModel().add(seen)
        assert [(row.id, row.is_reached, row.problems) for row in dashboard.brokers] == [(1, True, LOST.problems)]
        assert dashboard.headline.startswith("broker 1 ZooKeeper unreachable; the cluster's metadata cannot be read")


def test_a_broker_that_keeps_requests_waiting_until_it_knows_its_cluster_is_shown_with_its_health() -> None:
    lost = LostBroker(tells_metadata=False, is_silent=True)
    with lost.scripted, Observer(lost.scripted.bootstrap, seconds=1.0) as observer:
        sample = observer.observe(whole=True)
        lost.released.set()
    assert (sample.is_reached, sample.brokers[1].health) == (True, LOST)
