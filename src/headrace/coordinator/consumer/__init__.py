"""Groups of the new protocol (KIP-848): pure state machines, and their records."""

from .group import ConsumerGroup
from .requests import HeartbeatRequest, check_request
from .settings import GroupSettings, MigrationPolicy

__all__ = ["ConsumerGroup", "GroupSettings", "HeartbeatRequest", "MigrationPolicy", "check_request"]
