"""What every store promises, whatever keeps it."""

import asyncio

import pytest

from headrace.cluster.store import (
    ANY_VERSION,
    AlreadyExists,
    Check,
    Conflict,
    Create,
    Delete,
    MetadataStore,
    NotFound,
    Operation,
    Put,
    StoreError,
    VersionConflict,
)
from tests.unit.cluster.conftest import OnStore


async def value_and_version(store: MetadataStore, key: str) -> tuple[bytes, int]:
    found = await store.get(key)
    assert found is not None
    return found.value, found.version


async def keys(store: MetadataStore, prefix: str) -> list[str]:
    return [key for key, _ in await store.list(prefix)]


def test_a_value_counts_its_changes(on_store: OnStore) -> None:
    async def work(store: MetadataStore) -> None:
        assert await store.get("/a") is None
        await store.commit([Create("/a", b"one")])
        assert await value_and_version(store, "/a") == (b"one", 0)
        await store.commit([Put("/a", b"two", 0), Put("/a", b"three", 1)])
        assert await value_and_version(store, "/a") == (b"three", 2)
        await store.commit([Put("/a", b"", ANY_VERSION)])
        assert await value_and_version(store, "/a") == (b"", 3)
        await store.commit([Delete("/a", 3), Create("/a", b"new")])
        assert await value_and_version(store, "/a") == (b"new", 0)

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
def test_a_commit_that_conflicts_changes_nothing(
    on_store: OnStore, operation: Operation, conflict: type[Conflict]
) -> None:
    async def work(store: MetadataStore) -> None:
        await store.commit([Create("/a", b"one")])
        with pytest.raises(conflict) as caught:
            await store.commit([Create("/c", b""), Put("/a", b"two", 0), Check("/a", 1), operation, Delete("/no", 0)])
        assert caught.value.key == operation.key
        assert await store.get("/c") is None
        assert await value_and_version(store, "/a") == (b"one", 0)

    on_store(work)


def test_a_commit_that_conflicts_leaves_no_parents(on_store: OnStore) -> None:
    async def work(store: MetadataStore) -> None:
        with pytest.raises(NotFound):
            await store.commit([Create("/x/y/z", b""), Check("/epoch", 0)])
        await store.commit([Create("/x", b"first")])
        assert await keys(store, "/") == ["/x"]

    on_store(work)


def test_commits_made_together_stand_or_fall_alone(on_store: OnStore) -> None:
    async def work(store: MetadataStore) -> None:
        commits = [store.commit([Create(f"/k/{n % 10:02}", b"%d" % n)]) for n in range(20)]
        outcomes = await asyncio.gather(*commits, return_exceptions=True)
        assert outcomes[:10] == [None] * 10
        assert all(isinstance(outcome, AlreadyExists) for outcome in outcomes[10:])
        assert [(key, stored.value) for key, stored in await store.list("/k/")] == [
            (f"/k/{n:02}", b"%d" % n) for n in range(10)
        ]

    on_store(work)


def test_a_list_holds_what_is_under_a_prefix_in_order_and_nothing_else(on_store: OnStore) -> None:
    async def work(store: MetadataStore) -> None:
        await store.commit([Create(key, b"") for key in ("/t", "/t/b", "/t/b/1", "/t/b-c", "/t/a", "/tt/a", "/t/é")])
        assert await keys(store, "/t/") == ["/t/a", "/t/b", "/t/b-c", "/t/b/1", "/t/é"]
        assert await keys(store, "/t/b") == ["/t/b", "/t/b-c", "/t/b/1"]
        assert await keys(store, "/t") == ["/t", "/t/a", "/t/b", "/t/b-c", "/t/b/1", "/t/é", "/tt/a"]
        assert len(await store.list("/")) == 7
        assert await store.list("/none/") == []

    on_store(work)


def test_a_long_list_of_values_large_and_small_is_whole(on_store: OnStore) -> None:
    sizes = [(n * 7919) % 997 if n % 50 else 40_000 for n in range(1500)]

    async def work(store: MetadataStore) -> None:
        for start in range(0, len(sizes), 300):
            part = range(start, start + 300)
            await store.commit([Create(f"/t/{n:05}", b"%c" % (n % 256) * sizes[n]) for n in part])
        found = await store.list("/t/")
        assert [key for key, _ in found] == [f"/t/{n:05}" for n in range(1500)]
        assert all(stored.value == b"%c" % (n % 256) * sizes[n] for n, (_, stored) in enumerate(found))

    on_store(work)


def test_what_is_above_a_key_is_no_key(on_store: OnStore) -> None:
    async def work(store: MetadataStore) -> None:
        await store.commit([Create("/a/b/c", b"")])
        assert await store.get("/a") is None
        assert await store.get("/a/b") is None
        assert await keys(store, "/") == ["/a/b/c"]
        await store.commit([Delete("/a/b/c", 0), Create("/a/b", b"now a key")])
        assert await value_and_version(store, "/a/b") == (b"now a key", 0)

    on_store(work)


def test_a_key_and_those_below_it_come_and_go_together(on_store: OnStore) -> None:
    async def work(store: MetadataStore) -> None:
        for _ in range(2):
            await store.commit([Create("/t/a", b""), Create("/t/a/1", b""), Create("/t/a/2", b"")])
            assert await keys(store, "/t/") == ["/t/a", "/t/a/1", "/t/a/2"]
            await store.commit([Delete("/t/a/1", 0), Delete("/t/a/2", 0), Delete("/t/a", 0)])
            assert await keys(store, "/t/") == []

    on_store(work)


def test_each_creation_of_a_key_is_told_apart_from_the_one_before(on_store: OnStore) -> None:
    async def work(store: MetadataStore) -> None:
        seen = []
        for _ in range(3):
            await store.commit([Create("/a", b"")])
            await store.commit([Put("/a", b"", 0)])
            found = await store.get("/a")
            assert found is not None
            assert dict(await store.list("/")) == {"/a": found}
            seen.append(found.created)
            await store.commit([Delete("/a", 1)])
        assert seen == sorted(set(seen))

    on_store(work)


def test_a_commit_of_nothing_changes_nothing(on_store: OnStore) -> None:
    async def work(store: MetadataStore) -> None:
        await store.commit([])
        assert await store.list("/") == []

    on_store(work)


def test_a_closed_store_refuses_more(on_store: OnStore) -> None:
    async def work(store: MetadataStore) -> None:
        await store.close()
        await store.close()
        with pytest.raises(StoreError, match="closed"):
            await store.get("/a")
        with pytest.raises(StoreError, match="closed"):
            await store.commit([Create("/a", b"")])

    on_store(work)


def test_a_cancelled_commit_does_not_disturb_the_others(on_store: OnStore) -> None:
    async def work(store: MetadataStore) -> None:
        first, second = (asyncio.create_task(store.commit([Create(f"/{n}", b"")])) for n in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await second
        assert await value_and_version(store, "/1") == (b"", 0)

    on_store(work)
