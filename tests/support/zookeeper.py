"""ZooKeeper for tests: a server for the whole run, each test below a path of its own."""

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from kazoo.client import KazooClient

from headrace.cli.zookeeper import ZooKeeperServer
from headrace.cluster.zookeeper import ZooKeeperStore

SESSION_SECONDS = 30.0
"""Longer than a busy machine keeps a thread waiting: sessions that are to end are ended by the servers."""


@dataclass
class Service:
    """Where a server is, with a new path at every call."""

    address: str
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def new_url(self) -> str:
        return f"zookeeper://{self.address}/test/{next(self._numbers)}"


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One server, started by the first test that asks."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield Service(server.address)


def client_of(store: ZooKeeperStore) -> KazooClient:
    """kazoo's client below a store, for what the store does not offer."""
    return store._keeper._client


async def end_session(store: ZooKeeperStore, address: str) -> None:
    """Has the servers end the session, as they do when they have not heard of it for long."""

    def close() -> None:
        twin = KazooClient(address, client_id=client_of(store).client_id)
        twin.start(60)
        twin.stop()
        twin.close()

    await asyncio.get_running_loop().run_in_executor(None, close)
