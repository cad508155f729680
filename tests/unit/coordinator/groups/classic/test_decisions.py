"""A classic group is changed, as far as records keep it, only once the record of that is written."""

from itertools import count

from headrace.coordinator.groups.classic import (
    ClassicGroup,
    ClassicSettings,
    ClassicState,
    JoinRequest,
    LeavingMember,
    SyncRequest,
)
from headrace.coordinator.groups.classic.records import decode_group
from headrace.coordinator.runtime.decision import Decision


def new_group() -> ClassicGroup:
    numbers = count()
    settings = ClassicSettings(initial_rebalance_delay_ms=0)
    return ClassicGroup("g", settings, wall_ms=lambda: 1_000, new_id=lambda: str(next(numbers)))


def request(member_id: str = "") -> JoinRequest:
    return JoinRequest(
        token=object(),
        member_id=member_id,
        instance_id="i",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols={"range": b"x"},
    )


def assigned_by_leader(group: ClassicGroup, member_id: str) -> Decision:
    token = object()
    return group.sync(
        SyncRequest(token=token, member_id=member_id, generation=1, assignments={member_id: b"mine"}), now_ms=0
    )


def joined(group: ClassicGroup) -> str:
    """The static member that a new group has, which is to assign."""
    first = group.join(request(), 0)
    assert [decode_group(value or b"").members for _, value in first.records] == [()]
    assert not group.is_stored
    first.take_effect()
    assert group.is_stored
    group.on_timer("join", 0).take_effect()
    (member_id,) = group.members.by_id
    return member_id


def test_members_have_their_assignments_once_these_are_written() -> None:
    group = new_group()
    member_id = joined(group)
    decision = assigned_by_leader(group, member_id)
    assert (group.state, group.members.by_id[member_id].assignment) == (ClassicState.COMPLETING_REBALANCE, b"")
    assert [values["assignment"] for _, values in decision.replies] == [b"mine"]
    decision.take_effect()
    assert (group.state, group.members.by_id[member_id].assignment) == (ClassicState.STABLE, b"mine")


def test_a_static_member_that_returns_has_its_place_once_that_is_written() -> None:
    group = new_group()
    former_id = joined(group)
    assigned_by_leader(group, former_id).take_effect()
    decision = group.join(request(), 0)
    (stored,) = [decode_group(value or b"") for _, value in decision.records]
    (returned,) = stored.members
    assert (returned.instance_id, returned.assignment, stored.leader) == ("i", b"mine", returned.member_id)
    assert (list(group.members.by_id), group.members.leader) == ([former_id], former_id)
    decision.take_effect()
    assert (list(group.members.by_id), group.members.leader) == ([returned.member_id], returned.member_id)
    assert group.state is ClassicState.STABLE


def test_a_group_is_empty_once_that_is_written() -> None:
    group = new_group()
    member_id = joined(group)
    assigned_by_leader(group, member_id).take_effect()
    decision = group.leave(object(), [LeavingMember(member_id=member_id)], 0)
    (stored,) = [decode_group(value or b"") for _, value in decision.records]
    assert (stored.generation, stored.members) == (2, ())
    assert (group.generation, group.is_empty) == (1, False)
    decision.take_effect()
    assert (group.generation, group.is_empty) == (2, True)
