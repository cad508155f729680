"""What is configured of a consumer group: the broker's settings, and the group's own before them."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol


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


class Values(Protocol):
    """Settings in force, by Kafka's names: a `BrokerConfig`, or a dictionary."""

    def __getitem__(self, name: str, /) -> Any: ...


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
            session_timeout_ms=_bounded(broker, group, "session.timeout.ms"),
            heartbeat_interval_ms=_bounded(broker, group, "heartbeat.interval.ms"),
            max_size=broker["group.consumer.max.size"],
            assignors=assignors,
            migration_policy=MigrationPolicy(broker["group.consumer.migration.policy"].lower()),
            classic_max_size=broker["group.max.size"],
        )


def _bounded(broker: Values, group: Mapping[str, str], name: str) -> int:
    own = group.get(f"consumer.{name}")
    if own is None:
        return int(broker[f"group.consumer.{name}"])
    return int(min(max(int(own), broker[f"group.consumer.min.{name}"]), broker[f"group.consumer.max.{name}"]))
