"""The group APIs on the wire: every version, and bad input with Kafka's codes."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.server.handlers.authorized import NOT_ASKED
from tests.support.coordinator.members import (
    SESSION,
    commit,
    commit_values,
    fetch,
    find,
    heartbeat,
    join,
    join_values,
    lone_member,
    subscription,
)
from tests.support.coordinator.world import World
from tests.support.handlers import versions

HUGE = "x" * 32_768


@pytest.fixture
def world() -> Iterator[World]:
    world = World({"group.initial.rebalance.delay.ms": "0"})
    yield world
    world.close()


@pytest.mark.parametrize("version", versions(ApiKey.FIND_COORDINATOR))
def test_a_coordinator_is_found_in_every_version(world: World, version: int) -> None:
    answer = world.ask(ApiKey.FIND_COORDINATOR, version, key="g", coordinator_keys=["g", "h"])
    found = answer.coordinators if version >= 4 else [answer]
    assert {(each.error_code, each.node_id, each.host, each.port) for each in found} == {
        (ErrorCode.none, 1, "localhost", 9092)
    }


@pytest.mark.parametrize("version", versions(ApiKey.FIND_COORDINATOR, since=1))
def test_a_found_coordinator_has_the_message_that_kafka_gives(world: World, version: int) -> None:
    answer = world.ask(ApiKey.FIND_COORDINATOR, version, key="g", coordinator_keys=["g"])
    (found,) = answer.coordinators if version >= 4 else [answer]
    assert found.error_message == ("" if version >= 4 else "NONE")


def test_coordinators_that_are_not_served_say_so(world: World) -> None:
    (found,) = world.ask(ApiKey.FIND_COORDINATOR, 6, key_type=2, coordinator_keys=["k"]).coordinators
    assert (found.error_code, found.node_id) == (ErrorCode.invalid_request, -1)


def test_transactional_ids_have_a_coordinator_too(world: World) -> None:
    answer = world.ask(ApiKey.FIND_COORDINATOR, 6, key_type=1, coordinator_keys=["k", ""])
    assert [(found.error_code, found.node_id) for found in answer.coordinators] == [
        (ErrorCode.none, 1),
        (ErrorCode.invalid_request, -1),
    ]


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_a_member_joins_and_syncs_in_every_version(world: World, version: int) -> None:
    find(world)
    member_id = ""
    if version >= 4:
        member_id = join(world, version=version).member_id
    task = world.send(ApiKey.JOIN_GROUP, version, **join_values(member_id=member_id))
    world.advance(0)
    joined = task.result()
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (ErrorCode.none, 1, "range")
    given = [{"member_id": joined.member_id, "assignment": b"all"}]
    values = {"protocol_type": "consumer", "protocol_name": "range", "assignments": given}
    who = {"group_id": "g", "generation_id": 1, "member_id": joined.member_id}
    synced = world.ask(ApiKey.SYNC_GROUP, min(version, 5), **who, **values)
    assert (synced.error_code, synced.assignment) == (ErrorCode.none, b"all")
    assert world.ask(ApiKey.HEARTBEAT, min(version, 4), **who).error_code is ErrorCode.none


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_a_refused_join_can_be_read_in_every_version(world: World, version: int) -> None:
    find(world)
    assert join(world, "who", version).error_code is ErrorCode.unknown_member_id
    assert join(world, version=version, group_id="").error_code is ErrorCode.invalid_group_id


def test_ids_that_are_empty_or_too_long_are_refused(world: World) -> None:
    find(world)
    invalid = ErrorCode.invalid_group_id
    for group_id in ("", HUGE):
        who = {"group_id": group_id, "generation_id": 1, "member_id": "m"}
        assert join(world, group_id=group_id).error_code is invalid
        assert world.ask(ApiKey.SYNC_GROUP, 4, **who).error_code is invalid
        assert world.ask(ApiKey.HEARTBEAT, 4, **who).error_code is invalid
        assert world.ask(ApiKey.LEAVE_GROUP, 4, group_id=group_id, members=[]).error_code is invalid
    world.topic("t")
    assert commit(world, 1, group_id=HUGE) is invalid
    assert join(world, group_instance_id=HUGE).error_code is ErrorCode.invalid_request
    assert join(world, protocols=[{"name": HUGE, "metadata": b""}]).error_code is ErrorCode.invalid_request
    assert world.ask(ApiKey.LIST_GROUPS, 5).groups == ()


def test_a_consumer_without_a_group_can_commit_under_the_empty_id(world: World) -> None:
    world.topic("t")
    find(world)
    assert commit(world, 5, group_id="", version=2) is ErrorCode.none
    assert fetch(world, group_id="") == 5


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
def test_offsets_are_committed_in_every_version(world: World, version: int) -> None:
    topic = world.topic("t")
    find(world)
    values = commit_values(42)
    values["topics"][0]["topic_id"] = topic.id
    values["topics"][0]["partitions"][0]["committed_metadata"] = "words"
    answer = world.ask(ApiKey.OFFSET_COMMIT, version, **values)
    assert answer.topics[0].partitions[0].error_code is ErrorCode.none
    assert fetch(world) == 42


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
def test_offsets_are_fetched_in_every_version(world: World, version: int) -> None:
    topic = world.topic("t")
    find(world)
    values = commit_values(42)
    values["topics"][0]["partitions"][0] |= {"committed_metadata": "words", "committed_leader_epoch": 3}
    world.ask(ApiKey.OFFSET_COMMIT, 9, **values)
    asked = {"group_id": "g", "topics": [{"name": "t", "topic_id": topic.id, "partition_indexes": [0, 1]}]}
    answer = world.ask(ApiKey.OFFSET_FETCH, version, groups=[asked], require_stable=True, **asked)
    found = answer.groups[0].topics if version >= 8 else answer.topics
    first, second = found[0].partitions
    assert (first.committed_offset, first.metadata, first.error_code) == (42, "words", ErrorCode.none)
    assert (second.committed_offset, second.metadata, second.error_code) == (-1, "", ErrorCode.none)
    if version >= 5:
        assert (first.committed_leader_epoch, second.committed_leader_epoch) == (3, -1)


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH, since=2))
def test_all_offsets_of_a_group_are_fetched(world: World, version: int) -> None:
    world.topic("t")
    world.topic("u")
    find(world)
    commit(world, 1)
    commit(world, 2, topic="u", partition=3)
    asked = {"group_id": "g", "topics": None}
    answer = world.ask(ApiKey.OFFSET_FETCH, version, groups=[asked], **asked)
    found = answer.groups[0].topics if version >= 8 else answer.topics
    assert [[p.committed_offset for p in topic.partitions] for topic in found] == [[1], [2]]


def test_a_group_that_does_not_exist_has_committed_nothing(world: World) -> None:
    world.topic("t")
    find(world)
    assert fetch(world, group_id="none") == -1
    answer = world.ask(ApiKey.OFFSET_FETCH, 9, groups=[{"group_id": "none", "topics": None}])
    assert (answer.groups[0].error_code, answer.groups[0].topics) == (ErrorCode.none, ())


def test_commits_for_what_does_not_exist_are_refused_one_by_one(world: World) -> None:
    world.topic("t", 1)
    find(world)
    unknown = ErrorCode.unknown_topic_or_partition
    assert commit(world, 1, topic="none") is unknown
    assert commit(world, 1, partition=1) is unknown
    assert commit(world, 1, partition=-1) is unknown
    values = commit_values(1)
    values["topics"][0]["topic_id"] = UUID(int=7)
    (topic,) = world.ask(ApiKey.OFFSET_COMMIT, 10, **values).topics
    assert (topic.topic_id, topic.partitions[0].error_code) == (UUID(int=7), ErrorCode.unknown_topic_id)
    asked = {"group_id": "g", "topics": [{"topic_id": UUID(int=7), "partition_indexes": [0]}]}
    (group,) = world.ask(ApiKey.OFFSET_FETCH, 10, groups=[asked]).groups
    assert group.topics[0].partitions[0].error_code is ErrorCode.unknown_topic_id
    assert world.ask(ApiKey.LIST_GROUPS, 5).groups == ()


def test_metadata_has_a_largest_size(world: World) -> None:
    world.topic("t")
    find(world)
    values = commit_values(1)
    partition = values["topics"][0]["partitions"][0]
    values["topics"][0]["partitions"] = [
        partition | {"committed_metadata": "x" * 4_097},
        partition | {"partition_index": 1, "committed_metadata": "x" * 4_096},
    ]
    first, second = world.ask(ApiKey.OFFSET_COMMIT, 9, **values).topics[0].partitions
    assert (first.error_code, second.error_code) == (ErrorCode.offset_metadata_too_large, ErrorCode.none)
    assert (fetch(world), fetch(world, partition=1)) == (-1, 1)


def test_a_commit_of_a_member_for_a_group_that_is_gone(world: World) -> None:
    world.topic("t")
    find(world)
    member = {"generation_id_or_member_epoch": 1, "member_id": "m"}
    assert commit(world, 1, version=8, **member) is ErrorCode.illegal_generation
    assert commit(world, 1, version=9, **member) is ErrorCode.group_id_not_found


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_GROUPS))
def test_groups_are_described_in_every_version(world: World, version: int) -> None:
    joined = lone_member(world, b"mine", protocols=[{"name": "range", "metadata": b"wish"}])
    asked = {"groups": ["g", "none"], "include_authorized_operations": True}
    found, missing = world.ask(ApiKey.DESCRIBE_GROUPS, version, **asked).groups
    assert (found.group_state, found.protocol_type, found.protocol_data) == ("Stable", "consumer", "range")
    (member,) = found.members
    assert (member.member_id, member.client_id, member.client_host) == (joined.member_id, "tests", "/127.0.0.1")
    assert (member.member_metadata, member.member_assignment) == (b"wish", b"mine")
    assert missing.group_state == "Dead"
    assert missing.error_code is (ErrorCode.group_id_not_found if version >= 6 else ErrorCode.none)
    if version >= 3:
        assert found.authorized_operations == (1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11)
        assert missing.authorized_operations == (NOT_ASKED if version >= 6 else found.authorized_operations)


def test_a_group_of_the_new_protocol_is_described_as_none_of_the_classic_one(world: World) -> None:
    find(world)
    world.topic("orders")
    request = {"group_id": "g", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["orders"]}
    told = {"rebalance_timeout": timedelta(minutes=1), "topic_partitions": []}
    assert world.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **request, **told).error_code is ErrorCode.none
    (new,) = world.ask(ApiKey.DESCRIBE_GROUPS, 6, groups=["g"]).groups
    assert (new.error_code, new.group_state) == (ErrorCode.group_id_not_found, "Dead")
    assert new.error_message == "Group g is not a classic group."


@pytest.mark.parametrize("version", versions(ApiKey.LIST_GROUPS))
def test_groups_are_listed_in_every_version(world: World, version: int) -> None:
    world.topic("t")
    lone_member(world)
    commit(world, 1, group_id="simple")
    listed = {group.group_id: group for group in world.ask(ApiKey.LIST_GROUPS, version).groups}
    assert {name: group.protocol_type for name, group in listed.items()} == {"g": "consumer", "simple": ""}
    if version >= 4:
        assert {name: group.group_state for name, group in listed.items()} == {"g": "Stable", "simple": "Empty"}
    if version >= 5:
        assert {group.group_type for group in listed.values()} == {"Classic"}


@pytest.mark.parametrize(
    ("states", "types", "expected"),
    [
        (["stable"], [], {"g"}),
        (["Empty", "STABLE"], [], {"g", "simple"}),
        (["nonsense"], [], set()),
        ([], ["classic"], {"g", "simple"}),
        ([], ["Consumer"], set()),
        (["Empty"], ["CLASSIC"], {"simple"}),
    ],
)
def test_lists_are_filtered(world: World, states: list[str], types: list[str], expected: set[str]) -> None:
    world.topic("t")
    lone_member(world)
    commit(world, 1, group_id="simple")
    answer = world.ask(ApiKey.LIST_GROUPS, 5, states_filter=states, types_filter=types)
    assert {group.group_id for group in answer.groups} == expected


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_GROUPS))
def test_groups_without_members_are_deleted(world: World, version: int) -> None:
    world.topic("t")
    joined = lone_member(world)
    commit(world, 1, group_id="simple")
    results = world.ask(ApiKey.DELETE_GROUPS, version, groups_names=["g", "simple", "none"]).results
    assert {result.group_id: result.error_code for result in results} == {
        "g": ErrorCode.non_empty_group,
        "simple": ErrorCode.none,
        "none": ErrorCode.group_id_not_found,
    }
    assert heartbeat(world, joined) is ErrorCode.none
    assert fetch(world, group_id="simple") == -1
    world.kill()
    assert [group.group_id for group in world.ask(ApiKey.LIST_GROUPS, 5).groups] == ["g"]


def delete_offset(world: World, topic: str, partition: int = 0, group_id: str = "g") -> Any:
    topics = [{"name": topic, "partitions": [{"partition_index": partition}]}]
    answer = world.ask(ApiKey.OFFSET_DELETE, 0, group_id=group_id, topics=topics)
    return answer.topics[0].partitions[0].error_code if answer.topics else answer.error_code


def test_offsets_are_deleted_unless_a_member_reads_the_topic(world: World) -> None:
    world.topic("t")
    world.topic("u")
    joined = lone_member(world, protocols=[{"name": "range", "metadata": subscription("t")}])
    member = {"generation_id_or_member_epoch": 1, "member_id": joined.member_id}
    commit(world, 1, **member)
    commit(world, 2, topic="u", **member)
    assert delete_offset(world, "t") is ErrorCode.group_subscribed_to_topic
    assert delete_offset(world, "u") is ErrorCode.none
    assert delete_offset(world, "none") is ErrorCode.unknown_topic_or_partition
    assert delete_offset(world, "u", 9) is ErrorCode.unknown_topic_or_partition
    assert delete_offset(world, "t", group_id="none") is ErrorCode.group_id_not_found
    world.kill()
    assert (fetch(world), fetch(world, topic="u")) == (1, -1)


def test_offsets_are_not_deleted_of_what_a_member_that_joins_will_read(world: World) -> None:
    world.topic("t")
    lone_member(world, protocols=[{"name": "range", "metadata": subscription("u")}])
    assert delete_offset(world, "t") is ErrorCode.none
    protocols = [{"name": "range", "metadata": subscription("t")}]
    task = world.send(ApiKey.JOIN_GROUP, 3, **join_values(protocols=protocols))
    world.advance(0)
    assert not task.done()
    assert delete_offset(world, "t") is ErrorCode.group_subscribed_to_topic
    task.cancel()


def test_offsets_of_members_that_are_no_consumers_are_not_deleted(world: World) -> None:
    world.topic("t")
    lone_member(world, protocol_type="connect", session_timeout=SESSION)
    assert delete_offset(world, "t") is ErrorCode.non_empty_group


def test_a_topic_may_be_asked_for_twice_and_need_not_have_a_name(world: World) -> None:
    world.topic("t")
    find(world)
    assert commit(world, 5, partition=1) is ErrorCode.none
    topics = [{"name": "t", "partition_indexes": [index]} for index in (0, 1)]
    topics.append({"name": "", "partition_indexes": [0]})
    (group,) = world.ask(ApiKey.OFFSET_FETCH, 9, groups=[{"group_id": "g", "topics": topics}]).groups
    assert [topic.partitions[0].committed_offset for topic in group.topics] == [-1, 5, -1]


def test_ids_that_no_group_can_have_are_refused_before_they_cost_time(world: World) -> None:
    find(world)
    invalid = ErrorCode.invalid_group_id
    (found,) = world.ask(ApiKey.FIND_COORDINATOR, 4, coordinator_keys=[HUGE]).coordinators
    assert found.error_code is invalid
    (group,) = world.ask(ApiKey.OFFSET_FETCH, 9, groups=[{"group_id": HUGE, "topics": None}]).groups
    assert group.error_code is invalid
    assert world.ask(ApiKey.DESCRIBE_GROUPS, 5, groups=[HUGE]).groups[0].error_code is invalid
    assert world.ask(ApiKey.DELETE_GROUPS, 2, groups_names=[HUGE]).results[0].error_code is invalid


def test_a_topic_of_which_nothing_was_committed_does_not_keep_a_group(world: World) -> None:
    world.topic("t")
    world.topic("u", 1)
    find(world)
    values = commit_values(1)
    values["topics"] += commit_values(1, topic="u", partition=9)["topics"]
    codes = [topic.partitions[0].error_code for topic in world.ask(ApiKey.OFFSET_COMMIT, 9, **values).topics]
    assert codes == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]
    (group,) = world.ask(ApiKey.OFFSET_FETCH, 9, groups=[{"group_id": "g", "topics": None}]).groups
    assert [topic.name for topic in group.topics] == ["t"]
    assert world.ask(ApiKey.DELETE_GROUPS, 2, groups_names=["g"]).results[0].error_code is ErrorCode.none
    assert world.ask(ApiKey.LIST_GROUPS, 5).groups == ()
