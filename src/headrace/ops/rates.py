"""Rates and lag from what is read of a cluster: samples in, a `Dashboard` out. Pure: time comes with the samples.

A rate is the change between the last two readings of a counter, an end of a log or a size, over the time between them;
each partition has readings of its own, as not all are read in every round. The change of a lag is taken over 15 s, as
groups commit only now and then.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.health import HealthProblem, HealthReport, ProblemCode, Severity
from headrace.protocol.topic_partition import TopicPartition

from .overview import BrokerView, ClusterView, PartitionProblem, PartitionView
from .samples import BrokerReading, ClusterSample, GroupReading

STALE_SECONDS: Final = 60.0
"""What was read longer ago says nothing about now."""
LAG_SECONDS: Final = 15.0
"""The time over which the change of a lag is taken."""
LAG_NOTED: Final = 1000
"""From here on a lag that grows is pointed at."""
_ORDER: Final = (Severity.OK, Severity.WARNING, Severity.CRITICAL)
_DELAY: Final = "loop_delay_p99_seconds"
_SEEN_FROM_OUTSIDE: Final = frozenset({ProblemCode.OFFLINE_PARTITIONS, ProblemCode.UNDER_REPLICATED})
"""What brokers report of partitions, and everybody can see."""
_PARTITION_SEVERITY: Final = {
    PartitionProblem.OFFLINE: Severity.CRITICAL,
    PartitionProblem.UNDER_MIN_ISR: Severity.CRITICAL,
    PartitionProblem.UNDER_REPLICATED: Severity.WARNING,
}


class Reading(NamedTuple):
    """A number that was read at a time."""

    at: float
    value: float


class LastReadings:
    """The last two samples of a counter or gauge, and its rate."""

    __slots__ = ("_before", "last")

    def __init__(self) -> None:
        self._before: Reading | None = None
        self.last: Reading | None = None

    def add(self, at: float, value: float) -> None:
        if self.last is None or at > self.last.at:
            self._before, self.last = self.last, Reading(at, value)

    def rate(self, now: float) -> float | None:
        """The change a second; None where it is not known (yet, or any more), or where a counter began anew."""
        if self.last is None or self._before is None or now - self.last.at > STALE_SECONDS:
            return None
        change = self.last.value - self._before.value
        return None if change < 0 else change / (self.last.at - self._before.at)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRow:
    """A broker, with what it does a second. None stands for what is not known."""

    id: int
    host: str
    port: int
    rack: str | None
    is_controller: bool
    is_reached: bool
    leaders: int
    replicas: int
    in_sync: int
    bytes_in: float | None
    bytes_out: float | None
    messages_in: float | None
    messages_out: float | None
    requests: float | None
    connections: int | None
    disk_free: int | None
    disk_total: int | None
    loop_delay_ms: float | None
    """The longest that 99 of 100 turns of its event loop came late."""
    severity: Severity
    problem: str
    """What is wrong, in one line; empty where nothing is."""
    problems: tuple[HealthProblem, ...]
    """What it says of itself, with what to do."""
    version: str
    uptime_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """A partition of a topic."""

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    end: int | None
    bytes: int | None
    messages_in: float | None
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """A topic, with the sums of its partitions."""

    name: str
    partitions: int
    replication_factor: int
    messages_in: float | None
    bytes_in: float | None
    bytes: int | None
    """Of one copy."""
    under_replicated: int
    offline: int
    severity: Severity
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPartitionRow:
    """How far a group is in a partition."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    lag: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A group, with the sum of its lag over the partitions where that is known.

    What is read and has no committed offset counts from the start of the log, as `headrace group list` counts it.
    """

    name: str
    state: str
    type: str
    members: int
    lag: int | None
    lag_change: float | None
    """Records a second by which it falls behind; negative where it catches up."""
    uncommitted: int
    """Partitions of the topics that it reads which it has no committed offset of."""
    coordinator: int
    severity: Severity
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A cluster on one screen."""

    at: float
    cluster_id: str
    controller: int | None
    partitions: int
    severity: Severity
    headline: str
    """How it is, in one line, the worst first."""
    brokers: tuple[BrokerRow, ...] = ()
    topics: tuple[TopicRow, ...] = ()
    groups: tuple[GroupRow, ...] = ()


@dataclass(slots=True)
class _Broker:
    reading: BrokerReading
    view: BrokerView
    counters: dict[str, LastReadings] = field(default_factory=dict)
    health: HealthReport | None = None
    disk_free: int | None = None
    disk_total: int | None = None


@dataclass(slots=True)
class _Group:
    reading: GroupReading
    coordinator: int
    lags: "deque[Reading]" = field(default_factory=deque)


class RateModel:
    """Remembers what it needs of the samples so far."""

    def __init__(self) -> None:
        self._view: ClusterView | None = None
        self._of_topic: dict[str, list[TopicPartition]] = {}
        self._brokers: dict[int, _Broker] = {}
        self._ends: dict[TopicPartition, LastReadings] = {}
        self._sizes: dict[TopicPartition, LastReadings] = {}
        self._starts: dict[TopicPartition, int] = {}
        self._groups: dict[str, _Group] = {}
        self._now = 0.0

    def add(self, sample: ClusterSample) -> Dashboard:
        """Take in one more sample; how the cluster is by it, and by those before it."""
        self._now = sample.at
        if sample.view is not None:
            self._take_view(sample.view)
        leaders = {} if self._view is None else {p.key: p.leader for p in self._view.partitions}
        for broker, reading in sample.brokers.items():
            self._take_reading(broker, reading, leaders)
        for group in self._groups.values():
            self._take_lag(group)
        return self._dashboard(sample)

    def partitions_of(self, topic: str) -> list[PartitionRow]:
        """The partitions of a topic, by number."""
        view = self._view
        return [] if view is None else [self._partition_row(p) for p in view.partitions if p.topic == topic]

    def progress_of(self, group: str) -> list[GroupPartitionRow]:
        """How far a group is in each of its partitions, the largest lag first."""
        known = self._groups.get(group)
        return (
            []
            if known is None
            else sorted(self._progress(known.reading), key=lambda row: (-(row.lag or 0), row.topic, row.partition))
        )

    # Taking in

    def _take_view(self, view: ClusterView) -> None:
        if view is self._view:
            return
        self._view = view
        partitions = {p.key for p in view.partitions}
        self._of_topic = {}
        for partition in view.partitions:
            self._of_topic.setdefault(partition.topic, []).append(partition.key)
        for changes in (self._ends, self._sizes, self._starts):
            for gone in changes.keys() - partitions:
                del changes[gone]
        for broker in view.brokers:
            known = self._brokers.get(broker.id)
            if known is None:
                self._brokers[broker.id] = _Broker(BrokerReading(at=self._now), broker)
            else:
                known.view = broker

    def _take_reading(self, broker: int, reading: BrokerReading, leaders: Mapping[TopicPartition, int | None]) -> None:
        known = self._brokers[broker]
        known.reading = reading
        known.health = reading.health
        if reading.reason:
            return
        self._take_numbers(known, reading)
        for partition, end in reading.ends.items():
            if partition in leaders:
                self._ends.setdefault(partition, LastReadings()).add(reading.at, end)
        self._starts |= reading.starts
        for partition, size in (reading.sizes or {}).items():
            if leaders.get(partition) == broker:
                self._sizes.setdefault(partition, LastReadings()).add(reading.at, size)
        for group in reading.groups:
            held = self._groups.get(group.group)
            if held is None:
                self._groups[group.group] = _Group(group, broker)
            else:
                held.reading, held.coordinator = group, broker
        if reading.listed is not None:
            for name in [n for n, g in self._groups.items() if g.coordinator == broker and n not in reading.listed]:
                del self._groups[name]

    def _take_numbers(self, known: _Broker, reading: BrokerReading) -> None:
        numbers: Mapping[str, int | float] = {} if reading.health is None else reading.health.numbers
        for name, value in numbers.items():
            if name.endswith("_total"):
                known.counters.setdefault(name, LastReadings()).add(reading.at, value)
        free, total = numbers.get("disk_free_bytes"), numbers.get("disk_total_bytes")
        if free is not None and total is not None:
            known.disk_free, known.disk_total = int(free), int(total)
        elif reading.disk_free is not None:
            known.disk_free, known.disk_total = reading.disk_free, reading.disk_total

    def _take_lag(self, group: _Group) -> None:
        lag = self._lag(group.reading)
        lags = group.lags
        if lag is not None and (not lags or self._now > lags[-1].at):
            lags.append(Reading(self._now, lag))
        while len(lags) > 2 and lags[1].at <= self._now - LAG_SECONDS:
            lags.popleft()

    # Giving out

    def _dashboard(self, sample: ClusterSample) -> Dashboard:
        view = self._view
        if view is None:
            return Dashboard(
                at=sample.at,
                cluster_id="",
                controller=None,
                partitions=0,
                severity=Severity.CRITICAL,
                headline=sample.reason or "nothing is known yet",
            )
        brokers = tuple(self._broker_rows(view))
        topics = tuple(self._topic_rows(view))
        groups = tuple(self._group_rows())
        severity, headline = _headline(view, brokers, sample.reason)
        return Dashboard(
            at=sample.at,
            cluster_id=view.cluster_id,
            controller=view.controller,
            partitions=len(view.partitions),
            severity=severity,
            headline=headline,
            brokers=brokers,
            topics=topics,
            groups=groups,
        )

    def _broker_rows(self, view: ClusterView) -> Iterator[BrokerRow]:
        leads: dict[int, list[PartitionView]] = {}
        held: dict[int, int] = {}
        in_sync: dict[int, int] = {}
        for partition in view.partitions:
            if partition.leader is not None:
                leads.setdefault(partition.leader, []).append(partition)
            for replica in partition.replicas:
                held[replica] = held.get(replica, 0) + 1
            for replica in partition.isr:
                in_sync[replica] = in_sync.get(replica, 0) + 1
        for number, broker in sorted(self._brokers.items()):
            led = leads.get(number, [])
            yield self._broker_row(view, broker, led, held.get(number, 0), in_sync.get(number, 0))

    def _broker_row(
        self, view: ClusterView, broker: _Broker, led: list[PartitionView], held: int, in_sync: int
    ) -> BrokerRow:
        health = broker.health
        numbers: Mapping[str, int | float] = {} if health is None else health.numbers
        is_reached = not broker.reading.reason and bool(broker.view.host)
        severity, problem = _broker_problem(broker)
        messages_in, bytes_in = self._counted(broker, "messages_in"), self._counted(broker, "bytes_in")
        if is_reached and messages_in is None:
            messages_in = _sum(self._rate(self._ends, p) for p in led)
        if is_reached and bytes_in is None:
            bytes_in = _sum(self._rate(self._sizes, p) for p in led)
        connections = numbers.get("connections")
        return BrokerRow(
            id=broker.view.id,
            host=broker.view.host,
            port=broker.view.port,
            rack=broker.view.rack,
            is_controller=broker.view.id == view.controller,
            is_reached=is_reached,
            leaders=len(led),
            replicas=held,
            in_sync=in_sync,
            bytes_in=bytes_in,
            bytes_out=self._counted(broker, "bytes_out"),
            messages_in=messages_in,
            messages_out=self._counted(broker, "messages_out"),
            requests=self._counted(broker, "requests"),
            connections=None if connections is None else int(connections),
            disk_free=broker.disk_free if is_reached else None,
            disk_total=broker.disk_total if is_reached else None,
            loop_delay_ms=numbers[_DELAY] * 1000 if _DELAY in numbers else None,
            severity=severity,
            problem=problem,
            problems=() if health is None else health.problems,
            version="" if health is None else health.version,
            uptime_seconds=None if health is None else health.uptime_seconds,
        )

    def _counted(self, broker: _Broker, name: str) -> float | None:
        """The rate of a counter that the broker's health report has."""
        counter = broker.counters.get(f"{name}_total")
        return None if counter is None or broker.reading.reason else counter.rate(self._now)

    def _rate(self, changes: Mapping[TopicPartition, LastReadings], partition: PartitionView) -> float | None:
        """None also where the leader does not answer: what was read before says nothing about now."""
        leader = None if partition.leader is None else self._brokers.get(partition.leader)
        if leader is None or leader.reading.reason or partition.key not in changes:
            return None
        return changes[partition.key].rate(self._now)

    def _topic_rows(self, view: ClusterView) -> Iterator[TopicRow]:
        topics: dict[str, list[PartitionView]] = {}
        for partition in view.partitions:
            topics.setdefault(partition.topic, []).append(partition)
        for name, partitions in topics.items():
            problems = [p.problem for p in partitions if p.problem is not None]
            offline = problems.count(PartitionProblem.OFFLINE)
            yield TopicRow(
                name=name,
                partitions=len(partitions),
                replication_factor=max(len(p.replicas) - len(p.adding) for p in partitions),
                messages_in=_sum(self._rate(self._ends, p) for p in partitions),
                bytes_in=_sum(self._rate(self._sizes, p) for p in partitions),
                bytes=_whole(_sum(_last(self._sizes, p) for p in partitions)),
                under_replicated=len(problems) - offline,
                offline=offline,
                severity=_worst(_PARTITION_SEVERITY[p] for p in problems),
                problem=", ".join(f"{problems.count(p)} {p}" for p in PartitionProblem if p in problems),
            )

    def _partition_row(self, partition: PartitionView) -> PartitionRow:
        return PartitionRow(
            partition=partition.partition,
            leader=partition.leader,
            replicas=partition.replicas,
            isr=partition.isr,
            end=_whole(_last(self._ends, partition)),
            bytes=_whole(_last(self._sizes, partition)),
            messages_in=self._rate(self._ends, partition),
            problem="" if partition.problem is None else partition.problem.value,
        )

    def _group_rows(self) -> Iterator[GroupRow]:
        for name, group in sorted(self._groups.items()):
            reading = group.reading
            lag = self._lag(reading)
            change = _slope(group.lags)
            coordinator = self._brokers[group.coordinator]
            severity, problem = Severity.OK, ""
            if coordinator.reading.reason:
                severity, problem = Severity.WARNING, f"its coordinator, broker {group.coordinator}, does not answer"
            elif lag and not reading.members:
                severity, problem = Severity.WARNING, "records wait, and it has no members"
            elif lag is not None and lag >= LAG_NOTED and change is not None and change > 0:
                severity, problem = Severity.WARNING, "falls behind"
            yield GroupRow(
                name=name,
                state=reading.state,
                type=reading.type,
                members=reading.members,
                lag=lag,
                lag_change=change,
                uncommitted=len(self._partitions(reading) - reading.committed.keys()),
                coordinator=group.coordinator,
                severity=severity,
                problem=problem,
            )

    def _lag(self, group: GroupReading) -> int | None:
        lags = [row.lag for row in self._progress(group) if row.lag is not None]
        return sum(lags) if lags else None

    def _progress(self, group: GroupReading) -> Iterator[GroupPartitionRow]:
        for partition in self._partitions(group):
            committed = group.committed.get(partition)
            change = self._ends.get(partition)
            end = None if change is None or change.last is None else int(change.last.value)
            position = self._starts.get(partition) if committed is None else committed
            lag = None if position is None or end is None else max(end - position, 0)
            yield GroupPartitionRow(
                topic=partition.topic, partition=partition.partition, committed=committed, end=end, lag=lag
            )

    def _partitions(self, group: GroupReading) -> set[TopicPartition]:
        """All partitions of the topics that the group reads, and what it has committed of others that are gone."""
        return {
            *group.committed,
            *group.assigned,
            *(partition for topic in group.topics for partition in self._of_topic.get(topic, ())),
        }


def _broker_problem(broker: _Broker) -> tuple[Severity, str]:
    if broker.reading.reason:
        return Severity.CRITICAL, f"does not answer: {broker.reading.reason}"
    if not broker.view.host:
        return Severity.CRITICAL, "not alive: it should hold replicas, and is not registered in the cluster"
    if not broker.view.is_alive:
        return Severity.CRITICAL, "answers, but is not registered in the cluster"
    if broker.health is None or not broker.health.problems:
        return Severity.OK, ""
    return broker.health.severity, "; ".join(f"{p.title}: {p.message}" for p in broker.health.problems)


def _headline(view: ClusterView, brokers: Iterable[BrokerRow], reason: str) -> tuple[Severity, str]:
    """How bad it is, and what it is: brokers first, then what each says, then partitions."""
    rows = list(brokers)
    if reason and not any(broker.is_reached for broker in rows):
        return Severity.CRITICAL, reason
    problems = [complaint for broker in rows if (complaint := _complaint(broker)) is not None]
    for problem in PartitionProblem:
        count = len(view.with_problem(problem))
        if count:
            problems.append((_PARTITION_SEVERITY[problem], f"{count} {problem}"))
    if reason:
        problems.append((Severity.CRITICAL, reason))
    elif view.controller is None:
        problems.append((Severity.CRITICAL, "no controller"))
    if not problems:
        return Severity.OK, "all replicas are in sync"
    problems.sort(key=lambda each: -_ORDER.index(each[0]))
    return problems[0][0], "; ".join(text for _, text in problems)


def _complaint(broker: BrokerRow) -> tuple[Severity, str] | None:
    """What is wrong with a broker itself; partitions in trouble are counted once, for the whole cluster."""
    if broker.severity is Severity.OK:
        return None
    if not (broker.is_reached and broker.problems):
        return broker.severity, f"broker {broker.id} {broker.problem.partition(':')[0]}"
    own = [p for p in broker.problems if p.code not in _SEEN_FROM_OUTSIDE]
    if not own:
        return None
    return _worst(p.severity for p in own), f"broker {broker.id} {', '.join(dict.fromkeys(p.title for p in own))}"


def _worst(severities: Iterable[Severity]) -> Severity:
    return max(severities, key=_ORDER.index, default=Severity.OK)


def _slope(lags: "deque[Reading]") -> float | None:
    if len(lags) < 2:
        return None
    return (lags[-1].value - lags[0].value) / (lags[-1].at - lags[0].at)


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _last(changes: Mapping[TopicPartition, LastReadings], partition: PartitionView) -> float | None:
    change = changes.get(partition.key)
    return None if change is None or change.last is None else change.last.value


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
