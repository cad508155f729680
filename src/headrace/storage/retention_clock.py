"""The time of day by which things expire: segments, committed offsets, producers, transactional ids, tombstones.

A wall clock can be set wrong by days, and would then delete records in seconds that were to be kept for a week. So the
time that has really passed is counted beside it, by a clock that nobody sets (the seconds since the machine started,
which also count while it sleeps). A wall clock that runs ahead of that by more than `headrace.clock.jump.max.ms` is not
believed: things expire as if it had not jumped, until it is back, or the operator allows a jump that large.

What was believed last is remembered in the data directory, with the machine's boot id, so that a restart of the broker
believes no more than its last life did. After a restart of the machine nobody knows how long it was off: its clock is
believed, unless it shows a time before the one that is remembered. Then it is certainly wrong, and the time that passes
is counted from the remembered one.

A clock that is set back is always believed, since nothing expires too soon by it, and so is its way back: what is
remembered is the latest time that was believed, with what has passed since.
"""

import json
from collections.abc import Callable
from typing import Any, Final

import structlog

from headrace.net.clock import Clock

from .disk import Disk, StorageError

CLOCK_CHECKPOINT: Final = "clock-checkpoint"

log = structlog.get_logger(__name__)


class RetentionClock:
    """A `Clock` whose time of day does not jump ahead."""

    def __init__(
        self,
        clock: Clock,
        *,
        uptime: Callable[[], float],
        most_ms: Callable[[], int],
        boot_id: str = "",
        disk: Disk | None = None,
        directory: str = "",
    ) -> None:
        """`uptime` gives the seconds since the machine of this `boot_id` started; `most_ms` the largest jump that is
        believed, or a negative number for any. Without a disk nothing is remembered."""
        self._clock = clock
        self._uptime = uptime
        self._most_ms = most_ms
        self._boot_id = boot_id
        self._disk = disk
        self._path = f"{directory}/{CLOCK_CHECKPOINT}"
        self._anchor = (clock.now_ms(), uptime())
        """The latest time of day that was believed, and the uptime then."""
        self.jump_ms = 0
        """How far the wall clock was ahead of what is believed when it was last looked at; 0 where it is believed."""

    def load(self) -> None:
        """Take up what the last life of the broker believed."""
        known = self._read()
        try:
            wall_ms, uptime, boot_id = int(known["wall_ms"]), float(known["uptime"]), str(known["boot_id"])
        except (KeyError, TypeError, ValueError, OverflowError):
            return
        if not (0 <= wall_ms < 2**63 and uptime >= 0):
            return
        if boot_id and boot_id == self._boot_id and uptime <= self._uptime():
            self._anchor = (wall_ms, uptime)
        elif self._clock.now_ms() < wall_ms:
            self._anchor = (wall_ms, self._uptime())

    def save(self) -> None:
        """Remember what is believed now. Not synced: a machine that stops loses it, and then it says nothing."""
        if self._disk is None:
            return
        self.now_ms()
        uptime = self._uptime()
        content = {"version": 0, "wall_ms": self._latest_ms(uptime), "uptime": uptime, "boot_id": self._boot_id}
        try:
            self._disk.write(self._path, json.dumps(content).encode())
        except StorageError as error:
            log.warning("the time of day cannot be remembered", reason=str(error))

    def now_ms(self) -> int:
        """The wall clock, or what it would show had it not jumped ahead."""
        wall_ms, uptime = self._clock.now_ms(), self._uptime()
        latest_ms = self._latest_ms(uptime)
        ahead_ms, most_ms = wall_ms - latest_ms, self._most_ms()
        if 0 <= most_ms < ahead_ms:
            self.jump_ms = ahead_ms
            return latest_ms
        self.jump_ms = 0
        if ahead_ms > 0 or most_ms < 0:
            self._anchor = (wall_ms, uptime)
        return wall_ms

    def _latest_ms(self, uptime: float) -> int:
        """The latest time that was believed, and what has passed since."""
        return self._anchor[0] + round((uptime - self._anchor[1]) * 1000)

    def monotonic(self) -> float:
        """As the clock below has it."""
        return self._clock.monotonic()

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads(self._disk.read(self._path)) if self._disk is not None else {}
        except StorageError as error:
            if not error.is_missing:
                raise
            return {}
        except (ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}
