"""What `headrace doctor` finds wrong with a cluster: pure judgements of what `ops.inspection` has read."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.health import HealthProblem, ProblemCode, Severity
from headrace.ops.inspection import Inspection
from headrace.ops.overview import PartitionProblem, PartitionView
from headrace.ops.rates import GroupRow, RateModel
from headrace.ops.samples import BrokerReading, ClockReading
from headrace.protocol.topic_partition import TopicPartition

from .machine import GIB, MIB, Finding, fail, ok, warn

CLOCK_WARN_MS: Final = 1_000
CLOCK_FAIL_MS: Final = 60_000
_NAMED: Final = 3
_FEW_FILES: Final = 4096
_MOST_USED: Final = 0.8
_SEEN_IN_METADATA: Final = {
    ProblemCode.OFFLINE_PARTITIONS: PartitionProblem.OFFLINE,
    ProblemCode.UNDER_MIN_ISR: PartitionProblem.UNDER_MIN_ISR,
    ProblemCode.UNDER_REPLICATED: PartitionProblem.UNDER_REPLICATED,
}
"""What brokers report of partitions, and metadata shows, too, where they have not lost their cluster."""
_CHECK_OF: Final = {
    ProblemCode.LOG_DIR_FULL: "disk",
    ProblemCode.LOG_DIR_FAILED: "disk",
    ProblemCode.WRITES_STALLED: "disk",
    ProblemCode.DISK_LOW: "disk",
    ProblemCode.STORE_UNREACHABLE: "store",
    ProblemCode.DESCRIPTORS_SHORT: "limits",
    ProblemCode.CLOCK_JUMPED: "clock",
    **dict.fromkeys(_SEEN_IN_METADATA, "partitions"),
}
"""The check that a broker's own problem belongs to; others are of `brokers`."""
_INTERNAL: Final = ("__consumer_offsets", "__transaction_state", "__share_group_state", "__audit_log", "_schemas")
_ENTRY_ADVICE: Final = (
    "start the brokers, or name others with --bootstrap; where their listeners want a user, a password or TLS, set "
    "security.protocol, sasl.mechanism, sasl.username and sasl.password"
)
_PARTITION_ADVICE: Final = {
    PartitionProblem.OFFLINE: "start the brokers that hold the replicas; `headrace cluster describe` names them",
    PartitionProblem.UNDER_MIN_ISR: "bring back the replicas that are missing: writes with acks=all are refused",
    PartitionProblem.UNDER_REPLICATED: "see which brokers are missing or behind: `headrace cluster describe`",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """From where on something is worth a warning."""

    lag: int = 100_000
    """Records."""
    transaction_seconds: float = 900.0


def check_brokers(inspection: Inspection) -> Iterator[Finding]:
    """Who answers, and what they say of themselves that no other check is about."""
    check = "brokers"
    view = inspection.last.view
    if view is None:
        yield fail(check, inspection.last.reason, _ENTRY_ADVICE)
        return
    answering = 0
    for broker in view.brokers:
        reading = inspection.last.brokers.get(broker.id)
        name = f"broker {broker.id}"
        if reading is None:
            yield fail(
                check, f"{name} is not alive", f"start it; if it will not return: `headrace cluster drain {broker.id}`"
            )
        elif reading.reason:
            advice = "see whether its process runs and what its log says last; start it again"
            yield fail(check, f"{name} does not answer: {reading.reason}", advice)
        else:
            answering += 1
            if not broker.is_alive:
                advice = "see its log: it has lost ZooKeeper, or waits to join"
                yield fail(check, f"{name} answers, but is not registered in the cluster", advice)
            yield from _reported(check, name, reading)
    if answering and inspection.last.reason:
        yield fail(check, inspection.last.reason, "see what the brokers that answer say of themselves, and their logs")
    elif view.controller is None:
        yield fail(check, "there is no controller", "see whether ZooKeeper has a majority; one is elected by itself")
    elif answering == len(view.brokers):
        yield ok(check, f"{answering} of {len(view.brokers)} answer, controller {view.controller}")


def _reported(check: str, name: str, reading: BrokerReading) -> Iterator[Finding]:
    return (_of_problem(check, name, problem) for problem in _problems(check, reading))


def _problems(check: str, reading: BrokerReading) -> Iterator[HealthProblem]:
    """Those of a broker's report that belong to a check."""
    for problem in () if reading.health is None else reading.health.problems:
        if _CHECK_OF.get(problem.code, "brokers") == check:
            yield problem


def _of_problem(check: str, name: str, problem: HealthProblem) -> Finding:
    text = f"{name}: {problem.title}: {problem.message} ({problem.subject})"
    return (fail if problem.severity is Severity.CRITICAL else warn)(check, text, problem.advice)


def _answering(inspection: Inspection) -> Iterator[tuple[str, BrokerReading]]:
    for broker, reading in sorted(inspection.last.brokers.items()):
        if not reading.reason:
            yield f"broker {broker}", reading


def check_listeners(inspection: Inspection) -> Iterator[Finding]:
    """Who could come in, and whether all brokers have the listeners that clients are told of."""
    check = "listeners"
    known = {
        name: reading.health.listeners
        for name, reading in _answering(inspection)
        if reading.health is not None and reading.health.listeners
    }
    if not known:
        yield ok(check, "not told: these brokers are of an earlier release, or Apache Kafka's")
        return
    every = {each.name for listeners in known.values() for each in listeners if each.advertised}
    problems = 0
    for name, listeners in known.items():
        lacking = sorted(every - {each.name for each in listeners if each.advertised})
        if lacking:
            problems += 1
            advice = "who asks on it is told of no leader there: give all brokers the same listeners"
            yield fail(check, f"{name} has no listener {', '.join(lacking)}, which others have", advice)
    between = {each.name for listeners in known.values() for each in listeners if each.for_brokers}
    if len(between) > 1:
        problems += 1
        advice = "while brokers move from one to the other this is fine; else set inter.broker.listener.name alike"
        yield warn(check, f"brokers reach each other at different listeners: {', '.join(sorted(between))}", advice)
    if not problems:
        opened = sorted(
            {each.name for listeners in known.values() for each in listeners if each.anonymous and each.remote}
        )
        allowed = f"; {', '.join(opened)} open to all, as was allowed" if opened else ""
        yield ok(check, f"{', '.join(sorted(every))} on {len(known)} broker(s){allowed}")


def check_partitions(inspection: Inspection) -> Iterator[Finding]:
    """Offline, under min ISR, under-replicated: by the metadata, and by what brokers report beyond it."""
    check = "partitions"
    view = inspection.last.view
    if view is None:
        return
    troubled = {} if inspection.last.reason else _troubled(inspection, view.partitions)
    for problem in PartitionProblem:
        if problem in troubled:
            text = f"{len(troubled[problem])} {problem}: {_some(f'{p.topic}-{p.partition}' for p in troubled[problem])}"
            bad = warn if problem is PartitionProblem.UNDER_REPLICATED else fail
            yield bad(check, text, _PARTITION_ADVICE[problem])
    reported = [
        _of_problem(check, name, problem)
        for name, reading in _answering(inspection)
        for problem in _problems(check, reading)
        if _SEEN_IN_METADATA[problem.code] not in troubled
    ]
    yield from reported
    if not troubled and not reported and not inspection.last.reason:
        moving = f", {len(view.moving)} moving" if view.moving else ""
        yield ok(check, f"{len(view.partitions)}, all replicas are in sync{moving}")


def _troubled(
    inspection: Inspection, partitions: Iterable[PartitionView]
) -> dict[PartitionProblem, list[PartitionView]]:
    troubled: dict[PartitionProblem, list[PartitionView]] = {}
    for partition in partitions:
        problem = partition.problem
        if problem is PartitionProblem.UNDER_REPLICATED and len(partition.isr) < _min_isr(inspection, partition):
            problem = PartitionProblem.UNDER_MIN_ISR
        if problem is not None:
            troubled.setdefault(problem, []).append(partition)
    return troubled


def _min_isr(inspection: Inspection, partition: PartitionView) -> int:
    return min(
        _number(inspection.topics.get(partition.topic, {}).get("min.insync.replicas")) or 1, len(partition.replicas)
    )


def check_disk(inspection: Inspection) -> Iterator[Finding]:
    """What brokers report of their log directories, and how much is free."""
    check = "disk"
    least: tuple[int, str] | None = None
    is_well = True
    for name, reading in _answering(inspection):
        free, total = _disk(reading)
        for finding in _reported(check, name, reading):
            is_well = False
            yield finding
        if reading.health is None and free is not None and total is not None:
            space = _assess_space(name, free, total)
            is_well = is_well and space is None
            if space is not None:
                yield space
        if free is not None:
            least = min(least or (free, name), (free, name))
    if is_well:
        yield ok(check, "nothing is known" if least is None else f"{least[1]} has least: {least[0] / GIB:.1f} GiB free")


def _disk(reading: BrokerReading) -> tuple[int | None, int | None]:
    if reading.health is not None and "disk_free_bytes" in reading.health.numbers:
        numbers = reading.health.numbers
        return int(numbers["disk_free_bytes"]), int(numbers.get("disk_total_bytes", 0))
    return reading.disk_free, reading.disk_total


def _assess_space(name: str, free: int, total: int) -> Finding | None:
    text = f"{name}: {free / GIB:.1f} of {total / GIB:.1f} GiB free"
    if free < 256 * MIB:
        return fail("disk", text, "free space on the disk, add some, or shorten retention")
    if free < min(total // 20, 5 * GIB):
        return warn("disk", text, "add disk space or shorten retention before the disk is full")
    return None


def check_clock(inspection: Inspection) -> Iterator[Finding]:
    """The clocks of the brokers beside this machine's."""
    check = "clock"
    clocks: list[ClockReading] = []
    is_well = True
    for name, reading in _answering(inspection):
        for finding in (*_reported(check, name, reading), *_assess_skew(name, reading.clock)):
            is_well = False
            yield finding
        if reading.clock is not None:
            clocks.append(reading.clock)
    if is_well:
        most = max((abs(clock.ahead_ms) + clock.uncertainty_ms for clock in clocks), default=0.0)
        text = f"brokers are within {most:.0f} ms of this machine" if clocks else "brokers do not tell theirs"
        yield ok(check, text)


def _assess_skew(name: str, clock: ClockReading | None) -> Iterator[Finding]:
    skew = 0.0 if clock is None else abs(clock.ahead_ms) - clock.uncertainty_ms
    if clock is None or skew < CLOCK_WARN_MS:
        return
    direction = "ahead of" if clock.ahead_ms > 0 else "behind"
    text = f"{name} is {abs(clock.ahead_ms) / 1000:,.1f} s {direction} this machine"
    advice = "check both clocks and their time services (NTP): retention and timestamps go by a broker's clock"
    yield (fail if skew >= CLOCK_FAIL_MS else warn)("clock", text, advice)


def check_limits(inspection: Inspection) -> Iterator[Finding]:
    """How many files brokers may open: one for each client, and one for each partition in use."""
    check = "limits"
    is_well, least = True, None
    for name, reading in _answering(inspection):
        numbers = {} if reading.health is None else reading.health.numbers
        reported = list(_reported(check, name, reading))
        limit = numbers.get("descriptor_limit")
        if limit is not None:
            least = min(least or limit, limit)
            used = numbers.get("connections", 0) + numbers.get("partitions", 0)
            reported = reported or list(_assess_descriptors(name, int(limit), int(used)))
        is_well = is_well and not reported
        yield from reported
    if is_well:
        yield ok(
            check, "brokers do not tell theirs" if least is None else f"brokers may open {least:.0f} files or more"
        )


def _assess_descriptors(name: str, limit: int, used: int) -> Iterator[Finding]:
    advice = "raise it: LimitNOFILE=100000 in its systemd unit, or `ulimit -Hn 100000`; then restart the broker"
    text = f"{name} may open {limit} files, and has {used} clients and partitions"
    if used >= limit * _MOST_USED:
        yield fail("limits", text, advice)
    elif limit < _FEW_FILES:
        yield warn("limits", text, advice)


def check_versions(inspection: Inspection) -> Iterator[Finding]:
    """Whether all brokers run the same software."""
    check = "versions"
    versions: dict[str, list[str]] = {}
    for name, reading in _answering(inspection):
        if reading.health is not None:
            versions.setdefault(reading.health.version, []).append(name.removeprefix("broker "))
    if len(versions) > 1:
        text = "mixed: " + "; ".join(f"{version} on {', '.join(names)}" for version, names in sorted(versions.items()))
        yield warn(check, text, "finish the rolling upgrade: `headrace cluster restart` on those that are behind")
    else:
        yield ok(check, next(iter(versions), "brokers do not tell theirs"))


def check_settings(inspection: Inspection) -> Iterator[Finding]:
    """Settings that endanger records: too few replicas, acknowledged by too few, elections that lose."""
    check = "settings"
    view = inspection.last.view
    if view is None or inspection.last.reason:
        return
    brokers = len(view.brokers)
    factors: dict[str, int] = {}
    for partition in view.partitions:
        factor = len(partition.target)
        factors[partition.topic] = min(factors.get(partition.topic, factor), factor)
    findings = [*_assess_factors(factors, brokers), *_assess_topics(inspection, factors)]
    yield from findings
    if not findings:
        yield ok(check, f"{len(factors)} topics" + ("; one broker, so one replica each" if brokers == 1 else ""))


def _assess_factors(factors: dict[str, int], brokers: int) -> Iterator[Finding]:
    if brokers < 2:
        return
    least = min(brokers, 3)
    internal = [t for t, factor in factors.items() if t in _INTERNAL and factor < least]
    single = [t for t, factor in factors.items() if factor == 1 and t not in _INTERNAL]
    if internal:
        yield warn(
            "settings",
            f"internal topics with fewer than {least} replicas: {_some(f'{t} ({factors[t]})' for t in internal)}",
            "groups and transactions stop with one broker; "
            f"`headrace cluster reassign {' '.join(internal)} --replication-factor {least}`",
        )
    if single:
        yield warn(
            "settings",
            f"{len(single)} topics have one replica: {_some(single)}",
            "the loss of one broker loses their records; `headrace cluster reassign TOPIC --replication-factor "
            f"{least}`, and default.replication.factor={least} for new ones",
        )


def _assess_topics(inspection: Inspection, factors: dict[str, int]) -> Iterator[Finding]:
    least = {topic: _number(values.get("min.insync.replicas")) or 1 for topic, values in inspection.topics.items()}
    loose = [t for t, factor in factors.items() if factor >= 3 and least.get(t, 2) < 2]
    strict = [t for t, factor in factors.items() if factor > 1 and least.get(t, 1) >= factor]
    unclean = [t for t, values in inspection.topics.items() if values.get("unclean.leader.election.enable") == "true"]
    if loose:
        yield warn(
            "settings",
            f"{len(loose)} topics with three replicas and min.insync.replicas=1: {_some(loose)}",
            "what is acknowledged may be on the leader alone, and is lost with it; "
            "`headrace topic alter TOPIC -c min.insync.replicas=2`",
        )
    if strict:
        yield warn(
            "settings",
            f"{len(strict)} topics need every replica for a write (min.insync.replicas): {_some(strict)}",
            "one broker that is down or restarts stops their writes; set min.insync.replicas below the replicas",
        )
    if unclean:
        yield warn(
            "settings",
            f"{len(unclean)} topics let out-of-sync replicas lead (unclean.leader.election.enable): {_some(unclean)}",
            "acknowledged records can be lost; `headrace topic alter TOPIC -c unclean.leader.election.enable=false`",
        )


def check_groups(inspection: Inspection, thresholds: Thresholds) -> Iterator[Finding]:
    """Consumer groups that are far behind, or fall behind."""
    check = "groups"
    model = RateModel()
    model.add(inspection.first)
    groups = (
        model.add(inspection.last).groups
        if inspection.last is not inspection.first
        else model.add(inspection.first).groups
    )
    behind = [finding for group in groups if (finding := _assess_group(group, thresholds)) is not None]
    yield from behind
    if not behind:
        largest = max((group.lag or 0 for group in groups), default=0)
        yield ok(check, f"{len(groups)} groups, the largest lag is {largest:,} records" if groups else "no groups")


def _assess_group(group: GroupRow, thresholds: Thresholds) -> Finding | None:
    lag, change = group.lag or 0, group.lag_change or 0.0
    is_growing = change > 0
    growth = f", growing by {change:,.0f} a second" if is_growing else ""
    text = f"group '{group.name}' ({group.state}, {group.members} members) is {lag:,} records behind{growth}"
    if lag >= thresholds.lag:
        return warn("groups", text, _lag_advice(group))
    if is_growing and lag >= thresholds.lag / 10:
        return warn("groups", text, _lag_advice(group))
    return None


def _lag_advice(group: GroupRow) -> str:
    if not group.members:
        return f"start its consumers; if nobody needs it: `headrace group delete {group.name}`"
    return f"see `headrace group describe {group.name}`; add consumers, up to one per partition, or find what is slow"


def check_transactions(inspection: Inspection, thresholds: Thresholds) -> Iterator[Finding]:
    """Open transactions that hang: consumers of committed records wait for them."""
    check = "transactions"
    known = set()
    for each in inspection.transactions:
        known.add(each.producer_id)
        text = f"'{each.id}' ({each.state}) has been open for {each.age_ms / 1000:,.0f} s"
        yield warn(check, f"{text} in {_some(map(_short, each.partitions))}", f"`headrace txn abort {each.id}` ends it")
    for each_open in inspection.producers:
        if each_open.producer.producer_id in known:
            continue
        where, start = each_open.partition, each_open.producer.start_offset
        yield fail(
            check,
            f"{_short(where)}: a transaction that no coordinator knows hangs at offset {start}, "
            f"last written {each_open.age_ms / 1000:,.0f} s ago",
            f"`headrace txn abort --topic {where.topic} --partition {where.partition} --start-offset {start}` ends it",
        )
    if not inspection.transactions and not inspection.producers:
        yield ok(check, f"none is open for longer than {thresholds.transaction_seconds:g} s")


def _short(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def _some(names: Iterable[str]) -> str:
    """The first few, and how many more there are."""
    listed: Sequence[str] = list(names)
    more = len(listed) - _NAMED
    return ", ".join(listed[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


CHECKS: Final[dict[str, Callable[[Inspection, Thresholds], Iterator[Finding]]]] = {
    "brokers": lambda found, _: check_brokers(found),
    "listeners": lambda found, _: check_listeners(found),
    "partitions": lambda found, _: check_partitions(found),
    "disk": lambda found, _: check_disk(found),
    "clock": lambda found, _: check_clock(found),
    "limits": lambda found, _: check_limits(found),
    "versions": lambda found, _: check_versions(found),
    "settings": lambda found, _: check_settings(found),
    "groups": check_groups,
    "transactions": check_transactions,
}
"""What is judged by what brokers tell, in the order in which it is shown."""


def store_problems(inspection: Inspection) -> Iterator[Finding]:
    """What brokers say of the metadata store."""
    for name, reading in _answering(inspection):
        yield from _reported("store", name, reading)


def store_of(inspection: Inspection) -> str | None:
    """Where the brokers have their ZooKeeper, as `--store` takes it; None where they have none, or do not say."""
    for values in inspection.brokers.values():
        address = values.get("zookeeper.connect")
        if address:
            return f"zookeeper://{address}"
    return None
