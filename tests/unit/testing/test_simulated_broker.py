"""A whole broker in virtual time, on a simulated disk and network, from a seed."""

import asyncio
from random import Random

import pytest

from headrace.config import BrokerConfig
from headrace.net.address import Address
from headrace.net.network import LinkClosed
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.server.broker import Broker
from headrace.testing.client import SimulatedClient
from headrace.testing.disk import SimulatedDisk
from headrace.testing.loop import run_virtual
from headrace.testing.network import SimulatedNetwork
from headrace.testing.world import simulated_world
from tests.support.memory import MemoryStore

ADDRESS = Address("b1", 9092)
SETTINGS = {
    "node.id": "1",
    "listeners": "PLAINTEXT://b1:9092",
    "headrace.allow.anonymous.listeners": "true",
    "log.dirs": "/data",
}


class Setting:
    """A broker on one host, a client on another."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.network = SimulatedNetwork(seed)
        self.host = self.network.host("b1")
        self.disk = SimulatedDisk()
        self.store = MemoryStore()
        self.client = SimulatedClient(self.network.host("c1"))
        self.broker: Broker

    async def start(self) -> None:
        config = BrokerConfig.parse(SETTINGS)
        world = simulated_world(self.host, disk=self.disk, store=self.store, seed=self.seed)
        self.broker = Broker(config, world)
        await self.host.run(self.broker.start())

    async def stop(self) -> None:
        self.client.close()
        await self.host.run(self.broker.stop())

    async def create_topic(self, name: str, configs: dict[str, str] | None = None) -> None:
        settings = [{"name": name, "value": value} for name, value in (configs or {}).items()]
        topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": settings}
        request = {"topics": [topic], "timeout": 1000}
        answer = await self.client.ask(ADDRESS, ApiKey.CREATE_TOPICS, 7, request)
        assert answer.topics[0].error_code is ErrorCode.none

    async def values(self) -> list[bytes | None]:
        answer, values = await self.client.fetch(ADDRESS, "orders")
        assert answer.error_code is ErrorCode.none
        return values


def test_what_is_produced_is_fetched() -> None:
    async def main() -> list[bytes | None]:
        setting = Setting()
        await setting.start()
        await setting.create_topic("orders")
        for number in range(20):
            answer = await setting.client.produce(ADDRESS, "orders", b"%d" % number)
            assert (answer.error_code, answer.base_offset) == (ErrorCode.none, number)
        values = await setting.values()
        await setting.stop()
        return values

    assert run_virtual(main, 1) == [b"%d" % number for number in range(20)]


def test_a_waiting_fetch_is_woken_by_an_append() -> None:
    async def main() -> None:
        setting = Setting()
        await setting.start()
        await setting.create_topic("orders")
        reader = SimulatedClient(setting.network.host("c2"))
        waiting = asyncio.create_task(reader.fetch(ADDRESS, "orders", wait_ms=60_000))
        await asyncio.sleep(30)
        assert not waiting.done()
        await setting.client.produce(ADDRESS, "orders", b"news")
        assert (await waiting)[1] == [b"news"]
        reader.close()
        await setting.stop()

    run_virtual(main)


def test_hours_of_housekeeping_take_seconds() -> None:
    async def main() -> float:
        setting = Setting()
        await setting.start()
        await setting.create_topic("orders")
        await setting.client.produce(ADDRESS, "orders", b"a")
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(3600)
        assert await setting.values() == [b"a"]
        await setting.stop()
        return asyncio.get_running_loop().time() - began

    assert run_virtual(main) > 3600


def lives_and_deaths(seed: int, configs: dict[str, str]) -> None:
    """Write through four lives of a broker; each ends by a kill or a power loss at some moment."""

    async def main() -> None:
        setting, rng = Setting(seed), Random(seed)
        await setting.start()
        await setting.create_topic("orders", configs)
        acknowledged: list[bytes] = []
        for life in range(4):
            produced = asyncio.create_task(_produce(setting, acknowledged, life))
            await asyncio.sleep(rng.uniform(0.01, 0.3))
            if rng.random() < 0.5:
                setting.host.kill()
                setting.disk.kill()
            else:
                setting.host.lose_power()
                setting.disk.crash(rng)
                await asyncio.sleep(rng.uniform(0, 3))
                setting.host.restore_power()
            await produced
            await setting.start()
            values = await setting.values()
            assert [value for value in values if value in set(acknowledged)] == acknowledged, "acknowledged and lost"
        await setting.stop()

    run_virtual(main, seed)


@pytest.mark.parametrize("seed", range(10))
def test_acknowledged_records_survive_kills_and_power_losses(seed: int) -> None:
    lives_and_deaths(seed, {})


def test_a_broker_that_acknowledges_before_it_syncs_would_be_found_out() -> None:
    def is_found_out(seed: int) -> bool:
        try:
            lives_and_deaths(seed, {"flush.messages": str(1 << 40)})
        except AssertionError as error:
            return "acknowledged and lost" in str(error)
        return False

    assert any(map(is_found_out, range(10)))


async def _produce(setting: Setting, acknowledged: list[bytes], life: int) -> None:
    number = 0
    while True:
        value = b"%d/%d" % (life, number)
        number += 1
        try:
            answer = await setting.client.produce(ADDRESS, "orders", value)
        except (LinkClosed, OSError):
            return
        assert answer.error_code is ErrorCode.none
        acknowledged.append(value)


def test_the_same_seed_gives_the_same_run() -> None:
    def run(seed: int) -> list[object]:
        async def main() -> list[object]:
            setting = Setting(seed)
            await setting.start()
            await setting.create_topic("orders")
            clients = [SimulatedClient(setting.network.host(f"p{number}")) for number in range(5)]
            await asyncio.gather(*(client.produce(ADDRESS, "orders", b"a") for client in clients * 3))
            passed = list(setting.network.passed)
            for client in clients:
                client.close()
            await setting.stop()
            return list(passed)

        return run_virtual(main, seed)

    assert run(5) == run(5)
    assert run(5) != run(6)
