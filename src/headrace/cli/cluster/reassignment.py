"""Carrying a plan of moves out: asked for, held to a rate, waited for, led by whom it says."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import typer

from headrace.client.errors import ClientError
from headrace.ops.moves import Replicas, replicas_moved
from headrace.ops.overview import ClusterView
from headrace.protocol.topic_partition import TopicPartition

from ..console import ExitCode, note, say, say_json
from ..progress import progress
from .plans import as_document, show_plan, summary

if TYPE_CHECKING:
    from headrace.ops.operations import Operations, Outcomes

POLL_SECONDS: Final = 0.5
MOST_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOptions:
    """How to carry a plan out."""

    throttle: int | None = None
    """Bytes a second."""
    wait: bool = False
    dry_run: bool = False
    json: bool = False


def carry_out(
    operations: "Operations", view: ClusterView, plan: Mapping[TopicPartition, Replicas], options: MoveOptions
) -> None:
    """Show a plan, and carry it out unless that is all."""
    sizes = _sizes(operations, view) if plan else {}
    if not plan:
        _say_nothing_moves(options)
        return
    if options.dry_run:
        _show(plan, view, sizes, options)
        return
    if not options.json:
        say(summary(plan, view.layout, sizes))
    if options.throttle is not None:
        operations.throttle(options.throttle, {topic for topic, _ in plan})
    outcomes = operations.reassign(plan)
    failed = {key: error for key, error in outcomes.items() if error is not None}
    begun = {key: replicas for key, replicas in plan.items() if key not in failed}
    if options.wait:
        _wait_for(operations, view, begun, sizes, options)
    _report(begun, failed, view, options)


def _say_nothing_moves(options: MoveOptions) -> None:
    if options.json:
        say_json({"state": "level", **as_document({})})
    else:
        say("nothing has to move")


def _show(
    plan: Mapping[TopicPartition, Replicas],
    view: ClusterView,
    sizes: Mapping[TopicPartition, int],
    options: MoveOptions,
) -> None:
    if options.json:
        moved = replicas_moved(view.layout, plan)
        say_json({"state": "planned", "replicas_moved": moved, **as_document(plan)})
        return
    show_plan(plan, view.layout, sizes)
    say("")
    say(summary(plan, view.layout, sizes))
    note("nothing was changed: this is a dry run")


def _sizes(operations: "Operations", view: ClusterView) -> dict[TopicPartition, int]:
    """The bytes of each partition where it is led."""
    by_broker = operations.sizes(view.racks)
    return {p.key: by_broker.get(p.leader, {}).get(p.key, 0) for p in view.partitions if p.leader is not None}


def _report(
    begun: Mapping[TopicPartition, Replicas],
    failed: Mapping[TopicPartition, ClientError],
    view: ClusterView,
    options: MoveOptions,
) -> None:
    state = "moved" if options.wait else "moving"
    if options.json:
        moved = replicas_moved(view.layout, begun)
        errors = [{"topic": t, "partition": p, "error": e.message, "code": e.code} for (t, p), e in failed.items()]
        say_json({"state": state, "replicas_moved": moved, "failed": errors, **as_document(begun)})
    elif options.wait:
        say(f"{len(begun)} partitions moved")
    else:
        note("`headrace cluster describe` shows how far they are; `headrace cluster reassign --cancel` takes them back")
        if options.throttle is not None:
            note("the limit stays until `headrace cluster throttle off`")
    report_failures(failed)


def report_failures(failed: Mapping[TopicPartition, ClientError]) -> None:
    """Say what did not work, and end with a code that says so."""
    for error in list(failed.values())[:MOST_SHOWN]:
        note(f"headrace: {error.message}")
    if len(failed) > MOST_SHOWN:
        note(f"headrace: and {len(failed) - MOST_SHOWN} more")
    if failed:
        raise typer.Exit(ExitCode.FAILED)


def _wait_for(
    operations: "Operations",
    view: ClusterView,
    begun: Mapping[TopicPartition, Replicas],
    sizes: Mapping[TopicPartition, int],
    options: MoveOptions,
) -> None:
    try:
        _watch(operations, view, begun, sizes, shown=not options.json)
    except KeyboardInterrupt:
        note("headrace: no longer waiting; the moves go on, and `headrace cluster describe` shows how far they are")
        raise
    _let_preferred_lead(operations, begun)
    if options.throttle is not None:
        operations.unthrottle()


def _watch(
    operations: "Operations",
    view: ClusterView,
    begun: Mapping[TopicPartition, Replicas],
    sizes: Mapping[TopicPartition, int],
    *,
    shown: bool,
) -> None:
    """Returns when none of the partitions moves any more."""
    fresh = {key: set(replicas) - set(view.layout[key]) for key, replicas in begun.items()}
    total = sum(sizes.get(key, 0) * len(brokers) for key, brokers in fresh.items())
    with progress("moving", total or None, of_bytes=True, shown=shown) as advance:
        copied = 0
        while operations.moving().keys() & begun.keys():
            now = _copied(operations, fresh, sizes)
            advance(max(now - copied, 0))
            copied = max(now, copied)
            time.sleep(POLL_SECONDS)
        advance(max(total - copied, 0))


def _copied(
    operations: "Operations", fresh: Mapping[TopicPartition, set[int]], sizes: Mapping[TopicPartition, int]
) -> int:
    by_broker = operations.sizes(sorted(set().union(*fresh.values())))
    held = (
        min(by_broker.get(broker, {}).get(key, 0), sizes.get(key, 0))
        for key, brokers in fresh.items()
        for broker in brokers
    )
    return sum(held)


def _let_preferred_lead(operations: "Operations", begun: Mapping[TopicPartition, Replicas]) -> "Outcomes":
    """Who cannot lead yet will, when the cluster next looks for such partitions."""
    return operations.elect(begun) if begun else {}


def values_of(outcomes: "Outcomes") -> list[dict[str, Any]]:
    """Outcomes for programs."""
    return [
        {"topic": topic, "partition": index, "error": None if error is None else error.message}
        for (topic, index), error in sorted(outcomes.items())
    ]
