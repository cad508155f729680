"""What a service does about a pipeline, without processes and topics."""

from dataclasses import replace
from typing import Any

import pytest

from headrace.spark.service.model import STOPPED, Deployment, SparkSettings, State, Status
from headrace.spark.service.supervision import (
    HEALTHY_MS,
    KILL_MS,
    LONGEST_PAUSE_MS,
    LOOP_FAILURES,
    SILENT_MS,
    ExitCode,
    Here,
    LeaseView,
    Step,
    Supervision,
    pause_after,
)

NOBODY = LeaseView()


def deployment(revision: str = "1", **changes: Any) -> Deployment:
    made = Deployment(name="p", revision=revision, file="p.yaml", archive=b"", settings=SparkSettings())
    return replace(made, **changes)


class Service:
    """One service, its clock, and what the topic of statuses says."""

    def __init__(self, name: str = "one", home: str = "shared") -> None:
        self.now = 1_000_000
        here = Here(id=name, host=name, process=1, home_of=lambda _: home)
        self.supervision = Supervision("p", here, chance=lambda: 0.5)
        self.runner = 0

    @property
    def status(self) -> Status:
        return self.supervision.status

    def step(self, wanted: Deployment | None, lease: LeaseView = NOBODY) -> Step:
        return self.supervision.next_step(wanted, lease, self.now)

    def until(self, wanted: Deployment, step: Step, lease: LeaseView = NOBODY, most: int = 1_000_000) -> int:
        """The milliseconds until it comes to a step."""
        began = self.now
        while self.step(wanted, lease) is not step:
            self.now += 250
            assert self.now - began < most, f"no {step} within {most} ms, but {self.status}"
        return self.now - began

    def start(self, wanted: Deployment, lease: LeaseView = NOBODY) -> str:
        self.until(wanted, Step.START, lease)
        self.runner += 1
        self.supervision.started(wanted, f"runner-{self.runner}", "local[*]", self.now)
        return f"runner-{self.runner}"

    def fail(self, runner: str, code: int = ExitCode.FAILED, words: str = "it broke") -> None:
        self.supervision.ended(runner, code, words, self.now)


def test_what_is_deployed_is_started_and_left_alone() -> None:
    service, wanted = Service(), deployment()
    service.start(wanted)
    states = [service.status.state]
    service.supervision.heard({"event": "started"}, service.now)
    assert service.step(wanted) is Step.NOTHING
    assert [*states, service.status.state] == [State.STARTING, State.RUNNING]


def test_what_is_deployed_anew_stops_and_starts_as_it_is_now() -> None:
    service = Service()
    runner = service.start(deployment("1"))
    assert service.step(deployment("2")) is Step.STOP
    assert service.step(deployment("2")) is Step.NOTHING
    service.fail(runner, ExitCode.OVER)
    service.start(deployment("2"))
    assert (service.status.revision, service.status.restarts, service.status.failures) == ("2", 0, 0)


def test_a_runner_that_does_not_stop_is_killed() -> None:
    service = Service()
    service.start(deployment())
    assert service.step(None) is Step.STOP
    service.now += KILL_MS + 1
    assert service.step(None) is Step.KILL


def test_what_fails_starts_again_after_pauses_that_grow_and_a_loop_is_told() -> None:
    service, wanted = Service(), deployment()
    pauses, states = [], []
    for _ in range(10):
        service.fail(service.start(wanted))
        states.append(service.status.state)
        pauses.append(service.status.next_start_ms - service.now)
    assert pauses == [pause_after(count) for count in range(1, 11)]
    assert pauses[:4] == [1000, 2000, 4000, 8000]
    assert pauses[-1] == LONGEST_PAUSE_MS
    assert states == [State.BACKOFF] * (LOOP_FAILURES - 1) + [State.CRASH_LOOP] * (11 - LOOP_FAILURES)
    assert service.status.problem == "it broke"
    assert service.step(wanted) is Step.NOTHING


def test_a_runner_that_lived_long_does_not_count_with_those_before_it() -> None:
    service, wanted = Service(), deployment()
    for _ in range(3):
        service.fail(service.start(wanted))
    runner = service.start(wanted)
    service.now += HEALTHY_MS + 1
    service.fail(runner)
    assert service.status.failures == 1


def test_a_killed_runner_is_told_by_its_signal() -> None:
    service = Service()
    service.fail(service.start(deployment()), code=-9, words="")
    assert service.status.problem == "the runner was ended by signal 9"


@pytest.mark.parametrize(("code", "state"), [(ExitCode.MISTAKE, State.FAILED), (ExitCode.OVER, State.DONE)])
def test_what_cannot_run_and_what_is_done_is_started_again_only_when_it_is_asked_for(code: int, state: State) -> None:
    service = Service()
    service.fail(service.start(deployment("1")), code)
    assert service.status.state is state
    for _ in range(100):
        service.now += 10_000
        assert service.step(deployment("1")) is Step.NOTHING
    service.start(deployment("2"))


def test_nobody_starts_what_another_service_runs_and_somebody_does_when_it_falls_silent() -> None:
    service, wanted = Service(), deployment()
    held = LeaseView(holder="other", host="there", silent_ms=4_000)
    for _ in range(100):
        service.now += 1000
        assert service.step(wanted, held) is Step.NOTHING
    service.until(wanted, Step.START, replace(held, silent_ms=SILENT_MS + 1), most=10_000)


def test_a_runner_of_ones_own_that_is_dead_is_not_waited_for() -> None:
    service, wanted = Service(), deployment()
    runner = service.start(wanted)
    service.fail(runner, code=-9)
    service.until(wanted, Step.START, LeaseView(holder=runner, silent_ms=0), most=5_000)
    assert service.supervision.dead == (runner,)


def test_a_runner_that_did_not_get_the_lease_is_no_failure() -> None:
    service, wanted = Service(), deployment()
    service.fail(service.start(wanted), ExitCode.ELSEWHERE)
    assert not service.supervision.is_ours
    assert service.supervision.report(service.now) is None
    service.supervision.learn(Status(name="p", state=State.RUNNING, revision="1", service="two", home="shared"))
    assert service.status.service == "two"
    assert service.status.failures == 0


def test_pauses_count_for_every_service() -> None:
    one, two, wanted = Service("one"), Service("two"), deployment()
    for _ in range(6):
        one.fail(one.start(wanted))
    two.now = one.now
    two.supervision.learn(one.status)
    assert two.until(wanted, Step.START) >= pause_after(6)


def test_a_pause_far_ahead_is_that_of_a_wrong_clock() -> None:
    service, wanted = Service(), deployment()
    away = service.now + 86_400_000
    service.supervision.learn(Status(name="p", state=State.BACKOFF, revision="1", next_start_ms=away, home="shared"))
    service.until(wanted, Step.START, most=10_000)


def test_nobody_starts_without_the_checkpoint() -> None:
    one, two, wanted = Service("one", "disk of one"), Service("two", "disk of two"), deployment()
    one.start(wanted)
    two.now = one.now + 3_600_000
    two.supervision.learn(one.status)
    assert two.step(wanted) is Step.NOTHING
    assert two.status.state is State.WAITING
    assert "its checkpoint is disk of one, out of reach of the service on two" in two.status.problem
    assert two.status.home == "disk of one"
    one.fail("runner-1", code=-9)
    one.supervision.learn(two.status)
    one.start(wanted)


def test_what_is_stopped_says_so_once() -> None:
    service, wanted = Service(), deployment()
    runner = service.start(wanted)
    stopped = replace(wanted, revision="2", wanted=STOPPED)
    assert service.step(stopped) is Step.STOP
    service.fail(runner, ExitCode.OVER)
    assert service.step(stopped) is Step.NOTHING
    report = service.supervision.report(service.now)
    assert report is not None
    assert (report.state, report.revision) == (State.STOPPED, "2")
    for _ in range(100):
        service.now += 1000
        assert service.step(stopped) is Step.NOTHING
        assert service.supervision.report(service.now) is None


def test_progress_is_reported_now_and_then_and_changes_at_once() -> None:
    service, wanted = Service(), deployment()
    service.start(wanted)
    assert service.supervision.report(service.now) is not None
    service.supervision.heard({"event": "progress", "time": 1.0, "sink": "s", "rows_in": 5}, service.now)
    assert service.supervision.report(service.now) is None
    service.now += 2_000
    report = service.supervision.report(service.now)
    assert report is not None
    assert report.sinks == ({"sink": "s", "rows_in": 5},)
    service.supervision.heard({"event": "started"}, service.now)
    assert service.supervision.report(service.now) is not None
    service.supervision.unreported()
    assert service.supervision.report(service.now) is not None
