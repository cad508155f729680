"""The rules that a broker has for its classic groups."""

from dataclasses import dataclass
from typing import Final

NEW_MEMBER_TIMEOUT_MS: Final = 300_000
"""How long a first JoinGroup may wait. Its member has no id to heartbeat with, and cannot be seen to be gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicSettings:
    """See `group.*` in docs/configuration.md."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1
