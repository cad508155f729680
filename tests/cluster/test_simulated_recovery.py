"""Machines that stop, all or most of them, and what is led when they are back."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headrace.cluster.store import StoreError
from headrace.testing.loop import run_virtual

from .runs import TOPIC, Plan, Run

Story = Callable[[Run], Awaitable[None]]


def told(story: Story, *, seed: int = 1, settings: dict[str, str] | None = None) -> None:
    """Lets a story happen to three brokers that hold one partition; it ends with all in sync and nothing lost."""

    async def main() -> None:
        run = Run(Plan(seed=seed, partitions=1, settings=settings or {}))
        await run.cluster.start()
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]])
        await run.write_until_acknowledged("a")
        await run.cluster.until(run.cluster.is_whole, "every partition is whole")
        await story(run)
        await run.write_until_acknowledged("z")
        await run.cluster.until(run.cluster.is_whole, "every partition is whole")
        found = await run.reckon()
        assert not found, "\n".join(found)
        await run.end()

    run_virtual(main, seed, longest=3600)


def test_starts_that_fail_for_want_of_the_store_do_not_use_up_a_clean_stop() -> None:
    async def story(run: Run) -> None:
        await run.cluster.stop()
        for machine in run.cluster:
            machine.reboot()
            for _ in range(2):
                with pytest.raises(StoreError):
                    await machine.start(cut_from_store=True)
        await asyncio.gather(*(machine.start() for machine in run.cluster))

    told(story)
