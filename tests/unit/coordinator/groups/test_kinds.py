"""A kind of group that the coordinator does not have: what one has to say so that its groups are served, kept and
replaced as others are."""

from collections.abc import Container, Hashable, Iterator, Mapping
from enum import Enum
from typing import Any, cast

import pytest

from headrace.coordinator.groups import service
from headrace.coordinator.groups.classic import ClassicGroup
from headrace.coordinator.groups.group import Group, GroupType
from headrace.coordinator.groups.kinds import GroupKind
from headrace.coordinator.runtime.decision import CoordinatorRecord, Decision
from headrace.coordinator.runtime.fields import FieldReader, plain_text
from headrace.protocol.errors import CodedError, ErrorCode
from tests.support.coordinator.members import commit, find, join, lone_member
from tests.support.coordinator.world import World

RECORD = 900
SESSION_MS = 10_000


class MadeUpType(Enum):
    PRESENCE = "Presence"


class PresenceGroup(Group):
    """Members say that they are here; one that says nothing for ten seconds is not."""

    type = cast(GroupType, MadeUpType.PRESENCE)

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.members: set[str] = set()

    @property
    def state_name(self) -> str:
        return "Empty" if self.is_empty else "Stable"

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def is_dead(self) -> bool:
        return self.is_empty

    @property
    def is_blank(self) -> bool:
        return self.is_empty

    def heartbeat(self, token: object, member_id: str, now_ms: int) -> Decision:
        decision = Decision(now_ms)
        if member_id not in self.members:
            decision.record(self._key(member_id), b"here")
            decision.when_written(lambda: self.members.add(member_id))
        decision.wake(member_id, SESSION_MS)
        decision.reply(token, {"present": sorted({*self.members, member_id})})
        return decision

    def on_loaded(self, now_ms: int) -> Decision:
        decision = Decision(now_ms)
        for member_id in self.members:
            decision.wake(member_id, SESSION_MS)
        return decision

    def on_timer(self, name: Hashable, now_ms: int) -> Decision:
        decision = Decision(now_ms)
        decision.record(self._key(str(name)), None)
        decision.when_written(lambda: self.members.discard(str(name)))
        return decision

    def replay(self, key: bytes, value: bytes | None) -> None:
        reader = FieldReader(key, 2)
        reader.text()
        (self.members.discard if value is None else self.members.add)(reader.text())

    def tombstones(self) -> list[CoordinatorRecord]:
        return [CoordinatorRecord(self._key(member_id), None) for member_id in self.members]

    def _key(self, member_id: str) -> bytes:
        return RECORD.to_bytes(2, "big") + plain_text(self.group_id) + plain_text(member_id)

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int, *, transactional: bool = False
    ) -> Decision:
        raise CodedError(ErrorCode.group_id_not_found)

    def subscribed_topics(self) -> Container[str]:
        return ()

    def describe(self) -> Mapping[str, Any]:
        return {"members": sorted(self.members)}


PRESENCE = GroupKind(
    type=PresenceGroup.type, records=frozenset({RECORD}), make=lambda group_id, _: PresenceGroup(group_id)
)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(service, "KINDS", (*service.KINDS, PRESENCE))
    world = World({"group.initial.rebalance.delay.ms": "0"})
    find(world)
    yield world
    world.close()


def beat(world: World, member_id: str = "a", *, creates: bool = True) -> list[str]:
    def decide(group: PresenceGroup, token: service.Token, now_ms: int) -> Decision:
        return group.heartbeat(token, member_id, now_ms)

    answer: list[str] = world.run(world.groups.ask(PRESENCE, "g", decide, creates=creates))["present"]
    return answer


def members(world: World) -> list[str]:
    described: list[str] = world.run(world.groups.describe(PRESENCE, "g"))["members"]
    return described


def test_its_members_are_served_listed_and_described(world: World) -> None:
    assert beat(world, "a") == ["a"]
    assert beat(world, "b", creates=False) == ["a", "b"]
    assert members(world) == ["a", "b"]
    (group,) = world.run(world.groups.list_groups([], ["presence"]))
    assert (group.group_id, group.state_name) == ("g", "Stable")


def test_its_records_survive_a_kill_and_its_timers_begin_anew(world: World) -> None:
    beat(world, "a")
    beat(world, "b")
    world.kill()
    assert members(world) == ["a", "b"]
    world.advance(SESSION_MS - 1)
    assert beat(world, "a") == ["a", "b"]
    world.advance(1)
    assert members(world) == ["a"]
    world.kill()
    assert members(world) == ["a"]


def test_who_does_not_join_finds_no_group(world: World) -> None:
    with pytest.raises(CodedError) as refused:
        beat(world, creates=False)
    assert (refused.value.code, refused.value.message) == (ErrorCode.group_id_not_found, "Group g not found.")


def test_it_takes_the_place_of_an_empty_group_only(world: World) -> None:
    lone_member(world)
    with pytest.raises(CodedError, match="Group g is not a presence group"):
        beat(world)
    world.advance(10_001)
    assert world.groups.shard("g").groups["g"].is_empty
    assert beat(world) == ["a"]
    world.kill()
    assert members(world) == ["a"], "the records of the group before it are gone"


def test_a_classic_member_is_let_in_once_it_is_empty(world: World) -> None:
    beat(world)
    assert join(world).error_code is ErrorCode.group_id_not_found
    world.advance(SESSION_MS)
    assert join(world).error_code is ErrorCode.member_id_required
    assert isinstance(world.groups.shard("g").group("g"), ClassicGroup)


def test_it_says_itself_who_may_commit(world: World) -> None:
    world.topic("t")
    beat(world)
    assert commit(world, 7) is ErrorCode.group_id_not_found


def test_a_kind_that_is_no_longer_served_is_passed_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    beat(world)
    monkeypatch.setattr(service, "KINDS", service.KINDS[:-1])
    world.kill()
    assert world.groups.shard("g").group("g") is None
