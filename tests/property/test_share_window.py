"""The window of a share-partition against one with an entry per offset, through failed writes and new leaders."""

from dataclasses import dataclass, replace
from math import inf

import pytest
from _pytest.outcomes import Failed
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.share_state import DeliveryState, StateBatch
from headrace.replication.share_window import (
    Acknowledgement,
    AcknowledgeType,
    AvailableAt,
    Run,
    RunState,
    ShareWindow,
    WindowChange,
    at_once,
)

MEMBERS = ("a", "b")
LIMIT = 2
OFFSETS = st.integers(0, 15)
SIZES = st.integers(1, 8)
_STATES = {DeliveryState.AVAILABLE: RunState.AVAILABLE, DeliveryState.ARCHIVING: RunState.ARCHIVING}
DONE = (DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED)
Entry = tuple[int, int]
"""Delivery count and state: what is kept of an offset."""


@dataclass(frozen=True)
class Offset:
    state: RunState = RunState.AVAILABLE
    count: int = 0
    member: str = ""
    until: float = 0.0
    target: DeliveryState | None = None
    is_written: bool = False
    """Whether the target is in the change that is under way."""

    @property
    def is_free(self) -> bool:
        return self.state is RunState.AVAILABLE and self.target is None

    def is_due(self, now: float) -> bool:
        return self.is_free and self.until <= now

    def is_held_by(self, member: str) -> bool:
        return self.state is RunState.ACQUIRED and self.target is None and self.member == member


class Kept:
    """What the share coordinator keeps: of each offset the highest delivery count, then the highest state."""

    def __init__(self) -> None:
        self.start = 0
        self.offsets: dict[int, Entry] = {}

    def write(self, change: WindowChange) -> None:
        self.start = max(self.start, change.start_offset)
        for first, last, state, count in change.batches:
            for offset in range(first, last + 1):
                self.offsets[offset] = max(self.offsets.get(offset, (-1, -1)), (count, state))
        self.offsets = {offset: entry for offset, entry in self.offsets.items() if offset >= self.start}

    def batches(self) -> list[StateBatch]:
        return [StateBatch(offset, offset, state, count) for offset, (count, state) in sorted(self.offsets.items())]


class ShareWindowAgainstModel(RuleBasedStateMachine):
    make_window: type[ShareWindow] = ShareWindow

    def __init__(self) -> None:
        super().__init__()
        self.window = self.make_window(0)
        self.start = 0
        self.model: dict[int, Offset] = {}
        self.kept = Kept()
        self.change: WindowChange | None = None
        self.now = 0.0
        self.released: set[int] = set()
        """Offsets that nobody is to get again: acknowledged, rejected, archived, at their limit, deleted."""
        self.accepted: set[int] = set()
        """Offsets whose members were told that their acknowledgement is committed."""
        self.has_letters = False
        self.owed: set[int] = set()
        """Offsets that are given up, as their members were told, and whose dead letters are not written."""

    @property
    def end(self) -> int:
        return max(self.model, default=self.start - 1) + 1

    # What members do

    @rule(member=st.sampled_from(MEMBERS), first=OFFSETS, size=SIZES, most=SIZES, lock=st.integers(1, 5))
    def acquire(self, member: str, first: int, size: int, most: int, lock: int) -> None:
        first = min(max(first, self.start), self.end)
        last, until = first + size - 1, self.now + lock
        expected: list[tuple[int, int]] = []
        for offset in range(first, last + 1):
            known = self.model.setdefault(offset, Offset()) if len(expected) < most else None
            if known is not None and known.is_due(self.now):
                if known.count >= LIMIT:
                    self._give_up(offset)
                else:
                    expected.append((offset, known.count + 1))
                    self.model[offset] = Offset(RunState.ACQUIRED, known.count + 1, member, until)
        acquired = self.window.acquire(first, last, most, member, now=self.now, until=until, delivery_limit=LIMIT)
        assert [(o, count) for a, z, count in acquired for o in range(a, z + 1)] == expected
        assert not self.accepted & {offset for offset, _ in expected}

    @rule(member=st.sampled_from(MEMBERS), size=SIZES)
    def acquire_next(self, member: str, size: int) -> None:
        """As fetches do."""
        free = (offset for offset, known in self.model.items() if known.is_due(self.now))
        self.acquire(member, next(free, self.end), size, size, 1)

    @rule(first=OFFSETS, size=SIZES)
    def archive(self, first: int, size: int) -> None:
        first = max(first, self.start)
        for offset in range(self.end, first + size):
            self.model[offset] = Offset()
        for offset in range(first, first + size):
            if self.model[offset].is_free:
                self._decide(offset, DeliveryState.ARCHIVED)
        self.window.archive(first, first + size - 1)

    @rule(
        member=st.sampled_from(MEMBERS),
        first=OFFSETS,
        kinds=st.lists(st.tuples(st.sampled_from(AcknowledgeType), SIZES), min_size=1, max_size=3),
        is_own=st.booleans(),
    )
    def acknowledge(self, member: str, first: int, kinds: list[tuple[AcknowledgeType, int]], is_own: bool) -> None:
        if is_own:
            first = next((o for o, known in self.model.items() if o >= first and known.is_held_by(member)), first)
        acks = []
        for kind, size in kinds:
            last = first + size - 1
            if is_own:
                held = (o for o in range(first, last + 1) if not self._of(o).is_held_by(member))
                last = min(last, next(held, last + 1) - 1)
            if first <= last:
                acks.append(Acknowledgement(first, last, kind))
            first = last + 1
        said = {o: kind for a, z, kind in acks for o in range(a, z + 1) if o >= self.start}
        if not all(self._of(offset).is_held_by(member) for offset in said):
            with pytest.raises(CodedError) as caught:
                self.window.acknowledge(member, acks, until=self.now + 9, delivery_limit=LIMIT)
            is_beyond = any(offset >= self.end for offset in said)
            assert caught.value.code is ErrorCode.invalid_record_state or is_beyond
            return
        is_news = self.window.acknowledge(member, acks, until=self.now + 9, delivery_limit=LIMIT)
        assert is_news == any(kind is not AcknowledgeType.RENEW for kind in said.values())
        for offset, kind in said.items():
            if kind is AcknowledgeType.RENEW:
                self.model[offset] = replace(self.model[offset], until=self.now + 9)
            elif kind is AcknowledgeType.RELEASE:
                self._release(offset)
            elif kind is AcknowledgeType.REJECT:
                self._give_up(offset)
            else:
                is_accepted = kind is AcknowledgeType.ACCEPT
                self._decide(offset, DeliveryState.ACKNOWLEDGED if is_accepted else DeliveryState.ARCHIVED)

    @rule(member=st.sampled_from(MEMBERS))
    def member_leaves(self, member: str) -> None:
        for offset, known in self.model.items():
            if known.is_held_by(member):
                self.model[offset] = replace(known, until=0.0)
                self._release(offset)
        self.window.release_member(member, delivery_limit=LIMIT)

    @rule(seconds=st.integers(1, 6))
    def locks_expire(self, seconds: int) -> None:
        self.now += seconds
        due = [
            offset
            for offset, known in self.model.items()
            if known.state is RunState.ACQUIRED and known.target is None and known.until <= self.now
        ]
        for offset in due:
            self._release(offset)
        assert self.window.release_expired(self.now, delivery_limit=LIMIT) == len(due)
        alarms = [
            known.until
            for known in self.model.values()
            if (known.state is RunState.ACQUIRED and known.target is None) or known.until > self.now
        ]
        assert self.window.next_alarm(self.now) == min(alarms, default=inf) > self.now

    @rule(has_letters=st.booleans())
    def letters_are_configured(self, has_letters: bool) -> None:
        self.has_letters = self.window.has_letters = has_letters

    @precondition(lambda self: self.owed)
    @rule(size=SIZES)
    def letters_are_written(self, size: int) -> None:
        """As the leader does: of the first run."""
        run = next(iter(self.window.archiving_runs(1)), None)
        due = [o for o, known in self.model.items() if known.state is RunState.ARCHIVING and known.target is None]
        assert (run is None) == (not due)
        if run is not None:
            assert run.first == due[0]
            last = min(run.last, run.first + size - 1)
            self.window.archived(run.first, last)
            for offset in range(run.first, last + 1):
                self._decide(offset, DeliveryState.ARCHIVED)
                self.owed.discard(offset)

    @rule(count=st.integers(1, 4))
    def records_are_deleted(self, count: int) -> None:
        offset = self.start + count
        dropped = self.window.advance_start(offset)
        gone = [known for o, known in self.model.items() if o < offset]
        assert dropped == sum(known.state is RunState.ARCHIVING and known.target is None for known in gone)
        self.owed -= set(range(offset))
        self.released |= set(range(offset))
        self.model = {o: known for o, known in self.model.items() if o >= offset}
        self.start = max(self.start, offset)
        self._trim()

    # What is written

    @precondition(lambda self: self.change is None)
    @rule()
    def begin_change(self) -> None:
        self.change = self.window.begin_change()
        decided = {o: known for o, known in self.model.items() if known.target is not None}
        assert self.change is not None or not decided
        if self.change is None:
            return
        for offset, known in decided.items():
            self.model[offset] = replace(known, is_written=True)
        done = {o for o, known in self.model.items() if known.state is RunState.COMPLETE or known.target in DONE}
        start = next((o for o in range(self.start, self.end) if o not in done), self.end)
        assert self.change.start_offset == start
        assert self.change.complete_count == len([o for o in done if o >= start])
        written = {o: (count, state) for a, z, state, count in self.change.batches for o in range(a, z + 1)}
        assert written == {o: (known.count, known.target) for o, known in decided.items() if o >= start}

    @precondition(lambda self: self.change is not None)
    @rule(wait=st.integers(0, 2))
    def commit(self, wait: int) -> None:
        assert self.change is not None
        self.kept.write(self.change)
        self.change = None
        self.window.commit(lambda count: self.now + wait * count)
        for offset, known in self.model.items():
            if known.is_written and known.target is not None:
                is_done = known.target in DONE
                if known.target is DeliveryState.ACKNOWLEDGED:
                    self.accepted.add(offset)
                state = _STATES.get(known.target, RunState.COMPLETE)
                until = self.now + wait * known.count if state is RunState.AVAILABLE else 0.0
                if state is RunState.ARCHIVING:
                    self.owed.add(offset)
                self.model[offset] = Offset(state, 0 if is_done else known.count, until=until)
        self._trim()

    @precondition(lambda self: self.change is None)
    @rule()
    def write(self) -> None:
        self.begin_change()
        if self.change is not None:
            self.commit(0)

    @precondition(lambda self: self.change is not None)
    @rule(was_made=st.booleans())
    def roll_back(self, was_made: bool) -> None:
        """The coordinator did not answer; the change was made all the same, or not."""
        assert self.change is not None
        if was_made:
            self.kept.write(self.change)
        self.change = None
        self.window.roll_back()
        for offset, known in self.model.items():
            if known.is_written:
                self.model[offset] = replace(known, target=None, is_written=False)

    @precondition(lambda self: self.change is not None or self.owed)
    @rule(is_made=st.booleans())
    def another_leads(self, is_made: bool) -> None:
        """What was under way is made before the next leader reads, or never."""
        if self.change is not None and is_made:
            self.kept.write(self.change)
        self.change = None
        self.window = self.make_window(self.kept.start, self.kept.batches())
        self.start = self.kept.start
        self.model = {offset: Offset() for offset in range(self.start, max(self.kept.offsets, default=-1) + 1)}
        for offset, (count, state) in self.kept.offsets.items():
            is_done = state in DONE
            self.model[offset] = Offset(_STATES.get(DeliveryState(state), RunState.COMPLETE), 0 if is_done else count)
            if state == DeliveryState.ARCHIVING:
                self.owed.add(offset)
        self.window.has_letters = self.has_letters
        self._trim()

    # What must hold

    @invariant()
    def is_as_the_model(self) -> None:
        window, seen = self.window, {}
        assert window.start == self.start
        assert window.end == self.end
        position = window.start
        for run in window.runs:
            assert run.first == position
            assert run.last >= run.first
            position = run.last + 1
            count = 0 if run.state is RunState.COMPLETE else run.delivery_count
            for offset in range(run.first, run.last + 1):
                seen[offset] = (run.state, count, run.member, run.until, run.target)
        assert seen == {o: (k.state, k.count, k.member, k.until, k.target) for o, k in self.model.items()}
        assert window.archiving == sum(known.state is RunState.ARCHIVING for known in self.model.values())
        assert window.locks == sum(known.state is RunState.ACQUIRED for known in self.model.values())
        free = [offset for offset, known in self.model.items() if known.is_due(self.now)]
        assert window.next_available(self.now) == min(free, default=self.end)

    @invariant()
    def nothing_is_lost(self) -> None:
        """Every offset that nobody was done with comes again, whoever leads."""
        done = {o for o, known in self.model.items() if known.state is RunState.COMPLETE}
        assert done | set(range(self.start)) <= self.released
        assert not self.owed & (done | set(range(self.start))), "nor is any that is given up without its letter"

    @invariant()
    def what_is_accepted_stays(self) -> None:
        assert all(self._of(offset).state is RunState.COMPLETE for offset in self.accepted if offset >= self.start)

    def _of(self, offset: int) -> Offset:
        return self.model.get(offset, Offset())

    def _release(self, offset: int) -> None:
        if self.model[offset].count >= LIMIT:
            self._give_up(offset)
        else:
            self._decide(offset, DeliveryState.AVAILABLE)

    def _give_up(self, offset: int) -> None:
        self._decide(offset, DeliveryState.ARCHIVING if self.has_letters else DeliveryState.ARCHIVED)

    def _decide(self, offset: int, target: DeliveryState) -> None:
        self.model[offset] = replace(self.model[offset], target=target)
        if target in DONE:
            self.released.add(offset)

    def _trim(self) -> None:
        while self.start in self.model and self.model[self.start].state is RunState.COMPLETE:
            del self.model[self.start]
            self.start += 1


TestShareWindowAgainstModel = ShareWindowAgainstModel.TestCase


class _Broken(ShareWindow):
    """A window with a dictionary, so that a test can take a rule out of it."""


class AcknowledgesOthers(_Broken):
    def _check_acquired(self, member: str, ack: Acknowledgement) -> None:
        """Whoever says so."""


class ForgetsLimit(_Broken):
    def _release(self, run: Run, delivery_limit: int) -> None:
        self._decide(run, DeliveryState.AVAILABLE)


class KeepsFailedChanges(_Broken):
    def roll_back(self) -> None:
        self.commit()


class NeverLooksBack(_Broken):
    def commit(self, available_at: AvailableAt = at_once) -> None:
        before = self.unavailable_below
        super().commit(available_at)
        self.unavailable_below = max(before, self.unavailable_below)


class CountsOnTheDecided(_Broken):
    def next_available(self, now: float) -> int:
        return next((run.first for run in self.runs if run.state is RunState.AVAILABLE and run.until <= now), self.end)


class WaitsForNobody(_Broken):
    def commit(self, available_at: AvailableAt = at_once) -> None:
        super().commit()


class StartsAfterTheRest(_Broken):
    def _start_after(self) -> int:
        return next((run.first for run in self.runs if run.state is RunState.AVAILABLE), self.end)


class JoinsAll(_Broken):
    def _join(self, index: int) -> int:
        for run in self.runs:
            run.member = self.runs[index].member
        return super()._join(index)


class ForgetsLocksOfTheDeleted(_Broken):
    def _uncount(self, run: Run, count: int) -> None:
        """They stay counted."""


class ArchivesWithoutLetters(_Broken):
    def _give_up(self, run: Run, *, is_rejected: bool = False) -> None:
        self._decide(run, DeliveryState.ARCHIVED)


class ForgetsLettersOfOthers(_Broken):
    def _load(self, first: int, last: int, state: int, delivery_count: int, until: float) -> None:
        state = DeliveryState.ARCHIVED if state == DeliveryState.ARCHIVING else state
        super()._load(first, last, state, delivery_count, until)


class ExpiresNothing(_Broken):
    def release_expired(self, now: float, *, delivery_limit: int) -> int:
        return 0


@pytest.mark.parametrize("broken", _Broken.__subclasses__(), ids=lambda broken: str(broken.__name__))
def test_each_rule_is_missed_where_it_is_taken_out(broken: type[ShareWindow]) -> None:
    class Machine(ShareWindowAgainstModel):
        make_window = broken

    once = settings(max_examples=400, stateful_step_count=60, phases=[Phase.generate], database=None, derandomize=True)
    with pytest.raises((AssertionError, IndexError, Failed)):
        run_state_machine_as_test(Machine, settings=once)
