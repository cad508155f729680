"""Unclean elections: what each replica holds of the partitions that nobody leads, and who is to lead them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.ops.overview import PartitionView

from ..console import Failure, note, say_table

if TYPE_CHECKING:
    from headrace.ops.operations import LogEnds, Operations, Outcomes


@dataclass(frozen=True, slots=True)
class UncleanElection:
    """A partition that nobody leads, the ends of its living logs (last epoch, offset), and who is to lead."""

    partition: PartitionView
    ends: dict[int, tuple[int, int]]
    leader: int

    @property
    def missing(self) -> int:
        """Records that another living log has, at least, and the chosen one does not."""
        return max(end[1] for end in self.ends.values()) - self.ends[self.leader][1]

    @property
    def unknown(self) -> list[int]:
        """Replicas of which nobody knows what they hold."""
        return [r for r in self.partition.replicas if r not in self.ends]


def choices(partitions: Sequence[PartitionView], ends: "LogEnds", replica: int | None) -> list[UncleanElection]:
    """Who leads: the replica that was named, else the longest log; partitions of which nobody tells are left out."""
    chosen: list[UncleanElection] = []
    for partition in partitions:
        ends_of = ends[partition.key]
        if replica is not None:
            if replica not in partition.replicas:
                raise Failure(f"broker {replica} holds no replica of {partition.topic} partition {partition.partition}")
            if replica not in ends_of:
                raise Failure(f"broker {replica} does not live, or does not tell what it holds")
        if ends_of:
            order = {r: number for number, r in enumerate(partition.replicas)}
            longest = max(ends_of, key=lambda r: (ends_of[r], -order[r]))
            chosen.append(UncleanElection(partition, ends_of, longest if replica is None else replica))
    return chosen


def show_choices(choices: Sequence[UncleanElection], untold: int) -> None:
    """What each replica holds, and who would lead; and that there are partitions of which nobody tells."""
    if untold:
        note(f"{untold} partition(s) without a leader have no living replica: start a broker that holds one")
    if not choices:
        if not untold:
            note("every partition that was asked for has a leader")
        return
    rows = [
        (
            choice.partition.topic,
            choice.partition.partition,
            replica,
            *(choice.ends.get(replica) or ("-", "-")),
            _remark(choice, replica),
        )
        for choice in choices
        for replica in choice.partition.replicas
    ]
    say_table(("TOPIC", "PARTITION", "REPLICA", "LAST EPOCH", "LOG END", ""), rows)
    missing = sum(choice.missing > 0 for choice in choices)
    if missing:
        note(f"in {missing} partition(s) another living log reaches further than the chosen one")


def _remark(choice: UncleanElection, replica: int) -> str:
    if replica == choice.leader:
        lost = f", {choice.missing} records fewer than the longest" if choice.missing else ""
        return f"would lead{lost}"
    return "" if replica in choice.ends else "unknown: not alive, or cannot be read"


def values_of_choices(elections: Sequence[UncleanElection]) -> list[dict[str, Any]]:
    """The same for programs."""
    return [
        {
            "topic": choice.partition.topic,
            "partition": choice.partition.partition,
            "leader": choice.leader,
            "replicas": [
                {"broker": r, "last_epoch": choice.ends[r][0], "log_end": choice.ends[r][1]}
                for r in choice.partition.replicas
                if r in choice.ends
            ],
            "unknown": choice.unknown,
            "records_missing": choice.missing,
        }
        for choice in elections
    ]


def elect_chosen(operations: "Operations", elections: Sequence[UncleanElection], replica: int | None) -> "Outcomes":
    """Have the elections held. A replica that was named may stand elsewhere in each partition."""
    if replica is None:
        return operations.elect([choice.partition.key for choice in elections], unclean=True)
    outcomes: Outcomes = {}
    for position in sorted({choice.partition.replicas.index(replica) for choice in elections}):
        keys = [c.partition.key for c in elections if c.partition.replicas.index(replica) == position]
        outcomes |= operations.elect(keys, unclean=True, position=position)
    return outcomes
