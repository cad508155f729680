import asyncio
import os
import sqlite3
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.cluster.sqlite import SqliteStore
from headrace.cluster.store import Create, Delete, StoreError, Versioned


def on_store(work: Callable[[SqliteStore], Awaitable[None]], path: str | Path = ":memory:") -> None:
    async def run() -> None:
        store = await SqliteStore.open(path)
        try:
            await work(store)
        finally:
            await store.close()

    asyncio.run(run())


def test_what_is_committed_is_there_after_a_restart(tmp_path: Path) -> None:
    async def write(store: SqliteStore) -> None:
        await store.commit([Create("/a", b"one")])

    async def read(store: SqliteStore) -> None:
        assert await store.get("/a") == Versioned(b"one", 0, 1)

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


def test_a_file_of_the_first_format_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    with sqlite3.connect(path) as first:
        first.execute("CREATE TABLE entry (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL)")
        first.executemany("INSERT INTO entry VALUES (?, ?, ?)", [("/b", b"two", 7), ("/a", b"one", 3)])
        first.execute(f"PRAGMA application_id={0x48445243}")
        first.execute("PRAGMA user_version=1")
    first.close()

    async def read(store: SqliteStore) -> None:
        assert await store.list("/") == [("/a", Versioned(b"one", 3, 1)), ("/b", Versioned(b"two", 7, 2))]

    on_store(read, path)
    on_store(read, path)


def test_the_number_of_a_creation_is_not_given_again_after_a_restart(tmp_path: Path) -> None:
    async def come_and_go(store: SqliteStore) -> None:
        await store.commit([Create("/a", b"")])
        found = await store.get("/a")
        assert found is not None
        seen.append(found.created)
        await store.commit([Delete("/a", 0)])

    seen: list[int] = []
    for _ in range(3):
        on_store(come_and_go, tmp_path / "metadata.db")
    assert seen == [1, 2, 3]


def test_nothing_is_ephemeral_without_sessions() -> None:
    async def work(store: SqliteStore) -> None:
        with pytest.raises(StoreError, match="no sessions"):
            await store.commit([Create("/a", b""), Create("/b", b"", ephemeral=True)])
        assert await store.list("/") == []

    on_store(work)


def test_nobody_else_may_read_what_checks_passwords(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    path.touch(0o644)
    modes: list[int] = []

    async def write(store: SqliteStore) -> None:
        await store.commit([Create("/a", b"one")])
        modes.extend(stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir())

    before = os.umask(0o022)
    try:
        on_store(write, path)
    finally:
        os.umask(before)
    assert path.stat().st_size
    assert set(modes) == {0o600}
