"""A cluster in tables, and the same for programs."""

from collections.abc import Iterator
from typing import Any

from headrace.health import HealthReport, ListenerReport
from headrace.ops.health_reports import BrokerReports, Unheard, complaints
from headrace.ops.overview import BrokerView, ClusterView, PartitionProblem, PartitionView, Sizes, progress_of

from ..console import bad, coloured, say, say_table
from .plans import brokers, shown_bytes


def show(view: ClusterView, sizes: Sizes, rate: int | None, reports: BrokerReports, *, every_partition: bool) -> None:
    """What there is, what is wrong, what moves."""
    say(f"cluster      {view.cluster_id}")
    say(f"controller   {coloured(bad('none')) if view.controller is None else view.controller}")
    topics = len({p.topic for p in view.partitions})
    held = sum(len(p.replicas) for p in view.partitions)
    say(f"partitions   {len(view.partitions)} of {topics} topics, {held} replicas")
    found = health(view, reports)
    say(f"health       {found if is_well(view, reports) else coloured(bad(found))}")
    say(f"version      {_versions(view)}")
    if rate is not None:
        say(f"throttle     {shown_bytes(rate)}/s for replicas that catch up")
    say("")
    _show_brokers(view, sizes)
    _show_listeners(view, reports)
    lines = list(complaints(reports))
    if lines:
        say("")
        for line in lines:
            say(f"! {line}")
    listed = view.partitions if every_partition else [p for p in view.partitions if p.problem is not None]
    if listed:
        say("")
        _show_partitions(listed)
    if view.moving:
        say("")
        _show_moves(view, sizes)


def health(view: ClusterView, reports: BrokerReports) -> str:
    """In a few words."""
    troubled = len({line.partition(":")[0] for line in complaints(reports)})
    problems = [f"{troubled} broker{'s' if troubled > 1 else ''} in trouble"] if troubled else []
    problems += [f"{len(some)} {problem}" for problem in PartitionProblem if (some := view.with_problem(problem))]
    gone = [broker.id for broker in view.brokers if not broker.is_alive]
    if gone:
        problems.append(f"not alive: {brokers(gone)}")
    elsewhere = sum(p.is_led_by_another for p in view.partitions)
    if elsewhere:
        problems.append(f"{elsewhere} not led by their preferred replica")
    if view.moving:
        problems.append(f"{len(view.moving)} moving")
    return "; ".join(problems) or "all replicas are in sync"


def _versions(view: ClusterView) -> str:
    """One where all brokers are of one version, else who is of which; and the feature level."""
    versions = view.versions
    named = [
        version or "unknown" if len(versions) == 1 else f"{version or 'unknown'} (broker {brokers(ids)})"
        for version, ids in sorted(versions.items())
    ]
    mixed = "mixed: " if len(versions) > 1 else ""
    level = "" if view.level is None else f", feature level {view.level}"
    newest = min((b.levels[1] for b in view.brokers if b.levels is not None), default=None)
    is_old = view.level is not None and newest is not None and view.level < newest and len(versions) == 1
    return f"{mixed}{', '.join(named)}{level}{f' (all speak {newest}: `headrace cluster upgrade`)' if is_old else ''}"


def is_well(view: ClusterView, reports: BrokerReports) -> bool:
    """Whether every partition has all it should have, and every broker that lives says that it can serve."""
    return not any(p.problem for p in view.partitions) and not any(complaints(reports))


def _as_values(report: HealthReport | Unheard | None) -> dict[str, Any] | None:
    if report is None:
        return None
    if isinstance(report, Unheard):
        return {"ready": False, "unheard": report.reason}
    return {"ready": report.ready, "problems": [problem.to_json() for problem in report.problems]}


def _show_brokers(view: ClusterView, sizes: Sizes) -> None:
    say_table(
        ("BROKER", "ADDRESS", "RACK", "LEADS", "REPLICAS", "IN SYNC", "SIZE", "VERSION", ""),
        [
            (
                broker.id,
                broker.address or "-",
                broker.rack or "-",
                view.led_by(broker.id),
                view.held_by(broker.id),
                view.in_sync_on(broker.id),
                shown_bytes(sum(sizes[broker.id].values())) if broker.id in sizes else "-",
                broker.version or "-",
                _remark(broker, view),
            )
            for broker in view.brokers
        ],
    )


def _listeners(report: HealthReport | Unheard | None) -> tuple[ListenerReport, ...]:
    return report.listeners if isinstance(report, HealthReport) else ()


def _show_listeners(view: ClusterView, reports: BrokerReports) -> None:
    """Where there is more to say than that each broker has one, which is PLAINTEXT."""
    listeners = [(broker.id, each) for broker in view.brokers for each in _listeners(reports.get(broker.id))]
    if all(each.name == "PLAINTEXT" for _, each in listeners):
        return
    say("")
    say_table(
        ("BROKER", "LISTENER", "PROTOCOL", "LISTENS AT", "FOUND AT", ""),
        [
            (
                broker,
                each.name,
                each.protocol,
                each.bound,
                each.advertised or "-",
                "; ".join(_facts(each)),
            )
            for broker, each in listeners
        ],
    )


def _facts(listener: ListenerReport) -> Iterator[str]:
    if listener.for_brokers:
        yield "for brokers"
    if listener.anonymous and listener.remote:
        yield bad("open to all")


def _remark(broker: BrokerView, view: ClusterView) -> str:
    if not broker.is_alive:
        return bad("not alive")
    return "controller" if broker.id == view.controller else ""


def _show_partitions(partitions: "tuple[PartitionView, ...] | list[PartitionView]") -> None:
    say_table(
        ("TOPIC", "PARTITION", "LEADER", "REPLICAS", "IN SYNC", "OFFLINE", "ELIGIBLE", "PROBLEM"),
        [
            (
                p.topic,
                p.partition,
                bad("none") if p.leader is None else p.leader,
                brokers(p.replicas),
                brokers(p.isr),
                bad(brokers(p.offline)) if p.offline else brokers(p.offline),
                brokers(p.elr),
                bad(p.problem) if p.problem else "",
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


def as_values(view: ClusterView, sizes: Sizes, rate: int | None, reports: BrokerReports) -> dict[str, Any]:
    """For programs: everything, with what is derived of it."""
    progress = progress_of(view.partitions, sizes)
    return {
        "cluster_id": view.cluster_id,
        "controller": view.controller,
        "feature_level": view.level,
        "throttle": rate,
        "brokers": [
            {
                "id": b.id,
                "host": b.host,
                "port": b.port,
                "rack": b.rack,
                "alive": b.is_alive,
                "version": b.version or None,
                "feature_levels": b.levels,
                "leads": view.led_by(b.id),
                "replicas": view.held_by(b.id),
                "in_sync": view.in_sync_on(b.id),
                "bytes": sum(sizes[b.id].values()) if b.id in sizes else None,
                "health": _as_values(reports.get(b.id)),
                "listeners": [each._asdict() for each in _listeners(reports.get(b.id))],
            }
            for b in view.brokers
        ],
        "health": {
            "ok": is_well(view, reports),
            **{problem.name.lower(): len(view.with_problem(problem)) for problem in PartitionProblem},
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
