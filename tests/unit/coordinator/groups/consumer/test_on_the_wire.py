"""The new group protocol's APIs in every version, and a group's life beyond its coordinator's."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from headrace.coordinator.groups.consumer import group as consumer_group
from headrace.protocol.acl import ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.server.handlers.authorized import EVERYTHING, NOT_ASKED
from tests.support.coordinator.members import commit, fetch, find, heartbeat, join, lone_member, subscription
from tests.support.coordinator.world import World
from tests.support.handlers import versions

GROUP_RESOURCE = 32


@pytest.fixture
def world() -> Iterator[World]:
    world = World({"group.initial.rebalance.delay.ms": "0"})
    world.topic("t", 4)
    find(world)
    yield world
    world.close()


def beat(world: World, member_id: str, epoch: int, version: int = 1, **values: Any) -> Any:
    silent = {"rebalance_timeout": timedelta(milliseconds=-1), "subscribed_topic_names": None, "topic_partitions": None}
    who = {"group_id": "g", "member_id": member_id, "member_epoch": epoch}
    return world.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, **{**silent, **who, **values})


def enter(world: World, member_id: str, version: int = 1, **values: Any) -> Any:
    told = {"rebalance_timeout": timedelta(minutes=1), "subscribed_topic_names": ["t"], "topic_partitions": []}
    return beat(world, member_id, 0, version, **{**told, **values})


def describe(world: World, version: int = 1, group_id: str = "g") -> Any:
    asked = {"group_ids": [group_id], "include_authorized_operations": True}
    (group,) = world.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, version, **asked).groups
    return group


def given(answer: Any) -> list[int]:
    return [index for topic in answer.assignment.topic_partitions for index in topic.partitions]


@pytest.mark.parametrize("version", versions(ApiKey.CONSUMER_GROUP_HEARTBEAT))
def test_a_member_joins_lives_and_leaves_in_every_version(world: World, version: int) -> None:
    joined = enter(world, "" if version == 0 else "m", version)
    assert (joined.error_code, joined.member_epoch, given(joined)) == (ErrorCode.none, 1, [0, 1, 2, 3])
    assert joined.member_id
    lives = beat(world, joined.member_id, 1, version)
    assert (lives.error_code, lives.member_epoch, lives.assignment) == (ErrorCode.none, 1, None)
    assert beat(world, joined.member_id, -1, version).member_epoch == -1
    assert describe(world).group_state == "Empty"


def test_the_target_of_a_large_group_is_made_by_a_thread(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (given(enter(world, "m")), world.works) == ([0, 1, 2, 3], 0)
    monkeypatch.setattr(consumer_group, "_SMALL_GROUP", 5)
    entered = enter(world, "n")
    assert (entered.error_code, given(entered)) == (ErrorCode.none, [])
    world.settle()
    assert world.works == 1
    beat(world, "m", 1, topic_partitions=[])
    assert {len(member.target_assignment.topic_partitions[0].partitions) for member in describe(world).members} == {2}


@pytest.mark.parametrize("version", versions(ApiKey.CONSUMER_GROUP_DESCRIBE))
def test_a_group_is_described_in_every_version(world: World, version: int) -> None:
    enter(world, "m", rack_id="r", instance_id="i")
    group = describe(world, version)
    assert (group.error_code, group.group_state, group.assignor_name) == (ErrorCode.none, "Stable", "uniform")
    (member,) = group.members
    assert (member.member_id, member.instance_id, member.rack_id, member.member_epoch) == ("m", "i", "r", 1)
    assert [topic.topic_name for topic in member.assignment.topic_partitions] == ["t"]
    assert getattr(member, "member_type", 1) == 1
    assert group.authorized_operations == EVERYTHING[ResourceType.GROUP]


def test_a_group_that_is_not_there_or_is_classic_is_not_found(world: World) -> None:
    missing = describe(world, group_id="nobody")
    assert (missing.error_code, missing.group_state) == (ErrorCode.group_id_not_found, "")
    assert missing.authorized_operations == NOT_ASKED
    assert beat(world, "m", 1).error_code is ErrorCode.group_id_not_found
    lone_member(world)
    assert describe(world).error_message == "Group g is not a consumer group."


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"group_id": " "}, ErrorCode.invalid_request),
        ({"member_id": ""}, ErrorCode.invalid_request),
        ({"server_assignor": "none"}, ErrorCode.unsupported_assignor),
        ({"subscribed_topic_regex": "("}, ErrorCode.invalid_regular_expression),
        ({"group_id": "x" * 32_768}, ErrorCode.invalid_group_id),
        ({"member_id": "x" * 32_768}, ErrorCode.invalid_request),
        ({"member_epoch": 7}, ErrorCode.group_id_not_found),
    ],
)
def test_bad_requests_are_answered_with_kafkas_codes(world: World, values: dict[str, Any], code: ErrorCode) -> None:
    assert enter(world, **{"member_id": "m", **values}).error_code is code
    assert describe(world).error_code is ErrorCode.group_id_not_found


def test_a_group_outlives_its_coordinator(world: World) -> None:
    enter(world, "a")
    enter(world, "b")
    assert commit(world, 5, member_id="a", generation_id_or_member_epoch=1) is ErrorCode.none
    before = describe(world)
    world.kill()
    assert describe(world) == before
    assert fetch(world) == 5
    assert given(beat(world, "a", 1)) == [0, 1]
    world.advance(46_000)
    assert describe(world).members == ()


def test_commits_of_a_stale_epoch_are_fenced(world: World) -> None:
    enter(world, "a")
    for member_id, epoch, code in [
        ("a", 1, ErrorCode.none),
        ("a", 2, ErrorCode.stale_member_epoch),
        ("b", 1, ErrorCode.unknown_member_id),
    ]:
        assert commit(world, 5, member_id=member_id, generation_id_or_member_epoch=epoch) is code


def test_a_group_is_listed_and_deleted_like_any_other(world: World) -> None:
    enter(world, "a")
    (listed,) = world.ask(ApiKey.LIST_GROUPS, 5, types_filter=["consumer"]).groups
    assert (listed.group_id, listed.group_state, listed.group_type) == ("g", "Stable", "Consumer")
    (refused,) = world.ask(ApiKey.DELETE_GROUPS, 2, groups_names=["g"]).results
    assert refused.error_code is ErrorCode.non_empty_group
    beat(world, "a", -1)
    (deleted,) = world.ask(ApiKey.DELETE_GROUPS, 2, groups_names=["g"]).results
    assert deleted.error_code is ErrorCode.none
    world.kill()
    assert not world.ask(ApiKey.LIST_GROUPS, 5).groups


def test_an_empty_group_changes_its_protocol_with_its_next_member(world: World) -> None:
    enter(world, "a")
    beat(world, "a", -1)
    assert join(world).error_code is ErrorCode.member_id_required
    world.kill()
    assert describe(world).error_code is ErrorCode.group_id_not_found
    enter(world, "a")
    assert describe(world).group_state == "Stable"


def test_a_classic_group_is_upgraded_by_its_first_new_member_and_back(world: World) -> None:
    metadata = subscription("t")
    classic = lone_member(world, b"", protocols=[{"name": "range", "metadata": metadata}])
    refused = enter(world, "new", subscribed_topic_regex="(")
    assert refused.error_code is ErrorCode.invalid_regular_expression
    assert heartbeat(world, classic) is ErrorCode.none
    assert enter(world, "new").error_code is ErrorCode.none
    assert {member.member_type for member in describe(world).members} == {0, 1}
    assert heartbeat(world, classic) is ErrorCode.rebalance_in_progress
    world.kill()
    assert {member.member_id for member in describe(world).members} == {"new", classic.member_id}
    assert beat(world, "new", -1).error_code is ErrorCode.none
    assert describe(world).error_code is ErrorCode.group_id_not_found
    world.kill()
    (group,) = world.ask(ApiKey.DESCRIBE_GROUPS, 5, groups=["g"]).groups
    assert [member.member_id for member in group.members] == [classic.member_id]


def test_a_groups_own_settings_are_in_force_at_once_and_after_a_restart(world: World) -> None:
    enter(world, "a")

    def alter(name: str, value: str) -> Any:
        configs = [{"name": name, "config_operation": 0, "value": value}]
        resource = {"resource_type": GROUP_RESOURCE, "resource_name": "g", "configs": configs}
        (result,) = world.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource]).responses
        return result.error_code

    assert alter("consumer.heartbeat.interval.ms", "7000") is ErrorCode.none
    assert alter("consumer.heartbeat.interval.ms", "1") is ErrorCode.invalid_config
    assert alter("consumer.assignor", "range") is ErrorCode.none
    assert alter("consumer.nonsense", "1") is ErrorCode.invalid_config
    for _ in range(2):
        assert beat(world, "a", 1).heartbeat_interval.total_seconds() == 7
        assert describe(world).assignor_name == "range"
        resource = {"resource_type": GROUP_RESOURCE, "resource_name": "g", "configuration_keys": None}
        (result,) = world.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource], include_synonyms=True).results
        found = {
            config.name: (config.value, config.config_source)
            for config in result.configs
            if config.name.startswith("consumer.")
        }
        assert found == {
            "consumer.assignor": ("range", 8),
            "consumer.heartbeat.interval.ms": ("7000", 8),
            "consumer.session.timeout.ms": ("45000", 5),
        }
        world.kill()
    listed = world.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=[GROUP_RESOURCE]).config_resources
    assert [resource.resource_name for resource in listed] == ["g"]


def test_a_classic_member_that_is_refused_leaves_an_empty_group_as_it_is(world: World) -> None:
    enter(world, "m")
    beat(world, "m", -1)
    before = describe(world).group_epoch
    assert join(world, protocols=[]).error_code is ErrorCode.inconsistent_group_protocol
    world.kill()
    assert describe(world).group_epoch == before
