"""Chores come again at their intervals, whatever becomes of them."""

import asyncio

from headrace.server.housekeeping import Housekeeping
from headrace.testing.loop import run_virtual


def test_an_interval_that_changes_counts_from_the_next_time_on() -> None:
    async def main() -> None:
        now, seconds, times = asyncio.get_running_loop().time, [5.0], list[float]()
        began = now()
        housekeeping = Housekeeping()
        housekeeping.every(lambda: seconds[0], "look", lambda: times.append(now() - began))
        await asyncio.sleep(6)
        seconds[0] = 1.0
        await asyncio.sleep(6.5)
        await housekeeping.stop()
        assert times == [5.0, 10.0, 11.0, 12.0]

    run_virtual(main)


def test_a_chore_that_fails_is_tried_again() -> None:
    async def main() -> None:
        tries = 0

        def fail() -> None:
            nonlocal tries
            tries += 1
            raise OSError("no space")

        housekeeping = Housekeeping()
        housekeeping.every(1.0, "write", fail)
        await asyncio.sleep(3.5)
        await housekeeping.stop()
        assert tries == 3

    run_virtual(main)
