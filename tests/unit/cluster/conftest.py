"""Stores to hold to one contract: the broker's own, the simulated one, and ZooKeeper."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Protocol

import pytest

from headrace.cluster.sqlite import SqliteStore
from headrace.cluster.store import MetadataStore, SharedStore
from headrace.cluster.zookeeper import ZooKeeperStore
from headrace.testing.store import SimulatedEnsemble, SimulatedStore
from tests.support.zookeeper import SESSION_SECONDS, Service, end_session, zookeeper

__all__ = ["zookeeper"]

OnStore = Callable[[Callable[[MetadataStore], Awaitable[None]]], None]
"""Runs a test's work on a new, empty store, and closes it."""

ZOOKEEPER = pytest.param("zookeeper", marks=pytest.mark.slow)


class Shared(Protocol):
    """A store that many sessions share."""

    async def session(self) -> SharedStore:
        """One more session; it is closed with the test."""
        ...

    async def expire(self, store: SharedStore) -> None:
        """Have the servers end a session."""
        ...


OnShared = Callable[[Callable[[Shared], Awaitable[None]]], None]


class SimulatedShared:
    def __init__(self) -> None:
        self.ensemble = SimulatedEnsemble()

    async def session(self) -> SimulatedStore:
        return self.ensemble.session()

    async def expire(self, store: SharedStore) -> None:
        assert isinstance(store, SimulatedStore)
        self.ensemble.expire(store)


class ZooKeeperShared:
    def __init__(self, service: Service) -> None:
        self._address = service.address
        self._url = service.new_url()

    async def session(self) -> ZooKeeperStore:
        return await ZooKeeperStore.open(self._url, session_timeout=SESSION_SECONDS)

    async def expire(self, store: SharedStore) -> None:
        assert isinstance(store, ZooKeeperStore)
        await end_session(store, self._address)


class _Closing:
    """Sessions that are closed with the test."""

    def __init__(self, inner: Shared, stack: AsyncExitStack) -> None:
        self._inner = inner
        self._stack = stack
        self.expire = inner.expire

    async def session(self) -> SharedStore:
        store = await self._inner.session()
        self._stack.push_async_callback(store.close)
        return store


@pytest.fixture(params=["simulated", ZOOKEEPER])
def on_shared(request: pytest.FixtureRequest) -> OnShared:
    def on(work: Callable[[Shared], Awaitable[None]]) -> None:
        async def run() -> None:
            inner: Shared
            if request.param == "zookeeper":
                inner = ZooKeeperShared(request.getfixturevalue("zookeeper"))
            else:
                inner = SimulatedShared()
            async with AsyncExitStack() as stack:
                await work(_Closing(inner, stack))

        asyncio.run(run())

    return on


@pytest.fixture(params=["sqlite", "simulated", ZOOKEEPER])
def on_store(request: pytest.FixtureRequest) -> OnStore:
    async def opened() -> MetadataStore:
        if request.param == "zookeeper":
            return await ZooKeeperShared(request.getfixturevalue("zookeeper")).session()
        return await (SqliteStore.open(":memory:") if request.param == "sqlite" else SimulatedShared().session())

    def on(work: Callable[[MetadataStore], Awaitable[None]]) -> None:
        async def run() -> None:
            store = await opened()
            try:
                await work(store)
            finally:
                await store.close()

        asyncio.run(run())

    return on
