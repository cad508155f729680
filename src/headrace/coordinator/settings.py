"""The rules that a broker has for its groups, out of its settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.config import BrokerConfig

from .classic.settings import ClassicSettings
from .consumer.settings import ConsumerSettings

_MS_PER_MINUTE = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """See `group.*`, `offsets.*` and `offset.*` in docs/configuration.md."""

    classic: ClassicSettings
    consumer: Callable[[Mapping[str, str]], ConsumerSettings]
    """The settings of a group of the consumer protocol, out of those it was given itself."""
    topic_partitions: int
    topic_replication_factor: int
    topic_segment_bytes: int
    retention_ms: int
    max_metadata: int

    @classmethod
    def of(cls, config: BrokerConfig) -> "GroupSettings":
        return cls(
            classic=ClassicSettings(
                min_session_timeout_ms=config["group.min.session.timeout.ms"],
                max_session_timeout_ms=config["group.max.session.timeout.ms"],
                initial_rebalance_delay_ms=config["group.initial.rebalance.delay.ms"],
                max_size=config["group.max.size"],
            ),
            consumer=lambda given: ConsumerSettings.of(config, given),
            topic_partitions=config["offsets.topic.num.partitions"],
            topic_replication_factor=1 if config.lone else config["offsets.topic.replication.factor"],
            topic_segment_bytes=config["offsets.topic.segment.bytes"],
            retention_ms=config["offsets.retention.minutes"] * _MS_PER_MINUTE,
            max_metadata=config["offset.metadata.max.bytes"],
        )
