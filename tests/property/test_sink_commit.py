"""The sink's commit protocol against crashes, timeouts, retried and late tasks, and drivers that do not know they are
dead, in any order: every batch that Spark holds for done is visible exactly once.

The cluster here is a model of what Kafka promises: transactions by id, producer id and epoch, and a journal partition
that refuses an older producer epoch once it has seen a newer one.
"""

import itertools
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import pytest

from headrace.client.columnar.model import Range
from headrace.client.columnar.transaction import PreparedTransaction
from headrace.spark.sink import commit as sink_commit
from headrace.spark.sink.commit import (
    Claim,
    Command,
    CommitDecision,
    CommitError,
    Copy,
    Drop,
    Duty,
    End,
    Fence,
    Identify,
    Inspect,
    ListOpen,
    Look,
    Part,
    Prepared,
    RecordDecision,
    Report,
    SinkOutcome,
    Steps,
    TakeOver,
    abort_steps,
    commit_steps,
    duty,
    suffix_of,
    transactional_id,
)

QUERY: Final = "q"
TASKS: Final = 3
MOST_ATTEMPTS: Final = 3
STEPS: Final = 400


class SupersededError(Exception):
    """Another driver took the journal over."""


class Phase(Enum):
    EMPTY = "empty"
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass
class Slot:
    """A transactional id as the transaction coordinator knows it."""

    producer_id: int
    epoch: int = -1
    state: Phase = Phase.EMPTY
    rows: list[tuple[int, int]] = field(default_factory=list)


class Cluster:
    """What the brokers hold."""

    def __init__(self) -> None:
        self.slots: dict[str, Slot] = {}
        self.visible: Counter[tuple[int, int]] = Counter()
        self.journal: list[CommitDecision] = []
        self.owner = 0
        self.owner_run: str | None = None
        self.leased: set[str] = set()
        """Names that an attempt has for itself."""
        self._producer_ids = itertools.count(100)

    def init(self, name: str) -> tuple[int, int]:
        slot = self.slots.setdefault(name, Slot(next(self._producer_ids)))
        slot.rows.clear()
        slot.epoch += 1
        slot.state = Phase.EMPTY
        return slot.producer_id, slot.epoch

    def write(self, name: str, epoch: int, row: tuple[int, int]) -> bool:
        slot = self.slots[name]
        if slot.epoch != epoch:
            return False
        slot.state = Phase.OPEN
        slot.rows.append(row)
        return True

    def time_out(self, name: str) -> None:
        slot = self.slots[name]
        slot.rows.clear()
        slot.epoch += 1
        slot.state = Phase.ABORTED

    def outcome(self, one: Prepared) -> SinkOutcome:
        slot = self.slots[_name(one)]
        if slot.epoch != one.epoch:
            return SinkOutcome.LOST
        return {Phase.OPEN: SinkOutcome.OPEN, Phase.COMMITTED: SinkOutcome.COMMITTED}.get(slot.state, SinkOutcome.LOST)

    def end(self, one: Prepared, commit: bool) -> SinkOutcome:
        found = self.outcome(one)
        if found is not SinkOutcome.OPEN:
            return found
        slot = self.slots[_name(one)]
        if commit:
            self.visible.update(slot.rows)
        slot.rows.clear()
        slot.state = Phase.COMMITTED if commit else Phase.ABORTED
        return SinkOutcome.COMMITTED if commit else SinkOutcome.LOST

    def free_name(self, run: str, _task: int, batch: int) -> str:
        """A name that nobody has, and under which nothing is open."""
        names = (transactional_id(QUERY, run, suffix_of(f"s{number}", batch)) for number in itertools.count())
        return next(name for name in names if name not in self.leased and not self.is_open(name))

    def copied(self, batch: int, part: Part) -> tuple[Part, ...]:
        name = self.free_name(part.prepared.run, part.prepared.partition, batch)
        producer_id, epoch = self.init(name)
        self.write(name, epoch, (batch, part.prepared.partition))
        suffix = name.removeprefix(transactional_id(QUERY, part.prepared.run, ""))
        return (part._replace(prepared=Prepared(*part.prepared[:2], suffix, producer_id, epoch)),)

    def is_open(self, name: str) -> bool:
        return name in self.slots and self.slots[name].state is Phase.OPEN

    def drop(self, one: PreparedTransaction) -> None:
        slot = self.slots[one.transactional_id]
        if slot.state is Phase.OPEN and slot.epoch == one.epoch:
            slot.rows.clear()
            slot.state = Phase.ABORTED

    def last_decision(self) -> CommitDecision | None:
        return self.journal[-1] if self.journal else None


def _name(one: Prepared) -> str:
    return transactional_id(QUERY, one.run, one.suffix)


@dataclass(eq=False)
class Driver:
    """A process that carries out steps, command by command; it lives on when its run is over, for all it knows."""

    steps: Steps
    is_commit: bool
    cluster: Cluster
    owner: int = 0
    command: Command | None = None
    answers: list[SinkOutcome] = field(default_factory=list)
    error: Exception | None = None
    is_done: bool = False

    def advance(self) -> None:
        """The next thing that the cluster sees: one command, or one transaction of a command that names several."""
        try:
            if self.command is None:
                self.command = next(self.steps)
            self._carry_out(self.command)
        except StopIteration:
            self.is_done = True
        except (CommitError, SupersededError) as error:
            self.error, self.is_done = error, True

    def _carry_out(self, command: Command) -> None:
        match command:
            case Look():
                self._answer((self.cluster.owner_run, self.cluster.last_decision()))
            case TakeOver(run):
                self.cluster.owner += 1
                self.cluster.owner_run = run
                self.owner = self.cluster.owner
                self._answer(self.cluster.last_decision())
            case RecordDecision(decision):
                self._require_ownership()
                self.cluster.journal.append(decision)
                self._answer(None)
            case Claim():
                self._require_ownership()
                self._answer(None)
                if isinstance(self.command, Fence):
                    self._carry_out(self.command)
            case Copy(batch, part):
                self._answer(self.cluster.copied(batch, part))
            case Identify(names):
                found = [(name, self.cluster.slots[name]) for name in names if self.cluster.is_open(name)]
                self._answer([PreparedTransaction(name, one.producer_id, one.epoch, True) for name, one in found])
            case Drop(dropped):
                for transaction in dropped:
                    self.cluster.drop(transaction)
                self._answer(None)
            case Inspect(transactions):
                self._answer([self.cluster.outcome(one) for one in transactions])
            case End(transactions, commit):
                self._end_next(transactions, commit)
            case ListOpen():
                self._answer([name for name, slot in self.cluster.slots.items() if slot.state is Phase.OPEN])
            case Fence(names):
                for name in names:
                    self.cluster.init(name)
                self._answer(None)

    def _end_next(self, transactions: Sequence[Prepared], commit: bool) -> None:
        if len(self.answers) < len(transactions):
            self.answers.append(self.cluster.end(transactions[len(self.answers)], commit))
        if len(self.answers) == len(transactions):
            answers, self.answers = self.answers, []
            self._answer(answers)

    def _answer(self, value: object) -> None:
        self.command = self.steps.send(value)

    def _require_ownership(self) -> None:
        if self.owner != self.cluster.owner:
            raise SupersededError


@dataclass(eq=False)
class Attempt:
    """An attempt of a task, from the moment it may write."""

    run: "Run"
    batch: int
    task: int
    name: str
    producer: tuple[int, int] | None = None
    """None until it has begun under the name that it took."""


@dataclass(eq=False)
class Run:
    """A query from start to stop, as its Spark driver sees it."""

    name: str
    batch: int
    is_alive: bool = True
    started: Counter[int] = field(default_factory=Counter)
    reports: dict[int, Report] = field(default_factory=dict)
    driver: Driver | None = None

    def next_batch(self) -> None:
        self.batch += 1
        self.started.clear()
        self.reports.clear()
        self.driver = None


class Simulation:
    """Spark, the brokers and bad luck, in an order that the seed gives."""

    def __init__(self, seed: int, *, times_out: bool) -> None:
        self.random = random.Random(seed)
        self.cluster = Cluster()
        self.names = itertools.count(1)
        self.checkpoint = 0
        """Batches below this one are done, says Spark's commit log."""
        self.run = self._start()
        self.attempts: list[Attempt] = []
        self.leftovers: list[Driver] = []
        self.may_be_torn = False
        """Whether the cluster aborted a transaction between its decision and its commit."""
        self.is_torn = False
        self.events: list[tuple[Callable[[], None], int]] = [
            (self.a_task_starts, 20),
            (self.a_task_writes, 40),
            (self.the_driver_goes_on, 40),
            (self.the_command_fails, 2),
            (self.the_job_fails, 1),
            (self.the_spark_driver_is_killed, 3),
            (self.a_leftover_goes_on, 10),
            (self.a_transaction_times_out, 1 if times_out else 0),
        ]

    def play(self) -> "Simulation":
        events = [event for event, _ in self.events]
        weights = [weight for _, weight in self.events]
        for event in self.random.choices(events, weights, k=STEPS):
            event()
            self.check()
            if self.is_torn:
                break
        return self

    def check(self) -> None:
        visible = self.cluster.visible
        assert all(count == 1 for count in visible.values()), f"visible twice: {visible}"
        done = itertools.product(range(self.checkpoint), range(TASKS))
        missing = [row for row in done if not visible[row]]
        assert self.is_torn or not missing, f"missing: {missing}"

    def a_task_starts(self) -> None:
        """A first attempt, a retry or a speculative copy. Asking the journal saves work; safety does not need it."""
        run, task = self.run, self.random.randrange(TASKS)
        number = run.started[task]
        if run.driver is not None or number == MOST_ATTEMPTS:
            return
        run.started[task] += 1
        if self.random.random() < 0.5 and duty(self.cluster.last_decision(), run.batch) is Duty.SKIP:
            self._reported(run, run.batch, task, None)
            return
        name = self.cluster.free_name(run.name, task, run.batch)
        self.cluster.leased.add(name)
        self.attempts.append(Attempt(run, run.batch, task, name))

    def a_task_writes(self) -> None:
        """It begins, or its rows are in its transaction; its report arrives, or does not."""
        if not self.attempts:
            return
        attempt = self.random.choice(self.attempts)
        if attempt.producer is None:
            attempt.producer = self.cluster.init(attempt.name)
            return
        self.attempts.remove(attempt)
        accepted = self.cluster.write(attempt.name, attempt.producer[1], (attempt.batch, attempt.task))
        self.cluster.leased.discard(attempt.name)
        if accepted and self.random.random() < 0.9:
            suffix = attempt.name.removeprefix(transactional_id(QUERY, attempt.run.name, ""))
            prepared = Prepared(attempt.run.name, attempt.task, suffix, *attempt.producer)
            self._reported(attempt.run, attempt.batch, attempt.task, prepared)

    def _reported(self, run: Run, batch: int, task: int, prepared: Prepared | None) -> None:
        """Spark takes the report of the first attempt, if it still cares, and commits once it has all of them."""
        if run is not self.run or run.batch != batch or run.driver is not None or task in run.reports:
            return
        parts = () if prepared is None else (Part(prepared, (Range("t", task, batch, batch + 1),)),)
        run.reports[task] = Report(QUERY, run.name, batch, parts, found_decided=prepared is None)
        if len(run.reports) == TASKS:
            reports = [run.reports[number] for number in range(TASKS)]
            run.driver = Driver(_commit_and_sweep(batch, reports), True, self.cluster)

    def the_driver_goes_on(self) -> None:
        driver = self.run.driver
        if driver is None:
            return
        driver.advance()
        if driver.error is not None:
            self._failed(driver)
        elif driver.is_done and driver.is_commit:
            self.checkpoint = self.run.batch + 1
            tidying = sink_commit.tidy_steps(QUERY, self.run.name, self.run.batch)
            self.leftovers.append(Driver(tidying, False, self.cluster, owner=driver.owner))
            self.run.next_batch()
        elif driver.is_done:
            self.run = self._start()

    def the_command_fails(self) -> None:
        """The cluster did what was asked, or did not; the driver knows only that no answer came."""
        driver = self.run.driver
        if driver is None:
            return
        if self.random.random() < 0.5:
            driver.advance()
        if not driver.is_done:
            driver.is_done = True
            self._failed(driver)

    def _failed(self, driver: Driver) -> None:
        self._note_a_tear(driver)
        if driver.is_commit:
            self._abort()
        else:
            self.run = self._start()

    def _note_a_tear(self, driver: Driver) -> None:
        if "is torn" in str(driver.error):
            assert self.may_be_torn, driver.error
            self.is_torn = True

    def the_job_fails(self) -> None:
        if self.run.driver is None and self.run.reports:
            self._abort()

    def _abort(self) -> None:
        self.run.driver = Driver(abort_steps(list(self.run.reports.values())), False, self.cluster)

    def the_spark_driver_is_killed(self) -> None:
        """Its Python process may be left over for a while, in the middle of its steps."""
        if self.run.driver is not None and self.random.random() < 0.7:
            self.leftovers.append(self.run.driver)
        self.run = self._start()

    def a_leftover_goes_on(self) -> None:
        if not self.leftovers:
            return
        driver = self.random.choice(self.leftovers)
        driver.advance()
        if driver.is_done:
            self.leftovers.remove(driver)
            self._note_a_tear(driver)

    def a_transaction_times_out(self) -> None:
        names = [name for name, slot in self.cluster.slots.items() if slot.state is Phase.OPEN]
        if names:
            name = self.random.choice(names)
            self.cluster.time_out(name)
            self.may_be_torn |= name in self._decided()

    def _decided(self) -> set[str]:
        """Ids of transactions that a driver found open and decided on."""
        pending = [driver.command for driver in (self.run.driver, *self.leftovers) if driver is not None]
        decisions = [command.decision for command in pending if isinstance(command, RecordDecision)]
        last = self.cluster.last_decision()
        return {_name(one) for decision in (last, *decisions) if decision for one in decision.transactions}

    def _start(self) -> Run:
        return Run(f"r{next(self.names)}", self.checkpoint)


def _commit_and_sweep(batch: int, reports: Sequence[Report]) -> Steps:
    yield from commit_steps(batch, reports)
    yield from sink_commit.sweep_steps(set())


def _play_all(seeds: range, *, times_out: bool = True) -> list[Simulation]:
    return [Simulation(seed, times_out=times_out).play() for seed in seeds]


def test_every_batch_is_visible_exactly_once() -> None:
    batches = sum(simulation.checkpoint for simulation in _play_all(range(500), times_out=False))
    assert batches > 500, "too little happened to prove anything"


def test_a_batch_is_torn_only_by_a_timeout_between_decision_and_commit() -> None:
    simulations = _play_all(range(1000))
    assert any(simulation.is_torn for simulation in simulations), "nothing was torn, so nothing was proved"


def _abort_whatever_was_decided(reports: Sequence[Report]) -> Steps:
    yield TakeOver(reports[0].run)
    yield End([part.prepared for report in reports for part in report.parts], commit=False)


def _commit_before_deciding(batch: int, reports: Sequence[Report]) -> Steps:
    own = [part.prepared for report in reports for part in report.parts]
    steps, answer = sink_commit.commit_steps(batch, reports), None
    while True:
        try:
            command = steps.send(answer)
        except StopIteration:
            return
        if isinstance(command, RecordDecision):
            yield End(own, commit=True)
        answer = yield command


def _decide_without_reading(batch: int, reports: Sequence[Report]) -> Steps:
    steps, answer = sink_commit.commit_steps(batch, reports), None
    while True:
        try:
            command = steps.send(answer)
        except StopIteration:
            return
        answer = yield command
        if isinstance(command, TakeOver):
            answer = None


def _sweep_without_claim(keep: set[str]) -> Steps:
    stale = [one for one in (yield ListOpen()) if one not in keep]
    yield Fence(stale)


def _without_run(query: str, run: str, suffix: str) -> str:
    return f"{query}-{suffix}"


def _named_by_task(self: Cluster, run: str, task: int, batch: int) -> str:
    """As it is when an attempt looks whether a name is in use, and then begins."""
    names = (transactional_id(QUERY, run, suffix_of(f"{task}.{number}", batch)) for number in itertools.count())
    return next(name for name in names if not self.is_open(name))


def _is_of_run(name: str, query: str, run: str, batch: int) -> bool:
    return name.startswith(transactional_id(query, run, ""))


def _nobody_is_shut_out(self: Driver) -> None:
    pass


THIS: Final = sys.modules[__name__]
SAFEGUARDS: Final[dict[str, list[tuple[object, str, object]]]] = {
    "an abort spares what was decided": [(THIS, "abort_steps", _abort_whatever_was_decided)],
    "the decision comes before the commits": [(THIS, "commit_steps", _commit_before_deciding)],
    "the decision of an earlier run counts": [(THIS, "commit_steps", _decide_without_reading)],
    "the journal has one writer": [(Driver, "_require_ownership", _nobody_is_shut_out)],
    "a driver claims the journal before it sweeps": [(sink_commit, "sweep_steps", _sweep_without_claim)],
    "attempts have ids of their own": [(Cluster, "free_name", _named_by_task)],
    "what a batch left open is told from what the next one has begun": [(sink_commit, "is_of_batch", _is_of_run)],
    "runs have ids of their own": [
        (THIS, "transactional_id", _without_run),
        (sink_commit, "transactional_id", _without_run),
    ],
}


@pytest.mark.parametrize("safeguard", SAFEGUARDS)
def test_the_simulation_notices_when_it_is_not_so_that(safeguard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for where, name, replacement in SAFEGUARDS[safeguard]:
        monkeypatch.setattr(where, name, replacement)
    with pytest.raises(AssertionError):
        _play_all(range(2000))
