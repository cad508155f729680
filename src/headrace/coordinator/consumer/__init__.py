"""Groups of the new protocol (KIP-848): pure state machines, and their records."""

from .group import ConsumerGroup
from .records import KEY_TYPES as CONSUMER_KEYS
from .requests import HeartbeatRequest, check_request
from .settings import ConsumerSettings, MigrationPolicy

__all__ = ["CONSUMER_KEYS", "ConsumerGroup", "ConsumerSettings", "HeartbeatRequest", "MigrationPolicy", "check_request"]
