"""What a group decides. The state machines return these; the service carries them out.

Order matters: the service appends all `Write`s of one decision to the group's partition of the internal topic, and
hands out its `Reply`s only once they are committed, so that no client learns what a crash could take back.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer a request that waits. `token` is what the service gave with the request."""

    token: object
    values: Mapping[str, Any]
    """In the field names of the response's newest version."""


@dataclass(frozen=True, slots=True)
class Write:
    """Keep a record in the internal topic; a value of None forgets the key."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Alarm:
    """Wake the group under this name at a time (milliseconds of the clock's monotonic time); None takes it back."""

    name: Hashable
    at_ms: int | None


Effect = Reply | Write | Alarm
