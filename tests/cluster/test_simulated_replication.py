"""Leaders and followers on links that take their time, with nothing wrong, or with one thing wrong, in virtual time."""

import asyncio
from random import Random

import pytest

from headrace.protocol.errors import ErrorCode
from headrace.testing.loop import run_virtual

from .runs import TOPIC, Plan, Run


def slow_links(run: Run, seconds: float) -> None:
    """Let everything between brokers take so much longer, each way."""
    names = [machine.name for machine in run.cluster]
    for source in names:
        for target in names:
            if source != target:
                run.cluster.network.delay(source, target, seconds)


@pytest.mark.parametrize(("delay", "partitions"), [(0.02, 40), (0.3, 10)])
def test_the_isr_of_idle_partitions_stays_whole_on_slow_links(delay: float, partitions: int) -> None:
    """Each partition gets a record now and then, after a silence that is longer than `replica.lag.time.max.ms`."""

    async def main() -> None:
        run = Run(Plan(seed=1, settings={"replica.lag.time.max.ms": "30000"}))
        cluster = run.cluster
        await cluster.start()
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]] * partitions)
        slow_links(run, delay)
        rng = Random(5)

        async def write_seldom(partition: int) -> None:
            for number in range(10):
                await asyncio.sleep(rng.uniform(35, 60))
                assert await run.write(f"{partition} {number}", partition=partition) is ErrorCode.none

        await asyncio.gather(*(write_seldom(partition) for partition in range(partitions)))
        epochs = [cluster.state(TOPIC, partition).partition_epoch for partition in range(partitions)]
        assert epochs == [0] * partitions, "a healthy ISR was changed"
        await run.end()

    run_virtual(main, 1, longest=3600)
