"""A cluster in tables, and the same for programs."""

from typing import Any

from headrace.ops.overview import BrokerView, ClusterView, PartitionView, Problem, Sizes, progress_of

from ..console import say, say_table
from .plans import brokers, shown_bytes


def show(view: ClusterView, sizes: Sizes, rate: int | None, *, every_partition: bool) -> None:
    """What there is, what is wrong, what moves."""
    say(f"cluster      {view.cluster_id}")
    say(f"controller   {'none' if view.controller is None else view.controller}")
    topics = len({p.topic for p in view.partitions})
    held = sum(len(p.replicas) for p in view.partitions)
    say(f"partitions   {len(view.partitions)} of {topics} topics, {held} replicas")
    say(f"health       {health(view)}")
    if rate is not None:
        say(f"throttle     {shown_bytes(rate)}/s for replicas that catch up")
    say("")
    _show_brokers(view, sizes)
    listed = view.partitions if every_partition else [p for p in view.partitions if p.problem is not None]
    if listed:
        say("")
        _show_partitions(listed)
    if view.moving:
        say("")
        _show_moves(view, sizes)


def health(view: ClusterView) -> str:
    """In a few words."""
    found = [f"{len(some)} {problem}" for problem in Problem if (some := view.with_problem(problem))]
    gone = [broker.id for broker in view.brokers if not broker.is_alive]
    if gone:
        found.append(f"not alive: {brokers(gone)}")
    elsewhere = sum(p.is_led_by_another for p in view.partitions)
    if elsewhere:
        found.append(f"{elsewhere} not led by their preferred replica")
    if view.moving:
        found.append(f"{len(view.moving)} moving")
    return "; ".join(found) or "all replicas are in sync"


def is_well(view: ClusterView) -> bool:
    """Whether every partition has all it should have."""
    return not any(p.problem for p in view.partitions)


def _show_brokers(view: ClusterView, sizes: Sizes) -> None:
    say_table(
        ("BROKER", "ADDRESS", "RACK", "LEADS", "REPLICAS", "IN SYNC", "SIZE", ""),
        [
            (
                broker.id,
                broker.address or "-",
                broker.rack or "-",
                view.led_by(broker.id),
                view.held_by(broker.id),
                view.in_sync_on(broker.id),
                shown_bytes(sum(sizes[broker.id].values())) if broker.id in sizes else "-",
                _remark(broker, view),
            )
            for broker in view.brokers
        ],
    )


def _remark(broker: BrokerView, view: ClusterView) -> str:
    if not broker.is_alive:
        return "not alive"
    return "controller" if broker.id == view.controller else ""


def _show_partitions(partitions: "tuple[PartitionView, ...] | list[PartitionView]") -> None:
    say_table(
        ("TOPIC", "PARTITION", "LEADER", "REPLICAS", "IN SYNC", "OFFLINE", "ELIGIBLE", "PROBLEM"),
        [
            (
                p.topic,
                p.partition,
                "none" if p.leader is None else p.leader,
                brokers(p.replicas),
                brokers(p.isr),
                brokers(p.offline),
                brokers(p.elr),
                p.problem or "",
            )
            for p in partitions
        ],
    )


def _show_moves(view: ClusterView, sizes: Sizes) -> None:
    say_table(
        ("MOVING", "PARTITION", "TO", "ADDING", "REMOVING", "COPIED"),
        [
            (p.topic, p.partition, brokers(p.target), brokers(p.adding), brokers(p.removing), _copied([p], sizes))
            for p in view.moving
        ],
    )


def _copied(partitions: list[PartitionView], sizes: Sizes) -> str:
    progress = progress_of(partitions, sizes)
    if not progress.total:
        return "-"
    return f"{progress.share:.0%} of {shown_bytes(progress.total)}"


def as_values(view: ClusterView, sizes: Sizes, rate: int | None) -> dict[str, Any]:
    """For programs: everything, with what is derived of it."""
    progress = progress_of(view.partitions, sizes)
    return {
        "cluster_id": view.cluster_id,
        "controller": view.controller,
        "throttle": rate,
        "brokers": [
            {
                "id": b.id,
                "host": b.host,
                "port": b.port,
                "rack": b.rack,
                "alive": b.is_alive,
                "leads": view.led_by(b.id),
                "replicas": view.held_by(b.id),
                "in_sync": view.in_sync_on(b.id),
                "bytes": sum(sizes[b.id].values()) if b.id in sizes else None,
            }
            for b in view.brokers
        ],
        "health": {
            "ok": is_well(view),
            **{problem.name.lower(): len(view.with_problem(problem)) for problem in Problem},
            "not_led_by_preferred": sum(p.is_led_by_another for p in view.partitions),
            "moving": len(view.moving),
        },
        "moves": {"copied_bytes": progress.done, "total_bytes": progress.total},
        "partitions": [
            {
                "topic": p.topic,
                "partition": p.partition,
                "leader": p.leader,
                "leader_epoch": p.leader_epoch,
                "replicas": p.replicas,
                "isr": p.isr,
                "offline": p.offline,
                "elr": p.elr,
                "adding": p.adding,
                "removing": p.removing,
                "min_isr": p.min_isr,
                "problem": p.problem,
            }
            for p in view.partitions
        ],
    }
