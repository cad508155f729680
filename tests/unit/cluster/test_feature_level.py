"""The feature level of a cluster: taken by a new one, raised when all speak it, never lowered."""

import asyncio
from random import Random

import pytest

from headrace.cluster.feature_level import (
    LEVEL,
    Speaker,
    UnsupportedLevel,
    check_level,
    load_level,
    next_level,
    update_level,
)
from headrace.cluster.identity import CLUSTER_ID, cluster_id
from headrace.cluster.store import Create, MetadataStore, StoreError
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.levels import BEFORE_LEVELS, LevelRange, level_of, version_of
from headrace.testing.store import SimulatedEnsemble

OLD, BOTH, NEW = Speaker(LevelRange(1, 1), "0.1"), Speaker(LevelRange(1, 2), "0.2"), Speaker(LevelRange(2, 3), "0.3")


def test_without_a_wish_the_newest_level_is_taken_that_all_speak() -> None:
    assert next_level(1, {1: BOTH, 2: BOTH}, None).after == 2
    assert next_level(1, {1: OLD, 2: BOTH}, None).after == 1
    assert next_level(2, {1: BOTH, 2: NEW}, None).after == 2


def test_a_level_that_a_broker_does_not_speak_is_refused_and_the_broker_named() -> None:
    with pytest.raises(CodedError, match=r"broker 2 \(version 0.1, level 1\)") as refused:
        next_level(1, {1: BOTH, 2: OLD}, 2)
    assert refused.value.code is ErrorCode.feature_update_failed


def test_a_level_is_never_lowered() -> None:
    with pytest.raises(CodedError, match="never lowered"):
        next_level(2, {1: BOTH}, 1)


def test_brokers_that_tell_no_levels_speak_the_first() -> None:
    assert LevelRange.read(None) == BEFORE_LEVELS == LevelRange(1, 1)
    assert LevelRange.read([1, 2]) == LevelRange(1, 2)
    for nonsense in ([1], [1, "2"], {"min": 1}, 3, [True, 2]):
        with pytest.raises(ValueError, match="no range"):
            LevelRange.read(nonsense)


def test_the_first_level_has_the_version_that_requests_had_before_there_were_levels() -> None:
    assert version_of(1) == 0
    assert level_of(version_of(7)) == 7


def on_store(work: object) -> None:
    async def main() -> None:
        assert callable(work)
        await work(SimulatedEnsemble().session())

    asyncio.run(main())


def test_a_new_cluster_takes_the_newest_level_and_an_old_one_has_the_first() -> None:
    async def work(store: MetadataStore) -> None:
        await cluster_id(store, Random(1), newest_level=5)
        assert await load_level(store) == 5

    async def work_on_old(store: MetadataStore) -> None:
        await store.commit([Create(CLUSTER_ID, b"x")])
        await cluster_id(store, Random(1), newest_level=5)
        assert await load_level(store) == 1
        assert await store.get(LEVEL) is None

    on_store(work)
    on_store(work_on_old)


@pytest.mark.parametrize(("level", "advice"), [(4, "start a later release"), (1, "--to 2")])
def test_a_broker_that_does_not_speak_the_level_is_told_what_to_start(level: int, advice: str) -> None:
    async def work(store: MetadataStore) -> None:
        await store.commit([Create(LEVEL, str(level).encode())])
        with pytest.raises(UnsupportedLevel, match=advice):
            await check_level(store, NEW.levels)

    on_store(work)


def test_a_dry_run_changes_nothing_and_a_raise_is_stored() -> None:
    async def work(store: MetadataStore) -> None:
        assert (await update_level(store, store.commit, {1: BOTH}, None, dry_run=True)).after == 2
        assert await load_level(store) == 1
        assert (await update_level(store, store.commit, {1: BOTH}, None, dry_run=False)).after == 2
        assert await load_level(store) == 2
        await update_level(store, store.commit, {1: NEW}, 3, dry_run=False)
        assert await load_level(store) == 3

    on_store(work)


def test_a_record_that_is_no_level_is_told() -> None:
    async def work(store: MetadataStore) -> None:
        await store.commit([Create(LEVEL, b"new")])
        with pytest.raises(StoreError, match=LEVEL):
            await load_level(store)

    on_store(work)
