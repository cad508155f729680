"""Machines that lose power: a log that was synced before each acknowledgement is counted on, others are not."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.storage.checkpoints import SYNCED_LOGS
from headrace.testing.cluster import Machine
from headrace.testing.loop import run_virtual
from tests.support.simulation.runs import FIRST_SYNC_SECONDS, TOPIC, Plan, Run
from tests.support.simulation.transacting import TransactionalProducer

Story = Callable[[Run], Awaitable[None]]

SYNCED = "1"
UNSYNCED = "1000000"
PROOFS = f"/data/{SYNCED_LOGS}"


def told(story: Story, *, flush_messages: str, seed: int = 1, least_isr: int = 2) -> None:
    """Lets a story happen to three brokers that hold one partition; it ends with all in sync and nothing lost."""

    async def main() -> None:
        run = Run(Plan(seed=seed, brokers=4, partitions=1))
        configs = {"flush.messages": flush_messages, "min.insync.replicas": str(least_isr)}
        await run.start_with((0, 1, 2), configs, "a")
        await run.cluster.until(run.cluster.is_whole, "every partition is whole")
        await asyncio.sleep(FIRST_SYNC_SECONDS)
        await story(run)
        await run.write_until_acknowledged("z")
        await run.end_whole()

    run_virtual(main, seed, longest=3600)


def replicas(run: Run) -> list[Machine]:
    return [run.cluster[broker] for broker in (0, 1, 2)]


def lose_power(run: Run) -> None:
    """All replicas; the fourth broker stays, and is the controller then."""
    for machine in replicas(run):
        machine.lose_power()


async def write(run: Run, values: str) -> None:
    for value in values:
        await run.write_until_acknowledged(value)


async def set_flush_messages(run: Run, value: str) -> None:
    config = {"name": "flush.messages", "config_operation": 0, "value": value}
    resource = {"resource_type": 2, "resource_name": TOPIC, "configs": [config]}
    values = {"resources": [resource], "validate_only": False}
    code: ErrorCode | None = None
    async with asyncio.timeout(60):
        while code is not ErrorCode.none:
            with suppress(OSError):
                answer = await run.client.ask(run.cluster[3].address, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, values)
                code = answer.responses[0].error_code
            await run.client.pause()


async def until_in_force(run: Run, *, is_durable: bool) -> None:
    def holds() -> bool:
        held = [machine.broker.replicas.partition(TOPIC, 0) for machine in replicas(run)]
        return all(partition.is_durable is is_durable for partition in held)

    await run.cluster.until(holds, "the setting is in force")


async def until_proved(run: Run, *brokers: int) -> None:
    def proved(broker: int) -> bool:
        disk = run.cluster[broker].disk
        return disk.exists(PROOFS) and f"{TOPIC} 0 ".encode() in disk.read(PROOFS)

    await run.cluster.until(lambda: all(proved(broker) for broker in brokers), "the logs are known to be synced")


async def comes_back_alone(run: Run, broker: int) -> None:
    """It leads by itself, with everything that was acknowledged."""
    await asyncio.sleep(30)
    await run.cluster[broker].start()
    await run.cluster.until(lambda: run.cluster.state(TOPIC).leader == broker, "it leads by itself", 10)
    run.client.forget(TOPIC, 0)
    assert set(b"abcdef") <= set(b"".join((await run.client.read_all(TOPIC, 0)).values()))


async def waits_for_the_others(run: Run, *back: int) -> None:
    """Nobody leads when only these are back."""
    await asyncio.sleep(30)
    for broker in back:
        await run.cluster[broker].start()
    await asyncio.sleep(60)
    state = run.cluster.state(TOPIC)
    assert state.leader == -1
    assert state.last_known_elr == back


async def start_others(run: Run, *brokers: int) -> None:
    for broker in brokers:
        await run.cluster[broker].start()


@pytest.mark.parametrize("back", [0, 1, 2])
def test_one_log_that_was_synced_before_each_acknowledgement_leads_by_itself(back: int) -> None:
    async def story(run: Run) -> None:
        await write(run, "bcdef")
        await until_proved(run, 0, 1, 2)
        lose_power(run)
        await comes_back_alone(run, back)
        await start_others(run, *({0, 1, 2} - {back}))

    told(story, flush_messages=SYNCED, seed=back, least_isr=1)


@pytest.mark.parametrize("seed", range(3))
def test_a_log_that_was_not_synced_waits_for_the_others(seed: int) -> None:
    async def story(run: Run) -> None:
        await write(run, "bcdef")
        await run.flush(2)
        await asyncio.sleep(1)
        lose_power(run)
        await waits_for_the_others(run, 0, 1)
        await start_others(run, 2)

    told(story, flush_messages=UNSYNCED, seed=seed)


@pytest.mark.parametrize("seed", range(3))
def test_a_setting_that_came_after_the_acknowledgements_proves_nothing(seed: int) -> None:
    async def story(run: Run) -> None:
        await write(run, "bcdef")
        await run.flush(2)
        await asyncio.sleep(1)
        lose_power(run)
        await set_flush_messages(run, SYNCED)
        await waits_for_the_others(run, 0, 1)
        await start_others(run, 2)

    told(story, flush_messages=UNSYNCED, seed=seed)


def test_a_log_is_counted_on_once_the_new_setting_has_synced_it() -> None:
    async def story(run: Run) -> None:
        await write(run, "bcd")
        await set_flush_messages(run, SYNCED)
        await until_proved(run, 0, 1, 2)
        await write(run, "ef")
        lose_power(run)
        await comes_back_alone(run, 1)
        await start_others(run, 0, 2)

    told(story, flush_messages=UNSYNCED, least_isr=1)


@pytest.mark.parametrize("seed", range(3))
def test_a_log_that_was_synced_no_more_before_it_acknowledged_waits_for_the_others(seed: int) -> None:
    async def story(run: Run) -> None:
        await write(run, "bcd")
        await until_proved(run, 0, 1, 2)
        await set_flush_messages(run, UNSYNCED)
        await until_in_force(run, is_durable=False)
        await write(run, "ef")
        await run.flush(2)
        await asyncio.sleep(1)
        lose_power(run)
        await set_flush_messages(run, SYNCED)
        await waits_for_the_others(run, 0, 1)
        await start_others(run, 2)

    told(story, flush_messages=SYNCED, seed=seed)


def test_what_was_synced_counts_whatever_the_setting_became_meanwhile() -> None:
    async def story(run: Run) -> None:
        await write(run, "bcdef")
        await until_proved(run, 0, 1, 2)
        lose_power(run)
        await set_flush_messages(run, UNSYNCED)
        await comes_back_alone(run, 2)
        await start_others(run, 0, 1)

    told(story, flush_messages=SYNCED, least_isr=1)


@pytest.mark.parametrize("seed", range(5))
def test_the_only_coordinator_gives_no_epoch_out_twice(seed: int) -> None:
    """A batch of the second transaction with that epoch would be taken for one of the first, and not be written."""

    async def main() -> None:
        one = {"offsets.topic.replication.factor": "1", "transaction.state.log.replication.factor": "1"}
        run = Run(Plan(seed=seed, brokers=1, settings={**one, "transaction.state.log.min.isr": "1"}))
        await run.cluster.start()
        producer = TransactionalProducer(run.cluster, "copier", TOPIC, newer=False, timeout_ms=10_000)
        given: list[tuple[int, int] | None] = []
        for _ in range(20):
            await producer.init()
            given.append(producer.identity)
        run.cluster[0].lose_power()
        await asyncio.sleep(30)
        await run.cluster[0].start()
        await producer.init()
        assert producer.identity not in given
        producer.client.close()
        await run.end()

    run_virtual(main, seed, longest=600)
