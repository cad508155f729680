"""A cluster answers what it is asked, through whatever its brokers do meanwhile."""

import os
import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from headrace.client.columnar import connections
from headrace.client.columnar.channel import Channel
from headrace.client.columnar.cluster import Cluster, shared_cluster
from headrace.client.columnar.connect import open_channel
from headrace.client.columnar.model import EARLIEST, LATEST, TopicPartition, UnknownTopic
from headrace.client.columnar.settings import ClientSettings
from headrace.client.core.handshake import ConnectionSettings
from headrace.client.errors import ClientError, ClusterUnreachable
from headrace.net.address import Address
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.testing import Broker
from tests.support.columnar.scripted_cluster import FAST, TOPIC, ScriptedCluster, ScriptedLog, partition
from tests.support.process import free_port
from tests.support.scripted import Asked, Reply

TIMES = range(1000, 1010)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        running.create_topic("t", 2)
        producer = Producer({"bootstrap.servers": running.bootstrap, "log_level": 0})
        for moment in TIMES:
            producer.produce("t", b"v", partition=0, timestamp=moment)
        assert producer.flush(60) == 0
        yield running


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    with Cluster({"bootstrap.servers": broker.bootstrap, **FAST}) as made:
        yield made


T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_topics_are_listed_without_those_that_kafka_keeps_for_itself(cluster: Cluster) -> None:
    cluster.commit("any", {T0: 1})
    assert cluster.topics() == ["t"]
    assert cluster.partitions(["t"]) == {"t": 2}


def test_new_partitions_are_seen_at_once(broker: Broker, cluster: Cluster) -> None:
    from headrace.client.admin import Admin

    broker.create_topic("grows")
    assert cluster.partitions(["grows"]) == {"grows": 1}
    Admin(broker.bootstrap).create_partitions("grows", 3)
    assert cluster.offsets({TopicPartition("grows", 2): LATEST}) == {TopicPartition("grows", 2): 0}
    assert cluster.partitions(["grows"]) == {"grows": 3}


def test_a_topic_that_is_not_there_is_not_made(cluster: Cluster) -> None:
    for ask in (
        lambda: cluster.partitions(["t", "nope"]),
        lambda: cluster.offsets({TopicPartition("nope", 0): LATEST}),
    ):
        with pytest.raises(UnknownTopic, match="'nope'"):
            ask()
    assert "nope" not in cluster.topics()
    with pytest.raises(ClientError, match="has 2 partitions; there is no partition 7"):
        cluster.offsets({TopicPartition("t", 7): LATEST})
    with pytest.raises(ClientError, match="invalid topic"):
        cluster.partitions(["not/a/name"])


def test_offsets_are_those_of_both_ends_and_of_times(cluster: Cluster) -> None:
    assert cluster.offsets({T0: EARLIEST, T1: EARLIEST}) == {T0: 0, T1: 0}
    assert cluster.offsets({T0: LATEST, T1: LATEST}, read_committed=True) == {T0: 10, T1: 0}
    assert cluster.offsets({T0: 1004, T1: 1004}) == {T0: 4, T1: None}
    assert cluster.offsets({T0: 1010}) == {T0: None}
    assert cluster.offsets({}) == {}


def test_committed_offsets_are_read_back(cluster: Cluster) -> None:
    assert cluster.committed("g", [T0, T1]) == {T0: None, T1: None}
    cluster.commit("g", {T0: 7})
    assert cluster.committed("g", [T0, T1]) == {T0: 7, T1: None}
    cluster.commit("g", {T0: 9, T1: 0})
    assert cluster.committed("g", [T1, T0]) == {T0: 9, T1: 0}
    cluster.commit("g", {})


@pytest.mark.slow
def test_a_group_with_members_is_not_committed_for(broker: Broker, cluster: Cluster) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "taken", "log_level": 0})
    assigned = threading.Event()
    try:
        consumer.subscribe(["t"], on_assign=lambda *_: assigned.set())
        deadline = time.monotonic() + 60
        while not assigned.is_set():
            assert time.monotonic() < deadline
            consumer.poll(0.1)
        with pytest.raises(ClientError, match="group 'taken' has members"):
            cluster.commit("taken", {T0: 1})
    finally:
        consumer.close()


def test_a_restarted_broker_is_found_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Broker(data=tmp_path_factory.mktemp("data")) as broker:
        broker.create_topic("t", 2)
        with Cluster({"bootstrap.servers": broker.bootstrap, **FAST}) as cluster:
            cluster.commit("g", {T0: 3})
            broker.restart()
            assert cluster.offsets({T0: LATEST}) == {T0: 0}
            assert cluster.committed("g", [T0]) == {T0: 3}


def test_a_cluster_that_never_answers_is_unreachable_soon_with_every_address() -> None:
    ports = [free_port(), free_port()]
    servers = ",".join(f"127.0.0.1:{port}" for port in ports)
    cluster = Cluster({"bootstrap.servers": servers, "default.api.timeout.ms": "50"})
    with pytest.raises(ClusterUnreachable) as failure:
        cluster.topics()
    refusals = ", ".join(f"127.0.0.1:{port}: connection refused" for port in ports)
    assert str(failure.value) == f"no broker answers at {refusals} (tried for 0.05 s)"


def test_a_cluster_that_is_about_to_start_is_waited_for(tmp_path_factory: pytest.TempPathFactory) -> None:
    port = free_port()
    broker = Broker({"listeners": f"PLAINTEXT://127.0.0.1:{port}"}, tmp_path_factory.mktemp("data"))
    timer = threading.Timer(0.2, broker.start)
    timer.start()
    try:
        with Cluster({"bootstrap.servers": f"127.0.0.1:{port}"}) as cluster:
            assert cluster.topics() == []
    finally:
        timer.join()
        broker.stop()


def test_the_second_address_serves_when_the_first_does_not(broker: Broker) -> None:
    servers = f"127.0.0.1:{free_port()},{broker.bootstrap}"
    with Cluster({"bootstrap.servers": servers}) as cluster:
        assert cluster.partitions(["t"]) == {"t": 2}


def test_a_broker_that_is_down_costs_its_timeout_once(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    down = Address("127.0.0.1", free_port())
    tried: list[Address] = []

    def counted(address: Address, settings: ConnectionSettings) -> Channel:
        tried.append(address)
        return open_channel(address, settings)

    monkeypatch.setattr(connections, "open_channel", counted)
    lender = connections.Connections(ClientSettings({"bootstrap.servers": broker.bootstrap}))
    for _ in range(3):
        with lender.lent_by_any([down]) as channel:
            assert str(channel.address) == broker.bootstrap
    lender.close()
    assert tried.count(down) == 1


def test_a_cluster_that_went_away_is_waited_for_until_the_time_is_over() -> None:
    with Broker() as broker:
        cluster = Cluster({"bootstrap.servers": broker.bootstrap, **FAST, "default.api.timeout.ms": "300"})
        assert cluster.topics() == []
    with pytest.raises(ClusterUnreachable, match=r"tried for 0\.3 s"):
        cluster.topics()
    cluster.close()


def test_leaders_are_looked_for_again_when_they_have_moved() -> None:
    logs = {0: ScriptedLog(high_watermark=5), 1: ScriptedLog(high_watermark=6)}
    with ScriptedCluster(logs, brokers=2) as scripted, Cluster(scripted.settings) as cluster:
        assert cluster.offsets({partition(0): LATEST, partition(1): LATEST}) == {partition(0): 5, partition(1): 6}
        logs[1].leader = 1
        assert cluster.offsets({partition(0): LATEST, partition(1): LATEST}) == {partition(0): 5, partition(1): 6}
        assert scripted.count(ApiKey.METADATA) == 2


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.offset_not_available,
        ErrorCode.kafka_storage_error,
    ],
)
def test_errors_that_pass_are_waited_out(code: ErrorCode) -> None:
    logs = {0: ScriptedLog(high_watermark=5, errors=[code, code])}
    with ScriptedCluster(logs) as scripted, Cluster(scripted.settings) as cluster:
        assert cluster.offsets({partition(0): LATEST}) == {partition(0): 5}


def test_errors_that_stay_are_raised_with_their_code() -> None:
    logs = {0: ScriptedLog(errors=[ErrorCode.topic_authorization_failed])}
    with ScriptedCluster(logs) as scripted, Cluster(scripted.settings) as cluster:
        with pytest.raises(ClientError, match="'orders' partition 0: topic authorization failed") as failure:
            cluster.offsets({partition(0): LATEST})
        assert failure.value.code == "TOPIC_AUTHORIZATION_FAILED"


def test_a_partition_without_a_leader_is_waited_for() -> None:
    logs = {0: ScriptedLog(leader=-1, high_watermark=3)}
    with ScriptedCluster(logs) as scripted, Cluster(scripted.settings) as cluster:

        def elect(_node: int, asked: Asked) -> Reply | bool:
            if asked.api_key == ApiKey.METADATA and scripted.count(ApiKey.METADATA) > 3:
                logs[0].leader = 0
            return False

        scripted.before = elect
        assert cluster.offsets({partition(0): LATEST}) == {partition(0): 3}


def test_a_partition_that_a_broker_has_not_heard_of_yet_is_asked_for_again() -> None:
    logs = {0: ScriptedLog(high_watermark=3)}
    with ScriptedCluster(logs) as scripted, Cluster(scripted.settings) as cluster:
        cluster.describe([TOPIC])

        def grow(_node: int, asked: Asked) -> Reply | bool:
            if asked.api_key == ApiKey.METADATA and scripted.count(ApiKey.METADATA) > 2:
                logs[1] = ScriptedLog(high_watermark=4)
            return False

        scripted.before = grow
        assert cluster.offsets({partition(1): LATEST}) == {partition(1): 4}


def test_a_connection_cut_in_the_middle_is_made_anew() -> None:
    logs = {0: ScriptedLog(high_watermark=3)}
    cuts = [ApiKey.METADATA, ApiKey.LIST_OFFSETS, ApiKey.LIST_OFFSETS]
    with ScriptedCluster(logs) as scripted, Cluster(scripted.settings) as cluster:

        def cut(_node: int, asked: Asked) -> Reply | bool:
            if asked.api_key in cuts:
                cuts.remove(ApiKey(asked.api_key))
                return None
            return False

        scripted.before = cut
        assert cluster.offsets({partition(0): LATEST}) == {partition(0): 3}
        assert not cuts


def coordinator_script(scripted: ScriptedCluster, codes: list[ErrorCode]) -> None:
    """Broker 1 coordinates; each commit is answered with the next of the codes, then well."""

    def answer(node: int, asked: Asked) -> Reply | bool:
        if asked.api_key == ApiKey.FIND_COORDINATOR:
            found = {"node_id": 1, "host": "127.0.0.1", "port": scripted.brokers[1].port}
            return {"throttle_time": 0, "error_code": 0, "error_message": None, **found}
        if asked.api_key == ApiKey.OFFSET_COMMIT:
            assert node == 1
            assert (asked.entity.member_id, asked.entity.generation_id_or_member_epoch) == ("", -1)
            partitions = [{"partition_index": 0, "error_code": codes.pop(0) if codes else 0}]
            return {"throttle_time": 0, "topics": [{"name": TOPIC, "partitions": partitions}]}
        return False

    scripted.before = answer


def test_a_commit_follows_its_coordinator() -> None:
    with ScriptedCluster({0: ScriptedLog()}, brokers=2) as scripted, Cluster(scripted.settings) as cluster:
        coordinator_script(
            scripted,
            [
                ErrorCode.not_coordinator,
                ErrorCode.coordinator_load_in_progress,
                ErrorCode.coordinator_not_available,
            ],
        )
        cluster.commit("g", {partition(0): 3})
        assert scripted.count(ApiKey.OFFSET_COMMIT) == 4
        cluster.commit("g", {partition(0): 4})
        assert scripted.count(ApiKey.FIND_COORDINATOR) == 4


def test_a_commit_that_is_refused_says_what_of() -> None:
    with ScriptedCluster({0: ScriptedLog()}, brokers=2) as scripted, Cluster(scripted.settings) as cluster:
        coordinator_script(scripted, [ErrorCode.offset_metadata_too_large])
        with pytest.raises(ClientError, match="group 'g' cannot commit topic 'orders' partition 0"):
            cluster.commit("g", {partition(0): 3})


def test_threads_share_a_cluster_without_sharing_connections() -> None:
    logs = {0: ScriptedLog(high_watermark=5)}
    with ScriptedCluster(logs) as scripted, Cluster(scripted.settings) as cluster:
        found: list[object] = []
        threads = [
            threading.Thread(target=lambda: found.extend([cluster.offsets({partition(0): LATEST}) for _ in range(20)]))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [{partition(0): 5}] * 80
        assert scripted.brokers[0].connections <= 8


def test_connections_are_kept_for_the_next_call() -> None:
    with ScriptedCluster({0: ScriptedLog()}) as scripted, Cluster(scripted.settings) as cluster:
        for _ in range(5):
            cluster.offsets({partition(0): LATEST})
        assert scripted.brokers[0].connections == 1


def test_the_same_settings_share_one_cluster(broker: Broker) -> None:
    settings = {"bootstrap.servers": broker.bootstrap, "client.id": "shared"}
    assert shared_cluster(settings) is shared_cluster(dict(reversed(settings.items())))
    assert shared_cluster(settings) is not shared_cluster({**settings, "client.id": "other"})
    shared_cluster(settings).close()


def test_a_child_process_opens_connections_of_its_own(broker: Broker) -> None:
    cluster = shared_cluster({"bootstrap.servers": broker.bootstrap, "client.id": "forked"})
    assert cluster.partitions(["t"]) == {"t": 2}
    child = os.fork()
    if child == 0:
        found = 1
        try:
            found = 0 if all(cluster.offsets({T0: LATEST}) == {T0: 10} for _ in range(20)) else 2
        finally:
            os._exit(found)
    assert all(cluster.offsets({T0: LATEST}) == {T0: 10} for _ in range(20))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cluster.partitions(["t"]) == {"t": 2}
    cluster.close()
