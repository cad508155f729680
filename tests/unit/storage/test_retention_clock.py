"""A clock that jumps ahead makes nothing expire."""

from headrace.storage.retention_clock import CLOCK_CHECKPOINT, RetentionClock
from headrace.testing.clock import SimulatedClock
from headrace.testing.disk import SimulatedDisk

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR


class Machine:
    """A clock that can be set, the uptime that cannot, and the data directory of a broker."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.disk = SimulatedDisk()
        self.disk.mkdir("/data")
        self.boot_id = "first"
        self.most_ms = HOUR

    def start_broker(self) -> RetentionClock:
        clock = RetentionClock(
            self.clock,
            uptime=self.clock.monotonic,
            most_ms=lambda: self.most_ms,
            boot_id=self.boot_id,
            disk=self.disk,
            directory="/data",
        )
        clock.load()
        return clock


def test_time_that_passes_is_believed_however_long() -> None:
    machine = Machine()
    clock = machine.start_broker()
    for _ in range(30):
        machine.clock.advance(DAY)
        assert clock.now_ms() == machine.clock.now_ms()
        assert clock.jump_ms == 0


def test_a_clock_ten_days_ahead_is_not_believed_until_it_is_back() -> None:
    machine = Machine()
    clock = machine.start_broker()
    before = clock.now_ms()
    machine.clock.jump(10 * DAY)
    assert clock.now_ms() == before
    assert clock.jump_ms == 10 * DAY
    machine.clock.advance(2 * HOUR)
    assert clock.now_ms() == before + 2 * HOUR, "what really passes counts"
    machine.clock.jump(-10 * DAY)
    assert clock.now_ms() == machine.clock.now_ms()
    assert clock.jump_ms == 0


def test_small_corrections_are_believed_and_do_not_add_up() -> None:
    machine = Machine()
    clock = machine.start_broker()
    for _ in range(100):
        machine.clock.advance(HOUR)
        machine.clock.jump(MINUTE)
        assert clock.now_ms() == machine.clock.now_ms()


def test_a_clock_that_is_set_back_is_believed_and_may_return() -> None:
    machine = Machine()
    clock = machine.start_broker()
    for jump in (-DAY, DAY):
        machine.clock.jump(jump)
        assert clock.now_ms() == machine.clock.now_ms()
        assert clock.jump_ms == 0


def test_the_operator_can_allow_the_jump_and_need_not_go_on_allowing_it() -> None:
    machine = Machine()
    clock = machine.start_broker()
    machine.clock.jump(10 * DAY)
    clock.now_ms()
    machine.most_ms = -1
    assert clock.now_ms() == machine.clock.now_ms()
    machine.most_ms = HOUR
    assert clock.now_ms() == machine.clock.now_ms()
    assert clock.jump_ms == 0


def test_a_restart_of_the_broker_believes_no_more_than_its_last_life() -> None:
    machine = Machine()
    machine.start_broker().save()
    machine.clock.advance(MINUTE)
    machine.clock.jump(10 * DAY)
    for _ in range(2):
        clock = machine.start_broker()
        assert clock.now_ms() == machine.clock.now_ms() - 10 * DAY
        assert clock.jump_ms == 10 * DAY
        clock.save()


def test_a_broker_that_was_stopped_for_ten_days_believes_the_clock() -> None:
    machine = Machine()
    machine.start_broker().save()
    machine.clock.advance(10 * DAY)
    assert machine.start_broker().now_ms() == machine.clock.now_ms()


def test_a_machine_that_was_off_for_ten_days_is_believed() -> None:
    machine = Machine()
    machine.start_broker().save()
    machine.boot_id = "second"
    machine.clock.jump(10 * DAY)
    clock = machine.start_broker()
    assert clock.now_ms() == machine.clock.now_ms()
    machine.clock.jump(10 * DAY)
    assert clock.now_ms() == machine.clock.now_ms() - 10 * DAY


def start_in_the_past(machine: Machine, days: int) -> RetentionClock:
    """A broker that ran before its machine was restarted with a clock that is behind."""
    machine.clock.advance(DAY)
    machine.start_broker().save()
    machine.boot_id = "second"
    machine.clock.jump(-days * DAY)
    return machine.start_broker()


def test_a_machine_that_starts_in_the_past_is_believed_once_its_clock_is_set() -> None:
    machine = Machine()
    clock = start_in_the_past(machine, days=300)
    assert clock.now_ms() == machine.clock.now_ms()
    machine.clock.advance(5 * DAY)
    machine.clock.jump(300 * DAY)
    assert clock.now_ms() == machine.clock.now_ms()
    machine.clock.jump(3 * DAY)
    assert clock.now_ms() == machine.clock.now_ms() - 3 * DAY


def test_a_machine_that_starts_in_the_past_may_not_jump_ahead_of_what_was_remembered() -> None:
    machine = Machine()
    clock = start_in_the_past(machine, days=1)
    machine.clock.advance(MINUTE)
    machine.clock.jump(3650 * DAY)
    assert clock.now_ms() == machine.clock.now_ms() - 3649 * DAY
    assert clock.jump_ms == 3649 * DAY


def test_a_broker_restarted_while_the_clock_is_behind_believes_it_once_it_is_set() -> None:
    machine = Machine()
    start_in_the_past(machine, days=300).save()
    machine.clock.advance(MINUTE)
    clock = machine.start_broker()
    assert clock.now_ms() == machine.clock.now_ms()
    clock.save()
    machine.boot_id = "third"
    clock = machine.start_broker()
    machine.clock.jump(300 * DAY)
    assert clock.now_ms() == machine.clock.now_ms()
    assert clock.jump_ms == 0


def test_a_clock_that_is_set_back_may_return_after_a_restart_of_the_broker() -> None:
    machine = Machine()
    clock = machine.start_broker()
    machine.clock.jump(-DAY)
    clock.save()
    clock = machine.start_broker()
    assert clock.now_ms() == machine.clock.now_ms()
    machine.clock.jump(DAY)
    assert clock.now_ms() == machine.clock.now_ms()


DAMAGED = (
    b"",
    b"{",
    b"[]",
    b"[" * 20_000,
    b'{"wall_ms": "x", "uptime": 0, "boot_id": "first"}',
    b'{"wall_ms": Infinity, "uptime": 0, "boot_id": "first"}',
    b'{"wall_ms": -1, "uptime": 0, "boot_id": "first"}',
    b'{"wall_ms": 1, "uptime": -Infinity, "boot_id": "first"}',
    b'{"wall_ms": 1, "uptime": NaN, "boot_id": "first"}',
    b'{"wall_ms": 1e300, "uptime": 0, "boot_id": "first"}',
    b'{"wall_ms": 1}',
)


def test_a_damaged_checkpoint_says_nothing() -> None:
    for content in DAMAGED:
        machine = Machine()
        machine.disk.write(f"/data/{CLOCK_CHECKPOINT}", content)
        clock = machine.start_broker()
        assert clock.now_ms() == machine.clock.now_ms()
        machine.clock.jump(DAY)
        assert clock.jump_ms == 0
        assert clock.now_ms() == machine.clock.now_ms() - DAY
