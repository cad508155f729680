"""Every background task of a broker that fails, by a fault that nobody has foreseen, is there again soon after.

A fault is put into a method that the task calls; then a cluster has to do everything once: replicate, change an ISR,
make a topic, and elect a controller.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace.cluster.active_controller import ActiveController
from headrace.cluster.membership import IdInUse, Membership
from headrace.cluster.subscriber import Subscriber
from headrace.protocol.errors import ErrorCode
from headrace.replication.cleaner import Cleaner
from headrace.replication.fetcher import Fetcher
from headrace.replication.isr import IsrKeeper
from headrace.replication.log_maintenance import LogMaintenance
from headrace.replication.partition import Partition
from headrace.replication.replica_fetch_state import ReplicaFetchState
from headrace.replication.replica_manager import ReplicaManager
from headrace.server.broker import BrokerFailed
from headrace.server.clustered.member import ClusterMember
from headrace.server.schema_book import SchemaBook
from headrace.testing.loop import run_virtual
from tests.support.simulation.runs import TOPIC, Plan, Run, different_replicas


class Fault:
    """Lets a method fail a few times, on all brokers together."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: type, name: str, error: Exception | None = None) -> None:
        self.left = 0
        real: Callable[..., Any] = getattr(owner, name)

        def perhaps(*args: Any, **named: Any) -> Any:
            if self.left:
                self.left -= 1
                raise error or RuntimeError("a fault that nobody has foreseen")
            return real(*args, **named)

        patch.setattr(owner, name, perhaps)


async def do_everything(run: Run) -> None:
    cluster = run.cluster
    await run.write_until_acknowledged("first")
    controller = cluster.controller()
    assert controller is not None
    controller.kill()
    await cluster.until(lambda: controller.id not in cluster.state(TOPIC).isr, "the dead one has left the ISR")
    await run.write_until_acknowledged("second")
    await controller.start()
    await cluster.until(cluster.is_whole, "every partition is whole")
    await run.write_until_acknowledged("third")
    await run.client.create_topic("another", assignments=[[1, 2, 0]])
    await cluster.until(cluster.is_whole, "every partition is whole")


@pytest.mark.parametrize(
    ("owner", "name", "times"),
    [
        (Fetcher, "_converse", 3),
        (ReplicaFetchState, "take", 3),
        (ReplicaFetchState, "request", 3),
        (Partition, "append_fetched", 3),
        (IsrKeeper, "_carry", 3),
        (Membership, "_see_controller", 1),
        (ClusterMember, "_poll", 3),
        (Subscriber, "take", 3),
        (ReplicaManager, "apply_topic", 3),
        (ActiveController, "_take_up", 2),
        (ActiveController, "_listen", 1),
        (ReplicaManager, "look_after_followers", 3),
        (LogMaintenance, "flush_due", 3),
        (Cleaner, "clean", 3),
    ],
)
def test_a_background_task_that_fails_is_there_again(
    owner: type, name: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault(monkeypatch, owner, name)

    async def main() -> None:
        run = Run(Plan(seed=1, partitions=1, settings={"log.cleaner.backoff.ms": "1000"}))
        await run.cluster.start()
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]])
        fault.left = times
        await do_everything(run)
        await run.cluster.until(lambda: not fault.left, "the fault was met")
        await check_that_all_is_well(run)
        await run.end()

    run_virtual(main, 1, longest=1200)


async def check_that_all_is_well(run: Run) -> None:
    await run.cluster.until(run.cluster.is_whole, "every partition is whole")
    await run.write_until_acknowledged("last")
    await asyncio.sleep(2)
    assert not different_replicas(run.cluster)


def test_the_reader_of_schemas_goes_on_after_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = Fault(monkeypatch, SchemaBook, "_catch_up")
    fault.left = 3

    async def main() -> None:
        run = Run(Plan(seed=1, partitions=1))
        await run.cluster.start()
        await run.client.create_topic(TOPIC, configs={"headrace.schema.validation": "true"})
        await run.cluster.until(run.cluster.is_whole, "the topic is there")
        for _ in range(4):
            assert await run.write("no schema") in (ErrorCode.request_timed_out, ErrorCode.invalid_record)
            await asyncio.sleep(5)
        assert await run.write("no schema") is ErrorCode.invalid_record
        assert not fault.left
        await run.end()

    run_virtual(main, 1, longest=1200)


def test_a_broker_whose_number_another_one_has_taken_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = Fault(monkeypatch, Membership, "_see_controller", IdInUse("broker 1 is alive elsewhere"))

    async def main() -> None:
        run = Run(Plan(seed=1, partitions=1))
        await run.cluster.start()
        failing = [asyncio.ensure_future(machine.broker.failed()) for machine in run.cluster]
        fault.left = 1
        controller = run.cluster.controller()
        assert controller is not None
        controller.kill()
        done, _ = await asyncio.wait(failing, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        assert [type(task.exception()) for task in done] == [BrokerFailed]
        for task in failing:
            task.cancel()
        await run.end()

    run_virtual(main, 1, longest=600)
