"""The share coordinator: what it keeps, whom it fences, what survives it, and what becomes of its log."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from headrace.coordinator.share.service import coordinator_key, parse_coordinator_key
from headrace.coordinator.share.shard import LARGEST_EPOCH, MOST_STALE, ShareStateShard
from headrace.protocol.api import SUPPORTED, ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.share_state import (
    UNINITIALIZED,
    SharePartition,
    ShareState,
    ShareStateChange,
    StateBatch,
)
from tests.support.coordinator.world import World


@pytest.fixture
def world() -> Iterator[World]:
    world = World({"share.coordinator.snapshot.update.records.per.snapshot": "5"})
    yield world
    world.close()


@pytest.fixture
def key(world: World) -> SharePartition:
    """A partition of a topic that is there, as group `g` reads it."""
    return SharePartition("g", world.topic("orders").id, 1)


def change(start_offset: int = -1, *batches: StateBatch, state_epoch: int = 1, leader_epoch: int = 3) -> Any:
    return ShareStateChange(
        state_epoch=state_epoch,
        leader_epoch=leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=len(batches),
        batches=batches,
    )


def begun(world: World, key: SharePartition, start_offset: int = 10) -> None:
    """Initialized in state epoch 1, and read by leader epoch 3."""
    world.run(world.share_state.initialize(key, 1, start_offset))
    world.run(world.share_state.read(key, 3))


def read(world: World, key: SharePartition, leader_epoch: int = -1) -> ShareState:
    return world.run(world.share_state.read(key, leader_epoch))


def refused(world: World, work: Any) -> ErrorCode:
    with pytest.raises(CodedError) as error:
        world.run(work)
    return error.value.code


def shard_of(world: World, key: SharePartition) -> ShareStateShard:
    return world.share.runtime.shard(coordinator_key(key))


def test_what_a_leader_writes_is_read_by_the_next_one_after_a_kill(world: World, key: SharePartition) -> None:
    begun(world, key)
    out = StateBatch(10, 19, 0, 1)
    world.run(world.share_state.write(key, change(-1, out)))
    world.run(world.share_state.write(key, change(12, StateBatch(12, 14, 2, 1))))
    kept = ShareState(state_epoch=1, start_offset=12, batches=(StateBatch(12, 14, 2, 1), StateBatch(15, 19, 0, 1)))
    assert read(world, key) == kept
    world.kill()
    assert read(world, key, 4) == kept
    summary = world.run(world.share_state.summary(key))
    assert (summary.state_epoch, summary.leader_epoch, summary.start_offset) == (1, 4, 12)
    assert summary.delivery_complete_count == 1, "a leader that only reads does not change it"


def test_nothing_is_answered_before_it_is_on_disk(world: World, key: SharePartition) -> None:
    begun(world, key)
    world.holds_syncs = True
    written = world.loop.create_task(world.share_state.write(key, change(15)))
    told = world.loop.create_task(world.share_state.summary(key))
    world.settle()
    assert not written.done()
    assert not told.done(), "nor is what is not committed told to others"
    world.holds_syncs = False
    world.sync()
    world.settle()
    assert written.done()
    assert told.result().start_offset == 15


def test_a_leader_that_was_succeeded_is_fenced(world: World, key: SharePartition) -> None:
    begun(world, key)
    read(world, key, 5)
    assert refused(world, world.share_state.write(key, change(11))) is ErrorCode.fenced_leader_epoch
    assert refused(world, world.share_state.read(key, 4)) is ErrorCode.fenced_leader_epoch
    world.kill()
    assert refused(world, world.share_state.read(key, 4)) is ErrorCode.fenced_leader_epoch
    world.run(world.share_state.write(key, change(11, leader_epoch=5)))


def test_who_has_not_read_does_not_write(world: World, key: SharePartition) -> None:
    begun(world, key)
    late = world.share_state.write(key, change(11, leader_epoch=4))
    assert refused(world, late) is ErrorCode.fenced_state_epoch


def test_who_works_on_a_state_that_was_reset_is_fenced(world: World, key: SharePartition) -> None:
    begun(world, key)
    world.run(world.share_state.write(key, change(20, StateBatch(25, 30, 0, 2))))
    world.run(world.share_state.initialize(key, 2, 5))
    assert read(world, key) == ShareState(state_epoch=2, start_offset=5)
    assert refused(world, world.share_state.write(key, change(21))) is ErrorCode.fenced_state_epoch
    assert refused(world, world.share_state.read(key, 2)) is ErrorCode.fenced_leader_epoch, "older leaders stay fenced"
    assert refused(world, world.share_state.initialize(key, 1, 0)) is ErrorCode.fenced_state_epoch


def test_a_repeated_initialization_forgets_nothing(world: World, key: SharePartition) -> None:
    world.run(world.share_state.initialize(key, 1, UNINITIALIZED))
    assert read(world, key, 3).start_offset == UNINITIALIZED
    world.run(world.share_state.write(key, change(20)))
    world.run(world.share_state.initialize(key, 1, UNINITIALIZED))
    assert read(world, key).start_offset == 20


def test_what_was_deleted_has_to_be_initialized_again(world: World, key: SharePartition) -> None:
    assert refused(world, world.share_state.read(key, 3)) is ErrorCode.invalid_request
    assert world.run(world.share_state.summary(key)).start_offset == UNINITIALIZED
    begun(world, key)
    world.run(world.share_state.delete(key))
    world.run(world.share_state.delete(key))
    assert refused(world, world.share_state.write(key, change(11))) is ErrorCode.invalid_request
    world.kill()
    assert refused(world, world.share_state.read(key, 3)) is ErrorCode.invalid_request
    world.run(world.share_state.initialize(key, 1, 0))
    assert refused(world, world.share_state.write(key, change(11))) is ErrorCode.fenced_state_epoch, "of another life"


@pytest.mark.parametrize(
    "bad",
    [
        change(-2),
        change(-1, StateBatch(5, 4, 0, 1)),
        change(-1, StateBatch(-1, 4, 0, 1)),
        change(-1, StateBatch(1, 4, 1, 1)),
        change(-1, StateBatch(1, 4, 0, -1)),
    ],
)
def test_values_that_make_no_sense_are_refused(world: World, key: SharePartition, bad: ShareStateChange) -> None:
    begun(world, key)
    assert refused(world, world.share_state.write(key, bad)) is ErrorCode.invalid_request
    assert refused(world, world.share_state.initialize(key, 2, -2)) is ErrorCode.invalid_request
    assert refused(world, world.share_state.initialize(key, LARGEST_EPOCH + 1, 0)) is ErrorCode.invalid_request
    assert read(world, key) == ShareState(state_epoch=1, start_offset=10)


def test_a_partition_that_is_not_known_is_asked_for_again_until_it_is_known_to_be_deleted(world: World) -> None:
    topic = world.topic("orders")
    unknown = SharePartition("g", UUID(int=9), 0)
    asked = world.share.initialize(unknown, 1, 0)
    assert refused(world, asked) is ErrorCode.unknown_topic_or_partition
    world.image.is_whole = False
    assert refused(world, world.share.initialize(unknown, 1, 0)) is ErrorCode.coordinator_load_in_progress
    world.image.is_whole = True
    begun(world, SharePartition("g", topic.id, 0))
    world.run(world.controller.delete_topic("orders"))
    gone = world.share_state.read(SharePartition("g", topic.id, 0), 4)
    assert refused(world, gone) is ErrorCode.unknown_topic_or_partition


# The log


def test_after_some_changes_there_is_a_snapshot_and_the_log_before_it_goes(world: World, key: SharePartition) -> None:
    begun(world, key)
    for offset in range(11, 40):
        world.run(world.share_state.write(key, change(offset)))
    log = shard_of(world, key).partition.log
    assert (log.log_start_offset, log.log_end_offset) == (0, 31)
    world.run(world.share.prune())
    world.settle()
    assert log.log_start_offset >= 25
    world.kill()
    assert read(world, key) == ShareState(state_epoch=1, start_offset=39)


def resting_and_busy(world: World) -> tuple[SharePartition, SharePartition]:
    """Two share-partitions in one log, of which one was written to so often that the other's snapshot is in the way."""
    topic = world.topic("orders", 2)
    resting, busy = SharePartition("g", topic.id, 0), SharePartition("g", topic.id, 0)
    group = 0
    while busy == resting or shard_of(world, busy) is not shard_of(world, resting):
        group += 1
        busy = SharePartition(f"g{group}", topic.id, 0)
        if group == 1:
            begun(world, resting)
    begun(world, busy)
    shard = shard_of(world, busy)
    for offset in range(MOST_STALE + 10):
        shard.write(busy, change(offset))
    world.settle()
    return resting, busy


def test_share_partitions_at_rest_do_not_keep_the_log_of_others(world: World) -> None:
    resting, busy = resting_and_busy(world)
    log = shard_of(world, busy).partition.log
    end = log.log_end_offset
    world.run(world.share.prune())
    world.settle()
    assert log.log_start_offset > end - 10
    world.kill()
    assert read(world, resting) == ShareState(state_epoch=1, start_offset=10)
    assert read(world, busy).start_offset == MOST_STALE + 9


def test_a_snapshot_stays_in_the_log_until_the_one_in_its_place_is_committed(world: World) -> None:
    resting, busy = resting_and_busy(world)
    world.holds_syncs = True
    world.run(world.share.prune())
    log = shard_of(world, busy).partition.log
    assert log.log_start_offset == 0
    world.holds_syncs = False
    world.sync()
    world.settle()
    assert log.log_start_offset > MOST_STALE
    assert read(world, resting) == ShareState(state_epoch=1, start_offset=10)


def test_deleted_topics_are_forgotten(world: World, key: SharePartition) -> None:
    begun(world, key)
    world.run(world.controller.delete_topic("orders"))
    world.run(world.share.prune())
    world.settle()
    shard = shard_of(world, key)
    assert not shard.entries
    assert shard.partition.log.log_start_offset == shard.partition.log.log_end_offset
    world.kill()
    assert not shard_of(world, key).entries


# Requests


def test_the_coordinator_is_found_by_kafkas_name_of_a_share_partition(world: World, key: SharePartition) -> None:
    text = coordinator_key(SharePartition("a:b", UUID("7d3a3f0e-1b1e-4a5c-9c39-5d1a3a1f0b6f"), 12))
    assert text == "a:b:fTo_DhseSlycOV0aOh8Lbw:12"
    assert parse_coordinator_key(text) == SharePartition("a:b", UUID("7d3a3f0e-1b1e-4a5c-9c39-5d1a3a1f0b6f"), 12)
    for name in (coordinator_key(key), "g:orders:0", "g", ":fTo_DhseSlycOV0aOh8Lbw:0", "g:fTo_DhseSlycOV0aOh8Lbw:-1"):
        (found,) = world.ask(ApiKey.FIND_COORDINATOR, 6, key_type=2, coordinator_keys=[name]).coordinators
        is_sound = name == coordinator_key(key)
        assert found.error_code is (ErrorCode.none if is_sound else ErrorCode.invalid_request), name
    (old,) = world.ask(ApiKey.FIND_COORDINATOR, 5, key_type=2, coordinator_keys=[coordinator_key(key)]).coordinators
    assert old.error_code is ErrorCode.invalid_request


def ask(world: World, api: ApiKey, key: SharePartition, version: int | None = None, **values: Any) -> Any:
    topics = [{"topic_id": key.topic_id, "partitions": [{"partition": key.partition, **values}]}]
    chosen = SUPPORTED[api].max if version is None else version
    answer = world.ask(api, chosen, group_id=key.group_id, topics=topics)
    ((partition,),) = [result.partitions for result in answer.results]
    return partition


def test_brokers_ask_by_kafkas_requests(world: World, key: SharePartition) -> None:
    world.run(world.share.find(coordinator_key(key)))
    none = ErrorCode.none
    assert ask(world, ApiKey.INITIALIZE_SHARE_GROUP_STATE, key, state_epoch=1, start_offset=7).error_code is none
    assert ask(world, ApiKey.READ_SHARE_GROUP_STATE, key, leader_epoch=2).start_offset == 7
    batch = {"first_offset": 9, "last_offset": 12, "delivery_state": 2, "delivery_count": 1}
    for version, start_offset in ((0, 8), (1, 9)):
        values = {"state_epoch": 1, "leader_epoch": 2, "start_offset": start_offset, "state_batches": [batch]}
        if version:
            values["delivery_complete_count"] = 4
        assert ask(world, ApiKey.WRITE_SHARE_GROUP_STATE, key, version, **values).error_code is none
    state = ask(world, ApiKey.READ_SHARE_GROUP_STATE, key, leader_epoch=2)
    (kept,) = state.state_batches
    assert (state.state_epoch, state.start_offset) == (1, 9)
    assert (kept.first_offset, kept.last_offset, kept.delivery_state, kept.delivery_count) == (9, 12, 2, 1)
    assert ask(world, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, key, 0, leader_epoch=2).start_offset == 9
    assert ask(world, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, key, 1, leader_epoch=2).delivery_complete_count == 4
    assert ask(world, ApiKey.DELETE_SHARE_GROUP_STATE, key).error_code is none
    fenced = ask(world, ApiKey.READ_SHARE_GROUP_STATE, key, leader_epoch=2)
    assert fenced.error_code is ErrorCode.invalid_request
    assert "was not initialized" in fenced.error_message
