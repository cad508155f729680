"""Brokers that are asked to stop do so soon, and clients hardly notice."""

import asyncio

import pytest

from headrace.protocol.errors import ErrorCode
from headrace.testing.loop import run_virtual

from .runs import TOPIC, Plan, Run

SOON = 3.0


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("broker", range(3))
def test_a_broker_that_stops_hands_over_first(broker: int) -> None:
    async def main() -> None:
        run = Run(Plan(seed=31))
        cluster = run.cluster
        await run.start()
        run.employ()
        await asyncio.sleep(1)
        began = now()
        await cluster[broker].stop()
        assert now() - began < SOON
        states = [state for topic in cluster.topics().values() for state in topic.partitions]
        assert all(state.leader not in (-1, broker) and broker not in state.isr for state in states)
        assert cluster.registered() == [machine.id for machine in cluster if machine.id != broker]
        await asyncio.sleep(1)
        assert run.longest_silence() < SOON, "somebody had to wait for the session to end"
        await cluster[broker].start()
        await run.require_health()
        await run.dismiss()
        assert not await run.reckon()
        await run.end()

    run_virtual(main, 31, longest=600)


@pytest.mark.parametrize("seed", range(5))
def test_brokers_that_stop_at_once_all_stop_soon(seed: int) -> None:
    async def main() -> None:
        run = Run(Plan(seed=seed))
        cluster = run.cluster
        await run.start()
        run.employ()
        await asyncio.sleep(1 + seed / 10)
        began = now()
        await asyncio.gather(*(machine.stop() for machine in cluster))
        assert now() - began < SOON
        assert cluster.registered() == []
        await cluster.start()
        await run.require_health()
        await run.dismiss()
        assert not await run.reckon()
        await run.end()

    run_virtual(main, seed, longest=600)


def test_a_broker_stops_soon_also_when_nobody_can_be_reached() -> None:
    async def main() -> None:
        run = Run(Plan(seed=32))
        cluster = run.cluster
        await run.start()
        alone = next(machine for machine in cluster if machine is not cluster.controller())
        cluster.network.isolate(alone.name)
        alone.cut_from_store()
        began = now()
        await alone.stop()
        assert now() - began < 25
        cluster.network.heal()
        await cluster.until(lambda: alone.id not in cluster.registered(), "its session has ended")
        await alone.start()
        await cluster.until(cluster.is_whole, "every partition is whole")
        await run.end()

    run_virtual(main, 32, longest=600)


def test_clients_of_a_broker_that_stops_see_nothing_worse_than_errors_that_they_try_again_after() -> None:
    async def main() -> None:
        run = Run(Plan(seed=33, partitions=1))
        await run.cluster.start()
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]])
        codes: set[ErrorCode] = set()

        async def write() -> None:
            for number in range(200):
                codes.add(await run.write(f"{number}", to=0))
                await asyncio.sleep(0.01)

        writing = asyncio.ensure_future(write())
        await asyncio.sleep(0.5)
        await run.cluster[0].stop()
        await writing
        assert codes <= {ErrorCode.none, ErrorCode.not_leader_or_follower, ErrorCode.network_exception}
        assert not await run.reckon()
        await run.cluster[0].start()
        await run.end()

    run_virtual(main, 33, longest=600)
