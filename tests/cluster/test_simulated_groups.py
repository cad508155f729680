"""Groups speak through the leaders of their partitions, and move with them."""

import asyncio
from typing import Any

from headrace.net.address import Address
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.testing.cluster import SimulatedCluster
from headrace.testing.loop import run_virtual
from tests.support.simulation.clients import ClusterClient, offset_topics
from tests.support.simulation.runs import TOPIC, Plan, Run

OFFSETS = "__consumer_offsets"


class Member:
    """A consumer without members beside it, which keeps its own offsets."""

    def __init__(self, cluster: SimulatedCluster, group: str) -> None:
        self.group = group
        self.client = ClusterClient(cluster, f"member-{group}")

    async def coordinator(self) -> Address:
        while True:
            try:
                answer = await self.client.ask_anyone(ApiKey.FIND_COORDINATOR, 3, {"key": self.group, "key_type": 0})
                if answer.error_code == ErrorCode.none:
                    return Address(answer.host, answer.port)
            except OSError:
                pass
            await self.client.pause()

    async def commit(self, offset: int) -> None:
        """Returns when the offset is committed, for certain."""
        values = {
            "group_id": self.group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": offset_topics(TOPIC, 0, offset),
        }

        async def ask() -> bool:
            answer = await self.client.ask(await self.coordinator(), ApiKey.OFFSET_COMMIT, 7, values)
            return bool(answer.topics[0].partitions[0].error_code == ErrorCode.none)

        await self._until(ask)

    async def committed(self) -> int:
        values = {
            "group_id": self.group,
            "topics": [{"name": TOPIC, "partition_indexes": [0]}],
            "require_stable": False,
        }
        found: list[Any] = []

        async def ask() -> bool:
            answer = await self.client.ask(await self.coordinator(), ApiKey.OFFSET_FETCH, 7, values)
            found[:] = [answer.topics[0].partitions[0].committed_offset] if answer.error_code == ErrorCode.none else []
            return bool(found)

        await self._until(ask)
        return int(found[0])

    async def _until(self, ask: Any) -> None:
        async with asyncio.timeout(60):
            while True:
                try:
                    if await ask():
                        return
                except OSError:
                    pass
                await self.client.pause()


def test_committed_offsets_move_with_the_leader_of_their_partition() -> None:
    async def main() -> None:
        run = Run(Plan(seed=21, settings={"offsets.topic.num.partitions": "1"}))
        cluster = run.cluster
        await run.start()
        member = Member(cluster, "g")
        for round_ in range(4):
            await member.commit(round_)
            leader = cluster.leader(OFFSETS)
            leader.kill()
            assert await member.committed() == round_
            await member.commit(round_ + 100)
            await leader.start()
            await cluster.until(cluster.is_whole, "every partition is whole")
            assert await member.committed() == round_ + 100
        member.client.close()
        await run.end()

    run_virtual(main, 21, longest=900)


def test_a_coordinator_that_slept_does_not_go_back_to_offsets_of_before() -> None:
    async def main() -> None:
        run = Run(Plan(seed=22, settings={"offsets.topic.num.partitions": "1"}))
        cluster = run.cluster
        await run.start()
        member = Member(cluster, "g")
        await member.commit(1)
        former = cluster.leader(OFFSETS)
        former.pause()
        await member.commit(2)
        former.resume()
        await cluster.until(lambda: former.id in cluster.state(OFFSETS).isr, "it follows again")
        assert await member.committed() == 2
        await run.elect(OFFSETS, [former.id, *(m.id for m in cluster if m is not former)])
        assert cluster.leader(OFFSETS) is former
        assert await member.committed() == 2
        member.client.close()
        await run.end()

    run_virtual(main, 22, longest=900)
