"""What reports of faulty logs make of the brokers that sent them."""

from uuid import UUID

from headrace.cluster.image import PartitionState
from headrace.cluster.log_faults import FaultKind, LogFaults

KEY = (UUID(int=1), 0)
STATE = PartitionState(replicas=(1, 2, 3), isr=(1, 2), leader=1)
ALIVE = frozenset({1, 2, 3})


def test_a_report_replaces_the_one_before_it() -> None:
    faults = LogFaults()
    faults.replace(1, {KEY: FaultKind.FAILED, (UUID(int=1), 1): FaultKind.FAILED})
    faults.replace(1, {KEY: FaultKind.FAILED})
    assert faults.of(1) == {KEY: FaultKind.FAILED}
    faults.replace(1, {})
    assert not faults


def test_brokers_that_come_anew_are_forgiven() -> None:
    faults = LogFaults()
    faults.replace(1, {KEY: FaultKind.FAILED})
    faults.replace(2, {KEY: FaultKind.LOST})
    faults.forget([1])
    assert faults.offline(KEY, STATE, ALIVE) == {2}


def test_a_full_log_is_dead_only_where_another_in_sync_has_space() -> None:
    faults = LogFaults()
    faults.replace(1, {KEY: FaultKind.FULL})
    assert faults.offline(KEY, STATE, ALIVE) == {1}
    assert faults.offline(KEY, STATE, ALIVE - {2}) == frozenset()
    faults.replace(2, {KEY: FaultKind.FULL})
    faults.replace(3, {KEY: FaultKind.FAILED})
    assert faults.offline(KEY, STATE, ALIVE) == {3}
