"""The settings of groups: of the classic protocol, of the consumer protocol, and of the topic that keeps both."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from headrace.config import BrokerConfig, Values, group_value

_MS_PER_MINUTE: Final = 60_000
NEW_MEMBER_TIMEOUT_MS: Final = 300_000
"""How long a first JoinGroup may wait. Its member has no id to heartbeat with, and cannot be seen to be gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicSettings:
    """See `group.*` in docs/configuration.md."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1


class MigrationPolicy(Enum):
    """Which way a group may change between the classic and the consumer protocol while members are in it."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def allows_upgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def allows_downgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """The values one group goes by."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    """The assignors that members may ask for; the first is for groups in which none does."""
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    classic_max_size: int = 2**31 - 1

    @classmethod
    def of(cls, broker: Values, group: Mapping[str, str]) -> "ConsumerSettings":
        """The broker's settings with those of the group before them, held within the broker's bounds."""
        assignors = tuple(broker["group.consumer.assignors"])
        preferred = group.get("consumer.assignor")
        if preferred in assignors:
            assignors = (preferred, *(name for name in assignors if name != preferred))
        return cls(
            session_timeout_ms=group_value("consumer.session.timeout.ms", group, broker),
            heartbeat_interval_ms=group_value("consumer.heartbeat.interval.ms", group, broker),
            max_size=broker["group.consumer.max.size"],
            assignors=assignors,
            migration_policy=MigrationPolicy(broker["group.consumer.migration.policy"].lower()),
            classic_max_size=broker["group.max.size"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSettings:
    """The values that the members of one share group go by."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = 200

    @classmethod
    def of(cls, broker: Values, group: Mapping[str, str]) -> "ShareSettings":
        """The broker's settings with those of the group before them, held within the broker's bounds."""
        return cls(
            session_timeout_ms=group_value("share.session.timeout.ms", group, broker),
            heartbeat_interval_ms=group_value("share.heartbeat.interval.ms", group, broker),
            max_size=broker["group.share.max.size"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """See `group.*`, `offsets.*` and `offset.*` in docs/configuration.md."""

    classic: ClassicSettings
    consumer: ConsumerSettings
    """Of groups that were given no settings of their own."""
    consumer_with: Callable[[Mapping[str, str]], ConsumerSettings]
    """Of groups that were given settings of their own."""
    share: ShareSettings
    share_with: Callable[[Mapping[str, str]], ShareSettings]
    topic_partitions: int
    topic_replication_factor: int
    topic_segment_bytes: int
    retention_ms: int
    max_metadata: int

    def consumer_of(self, given: Mapping[str, str] | None) -> ConsumerSettings:
        """The settings of a group of the consumer protocol, by those it was given itself."""
        return self.consumer_with(given) if given else self.consumer

    def share_of(self, given: Mapping[str, str] | None) -> ShareSettings:
        """The settings of a share group, by those it was given itself."""
        return self.share_with(given) if given else self.share

    @classmethod
    def of(cls, config: BrokerConfig) -> "GroupSettings":
        return cls(
            classic=ClassicSettings(
                min_session_timeout_ms=config["group.min.session.timeout.ms"],
                max_session_timeout_ms=config["group.max.session.timeout.ms"],
                initial_rebalance_delay_ms=config["group.initial.rebalance.delay.ms"],
                max_size=config["group.max.size"],
            ),
            consumer=ConsumerSettings.of(config, {}),
            consumer_with=lambda given: ConsumerSettings.of(config, given),
            share=ShareSettings.of(config, {}),
            share_with=lambda given: ShareSettings.of(config, given),
            topic_partitions=config["offsets.topic.num.partitions"],
            topic_replication_factor=1 if config.lone else config["offsets.topic.replication.factor"],
            topic_segment_bytes=config["offsets.topic.segment.bytes"],
            retention_ms=config["offsets.retention.minutes"] * _MS_PER_MINUTE,
            max_metadata=config["offset.metadata.max.bytes"],
        )
