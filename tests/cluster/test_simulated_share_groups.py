"""The state of share groups, and their members, move with the coordinators; nothing acknowledged is lost."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from headrace.net.address import Address
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.share_state import (
    SharePartition,
    ShareStateChange,
    ShareStateStore,
    StateBatch,
)
from headrace.testing.cluster import Machine, SimulatedCluster
from headrace.testing.loop import run_virtual
from tests.support.simulation.clients import ClusterClient
from tests.support.simulation.runs import TOPIC, Plan, Run

STATE = "__share_group_state"
OFFSETS = "__consumer_offsets"
T = TypeVar("T")


async def on(machine: Machine, work: Callable[[ShareStateStore], Awaitable[T]]) -> T:
    """What a broker asks the share coordinator, wherever that is; asked again where it gives up."""

    async def ask() -> T:
        while True:
            try:
                return await work(machine.broker.share_state)
            except CodedError as error:
                if error.code is not ErrorCode.coordinator_not_available:
                    raise

    return await machine.host.run(ask())


def change(start_offset: int, *batches: StateBatch, leader_epoch: int) -> ShareStateChange:
    return ShareStateChange(state_epoch=1, leader_epoch=leader_epoch, start_offset=start_offset, batches=batches)


def other_than(cluster: SimulatedCluster, coordinator: Machine) -> Machine:
    return next(machine for machine in cluster if machine is not coordinator)


async def a_run(seed: int, **settings: str) -> tuple[Run, SharePartition]:
    """A cluster in which a share-partition has been read by leader epoch 1."""
    run = Run(Plan(seed=seed, settings={"share.coordinator.state.topic.num.partitions": "1", **settings}))
    await run.start()
    key = SharePartition("g", run.cluster.topics()[TOPIC].id, 0)
    await on(run.cluster[1], lambda store: store.initialize(key, 1, 0))
    await on(run.cluster[1], lambda store: store.read(key, 1))
    return run, key


async def advance(asker: Machine, key: SharePartition, base: int, leader_epoch: int) -> None:
    """A leader whose members accept every other record of twenty, and then the rest of the first ten."""
    for offset in range(base, base + 20, 2):
        done = change(-1, StateBatch(offset, offset, 2, 1), leader_epoch=leader_epoch)
        await on(asker, lambda store, done=done: store.write(key, done))  # type: ignore[misc]
    moved = change(base + 10, leader_epoch=leader_epoch)
    await on(asker, lambda store: store.write(key, moved))


def accepted(base: int) -> list[StateBatch]:
    """What then is kept."""
    return [StateBatch(offset, offset, 2, 1) for offset in range(base + 10, base + 20, 2)]


def test_what_was_acknowledged_survives_every_coordinator() -> None:
    async def main() -> None:
        run, key = await a_run(31, **{"share.coordinator.snapshot.update.records.per.snapshot": "3"})
        cluster = run.cluster
        for base in range(0, 80, 20):
            coordinator = cluster.leader(STATE)
            asker = other_than(cluster, coordinator)
            writing = asyncio.ensure_future(advance(asker, key, base, 1))
            await asyncio.sleep(0.03)
            coordinator.kill()
            await writing
            state = await on(asker, lambda store: store.read(key, 1))
            assert state.start_offset == base + 10
            assert list(state.batches) == accepted(base), "also what was written before the kill"
            await on(asker, lambda store, base=base: store.write(key, change(base + 20, leader_epoch=1)))  # type: ignore[misc]
            await coordinator.start()
            await cluster.until(cluster.is_whole, "every partition is whole")
        await run.end()

    run_virtual(main, 31, longest=900)


def test_nothing_is_acknowledged_that_one_broker_alone_knows() -> None:
    async def main() -> None:
        run, key = await a_run(33)
        cluster = run.cluster
        coordinator = cluster.leader(STATE)
        others = [machine for machine in cluster if machine is not coordinator]
        for machine in others:
            machine.pause()
        writing = asyncio.ensure_future(on(coordinator, lambda store: store.write(key, change(7, leader_epoch=1))))
        await asyncio.sleep(1.0)
        assert not writing.done()
        for machine in others:
            machine.resume()
        await writing
        coordinator.kill()
        assert (await on(others[0], lambda store: store.summary(key))).start_offset == 7
        await coordinator.start()
        await cluster.until(cluster.is_whole, "every partition is whole")
        await run.end()

    run_virtual(main, 33, longest=900)


def test_a_leader_that_was_succeeded_is_fenced_by_every_coordinator() -> None:
    async def main() -> None:
        run, key = await a_run(34)
        cluster = run.cluster
        for epoch in (2, 3):
            coordinator = cluster.leader(STATE)
            asker = other_than(cluster, coordinator)
            await on(asker, lambda store, epoch=epoch: store.read(key, epoch))  # type: ignore[misc]
            coordinator.kill()
            stale = change(50, leader_epoch=epoch - 1)
            code = await _refused(on(asker, lambda store, stale=stale: store.write(key, stale)))  # type: ignore[misc]
            assert code is ErrorCode.fenced_leader_epoch
            await coordinator.start()
            await cluster.until(cluster.is_whole, "every partition is whole")
        await run.end()

    run_virtual(main, 34, longest=900)


async def _refused(work: Awaitable[Any]) -> ErrorCode | None:
    try:
        await work
    except CodedError as error:
        return error.code
    return None


class ShareMember:
    """A member of a share group, which finds its coordinator again and again."""

    def __init__(self, cluster: SimulatedCluster, group: str, name: str) -> None:
        self.group, self.name, self.epoch = group, name, 0
        self.partitions: set[int] = set()
        self.client = ClusterClient(cluster, name)

    async def beat(self) -> None:
        """A heartbeat that a coordinator has answered."""
        async with asyncio.timeout(60):
            while not await self._beat():
                await self.client.pause()

    async def _beat(self) -> bool:
        try:
            found = await self.client.ask_anyone(ApiKey.FIND_COORDINATOR, 3, {"key": self.group, "key_type": 0})
            if found.error_code is not ErrorCode.none:
                return False
            values = {
                "group_id": self.group,
                "member_id": self.name,
                "member_epoch": self.epoch,
                "rack_id": None,
                "subscribed_topic_names": None if self.epoch else [TOPIC],
            }
            answer = await self.client.ask(Address(found.host, found.port), ApiKey.SHARE_GROUP_HEARTBEAT, 1, values)
        except OSError:
            return False
        if answer.error_code is not ErrorCode.none:
            assert answer.error_code in _PASSING, answer
            return False
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.partitions = {index for each in answer.assignment.topic_partitions for index in each.partitions}
        return True


_PASSING = (
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
)


def test_a_share_group_goes_on_under_its_next_coordinator() -> None:
    async def main() -> None:
        settings = {"offsets.topic.num.partitions": "1", "share.coordinator.state.topic.num.partitions": "1"}
        run = Run(Plan(seed=32, partitions=4, settings=settings))
        cluster = run.cluster
        await run.start()
        first, second = ShareMember(cluster, "g", "first"), ShareMember(cluster, "g", "second")
        await first.beat()
        assert first.partitions == {0, 1, 2, 3}
        for _ in range(2):
            coordinator = cluster.leader(OFFSETS)
            coordinator.kill()
            epoch = first.epoch
            await first.beat()
            assert (first.epoch, first.partitions) == (epoch, {0, 1, 2, 3}), "nobody was fenced, nothing was moved"
            await coordinator.start()
            await cluster.until(cluster.is_whole, "every partition is whole")
        await second.beat()
        await first.beat()
        assert (len(first.partitions), len(second.partitions)) == (2, 2)
        assert first.partitions | second.partitions == {0, 1, 2, 3}
        for member in (first, second):
            member.client.close()
        await run.end()

    run_virtual(main, 32, longest=900)
