"""Every metric by its name: what it counts, in which unit, with which labels. Nothing else can be exported.

Names follow Prometheus' conventions: base units (seconds, bytes), `_total` for what only grows. docs/metrics.md is made
from this table.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class MetricType(StrEnum):
    """Prometheus' kinds of metrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric."""

    name: str
    kind: MetricType
    labels: tuple[str, ...]
    doc: str
    section: str
    step: int = 1
    """Of a histogram: powers of two between the bounds of its buckets."""


def _counter(name: str, doc: str, *labels: str) -> tuple[str, MetricType, tuple[str, ...], str]:
    return name, MetricType.COUNTER, labels, doc


def _gauge(name: str, doc: str, *labels: str) -> tuple[str, MetricType, tuple[str, ...], str]:
    return name, MetricType.GAUGE, labels, doc


def _histogram(name: str, doc: str, *labels: str) -> tuple[str, MetricType, tuple[str, ...], str]:
    return name, MetricType.HISTOGRAM, labels, doc


_PROCESS: Final = (
    _gauge("process_resident_memory_bytes", "Memory that the process has in use."),
    _gauge("process_virtual_memory_bytes", "Address space of the process."),
    _counter("process_cpu_seconds_total", "CPU time of the process, user and system."),
    _gauge("process_open_fds", "File descriptors in use: connections and log files."),
    _gauge("process_max_fds", "The limit of file descriptors."),
    _gauge("process_start_time_seconds", "When the process began, since 1970."),
    _counter("python_gc_collections_total", "Garbage collections.", "generation"),
    _counter("python_gc_objects_collected_total", "Objects that garbage collections have freed.", "generation"),
    _counter("python_gc_objects_uncollectable_total", "Objects that could not be freed.", "generation"),
    _gauge(
        "python_info", "Always 1; the Python that runs.", "implementation", "major", "minor", "patchlevel", "version"
    ),
)

_SECTIONS: Final = {
    "The broker": (
        _gauge("headrace_build_info", "Always 1; the version.", "version"),
        _gauge("headrace_broker_info", "Always 1; who this broker is.", "broker_id", "cluster_id", "rack"),
        _gauge("headrace_uptime_seconds", "Since the broker began to serve."),
        _gauge("headrace_ready", "1 while /readyz says so: nothing keeps the broker from serving."),
        _gauge(
            "headrace_health_problem",
            "1 while the broker has the problem, by its code (as `headrace doctor` and log lines name it).",
            "code",
            "severity",
        ),
        _gauge("headrace_active_controller", "1 on the broker that is the active controller; 1 for each cluster."),
        _gauge("headrace_brokers", "Brokers that are registered, as far as this one knows."),
        _gauge(
            "headrace_store_silence_seconds",
            "Since ZooKeeper was last heard; nothing where the broker keeps the state.",
        ),
    ),
    "Traffic": (
        _counter("headrace_bytes_in_total", "Bytes of record batches appended as the leader."),
        _counter("headrace_messages_in_total", "Records appended as the leader."),
        _counter("headrace_bytes_out_total", "Bytes of record batches sent to consumers."),
        _counter(
            "headrace_messages_out_total",
            "Records sent to consumers, by offsets: exact where a fetch reads to the end, else as near as the index of "
            "the segment tells (`index.interval.bytes`).",
        ),
        _counter("headrace_replication_bytes_in_total", "Bytes of record batches fetched from leaders."),
        _counter("headrace_replication_bytes_out_total", "Bytes of record batches sent to followers."),
        _counter("headrace_topic_bytes_in_total", "headrace_bytes_in_total of one topic.", "topic"),
        _counter("headrace_topic_messages_in_total", "headrace_messages_in_total of one topic.", "topic"),
        _counter("headrace_topic_bytes_out_total", "headrace_bytes_out_total of one topic.", "topic"),
        _counter("headrace_topic_messages_out_total", "headrace_messages_out_total of one topic.", "topic"),
        _counter("headrace_partition_bytes_in_total", "The same of one partition.", "topic", "partition"),
        _counter("headrace_partition_messages_in_total", "The same of one partition.", "topic", "partition"),
        _counter("headrace_partition_bytes_out_total", "The same of one partition.", "topic", "partition"),
        _counter("headrace_partition_messages_out_total", "The same of one partition.", "topic", "partition"),
    ),
    "Requests": (
        _counter("headrace_requests_total", "Requests by API.", "api"),
        _histogram(
            "headrace_request_seconds",
            "From the turn in which a request is served to its answer being handed to the system; of one that has to "
            "wait, to its answer being there.",
            "api",
        ),
        _histogram("headrace_request_queue_seconds", "From being read to being served.", "api"),
        _histogram(
            "headrace_request_local_seconds", "Served by the event loop; requests of one turn share its time.", "api"
        ),
        _histogram(
            "headrace_request_remote_seconds",
            "Of requests that wait: for the disk, followers, records to arrive, a group; and all work on requests "
            "other than Produce and Fetch.",
            "api",
        ),
        _histogram(
            "headrace_request_send_seconds", "From the answer to its last byte being handed to the system.", "api"
        ),
        _counter(
            "headrace_produce_errors_total", "Partitions of Produce requests that were refused, by error.", "error"
        ),
        _counter("headrace_audit_events_total", "Events of the audit log, with those that are only counted.", "kind"),
        _counter("headrace_audit_events_lost_total", "Events of the audit log that had no room in its queue."),
        _gauge("headrace_audit_queue_bytes", "Events of the audit log that wait to be written to its topic."),
        _gauge("headrace_requests_pending", "Requests that are read and not answered."),
        _gauge(
            "headrace_response_queue_bytes", "Bytes of answers that clients are slow to take, without ranges of logs."
        ),
        _gauge(
            "headrace_purgatory_requests",
            "Requests that wait: produce for acknowledgements, fetch for records.",
            "purgatory",
        ),
        _gauge("headrace_connections", "Open connections of clients and brokers."),
        _gauge("headrace_listener_connections", "The same by listener, where it has some.", "listener"),
        _counter("headrace_connections_accepted_total", "Connections that were accepted."),
        _counter(
            "headrace_connections_refused_total",
            "Connections that were refused: max_connections, max_connections_per_ip, connection_creation_rate (of one "
            "address) or open_files.",
            "reason",
        ),
        _gauge("headrace_connections_muted", "Connections that are not read for now, because of a quota."),
        _gauge(
            "headrace_request_memory_bytes",
            "Memory for requests that have come in part or wait to be served: queued.max.request.bytes bounds it.",
        ),
        _counter("headrace_request_memory_waits_total", "Times that a connection had to wait for such memory."),
        _counter(
            "headrace_throttled_requests_total",
            "Requests after which a client had to wait because of its quota, by user and client id: the first hundred, "
            "and `other`.",
            "user",
            "client_id",
        ),
        _counter(
            "headrace_throttle_seconds_total", "How long they were told to wait, all together.", "user", "client_id"
        ),
        _counter(
            "headrace_tls_handshakes_total",
            "TLS handshakes by how they ended; why one failed is in the log.",
            "listener",
            "outcome",
        ),
        _gauge(
            "headrace_tls_certificate_expiry_timestamp_seconds",
            "When the certificate of a listener expires, since 1970.",
            "listener",
        ),
        _counter(
            "headrace_logins_total", "Logins by SASL, by what came of them: succeeded, repeated, failed.", "outcome"
        ),
        _counter(
            "headrace_connections_expired_total",
            "Connections that were closed because their clients went on after their sessions had ended.",
        ),
    ),
    "Partitions": (
        _gauge("headrace_partitions", "Partitions that the broker holds."),
        _gauge("headrace_leaders", "Partitions that it leads."),
        _gauge("headrace_under_replicated_partitions", "Of those, the ones that lack in-sync replicas."),
        _gauge("headrace_under_min_isr_partitions", "Of those, the ones with an ISR below min.insync.replicas."),
        _gauge(
            "headrace_offline_partitions",
            "Partitions that this broker should lead and cannot; at the active controller, also all partitions of the "
            "cluster that have no leader. Each is counted by one broker: the sum is that of the cluster.",
        ),
        _counter("headrace_isr_shrinks_total", "Replicas that left an ISR of a partition led here."),
        _counter("headrace_isr_expands_total", "Replicas that came back into one."),
        _counter("headrace_leader_elections_total", "Times that this broker has become the leader of a partition."),
        _gauge(
            "headrace_replica_lag_records_max", "Of the partitions followed here, the most records behind a leader."
        ),
        _gauge(
            "headrace_replica_lag_records",
            "Records behind the leader, for a partition followed here.",
            "topic",
            "partition",
        ),
        _gauge("headrace_recovering_logs", "Logs that are being checked after an unclean stop."),
        _gauge("headrace_recovered_logs", "Logs that were checked in the latest recovery."),
        _gauge("headrace_recovered_bytes", "Bytes that were checked in the latest recovery."),
    ),
    "Logs and disk": (
        _gauge("headrace_log_size_bytes", "Size of all logs held here."),
        _gauge("headrace_log_segments", "Segments of all logs held here."),
        _gauge("headrace_topic_log_size_bytes", "Size of the logs of one topic held here.", "topic"),
        _gauge("headrace_partition_log_size_bytes", "Size of the log.", "topic", "partition"),
        _gauge("headrace_partition_log_segments", "Segments of the log.", "topic", "partition"),
        _gauge("headrace_partition_log_start_offset", "The first offset.", "topic", "partition"),
        _gauge("headrace_partition_log_end_offset", "The offset of the next record.", "topic", "partition"),
        _gauge("headrace_partition_high_watermark", "The end of what consumers see.", "topic", "partition"),
        _gauge("headrace_partition_is_leader", "1 where this broker leads the partition.", "topic", "partition"),
        _gauge("headrace_disk_total_bytes", "Size of the disk that holds the logs."),
        _gauge("headrace_disk_free_bytes", "Usable bytes of it."),
        _gauge(
            "headrace_disk_full_seconds",
            "Until the disk is full, if it fills as it did in the last half hour; +Inf while it does not fill.",
        ),
        _histogram("headrace_log_sync_seconds", "Syncs of logs to stable storage (fsync)."),
        _gauge("headrace_log_sync_pending", "Logs that wait to be synced."),
    ),
    "Groups and transactions": (
        _gauge("headrace_groups", "Groups that this broker coordinates.", "state"),
        _gauge(
            "headrace_group_lag_records",
            "Records between a group's committed offset and the high watermark. From the coordinator of the group, "
            "every 5 s.",
            "group",
            "topic",
            "partition",
        ),
        _gauge(
            "headrace_group_lag_seconds",
            "How long ago the high watermark passed the group's committed offset, as this coordinator has seen it: at "
            "least that long where it has watched for less.",
            "group",
            "topic",
            "partition",
        ),
        _gauge("headrace_group_lag_records_sum", "Of all partitions of the group.", "group"),
        _gauge("headrace_group_lag_seconds_max", "Of the partition that is furthest behind.", "group"),
        _counter("headrace_share_records_delivered_total", "Records that members of share groups were given."),
        _counter("headrace_share_records_redelivered_total", "Of those, the ones that had been delivered before."),
        _counter(
            "headrace_share_records_acknowledged_total",
            "Records by what members of share groups said of them: gap, accept, release, reject or renew.",
            "type",
        ),
        _counter("headrace_share_locks_expired_total", "Records whose member said nothing until its lock expired."),
        _gauge("headrace_share_locks", "Records that members of share groups have out."),
        _counter("headrace_share_dead_letters_total", "Records of share groups whose dead letters were written."),
        _counter(
            "headrace_share_dead_letter_failures_total", "Tries to write dead letters of share groups that failed."
        ),
        _counter(
            "headrace_share_dead_letters_dropped_total",
            "Records of share groups that were deleted from their topic while their dead letters could not be written.",
        ),
        _gauge("headrace_share_dead_letters_waiting", "Records of share groups whose dead letters are to be written."),
        _gauge("headrace_open_transactions", "Transactions that are open, or being ended, coordinated here."),
        _gauge("headrace_oldest_transaction_seconds", "Since the oldest of them began; 0 without any."),
    ),
    "The process": (
        _histogram(
            "headrace_loop_delay_seconds",
            "How late the event loop is, seen 20 times a second: every request waits at least so long.",
        ),
        _histogram("headrace_gc_pause_seconds", "Pauses by garbage collections.", "generation"),
        *_PROCESS,
    ),
    "The metrics themselves": (
        _gauge(
            "headrace_metrics_partitions_left_out",
            "Partitions without series of their own, beyond `headrace.metrics.max.partitions`; sums have them.",
        ),
        _gauge("headrace_metrics_topics_left_out", "Topics without series of their own, beyond the same number."),
        _gauge(
            "headrace_metrics_group_partitions_left_out", "Partitions of groups without series, beyond the same number."
        ),
        _gauge("headrace_metrics_scrape_seconds", "What the scrape before this one took."),
    ),
}

_GATEWAY_SECTIONS: Final = {
    "The gateway": (
        _gauge("headrace_build_info", "Always 1; the version.", "version"),
        _gauge("headrace_gateway_brokers", "Brokers of the cluster that the gateway knows; 0 while none answers."),
        _counter(
            "headrace_gateway_requests_total",
            "Requests by method, route (as /docs names it) and status.",
            "method",
            "route",
            "status",
        ),
        _histogram("headrace_gateway_request_seconds", "From the request to the last byte of its answer.", "route"),
        _gauge("headrace_gateway_requests_pending", "Requests that are not answered yet."),
        _gauge("headrace_gateway_websockets", "Open WebSockets."),
        *_PROCESS,
    ),
}

_PIPELINE_SECTIONS: Final = {
    "The service": (
        _gauge("headrace_build_info", "Always 1; the version.", "version"),
        _gauge("headrace_pipelines_deployed", "Pipelines that are deployed, wherever they run."),
        _gauge("headrace_pipeline_runners", "Pipelines that this service runs."),
        _gauge("headrace_pipeline_service_cut_off", "1 while the topics of pipelines cannot be read."),
        *_PROCESS,
    ),
    "Pipelines that this service runs, or was the last to run": (
        _gauge(
            "headrace_pipeline_state",
            "1 for the state that it is in: starting, running, stopping, stopped, backoff, crash-loop, failed, done, "
            "waiting.",
            "pipeline",
            "state",
        ),
        _counter("headrace_pipeline_restarts_total", "Starts of a runner since the last deployment.", "pipeline"),
        _gauge("headrace_pipeline_failures", "Failures in a row; 0 once a runner has lived for 5 minutes.", "pipeline"),
    ),
    "Sinks of pipelines that this service runs": (
        _counter("headrace_pipeline_rows_in_total", "Rows read for a sink since its start.", "pipeline", "sink"),
        _counter("headrace_pipeline_rows_out_total", "Rows written since its start.", "pipeline", "sink"),
        _counter(
            "headrace_pipeline_bad_records_total",
            "Records that could not be decoded, since its start.",
            "pipeline",
            "sink",
        ),
        _counter(
            "headrace_pipeline_late_rows_total",
            "Rows that came too late for their watermark, since its start.",
            "pipeline",
            "sink",
        ),
        _counter(
            "headrace_pipeline_expectation_failures_total",
            "Rows that failed a rule of `expect`, by TABLE.RULE, since its start.",
            "pipeline",
            "sink",
            "rule",
        ),
        _gauge("headrace_pipeline_rows_per_second", "Rows read in a second by the last batch.", "pipeline", "sink"),
        _gauge("headrace_pipeline_lag_records", "Records committed and not read yet.", "pipeline", "sink"),
        _gauge("headrace_pipeline_batch", "The number of the last batch.", "pipeline", "sink"),
        _gauge("headrace_pipeline_batch_seconds", "How long the last batch took.", "pipeline", "sink"),
        _gauge("headrace_pipeline_state_rows", "Rows in the state of a sink's query.", "pipeline", "sink"),
        _gauge("headrace_pipeline_state_bytes", "Memory in use by that state.", "pipeline", "sink"),
        _counter("headrace_pipeline_query_restarts_total", "Queries started again by the runner.", "pipeline", "sink"),
        _gauge(
            "headrace_pipeline_last_progress_timestamp_seconds",
            "When Spark last told of progress, since 1970; it does every 10 s also where there is nothing to do.",
            "pipeline",
            "sink",
        ),
    ),
}


def _metrics(sections: Mapping[str, tuple[tuple[str, MetricType, tuple[str, ...], str], ...]]) -> Iterator[Metric]:
    for section, rows in sections.items():
        for name, kind, labels, doc in rows:
            step = _PHASE_STEP if name in _PHASES else 1
            yield Metric(name=name, kind=kind, labels=labels, doc=doc, section=section, step=step)


_PHASES: Final = tuple(f"headrace_request_{phase}_seconds" for phase in ("queue", "local", "remote", "send"))
_PHASE_STEP: Final = 2
"""Five histograms for each API are many series: the parts of a request's time have half of the buckets."""

BROKER: Final[Mapping[str, Metric]] = {metric.name: metric for metric in _metrics(_SECTIONS)}
"""What a broker exports."""
GATEWAY: Final[Mapping[str, Metric]] = {metric.name: metric for metric in _metrics(_GATEWAY_SECTIONS)}
"""What a gateway exports."""
PIPELINES: Final[Mapping[str, Metric]] = {metric.name: metric for metric in _metrics(_PIPELINE_SECTIONS)}
"""What a service of pipelines exports."""
