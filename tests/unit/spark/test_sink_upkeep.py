"""Drivers are looked after between their batches, often at first."""

import pytest

from headrace.client.errors import ClientError
from headrace.spark.sink import upkeep as sink_upkeep
from headrace.spark.sink.commit import CommitError
from headrace.spark.sink.upkeep import FORGET_SECONDS, JOB_SECONDS, LATER_SECONDS, TICK_SECONDS, Upkeep
from tests.support.process import wait_for
from tests.support.spark.logs import FakeClock


class Driver:
    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.times = 0

    def look_after(self) -> None:
        self.times += 1
        if self.errors:
            raise self.errors.pop(0)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def upkeep(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Upkeep:
    monkeypatch.setattr(Upkeep, "_run", lambda _self: None)
    return Upkeep(clock)


def ticks(upkeep: Upkeep, clock: FakeClock, seconds: float) -> None:
    until = clock.now + seconds
    while clock.now < until:
        clock.now += TICK_SECONDS
        upkeep.tick()


def test_a_query_is_looked_after_every_few_seconds_after_a_batch_and_then_every_minute(
    upkeep: Upkeep, clock: FakeClock
) -> None:
    driver = Driver()
    upkeep.begin(driver)
    ticks(upkeep, clock, LATER_SECONDS)
    assert driver.times == LATER_SECONDS // TICK_SECONDS
    driver.times = 0
    ticks(upkeep, clock, 10 * LATER_SECONDS)
    assert driver.times == 10


def test_a_query_without_batches_is_forgotten_after_a_day_and_a_job_after_a_minute(
    upkeep: Upkeep, clock: FakeClock
) -> None:
    upkeep.begin(Driver())
    upkeep.begin(Driver(), JOB_SECONDS)
    clock.now += JOB_SECONDS + 1
    assert upkeep.tick()
    assert len(upkeep._turns) == 1
    clock.now += FORGET_SECONDS
    assert not upkeep.tick()


def test_a_cluster_that_is_away_is_asked_again_and_a_query_that_another_driver_has_is_not(
    upkeep: Upkeep, clock: FakeClock
) -> None:
    away, superseded = Driver(ClientError("away")), Driver(CommitError("taken"))
    upkeep.begin(away)
    upkeep.begin(superseded)
    ticks(upkeep, clock, 3 * TICK_SECONDS)
    assert (away.times, superseded.times) == (3, 1)


def test_a_thread_looks_after_drivers_as_long_as_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_upkeep, "TICK_SECONDS", 0.001)
    upkeep, first, second = Upkeep(), Driver(CommitError("taken")), Driver(CommitError("taken"))
    for driver in (first, second):
        upkeep.begin(driver)
        wait_for("its turn", lambda: upkeep._thread is None)
        assert driver.times == 1
