"""Groups of the new protocol (KIP-848): pure state machines, and their records."""

from headrace.coordinator.groups.settings import ConsumerSettings, MigrationPolicy

from .group import ConsumerGroup
from .records import KEY_TYPES as CONSUMER_KEYS
from .requests import HeartbeatRequest, check_request

__all__ = ["CONSUMER_KEYS", "ConsumerGroup", "ConsumerSettings", "HeartbeatRequest", "MigrationPolicy", "check_request"]
