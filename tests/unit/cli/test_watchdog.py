"""A supervisor's watchdog: who falls silent is ended, who stops in order or was never ready is not."""

import asyncio
import signal

import pytest

from headrace.cli import watchdog
from headrace.cli.service_manager import ServiceManager
from headrace.cli.watchdog import Watchdog

SHORT = 0.02


def test_a_child_that_falls_silent_is_aborted_and_then_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "ABORT_SECONDS", SHORT)

    async def watch() -> list[signal.Signals]:
        sent: asyncio.Queue[signal.Signals] = asyncio.Queue()
        dog = Watchdog(SHORT, sent.put_nowait)
        ServiceManager({"NOTIFY_SOCKET": dog.variables["NOTIFY_SOCKET"]}).ready("and no word more")
        async with asyncio.timeout(30):
            numbers = [await sent.get(), await sent.get()]
        dog.close()
        return numbers

    assert asyncio.run(watch()) == [signal.SIGABRT, signal.SIGKILL]


@pytest.mark.parametrize("stops", [True, False])
def test_a_child_that_stops_in_order_or_was_never_ready_is_left_alone(stops: bool) -> None:
    async def watch() -> list[signal.Signals]:
        sent: list[signal.Signals] = []
        quiet, heard = Watchdog(SHORT, sent.append), asyncio.Event()
        child = ServiceManager({"NOTIFY_SOCKET": quiet.variables["NOTIFY_SOCKET"]})
        if stops:
            child.ready()
            child.stopping()
        else:
            child.status("recovering")
        other = Watchdog(2 * SHORT, lambda _: heard.set())  # twice as patient, and told later
        ServiceManager({"NOTIFY_SOCKET": other.variables["NOTIFY_SOCKET"]}).ready()
        async with asyncio.timeout(30):
            await heard.wait()
        quiet.close()
        other.close()
        return sent

    assert asyncio.run(watch()) == []


def test_a_child_that_answers_outlives_one_that_does_not() -> None:
    async def watch() -> list[signal.Signals]:
        sent: list[signal.Signals] = []
        silent = asyncio.Event()
        answered = Watchdog(SHORT, sent.append)
        other = Watchdog(5 * SHORT, lambda _: silent.set())
        child = ServiceManager(answered.variables)
        child.ready()
        ServiceManager({"NOTIFY_SOCKET": other.variables["NOTIFY_SOCKET"]}).ready()
        async with asyncio.timeout(30):
            await silent.wait()
        answered.close()
        other.close()
        return sent

    assert asyncio.run(watch()) == []
