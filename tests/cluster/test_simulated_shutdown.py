"""Brokers that are asked to stop do so soon, and clients hardly notice."""

import asyncio

import pytest

from headrace.protocol.errors import ErrorCode
from headrace.protocol.peer import InternalApi
from headrace.server.clustered.member import FEED_TIMEOUT, STALE_SECONDS
from headrace.testing.loop import run_virtual
from tests.support.simulation.runs import TOPIC, Plan, Run

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


def test_a_broker_that_stops_asks_again_until_others_have_caught_up() -> None:
    async def main() -> None:
        run = Run(Plan(seed=5, partitions=1))
        cluster = run.cluster
        await cluster.start()
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]])
        hold = cluster.network.hold(InternalApi.REPLICATE, asker="b1")
        other = cluster.network.hold(InternalApi.REPLICATE, asker="b2")
        assert await run.write("a", acks=1) is ErrorCode.none
        await cluster.until(lambda: cluster.state(TOPIC).isr == (0,), "broker 0 is alone in the ISR")
        stopping = asyncio.ensure_future(cluster[0].stop())
        await asyncio.sleep(2)
        hold.release()
        other.release()
        await stopping
        assert cluster.state(TOPIC).leader in (1, 2), "nobody could lead, as it was asked too early"
        await cluster[0].start()
        await cluster.until(cluster.is_whole, "every partition is whole")
        await run.end()

    run_virtual(main, 5, longest=600)


def test_a_broker_that_stops_while_there_is_no_controller_hands_over_to_the_next_one() -> None:
    async def main() -> None:
        run = Run(Plan(seed=6, partitions=1))
        cluster = run.cluster
        await cluster.start()
        controller = cluster.controller()
        assert controller is not None
        first, second = [machine for machine in cluster if machine is not controller]
        await run.client.create_topic(TOPIC, assignments=[[first.id, second.id]])
        await run.write_until_acknowledged("a")
        controller.kill()
        await cluster.until(lambda: cluster.controller() is None, "there is no controller")
        await first.stop()
        assert cluster.state(TOPIC).leader == second.id
        await asyncio.gather(first.start(), controller.start())
        await run.end()

    run_virtual(main, 6, longest=600)


def test_a_topic_of_three_replicas_can_be_made_while_one_of_three_brokers_is_down() -> None:
    async def main() -> None:
        run = Run(Plan(seed=7, partitions=1))
        cluster = run.cluster
        await cluster.start()
        await run.client.create_topic("before", assignments=[[0, 1, 2]])
        await cluster[1].stop()
        await run.client.create_topic(TOPIC, partitions=1)
        state = cluster.state(TOPIC)
        assert (set(state.replicas), set(state.isr), state.leader != 1) == ({0, 1, 2}, {0, 2}, True)
        await run.write_until_acknowledged("a")
        await cluster[1].start()
        await cluster.until(cluster.is_whole, "every partition is whole")
        assert not await run.reckon()
        await run.end()

    run_virtual(main, 7, longest=600)


def test_a_broker_that_does_not_hear_the_controller_sends_clients_away() -> None:
    async def main() -> None:
        run = Run(Plan(seed=8, partitions=1))
        cluster = run.cluster
        await run.start()
        controller = cluster.controller()
        assert controller is not None
        deaf = next(machine for machine in cluster if machine is not controller)
        cluster.network.cut(deaf.name, controller.name)
        await asyncio.sleep(STALE_SECONDS + FEED_TIMEOUT)
        assert deaf.id in cluster.registered()
        member = deaf.broker._clustered
        assert member is not None
        assert member.member.is_out_of_touch
        cluster.network.heal()
        await cluster.until(lambda: not member.member.is_out_of_touch, "the controller is heard again")
        await run.end()

    run_virtual(main, 8, longest=600)
