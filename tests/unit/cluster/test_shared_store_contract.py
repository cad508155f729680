"""What a store that brokers share promises besides: sessions, what is ephemeral, watches, limits."""

import asyncio

import pytest

from headrace.cluster.commits import CommitTooLarge
from headrace.cluster.store import (
    AlreadyExists,
    Conflict,
    Create,
    Delete,
    Operation,
    Put,
    SessionState,
    SharedStore,
    StoreError,
)
from tests.unit.cluster.conftest import OnShared, Shared

SOON = 60.0
"""A bound for what happens at once; nothing waits this long unless it is broken."""


async def fired(event: asyncio.Event) -> None:
    async with asyncio.timeout(SOON):
        await event.wait()


class Told:
    """What a store tells of its session."""

    def __init__(self, store: SharedStore) -> None:
        self.all: list[SessionState] = []
        self._news = asyncio.Event()
        store.on_session(self._take)

    def _take(self, session: SessionState) -> None:
        self.all.append(session)
        self._news.set()

    async def until(self, *expected: SessionState) -> None:
        """Returns when these were the last told."""
        async with asyncio.timeout(SOON):
            while tuple(self.all[-len(expected) :]) != expected:
                self._news.clear()
                await self._news.wait()


def test_sessions_share_one_state(on_shared: OnShared) -> None:
    async def work(shared: Shared) -> None:
        one, other = await shared.session(), await shared.session()
        assert one.session is SessionState.CONNECTED
        await one.commit([Create("/a/b", b"1")])
        assert [key for key, _ in await other.list("/a/")] == ["/a/b"]
        await other.commit([Put("/a/b", b"2", 0)])
        assert [stored.value for _, stored in await one.list("/a/")] == [b"2"]

    on_shared(work)


def test_of_many_who_create_a_key_one_wins(on_shared: OnShared) -> None:
    async def work(shared: Shared) -> None:
        stores = [await shared.session() for _ in range(4)]
        commits = [store.commit([Create("/controller", b"%d" % n, ephemeral=True)]) for n, store in enumerate(stores)]
        outcomes = await asyncio.gather(*commits, return_exceptions=True)
        assert outcomes.count(None) == 1
        assert sum(isinstance(outcome, AlreadyExists) for outcome in outcomes) == 3
        found = await stores[0].get("/controller")
        assert found is not None
        assert found.value == b"%d" % outcomes.index(None)

    on_shared(work)


def test_no_increment_of_a_shared_counter_is_lost(on_shared: OnShared) -> None:
    async def increment(store: SharedStore) -> None:
        done = 0
        while done < 20:
            found = await store.get("/counter")
            assert found is not None
            try:
                await store.commit([Put("/counter", b"%d" % (int(found.value) + 1), found.version)])
                done += 1
            except Conflict:
                pass

    async def work(shared: Shared) -> None:
        stores = [await shared.session() for _ in range(3)]
        await stores[0].commit([Create("/counter", b"0")])
        await asyncio.gather(*map(increment, stores))
        assert [stored[:2] for _, stored in await stores[0].list("/counter")] == [(b"60", 60)]

    on_shared(work)


def test_what_is_ephemeral_goes_with_its_session(on_shared: OnShared) -> None:
    async def work(shared: Shared) -> None:
        one, other = await shared.session(), await shared.session()
        await one.commit([Create("/brokers/ids/1", b"", ephemeral=True), Create("/kept", b"")])
        names, event = await other.watch_children("/brokers/ids")
        assert names == ["1"]
        await one.close()
        await fired(event)
        assert [key for key, _ in await other.list("/")] == ["/kept"]

    on_shared(work)


def test_an_expired_session_is_told_as_lost_and_followed_by_another(on_shared: OnShared) -> None:
    async def work(shared: Shared) -> None:
        one, other = await shared.session(), await shared.session()
        told = Told(one)
        await one.commit([Create("/brokers/ids/1", b"old", ephemeral=True), Create("/kept", b"")])
        before = await one.get("/brokers/ids/1")
        watched = [(await one.watch("/kept"))[1], (await one.watch_children("/brokers/ids"))[1]]
        await shared.expire(one)
        await told.until(SessionState.LOST, SessionState.CONNECTED)
        assert one.session is SessionState.CONNECTED
        assert all(event.is_set() for event in watched)
        assert await one.get("/brokers/ids/1") is None
        assert await other.get("/brokers/ids/1") is None
        await one.commit([Create("/brokers/ids/1", b"new", ephemeral=True)])
        after = await other.get("/brokers/ids/1")
        assert before is not None
        assert after is not None
        assert after.created > before.created

    on_shared(work)


def test_a_watch_fires_when_its_key_is_created_changed_or_deleted(on_shared: OnShared) -> None:
    changes: list[Operation] = [Create("/w/k", b"1"), Put("/w/k", b"2", 0), Delete("/w/k", 1)]
    values = [None, b"1", b"2", None]

    async def work(shared: Shared) -> None:
        one, other = await shared.session(), await shared.session()
        for change, before, after in zip(changes, values, values[1:], strict=False):
            found, event = await one.watch("/w/k")
            assert (found and found.value) == before
            await other.commit([Create(f"/aside/{before!r}", b"")])
            assert not event.is_set()
            await other.commit([change])
            await fired(event)
            found = await one.get("/w/k")
            assert (found and found.value) == after

    on_shared(work)


def test_children_are_watched_even_before_their_parent_is_there(on_shared: OnShared) -> None:
    async def work(shared: Shared) -> None:
        one, other = await shared.session(), await shared.session()
        names, event = await one.watch_children("/brokers/ids")
        assert names == []
        await other.commit([Create("/brokers/ids/2", b"")])
        await fired(event)
        await other.commit([Create("/brokers/ids/1", b"")])
        names, event = await one.watch_children("/brokers/ids")
        assert names == ["1", "2"]
        await other.commit([Put("/brokers/ids/1", b"changed", 0), Create("/aside", b"")])
        await one.list("/")
        assert not event.is_set()
        await other.commit([Delete("/brokers/ids/2", 0)])
        await fired(event)
        names, _ = await one.watch_children("/brokers/ids")
        assert names == ["1"]

    on_shared(work)


@pytest.mark.parametrize(
    ("operations", "words"),
    [
        ([Delete("/t/a", 0)], "delete those first"),
        ([Create("/t", b"")], "create it first"),
        ([Create("/e/below", b"")], "ephemeral"),
        ([Create("relative", b"")], "no key"),
        ([Create("/t//a", b"")], "no key"),
        ([Create("/t/../a", b"")], "no key"),
    ],
)
def test_what_zookeeper_would_not_take_is_refused_in_words(
    on_shared: OnShared, operations: list[Operation], words: str
) -> None:
    async def work(shared: Shared) -> None:
        store = await shared.session()
        await store.commit([Create("/t/a", b""), Create("/t/a/1", b""), Create("/e", b"", ephemeral=True)])
        before = await store.list("/")
        with pytest.raises(StoreError, match=words):
            await store.commit(operations)
        assert await store.list("/") == before

    on_shared(work)


def test_a_commit_over_a_megabyte_is_refused_and_the_session_goes_on(on_shared: OnShared) -> None:
    async def work(shared: Shared) -> None:
        store = await shared.session()
        told = Told(store)
        with pytest.raises(CommitTooLarge, match="/big with"):
            await store.commit([Create("/big", bytes(600_000)), Create("/other", bytes(500_000))])
        await store.commit([Create("/big", bytes(999_000))])
        found = await store.get("/big")
        assert found is not None
        assert len(found.value) == 999_000
        assert told.all == []

    on_shared(work)


def test_a_close_ends_the_wait_of_a_watch(on_shared: OnShared) -> None:
    async def work(shared: Shared) -> None:
        store = await shared.session()
        _, event = await store.watch("/a")
        await store.close()
        await fired(event)
        assert store.session is SessionState.LOST

    on_shared(work)
