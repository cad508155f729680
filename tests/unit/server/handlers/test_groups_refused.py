"""What groups refuse, with Kafka's code in every version of every request."""

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from tests.support.coordinator.members import commit_values, find, join_values, lone_member
from tests.support.coordinator.world import World
from tests.support.handlers import versions

MEMBERS = (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP, ApiKey.OFFSET_COMMIT)
EVERY = [(api, version) for api in MEMBERS for version in versions(api)]
WITH_GENERATION = [each for each in EVERY if each[0] not in (ApiKey.JOIN_GROUP, ApiKey.LEAVE_GROUP)]
NO_OFFSET_COMMIT = [each for each in EVERY if each[0] is not ApiKey.OFFSET_COMMIT]


@pytest.fixture
def world() -> Iterator[World]:
    world = World({"group.initial.rebalance.delay.ms": "0"})
    yield world
    world.close()


def ask(world: World, api: ApiKey, version: int, member_id: str, generation: int, group_id: str = "g") -> ErrorCode:
    """The code that a member's request is answered with, wherever its version has it."""
    topic = world.image.topic("t")
    values = join_values(group_id, member_id) | commit_values(1, group_id=group_id)
    values["topics"][0]["topic_id"] = UUID(int=7) if topic is None else topic.id
    who = {"member_id": member_id, "generation_id": generation, "generation_id_or_member_epoch": generation}
    named = {"protocol_name": "range", "members": [{"member_id": member_id}]}
    answer: Any = world.ask(api, version, **{**values, **who, **named})
    if api is ApiKey.OFFSET_COMMIT:
        code = answer.topics[0].partitions[0].error_code
    elif api is ApiKey.LEAVE_GROUP and version >= 3 and answer.members:
        code = answer.members[0].error_code
    else:
        code = answer.error_code
    assert isinstance(code, ErrorCode)
    return code


@pytest.mark.parametrize(("api", "version"), EVERY)
def test_an_unknown_member(world: World, api: ApiKey, version: int) -> None:
    world.topic("t")
    joined = lone_member(world)
    assert ask(world, api, version, "who", joined.generation_id) is ErrorCode.unknown_member_id


@pytest.mark.parametrize(("api", "version"), WITH_GENERATION)
@pytest.mark.parametrize("distance", [-1, 1])
def test_a_generation_that_is_over_or_never_was(world: World, api: ApiKey, version: int, distance: int) -> None:
    world.topic("t")
    joined = lone_member(world)
    generation = joined.generation_id + distance
    assert ask(world, api, version, joined.member_id, generation) is ErrorCode.illegal_generation


@pytest.mark.parametrize(("api", "version"), EVERY)
def test_a_broker_that_does_not_speak_for_the_group(world: World, api: ApiKey, version: int) -> None:
    world.topic("t")
    assert ask(world, api, version, "m", 1) is ErrorCode.not_coordinator


@pytest.mark.parametrize(("api", "version"), NO_OFFSET_COMMIT)
@pytest.mark.parametrize("group_id", ["", "x" * 4_096 + "é", "x" * 32_767 + "é"])
def test_an_empty_or_too_long_group_id(world: World, api: ApiKey, version: int, group_id: str) -> None:
    find(world)
    flexible = {ApiKey.JOIN_GROUP: 6, ApiKey.SYNC_GROUP: 4, ApiKey.HEARTBEAT: 4, ApiKey.LEAVE_GROUP: 4}
    if len(group_id) > 32_767 and version < flexible.get(api, 0):
        pytest.skip("such a text cannot be sent in this version")
    assert ask(world, api, version, "m", 1, group_id) is ErrorCode.invalid_group_id


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
@pytest.mark.parametrize(
    "values", [{"protocol_type": "connect"}, {"protocols": [{"name": "sticky", "metadata": b""}]}, {"protocols": []}]
)
def test_a_protocol_that_the_others_do_not_have(world: World, version: int, values: dict[str, Any]) -> None:
    lone_member(world)
    answer = world.ask(ApiKey.JOIN_GROUP, version, **join_values(**values))
    assert answer.error_code is ErrorCode.inconsistent_group_protocol


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
def test_a_commit_for_an_unknown_topic(world: World, version: int) -> None:
    find(world)
    expected = ErrorCode.unknown_topic_id if version >= 10 else ErrorCode.unknown_topic_or_partition
    assert ask(world, ApiKey.OFFSET_COMMIT, version, "", -1) is expected
    assert world.ask(ApiKey.LIST_GROUPS, 5).groups == ()


@pytest.mark.parametrize(
    ("api", "version", "values"),
    [
        (ApiKey.FIND_COORDINATOR, 4, {"coordinator_keys": ["g"] * 1_000}),
        (ApiKey.DESCRIBE_GROUPS, 5, {"groups": ["g"] * 1_000}),
        (ApiKey.DELETE_GROUPS, 2, {"groups_names": [str(number) for number in range(1_000)]}),
        (ApiKey.OFFSET_FETCH, 9, {"groups": [{"group_id": "g", "topics": None}] * 1_000}),
        (ApiKey.CONSUMER_GROUP_DESCRIBE, 1, {"group_ids": [str(number) for number in range(1_000)]}),
    ],
)
def test_others_get_their_turn_while_one_asks_for_many_groups(
    world: World, api: ApiKey, version: int, values: dict[str, Any]
) -> None:
    find(world)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = world.loop.create_task(count())
    world.ask(api, version, **values)
    counting.cancel()
    world.settle()
    assert turns >= 15
