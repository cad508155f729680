"""Share groups as clients and operators see them: a lone broker on a simulated disk, in simulated time."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from headrace.coordinator.groups.share import ShareGroup
from headrace.coordinator.groups.share.requests import MOST_TOPICS
from headrace.coordinator.runtime.batches import build_batch
from headrace.coordinator.share.service import coordinator_key
from headrace.protocol.api import ApiKey
from headrace.protocol.batch import read_header
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.share_state import (
    UNINITIALIZED,
    SharePartition,
    ShareStateChange,
    StateBatch,
)
from headrace.storage.log import Origin
from tests.support.coordinator.members import commit, find, join, lone_member
from tests.support.coordinator.world import World

NONE = ErrorCode.none
GROUP_RESOURCE = 32


@pytest.fixture
def world() -> Iterator[World]:
    world = World({"group.initial.rebalance.delay.ms": "0"})
    find(world)
    topic = world.topic("orders", 4)
    world.run(world.share.find(coordinator_key(SharePartition("g", topic.id, 0))))
    yield world
    world.close()


def beat(world: World, member: str, epoch: int, names: list[str] | None = None, group: str = "g") -> Any:
    return world.ask(
        ApiKey.SHARE_GROUP_HEARTBEAT,
        1,
        group_id=group,
        member_id=member,
        member_epoch=epoch,
        subscribed_topic_names=names,
    )


def enter(world: World, member: str, *names: str) -> Any:
    answer = beat(world, member, 0, list(names or ["orders"]))
    assert answer.error_code is NONE, answer
    return answer


def partitions(answer: Any) -> set[int] | None:
    """Of one topic."""
    if answer.assignment is None:
        return None
    return {index for topic in answer.assignment.topic_partitions for index in topic.partitions}


def describe(world: World, group: str = "g") -> Any:
    (described,) = world.ask(ApiKey.SHARE_GROUP_DESCRIBE, 1, group_ids=[group]).groups
    return described


def key(world: World, index: int, topic: str = "orders") -> SharePartition:
    found = world.image.topic(topic)
    assert found is not None
    return SharePartition("g", found.id, index)


def start_offset(world: World, index: int) -> int:
    return world.run(world.share_state.summary(key(world, index))).start_offset


def group_of(world: World) -> ShareGroup:
    group = world.groups.shard("g").group("g")
    assert isinstance(group, ShareGroup)
    return group


# Members


def test_the_first_member_gets_all_partitions_with_its_first_heartbeat(world: World) -> None:
    answer = enter(world, "a")
    assert partitions(answer) == {0, 1, 2, 3}
    assert [start_offset(world, index) for index in range(4)] == [UNINITIALIZED] * 4
    assert world.run(world.share_state.read(key(world, 0), 1)).start_offset == UNINITIALIZED, (
        "it may be read from now on"
    )
    assert partitions(beat(world, "a", answer.member_epoch)) is None, "nothing has changed"
    assert answer.heartbeat_interval.total_seconds() == 5


def test_members_share_out_what_there_is_to_read(world: World) -> None:
    first = enter(world, "a")
    second = enter(world, "b")
    moved = beat(world, "a", first.member_epoch)
    assert moved.member_epoch > first.member_epoch
    mine, others = partitions(moved), partitions(second)
    assert mine is not None
    assert others is not None
    assert (len(mine), len(others), mine | others) == (2, 2, {0, 1, 2, 3})
    assert beat(world, "b", -1).member_epoch == -1
    assert partitions(beat(world, "a", moved.member_epoch)) == {0, 1, 2, 3}


def test_who_has_missed_an_answer_may_repeat_its_epoch_once(world: World) -> None:
    first = enter(world, "a")
    enter(world, "b")
    moved = beat(world, "a", first.member_epoch)
    repeated = beat(world, "a", first.member_epoch)
    assert (repeated.error_code, repeated.member_epoch) == (NONE, moved.member_epoch)
    enter(world, "c")
    beat(world, "a", moved.member_epoch)
    assert beat(world, "a", first.member_epoch).error_code is ErrorCode.fenced_member_epoch
    assert beat(world, "a", 99).error_code is ErrorCode.fenced_member_epoch
    assert beat(world, "x", 1).error_code is ErrorCode.unknown_member_id
    assert beat(world, "a", 1, group="other").error_code is ErrorCode.group_id_not_found


@pytest.mark.parametrize(
    ("member", "epoch", "names"),
    [
        ("", 0, ["orders"]),
        ("a", 0, None),
        ("a", 0, []),
        ("a", -2, None),
        ("a", 0, [f"t{number}" for number in range(MOST_TOPICS + 1)]),
    ],
    ids=["nobody", "no topics", "an empty list", "an epoch below -1", "too many topics"],
)
def test_a_heartbeat_that_makes_no_sense_is_refused(
    world: World, member: str, epoch: int, names: list[str] | None
) -> None:
    assert beat(world, member, epoch, names).error_code is ErrorCode.invalid_request


def test_a_silent_member_is_taken_out(world: World) -> None:
    epoch = enter(world, "a").member_epoch
    enter(world, "b")
    world.advance(40_000)
    epoch = beat(world, "a", epoch).member_epoch
    world.advance(40_000)
    assert partitions(beat(world, "a", epoch)) == {0, 1, 2, 3}
    assert beat(world, "b", epoch).error_code is ErrorCode.unknown_member_id


def test_a_group_survives_a_kill(world: World) -> None:
    epoch = enter(world, "a").member_epoch
    before = describe(world)
    world.kill()
    assert describe(world) == before
    assert (before.group_state, before.assignor_name) == ("Stable", "simple")
    ((topic,),) = [member.assignment.topic_partitions for member in before.members]
    assert (topic.topic_name, topic.partitions) == ("orders", (0, 1, 2, 3))
    answer = beat(world, "a", epoch)
    assert (answer.error_code, answer.member_epoch) == (NONE, epoch)
    world.advance(45_001)
    assert describe(world).group_state == "Empty"
    world.kill()
    assert describe(world).group_state == "Empty"


def test_a_full_group_takes_nobody_in() -> None:
    world = World({"group.share.max.size": "1"})
    find(world)
    world.topic("orders", 1)
    enter(world, "a")
    assert beat(world, "b", 0, ["orders"]).error_code is ErrorCode.group_max_size_reached
    assert beat(world, "a", 0, ["orders"]).error_code is NONE
    world.close()


def test_a_groups_own_settings_are_in_force_at_once(world: World) -> None:
    epoch = enter(world, "a").member_epoch
    configs = [{"name": "share.heartbeat.interval.ms", "config_operation": 0, "value": "7000"}]
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": "g", "configs": configs}
    (result,) = world.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource]).responses
    assert result.error_code is NONE
    assert beat(world, "a", epoch).heartbeat_interval.total_seconds() == 7


# Topics


def test_what_a_topic_is_given_later_is_read_from_its_beginning(world: World) -> None:
    epoch = enter(world, "a").member_epoch
    world.run(world.controller.create_partitions("orders", 6))
    beat(world, "a", epoch)
    world.settle()
    assert partitions(beat(world, "a", epoch + 1)) == {0, 1, 2, 3, 4, 5}
    assert [start_offset(world, index) for index in (3, 4, 5)] == [UNINITIALIZED, 0, 0]


def test_a_topic_that_comes_later_is_read_then(world: World) -> None:
    answer = enter(world, "a", "later")
    assert partitions(answer) == set()
    world.topic("later", 2)
    epoch = beat(world, "a", answer.member_epoch).member_epoch
    world.settle()
    assert partitions(beat(world, "a", epoch)) == {0, 1}


def test_a_topic_that_was_deleted_and_made_again_is_another_one(world: World) -> None:
    epoch = enter(world, "a").member_epoch
    old = key(world, 0).topic_id
    world.run(world.controller.delete_topic("orders"))
    answer = beat(world, "a", epoch)
    assert partitions(answer) == set()
    world.topic("orders", 1)
    epoch = beat(world, "a", answer.member_epoch).member_epoch
    world.settle()
    assert partitions(beat(world, "a", epoch)) == {0}
    assert old not in group_of(world).state.initialized


# Groups of other types


def test_groups_of_another_type_are_left_alone(world: World) -> None:
    lone_member(world)
    assert beat(world, "a", 0, ["orders"]).error_code is ErrorCode.group_id_not_found
    world.advance(10_001)
    assert beat(world, "a", 0, ["orders"]).error_code is ErrorCode.group_id_not_found, "also without members"
    world.run(world.groups.delete_group("g"))
    epoch = enter(world, "a").member_epoch
    assert join(world).error_code is ErrorCode.group_id_not_found
    assert commit(world, 7, topic="orders") is ErrorCode.group_id_not_found
    beat(world, "a", -1)
    assert epoch > 0
    assert join(world).error_code is ErrorCode.group_id_not_found, "its place in partitions is not to be lost"


def test_share_groups_are_listed_and_outlive_their_members(world: World) -> None:
    enter(world, "a")
    beat(world, "a", -1)
    world.run(world.groups.offsets.expire(world.clock.now_ms() + 10**12))
    (group,) = world.ask(ApiKey.LIST_GROUPS, 5, types_filter=["share"]).groups
    assert (group.group_id, group.group_type, group.protocol_type, group.group_state) == (
        "g",
        "Share",
        "share",
        "Empty",
    )
    assert not world.ask(ApiKey.LIST_GROUPS, 5, types_filter=["consumer"]).groups


def delete(world: World, group: str = "g") -> ErrorCode:
    (result,) = world.ask(ApiKey.DELETE_GROUPS, 2, groups_names=[group]).results
    code: ErrorCode = result.error_code
    return code


def test_a_deleted_group_leaves_nothing(world: World) -> None:
    enter(world, "a")
    assert delete(world) is ErrorCode.non_empty_group
    beat(world, "a", -1)
    assert delete(world) is NONE
    with pytest.raises(CodedError, match="was not initialized"):
        world.run(world.share_state.read(key(world, 0), 1))
    assert describe(world).error_code is ErrorCode.group_id_not_found
    world.kill()
    assert describe(world).error_code is ErrorCode.group_id_not_found
    assert partitions(enter(world, "a")) == {0, 1, 2, 3}


# Offsets


def progress(world: World, index: int, offset: int, *done: StateBatch, leader_epoch: int = 0) -> None:
    """What the leader of a partition writes."""
    state = world.run(world.share_state.read(key(world, index), leader_epoch))
    change = ShareStateChange(
        state_epoch=state.state_epoch,
        leader_epoch=leader_epoch,
        start_offset=offset,
        delivery_complete_count=sum(last - first + 1 for first, last, _, _ in done),
        batches=done,
    )
    world.run(world.share_state.write(key(world, index), change))


def offsets(world: World, version: int = 1, topics: list[Any] | None = None) -> Any:
    (group,) = world.ask(
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, version, groups=[{"group_id": "g", "topics": topics}]
    ).groups
    return group


def fill(world: World, index: int, count: int) -> None:
    """Records in a partition of the topic."""
    for _ in range(count):
        batch = build_batch([(b"key", b"value")], world.clock.now_ms())
        world.replicas.partition("orders", index).append(
            batch, read_header(batch), Origin.CLIENT, now_ms=world.clock.now_ms()
        )
    world.settle()


def test_operators_are_told_where_a_group_is_and_how_far_behind(world: World) -> None:
    assert (offsets(world).error_code, offsets(world).topics) == (NONE, ())
    enter(world, "a")
    fill(world, 1, 10)
    progress(world, 1, 3, StateBatch(5, 6, 2, 1))
    (topic,) = offsets(world).topics
    told = [(each.partition_index, each.start_offset, each.lag) for each in topic.partitions]
    assert told == [(0, -1, -1), (1, 3, 5), (2, -1, -1), (3, -1, -1)]
    assert (topic.topic_name, topic.topic_id) == ("orders", key(world, 0).topic_id)
    asked = [{"topic_name": "orders", "partitions": [1, 9]}, {"topic_name": "nowhere", "partitions": [0]}]
    (named, unknown) = offsets(world, 0, asked).topics
    assert [(each.error_code, each.start_offset) for each in named.partitions] == [(NONE, 3), (NONE, -1)]
    assert [(each.error_code, each.start_offset) for each in unknown.partitions] == [(NONE, -1)]


def alter(world: World, **wanted: dict[int, int]) -> Any:
    topics = [
        {
            "topic_name": name,
            "partitions": [{"partition_index": index, "start_offset": offset} for index, offset in of_topic.items()],
        }
        for name, of_topic in wanted.items()
    ]
    return world.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, group_id="g", topics=topics)


def test_operators_set_where_a_group_without_members_goes_on(world: World) -> None:
    enter(world, "a")
    progress(world, 0, 8)
    assert alter(world, orders={0: 5}).error_code is ErrorCode.non_empty_group
    beat(world, "a", -1)
    answer = alter(world, orders={0: 5, 7: 1, 1: -3}, nowhere={0: 1})
    codes = {each.topic_name: [part.error_code for part in each.partitions] for each in answer.responses}
    unknown = ErrorCode.unknown_topic_or_partition
    assert codes == {"orders": [NONE, unknown, ErrorCode.invalid_request], "nowhere": [unknown]}
    assert start_offset(world, 0) == 5
    with pytest.raises(CodedError) as fenced:
        world.run(world.share_state.write(key(world, 0), ShareStateChange(state_epoch=1, leader_epoch=0)))
    assert fenced.value.code is ErrorCode.fenced_state_epoch
    assert partitions(enter(world, "a")) == {0, 1, 2, 3}
    assert start_offset(world, 0) == 5, "joining begins nothing anew"


def test_operators_say_where_a_group_is_to_begin_that_is_not_there_yet(world: World) -> None:
    assert [part.error_code for part in alter(world, orders={2: 7}).responses[0].partitions] == [NONE]
    world.kill()
    assert describe(world).group_state == "Empty"
    assert partitions(enter(world, "a")) == {0, 1, 2, 3}
    assert [start_offset(world, index) for index in (1, 2)] == [UNINITIALIZED, 7]
    commit(world, 7, topic="orders", group_id="classic")
    topics = [{"topic_name": "orders", "partitions": [{"partition_index": 0, "start_offset": 0}]}]
    refused = world.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, group_id="classic", topics=topics)
    assert refused.error_code is ErrorCode.group_id_not_found


def test_operators_delete_where_a_group_without_members_is(world: World) -> None:
    def delete_offsets(*names: str) -> Any:
        topics = [{"topic_name": name} for name in names]
        return world.ask(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, group_id="g", topics=topics)

    enter(world, "a")
    progress(world, 2, 8)
    assert delete_offsets("orders").error_code is ErrorCode.non_empty_group
    beat(world, "a", -1)
    answer = delete_offsets("orders", "nowhere")
    codes = [(each.topic_name, each.error_code) for each in answer.responses]
    assert codes == [("orders", NONE), ("nowhere", ErrorCode.unknown_topic_or_partition)]
    assert [each.error_code for each in delete_offsets("orders").responses] == [ErrorCode.unknown_topic_or_partition]
    assert not offsets(world).topics
    assert start_offset(world, 2) == UNINITIALIZED
    enter(world, "a")
    assert start_offset(world, 2) == UNINITIALIZED
    assert world.run(world.share_state.read(key(world, 2), 1)).state_epoch > 1


def test_a_deletion_that_was_interrupted_is_gone_on_with(world: World) -> None:
    enter(world, "a")
    progress(world, 2, 8)
    beat(world, "a", -1)
    shard = world.groups.shard("g")
    shard.carry_out(group_of(world), group_of(world).begin_deletion([key(world, 2).topic_id], shard.now_ms()))
    world.kill()
    assert group_of(world).state.deleting == {key(world, 2).topic_id}
    assert partitions(enter(world, "a")) == {0, 1, 2, 3}
    assert start_offset(world, 2) == UNINITIALIZED
    assert not group_of(world).state.deleting


def test_nothing_is_left_behind_while_topics_may_only_not_be_known_yet(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(world, "a")
    progress(world, 2, 8)
    beat(world, "a", -1)
    with monkeypatch.context() as behind:
        behind.setattr(world.image, "is_whole", False)
        behind.setattr(world.image, "topic_by_id", lambda _: None)
        assert delete(world) is ErrorCode.coordinator_load_in_progress
        assert describe(world).error_code is NONE
    assert start_offset(world, 2) == 8
    assert delete(world) is NONE
    assert start_offset(world, 2) == UNINITIALIZED


def test_what_a_former_group_of_that_id_has_left_is_begun_anew(world: World) -> None:
    for index in range(4):
        world.run(world.share_state.initialize(key(world, index), 50, 9))
    epoch = enter(world, "a").member_epoch
    world.settle()
    epoch = beat(world, "a", epoch).member_epoch
    world.settle()
    assert partitions(beat(world, "a", epoch)) == {0, 1, 2, 3}
    assert [start_offset(world, index) for index in range(4)] == [UNINITIALIZED] * 4


def test_a_group_whose_state_cannot_be_begun_gets_its_partitions_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> None:
        raise CodedError(ErrorCode.coordinator_not_available)

    with monkeypatch.context() as broken:
        broken.setattr(world.share_state, "initialize", fail)
        answer = enter(world, "a")
        assert partitions(answer) == set()
    epoch = beat(world, "a", answer.member_epoch).member_epoch
    world.settle()
    assert partitions(beat(world, "a", epoch)) == {0, 1, 2, 3}


def test_a_topic_of_which_a_part_could_not_be_begun_begins_as_a_whole(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = world.share_state.initialize

    async def fail_for_one(key: SharePartition, *values: int) -> None:
        if key.partition == 3:
            raise CodedError(ErrorCode.coordinator_not_available)
        await begin(key, *values)

    with monkeypatch.context() as broken:
        broken.setattr(world.share_state, "initialize", fail_for_one)
        (altered,) = alter(world, orders={0: 5}).responses
        assert altered.partitions[0].error_code is ErrorCode.coordinator_not_available
        answer = enter(world, "a")
        assert partitions(answer) == set()
    epoch = beat(world, "a", answer.member_epoch).member_epoch
    world.settle()
    assert partitions(beat(world, "a", epoch)) == {0, 1, 2, 3}
    assert start_offset(world, 3) == UNINITIALIZED, "it is not one that the topic was given later"


def test_ids_of_topics_in_requests_are_uuids(world: World) -> None:
    answer = enter(world, "a")
    (topic,) = answer.assignment.topic_partitions
    assert isinstance(topic.topic_id, UUID)
