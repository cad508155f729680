"""A partition of one's own: whoever took it over last writes, and has read all that the others wrote."""

from collections.abc import Iterator

import pytest

from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.fenced import FencedLog
from headrace.client.errors import ClientError
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from tests.support.columnar.scripted_cluster import ScriptedCluster, ScriptedLog, partition
from tests.support.columnar.scripted_coordinator import ScriptedCoordinator
from tests.support.scripted import Asked, Reply


@pytest.fixture
def script() -> Iterator[ScriptedCluster]:
    with ScriptedCluster({0: ScriptedLog()}) as script:
        ScriptedCoordinator(script)
        yield script


@pytest.fixture
def cluster(script: ScriptedCluster) -> Iterator[Cluster]:
    with Cluster(script.settings) as made:
        yield made


def taken(cluster: Cluster, name: str = "mine") -> FencedLog:
    log = FencedLog(cluster, partition(0), name)
    log.take_over()
    return log


def test_what_is_appended_is_read_once_in_its_order(cluster: Cluster) -> None:
    log, reader = taken(cluster), FencedLog(cluster, partition(0), "reader")
    log.append(b"k", b"1")
    log.append(b"k", b"2")
    assert reader.read() == [(0, b"k", b"1"), (1, b"k", b"2")]
    log.append(b"k", b"3")
    assert reader.read() == [(2, b"k", b"3")]
    assert reader.read() == log.read() == []


def test_who_appends_is_told_what_came_before(cluster: Cluster) -> None:
    one, other = taken(cluster, "one"), taken(cluster, "other")
    assert one.append(b"1", b"a") == [(0, b"1", b"a")]
    other.append(b"2", b"b")
    assert one.append(b"1", None) == [(1, b"2", b"b"), (2, b"1", None)]


def test_a_name_that_is_kept_alive_stays_with_who_has_it(cluster: Cluster) -> None:
    first = taken(cluster)
    first.append(b"k", b"1")
    first.keep_alive()
    first.append(b"k", b"2")
    taken(cluster)
    with pytest.raises(ClientError) as refused:
        first.keep_alive()
    assert refused.value.code == "PRODUCER_FENCED"
    assert not first.is_ours


def test_an_empty_partition_has_nothing_to_read(cluster: Cluster) -> None:
    assert FencedLog(cluster, partition(0), "mine").read() == []


def test_who_took_over_first_can_append_until_the_other_does(cluster: Cluster) -> None:
    first, second = taken(cluster), taken(cluster)
    first.append(b"k", b"before")
    assert [entry.value for entry in second.append(b"k", b"mine")] == [b"before", b"mine"]
    with pytest.raises(ClientError, match="taken over") as refused:
        first.append(b"k", b"after")
    assert refused.value.code == "PRODUCER_FENCED"
    assert not first.is_ours
    assert second.read() == []


def test_names_do_not_shut_each_other_out(cluster: Cluster) -> None:
    one, other = taken(cluster, "one"), taken(cluster, "other")
    one.append(b"1", b"a")
    other.append(b"2", b"b")
    one.append(b"1", b"c")
    assert [entry.key for entry in FencedLog(cluster, partition(0), "reader").read()] == [b"1", b"2", b"1"]


def test_an_answer_that_never_came_leaves_one_record(cluster: Cluster, script: ScriptedCluster) -> None:
    lost: list[int] = []

    def lose_the_first(_node: int, asked: Asked, reply: Reply) -> Reply:
        if asked.api_key != ApiKey.PRODUCE or lost:
            return reply
        lost.append(1)
        return None

    script.after = lose_the_first
    log = taken(cluster)
    assert log.append(b"k", b"once") == [(0, b"k", b"once")]
    assert lost
    assert script.logs[0].values == [b"once"]


def test_a_leader_that_moves_is_followed(cluster: Cluster, script: ScriptedCluster) -> None:
    script.logs[0].errors = [ErrorCode.not_leader_or_follower, ErrorCode.not_enough_replicas]
    log = taken(cluster)
    log.append(b"k", b"v")
    assert script.logs[0].values == [b"v"]


def test_an_error_that_stays_is_raised_and_gives_the_log_up(cluster: Cluster, script: ScriptedCluster) -> None:
    log = taken(cluster)
    script.logs[0].errors = [ErrorCode.topic_authorization_failed]
    with pytest.raises(ClientError, match="authorization"):
        log.append(b"k", b"v")
    assert not log.is_ours
    log.take_over()
    log.append(b"k", b"again")
    assert script.logs[0].values == [b"again"]


def test_a_large_value_is_packed(cluster: Cluster, script: ScriptedCluster) -> None:
    log = taken(cluster)
    log.append(b"k", b"x" * 1_000_000)
    assert len(script.logs[0].batches[0]) < 10_000
    assert [entry.value for entry in FencedLog(cluster, partition(0), "reader").read()] == [b"x" * 1_000_000]
