"""Which replicas to move where: plans, made purely, for draining brokers and for levelling a cluster.

A plan names the partitions that change and the brokers that hold each from then on, its preferred leader first.
What every plan keeps:

1.  A partition has as many replicas as before, on different brokers.
2.  It is spread over no fewer racks than before; where it could be spread over more, `rebalanced` does so.
3.  Nothing is moved that need not be: a level within the tolerance (10 % of a broker's fair share, and never less than
    the next whole number) is level enough.

A broker's fair share follows from the racks: a rack that must hold one replica of every partition, however few brokers
it has, makes these few hold more.

Levelling works on counts. Where a broker has too many and another too few, something goes from the one to the other:
directly, or in steps over brokers between them where racks forbid the direct way. Replicas are levelled first, by
moving them; then leaders, by the order of replicas alone, which moves no data. Only where that cannot do it (as when
brokers hold the same partitions in pairs) replicas that lead are moved once more, within what is level.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import ceil, floor
from typing import Final, NamedTuple, TypeAlias

from headrace.client.errors import ClientError
from headrace.protocol.topic_partition import TopicPartition

TOLERANCE: Final = 0.1

Replicas: TypeAlias = tuple[int, ...]
Racks: TypeAlias = Mapping[int, str | None]
"""The brokers that may hold replicas, and the rack of each."""
Bounds: TypeAlias = Mapping[int, tuple[int, int]]
"""The least and the most that a broker should have."""


class ReplicaStep(NamedTuple):
    """One replica, or the lead of one partition, that goes from a broker to another."""

    partition: TopicPartition
    source: int
    target: int


Choose: TypeAlias = Callable[[int, int], ReplicaStep | None]
"""What goes from one broker to another; None where nothing can."""


def rebalanced(
    current: Mapping[TopicPartition, Replicas],
    racks: Racks,
    frozen: AbstractSet[TopicPartition] = frozenset(),
    tolerance: float = TOLERANCE,
    *,
    leaders: bool = True,
) -> dict[TopicPartition, Replicas]:
    """The partitions that change so that replicas and `leaders` are level; `frozen` ones stay as they are.

    A partition that a broker outside of `racks` holds stays as well: what is to become of it is not known.
    """
    layout = _Layout(current, racks, frozen)
    layout.spread_over_racks()
    layout.level_replicas(tolerance)
    if leaders:
        layout.level_leaders(tolerance)
        layout.move_leaders(tolerance)
    return layout.changes()


def drained(
    current: Mapping[TopicPartition, Replicas],
    racks: Racks,
    leaving: AbstractSet[int],
    frozen: AbstractSet[TopicPartition] = frozenset(),
    tolerance: float = TOLERANCE,
) -> dict[TopicPartition, Replicas]:
    """The partitions that change so that nothing is held by `leaving`, with the others as level as that makes them.

    `ClientError` where those who stay are too few for the replicas of a partition.
    """
    staying = {broker: rack for broker, rack in racks.items() if broker not in leaving}
    held = {p: replicas for p, replicas in current.items() if not leaving.isdisjoint(replicas)}
    for partition, replicas in held.items():
        if len(replicas) > len(staying):
            raise _too_few(partition, len(replicas), staying)
    layout = _Layout(current, staying, frozen | (current.keys() - held.keys()))
    layout.replace_missing_brokers(held)
    layout.level_replicas(tolerance, only_new=True)
    layout.level_leaders(tolerance)
    return layout.changes()


def placed_on(
    current: Mapping[TopicPartition, Replicas],
    racks: Racks,
    brokers: Iterable[int],
    replication_factor: int | None = None,
) -> dict[TopicPartition, Replicas]:
    """The partitions that change so that all of `current` are on these brokers alone, level, with that many replicas.

    What is on one of the brokers already stays there. Other partitions do not count.
    """
    chosen = {broker: racks.get(broker) for broker in brokers}
    layout_wanted: dict[TopicPartition, Replicas] = {}
    for partition, replicas in current.items():
        count = replication_factor or len(replicas)
        if count > len(chosen):
            raise _too_few(partition, count, chosen)
        kept = [r for r in replicas if r in chosen][:count]
        # Numbers below zero stand for replicas that nobody holds yet.
        layout_wanted[partition] = (*kept, *range(-1, len(kept) - count - 1, -1))
    layout = _Layout(layout_wanted, chosen, frozenset())
    layout.replace_missing_brokers(layout_wanted)
    layout.level_replicas(0.0, only_new=True)
    layout.level_leaders(0.0)
    return {p: replicas for p, replicas in layout.replicas.items() if replicas != current[p]}


def replicas_moved(current: Mapping[TopicPartition, Replicas], plan: Mapping[TopicPartition, Replicas]) -> int:
    """How many replicas a plan copies to brokers that do not have them."""
    return sum(len(set(replicas) - set(current[partition])) for partition, replicas in plan.items())


def shares(replica_counts: Iterable[int], racks: Racks) -> dict[int, float]:
    """How many replicas each broker would hold if all was level, for partitions with so many replicas each."""
    by_rack = _members(_effective(racks))
    number = len(by_rack)
    least = 0
    extras: dict[int, int] = defaultdict(int)
    total = 0
    for count in replica_counts:
        total += count
        least += count >= number
        extras[max(1, count - number + 1)] += 1
    limits = {
        rack: (least, sum(many * min(len(brokers), extra) for extra, many in extras.items()))
        for rack, brokers in by_rack.items()
    }
    loads = _filled(total, {rack: len(brokers) for rack, brokers in by_rack.items()}, limits)
    return {broker: loads[rack] / len(brokers) for rack, brokers in by_rack.items() for broker in brokers}


def bounds(share: Mapping[int, float], tolerance: float = TOLERANCE) -> dict[int, tuple[int, int]]:
    """What is level enough: the share and a tenth, or the whole numbers beside it."""
    return {
        broker: (
            min(floor(amount + _SLIGHTLY), ceil(amount * (1 - tolerance) - _SLIGHTLY)),
            max(ceil(amount - _SLIGHTLY), floor(amount * (1 + tolerance) + _SLIGHTLY)),
        )
        for broker, amount in share.items()
    }


_SLIGHTLY: Final = 1e-6
"""What a share may be off by for having been reckoned with fractions."""


def _too_few(partition: TopicPartition, count: int, brokers: Iterable[int]) -> ClientError:
    named = ",".join(map(str, sorted(brokers))) or "none"
    return ClientError(
        f"topic '{partition[0]}' partition {partition[1]} has {count} replicas, for which brokers {named} are too few; "
        "add a broker, or give it fewer replicas",
        "INVALID_REPLICATION_FACTOR",
    )


def _effective(racks: Racks) -> dict[int, object]:
    """Racks by broker; each broker its own where not all have one."""
    if any(rack is None for rack in racks.values()):
        return {broker: broker for broker in racks}
    return dict(racks)


def _members(rack_of: Mapping[int, object]) -> dict[object, list[int]]:
    found: dict[object, list[int]] = {}
    for broker in sorted(rack_of):
        found.setdefault(rack_of[broker], []).append(broker)
    return found


def _filled(total: float, sizes: Mapping[object, int], limits: Mapping[object, tuple[int, int]]) -> dict[object, float]:
    """`total` divided by size, but for those whose limits say otherwise: they get the limit, the rest is divided."""
    fixed: dict[object, float] = {}
    while open_ := [rack for rack in sizes if rack not in fixed]:
        rest = total - sum(fixed.values())
        size = sum(sizes[rack] for rack in open_)
        shares = {rack: rest * sizes[rack] / size for rack in open_}
        excess = {rack: amount - min(max(amount, limits[rack][0]), limits[rack][1]) for rack, amount in shares.items()}
        if all(abs(amount) < _SLIGHTLY for amount in excess.values()):
            return fixed | shares
        # Who is beyond a limit on the side that weighs more is there for good; the others may be brought back by it.
        side = sum(excess.values())
        for rack, amount in excess.items():
            if (side >= 0 and amount > _SLIGHTLY) or (side <= 0 and amount < -_SLIGHTLY):
                fixed[rack] = shares[rack] - amount
    return fixed


@dataclass(slots=True)
class _Counts:
    """How many things each broker has, in all and of each topic."""

    total: dict[int, int]
    by_topic: dict[str, dict[int, int]]

    @classmethod
    def none(cls) -> "_Counts":
        return cls(defaultdict(int), defaultdict(lambda: defaultdict(int)))

    def add(self, topic: str, broker: int, amount: int) -> None:
        self.total[broker] += amount
        self.by_topic[topic][broker] += amount

    def lead(self, topic: str, source: int, target: int) -> int:
        """How much more of a topic one broker has than another."""
        counts = self.by_topic[topic]
        return counts[source] - counts[target]


class _Layout:
    """Who holds what, on its way to be better."""

    def __init__(
        self, current: Mapping[TopicPartition, Replicas], racks: Racks, frozen: AbstractSet[TopicPartition]
    ) -> None:
        self._before = current
        self.replicas = dict(sorted(current.items()))
        self._racks = racks
        self._rack_of = _effective(racks)
        self._rack_count = len(set(self._rack_of.values()))
        self._frozen = set(frozen) | {p for p, held in current.items() if not self._rack_of.keys() >= set(held)}
        self._holding = _Counts.none()
        self._leading = _Counts.none()
        self._held: dict[int, dict[TopicPartition, None]] = {broker: {} for broker in racks}
        self._arrivals: dict[int, int] = defaultdict(int)
        for partition, replicas in self.replicas.items():
            self._leading.add(partition[0], replicas[0], 1)
            for broker in replicas:
                self._take(partition, broker)

    def changes(self) -> dict[TopicPartition, Replicas]:
        """What is not as it was."""
        return {p: replicas for p, replicas in self.replicas.items() if replicas != self._before[p]}

    # Steps

    def spread_over_racks(self) -> None:
        """Let each partition be in as many racks as it has replicas, or as there are."""
        for partition, replicas in self.replicas.items():
            if partition in self._frozen:
                continue
            while self._spread(replicas) < min(len(replicas), self._rack_count):
                source = self._fullest(r for r in replicas if self._is_doubled(r, replicas))
                target = self._emptiest(partition, self._outside(replicas))
                replicas = self._replace(partition, source, target)

    def replace_missing_brokers(self, partitions: Iterable[TopicPartition]) -> None:
        """Let each replica on a broker that may not hold one be on one that may.

        The emptiest takes it, of those in a rack that has none of the partition yet, if there are any.
        """
        self._frozen -= set(partitions)
        for partition in partitions:
            for source in self.replicas[partition]:
                if source not in self._rack_of:
                    others = [r for r in self.replicas[partition] if r in self._rack_of]
                    self._replace(partition, source, self._emptiest(partition, self._outside(others)))

    def level_replicas(self, tolerance: float, *, only_new: bool = False) -> None:
        """Move replicas until each broker has its share; with `only_new`, only those that move anyway."""
        choices = _Choices(
            lambda source: self._movable(source, only_new), self._can_move, self._holding.lead, self._arrivals
        )
        _level(self._holding.total, self._replica_limits(tolerance), choices.best, lambda step: self._replace(*step))

    def level_leaders(self, tolerance: float) -> None:
        """Put other replicas first until each broker leads its share."""
        choices = _Choices(self._led_by, self._can_lead, self._leading.lead, self._arrivals)
        limits = self._leader_limits(tolerance)
        _level(self._leading.total, limits, choices.best, lambda step: self._put_first(step.partition, step.target))

    def move_leaders(self, tolerance: float) -> None:
        """Move replicas that lead, as far as replicas stay level, until each broker leads its share."""
        choices = _Choices(self._led_by, self._can_move, self._leading.lead, self._arrivals)
        levels = self._replica_limits(tolerance)
        counts = self._holding.total

        def choose(source: int, target: int) -> ReplicaStep | None:
            stays_level = counts[source] > levels[source][0] and counts[target] < levels[target][1]
            return choices.best(source, target) if stays_level else None

        _level(self._leading.total, self._leader_limits(tolerance), choose, lambda step: self._replace(*step))

    def _replica_limits(self, tolerance: float) -> Bounds:
        known = (sum(r in self._rack_of for r in replicas) for replicas in self.replicas.values())
        return bounds(shares(known, self._racks), tolerance)

    def _leader_limits(self, tolerance: float) -> Bounds:
        led = sum(replicas[0] in self._rack_of for replicas in self.replicas.values())
        return bounds(dict.fromkeys(self._racks, led / max(len(self._racks), 1)), tolerance)

    # Parts of steps

    def _take(self, partition: TopicPartition, broker: int) -> None:
        self._holding.add(partition[0], broker, 1)
        self._arrivals[broker] += 1
        if broker in self._held:
            self._held[broker][partition] = None

    def _replace(self, partition: TopicPartition, source: int, target: int) -> Replicas:
        """Let another broker have the place that one had, also as the leader."""
        before = self.replicas[partition]
        after = tuple(target if r == source else r for r in before)
        self.replicas[partition] = after
        self._holding.add(partition[0], source, -1)
        self._held.get(source, {}).pop(partition, None)
        self._take(partition, target)
        if before[0] == source:
            self._leading.add(partition[0], source, -1)
            self._leading.add(partition[0], target, 1)
        return after

    def _put_first(self, partition: TopicPartition, broker: int) -> None:
        before = self.replicas[partition]
        self._leading.add(partition[0], before[0], -1)
        self._leading.add(partition[0], broker, 1)
        self._arrivals[broker] += 1
        self.replicas[partition] = (broker, *(r for r in before if r != broker))

    def _spread(self, replicas: Iterable[int]) -> int:
        return len({self._rack_of[r] for r in replicas})

    def _is_doubled(self, broker: int, replicas: Replicas) -> bool:
        rack = self._rack_of[broker]
        return sum(self._rack_of[r] == rack for r in replicas) > 1

    def _outside(self, replicas: Iterable[int]) -> list[int]:
        """Brokers that do not have the partition, in other racks than those who do, if there are any."""
        held = set(replicas)
        used = {self._rack_of[r] for r in held}
        free = [broker for broker in self._rack_of if broker not in held]
        return [broker for broker in free if self._rack_of[broker] not in used] or free

    def _fullest(self, brokers: Iterable[int]) -> int:
        return max(brokers, key=lambda broker: (self._holding.total[broker], -broker))

    def _emptiest(self, partition: TopicPartition, brokers: Iterable[int]) -> int:
        of_topic = self._holding.by_topic[partition[0]]
        return min(brokers, key=lambda broker: (self._holding.total[broker], of_topic[broker], broker))

    def _movable(self, source: int, only_new: bool) -> Iterator[TopicPartition]:
        for partition in self._held[source]:
            if partition not in self._frozen and not (only_new and source in self._before[partition]):
                yield partition

    def _can_move(self, partition: TopicPartition, source: int, target: int) -> bool:
        replicas = self.replicas[partition]
        if source not in replicas or target in replicas:
            return False
        after = [target if r == source else r for r in replicas]
        return self._spread(after) >= self._spread(replicas)

    def _led_by(self, source: int) -> Iterator[TopicPartition]:
        for partition in self._held[source]:
            if partition not in self._frozen and self.replicas[partition][0] == source:
                yield partition

    def _can_lead(self, partition: TopicPartition, source: int, target: int) -> bool:
        replicas = self.replicas[partition]
        return replicas[0] == source and target in replicas


class _Choices:
    """Of all that can go from one broker to another, what to choose next.

    That is a partition of the topic of which the first has the most more than the second: so topics are spread, too.
    """

    def __init__(
        self,
        candidates: Callable[[int], Iterable[TopicPartition]],
        fits: Callable[[TopicPartition, int, int], bool],
        weight: Callable[[str, int, int], int],
        arrivals: Mapping[int, int],
    ) -> None:
        self._candidates = candidates
        self._fits = fits
        self._weight = weight
        self._arrivals = arrivals
        self._known: dict[tuple[int, int], _Candidates] = {}

    def best(self, source: int, target: int) -> ReplicaStep | None:
        """A `Choose`. A topic that weighs less by now than when it was looked at is put back in its place."""
        known = self._candidates_between(source, target)
        while known.heap:
            weight, topic = known.heap[0]
            partitions = known.by_topic[topic]
            while partitions and not self._fits(partitions[-1], source, target):
                partitions.pop()
            now = -self._weight(topic, source, target)
            if partitions and now <= weight:
                return ReplicaStep(partitions[-1], source, target)
            heappop(known.heap)
            if partitions:
                heappush(known.heap, (now, topic))
        return None

    def _candidates_between(self, source: int, target: int) -> "_Candidates":
        """Those that were there when all were looked at; that is done again when others have come since."""
        known = self._known.get((source, target))
        if known is None or (not known.heap and known.arrivals != self._arrivals[source]):
            by_topic: dict[str, list[TopicPartition]] = defaultdict(list)
            for partition in self._candidates(source):
                if self._fits(partition, source, target):
                    by_topic[partition[0]].append(partition)
            heap = [(-self._weight(topic, source, target), topic) for topic in by_topic]
            heapify(heap)
            known = self._known[source, target] = _Candidates(heap, by_topic, self._arrivals[source])
        return known


class _Candidates(NamedTuple):
    """What can go from one broker to another, by topic; topics by how much more of each the first has."""

    heap: list[tuple[int, str]]
    by_topic: dict[str, list[TopicPartition]]
    arrivals: int


def _level(counts: Mapping[int, int], limits: Bounds, choose: Choose, take: Callable[[ReplicaStep], object]) -> None:
    """Let things go from those who have too many, then to those who have too few, as long as that is possible.

    Each round brings one broker closer to its limits and none away from them, so that it comes to an end.
    """
    while way := _relief(counts, limits, choose) or _supply(counts, limits, choose):
        for step in way:
            take(step)


def _relief(counts: Mapping[int, int], limits: Bounds, choose: Choose) -> list[ReplicaStep]:
    """Steps that take one thing off a broker that has too many."""
    over = [b for b in limits if counts[b] > limits[b][1]]
    takers = {b for b in limits if counts[b] < limits[b][1]}
    for source in sorted(over, key=lambda b: (limits[b][1] - counts[b], b)):
        way = _way(source, takers, limits, choose, lambda b: counts[b] - limits[b][0])
        if way:
            return way
    return []


def _supply(counts: Mapping[int, int], limits: Bounds, choose: Choose) -> list[ReplicaStep]:
    """Steps that bring one thing to a broker that has too few."""
    under = [b for b in limits if counts[b] < limits[b][0]]
    givers = {b for b in limits if counts[b] > limits[b][0]}
    for target in sorted(under, key=lambda b: (counts[b] - limits[b][0], b)):
        way = _way(target, givers, limits, lambda here, there: choose(there, here), lambda b: limits[b][1] - counts[b])
        if way:
            return way
    return []


def _way(
    start: int, ends: AbstractSet[int], limits: Bounds, choose: Choose, order: Callable[[int], float]
) -> list[ReplicaStep]:
    """A shortest way from a broker to one of others, the first in order of those as near as it; empty without one.

    Each step is another partition's: whether one can go was asked as if nothing else went.
    """
    reached: dict[int, list[ReplicaStep]] = {start: []}
    todo = deque([start])
    nearest_first = sorted(limits, key=lambda b: (b not in ends, order(b), b))
    while todo:
        here = todo.popleft()
        for there in nearest_first:
            step = None if there in reached else choose(here, there)
            if step is None or any(step.partition == earlier.partition for earlier in reached[here]):
                continue
            reached[there] = [*reached[here], step]
            if there in ends:
                return reached[there]
            todo.append(there)
    return []
