"""What a topic's configuration means to its logs."""

from dataclasses import dataclass
from typing import Final

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
NEVER: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Settings of one log, with Kafka's defaults; each is named after the topic setting it comes from.

    Of a compacted topic `segment_ms` is `max.compaction.lag.ms` where that is less.
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = -1
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    flush_messages: int = NEVER
    flush_ms: int = NEVER
    max_message_bytes: int = 12 << 20
    file_delete_delay_ms: int = 60_000
    producer_id_expiration_ms: int = DAY_MS
    idempotency_key_expiration_ms: int = HOUR_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = NEVER
    delete_retention_ms: int = DAY_MS
    min_cleanable_dirty_ratio: float = 0.5

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy
