"""Whoever holds a prepared transaction can end it, and is told what became of it."""

from collections.abc import Iterator

import pytest

from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.prepared import (
    Description,
    Ending,
    describe_transactions,
    end_transactions,
    fence,
    lack_of_transactions,
    open_transactions,
)
from headrace.client.core.versions import SPOKEN
from headrace.client.errors import ClientError
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.testing import Broker
from tests.support.columnar.scripted_cluster import ScriptedCluster, ScriptedLog
from tests.support.columnar.scripted_coordinator import ABORTED, COMMITTED, OPEN, ScriptedCoordinator
from tests.support.lacking import hide_transactions


@pytest.fixture
def script() -> Iterator[ScriptedCluster]:
    with ScriptedCluster({0: ScriptedLog()}, brokers=2) as script:
        yield script


@pytest.fixture
def coordinator(script: ScriptedCluster) -> ScriptedCoordinator:
    return ScriptedCoordinator(script)


@pytest.fixture
def cluster(script: ScriptedCluster) -> Iterator[Cluster]:
    with Cluster(script.settings) as made:
        yield made


def test_a_prepared_transaction_is_committed_once_however_often_it_is_told(
    cluster: Cluster, coordinator: ScriptedCoordinator
) -> None:
    prepared = coordinator.open("a")
    for _ in range(2):
        assert end_transactions(cluster, [prepared], commit=True) == {"a": Ending.DONE}
    assert coordinator.entries["a"].state == COMMITTED


def test_of_a_commit_and_an_abort_the_first_wins_and_the_other_is_told(
    cluster: Cluster, coordinator: ScriptedCoordinator
) -> None:
    prepared = coordinator.open("a")
    assert end_transactions(cluster, [prepared], commit=False) == {"a": Ending.DONE}
    assert end_transactions(cluster, [prepared], commit=True) == {"a": Ending.CONTRARY}
    assert coordinator.entries["a"].state == ABORTED


def test_a_transaction_that_timed_out_or_was_taken_over_is_gone(
    cluster: Cluster, coordinator: ScriptedCoordinator
) -> None:
    late, taken, forgotten = (coordinator.open(name) for name in ("late", "taken", "forgotten"))
    coordinator.time_out("late")
    fence(cluster, "taken")
    del coordinator.entries["forgotten"]
    endings = end_transactions(cluster, [late, taken, forgotten], commit=True)
    assert set(endings.values()) == {Ending.GONE}


def test_hundreds_are_ended_without_waiting_for_each(
    cluster: Cluster, coordinator: ScriptedCoordinator, script: ScriptedCluster
) -> None:
    prepared = [coordinator.open(f"t{number}") for number in range(450)]
    endings = end_transactions(cluster, prepared, commit=True)
    assert len(endings) == 450
    assert set(endings.values()) == {Ending.DONE}
    assert script.count(ApiKey.END_TXN) == 450


@pytest.mark.parametrize(
    "code",
    [ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress, ErrorCode.concurrent_transactions],
)
def test_a_coordinator_that_moves_or_is_busy_is_waited_for(
    cluster: Cluster, coordinator: ScriptedCoordinator, code: ErrorCode
) -> None:
    prepared = [coordinator.open(name) for name in "abc"]
    coordinator.errors = {ApiKey.END_TXN: [code] * 2, ApiKey.DESCRIBE_TRANSACTIONS: [code] * 2}
    assert set(end_transactions(cluster, prepared, commit=True).values()) == {Ending.DONE}
    assert describe_transactions(cluster, ["a"])["a"] == Description(COMMITTED, *prepared[0][1:3])


def test_an_error_that_stays_is_raised(cluster: Cluster, coordinator: ScriptedCoordinator) -> None:
    prepared = coordinator.open("a")
    coordinator.errors = {ApiKey.END_TXN: [ErrorCode.transactional_id_authorization_failed]}
    with pytest.raises(ClientError, match="'a'") as refused:
        end_transactions(cluster, [prepared], commit=True)
    assert refused.value.code == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"


def test_what_a_coordinator_knows_is_told(cluster: Cluster, coordinator: ScriptedCoordinator) -> None:
    prepared = coordinator.open("a")
    assert describe_transactions(cluster, ["a", "b"]) == {
        "a": Description(OPEN, prepared.producer_id, prepared.epoch),
        "b": None,
    }


def test_the_open_transactions_of_a_prefix_are_found_on_every_broker_that_answers(
    cluster: Cluster, coordinator: ScriptedCoordinator
) -> None:
    for name in ("sink-1-a", "sink-1-b", "sink-2-a"):
        coordinator.open(name)
    end_transactions(cluster, [coordinator.open("sink-1-c")], commit=True)
    assert open_transactions(cluster, "sink-1-") == ["sink-1-a", "sink-1-b"]
    coordinator.errors = {ApiKey.LIST_TRANSACTIONS: [ErrorCode.coordinator_load_in_progress]}
    assert open_transactions(cluster, "sink-1-") == []


def test_a_cluster_with_transactions_lacks_nothing(cluster: Cluster, coordinator: ScriptedCoordinator) -> None:
    assert lack_of_transactions(cluster, "probe") is None


def test_a_broker_without_transactions_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_transactions(monkeypatch)
    with Broker() as broker, Cluster({"bootstrap.servers": broker.bootstrap}) as cluster:
        assert "does not serve" in (lack_of_transactions(cluster, "probe") or "")


def test_a_transactional_id_that_is_not_allowed_is_a_lack(script: ScriptedCluster, cluster: Cluster) -> None:
    code = ErrorCode.transactional_id_authorization_failed.value
    refusal = {"throttle_time": 0, "error_code": code, "error_message": None, "node_id": -1, "host": "", "port": -1}
    script.before = lambda _node, asked: refusal if asked.api_key == ApiKey.FIND_COORDINATOR else False
    assert "'probe'" in (lack_of_transactions(cluster, "probe") or "")


def test_the_apis_of_transactions_are_spoken() -> None:
    assert {ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.LIST_TRANSACTIONS, ApiKey.END_TXN} <= SPOKEN.keys()
