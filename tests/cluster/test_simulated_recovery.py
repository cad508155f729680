"""Machines that stop, all or most of them, and what is led when they are back."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headrace.cluster.store import StoreError
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.server.handlers.reassignments import DESIGNATED, UNCLEAN
from headrace.testing.loop import run_virtual
from tests.support.simulation.runs import FIRST_SYNC_SECONDS, TOPIC, Plan, Run

Story = Callable[[Run], Awaitable[None]]


def told(story: Story, *, seed: int = 1, settings: dict[str, str] | None = None) -> None:
    """Lets a story happen to three brokers that hold one partition; it ends with all in sync and nothing lost."""

    async def main() -> None:
        run = Run(Plan(seed=seed, partitions=1, settings=settings or {}))
        await run.start_with((0, 1, 2), {}, "a")
        await run.cluster.until(run.cluster.is_whole, "every partition is whole")
        await asyncio.sleep(FIRST_SYNC_SECONDS)
        await story(run)
        await run.write_until_acknowledged("z")
        await run.end_whole()

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


async def lose_power_of_all(run: Run, *back: int) -> None:
    """The whole site goes dark; then those named are started again."""
    for machine in run.cluster:
        machine.lose_power()
    await asyncio.sleep(30)
    await asyncio.gather(*(run.cluster[broker].start() for broker in back))


@pytest.mark.parametrize("seed", range(5))
def test_a_site_that_lost_power_comes_back_with_the_log_that_reaches_furthest(seed: int) -> None:
    async def story(run: Run) -> None:
        for value in "bcdef":
            await run.write_until_acknowledged(value)
        await run.flush(seed % 3)
        await asyncio.sleep(1)
        await lose_power_of_all(run, 0, 1, 2)
        await run.cluster.until(lambda: run.cluster.state(TOPIC).leader >= 0, "somebody leads")

    told(story, seed=seed)


def test_nobody_leads_before_all_who_may_hold_acknowledged_records_are_back() -> None:
    async def story(run: Run) -> None:
        await run.write_until_acknowledged("b")
        await run.flush(2)
        await asyncio.sleep(1)
        await lose_power_of_all(run, 0, 1)
        await asyncio.sleep(60)
        state = run.cluster.state(TOPIC)
        assert (state.leader, state.isr, state.last_known_elr) == (-1, (2,), (0, 1))
        await run.cluster[2].start()
        await run.cluster.until(lambda: run.cluster.state(TOPIC).leader == 2, "the log that was synced leads")

    told(story)


async def elect_uncleanly(run: Run, kind: int) -> ErrorCode:
    partitions = [{"topic": TOPIC, "partitions": [0]}]
    values = {"election_type": kind, "topic_partitions": partitions, "timeout": 5_000}
    answer = await run.client.ask(run.cluster[0].address, ApiKey.ELECT_LEADERS, 2, values)
    return ErrorCode(answer.replica_election_results[0].partition_result[0].error_code)


def test_an_operator_who_gives_up_a_broker_gets_the_log_that_reaches_furthest_or_the_one_named() -> None:
    async def story(run: Run) -> None:
        await run.write_until_acknowledged("b")
        await run.flush(1)
        await asyncio.sleep(1)
        await lose_power_of_all(run, 0, 1)
        run.client.forget(TOPIC, 0)
        assert await elect_uncleanly(run, DESIGNATED + 2) is ErrorCode.eligible_leaders_not_available
        assert await elect_uncleanly(run, UNCLEAN) is ErrorCode.none
        assert run.cluster.state(TOPIC).leader == 1
        assert await elect_uncleanly(run, UNCLEAN) is ErrorCode.election_not_needed
        await run.write_until_acknowledged("c")
        await run.cluster[2].start()
        await lose_power_of_all(run, 0, 1)
        assert await elect_uncleanly(run, DESIGNATED + 0) is ErrorCode.none
        assert run.cluster.state(TOPIC).leader == 0
        run.history.note("loss", "info", topic=TOPIC, partition=0)  # by that choice
        await run.cluster[2].start()

    told(story)


def test_where_unclean_elections_are_allowed_the_longest_living_log_leads() -> None:
    async def story(run: Run) -> None:
        await run.cluster.until(run.cluster.is_whole, "every partition is whole")
        run.cluster[0].kill()
        await run.cluster.until(lambda: 0 not in run.cluster.state(TOPIC).isr, "broker 0 has left the ISR")
        await run.write_until_acknowledged("b")
        await asyncio.sleep(1)
        for broker in (1, 2):
            run.cluster[broker].kill()
        await asyncio.gather(run.cluster[0].start(), run.cluster[1].start())
        await run.cluster.until(lambda: run.cluster.state(TOPIC).leader == 1, "broker 1 leads, which holds more")
        await run.cluster[2].start()

    told(story, settings={"unclean.leader.election.enable": "true", "min.insync.replicas": "1"})


def test_any_replica_tells_an_operator_how_far_its_own_log_reaches() -> None:
    async def story(run: Run) -> None:
        await run.write_until_acknowledged("b")
        asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
        topics = [{"name": TOPIC, "partitions": [asked]}]
        for machine in run.cluster:
            values = {"replica_id": -2, "isolation_level": 0, "topics": topics}
            answer = await run.client.ask(machine.address, ApiKey.LIST_OFFSETS, 7, values)
            (found,) = answer.topics[0].partitions
            assert (found.error_code, found.offset, found.leader_epoch) == (ErrorCode.none, 2, 0)

    told(story)
