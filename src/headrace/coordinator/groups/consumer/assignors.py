"""Who reads which partition: the assignors that run in the broker (KIP-848), as pure functions.

Both give every partition of a subscribed topic to exactly one subscriber, and the same answer to the same question
whatever the order of the arguments. Topics that do not exist are left out by the caller.

- `uniform` gives each member the same number of partitions, within one, and moves as few as that allows. Where
  subscriptions differ, no partition could go to a subscriber that has two fewer. Among partitions that have to be
  given, a member gets those with a replica in its own rack first; a rack never moves a partition by itself.
- `range` gives each subscriber of a topic a range of its partitions, in the order of instance ids and then member ids.
  Topics with the same subscribers and as many partitions are cut alike, so that joins find their keys together. It is
  sticky as far as that order is: static members keep their place over restarts.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final
from uuid import UUID

Assignment = Mapping[UUID, frozenset[int]]
Partition = tuple[UUID, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedMember:
    """A member as an assignor sees it."""

    topics: frozenset[UUID]
    """The topics it is subscribed to, and that exist."""
    assigned: Assignment = field(default_factory=dict)
    """What it has by the target that is to be replaced."""
    instance_id: str | None = None
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicShape:
    """A topic as an assignor sees it."""

    partitions: int
    racks: Sequence[frozenset[str]] = ()
    """The racks of each partition's replicas; empty where no broker has a rack."""


Members = Mapping[str, AssignedMember]
Topics = Mapping[UUID, TopicShape]
Assignor = Callable[[Members, Topics], dict[str, Assignment]]


def uniform(members: Members, topics: Topics) -> dict[str, Assignment]:
    """As many partitions for each, moving as few as possible."""
    if not members:
        return {}
    subscriptions = {member.topics for member in members.values()}
    work = _Work(members, topics)
    if len(subscriptions) == 1:
        _fill_quotas(work, next(iter(subscriptions)))
    else:
        _level(work)
    return work.result()


def range_(members: Members, topics: Topics) -> dict[str, Assignment]:
    """A range of each topic for each of its subscribers."""
    order = sorted(members, key=lambda member_id: _range_order(member_id, members[member_id]))
    subscribers: dict[UUID, list[str]] = defaultdict(list)
    for member_id in order:
        for topic in members[member_id].topics:
            subscribers[topic].append(member_id)
    result: dict[str, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in members}
    for topic in _ordered(subscribers):
        each, extra = divmod(topics[topic].partitions, len(subscribers[topic]))
        start = 0
        for position, member_id in enumerate(subscribers[topic]):
            end = start + each + (position < extra)
            if start < end:
                result[member_id][topic] = frozenset(range(start, end))
            start = end
    return dict(result)


ASSIGNORS: Final[dict[str, Assignor]] = {"uniform": uniform, "range": range_}
"""The assignors by the names that members and settings give them."""


class _Work:
    """An assignment while it is being made: what each member keeps, and what is free."""

    def __init__(self, members: Members, topics: Topics) -> None:
        self.members = members
        self.topics = topics
        self.ids = sorted(members)
        self.held: dict[str, set[Partition]] = {}
        taken: set[Partition] = set()
        for member_id in self.ids:
            keeps = self._valid(members[member_id]) - taken
            taken |= keeps
            self.held[member_id] = keeps
        wanted = set[UUID]().union(*(member.topics for member in members.values()))
        every = ((topic, index) for topic in _ordered(wanted) for index in range(topics[topic].partitions))
        self.free = [partition for partition in every if partition not in taken]
        self.has_racks = any(member.rack for member in members.values()) and any(
            topics[topic].racks for topic in wanted
        )

    def _valid(self, member: AssignedMember) -> set[Partition]:
        keeps: set[Partition] = set()
        for topic, partitions in member.assigned.items():
            if topic in member.topics:
                count = self.topics[topic].partitions
                keeps.update([(topic, index) for index in partitions if index < count])
        return keeps

    def racks_of(self, partition: Partition) -> frozenset[str]:
        racks = self.topics[partition[0]].racks
        return racks[partition[1]] if partition[1] < len(racks) else frozenset()

    def is_near(self, member_id: str, partition: Partition) -> bool:
        return self.members[member_id].rack in self.racks_of(partition)

    def result(self) -> dict[str, Assignment]:
        return {member_id: self._unchanged(member_id) or _grouped(self.held[member_id]) for member_id in self.members}

    def _unchanged(self, member_id: str) -> Assignment | None:
        """The old assignment itself where it still holds, so that the caller sees at once that nothing changed."""
        assigned, held = self.members[member_id].assigned, self.held[member_id]
        if sum(map(len, assigned.values())) != len(held):
            return None
        same = all((topic, index) in held for topic, partitions in assigned.items() for index in partitions)
        return assigned if same else None


def _fill_quotas(work: _Work, subscribed: frozenset[UUID]) -> None:
    """All members are subscribed to the same topics: each has a quota, those who hold most get the larger ones."""
    total = sum(work.topics[topic].partitions for topic in subscribed)
    each, extra = divmod(total, len(work.ids))
    by_held = sorted(work.ids, key=lambda member_id: -len(work.held[member_id]))
    room: dict[str, int] = {}
    for position, member_id in enumerate(by_held):
        quota = each + (position < extra)
        held = work.held[member_id]
        if len(held) > quota:
            work.free += _give_up(work, member_id, len(held) - quota)
        elif len(held) < quota:
            room[member_id] = quota - len(held)
    if work.has_racks:
        work.free = _place_near(work, room)
    _place_anywhere(work, room)


def _give_up(work: _Work, member_id: str, count: int) -> list[Partition]:
    held = sorted(work.held[member_id], key=_partition_order)
    if work.has_racks:
        held.sort(key=lambda partition: not work.is_near(member_id, partition))
    given = held[-count:]
    work.held[member_id].difference_update(given)
    return given


def _place_near(work: _Work, room: dict[str, int]) -> list[Partition]:
    """Gives free partitions to members with room in one of their racks; returns those that found none."""
    by_rack: dict[str, deque[str]] = defaultdict(deque)
    room_in: dict[str, int] = defaultdict(int)
    for member_id in sorted(room):
        rack = work.members[member_id].rack
        if rack is not None:
            by_rack[rack].append(member_id)
            room_in[rack] += room[member_id]
    left = []
    for partition in work.free:
        room_near, rack = max(((room_in[rack], rack) for rack in work.racks_of(partition)), default=(0, ""))
        if room_near == 0:
            left.append(partition)
            continue
        room_in[rack] -= 1
        _give_next(work, by_rack[rack], room, partition)
    return left


def _place_anywhere(work: _Work, room: dict[str, int]) -> None:
    waiting = deque(member_id for member_id in sorted(room) if room[member_id])
    for partition in work.free:
        _give_next(work, waiting, room, partition)


def _give_next(work: _Work, waiting: deque[str], room: dict[str, int], partition: Partition) -> None:
    """In turns, so that the partitions of one topic are spread too."""
    member_id = waiting.popleft()
    work.held[member_id].add(partition)
    room[member_id] -= 1
    if room[member_id]:
        waiting.append(member_id)


def _level(work: _Work) -> None:
    """Subscriptions differ: free partitions go to the subscriber with the least, then the fullest give to the emptiest
    of each topic until no topic has two whose counts differ by two. Each step makes the counts more even, so it ends.
    """
    subscribers: dict[UUID, list[str]] = defaultdict(list)
    for member_id in work.ids:
        for topic in work.members[member_id].topics:
            subscribers[topic].append(member_id)
    topics = sorted(subscribers, key=lambda topic: (len(subscribers[topic]), topic.int))
    free: dict[UUID, list[Partition]] = defaultdict(list)
    for partition in work.free:
        free[partition[0]].append(partition)
    held: dict[UUID, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for member_id in work.ids:
        for topic, index in work.held[member_id]:
            held[topic][member_id].add(index)
    for topic in topics:
        _place_least(work, subscribers[topic], free[topic], held[topic])
    moved = True
    while moved:
        moved = False
        for topic in topics:
            moved = _level_topic(work, topic, subscribers[topic], held[topic]) or moved


def _place_least(work: _Work, subscribers: Sequence[str], free: Iterable[Partition], held: dict[str, set[int]]) -> None:
    heap = [(len(work.held[member_id]), member_id) for member_id in subscribers]
    heapify(heap)
    for partition in free:
        member_id = _least(work, heap, partition)
        work.held[member_id].add(partition)
        held[member_id].add(partition[1])
        heappush(heap, (len(work.held[member_id]), member_id))


def _least(work: _Work, heap: list[tuple[int, str]], partition: Partition) -> str:
    """Takes the member with the least from the heap: one in the partition's rack among those with as little."""
    count, first = heappop(heap)
    if not work.has_racks or work.is_near(first, partition):
        return first
    passed = [(count, first)]
    chosen = first
    while heap and heap[0][0] == count and len(passed) < _LOOKED_AT:
        passed.append(heappop(heap))
        if work.is_near(passed[-1][1], partition):
            chosen = passed[-1][1]
            break
    for entry in passed:
        if entry[1] != chosen:
            heappush(heap, entry)
    return chosen


_LOOKED_AT: Final = 32
"""How many members are looked at for one in the right rack, where all of them have as little."""


def _level_topic(work: _Work, topic: UUID, subscribers: Sequence[str], held: dict[str, set[int]]) -> bool:
    """Moves partitions of one topic from those with the most to those with the least; whether any moved."""
    counts = {member_id: len(work.held[member_id]) for member_id in subscribers}
    if not held or max(counts[owner] for owner in held if held[owner]) - min(counts.values()) < 2:
        return False
    least = [(count, member_id) for member_id, count in counts.items()]
    most = [(-counts[owner], owner) for owner, indexes in held.items() if indexes]
    heapify(least)
    heapify(most)
    moved = False
    while most:
        count, receiver = _current(least, counts, 1)
        negative, giver = _current(most, counts, -1)
        if -negative - count < 2:
            return moved
        moved = True
        index = _to_move(work, topic, giver, held[giver])
        held[giver].discard(index)
        held[receiver].add(index)
        work.held[giver].discard((topic, index))
        work.held[receiver].add((topic, index))
        counts[giver] -= 1
        counts[receiver] += 1
        for member_id in (giver, receiver):
            heappush(least, (counts[member_id], member_id))
            if held[member_id]:
                heappush(most, (-counts[member_id], member_id))
        if not held[giver]:
            most = [entry for entry in most if entry[1] != giver]
            heapify(most)
    return moved


def _current(heap: list[tuple[int, str]], counts: Mapping[str, int], sign: int) -> tuple[int, str]:
    """The first entry of a heap that still tells a member's count."""
    while heap[0][0] != sign * counts[heap[0][1]]:
        heappop(heap)
    return heap[0]


def _to_move(work: _Work, topic: UUID, giver: str, indexes: set[int]) -> int:
    """What it did not have before, then what is not in its rack, then the last."""
    before = work.members[giver].assigned.get(topic, frozenset())

    def cost(index: int) -> tuple[bool, bool, int]:
        return index in before, work.has_racks and work.is_near(giver, (topic, index)), -index

    return min(indexes, key=cost)


def _grouped(partitions: Iterable[Partition]) -> dict[UUID, frozenset[int]]:
    indexes: dict[UUID, list[int]] = defaultdict(list)
    for topic, index in partitions:
        indexes[topic].append(index)
    return {topic: frozenset(indexes[topic]) for topic in _ordered(indexes)}


def _ordered(topics: Iterable[UUID]) -> list[UUID]:
    return sorted(topics, key=lambda topic: topic.int)


def _partition_order(partition: Partition) -> tuple[int, int]:
    return partition[0].int, partition[1]


def _range_order(member_id: str, member: AssignedMember) -> tuple[bool, str]:
    return member.instance_id is None, member.instance_id or member_id
