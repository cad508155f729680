"""Who reads which partition in a share group: Kafka's simple assignor, as a pure function.

Every partition has the same number of readers: one, or, where there are more members than partitions, as many as
every member needs to read one. Each member reads as many partitions as the others, within one, and keeps of what it
has what that allows. Where all members are subscribed to the same topics that holds for all partitions together, else
for each topic. The answer is the same whatever the order of the arguments.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from headrace.coordinator.groups.targets import Assignment


def simple(
    members: Mapping[str, frozenset[UUID]], assigned: Mapping[str, Assignment], partitions: Assignment
) -> dict[str, dict[UUID, frozenset[int]]]:
    """What each member is to read, by the topics it is subscribed to and what it has; `partitions` are those of all
    topics that can be read."""
    numbers = _Numbers(partitions)
    held = {member_id: numbers.of(assigned.get(member_id, {})) for member_id in members}
    result: dict[str, set[int]] = {member_id: set() for member_id in members}
    for topics in _pools(members, partitions):
        readers = sorted(member_id for member_id, subscribed in members.items() if topics <= subscribed)
        pool = sorted(numbers.of({topic: partitions[topic] for topic in topics}))
        for member_id, given in _shared_out(pool, readers, held).items():
            result[member_id] |= given
    return {member_id: numbers.assignment(given) for member_id, given in result.items()}


class _Numbers:
    """Partitions as plain numbers, which are compared and found ten times as fast as ids and indexes."""

    def __init__(self, partitions: Assignment) -> None:
        self._topics = sorted(partitions, key=lambda topic: topic.int)
        self._starts: list[int] = []
        end = 0
        for topic in self._topics:
            self._starts.append(end)
            end += max(partitions[topic], default=-1) + 1
        self._partitions = partitions
        self._start_of = dict(zip(self._topics, self._starts, strict=True))

    def of(self, assignment: Assignment) -> set[int]:
        """Those of the partitions that there are."""
        numbers: set[int] = set()
        for topic, indexes in assignment.items():
            start = self._start_of.get(topic)
            if start is not None:
                numbers.update([start + index for index in indexes & self._partitions[topic]])
        return numbers

    def assignment(self, numbers: Iterable[int]) -> dict[UUID, frozenset[int]]:
        topics: dict[int, list[int]] = {}
        for number in sorted(numbers):
            place = bisect_right(self._starts, number) - 1
            topics.setdefault(place, []).append(number - self._starts[place])
        return {self._topics[place]: frozenset(indexes) for place, indexes in topics.items()}


def _pools(members: Mapping[str, frozenset[UUID]], partitions: Assignment) -> list[frozenset[UUID]]:
    """The topics whose partitions are shared out together."""
    subscriptions = set(members.values())
    topics = frozenset().union(*subscriptions) & partitions.keys()
    if len(subscriptions) <= 1:
        return [topics] if topics else []
    return [frozenset({topic}) for topic in topics]


def _shared_out(pool: Sequence[int], readers: Sequence[str], held: Mapping[str, set[int]]) -> dict[str, set[int]]:
    if not pool or not readers:
        return {}
    sharing = -(-len(readers) // len(pool))
    """Readers of each partition."""
    all_of_pool = frozenset(pool)
    kept = {member_id: held[member_id] & all_of_pool for member_id in readers}
    quotas = _quotas(sharing * len(pool), kept)
    missing = _trimmed(pool, kept, quotas, sharing)
    room = deque(member_id for member_id in readers if len(kept[member_id]) < quotas[member_id])
    for partition in pool:
        for _ in range(missing[partition]):
            _add_reader(partition, kept, quotas, room)
    return kept


def _quotas(total: int, kept: Mapping[str, set[int]]) -> dict[str, int]:
    """How many partitions each member reads: those who have the most get what does not come out even."""
    each, extra = divmod(total, len(kept))
    by_size = sorted(kept, key=lambda member_id: (-len(kept[member_id]), member_id))
    return {member_id: each + (position < extra) for position, member_id in enumerate(by_size)}


def _trimmed(
    pool: Iterable[int], kept: Mapping[str, set[int]], quotas: Mapping[str, int], sharing: int
) -> dict[int, int]:
    """Take from members what they have too much of, and from partitions the readers they have too many of; how many
    each partition then lacks."""
    readers: dict[int, list[str]] = {partition: [] for partition in pool}
    for member_id in sorted(kept):
        for partition in kept[member_id]:
            readers[partition].append(member_id)
    for member_id in sorted(kept):
        most_shared = sorted(kept[member_id], key=lambda partition: (-len(readers[partition]), partition))
        for partition in most_shared[: max(len(most_shared) - quotas[member_id], 0)]:
            kept[member_id].discard(partition)
            readers[partition].remove(member_id)
    for partition, present in readers.items():
        for member_id in present[sharing:]:
            kept[member_id].discard(partition)
    return {partition: max(sharing - len(present), 0) for partition, present in readers.items()}


def _add_reader(partition: int, kept: Mapping[str, set[int]], quotas: Mapping[str, int], room: deque[str]) -> None:
    """Give a partition to a member with room, in turns. Where those read it already, one of them takes another
    partition of a member that does not, which reads this one in its stead."""
    for _ in range(len(room)):
        member_id = room.popleft()
        if partition not in kept[member_id]:
            kept[member_id].add(partition)
            if len(kept[member_id]) < quotas[member_id]:
                room.append(member_id)
            return
        room.append(member_id)
    member_id = room.popleft()
    giver = next(other for other in sorted(kept) if partition not in kept[other] and kept[other] - kept[member_id])
    passed_on = min(kept[giver] - kept[member_id])
    kept[giver].discard(passed_on)
    kept[giver].add(partition)
    kept[member_id].add(passed_on)
    if len(kept[member_id]) < quotas[member_id]:
        room.append(member_id)
