"""A broker's health from its live state: the one source of DescribeHealth, `/readyz`, metrics and log lines.

What is wrong with the broker itself (disk, store, descriptors, recovery) is looked at for each report. Its partitions
are counted in turns with others, and not again before that count is as old as 50 times what it took, so that reports of
a broker with 100,000 partitions take no more than 2 % of its time.

Each offline partition is counted by one broker, so that the numbers of all brokers can be summed: by its leader where
that cannot serve it, by the active controller where it has none, also when every broker that holds it is gone.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

import structlog

from headrace import __version__
from headrace.cluster.image import NO_LEADER, ClusterImage, PartitionState, Topic
from headrace.health import HealthProblem, HealthReport, ListenerReport, ProblemCode, Severity, problem
from headrace.health.report import worst_first
from headrace.net.clock import Clock
from headrace.net.pacing import paced
from headrace.protocol.levels import FIRST, SUPPORTED, LevelRange
from headrace.replication.partition import Partition
from headrace.replication.replica_manager import LogFault, ReplicaManager
from headrace.replication.traffic import Traffic
from headrace.storage.retention_clock import RetentionClock

from .descriptors import Descriptors, needed
from .listener import Listeners
from .monitoring.loop_delay import LoopDelay

WATCH_SECONDS: Final = 1.0
_FRESH_SECONDS: Final = 0.2
_SHARE: Final = 50
_AT_ONCE: Final = 1000
"""Partitions of a topic that are counted without a look at the time: less than 0.1 ms."""
_LOW_SHARE: Final = 20
"""Less than one in so many bytes free is little."""
_LOW_BYTES: Final = 5 << 30
"""More than this is never little."""
_STALL_SECONDS: Final = 5.0
"""A sync of the disk that takes longer is told."""
_FULL_SHARE: Final = 0.9
"""Of the connections that descriptors allow."""
_NAMED: Final = 3
"""Logs or partitions that a message names."""
_LATEST_SECOND: Final = 253_402_300_799
"""Of the year 9999."""
_LOST_AFTER: Final = 2 / 3
"""Of a session without a word of the store: three words should have come."""

log = structlog.get_logger(__name__)


class MemberHealth(Protocol):
    """A broker's membership as the health report needs it: `clustered.member.ClusterMember`."""

    epoch: int
    is_apart: bool
    session_seconds: float

    @property
    def is_registered(self) -> bool:
        """Whether it has a registration, and knows its cluster."""
        ...

    def store_silence(self) -> float:
        """The seconds since anything was heard of the metadata store."""
        ...


@dataclass(slots=True)
class PartitionCounts:
    """Of the partitions that a broker holds."""

    broker_id: int
    traffic: Traffic = field(default_factory=Traffic)
    """With that of partitions that it held before."""
    held: int = 0
    led: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    unserved: int = 0
    """It should lead them and cannot: their logs failed, or it has lost the metadata store."""

    def add(self, partition: Partition) -> None:
        """Count one."""
        self.held += 1
        self.traffic.add(partition)
        state = partition.state
        if state.leader == self.broker_id and (partition.log.offline is not None or not partition.is_leader):
            self.unserved += 1
        elif partition.is_leader:
            self.led += 1
            self.under_replicated += len(state.isr) < len(state.replicas) - len(state.adding)
            self.under_min_isr += partition.is_short_of_replicas


class LeaderlessCount:
    """The partitions of a cluster that have no leader, counted anew only where the metadata has changed."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self._version = -1
        self.count = 0

    async def renew(self) -> None:
        """Count them, in turns with others."""
        version, count = self._image.version, 0
        if version == self._version:
            return
        async for states in paced(_slices(list(self._image.topics()))):
            count += sum(state.leader == NO_LEADER for state in states)
        self._version, self.count = version, count


class BrokerHealth:
    """Makes reports, and logs problems as they come and go."""

    def __init__(
        self,
        *,
        broker_id: int,
        image: ClusterImage,
        is_controller: Callable[[], bool],
        clock: Clock,
        replicas: ReplicaManager,
        descriptors: Descriptors,
        listeners: Listeners,
        loop_delay: LoopDelay,
        retention_clock: RetentionClock,
        member: MemberHealth | None = None,
        certificates: Callable[[], Iterable[HealthProblem]] = tuple,
        letters: Callable[[], Iterable[HealthProblem]] = tuple,
        store: str = "",
        levels: LevelRange = SUPPORTED,
        level: Callable[[], int] = lambda: FIRST,
        addresses: tuple[ListenerReport, ...] = (),
    ) -> None:
        self._addresses = addresses
        self._broker_id = broker_id
        self._cluster_id = image.cluster_id
        self._is_controller = is_controller
        self._clock = clock
        self._replicas = replicas
        self._descriptors = descriptors
        self._listeners = listeners
        self._loop_delay = loop_delay
        self._retention_clock = retention_clock
        self._member = member
        """None where the broker is alone."""
        self._certificate_problems = certificates
        self._letter_problems = letters
        self._store = store
        """The addresses of the store, for those who read."""
        self._levels = levels
        self._level = level
        """The cluster's feature level, as far as is known here."""
        self._began = clock.monotonic()
        self._counts = PartitionCounts(broker_id)
        self._leaderless = LeaderlessCount(image)
        self._recount_at = self._began
        self._counting = asyncio.Lock()
        self._sync: tuple[object | None, float] = (None, self._began)
        """What was being synced when that was last looked at, and since when."""
        self._logged: dict[ProblemCode, HealthProblem] = {}
        self.latest: HealthReport | None = None
        """The last report that was made; at most a little more than a second old while the broker runs."""

    async def report(self) -> HealthReport:
        """How the broker is now."""
        async with self._counting:
            began = self._clock.monotonic()
            if began >= self._recount_at:
                counts = PartitionCounts(self._broker_id)
                await self._replicas.maintenance.for_each("health", counts.add)
                counts.traffic.add(self._replicas.gone_traffic.total())
                self._counts = counts
                if self._is_controller():
                    await self._leaderless.renew()
                now = self._clock.monotonic()
                self._recount_at = now + max(_FRESH_SECONDS, _SHARE * (now - began))
        self.latest = self._make()
        return self.latest

    async def watch(self) -> None:
        """Log problems that began or ended; to be called every `WATCH_SECONDS`."""
        report = await self.report()
        problems = {p.code: p for p in report.problems}
        for code, now in problems.items():
            if code not in self._logged:
                write = log.error if now.severity is Severity.CRITICAL else log.warning
                write(now.title, code=code.value, subject=now.subject, reason=now.message, advice=now.advice)
        for code, before in self._logged.items():
            if code not in problems:
                log.info(f"{before.title}: over", code=code.value, subject=before.subject)
        self._logged = problems

    def _make(self) -> HealthReport:
        total, free = self._replicas.disk_usage()
        problems = worst_first([*self._own_problems(total, free), *self._partition_problems()])
        counts, traffic = self._counts, self._counts.traffic
        return HealthReport(
            broker_id=self._broker_id,
            cluster_id=self._cluster_id,
            version=__version__,
            uptime_seconds=self._clock.monotonic() - self._began,
            ready=not any(p.keeps_from_ready for p in problems),
            problems=problems,
            numbers={
                "partitions": counts.held,
                "leaders": counts.led,
                "under_replicated": counts.under_replicated,
                "under_min_isr": counts.under_min_isr,
                "offline": counts.unserved + self._leaderless_known,
                "recovering_logs": self._replicas.recovering,
                "disk_total_bytes": total,
                "disk_free_bytes": free,
                "bytes_in_total": traffic.bytes_in,
                "bytes_out_total": traffic.bytes_out,
                "messages_in_total": traffic.messages_in,
                "messages_out_total": traffic.messages_out,
                "requests_total": self._listeners.requests,
                "loop_delay_p99_seconds": round(self._loop_delay.p99_seconds, 6),
                "connections": self._listeners.count,
                "descriptor_limit": self._descriptors.limit,
                "clock_ms": self._clock.now_ms(),
                "feature_level": self._level(),
                "feature_level_min": self._levels.min,
                "feature_level_max": self._levels.max,
            },
            listeners=self._addresses,
        )

    @property
    def _leaderless_known(self) -> int:
        """Of the whole cluster where this broker is its active controller: others leave them to that."""
        return self._leaderless.count if self._is_controller() else 0

    def _own_problems(self, total: int, free: int) -> Iterator[HealthProblem]:
        yield from self._store_problems()
        yield from self._disk_problems(total, free)
        yield from self._stall_problems()
        yield from self._clock_problems()
        yield from self._descriptor_problems()
        yield from self._certificate_problems()
        yield from self._letter_problems()
        recovering = self._replicas.recovering
        if recovering:
            yield problem(
                ProblemCode.RECOVERING, self._replicas.log_directory, f"{recovering} log(s) are being checked"
            )

    def _store_problems(self) -> Iterator[HealthProblem]:
        member = self._member
        if member is None:
            return
        silence = member.store_silence()
        if silence >= member.session_seconds * _LOST_AFTER:
            message = f"ZooKeeper has not answered for {silence:.0f} s"
            if member.is_apart:
                message += "; this broker leads nothing until it is registered again"
            yield problem(ProblemCode.STORE_UNREACHABLE, self._store, message)
        if not member.is_registered:
            message = "the broker has not joined its cluster yet" if member.epoch < 0 else "its registration was lost"
            yield problem(ProblemCode.NOT_REGISTERED, f"broker {self._broker_id}", message)

    def _stall_problems(self) -> Iterator[HealthProblem]:
        now, sync = self._clock.monotonic(), self._replicas.sync_under_way
        if sync is not self._sync[0]:
            self._sync = (sync, now)
        lasted = now - self._sync[1]
        if sync is not None and lasted >= _STALL_SECONDS:
            message = f"a sync of the disk has not ended for {lasted:.0f} s; writes are not acknowledged meanwhile"
            yield problem(ProblemCode.WRITES_STALLED, self._replicas.log_directory, message)

    def _descriptor_problems(self) -> Iterator[HealthProblem]:
        limit, held, connections = self._descriptors.limit, self._counts.held, self._listeners.count
        most = self._descriptors.connections
        wanted = max(needed(held), 2 * limit if connections >= most * _FULL_SHARE else 0)
        if limit < wanted:
            message = (
                f"{limit} files may be open, {wanted} are needed: {held} partition(s) are held, and {connections} of "
                f"{most} possible connections are open"
            )
            yield problem(ProblemCode.DESCRIPTORS_SHORT, f"broker {self._broker_id}", message)

    def _clock_problems(self) -> Iterator[HealthProblem]:
        believed_ms = self._retention_clock.now_ms()
        jump_ms = self._retention_clock.jump_ms
        if jump_ms:
            ahead = timedelta(seconds=round(jump_ms / 1000))
            message = (
                f"the clock shows {_utc(believed_ms + jump_ms)}, {ahead} ahead of the time that has passed; "
                f"records and offsets expire as at {_utc(believed_ms)}"
            )
            yield problem(ProblemCode.CLOCK_JUMPED, f"broker {self._broker_id}", message)

    def _disk_problems(self, total: int, free: int) -> Iterator[HealthProblem]:
        directory = self._replicas.log_directory
        faults = self._replicas.log_faults()
        full = [fault for fault in faults if fault.is_full]
        failed = [fault for fault in faults if not fault.is_full]
        if full:
            message = f"no space left: {_some(full)} take no writes; {free:,} of {total:,} bytes are free"
            yield problem(ProblemCode.LOG_DIR_FULL, directory, message)
        elif free < min(total // _LOW_SHARE, _LOW_BYTES):
            yield problem(ProblemCode.DISK_LOW, directory, f"{free:,} of {total:,} bytes are free")
        if failed:
            yield problem(ProblemCode.LOG_DIR_FAILED, directory, f"{_some(failed)} cannot be used: {failed[0].reason}")

    def _partition_problems(self) -> Iterator[HealthProblem]:
        subject, counts = f"broker {self._broker_id}", self._counts
        leaderless, unserved = self._leaderless_known, counts.unserved
        offline = [f"{leaderless} partition(s) of the cluster have no leader"] if leaderless else []
        offline += [f"{unserved} partition(s) should be led here and cannot be"] if unserved else []
        if offline:
            yield problem(ProblemCode.OFFLINE_PARTITIONS, subject, "; ".join(offline))
        if counts.under_min_isr:
            message = f"{counts.under_min_isr} partition(s) led here have an ISR below min.insync.replicas"
            yield problem(ProblemCode.UNDER_MIN_ISR, subject, message)
        if counts.under_replicated:
            message = f"{counts.under_replicated} partition(s) led here lack in-sync replicas"
            yield problem(ProblemCode.UNDER_REPLICATED, subject, message)


def _slices(topics: list[Topic]) -> Iterator[tuple[PartitionState, ...]]:
    for topic in topics:
        for start in range(0, len(topic.partitions), _AT_ONCE):
            yield topic.partitions[start : start + _AT_ONCE]


def _utc(ms: int) -> str:
    return datetime.fromtimestamp(min(ms // 1000, _LATEST_SECOND), UTC).isoformat()


def _some(faults: list[LogFault]) -> str:
    """The first few by name, and how many more there are."""
    names = ", ".join(fault.name for fault in faults[:_NAMED])
    more = len(faults) - _NAMED
    return f"{names} and {more} more logs" if more > 0 else names
