"""The consumer group protocol (KIP-848): members say what they want by heartbeats, the broker assigns."""

from headrace.coordinator.groups.settings import ConsumerSettings, MigrationPolicy

from .group import CONSUMER, ConsumerGroup
from .requests import HeartbeatRequest, check_request

__all__ = ["CONSUMER", "ConsumerGroup", "ConsumerSettings", "HeartbeatRequest", "MigrationPolicy", "check_request"]
