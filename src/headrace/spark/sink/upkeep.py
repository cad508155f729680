"""What a driver does between its batches, in a thread of its process: see `SinkDriver.look_after`.

Spark lets a process that commits live on for a minute after its last batch, and ends it then: a later batch finds
another one, which takes the journal over. So a thread lives as long as anybody could need it.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from headrace.client.errors import ClientError

from .commit import CommitError

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 5.0
"""How often a query is looked after in the minute after a batch: as long may an attempt that lost hold readers."""
LATER_SECONDS: Final = 60.0
"""How often, and from when on, it is looked after when no batch comes."""
FORGET_SECONDS: Final = 86_400.0
"""How long a query is looked after without a batch: it may have been stopped."""
JOB_SECONDS: Final = 60.0
"""The same of a job, which has one batch: its tasks are dead by then."""


class LookedAfter(Protocol):
    """A driver, as the thread sees it."""

    def look_after(self) -> None: ...


@dataclass(slots=True)
class _Turn:
    since: float
    """The last batch."""
    last: float
    """The last time that it was looked after."""
    seconds: float
    """How long it is looked after when no batch comes."""


class Upkeep:
    """The drivers of a process that are looked after."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._turns: dict[LookedAfter, _Turn] = {}
        self._thread: threading.Thread | None = None

    def begin(self, driver: LookedAfter, seconds: float = FORGET_SECONDS) -> None:
        """Look after a driver, which has just ended a batch, for so long."""
        now = self._clock()
        with self._lock:
            self._turns[driver] = _Turn(since=now, last=now, seconds=seconds)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="headrace-sink", daemon=True)
                self._thread.start()

    def tick(self) -> bool:
        """Look after those whose turn it is; whether there are any left."""
        with self._lock:
            due = [driver for driver, turn in self._turns.items() if self._is_due(turn)]
        for driver in due:
            self._look_after(driver)
        with self._lock:
            if not self._turns:
                self._thread = None
            return bool(self._turns)

    def _is_due(self, turn: _Turn) -> bool:
        now = self._clock()
        is_late = now - turn.since > LATER_SECONDS
        return not is_late or now - turn.last >= LATER_SECONDS

    def _look_after(self, driver: LookedAfter) -> None:
        is_over = False
        try:
            driver.look_after()
        except CommitError:
            is_over = True  # another driver has the query
        except ClientError as error:
            log.warning("transactions of tasks that lost could not be ended, readers may wait for them: %s", error)
        with self._lock:
            turn = self._turns.get(driver)
            if turn is None:
                return
            turn.last = self._clock()
            if is_over or turn.last - turn.since > turn.seconds:
                del self._turns[driver]

    def _run(self) -> None:
        while True:
            time.sleep(TICK_SECONDS)
            if not self.tick():
                return
