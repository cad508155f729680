"""Background tasks come back when they fail, and nobody has to look after them."""

import asyncio
from itertools import pairwise

import pytest
from structlog.testing import capture_logs

from headrace.net.tasks import LONGEST_PAUSE_SECONDS, Tasks
from headrace.testing.loop import run_virtual


def test_what_is_kept_is_begun_anew_after_each_failure_and_less_and_less_often() -> None:
    async def main() -> None:
        now, begun = asyncio.get_running_loop().time, list[float]()

        async def fail() -> None:
            begun.append(now())
            raise ValueError("a bug")

        tasks = Tasks()
        tasks.keep("failing", fail)
        await asyncio.sleep(100)
        await tasks.close()
        pauses = [later - earlier for earlier, later in pairwise(begun)]
        assert pauses[:4] == pytest.approx([0.05, 0.1, 0.2, 0.4])
        assert pauses[-1] == pytest.approx(LONGEST_PAUSE_SECONDS)

    run_virtual(main)


def test_what_returns_is_over() -> None:
    async def main() -> None:
        times = 0

        async def once() -> None:
            nonlocal times
            times += 1

        tasks = Tasks()
        await tasks.keep("once", once)
        await asyncio.sleep(100)
        assert times == 1

    run_virtual(main)


def test_a_fatal_failure_is_reported_and_ends_the_task() -> None:
    async def main() -> None:
        reported: list[tuple[str, Exception]] = []

        async def fail() -> None:
            raise ValueError("the end")

        tasks = Tasks(lambda name, error: reported.append((name, error)))
        task = tasks.keep("vital", fail, is_fatal=lambda error: isinstance(error, ValueError))
        with pytest.raises(ValueError, match="the end"):
            await task
        assert [name for name, _ in reported] == ["vital"]

    run_virtual(main)


def test_what_is_spawned_and_fails_is_logged() -> None:
    async def main() -> None:
        async def errand() -> None:
            raise ValueError("a bug")

        tasks = Tasks()
        tasks.spawn(errand())
        await asyncio.sleep(1)

    with capture_logs() as logged:
        run_virtual(main)
    assert [entry["event"] for entry in logged] == ["background task failed"]


def test_nothing_runs_on_once_it_is_closed() -> None:
    async def main() -> None:
        tasks = Tasks()
        kept = tasks.keep("waiting", lambda: asyncio.sleep(1000))
        tasks.spawn(asyncio.sleep(1000))
        await asyncio.sleep(1)
        await tasks.close()
        assert kept.cancelled()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main)
