"""How far groups are behind: by each group's coordinator, which knows what it has committed, and by the share
coordinator, which knows what share groups are done with.

The ends of partitions that are led elsewhere are asked for, one request to each leader in a round. How far behind in
seconds is told from the ends that were seen in the rounds before: no log is read for it.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.cluster.image import ClusterImage
from headrace.coordinator.groups.offsets.records import decode_offset
from headrace.coordinator.groups.service import GroupCoordinator
from headrace.coordinator.share.service import ShareCoordinator
from headrace.net.clock import Clock
from headrace.net.pacing import paced
from headrace.protocol.topic_partition import TopicPartition
from headrace.replication.share_state import UNINITIALIZED

from ..partition_ends import PartitionEnds

ROUND_SECONDS: Final = 5.0
_MOST_SEEN: Final = 32
"""Ends of one partition that are remembered: the newest closely, older ones ever further apart."""


class Lag(NamedTuple):
    """Of one partition of a group."""

    group: str
    topic: str
    partition: int
    records: int
    seconds: float


@dataclass(slots=True)
class GroupTotal:
    """Of all partitions of a group."""

    records: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class LagReport:
    """Of all groups that were looked at in a round."""

    lags: list[Lag] = field(default_factory=list)
    """Of the first partitions, as many as were wanted."""
    left_out: int = 0
    """The others; totals have them."""
    groups: dict[str, GroupTotal] = field(default_factory=dict)

    def add(self, lag: Lag, most: int) -> None:
        """Take one in."""
        total = self.groups.setdefault(lag.group, GroupTotal())
        total.records += lag.records
        total.seconds = max(total.seconds, lag.seconds)
        if len(self.lags) < most:
            self.lags.append(lag)
        else:
            self.left_out += 1


class EndHistory:
    """Ends of one partition, and when they were seen."""

    __slots__ = ("_ends", "_times")

    def __init__(self) -> None:
        self._times: list[float] = []
        self._ends: list[int] = []

    def note(self, now: float, end: int) -> None:
        """The partition ends here now. One that ends earlier than before is another one."""
        if self._ends and end < self._ends[-1]:
            self._times.clear()
            self._ends.clear()
        self._times.append(now)
        self._ends.append(end)
        if len(self._ends) > _MOST_SEEN:
            half = _MOST_SEEN // 2
            del self._times[1:half:2]
            del self._ends[1:half:2]

    def seconds_behind(self, now: float, offset: int) -> float:
        """Since the end passed an offset; at least so long where it had before the first look."""
        number = bisect_right(self._ends, offset)
        if number == len(self._ends):
            return 0.0
        if number == 0:
            return now - self._times[0]
        before, after = self._ends[number - 1], self._ends[number]
        share = (offset - before) / (after - before)
        return now - (self._times[number - 1] + share * (self._times[number] - self._times[number - 1]))


class GroupLag:
    """Looks at the groups that this broker coordinates; `latest` is what it saw last."""

    def __init__(
        self,
        *,
        groups: GroupCoordinator,
        share: ShareCoordinator,
        image: ClusterImage,
        ends: PartitionEnds,
        clock: Clock,
        most: int,
    ) -> None:
        self._groups = groups
        self._share = share
        self._image = image
        self._ends = ends
        self._clock = clock
        self._most = most
        self._histories: dict[TopicPartition, EndHistory] = {}
        self.latest = LagReport()

    async def look(self) -> None:
        """Look at all groups; to be called every `ROUND_SECONDS`."""
        wanted = {TopicPartition(topic, index) async for _, topic, index, _ in paced(self._committed())}
        wanted |= {TopicPartition(topic, index) async for _, topic, index, _, _ in paced(self._shared())}
        ends = await self._ends.of(wanted)
        now = self._clock.monotonic()
        self._histories = {key: self._histories.get(key) or EndHistory() for key in wanted}
        for key, end in ends.items():
            self._histories[key].note(now, end)
        report = LagReport()

        def add(group: str, topic: str, index: int, offset: int, done: int = 0) -> None:
            key = TopicPartition(topic, index)
            if key in ends:
                records = max(ends[key] - offset - done, 0)
                seconds = self._histories[key].seconds_behind(now, offset) if records else 0.0
                report.add(Lag(group, topic, index, records, seconds), self._most)

        async for group, topic, index, value in paced(self._committed()):
            add(group, topic, index, decode_offset(value).offset)
        async for group, topic, index, offset, done in paced(self._shared()):
            add(group, topic, index, offset, done)
        self.latest = report

    def _committed(self) -> Iterator[tuple[str, str, int, bytes]]:
        for shard in self._groups.runtime.active():
            for group in list(shard.offsets.groups()):
                for topic, values in list(shard.offsets.topics(group).items()):
                    for index, value in list(values.items()):
                        yield group, topic, index, value

    def _shared(self) -> Iterator[tuple[str, str, int, int, int]]:
        """Where share groups are in partitions, and how many records from there on are done with."""
        for shard in self._share.runtime.active():
            for key, entry in list(shard.entries.items()):
                state, topic = entry.state, self._image.topic_by_id(key.topic_id)
                if topic is not None and state.start_offset != UNINITIALIZED:
                    done = max(state.delivery_complete_count, 0)
                    yield key.group_id, topic.name, key.partition, state.start_offset, done
