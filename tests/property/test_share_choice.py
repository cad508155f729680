"""Records that a share group chooses, against what it asks for: order of keys, priorities, intervals."""

from collections import Counter
from typing import Any

import pytest
from _pytest.outcomes import Failed
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from headrace.protocol.records import Record
from headrace.replication import share_choice
from headrace.replication.share_choice import Choice, RecordChooser, priority_of
from headrace.replication.share_window import Acknowledgement, AcknowledgeType, Run, RunState, ShareWindow

LIMIT = 3
AHEAD = 12
INTERVAL = 2.0


class ChoiceAgainstItsRules(RuleBasedStateMachine):
    make: type[RecordChooser] = RecordChooser

    def __init__(self) -> None:
        super().__init__()
        self.window = ShareWindow(0)
        self.free_at: dict[int, float] = {}
        self.log: list[Record] = []
        self.now = 0.0
        self.accepted: set[int] = set()
        self.last_at: dict[bytes, float] = {}
        """When a record of a key was delivered."""
        self.overtaken: Counter[int] = Counter()

    @initialize(orders=st.booleans(), priorities=st.booleans(), waits=st.booleans())
    def begin(self, orders: bool, priorities: bool, waits: bool) -> None:
        self.choice = Choice(orders, priorities, INTERVAL if waits else 0.0)
        self.chooser = self.make(self.choice, 0, self.free_at)

    @rule(keys=st.lists(st.sampled_from([None, b"a", b"b", b"c"]), min_size=1, max_size=8), data=st.data())
    def produce(self, keys: list[bytes | None], data: st.DataObject) -> None:
        for key in keys:
            priority = data.draw(st.sampled_from(["", "0", "9"]))
            headers = (("headrace.priority", priority.encode()),) if priority else ()
            self.log.append(Record(len(self.log), 0, key, b"v", headers))

    @rule(most=st.integers(1, 4), member=st.sampled_from("ab"))
    def deliver(self, most: int, member: str) -> None:
        window, chooser = self.window, self.chooser
        chooser.follow(window.start)
        while chooser.read_until < len(self.log) and chooser.wants_more():
            end = min(chooser.read_until + 3, len(self.log))  # a batch of three
            chooser.add(self.log[chooser.read_until : end])
            chooser.read_until = end
        before = self._states()
        chosen = chooser.choose(window, self.now, most)
        for offset in chosen:
            self._check(offset, before, chosen)
            acquired = window.acquire(offset, offset, 1, member, now=self.now, until=self.now + 5, delivery_limit=LIMIT)
            if acquired:
                chooser.delivered(offset, self.now)
                self.last_at[self.log[offset].key or b""] = self.now
                for earlier in range(window.start, offset):
                    self.overtaken[earlier] += before.get(earlier, RunState.AVAILABLE) is RunState.AVAILABLE
        self._check_progress(chosen, before)
        self._write()

    @rule(kind=st.sampled_from([AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE]), number=st.integers(0, 9))
    def acknowledge(self, kind: AcknowledgeType, number: int) -> None:
        held = [run for run in self.window.runs if run.is_locked]
        if held:
            run = held[number % len(held)]
            offset = run.first
            acks = [Acknowledgement(offset, offset, kind)]
            self.window.acknowledge(run.member, acks, until=self.now + 5, delivery_limit=LIMIT)
            self._write(wait=1.0)

    @rule(seconds=st.integers(1, 7))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        self.window.release_expired(self.now, delivery_limit=LIMIT)
        self._write(wait=1.0)

    @rule()
    def another_object_serves(self) -> None:
        """On the same broker: what keys have to wait is known."""
        self.chooser = self.make(self.choice, self.window.start, self.free_at)

    def _write(self, wait: float = 0.0) -> None:
        if self.window.begin_change() is not None:
            self.window.commit(lambda _count: self.now + wait)

    def _states(self) -> dict[int, Any]:
        return {offset: run.state for run in self.window.runs for offset in range(run.first, run.last + 1)}

    def _is_open(self, offset: int, states: dict[int, Any]) -> bool:
        """Whether it can be delivered by all rules but those of priorities."""
        record, run = self.log[offset], self._run(offset)
        if states.get(offset, RunState.AVAILABLE) is not RunState.AVAILABLE or (
            run is not None and run.until > self.now
        ):
            return False
        if record.key is None:
            return True
        if self.choice.orders_keys and self._is_behind(offset, states):
            return False
        return not self.choice.key_interval or self.now >= self.last_at.get(record.key, -INTERVAL) + INTERVAL

    def _is_behind(self, offset: int, states: dict[int, Any]) -> bool:
        earlier = (e for e in range(self.window.start, offset) if self.log[e].key == self.log[offset].key)
        return any(states.get(e, RunState.AVAILABLE) is not RunState.COMPLETE for e in earlier)

    def _run(self, offset: int) -> Run | None:
        return next((run for run in self.window.runs if run.first <= offset <= run.last), None)

    def _check(self, offset: int, before: dict[int, Any], chosen: list[int]) -> None:
        key = self.log[offset].key
        assert self._is_open(offset, before)
        of_key = [each for each in chosen if self.log[each].key == key]
        if key is not None and (self.choice.orders_keys or self.choice.key_interval):
            assert of_key == [offset], "one of a key at a time"

    def _check_progress(self, chosen: list[int], before: dict[int, Any]) -> None:
        """What could be delivered and was not is of no higher priority than anything that was."""
        end = self.chooser.read_until
        keys = {self.log[each].key for each in chosen} - {None}
        is_apart = self.choice.orders_keys or self.choice.key_interval
        left = [
            offset
            for offset in range(self.window.start, end)
            if offset not in chosen
            and before.get(offset, RunState.AVAILABLE) is RunState.AVAILABLE
            and not (is_apart and self.log[offset].key in keys)
            and self._is_open(offset, before)
        ]
        if not left:
            return
        assert chosen, "something is delivered where that may be"
        if self.choice.has_priorities:
            lowest = min(priority_of(self.log[each]) for each in chosen)
            assert all(priority_of(self.log[each]) <= lowest for each in left)
        else:
            assert min(left) > max(each for each in chosen)

    @invariant()
    def nobody_is_overtaken_for_ever(self) -> None:
        assert all(count <= LIMIT * (AHEAD + 3) for count in self.overtaken.values())


@pytest.fixture(autouse=True)
def few_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_choice, "MOST_AHEAD", AHEAD)


MANY = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_records_are_chosen_as_the_group_asks() -> None:
    run_state_machine_as_test(ChoiceAgainstItsRules, settings=MANY)


class ForgetsKeysThatWait(RecordChooser):
    def _take(self, key: int | None, now: float, taken: set[int]) -> bool:
        return True


class SeesOnlyWhatIsAvailable(RecordChooser):
    """A record that is out, or waits, is in nobody's way."""

    def _undone(self, window: ShareWindow, now: float) -> Any:
        return (each for each in super()._undone(window, now) if each[1])


class TakesTheFirst(RecordChooser):
    def choose(self, window: ShareWindow, now: float, most: int) -> list[int]:
        choice, self.choice = self.choice, self.choice._replace(has_priorities=False)
        try:
            return super().choose(window, now, most)
        finally:
            self.choice = choice


@pytest.mark.parametrize(
    "broken",
    [ForgetsKeysThatWait, SeesOnlyWhatIsAvailable, TakesTheFirst],
    ids=lambda broken: str(broken.__name__),
)
def test_each_rule_is_missed_where_it_is_taken_out(broken: type[RecordChooser]) -> None:
    class Machine(ChoiceAgainstItsRules):
        make = broken

    once = settings(max_examples=60, stateful_step_count=40, phases=[Phase.generate], database=None, derandomize=True)
    with pytest.raises((AssertionError, Failed)):
        run_state_machine_as_test(Machine, settings=once)


@pytest.mark.parametrize(
    ("data", "priority"), [(b"0", 0), (b"9", 9), (b"10", 4), (b"", 4), (b"-1", 4), ("٣".encode(), 4), (None, 4)]
)
def test_a_priority_is_a_digit(data: bytes | None, priority: int) -> None:
    assert priority_of(Record(0, 0, None, None, (("headrace.priority", data),))) == priority
    assert priority_of(Record(0, 0, None, None)) == 4
