"""How far groups are behind: by each group's coordinator, which knows what it has committed.

The ends of partitions that are led elsewhere are asked for, one request to each leader in a round. How far behind in
seconds is told from the ends that were seen in the rounds before: no log is read for it.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import structlog

from headrace.cluster.image import NO_LEADER, ClusterImage
from headrace.coordinator.groups.offsets.records import decode_offset
from headrace.coordinator.groups.service import GroupCoordinator
from headrace.net.clock import Clock
from headrace.net.pacing import paced
from headrace.net.peers import Peers, PeerUnreachable, Purpose
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.topic_partition import TopicPartition
from headrace.replication.replica_manager import ReplicaManager

ROUND_SECONDS: Final = 5.0
_VERSION: Final = 7
_LATEST: Final = -1
_MOST_ASKED: Final = 2_000
"""Partitions of one request."""
_MOST_SEEN: Final = 32
"""Ends of one partition that are remembered: the newest closely, older ones ever further apart."""
_ASK_SECONDS: Final = 3.0

log = structlog.get_logger(__name__)


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
        broker_id: int,
        image: ClusterImage,
        groups: GroupCoordinator,
        replicas: ReplicaManager,
        clock: Clock,
        peers: Peers | None,
        most: int,
    ) -> None:
        self._broker_id = broker_id
        self._image = image
        self._groups = groups
        self._replicas = replicas
        self._clock = clock
        self._peers = peers
        self._most = most
        self._histories: dict[TopicPartition, EndHistory] = {}
        self.latest = LagReport()

    async def look(self) -> None:
        """Look at all groups; to be called every `ROUND_SECONDS`."""
        wanted = {TopicPartition(topic, index) async for _, topic, index, _ in paced(self._committed())}
        ends = await self._ends(wanted)
        now = self._clock.monotonic()
        self._histories = {key: self._histories.get(key) or EndHistory() for key in wanted}
        for key, end in ends.items():
            self._histories[key].note(now, end)
        report = LagReport()
        async for group, topic, index, value in paced(self._committed()):
            key = TopicPartition(topic, index)
            if key not in ends:
                continue
            committed = decode_offset(value).offset
            records = max(ends[key] - committed, 0)
            seconds = self._histories[key].seconds_behind(now, committed) if records else 0.0
            report.add(Lag(group, topic, index, records, seconds), self._most)
        self.latest = report

    def _committed(self) -> Iterator[tuple[str, str, int, bytes]]:
        for shard in self._groups.runtime.active():
            for group in list(shard.offsets.groups()):
                for topic, values in list(shard.offsets.topics(group).items()):
                    for index, value in list(values.items()):
                        yield group, topic, index, value

    async def _ends(self, wanted: set[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermarks of partitions, where they can be known now."""
        ends: dict[TopicPartition, int] = {}
        elsewhere: dict[int, list[TopicPartition]] = {}
        async for key in paced(wanted):
            leader = self._leader(key)
            if leader == self._broker_id:
                try:
                    partition = self._replicas.partition(*key)
                except CodedError:
                    continue
                if partition.is_leader and partition.knows_high_watermark:
                    ends[key] = partition.high_watermark
            elif leader != NO_LEADER:
                elsewhere.setdefault(leader, []).append(key)
        if self._peers is not None:
            for leader, keys in elsewhere.items():
                for start in range(0, len(keys), _MOST_ASKED):
                    ends.update(await self._ask(self._peers, leader, keys[start : start + _MOST_ASKED]))
        return ends

    def _leader(self, key: TopicPartition) -> int:
        topic = self._image.topic(key.topic)
        if topic is None or not 0 <= key.partition < len(topic.partitions):
            return NO_LEADER
        return topic.partitions[key.partition].leader

    async def _ask(self, peers: Peers, leader: int, keys: list[TopicPartition]) -> dict[TopicPartition, int]:
        by_topic: dict[str, list[dict[str, int]]] = {}
        for topic, index in keys:
            asked = {"partition_index": index, "current_leader_epoch": -1, "timestamp": _LATEST}
            by_topic.setdefault(topic, []).append(asked)
        values: Mapping[str, Any] = {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": topic, "partitions": partitions} for topic, partitions in by_topic.items()],
        }
        try:
            answer = await peers.ask(
                leader, ApiKey.LIST_OFFSETS, _VERSION, values, purpose=Purpose.FORWARD, timeout=_ASK_SECONDS
            )
        except PeerUnreachable as error:
            log.debug("ends of partitions could not be asked for", leader=leader, reason=str(error))
            return {}
        return {
            TopicPartition(topic.name, partition.partition_index): partition.offset
            for topic in answer.topics
            for partition in topic.partitions
            if partition.error_code is ErrorCode.none
        }
