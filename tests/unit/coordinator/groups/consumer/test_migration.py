"""A group changes its protocol while members are in it, and nobody loses a partition to two owners."""

from struct import pack
from typing import Any

import pytest

from headrace.coordinator.groups.classic import ClassicGroup, ClassicState, JoinRequest, LeavingMember, SyncRequest
from headrace.coordinator.groups.consumer import ConsumerSettings, MigrationPolicy
from headrace.coordinator.groups.consumer.embedded import by_id
from headrace.protocol.consumer_protocol import NotConsumerProtocol, parse_assignment, parse_subscription
from headrace.protocol.errors import CodedError, ErrorCode
from tests.support.coordinator.consumer_group import GROUP, Host, code, make_image, owned, topic_id

ORDERS = topic_id("orders")


def text(value: str) -> bytes:
    return pack(">h", len(value)) + value.encode()


def partitions(named: dict[str, list[int]]) -> bytes:
    out = pack(">i", len(named))
    for name, indexes in named.items():
        out += text(name) + pack(f">{len(indexes) + 1}i", len(indexes), *indexes)
    return out


def subscription(*topics: str, owns: dict[str, list[int]] | None = None) -> bytes:
    names = b"".join(map(text, topics))
    return pack(">hi", 3, len(topics)) + names + pack(">i", -1) + partitions(owns or {}) + pack(">ih", -1, -1)


def assignment(named: dict[str, list[int]]) -> bytes:
    return pack(">h", 3) + partitions(named) + pack(">i", -1)


class Mixed(Host):
    """A host of a group whose members speak either protocol."""

    def classic_join(self, member_id: str, owns: list[int] | None = None, **fields: Any) -> Any:
        token = object()
        metadata = subscription("orders", owns=None if owns is None else {"orders": owns})
        known = {
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 20_000,
            "protocol_type": "consumer",
            "protocols": {"range": metadata, "cooperative-sticky": metadata},
        }
        request = JoinRequest(token=token, member_id=member_id, **{**known, **fields})
        self.carry_out(self.group.join(request, self.now_ms))
        return self.answers.pop(token)

    def classic_sync(self, member_id: str, generation: int) -> Any:
        token = object()
        request = SyncRequest(token=token, member_id=member_id, generation=generation, assignments={})
        self.carry_out(self.group.sync(request, self.now_ms))
        answer = self.answers.pop(token)
        assert answer["error_code"] is ErrorCode.none
        return by_id(parse_assignment(answer["assignment"])[0], self.image)

    def classic_beat(self, member_id: str, generation: int) -> ErrorCode:
        token = object()
        self.carry_out(self.group.classic_heartbeat(token, member_id, None, generation, self.now_ms))
        return code(self.answers.pop(token))


def stable_classic(host: Host) -> tuple[ClassicGroup, list[str]]:
    """A classic group of two members, each with two of four partitions."""
    classic = host.new_classic(GROUP)
    ids = []
    for number in range(2):
        token = f"id {number}"
        host.carry_out(classic.join(_classic_request(token, ""), host.now_ms))
        ids.append(host.answers.pop(token)["member_id"])
    for member_id in ids:
        host.carry_out(classic.join(_classic_request(f"join {member_id}", member_id), host.now_ms))
    while classic.state is ClassicState.PREPARING_REBALANCE:
        host.carry_out(classic.on_timer("join", host.now_ms))
    shares = {ids[0]: assignment({"orders": [0, 1]}), ids[1]: assignment({"orders": [2, 3]})}
    for member_id in ids:
        sync = SyncRequest(
            token=f"sync {member_id}", member_id=member_id, generation=classic.generation, assignments=shares
        )
        host.carry_out(classic.sync(sync, host.now_ms))
    assert classic.state is ClassicState.STABLE
    host.answers.clear()
    return classic, ids


def _classic_request(token: str, member_id: str) -> JoinRequest:
    metadata = subscription("orders")
    return JoinRequest(
        token=token,
        member_id=member_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
        protocol_type="consumer",
        protocols={"range": metadata, "cooperative-sticky": metadata},
    )


@pytest.fixture
def mixed() -> Mixed:
    return Mixed(make_image({"orders": 4}))


def upgrade(host: Mixed) -> list[str]:
    classic, ids = stable_classic(host)
    host.log.clear()
    host.timers.clear()
    host.carry_out(host.group.take_over(classic, host.now_ms), is_unseen=True)
    return ids


def test_classic_members_keep_what_they_have_when_the_group_is_upgraded(mixed: Mixed) -> None:
    first, second = upgrade(mixed)
    assert mixed.group.state.members[first].assigned == {ORDERS: frozenset({0, 1})}
    assert mixed.group.state.members[second].assigned == {ORDERS: frozenset({2, 3})}
    assert mixed.classic_beat(first, 1) is ErrorCode.none
    assert {member["member_type"] for member in mixed.group.describe()["members"]} == {0}
    assert vars(mixed.replayed().state) == vars(mixed.group.state)
    assert mixed.timers == {("session", first): 11_000, ("session", second): 11_000}


def test_classic_members_give_up_partitions_by_joining_again(mixed: Mixed) -> None:
    keeper, giver = upgrade(mixed)
    assert owned(mixed.join("new", "orders")) == {}
    for member_id in (keeper, giver):
        assert mixed.classic_beat(member_id, 1) is ErrorCode.rebalance_in_progress
        assert ("join", member_id) in mixed.timers
    told = mixed.classic_join(keeper, owns=[0, 1])
    assert (told["generation_id"], told["protocol_name"], told["leader"]) == (2, "range", "")
    assert mixed.classic_sync(keeper, 2) == {ORDERS: frozenset({0, 1})}
    assert mixed.classic_beat(keeper, 2) is ErrorCode.none
    assert mixed.classic_join(giver, owns=[2, 3])["generation_id"] == 1
    assert mixed.classic_sync(giver, 1) == {ORDERS: frozenset({2})}
    assert owned(mixed.beat("new", 2)) is None
    assert mixed.classic_beat(giver, 1) is ErrorCode.rebalance_in_progress
    assert mixed.classic_join(giver, owns=[2])["generation_id"] == 2
    assert owned(mixed.beat("new", 2)) == {ORDERS: frozenset({3})}
    assert mixed.classic_sync(giver, 2) == {ORDERS: frozenset({2})}
    assert mixed.group.state_name == "Stable"
    assert {kind for kind, _ in mixed.timers} == {"session"}


def test_a_classic_member_that_does_not_join_again_is_out(mixed: Mixed) -> None:
    first, second = upgrade(mixed)
    epoch = mixed.join("new", "orders")["member_epoch"]
    for _ in range(5):
        mixed.classic_beat(first, 1)
        mixed.classic_beat(second, 1)
        epoch = mixed.beat("new", epoch)["member_epoch"]
        mixed.advance(5_000)
    assert mixed.group.state.members.keys() == {"new"}
    mixed.beat("new", epoch)
    assert mixed.group.state.members["new"].assigned == {ORDERS: frozenset(range(4))}


def test_a_new_classic_member_gets_its_id_first(mixed: Mixed) -> None:
    mixed.join("new", "orders")
    answer = mixed.classic_join("", client_id="app")
    assert code(answer) is ErrorCode.member_id_required
    joined = mixed.classic_join(answer["member_id"])
    assert (code(joined), joined["generation_id"]) == (ErrorCode.none, 2)
    assert mixed.classic_sync(joined["member_id"], 2) == {}
    mixed.beat("new", 1)
    mixed.beat("new", 1, owned={ORDERS: frozenset({0, 1})})
    assert mixed.classic_beat(joined["member_id"], 2) is ErrorCode.rebalance_in_progress
    again = mixed.classic_join(joined["member_id"], owns=[])
    assert mixed.classic_sync(joined["member_id"], again["generation_id"]) == {ORDERS: frozenset({2, 3})}


def test_classic_members_are_refused_with_the_codes_they_know(mixed: Mixed) -> None:
    first, _ = upgrade(mixed)
    mixed.join("new", "orders")
    assert mixed.classic_beat("nobody", 1) is ErrorCode.unknown_member_id
    assert mixed.classic_beat("new", 2) is ErrorCode.unknown_member_id
    assert mixed.classic_beat(first, 9) is ErrorCode.illegal_generation
    assert code(mixed.classic_join("x", protocol_type="connect")) is ErrorCode.inconsistent_group_protocol
    other = {"roundrobin": subscription("orders")}
    assert code(mixed.classic_join("x", protocols=other)) is ErrorCode.inconsistent_group_protocol
    assert code(mixed.classic_join("x", protocols={"range": b"\x00"})) is ErrorCode.inconsistent_group_protocol
    with pytest.raises(CodedError) as refused:
        mixed.group.check_commit(first, None, 9, 0)
    assert refused.value.code is ErrorCode.illegal_generation


def test_the_group_is_classic_again_when_the_last_new_member_leaves(mixed: Mixed) -> None:
    ids = upgrade(mixed)
    mixed.join("new", "orders")
    mixed.beat("new", -1)
    classic = mixed.group.successor
    assert classic is not None
    assert classic.state is ClassicState.PREPARING_REBALANCE
    assert classic.members.by_id.keys() == set(ids)
    assert classic.protocol_name == "range"
    assert parse_assignment(classic.members.by_id[ids[0]].assignment)[0].keys() <= {"orders"}
    values = {write.key: write.value for write in mixed.log}
    kept = [key for key, value in values.items() if value is not None]
    assert [key[:2] for key in kept] == [b"\x00\x02"]
    assert set(mixed.timers) == {"join", *(("session", member_id) for member_id in ids)}


def test_a_silent_new_member_also_ends_the_upgrade(mixed: Mixed) -> None:
    upgrade(mixed)
    mixed.join("new", "orders")
    mixed.carry_out(mixed.group.on_timer(("session", "new"), mixed.now_ms))
    assert mixed.group.successor is not None


def test_a_static_member_that_returns_with_the_classic_protocol_ends_the_upgrade(mixed: Mixed) -> None:
    upgrade(mixed)
    mixed.join("new", "orders", instance_id="i")
    answer = mixed.classic_join("", instance_id="i")
    assert code(answer) is ErrorCode.rebalance_in_progress
    assert mixed.group.successor is not None
    assert len(mixed.group.successor.members) == 3


@pytest.mark.parametrize("policy", [MigrationPolicy.UPGRADE, MigrationPolicy.DISABLED])
def test_without_the_policy_a_group_stays_what_it_is(mixed: Mixed, policy: MigrationPolicy) -> None:
    upgrade(mixed)
    mixed.join("new", "orders")
    mixed.settings = ConsumerSettings(migration_policy=policy)
    mixed.beat("new", -1)
    assert mixed.group.successor is None
    assert len(mixed.group.state.members) == 2


def test_classic_members_leave_one_or_many_at_once(mixed: Mixed) -> None:
    first, second = upgrade(mixed)
    mixed.join("new", "orders")
    token = object()
    leaving = [LeavingMember(member_id=first), LeavingMember(member_id=second), LeavingMember(member_id="nobody")]
    mixed.carry_out(mixed.group.leave(token, leaving, mixed.now_ms))
    codes = [code(member) for member in mixed.answers.pop(token)["members"]]
    assert codes == [ErrorCode.none, ErrorCode.none, ErrorCode.unknown_member_id]
    assert owned(mixed.beat("new", 2)) == {ORDERS: frozenset(range(4))}


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        ({"settings": ConsumerSettings(migration_policy=MigrationPolicy.DOWNGRADE)}, "online upgrade is disabled"),
        ({"settings": ConsumerSettings(max_size=1)}, "the group size exceeds the consumer group maximum size"),
        ({"protocol_type": "connect"}, "the group does not use the consumer embedded protocol"),
        ({"metadata": b"\x00\x01"}, "the embedded consumer protocol is malformed"),
        ({"assignment": assignment({})[:-4] + pack(">i", 1) + b"x"}, "an unsupported custom assignor is in use"),
    ],
)
def test_what_cannot_be_upgraded_is_refused_as_not_found(mixed: Mixed, spoil: dict[str, Any], reason: str) -> None:
    classic, ids = stable_classic(mixed)
    mixed.settings = spoil.get("settings", mixed.settings)
    classic.protocol_type = spoil.get("protocol_type", "consumer")
    member = classic.members.by_id[ids[0]]
    member.protocols = {name: spoil.get("metadata", data) for name, data in member.protocols.items()}
    member.assignment = spoil.get("assignment", member.assignment)
    with pytest.raises(CodedError) as refused:
        mixed.group.take_over(classic, mixed.now_ms)
    assert refused.value.code is ErrorCode.group_id_not_found
    assert reason in refused.value.message


def test_subscriptions_of_every_version_are_read() -> None:
    topics = pack(">i", 1) + text("a") + pack(">i", -1)
    later = partitions({"a": [1]}) + pack(">i", 5) + text("rack") + b"more"
    assert parse_subscription(pack(">h", 0) + topics).topics == {"a"}
    found = parse_subscription(pack(">h", 9) + topics + later)
    assert (found.owned, found.rack_id) == ({"a": frozenset({1})}, "rack")
    with pytest.raises(NotConsumerProtocol):
        parse_subscription(pack(">hi", 0, 5))
