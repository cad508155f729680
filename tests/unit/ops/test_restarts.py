"""The order of a rolling restart, and what each step of it waits for."""

from headrace.ops.overview import BrokerView, ClusterView, PartitionView, all_brokers
from headrace.ops.restarts import restart_order, unreplicated, waits_for


def partition(
    number: int, replicas: tuple[int, ...], isr: tuple[int, ...] | None = None, **more: object
) -> PartitionView:
    values = {"leader": replicas[0], "leader_epoch": 0, "isr": replicas if isr is None else isr, **more}
    return PartitionView(topic="orders", partition=number, replicas=replicas, **values)  # type: ignore[arg-type]


def view(*partitions: PartitionView, racks: dict[int, str | None], controller: int | None = None) -> ClusterView:
    living = [BrokerView(id=broker, host="h", port=1, rack=rack) for broker, rack in racks.items()]
    return ClusterView(
        cluster_id="c", controller=controller, brokers=all_brokers(living, partitions), partitions=partitions
    )


RACKS: dict[int, str | None] = {101: "a", 102: "a", 201: "b", 202: "b", 301: "c", 302: "c"}


def test_machine_follows_machine_and_the_controller_comes_last_of_all() -> None:
    assert restart_order(view(racks=RACKS, controller=201), RACKS) == [101, 102, 301, 302, 202, 201]
    assert restart_order(view(racks=RACKS), RACKS) == [101, 102, 201, 202, 301, 302]
    assert restart_order(view(racks=dict.fromkeys((3, 1, 2)), controller=1), (1, 2, 3)) == [2, 3, 1]


def test_the_next_broker_waits_until_every_replica_is_in_its_isr() -> None:
    well = view(partition(0, (101, 201, 301)), racks=RACKS)
    assert waits_for(well, RACKS) == ""
    behind = view(partition(0, (101, 201, 301), (101, 301)), racks=RACKS)
    assert waits_for(behind, RACKS) == "the full ISR of 1 partitions: orders-0 lacks 201"


def test_the_next_broker_waits_for_one_that_is_gone_also_where_that_holds_nothing() -> None:
    racks = {broker: rack for broker, rack in RACKS.items() if broker != 302}
    assert waits_for(view(partition(0, (101, 201)), racks=racks), RACKS) == "broker 302 to be alive"


def test_a_partition_without_a_leader_is_waited_for_and_many_are_counted() -> None:
    partitions = [partition(n, (101, 201), (), leader=None) for n in range(5)]
    assert waits_for(view(*partitions, racks=RACKS), RACKS) == (
        "the full ISR of 5 partitions: orders-0 has no leader, orders-1 has no leader, orders-2 has no leader "
        "and 2 more"
    )


def test_a_replica_that_only_comes_is_not_waited_for() -> None:
    assert waits_for(view(partition(0, (101, 201, 301), (101, 201), adding=(301,)), racks=RACKS), RACKS) == ""


def test_partitions_that_cannot_miss_a_broker_are_known_before() -> None:
    alone, tight, spare = (
        partition(0, (101,)),
        partition(1, (101, 201), min_isr=2),
        partition(2, (101, 201, 301), min_isr=2),
    )
    assert unreplicated(view(alone, tight, spare, racks=RACKS), [101]) == [alone, tight]
    assert unreplicated(view(alone, tight, spare, racks=RACKS), [301]) == []
