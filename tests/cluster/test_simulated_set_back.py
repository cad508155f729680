"""A metadata store that is set back to an earlier state: nothing that was acknowledged is deleted or cut for it."""

import asyncio
from collections.abc import Awaitable, Callable

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.testing.loop import run_virtual

from .runs import TOPIC, Plan, Run

Story = Callable[[Run], Awaitable[None]]


def told(story: Story, *, seed: int = 1) -> None:
    async def main() -> None:
        run = Run(Plan(seed=seed, partitions=1))
        await run.cluster.start()
        await story(run)
        await run.end()

    run_virtual(main, seed, longest=3600)


def directories(run: Run, topic: str = TOPIC) -> list[list[str]]:
    """What is left of a topic's logs on each machine: the ends of names."""
    found = [[name for name in machine.disk.listdir("/data") if name.startswith(topic)] for machine in run.cluster]
    return [sorted(name.rpartition("-")[2] for name in names) for names in found]


def test_logs_of_topics_that_a_store_set_back_does_not_know_are_kept() -> None:
    async def story(run: Run) -> None:
        await asyncio.sleep(5)
        backup = run.cluster.ensemble.backup()
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]])
        await run.write_until_acknowledged("a")
        await run.cluster.until(run.cluster.is_whole, "every partition is whole")
        run.cluster.ensemble.restore(backup)
        await run.cluster.until(lambda: directories(run) == [["stray"]] * 3, "the logs are set aside")
        await asyncio.sleep(600)
        assert directories(run) == [["stray"]] * 3

    told(story)


def test_a_broker_that_was_down_when_a_topic_was_deleted_deletes_it_when_it_is_back() -> None:
    async def story(run: Run) -> None:
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]])
        await run.cluster[2].stop()
        topics = [{"name": TOPIC, "topic_id": None}]
        values = {"topics": topics, "timeout": 5_000}
        answer = await run.client.ask(run.cluster[0].address, ApiKey.DELETE_TOPICS, 6, values, seconds=30)
        assert answer.responses[0].error_code == ErrorCode.none
        await run.cluster[2].start()
        await run.cluster.until(lambda: directories(run) == [[]] * 3, "the logs are deleted", seconds=600)

    told(story)
