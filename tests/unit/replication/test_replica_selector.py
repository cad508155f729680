"""Consumers are sent to a replica in their own rack, if there is one that can serve them."""

import pytest

from headrace.cluster.image import BrokerNode, Endpoint, PartitionState
from headrace.replication.replica_selector import NOBODY, reader_for

BROKERS = {
    number: BrokerNode(id=number, host="h", port=1, rack=rack)
    for number, rack in {1: "a", 2: "b", 3: "b", 4: None}.items()
}
STATE = PartitionState(replicas=(1, 2, 3, 4), isr=(1, 2, 3, 4), leader=1)
ENDS = {2: 100, 3: 120, 4: 500}


def reader(rack: str, offset: int = 10, isr: tuple[int, ...] = STATE.isr, gone: int = 0) -> int:
    state = PartitionState(replicas=STATE.replicas, isr=isr, leader=1)
    living = {number: node for number, node in BROKERS.items() if number != gone}
    return reader_for(rack, offset, state, living, lambda broker: ENDS.get(broker, -1))


def test_the_one_that_has_come_furthest_is_chosen() -> None:
    assert reader("b") == 3


@pytest.mark.parametrize("rack", ["", "a", "c"])
def test_the_leader_serves_who_is_near_it_or_near_nobody(rack: str) -> None:
    assert reader(rack) == NOBODY


def test_one_that_is_not_in_sync_is_not_chosen() -> None:
    assert reader("b", isr=(1, 2)) == 2
    assert reader("b", isr=(1,)) == NOBODY


def test_one_that_does_not_live_is_not_chosen() -> None:
    assert reader("b", gone=3) == 2


def test_one_that_does_not_have_the_offset_yet_is_not_chosen() -> None:
    assert reader("b", offset=110) == 3
    assert reader("b", offset=121) == NOBODY


def test_one_without_the_listener_of_the_consumer_is_not_chosen() -> None:
    state = PartitionState(replicas=(1, 2), isr=(1, 2), leader=1)
    inside = Endpoint("INSIDE", "PLAINTEXT", "h", 1)
    brokers = {
        1: BrokerNode(id=1, host="h", port=1, rack="a"),
        2: BrokerNode(id=2, host="h", port=1, rack="b", endpoints=(inside,)),
    }
    found = [reader_for("b", 0, state, brokers, lambda _: 10, listener) for listener in ("INSIDE", "OUTSIDE")]
    assert found == [2, NOBODY]
