"""Short turns are asked for where the kernel has them, and nothing else changes."""

import os
import threading
from collections.abc import Callable

import pytest

from headrace.net import turns


def in_a_thread(call: Callable[[], None]) -> None:
    """What a thread asks for is its own: this process stays as it is."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def test_a_thread_has_the_turns_that_it_asks_for() -> None:
    def ask() -> None:
        before, policy, nice = turns.turn_ns(), os.sched_getscheduler(0), os.nice(0)
        turns.ask_for_turns(turns.SHORT_NS)
        assert turns.turn_ns() == (turns.SHORT_NS if before else 0)
        assert (os.sched_getscheduler(0), os.nice(0)) == (policy, nice)
        turns.ask_for_turns(0)
        assert bool(turns.turn_ns()) == bool(before)

    in_a_thread(ask)


def test_threads_that_it_starts_have_them_too() -> None:
    def ask() -> None:
        turns.ask_for_turns(turns.SHORT_NS)
        mine, found = turns.turn_ns(), []
        in_a_thread(lambda: found.append(turns.turn_ns()))
        assert found == [mine]

    in_a_thread(ask)


def test_a_policy_that_somebody_chose_stays() -> None:
    def ask() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        turns.ask_for_turns(turns.SHORT_NS)
        assert os.sched_getscheduler(0) == os.SCHED_IDLE

    in_a_thread(ask)


@pytest.mark.parametrize("machine", ["vax", "x86_64", "aarch64"])
def test_a_kernel_that_knows_no_such_thing_is_no_trouble(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def __init__(self, _name: None) -> None:
            pass

        def syscall(self, *_arguments: object) -> int:
            return -1

    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("ctypes.CDLL", Refusing)
    turns.ask_for_turns(turns.SHORT_NS)
    assert turns.turn_ns() == 0
