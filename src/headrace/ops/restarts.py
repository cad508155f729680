"""A rolling restart, decided purely: in which order brokers are restarted, and what the next one has to wait for."""

from collections.abc import Iterable
from typing import Final

from .overview import ClusterView, PartitionView

_MOST_NAMED: Final = 3


def restart_order(view: ClusterView, brokers: Iterable[int]) -> list[int]:
    """Machine by machine, the one with the controller last, and the controller last of all.

    So the controller moves once, to a broker that has been restarted already.
    """
    racks = {broker.id: broker.rack or "" for broker in view.brokers}
    last_rack = None if view.controller is None else racks.get(view.controller)
    return sorted(
        set(brokers),
        key=lambda broker: (
            broker == view.controller,
            racks.get(broker) == last_rack,
            racks.get(broker, ""),
            broker,
        ),
    )


def waits_for(view: ClusterView, expected: Iterable[int]) -> str:
    """What has to come right before another broker may be stopped; empty where nothing has.

    Every expected broker is alive and every replica that is not new in its place is in the ISR. A replica that only
    comes, by a reassignment, is not waited for.
    """
    living = view.racks
    gone = [str(broker) for broker in sorted(set(expected)) if broker not in living]
    if gone:
        return f"broker {', '.join(gone)} to be alive"
    behind = [partition for partition in view.partitions if partition.problem is not None]
    if not behind:
        return ""
    named = ", ".join(_missing(partition) for partition in behind[:_MOST_NAMED])
    more = f" and {len(behind) - _MOST_NAMED} more" if len(behind) > _MOST_NAMED else ""
    return f"the full ISR of {len(behind)} partitions: {named}{more}"


def short_name(partition: PartitionView) -> str:
    """As logs name it."""
    return f"{partition.topic}-{partition.partition}"


def _missing(partition: PartitionView) -> str:
    if partition.leader is None:
        return f"{short_name(partition)} has no leader"
    absent = [str(r) for r in partition.replicas if r not in partition.isr and r not in partition.adding]
    return f"{short_name(partition)} lacks {', '.join(absent)}"


def unreplicated(view: ClusterView, brokers: Iterable[int]) -> list[PartitionView]:
    """Partitions that cannot be served while one of these brokers restarts, as nobody else holds them or too few do
    for `min.insync.replicas`.
    """
    leaving = set(brokers)
    return [
        p
        for p in view.partitions
        if leaving.intersection(p.replicas) and (len(p.replicas) == 1 or len(p.replicas) - 1 < p.min_isr)
    ]
