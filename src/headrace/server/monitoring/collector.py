"""Reads a broker's counters into a snapshot, on its event loop and in turns with others."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headrace import __version__
from headrace.cluster.image import ClusterImage
from headrace.config import BrokerConfig
from headrace.config.metrics import MOST_PARTITIONS
from headrace.coordinator.groups.service import GroupCoordinator
from headrace.coordinator.transactions.service import TransactionCoordinator
from headrace.coordinator.transactions.states import PREPARED, TransactionState
from headrace.health.problem import KINDS
from headrace.metrics import names
from headrace.metrics.exposition import Durations, Snapshot, durations
from headrace.net.clock import Clock
from headrace.net.pacing import paced
from headrace.protocol.errors import ErrorCode
from headrace.replication.partition import Partition
from headrace.replication.replica_manager import ReplicaManager
from headrace.replication.share_manager import ShareManager
from headrace.replication.traffic import Traffic
from headrace.security.audit import AuditLog
from headrace.storage.flusher import Flusher

from ..authentication import LoginCounts
from ..connection_counts import ConnectionCounts, RefusalReason
from ..health import BrokerHealth, MemberHealth
from ..listener import Listeners
from ..request_memory import RequestMemory
from .disk_trend import DiskTrend
from .gc_pauses import GcPauses
from .group_lag import GroupLag
from .loop_delay import LoopDelay
from .request_times import ApiTimes, RequestTimes
from .throttle_times import ThrottleTimes

if TYPE_CHECKING:
    from ..tls import ListenerTls

_OPEN: Final = (TransactionState.ONGOING, *PREPARED)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerParts:
    """The parts of a broker that its metrics are about."""

    config: BrokerConfig
    clock: Clock
    image: ClusterImage
    replicas: ReplicaManager
    flusher: Flusher
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    shares: ShareManager
    health: BrokerHealth
    listeners: Listeners
    certificates: Sequence["ListenerTls"]
    """Of the listeners that speak TLS."""
    loop_delay: LoopDelay
    times: RequestTimes
    group_lag: GroupLag
    produce_errors: Mapping[int, int]
    """By error code."""
    delayed_fetches: Callable[[], int]
    delayed_share_fetches: Callable[[], int]
    logins: Callable[[], LoginCounts]
    is_controller: Callable[[], bool]
    counts: ConnectionCounts
    memory: RequestMemory
    throttled: ThrottleTimes
    member: MemberHealth | None
    """None where the broker is alone."""
    audit: AuditLog | None = None
    """None where nothing is recorded."""
    gc_pauses: GcPauses = field(default_factory=GcPauses)
    disk_trend: DiskTrend = field(default_factory=DiskTrend)


class _Logs:
    """What is summed over partitions, and the first of them one by one."""

    def __init__(self, snapshot: Snapshot, most: int) -> None:
        self._put = snapshot.put
        self._most = most
        self._seen = 0
        self.left_out = 0
        self.size = self.segments = 0
        self.delayed_produces = 0
        self.max_lag = 0
        self.traffic: dict[str, Traffic] = {}
        self.topic_sizes: Counter[str] = Counter()

    def add(self, partition: Partition) -> None:
        """Count one partition; a chore over all of them calls it."""
        log, topic = partition.log, partition.topic
        size, segments = log.size_bytes, log.segment_count
        self.size += size
        self.segments += segments
        self.delayed_produces += len(partition.commits) + len(partition.written)
        self.topic_sizes[topic] += size
        traffic = self.traffic.get(topic)
        if traffic is None:
            traffic = self.traffic[topic] = Traffic()
        traffic.add(partition)
        lag = 0
        if not partition.is_leader and partition.leader_end_offset >= 0:
            lag = max(partition.leader_end_offset - log.log_end_offset, 0)
            self.max_lag = max(self.max_lag, lag)
        if self._seen >= self._most:
            self.left_out += 1
            return
        self._seen += 1
        labels = (topic, str(partition.index))
        put = self._put
        put("headrace_partition_bytes_in_total", partition.bytes_in, *labels)
        put("headrace_partition_messages_in_total", partition.messages_in, *labels)
        put("headrace_partition_bytes_out_total", partition.bytes_out, *labels)
        put("headrace_partition_messages_out_total", partition.messages_out, *labels)
        put("headrace_partition_log_size_bytes", size, *labels)
        put("headrace_partition_log_segments", segments, *labels)
        put("headrace_partition_log_start_offset", log.log_start_offset, *labels)
        put("headrace_partition_log_end_offset", log.log_end_offset, *labels)
        put("headrace_partition_high_watermark", partition.high_watermark, *labels)
        put("headrace_partition_is_leader", int(partition.is_leader), *labels)
        if not partition.is_leader:
            put("headrace_replica_lag_records", lag, *labels)


def starting_snapshot() -> Snapshot:
    """Of a broker that does not serve yet."""
    snapshot = Snapshot(names.BROKER)
    snapshot.put("headrace_build_info", 1, __version__)
    snapshot.put("headrace_ready", 0)
    return snapshot


class BrokerCollector:
    """Makes snapshots."""

    def __init__(self, watched: BrokerParts) -> None:
        self.watched = watched

    async def collect(self) -> Snapshot:
        """All metrics of the broker now, without those of its process."""
        snapshot = Snapshot(names.BROKER)
        await self._put_broker(snapshot)
        self._put_requests(snapshot)
        await self._put_logs(snapshot)
        self._put_disk(snapshot)
        await self._put_groups(snapshot)
        self._put_shares(snapshot)
        await self._put_transactions(snapshot)
        snapshot.put("headrace_loop_delay_seconds", durations(self.watched.loop_delay.delays))
        for generation, pauses in enumerate(self.watched.gc_pauses.pauses):
            snapshot.put("headrace_gc_pause_seconds", durations(pauses), str(generation))
        return snapshot

    async def _put_broker(self, snapshot: Snapshot) -> None:
        watched, put = self.watched, snapshot.put
        report = watched.health.latest or await watched.health.report()
        rack = watched.config["broker.rack"] or ""
        put("headrace_build_info", 1, __version__)
        put("headrace_broker_info", 1, str(watched.config.node_id), watched.image.cluster_id, rack)
        put("headrace_active_controller", int(watched.is_controller()))
        put("headrace_brokers", len(watched.image.brokers))
        if watched.member is not None:
            put("headrace_store_silence_seconds", watched.member.store_silence())
        put("headrace_ready", int(report.ready))
        put("headrace_uptime_seconds", report.uptime_seconds)
        found = {problem.code for problem in report.problems}
        for code, kind in KINDS.items():
            put("headrace_health_problem", int(code in found), code.value, kind.severity.value)
        for name in ("partitions", "leaders"):
            put(f"headrace_{name}", report.numbers[name])
        for name in ("under_replicated", "under_min_isr", "offline"):
            put(f"headrace_{name}_partitions", report.numbers[name])

    def _put_requests(self, snapshot: Snapshot) -> None:
        watched, put = self.watched, snapshot.put
        for times in watched.times.all():
            put("headrace_requests_total", times.requests, times.name)
            for name, value in _histograms(times):
                put(name, value, times.name)
        for code, count in watched.produce_errors.items():
            put("headrace_produce_errors_total", count, ErrorCode(code).name)
        if watched.audit is not None:
            for kind, count in watched.audit.recorded.items():
                put("headrace_audit_events_total", count, kind.value)
            put("headrace_audit_events_lost_total", watched.audit.dropped)
            put("headrace_audit_queue_bytes", watched.audit.queued.bytes)
        connections = watched.listeners.connections
        put("headrace_connections", len(connections))
        for name, count in Counter(connection.listener_name for connection in connections).items():
            put("headrace_listener_connections", count, name)
        put("headrace_connections_accepted_total", watched.listeners.accepted)
        for reason in RefusalReason:
            put("headrace_connections_refused_total", watched.counts.refusals[reason], reason.value)
        put("headrace_connections_muted", sum(connection.is_muted for connection in connections))
        put("headrace_request_memory_bytes", watched.memory.used)
        put("headrace_request_memory_waits_total", watched.memory.waits)
        for client, throttled in watched.throttled.clients.items():
            put("headrace_throttled_requests_total", throttled.requests, *client)
            put("headrace_throttle_seconds_total", throttled.seconds, *client)
        for tls in watched.certificates:
            put("headrace_tls_handshakes_total", tls.handshakes.succeeded, tls.listener, "succeeded")
            put("headrace_tls_handshakes_total", tls.handshakes.failures, tls.listener, "failed")
            put("headrace_tls_certificate_expiry_timestamp_seconds", tls.expires_at, tls.listener)
        logins = watched.logins()
        put("headrace_logins_total", logins.succeeded - logins.repeated, "succeeded")
        put("headrace_logins_total", logins.repeated, "repeated")
        put("headrace_logins_total", logins.failed, "failed")
        put("headrace_connections_expired_total", logins.expired)
        put("headrace_requests_pending", sum(connection.pending for connection in connections))
        put("headrace_response_queue_bytes", sum(connection.queued_bytes for connection in connections))
        put("headrace_purgatory_requests", watched.delayed_fetches(), "fetch")
        put("headrace_purgatory_requests", watched.delayed_share_fetches(), "share fetch")

    async def _put_logs(self, snapshot: Snapshot) -> None:
        replicas, put = self.watched.replicas, snapshot.put
        most = int(self.watched.config[MOST_PARTITIONS])
        logs = _Logs(snapshot, most)
        await replicas.maintenance.for_each("metrics", logs.add)
        gone = replicas.gone_traffic
        total = gone.total()
        for traffic in logs.traffic.values():
            total.add(traffic)
        for topic, traffic in gone.by_topic.items():
            logs.traffic.setdefault(topic, Traffic()).add(traffic)
        put("headrace_bytes_in_total", total.bytes_in)
        put("headrace_messages_in_total", total.messages_in)
        put("headrace_bytes_out_total", total.bytes_out)
        put("headrace_messages_out_total", total.messages_out)
        put("headrace_replication_bytes_in_total", total.replicated_in)
        put("headrace_replication_bytes_out_total", total.replicated_out)
        async for topic, traffic in paced(_first(logs.traffic, most)):
            put("headrace_topic_bytes_in_total", traffic.bytes_in, topic)
            put("headrace_topic_messages_in_total", traffic.messages_in, topic)
            put("headrace_topic_bytes_out_total", traffic.bytes_out, topic)
            put("headrace_topic_messages_out_total", traffic.messages_out, topic)
            put("headrace_topic_log_size_bytes", logs.topic_sizes[topic], topic)
        put("headrace_log_size_bytes", logs.size)
        put("headrace_log_segments", logs.segments)
        put("headrace_replica_lag_records_max", logs.max_lag)
        put("headrace_purgatory_requests", logs.delayed_produces, "produce")
        put("headrace_metrics_partitions_left_out", logs.left_out)
        put("headrace_metrics_topics_left_out", max(len(logs.traffic) - most, 0))
        put("headrace_isr_shrinks_total", replicas.isr_shrinks)
        put("headrace_isr_expands_total", replicas.isr_expands)
        put("headrace_leader_elections_total", replicas.leader_elections)

    def _put_disk(self, snapshot: Snapshot) -> None:
        watched, put = self.watched, snapshot.put
        total, free = watched.replicas.disk_usage()
        put("headrace_disk_total_bytes", total)
        put("headrace_disk_free_bytes", free)
        put("headrace_disk_full_seconds", watched.disk_trend.full_in())
        put("headrace_log_sync_seconds", durations(watched.flusher.durations))
        put("headrace_log_sync_pending", watched.flusher.pending)
        recovered, recovered_bytes = watched.replicas.recovery_progress
        put("headrace_recovering_logs", watched.replicas.recovering)
        put("headrace_recovered_logs", recovered)
        put("headrace_recovered_bytes", recovered_bytes)

    async def _put_groups(self, snapshot: Snapshot) -> None:
        put, most = snapshot.put, int(self.watched.config[MOST_PARTITIONS])
        states: Counter[str] = Counter()
        for shard in self.watched.groups.runtime.active():
            async for group in paced(list(shard.groups.values())):
                states[group.state_name] += 1
            states["Empty"] += sum(group_id not in shard.groups for group_id in shard.offsets.groups())
        for state, count in states.items():
            put("headrace_groups", count, state)
        report = self.watched.group_lag.latest
        async for lag in paced(report.lags):
            labels = (lag.group, lag.topic, str(lag.partition))
            put("headrace_group_lag_records", lag.records, *labels)
            put("headrace_group_lag_seconds", lag.seconds, *labels)
        async for group_id, total in paced(_first(report.groups, most)):
            put("headrace_group_lag_records_sum", total.records, group_id)
            put("headrace_group_lag_seconds_max", total.seconds, group_id)
        put("headrace_metrics_group_partitions_left_out", report.left_out)

    def _put_shares(self, snapshot: Snapshot) -> None:
        put, shares = snapshot.put, self.watched.shares
        counts = shares.counts
        put("headrace_share_records_delivered_total", counts.delivered)
        put("headrace_share_records_redelivered_total", counts.redelivered)
        for kind, count in counts.acknowledged.items():
            put("headrace_share_records_acknowledged_total", count, kind.name.lower())
        put("headrace_share_locks_expired_total", counts.expired)
        put("headrace_share_locks", shares.locks)
        put("headrace_share_dead_letters_total", counts.letters)
        put("headrace_share_dead_letter_failures_total", counts.letters_failed)
        put("headrace_share_dead_letters_dropped_total", counts.letters_dropped)
        put("headrace_share_dead_letters_waiting", shares.letters_due)

    async def _put_transactions(self, snapshot: Snapshot) -> None:
        count, oldest = 0, 0.0
        now = self.watched.clock.monotonic()
        for shard in self.watched.transactions.runtime.active():
            async for entry in paced(list(shard.entries.values())):
                if entry.transaction.state in _OPEN:
                    count += 1
                    oldest = max(oldest, now - entry.since)
        snapshot.put("headrace_open_transactions", count)
        snapshot.put("headrace_oldest_transaction_seconds", oldest)


def _first(values: Mapping[str, Any], most: int) -> Iterator[tuple[str, Any]]:
    for _, item in zip(range(most), values.items(), strict=False):
        yield item


def _histograms(times: ApiTimes) -> Iterator[tuple[str, Durations]]:
    yield (
        "headrace_request_seconds",
        durations(times.total, times.remote, others=times.fast, others_ns=times.fast_total_ns),
    )
    for phase, histogram, others, others_ns in times.phases():
        yield f"headrace_request_{phase}_seconds", durations(histogram, others=others, others_ns=others_ns)


async def sampled(watched: BrokerParts, seconds: float) -> None:
    """Note the free bytes of the disk every so many seconds, until cancelled."""
    while True:
        watched.disk_trend.note(watched.clock.monotonic(), watched.replicas.disk_usage()[1])
        await asyncio.sleep(seconds)
