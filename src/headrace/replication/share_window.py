"""The offsets of a share-partition that are under way, as its leader has them: a state machine without I/O.

The window reaches from the start offset (the first record that is not done with) to the end (the first that was never
delivered). It is a list of runs: offsets next to each other that share their state. There is no entry per record.

                acquire                accept, reject, gap; release at the limit of deliveries
    AVAILABLE ----------> ACQUIRED ----------------------------------------------------------> COMPLETE
        ^                    |
        +--------------------+
          release, the lock expires, the member's session ends

Where the group has dead letters, what is rejected or was delivered too often is ARCHIVING first: nobody's, until its
letter is written (`archived`), which may take any time and survives the leader. What never was a record, or was
aborted, has no letter.

All but `acquire` and `renew` is kept by the share coordinator, and nothing changes before it is: what becomes of a run
is *decided* first (its `target`), then written with everything else that has been decided meanwhile (`begin_change`;
one change is under way at a time), and takes effect with `commit`. After `roll_back` runs are what they were: records
that were acquired still are, until their lock expires. A run that is decided is nobody's: it is neither acquired nor
acknowledged again.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from itertools import islice
from math import inf
from typing import Final, NamedTuple

from headrace.protocol.errors import CodedError, ErrorCode

from .share_state import DeliveryState, StateBatch

_DONE: Final = (DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED)


class AcknowledgeType(IntEnum):
    """What a member says of records that it has acquired."""

    GAP = 0
    """There is no such record: compaction has removed it."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4
    """It is still at work: the lock begins anew."""


_TARGETS: Final = {
    AcknowledgeType.GAP: DeliveryState.ARCHIVED,
    AcknowledgeType.ACCEPT: DeliveryState.ACKNOWLEDGED,
}
"""What becomes of those with which it ends."""


class Acknowledgement(NamedTuple):
    """What a member says of a run of offsets, both ends in it."""

    first_offset: int
    last_offset: int
    type: AcknowledgeType


class AcquiredRange(NamedTuple):
    """A run of offsets that a member has acquired, both ends in it."""

    first_offset: int
    last_offset: int
    delivery_count: int


class WindowChange(NamedTuple):
    """What is to be written of a window."""

    start_offset: int
    complete_count: int
    """Offsets from there on that are done with."""
    batches: Sequence[StateBatch]


class Portion(NamedTuple):
    """What can be delivered together, of offsets that were asked for."""

    last_offset: int
    most: int | None
    """So many offsets, and nothing else with them; None for any number."""


class Wait(NamedTuple):
    """Offsets that are not delivered again before a time, having been delivered so often."""

    first_offset: int
    last_offset: int
    delivery_count: int
    until: float


AvailableAt = Callable[[int], float]
"""From when on records are delivered again that were delivered so often."""


def at_once(delivery_count: int) -> float:  # noqa: ARG001
    """They need not wait."""
    return 0.0


def most_together(delivery_count: int, size: int, delivery_limit: int) -> int | None:
    """How many records are delivered together that were delivered so often; None for any number.

    One that makes its members fail takes the others along each time. From half of the limit on they come in ever
    smaller parts, and for the last time each alone: so it is given up without them. `size` is that of all there are.
    """
    few_from = max(2, (delivery_limit + 1) // 2)
    if not few_from <= delivery_count < delivery_limit:
        return None
    return 1 if delivery_count == delivery_limit - 1 else max(1, size >> (delivery_count - few_from + 1))


class RunState(IntEnum):
    AVAILABLE = 0
    ACQUIRED = 1
    COMPLETE = 2
    ARCHIVING = 3
    """Given up, and its dead letter is not written yet."""


class Run:
    """Offsets next to each other that are in the same state."""

    __slots__ = ("available_at", "delivery_count", "first", "is_rejected", "last", "member", "state", "target", "until")

    def __init__(
        self, first: int, last: int, state: RunState, delivery_count: int = 0, member: str = "", until: float = 0.0
    ) -> None:
        self.first = first
        self.last = last
        self.state = state
        self.delivery_count = delivery_count
        self.member = member
        """Who has acquired it."""
        self.until = until
        """When its lock expires; of what is available, when it was to wait until then."""
        self.is_rejected = False
        """Of what is being archived: whether a member has rejected it."""
        self.target: DeliveryState | None = None
        """What it is to become, once that is written."""
        self.available_at = 0.0
        """From when on it is delivered again, where its member has said that."""

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    @property
    def is_locked(self) -> bool:
        """Whether its lock can expire."""
        return self.state is RunState.ACQUIRED and self.target is None

    def is_like(self, other: "Run") -> bool:
        """Whether both can be one run, where they are next to each other."""
        if self.state is not other.state or self.target is not None or other.target is not None:
            return False
        if self.state is RunState.COMPLETE:
            return True
        if self.is_rejected is not other.is_rejected:
            return False
        return (self.delivery_count, self.member, self.until) == (other.delivery_count, other.member, other.until)

    def __repr__(self) -> str:
        target = "" if self.target is None else f" -> {self.target.name}"
        return f"<{self.first}-{self.last} {self.state.name} {self.delivery_count} {self.member}{target}>"


class ShareWindow:
    """What has become of the records of a share-partition from its start offset on."""

    __slots__ = (
        "_committing",
        "_complete",
        "_decided",
        "_firsts",
        "_is_committing",
        "_runs",
        "_written_start",
        "archiving",
        "has_letters",
        "locks",
        "start",
        "unavailable_below",
    )

    def __init__(
        self,
        start: int,
        batches: Iterable[StateBatch] = (),
        *,
        is_start_written: bool = True,
        available_at: AvailableAt = at_once,
        has_letters: bool = False,
    ) -> None:
        self.start = start
        """The first offset that is not done with."""
        self.has_letters = has_letters
        """Whether records that are given up from now on get dead letters."""
        self.locks = 0
        """How many offsets are acquired."""
        self.archiving = 0
        """How many wait for their dead letters."""
        self.unavailable_below = start
        """No offset below is available."""
        self._runs: list[Run] = []
        self._firsts: list[int] = []
        """Of each run, to be searched."""
        self._complete = 0
        """Offsets that are complete."""
        self._decided: list[Run] = []
        """Runs with a target that no change has yet."""
        self._committing: list[Run] = []
        """Those of the change that is under way."""
        self._is_committing = False
        self._written_start = start if is_start_written else -1
        for first, last, state, delivery_count in batches:
            if last >= start:
                self._load(max(first, start), last, state, delivery_count, available_at(delivery_count))
        self._trim()

    def _load(self, first: int, last: int, state: int, delivery_count: int, until: float) -> None:
        self._extend(first)
        if state == DeliveryState.AVAILABLE:
            self._append(Run(first, last, RunState.AVAILABLE, delivery_count, until=until))
        elif state == DeliveryState.ARCHIVING:
            self._append(Run(first, last, RunState.ARCHIVING, delivery_count))
            self.archiving += last - first + 1
        else:
            self._append(Run(first, last, RunState.COMPLETE))
            self._complete += last - first + 1

    @property
    def end(self) -> int:
        """The first offset that was never delivered."""
        return self._runs[-1].last + 1 if self._runs else self.start

    @property
    def runs(self) -> Sequence[Run]:
        """In the order of their offsets, without gaps from `start` to `end`."""
        return self._runs

    @property
    def is_idle(self) -> bool:
        """Whether nobody has acquired anything, and nothing is to be written."""
        return not self.locks and not self.archiving and not self._decided and not self._is_committing

    def next_available(self, now: float) -> int:
        """The first offset that can be acquired: `end`, where none is left in the window, or all are to wait."""
        offset, waiting = self.unavailable_below, -1
        for index in range(self._index(offset), len(self._runs) if offset < self.end else 0):
            run = self._runs[index]
            if run.state is RunState.AVAILABLE and run.target is None:
                first = max(run.first, offset)
                if run.until <= now:
                    self.unavailable_below = first if waiting < 0 else waiting
                    return first
                waiting = first if waiting < 0 else waiting
        self.unavailable_below = self.end if waiting < 0 else waiting
        return self.end

    # What members do

    def portion(self, first: int, last: int, size: int, *, now: float, delivery_limit: int) -> Portion:
        """What of the offsets from `first` to `last` can be delivered together: those before the first ones that were
        delivered so often that there are to be few (see `most_together`), or some of these. `size` is that of the
        batch."""
        is_any = False
        for index in range(self._index(first), len(self._runs) if first < self.end else 0):
            run = self._runs[index]
            if run.first > last:
                break
            if run.state is RunState.AVAILABLE and run.target is None and run.until <= now:
                most = most_together(run.delivery_count, max(run.size, size), delivery_limit)
                if most is not None:
                    return Portion(run.first - 1, None) if is_any else Portion(min(run.last, last), most)
                is_any = True
        return Portion(last, None)

    def delivery_count(self, offset: int) -> int:
        """How often an offset was delivered."""
        return self._runs[self._index(offset)].delivery_count if self.start <= offset < self.end else 0

    def acquire(
        self, first: int, last: int, most: int, member: str, *, now: float, until: float, delivery_limit: int
    ) -> list[AcquiredRange]:
        """Give a member what is available from `first` to `last`, at most so many offsets, locked `until` then."""
        acquired: list[AcquiredRange] = []
        self._extend(first)
        index = self._index(first) if first < self.end else len(self._runs)
        while most > 0 and index < len(self._runs) and self._runs[index].first <= last:
            run = self._runs[index]
            if run.state is RunState.AVAILABLE and run.target is None and run.until <= now:
                begin = max(run.first, first)
                if run.delivery_count >= delivery_limit:
                    index = self._cut(index, begin, min(run.last, last))
                    self._give_up(self._runs[index])
                else:
                    index = self._cut(index, begin, min(run.last, last, begin + most - 1))
                    run = self._runs[index]
                    most -= run.size
                    _add(acquired, run.first, run.last, run.delivery_count + 1)
                    index = self._lock(index, member, until)
            index += 1
        end = self.end
        if most > 0 and end <= last:
            last = min(last, end + most - 1)
            self._append(Run(end, last, RunState.ACQUIRED, 1, member, until))
            self.locks += last - end + 1
            _add(acquired, end, last, 1)
        return acquired

    def archive(self, first: int, last: int) -> None:
        """Nobody is to get these offsets who has not got them yet: there are no records, or aborted ones."""
        if last >= self.end:
            self._extend(last + 1)
        index = self._index(first)
        while index < len(self._runs) and self._runs[index].first <= last:
            run = self._runs[index]
            if run.state is RunState.AVAILABLE and run.target is None:
                index = self._cut(index, max(run.first, first), min(run.last, last))
                self._decide(self._runs[index], DeliveryState.ARCHIVED)
            index += 1

    def acknowledge(
        self,
        member: str,
        acknowledgements: Sequence[Acknowledgement],
        *,
        until: float,
        delivery_limit: int,
        available_at: float = 0.0,
    ) -> bool:
        """What a member says of what it has acquired, all of it or nothing; whether there is something to be written.

        INVALID_RECORD_STATE where it has not acquired all of it, or not any more; INVALID_REQUEST for what nobody has.
        What lies before the start offset is passed over: it was deleted. Locks that are renewed end at `until`; what is
        released is delivered again from `available_at` on, if that is given.
        """
        for each in acknowledgements:
            self._check_acquired(member, each)
        decided = len(self._decided)
        for first, last, kind in acknowledgements:
            self._acknowledge(max(first, self.start), last, kind, until, delivery_limit, available_at)
        return len(self._decided) > decided

    def _check_acquired(self, member: str, ack: Acknowledgement) -> None:
        first = max(ack.first_offset, self.start)
        if first > ack.last_offset:
            return
        if ack.last_offset >= self.end:
            raise CodedError(ErrorCode.invalid_request, f"offset {ack.last_offset} was never delivered")
        index = self._index(first)
        while index < len(self._runs) and self._runs[index].first <= ack.last_offset:
            run = self._runs[index]
            if run.state is not RunState.ACQUIRED or run.target is not None:
                raise _not_acquired(max(run.first, first), "its lock has expired, or it was acknowledged before")
            if run.member != member:
                raise _not_acquired(max(run.first, first), "another member has acquired it")
            index += 1

    def _acknowledge(
        self, first: int, last: int, kind: AcknowledgeType, until: float, delivery_limit: int, available_at: float
    ) -> None:
        index = self._index(first) if first <= last else len(self._runs)
        while index < len(self._runs) and self._runs[index].first <= last:
            run = self._runs[index]
            index = self._cut(index, max(run.first, first), min(run.last, last))
            run = self._runs[index]
            if kind is AcknowledgeType.RENEW:
                run.until = until
            elif kind is AcknowledgeType.RELEASE:
                self._release(run, delivery_limit)
                run.available_at = available_at
            elif kind is AcknowledgeType.REJECT:
                self._give_up(run, is_rejected=True)
            else:
                self._decide(run, _TARGETS[kind])
            index += 1

    def release_member(self, member: str, *, delivery_limit: int) -> None:
        """A member's session has ended: what it has acquired is available again."""
        for run in self._runs:
            if run.is_locked and run.member == member:
                run.until = 0.0  # where this cannot be written it is tried again with the locks that have expired
                self._release(run, delivery_limit)

    def release_expired(self, now: float, *, delivery_limit: int) -> int:
        """What has been acquired for too long is available again; of how many offsets."""
        released = 0
        for run in self._runs:
            if run.is_locked and run.until <= now:
                self._release(run, delivery_limit)
                released += run.size
        return released

    def waits(self, now: float) -> list[Wait]:
        """What is not delivered again for now."""
        return [
            Wait(run.first, run.last, run.delivery_count, run.until)
            for run in self._runs
            if run.state is RunState.AVAILABLE and run.target is None and run.until > now
        ]

    def wait(self, waits: Iterable[Wait]) -> None:
        """Have offsets wait as they did before, that nobody has been given since."""
        for first, last, delivery_count, until in waits:
            index = self._index(first)
            while index < len(self._runs) and self._runs[index].first <= last:
                run = self._runs[index]
                is_same = run.state is RunState.AVAILABLE and run.delivery_count == delivery_count
                if is_same and run.target is None and run.last >= first:
                    index = self._cut(index, max(run.first, first), min(run.last, last))
                    self._runs[index].until = until
                index += 1

    def next_alarm(self, now: float) -> float:
        """When the next lock expires, of records that nothing is decided about, or the next wait is over."""
        return min((run.until for run in self._runs if run.is_locked or run.until > now), default=inf)

    def _release(self, run: Run, delivery_limit: int) -> None:
        if run.delivery_count >= delivery_limit:
            self._give_up(run)
        else:
            self._decide(run, DeliveryState.AVAILABLE)

    def _give_up(self, run: Run, *, is_rejected: bool = False) -> None:
        run.is_rejected = is_rejected
        self._decide(run, DeliveryState.ARCHIVING if self.has_letters else DeliveryState.ARCHIVED)

    # Dead letters

    def archiving_runs(self, most: int) -> list[Run]:
        """The first runs that wait for their dead letters, and are not being archived."""
        if not self.archiving:
            return []
        waiting = (run for run in self._runs if run.state is RunState.ARCHIVING and run.target is None)
        return list(islice(waiting, most))

    def archived(self, first: int, last: int) -> None:
        """The dead letters of these offsets are written, or they need none."""
        index = self._index(first)
        while index < len(self._runs) and self._runs[index].first <= last:
            run = self._runs[index]
            if run.state is RunState.ARCHIVING and run.target is None and run.last >= first:
                index = self._cut(index, max(run.first, first), min(run.last, last))
                self._decide(self._runs[index], DeliveryState.ARCHIVED)
            index += 1

    # What the log does

    def advance_start(self, offset: int) -> int:
        """Records below an offset are deleted: whoever has them may go on, and is not heard. How many of them were
        still to get a dead letter."""
        if offset <= self.start:
            return 0
        gone = lost = 0
        for run in self._runs:
            if run.last >= offset:
                break
            lost += _letters_lost(run, run.size)
            self._uncount(run, run.size)
            run.target = None
            gone += 1
        del self._runs[:gone], self._firsts[:gone]
        if self._runs and self._runs[0].first < offset:
            run = self._runs[0]
            lost += _letters_lost(run, offset - run.first)
            self._uncount(run, offset - run.first)
            run.first = self._firsts[0] = offset
        self.start = offset
        self._trim()
        return lost

    def _uncount(self, run: Run, count: int) -> None:
        if run.state is RunState.ACQUIRED:
            self.locks -= count
        elif run.state is RunState.COMPLETE:
            self._complete -= count
        elif run.state is RunState.ARCHIVING:
            self.archiving -= count

    # What is written

    def begin_change(self) -> WindowChange | None:
        """All that was decided and is not written; None for nothing. To be ended by `commit` or `roll_back`."""
        assert not self._is_committing, "one change at a time"
        decided = [run for run in self._decided if run.target is not None]
        self._decided.clear()
        start = self._start_after()
        if not decided and start == self._written_start:
            return None
        self._committing, self._is_committing = decided, True
        self._written_start = start
        complete = self._complete + sum(run.size for run in decided if run.target in _DONE)
        return WindowChange(start, complete - (start - self.start), _batches(decided, start))

    def _start_after(self) -> int:
        """The start offset once all that is decided is written."""
        for run in self._runs:
            if run.state is not RunState.COMPLETE and run.target not in _DONE:
                return run.first
        return self.end

    def commit(self, available_at: AvailableAt = at_once) -> None:
        """The change is written, and takes effect; what is available again may have to wait."""
        committing, self._committing, self._is_committing = self._committing, [], False
        for run in committing:
            target, run.target = run.target, None
            if target is None:
                continue  # deleted meanwhile
            self._uncount(run, run.size)
            run.member, run.until = "", 0.0
            if target is DeliveryState.AVAILABLE:
                run.state, run.until = RunState.AVAILABLE, run.available_at or available_at(run.delivery_count)
                self.unavailable_below = min(self.unavailable_below, run.first)
            elif target is DeliveryState.ARCHIVING:
                run.state = RunState.ARCHIVING
                self.archiving += run.size
            else:
                run.state = RunState.COMPLETE
                self._complete += run.size
            run.available_at = 0.0
            self._join(self._index(run.first))
        self._trim()

    def roll_back(self) -> None:
        """The change could not be written, or it is not known whether it was: nothing has changed."""
        committing, self._committing, self._is_committing = self._committing, [], False
        self._written_start = -1
        for run in committing:
            if run.target is not None:
                run.target, run.available_at = None, 0.0
                run.is_rejected = run.is_rejected and run.state is RunState.ARCHIVING
                if run.state is RunState.AVAILABLE:
                    self.unavailable_below = min(self.unavailable_below, run.first)

    # Runs

    def _index(self, offset: int) -> int:
        """Which run has an offset of the window; 0 for one before it."""
        return max(bisect_right(self._firsts, offset) - 1, 0)

    def _append(self, run: Run) -> None:
        self._runs.append(run)
        self._firsts.append(run.first)
        self._join(len(self._runs) - 1)

    def _extend(self, offset: int) -> None:
        """Let the window reach to an offset; what is new in it is available."""
        if offset > self.end:
            self._append(Run(self.end, offset - 1, RunState.AVAILABLE))

    def _cut(self, index: int, first: int, last: int) -> int:
        """Make a part of a run one of its own; which one that is."""
        run = self._runs[index]
        if last < run.last:
            self._insert(index + 1, self._part(run, last + 1, run.last))
            run.last = last
        if first > run.first:
            index += 1
            self._insert(index, self._part(run, first, run.last))
            run.last = first - 1
        return index

    def _part(self, run: Run, first: int, last: int) -> Run:
        assert run.target is None, "what is decided is not cut"
        part = Run(first, last, run.state, run.delivery_count, run.member, run.until)
        part.is_rejected = run.is_rejected
        return part

    def _insert(self, index: int, run: Run) -> None:
        self._runs.insert(index, run)
        self._firsts.insert(index, run.first)

    def _join(self, index: int) -> int:
        """Let a run be one with its neighbours where they are alike; which one that is."""
        runs = self._runs
        if index + 1 < len(runs) and runs[index].is_like(runs[index + 1]):
            runs[index].last = runs[index + 1].last
            del runs[index + 1], self._firsts[index + 1]
        if index and runs[index - 1].is_like(runs[index]):
            runs[index - 1].last = runs[index].last
            del runs[index], self._firsts[index]
            index -= 1
        return index

    def _lock(self, index: int, member: str, until: float) -> int:
        run = self._runs[index]
        run.state, run.member, run.until = RunState.ACQUIRED, member, until
        run.delivery_count += 1
        self.locks += run.size
        return self._join(index)

    def _decide(self, run: Run, target: DeliveryState) -> None:
        run.target = target
        self._decided.append(run)

    def _trim(self) -> None:
        """Let the window begin with what is not done with."""
        runs, gone = self._runs, 0
        for run in runs:
            if run.state is not RunState.COMPLETE:
                break
            self._complete -= run.size
            self.start = run.last + 1
            gone += 1
        del runs[:gone], self._firsts[:gone]
        self.unavailable_below = max(self.unavailable_below, self.start)


def _letters_lost(run: Run, count: int) -> int:
    return count if run.state is RunState.ARCHIVING and run.target is None else 0


def _batches(decided: Iterable[Run], start: int) -> list[StateBatch]:
    """As they are written: alike neighbours are one, and what lies before the start needs none."""
    batches: list[StateBatch] = []
    for run in sorted(decided, key=lambda run: run.first):
        if run.last < start:
            continue
        assert run.target is not None
        last = batches[-1] if batches else None
        if last is not None and last[1:] == (run.first - 1, run.target, run.delivery_count):
            batches[-1] = last._replace(last_offset=run.last)
        else:
            batches.append(StateBatch(run.first, run.last, run.target, run.delivery_count))
    return batches


def _add(acquired: list[AcquiredRange], first: int, last: int, delivery_count: int) -> None:
    before = acquired[-1] if acquired else None
    if before is not None and before.last_offset == first - 1 and before.delivery_count == delivery_count:
        acquired[-1] = before._replace(last_offset=last)
    else:
        acquired.append(AcquiredRange(first, last, delivery_count))


def _not_acquired(offset: int, reason: str) -> CodedError:
    return CodedError(ErrorCode.invalid_record_state, f"offset {offset} cannot be acknowledged: {reason}")
