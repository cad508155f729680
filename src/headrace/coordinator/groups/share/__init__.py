"""Share groups (KIP-932): members that share the records of partitions, each record with one of them at a time."""

from .group import SHARE, ShareGroup
from .offsets import ShareOffsets
from .requests import ShareHeartbeat, check_request

__all__ = ["SHARE", "ShareGroup", "ShareHeartbeat", "ShareOffsets", "check_request"]
