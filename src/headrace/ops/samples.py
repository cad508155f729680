"""What was read of a cluster at one time: plain values, for `rates` and for the checks of `headrace doctor`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.health import HealthReport
from headrace.protocol.topic_partition import TopicPartition

from .overview import ClusterView

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReading:
    """A group, as its coordinator has it."""

    group: str
    state: str
    type: str = "classic"
    """`classic`, `consumer`, or another that newer brokers have."""
    members: int = 0
    committed: Offsets = field(default_factory=dict)
    assigned: frozenset[TopicPartition] = frozenset()

    @property
    def topics(self) -> frozenset[str]:
        """The topics that it reads: all partitions of these count in its lag, also those without a commit."""
        return frozenset(partition.topic for partition in self.committed.keys() | self.assigned)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """A broker's clock beside ours."""

    ahead_ms: float
    """How far it is ahead of this machine's; negative where it is behind."""
    uncertainty_ms: float
    """Half of the time that the answer took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerReading:
    """What one broker answered. What was not asked this time is None, or not in its mapping."""

    at: float
    """When, in seconds of a clock that does not go back."""
    reason: str = ""
    """Why it did not answer; empty where it did, or where it told by its health why it answers nothing else."""
    health: HealthReport | None = None
    """None where it did not answer, or is a broker of Apache Kafka, which has no such report."""
    clock: ClockReading | None = None
    ends: Offsets = field(default_factory=dict)
    """The ends (high watermarks) of partitions that it leads."""
    starts: Offsets = field(default_factory=dict)
    """Where partitions begin that it leads and that a group reads without a committed offset."""
    sizes: Offsets | None = None
    """Bytes of the logs that it holds."""
    disk_total: int | None = None
    disk_free: int | None = None
    groups: tuple[GroupReading, ...] = ()
    listed: frozenset[str] | None = None
    """All groups that it coordinates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSample:
    """What was read in one round."""

    at: float
    view: ClusterView | None = None
    """The newest there is; of brokers alone where they tell their health and nothing else, None where nobody was ever
    reached."""
    reason: str = ""
    """Why the cluster's metadata could not be read this time; empty where it could."""
    brokers: Mapping[int, BrokerReading] = field(default_factory=dict)

    @property
    def is_reached(self) -> bool:
        """Whether the cluster answers: with its metadata, or a broker of it with its health."""
        return self.view is not None and (not self.reason or any(not each.reason for each in self.brokers.values()))
