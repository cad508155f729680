import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.cluster.sqlite import SqliteStore
from headrace.cluster.store import (
    ANY_VERSION,
    AlreadyExists,
    Check,
    Conflict,
    Create,
    Delete,
    NotFound,
    Operation,
    Put,
    StoreError,
    VersionConflict,
    Versioned,
)


def on_store(work: Callable[[SqliteStore], Awaitable[None]], path: str | Path = ":memory:") -> None:
    async def run() -> None:
        store = await SqliteStore.open(path)
        try:
            await work(store)
        finally:
            await store.close()

    asyncio.run(run())


def test_a_value_counts_its_changes() -> None:
    async def work(store: SqliteStore) -> None:
        assert await store.get("/a") is None
        await store.commit([Create("/a", b"one")])
        assert await store.get("/a") == Versioned(b"one", 0)
        await store.commit([Put("/a", b"two", 0), Put("/a", b"three", 1)])
        assert await store.get("/a") == Versioned(b"three", 2)
        await store.commit([Put("/a", b"four", ANY_VERSION)])
        await store.commit([Delete("/a", 3), Create("/a", b"new")])
        assert await store.get("/a") == Versioned(b"new", 0)

    on_store(work)


@pytest.mark.parametrize(
    ("operation", "conflict"),
    [
        (Create("/a", b""), AlreadyExists),
        (Put("/a", b"", 0), VersionConflict),
        (Put("/b", b"", 0), NotFound),
        (Delete("/a", 0), VersionConflict),
        (Delete("/b", 0), NotFound),
        (Check("/a", 7), VersionConflict),
        (Check("/b", ANY_VERSION), NotFound),
    ],
)
def test_a_commit_that_conflicts_changes_nothing(operation: Operation, conflict: type[Conflict]) -> None:
    async def work(store: SqliteStore) -> None:
        await store.commit([Create("/a", b"one")])
        with pytest.raises(conflict) as caught:
            await store.commit([Create("/c", b""), Put("/a", b"two", 0), Check("/a", 1), operation])
        assert caught.value.key == operation.key
        assert await store.get("/c") is None
        assert await store.get("/a") == Versioned(b"one", 0)

    on_store(work)


def test_commits_made_together_stand_or_fall_alone() -> None:
    async def work(store: SqliteStore) -> None:
        commits = [store.commit([Create(f"/k/{n % 10:02}", b"%d" % n)]) for n in range(20)]
        outcomes = await asyncio.gather(*commits, return_exceptions=True)
        assert outcomes[:10] == [None] * 10
        assert all(isinstance(outcome, AlreadyExists) for outcome in outcomes[10:])
        assert [(key, stored.value) for key, stored in await store.list("/k/")] == [
            (f"/k/{n:02}", b"%d" % n) for n in range(10)
        ]

    on_store(work)


def test_a_list_holds_what_is_under_a_prefix_and_nothing_else() -> None:
    async def work(store: SqliteStore) -> None:
        await store.commit([Create(key, b"") for key in ("/t/b", "/t/a", "/t", "/tt/a", "/t/é", "/u/a")])
        assert [key for key, _ in await store.list("/t/")] == ["/t/a", "/t/b", "/t/é"]
        assert len(await store.list("/")) == 6

    on_store(work)


def test_what_is_committed_is_there_after_a_restart(tmp_path: Path) -> None:
    async def write(store: SqliteStore) -> None:
        await store.commit([Create("/a", b"one")])

    async def read(store: SqliteStore) -> None:
        assert await store.get("/a") == Versioned(b"one", 0)

    on_store(write, tmp_path / "metadata.db")
    on_store(read, tmp_path / "metadata.db")


def test_close_waits_for_commits_and_then_refuses_more(tmp_path: Path) -> None:
    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "metadata.db")
        commits = [asyncio.create_task(store.commit([Create(f"/{n}", b"")])) for n in range(5)]
        await asyncio.sleep(0)
        await store.close()
        await store.close()
        assert all(commit.done() for commit in commits)
        await asyncio.gather(*commits)
        with pytest.raises(StoreError, match="closed"):
            await store.get("/a")
        with pytest.raises(StoreError, match="closed"):
            await store.commit([])

    asyncio.run(run())


def opening_fails(path: Path, words: str) -> None:
    async def run() -> None:
        with pytest.raises(StoreError) as caught:
            await SqliteStore.open(path)
        assert str(path) in str(caught.value)
        assert words in str(caught.value)

    asyncio.run(run())


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    path.write_bytes(b"not a database" * 1000)
    opening_fails(path, "damaged or not a metadata file")
    assert path.read_bytes() == b"not a database" * 1000


def test_a_damaged_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"

    async def fill(store: SqliteStore) -> None:
        await store.commit([Create(f"/k/{n}", b"x" * 500) for n in range(200)])

    on_store(fill, path)
    data = bytearray(path.read_bytes())
    data[4096 : len(data) : 97] = b"\xa5" * len(range(4096, len(data), 97))
    path.write_bytes(data)
    opening_fails(path, "damaged")


def test_the_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    opening_fails(path, "another program")


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"

    async def nothing(store: SqliteStore) -> None:
        await store.list("/")

    on_store(nothing, path)
    with sqlite3.connect(path) as later:
        later.execute("PRAGMA user_version=9")
    later.close()
    opening_fails(path, "later version")


def test_two_brokers_cannot_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"

    async def work(store: SqliteStore) -> None:
        await store.commit([Create("/a", b"")])
        with pytest.raises(StoreError, match="in use by another broker"):
            await SqliteStore.open(path)

    on_store(work, path)


def test_a_directory_that_does_not_exist_is_said(tmp_path: Path) -> None:
    opening_fails(tmp_path / "no" / "metadata.db", "check that its directory exists")


def test_a_cancelled_commit_does_not_disturb_the_others() -> None:
    async def work(store: SqliteStore) -> None:
        first, second = (asyncio.create_task(store.commit([Create(f"/{n}", b"")])) for n in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await second
        assert await store.get("/1") == Versioned(b"", 0)

    on_store(work)
