"""What a topic's settings mean to its logs, and to a batch on its way in.

Topics with the same settings share one value: a broker with 100,000 topics has a handful of them.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.config import BrokerConfig, effective_topic
from headrace.protocol.compression import CODECS
from headrace.storage.settings import LogSettings

from .image import Topic

_UNCOMPRESSED: Final = "uncompressed"
_PRODUCER: Final = "producer"
_CODEC_CHOOSES: Final = -1
_FULL: Final = "full"
_OWN_TOPICS: Final = ("__", "_headrace")


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeSettings:
    """What a topic asks of a batch that is produced to it."""

    max_message_bytes: int
    append_time: bool
    """Whether records get the broker's time (LogAppendTime) instead of keeping the producer's."""
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    requires_keys: bool
    """Whether records without a key are refused: nothing would say which of them a compacted log has to keep."""
    codec: int | None
    """The codec to store batches in; None keeps the producer's."""
    codec_level: int | None
    """The level to compress at; None is the codec's own choice."""
    min_insync_replicas: int
    reads_records: bool = False
    """Whether compressed batches are decompressed and their records checked, not their frames alone."""
    checked_fields: tuple[str, ...] = ()
    """The parts of a record, key and value, that must begin with the id of a registered schema."""
    throttled_leaders: frozenset[str] = frozenset()
    """The replicas (`partition:broker`, or `*`) that send slowly to those who are not in sync."""
    throttled_followers: frozenset[str] = frozenset()
    """The replicas that catch up slowly."""
    storage_quota: int = -1
    """Bytes that the logs of all partitions may have together; -1 is any number."""


def log_settings(topic: Topic, config: BrokerConfig) -> LogSettings:
    """The settings of each log of a topic."""
    key = ("log", *_identity(topic))
    return config.remember(key, lambda: _log_settings(effective_topic(topic.configs, config), config))


def intake_settings(topic: Topic, config: BrokerConfig) -> IntakeSettings:
    """What a batch must satisfy to enter a log of the topic."""
    own = is_own(topic.name)
    key = ("intake", topic.least_isr, own, *_identity(topic))
    return config.remember(key, lambda: _intake_settings(effective_topic(topic.configs, config), topic.least_isr, own))


def is_own(topic: str) -> bool:
    """Whether Headrace itself goes by what is in a topic, which must therefore be readable."""
    return topic.startswith(_OWN_TOPICS)


def _identity(topic: Topic) -> tuple[Hashable, ...]:
    return tuple(sorted(topic.configs.items())) if topic.configs else ()


def _log_settings(values: Mapping[str, Any], config: BrokerConfig) -> LogSettings:
    return LogSettings(
        segment_bytes=values["segment.bytes"],
        segment_ms=_longest_segment_ms(values),
        segment_index_bytes=values["segment.index.bytes"],
        index_interval_bytes=values["index.interval.bytes"],
        retention_ms=values["retention.ms"],
        retention_bytes=values["retention.bytes"],
        cleanup_policy=frozenset(values["cleanup.policy"]),
        flush_messages=values["flush.messages"],
        flush_ms=values["flush.ms"],
        max_message_bytes=values["max.message.bytes"],
        file_delete_delay_ms=values["file.delete.delay.ms"],
        producer_id_expiration_ms=config["producer.id.expiration.ms"],
        idempotency_key_expiration_ms=config["headrace.idempotency.key.expiration.ms"],
        min_compaction_lag_ms=values["min.compaction.lag.ms"],
        max_compaction_lag_ms=values["max.compaction.lag.ms"],
        delete_retention_ms=values["delete.retention.ms"],
        min_cleanable_dirty_ratio=values["min.cleanable.dirty.ratio"],
    )


def _longest_segment_ms(values: Mapping[str, Any]) -> int:
    """Only what is not in the active segment can be compacted, so `max.compaction.lag.ms` ends segments as well."""
    segment_ms = int(values["segment.ms"])
    return (
        min(segment_ms, int(values["max.compaction.lag.ms"])) if "compact" in values["cleanup.policy"] else segment_ms
    )


def _intake_settings(values: Mapping[str, Any], least_isr: int | None, own: bool) -> IntakeSettings:
    codec, level = _codec(values)
    checked_fields = _checked_fields(values)
    return IntakeSettings(
        max_message_bytes=values["max.message.bytes"],
        append_time=values["message.timestamp.type"] == "LogAppendTime",
        timestamp_before_max_ms=values["message.timestamp.before.max.ms"],
        timestamp_after_max_ms=values["message.timestamp.after.max.ms"],
        requires_keys="compact" in values["cleanup.policy"],
        codec=codec,
        codec_level=level,
        min_insync_replicas=values["min.insync.replicas"] if least_isr is None else least_isr,
        reads_records=own or bool(checked_fields) or values["headrace.record.validation"] == _FULL,
        checked_fields=checked_fields,
        throttled_leaders=frozenset(values["leader.replication.throttled.replicas"]),
        throttled_followers=frozenset(values["follower.replication.throttled.replicas"]),
        storage_quota=values["headrace.storage.quota.bytes"],
    )


def _checked_fields(values: Mapping[str, Any]) -> tuple[str, ...]:
    settings = (("key", "headrace.schema.validation.key"), ("value", "headrace.schema.validation"))
    return tuple(part for part, name in settings if values[name])


def _codec(values: Mapping[str, Any]) -> tuple[int | None, int | None]:
    name = values["compression.type"]
    if name == _PRODUCER:
        return None, None
    if name == _UNCOMPRESSED:
        return CODECS["none"], None
    level = values.get(f"compression.{name}.level", _CODEC_CHOOSES)
    return CODECS[name], None if level == _CODEC_CHOOSES and name != "zstd" else level
