"""Which records of a share-partition are delivered next, where a group asks for more than the order of the log.

- **Order of keys**: no record is delivered while an earlier one with its key is not done with, whether that is out,
  waits, or was never delivered. Records without a key are in nobody's way.
- **Priorities**: of what can be delivered, records with the highest priority come first (a header, `headrace.priority`,
  of 0 to 9), those of the same in the order of the log.
- **Interval of keys**: between two deliveries of records with the same key there is some time. Only the broker that
  leads remembers that: the next one begins anew.

For that a leader reads ahead what it delivers, up to `MOST_AHEAD` records from the start offset on: so much memory and
time it takes, a record is overtaken by no more than that, and one that lies further ahead is not seen yet. What has
become of records is asked of the `ShareWindow` each time; here is only which keys and priorities they have. Of keys
their hashes are kept: two that share one are taken for the same.
"""

from collections.abc import Iterable, Iterator
from math import inf
from typing import Final, NamedTuple

from headrace.protocol.records import Record

from .share_window import RunState, ShareWindow

MOST_AHEAD: Final = 2_000
"""Records from the start offset on that are chosen from; those of one batch more, where it goes beyond."""
PRIORITY: Final = "headrace.priority"
LOWEST: Final = 0
DEFAULT: Final = 4
HIGHEST: Final = 9
_MOST_KEYS: Final = 10_000
"""Keys whose last delivery is remembered, besides those that are to wait."""
_DONE: Final = (RunState.COMPLETE, RunState.ARCHIVING)


class Choice(NamedTuple):
    """What a group asks for."""

    orders_keys: bool = False
    has_priorities: bool = False
    key_interval: float = 0.0
    """Seconds between two deliveries of the same key."""

    @property
    def is_any(self) -> bool:
        """Whether that is more than the order of the log."""
        return self.orders_keys or self.has_priorities or self.key_interval > 0


class _Known(NamedTuple):
    """What is known of a record."""

    key: int | None
    priority: int


class RecordChooser:
    """What is known of the records of one share-partition from its start offset on."""

    def __init__(self, choice: Choice, start: int, free_at: dict[int, float]) -> None:
        """`free_at` says of keys when the next record may be delivered; it is kept up here."""
        self.choice = choice
        self.read_until = start
        """The first offset that is not read."""
        self.retry_at = inf
        """When a record can be delivered whose key has to wait, of those that the last choice has passed over."""
        self._start = start
        self._known: dict[int, _Known] = {}
        self._free_at = free_at

    def follow(self, start: int) -> None:
        """Forget what lies before the start offset."""
        if start > self._start:
            if len(self._known) > 2 * (start - self._start):
                for offset in range(self._start, start):
                    self._known.pop(offset, None)
            else:
                self._known = {offset: known for offset, known in self._known.items() if offset >= start}
            self._start = start
            self.read_until = max(self.read_until, start)

    def wants_more(self) -> bool:
        """Whether there may be more records to choose from."""
        return self.read_until - self._start < MOST_AHEAD

    def add(self, records: Iterable[Record]) -> None:
        """Records that were read: these and `read_until` go forward together."""
        reads_priority = self.choice.has_priorities
        for record in records:
            key = None if record.key is None else hash(record.key)
            self._known[record.offset] = _Known(key, priority_of(record) if reads_priority else DEFAULT)

    def choose(self, window: ShareWindow, now: float, most: int) -> list[int]:
        """The offsets to deliver now, at most so many, the first one first."""
        interval = self.choice.key_interval
        self.retry_at = inf
        if most <= 0:
            return []
        found: list[tuple[int, int]] = []
        chosen: list[int] = []
        taken: set[int] = set()
        for offset, known in self._deliverable(window, now):
            if self.choice.has_priorities:
                found.append((-known.priority, offset))
            elif self._take(known.key, now, taken):
                chosen.append(offset)
                if len(chosen) == most:
                    return chosen
        for _, offset in sorted(found):
            if self._take(self._known[offset].key, now, taken):
                chosen.append(offset)
                if len(chosen) == most:
                    break
        if interval and taken and len(chosen) < most:
            self.retry_at = min(self.retry_at, now + interval)
        return chosen

    def delivered(self, offset: int, now: float) -> None:
        """A record was delivered: its key has to wait."""
        known = self._known.get(offset)
        if self.choice.key_interval and known is not None and known.key is not None:
            if len(self._free_at) > _MOST_KEYS:
                drop_past(self._free_at, now)
            self._free_at[known.key] = now + self.choice.key_interval

    def _take(self, key: int | None, now: float, taken: set[int]) -> bool:
        """Whether a record of the key can be delivered besides those whose keys are taken."""
        if key is None or not self.choice.key_interval:
            return True
        if key in taken:
            return False
        at = self._free_at.get(key, 0.0)
        if at > now:
            self.retry_at = min(self.retry_at, at)
            return False
        taken.add(key)
        return True

    def _deliverable(self, window: ShareWindow, now: float) -> Iterator[tuple[int, _Known]]:
        """What is available, and not behind another record of its key."""
        orders = self.choice.orders_keys
        out: set[int] = set()
        for offset, is_available in self._undone(window, now):
            known = self._known.get(offset)
            if known is None:
                continue
            if orders and known.key is not None:
                if known.key in out:
                    continue
                out.add(known.key)
            if is_available:
                yield offset, known

    def _undone(self, window: ShareWindow, now: float) -> Iterator[tuple[int, bool]]:
        """The offsets that are not done with, as far as they are read, and whether they are available."""
        end = self.read_until
        for run in window.runs:
            if run.first >= end:
                return
            if run.state not in _DONE:
                is_available = run.state is RunState.AVAILABLE and run.target is None and run.until <= now
                for offset in range(run.first, min(run.last + 1, end)):
                    yield offset, is_available
        for offset in range(window.end, end):
            yield offset, True


def drop_past(free_at: dict[int, float], now: float) -> None:
    """Forget keys that need not wait."""
    for key in [key for key, at in free_at.items() if at <= now]:
        del free_at[key]


def priority_of(record: Record) -> int:
    """The priority that a record's header says; `DEFAULT` where it says none, or what is none."""
    for name, data in reversed(record.headers):
        if name == PRIORITY:
            text = data or b""
            return text[0] - 48 if len(text) == 1 and text.isdigit() else DEFAULT
    return DEFAULT
