"""The classic protocol, as members see it: through the handlers, in simulated time."""

from datetime import timedelta
from typing import Any

import pytest

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from tests.support.coordinator.members import (
    SESSION,
    commit,
    find,
    heartbeat,
    join,
    lone_member,
    start_join,
    sync,
    sync_values,
)
from tests.support.coordinator.world import World


def test_a_new_member_is_given_an_id_to_join_with(world: World) -> None:
    find(world)
    first = join(world)
    assert (first.error_code, first.generation_id) == (ErrorCode.member_id_required, -1)
    assert first.member_id.startswith("tests-")
    task = start_join(world, first.member_id)
    world.advance(0)
    joined = task.result()
    assert (joined.error_code, joined.generation_id, joined.leader) == (ErrorCode.none, 1, first.member_id)
    assert (joined.protocol_type, joined.protocol_name) == ("consumer", "range")
    assert [member.member_id for member in joined.members] == [first.member_id]


def test_an_id_that_is_not_used_in_time_is_forgotten(world: World) -> None:
    find(world)
    member_id = join(world).member_id
    world.advance(10_001)
    assert join(world, member_id).error_code is ErrorCode.unknown_member_id


def test_the_first_rebalance_waits_for_members_that_start_together() -> None:
    world = World({"group.initial.rebalance.delay.ms": "3000"})
    find(world)
    first = start_join(world, version=3)
    world.advance(2_000)
    second = start_join(world, version=3)
    world.advance(1_000)
    assert not first.done(), "another member came, so the delay goes on"
    world.advance(3_000)
    assert first.result().generation_id == second.result().generation_id == 1
    assert len(first.result().members) == 2
    assert second.result().members == ()
    world.close()


def two_members(world: World) -> tuple[Any, Any]:
    """The answers of the leader and of a follower, both in sync."""
    leader = lone_member(world)
    second = start_join(world, version=3)
    assert not second.done()
    assert heartbeat(world, leader) is ErrorCode.rebalance_in_progress
    again = start_join(world, leader.member_id)
    joined, follower = again.result(), second.result()
    assert joined.generation_id == follower.generation_id == 2
    waiting = world.send(ApiKey.SYNC_GROUP, 4, **sync_values(follower))
    assert not waiting.done()
    assert sync(world, joined, {joined.member_id: b"1", follower.member_id: b"2"}).assignment == b"1"
    assert waiting.result().assignment == b"2"
    return joined, follower


def test_a_second_member_makes_a_rebalance_and_gets_its_share(world: World) -> None:
    leader, follower = two_members(world)
    assert heartbeat(world, leader) is ErrorCode.none
    assert heartbeat(world, follower) is ErrorCode.none


def test_a_follower_that_joins_again_without_need_gets_what_it_has(world: World) -> None:
    leader, follower = two_members(world)
    again = join(world, follower.member_id)
    assert (again.generation_id, again.leader, again.members) == (2, leader.member_id, ())
    assert sync(world, again).assignment == b"2"
    assert heartbeat(world, leader) is ErrorCode.none


@pytest.mark.parametrize("who", ["leader", "follower with other topics"])
def test_a_leader_or_a_changed_follower_that_joins_again_makes_a_rebalance(world: World, who: str) -> None:
    leader, follower = two_members(world)
    joining, other = (leader, follower) if who == "leader" else (follower, leader)
    protocols = [{"name": "range", "metadata": b"" if who == "leader" else b"more"}]
    task = start_join(world, joining.member_id, protocols=protocols)
    assert heartbeat(world, other) is ErrorCode.rebalance_in_progress
    start_join(world, other.member_id)
    assert task.result().generation_id == 3


def test_a_silent_member_is_out_and_its_share_goes_to_the_others(world: World) -> None:
    leader, follower = two_members(world)
    world.advance(6_000)
    assert heartbeat(world, leader) is ErrorCode.none
    world.advance(4_001)
    assert heartbeat(world, leader) is ErrorCode.rebalance_in_progress
    assert heartbeat(world, follower) is ErrorCode.unknown_member_id
    assert len(start_join(world, leader.member_id).result().members) == 1


def test_members_that_do_not_join_again_in_time_are_out(world: World) -> None:
    leader, follower = two_members(world)
    task = start_join(world, leader.member_id)
    for _ in range(5):
        world.advance(2_000)
        heartbeat(world, follower)
    assert [member.member_id for member in task.result().members] == [leader.member_id]
    assert heartbeat(world, follower) is ErrorCode.unknown_member_id


def test_members_that_never_sync_are_out(world: World) -> None:
    leader, follower = two_members(world)
    first, second = start_join(world, leader.member_id), start_join(world, follower.member_id)
    sync(world, first.result(), {leader.member_id: b"all"})
    for _ in range(5):
        world.advance(2_000)
        heartbeat(world, first.result())
        heartbeat(world, second.result())
    world.advance(1)
    assert heartbeat(world, second.result()) is ErrorCode.unknown_member_id


def test_requests_of_another_generation_or_member_are_fenced(world: World) -> None:
    world.topic("t")
    joined = lone_member(world)
    assert heartbeat(world, joined, generation_id=9) is ErrorCode.illegal_generation
    assert heartbeat(world, joined, member_id="who") is ErrorCode.unknown_member_id
    assert heartbeat(world, joined, group_id="none") is ErrorCode.unknown_member_id
    assert sync(world, joined, generation_id=9).error_code is ErrorCode.illegal_generation
    assert sync(world, joined, member_id="who").error_code is ErrorCode.unknown_member_id
    member = {"generation_id_or_member_epoch": 1, "member_id": joined.member_id}
    assert commit(world, 1, **member) is ErrorCode.none
    assert commit(world, 1, **{**member, "generation_id_or_member_epoch": 9}) is ErrorCode.illegal_generation
    assert commit(world, 1, **{**member, "member_id": "who"}) is ErrorCode.unknown_member_id
    assert commit(world, 1) is ErrorCode.unknown_member_id, "the group has members, so others cannot commit"
    start_join(world, joined.member_id)
    assert commit(world, 1, **{**member, "generation_id_or_member_epoch": 2}) is ErrorCode.rebalance_in_progress


@pytest.mark.parametrize("timeout", [timedelta(milliseconds=5_999), timedelta(milliseconds=1_800_001), timedelta()])
def test_session_timeouts_have_bounds(world: World, timeout: timedelta) -> None:
    find(world)
    assert join(world, session_timeout=timeout).error_code is ErrorCode.invalid_session_timeout


def test_protocols_that_others_do_not_know_are_refused(world: World) -> None:
    lone_member(world)
    inconsistent = ErrorCode.inconsistent_group_protocol
    assert join(world, protocols=[{"name": "other", "metadata": b""}]).error_code is inconsistent
    assert join(world, protocol_type="connect").error_code is inconsistent
    assert join(world, group_id="new", protocols=[]).error_code is inconsistent
    assert join(world, group_id="new", protocol_type="").error_code is inconsistent
    assert [group.group_id for group in world.ask(ApiKey.LIST_GROUPS, 5).groups] == ["g"]


def test_the_protocol_that_most_members_prefer_is_chosen() -> None:
    world = World({"group.initial.rebalance.delay.ms": "3000"})
    find(world)
    tasks = []
    for order in (["a", "b", "c"], ["b", "a"], ["b", "a"], ["c", "b", "a"]):
        protocols = [{"name": name, "metadata": name.encode()} for name in order]
        tasks.append(start_join(world, version=3, protocols=protocols))
    world.advance(6_000)
    assert {task.result().protocol_name for task in tasks} == {"b"}
    assert {member.metadata for member in tasks[0].result().members} == {b"b"}
    world.close()


def test_a_sync_that_names_another_protocol_is_refused(world: World) -> None:
    joined = lone_member(world)
    inconsistent = ErrorCode.inconsistent_group_protocol
    for protocol_type, name in ((None, "range"), ("consumer", None), ("consumer", "x"), ("connect", "range")):
        values = sync_values(joined, protocol_type=protocol_type, protocol_name=name)
        assert world.ask(ApiKey.SYNC_GROUP, 5, **values).error_code is inconsistent
    good = sync_values(joined, protocol_type="consumer", protocol_name="range")
    answer = world.ask(ApiKey.SYNC_GROUP, 5, **good)
    assert (answer.error_code, answer.protocol_type, answer.protocol_name) == (ErrorCode.none, "consumer", "range")


def test_a_group_has_a_largest_size() -> None:
    world = World({"group.initial.rebalance.delay.ms": "0", "group.max.size": "1"})
    joined = lone_member(world)
    assert join(world).error_code is ErrorCode.group_max_size_reached
    assert heartbeat(world, joined) is ErrorCode.none
    world.close()


def test_one_for_whom_there_is_no_room_any_more_does_not_hold_up_the_others() -> None:
    world = World({"group.initial.rebalance.delay.ms": "0", "group.max.size": "2"})
    joined = lone_member(world)
    quicker = [start_join(world, version=3) for _ in range(2)]
    assert join(world, member_id=joined.member_id).error_code is ErrorCode.group_max_size_reached
    assert [task.result().error_code for task in quicker] == [ErrorCode.none] * 2
    world.close()


@pytest.mark.parametrize("version", range(6))
def test_a_member_leaves_in_every_version(world: World, version: int) -> None:
    joined = lone_member(world)
    who = {"member_id": joined.member_id, "members": [{"member_id": joined.member_id}]}
    assert world.ask(ApiKey.LEAVE_GROUP, version, group_id="g", **who).error_code is ErrorCode.none
    assert heartbeat(world, joined) is ErrorCode.unknown_member_id
    again = world.ask(ApiKey.LEAVE_GROUP, version, group_id="g", **who)
    code = again.members[0].error_code if version >= 3 else again.error_code
    assert code is ErrorCode.unknown_member_id


# Static members


def static_member(world: World) -> Any:
    find(world)
    task = start_join(world, group_instance_id="i")
    world.advance(0)
    joined = task.result()
    sync(world, joined, {joined.member_id: b"all"}, group_instance_id="i")
    return joined


def test_a_static_member_returns_to_its_assignment_without_a_rebalance(world: World) -> None:
    joined = static_member(world)
    returned = join(world, group_instance_id="i")
    assert (returned.error_code, returned.generation_id) == (ErrorCode.none, 1)
    assert returned.member_id != joined.member_id
    assert (returned.leader, returned.skip_assignment) == (returned.member_id, True)
    assert [member.group_instance_id for member in returned.members] == ["i"]
    assert sync(world, returned, group_instance_id="i").assignment == b"all"
    fenced = ErrorCode.fenced_instance_id
    assert heartbeat(world, joined, group_instance_id="i") is fenced
    assert join(world, joined.member_id, group_instance_id="i").error_code is fenced
    assert sync(world, joined, group_instance_id="i").error_code is fenced
    world.kill()
    assert heartbeat(world, returned, group_instance_id="i") is ErrorCode.none


def test_an_older_static_leader_that_returns_is_told_to_follow(world: World) -> None:
    joined = static_member(world)
    returned = join(world, version=8, group_instance_id="i")
    assert (returned.generation_id, returned.leader, returned.members) == (1, joined.member_id, ())


def test_a_static_member_that_wants_another_protocol_makes_a_rebalance(world: World) -> None:
    find(world)
    protocols = [{"name": "a", "metadata": b""}, {"name": "b", "metadata": b""}]
    task = start_join(world, group_instance_id="i", protocols=protocols)
    world.advance(0)
    sync(world, task.result(), group_instance_id="i")
    returned = join(world, group_instance_id="i", protocols=protocols[::-1])
    assert (returned.generation_id, returned.protocol_name, returned.skip_assignment) == (2, "b", False)


def test_a_static_member_that_waits_is_fenced_by_its_next_self(world: World) -> None:
    lone_member(world)
    waiting = start_join(world, group_instance_id="i")
    start_join(world, group_instance_id="i")
    assert waiting.result().error_code is ErrorCode.fenced_instance_id


def test_a_static_member_is_removed_by_its_instance_id(world: World) -> None:
    static_member(world)
    members = [{"member_id": "", "group_instance_id": "i"}, {"member_id": "", "group_instance_id": "other"}]
    answer = world.ask(ApiKey.LEAVE_GROUP, 5, group_id="g", members=members)
    assert [one.error_code for one in answer.members] == [ErrorCode.none, ErrorCode.unknown_member_id]
    assert world.ask(ApiKey.DESCRIBE_GROUPS, 5, groups=["g"]).groups[0].group_state == "Empty"


def test_a_static_member_that_is_away_keeps_its_place_through_a_rebalance(world: World) -> None:
    joined = static_member(world)
    second = start_join(world, version=3)
    world.advance(6_000)
    heartbeat(world, joined, group_instance_id="i")
    world.advance(4_000)
    assert second.result().generation_id == 2
    described = world.ask(ApiKey.DESCRIBE_GROUPS, 5, groups=["g"]).groups[0]
    assert {member.group_instance_id for member in described.members} == {"i", None}


def test_a_session_lasts_as_long_as_it_was_asked_for(world: World) -> None:
    joined = lone_member(world, session_timeout=3 * SESSION)
    world.advance(29_000)
    assert heartbeat(world, joined) is ErrorCode.none
    world.advance(30_001)
    assert heartbeat(world, joined) is ErrorCode.unknown_member_id


def test_a_static_member_that_gives_no_time_to_join_is_waited_for_at_leisure(world: World) -> None:
    hasty = timedelta(milliseconds=1)
    find(world)
    first = start_join(world, group_instance_id="one", rebalance_timeout=hasty)
    world.advance(0)
    sync(world, first.result(), {first.result().member_id: b"all"})
    start_join(world, group_instance_id="two", rebalance_timeout=hasty)
    world.ask(ApiKey.LEAVE_GROUP, 4, group_id="g", members=[{"member_id": "", "group_instance_id": "two"}])
    world.advance(1)
    assert min(world.scheduler.due) - world.clock.monotonic() > 0.9
