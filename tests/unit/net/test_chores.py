"""Chores come again at their intervals, whatever becomes of them."""

import asyncio
from typing import cast

from headrace.net.tasks import Tasks
from headrace.server.broker import Broker, BrokerFailed, _served
from headrace.testing.loop import run_virtual


def test_an_interval_that_changes_counts_from_the_next_time_on() -> None:
    async def main() -> None:
        now, seconds, times = asyncio.get_running_loop().time, [5.0], list[float]()
        began = now()
        chores = Tasks()
        chores.every(lambda: seconds[0], "look", lambda: times.append(now() - began))
        await asyncio.sleep(6)
        seconds[0] = 1.0
        await asyncio.sleep(6.5)
        await chores.close()
        assert times == [5.0, 10.0, 11.0, 12.0]

    run_virtual(main)


def test_a_chore_that_fails_is_tried_again() -> None:
    async def main() -> None:
        tries = 0

        def fail() -> None:
            nonlocal tries
            tries += 1
            raise OSError("no space")

        chores = Tasks()
        chores.every(1.0, "write", fail)
        await asyncio.sleep(3.5)
        await chores.close()
        assert tries == 3

    run_virtual(main)


def test_a_chore_goes_on_when_its_interval_could_not_be_told() -> None:
    async def main() -> None:
        times, intervals = 0, [1.0, None, 1.0]

        def seconds() -> float:
            found = intervals.pop(0) if intervals else 1.0
            if found is None:
                raise ValueError("a fault that nobody has foreseen")
            return found

        def count() -> None:
            nonlocal times
            times += 1

        chores = Tasks()
        chores.every(seconds, "count", count)
        await asyncio.sleep(5)
        await chores.close()
        assert times >= 3

    run_virtual(main)


def test_a_broker_that_cannot_go_on_ends_with_an_exit_code_that_says_so() -> None:
    class Failing:
        async def failed(self) -> None:
            raise BrokerFailed("membership failed: broker 1 is alive elsewhere")

    async def main() -> None:
        assert await _served(cast(Broker, Failing()), asyncio.Event()) == 1

    run_virtual(main)


def test_a_broker_that_is_stopped_ends_with_zero() -> None:
    class Going:
        async def failed(self) -> None:
            await asyncio.Event().wait()

    async def main() -> None:
        stop = asyncio.Event()
        stop.set()
        assert await _served(cast(Broker, Going()), stop) == 0
        await asyncio.sleep(0)

    run_virtual(main)
