"""Which brokers hold a new partition.

Brokers stand in a ring in which racks alternate (a1 b1 c1 a2 b2 …). Partition p is led by the ring's broker at
`start + p`; its followers are the next brokers of the ring after a gap that grows by one each time the leaders have
gone round, so that the partitions one broker leads are followed by all others, not always by the same few. A broker
in a rack that already holds a replica is passed over while there are racks, then brokers, that do not.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from headrace.protocol.errors import CodedError, ErrorCode

Assignment = tuple[int, ...]
"""The brokers that hold a partition, its preferred leader first."""


def place(
    brokers: Mapping[int, str | None],
    *,
    partitions: int,
    replication_factor: int,
    start: int = 0,
    first_partition: int = 0,
) -> list[Assignment]:
    """The replicas of `partitions` partitions on brokers given by id with their racks.

    Without racks on all brokers, racks are not looked at. `start` is where in the ring partition 0 begins,
    `first_partition` the number of partitions the topic already has.
    """
    if not 1 <= replication_factor <= len(brokers):
        raise CodedError(
            ErrorCode.invalid_replication_factor,
            f"Unable to replicate the partition {replication_factor} time(s): "
            f"there are {len(brokers)} broker(s); ask for 1 to {len(brokers)}",
        )
    racks = _racks(brokers)
    ring = _ring(racks)
    wanted = range(first_partition, first_partition + partitions)
    return [_replicas(ring, racks, start + index, replication_factor) for index in wanted]


def place_with_absent(
    brokers: Mapping[int, str | None],
    absent: Sequence[int],
    *,
    partitions: int,
    replication_factor: int,
    start: int = 0,
    first_partition: int = 0,
) -> list[Assignment]:
    """As `place`; where too few brokers live, those fill up that are absent and hold replicas of other partitions.

    The living come first in each assignment, so that one of them is the preferred leader.
    """
    missing = replication_factor - len(brokers)
    if missing <= 0 or missing > len(absent):
        factor = {"partitions": partitions, "replication_factor": replication_factor}
        return place(brokers, **factor, start=start, first_partition=first_partition)
    living = place(
        brokers,
        partitions=partitions,
        replication_factor=len(brokers),
        start=start,
        first_partition=first_partition,
    )
    filled = [[absent[(number + step) % len(absent)] for step in range(missing)] for number in range(partitions)]
    return [(*replicas, *others) for replicas, others in zip(living, filled, strict=True)]


def _ring(racks: Mapping[int, object]) -> list[int]:
    by_rack: dict[object, list[int]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker], []).append(broker)
    columns = [by_rack[rack] for rack in sorted(by_rack, key=lambda rack: by_rack[rack][0])]
    return [column[row] for row in range(max(map(len, columns), default=0)) for column in columns if row < len(column)]


def _replicas(ring: Sequence[int], racks: Mapping[int, object], position: int, count: int) -> Assignment:
    leader = ring[position % len(ring)]
    chosen = [leader]
    used = {racks[leader]}
    number_of_racks = len(set(racks.values())) if count > 1 else 1
    while len(chosen) < count:
        for broker in _followers(ring, position):
            in_a_fresh_rack = racks[broker] not in used or len(used) == number_of_racks
            if in_a_fresh_rack and broker not in chosen:
                chosen.append(broker)
                used.add(racks[broker])
            if len(chosen) == count:
                break
    return tuple(chosen)


def _followers(ring: Sequence[int], position: int) -> Iterator[int]:
    others = len(ring) - 1
    gap = (position // len(ring)) % others
    for step in range(others):
        yield ring[(position + 1 + (gap + step) % others) % len(ring)]


def ring_position(brokers: Mapping[int, str | None], broker: int) -> int:
    """Where in the ring a broker stands; 0 for one that does not."""
    ring = _ring(_racks(brokers))
    return ring.index(broker) if broker in brokers else 0


def in_order(assignments: Mapping[int, Sequence[int]]) -> list[Sequence[int]]:
    """Assignments given by partition as a list, or `CodedError` unless they are for partitions 0, 1, 2, …"""
    if sorted(assignments) != list(range(len(assignments))):
        raise _bad(f"partitions should be a consecutive 0-based sequence, not {sorted(assignments)}")
    return [assignments[index] for index in range(len(assignments))]


def check_assignments(
    assignments: Sequence[Sequence[int]], brokers: Iterable[int], *, replication_factor: int | None = None
) -> list[Assignment]:
    """The assignments a user gave, or `CodedError` (INVALID_REPLICA_ASSIGNMENT) with what is wrong with them.

    All have as many replicas as `replication_factor` says, or as the first has.
    """
    known = set(brokers)
    count = replication_factor or len(assignments[0])
    for index, replicas in enumerate(assignments):
        unknown = sorted(set(replicas) - known)
        if not replicas:
            raise _bad(f"number {index} has no replicas")
        if len(set(replicas)) != len(replicas):
            raise _bad(f"number {index} names a broker twice: {list(replicas)}")
        if len(replicas) != count:
            raise _bad(f"number {index} has {len(replicas)} replicas where {count} are needed")
        if unknown:
            raise _bad(f"number {index} names brokers {unknown}, there are {sorted(known)}")
    return [tuple(replicas) for replicas in assignments]


def _racks(brokers: Mapping[int, str | None]) -> dict[int, object]:
    """Racks by broker; each broker its own where not all have one."""
    if any(rack is None for rack in brokers.values()):
        return {broker: broker for broker in brokers}
    return dict(brokers)


def _bad(problem: str) -> CodedError:
    return CodedError(ErrorCode.invalid_replica_assignment, f"The replica assignment is invalid: {problem}")
