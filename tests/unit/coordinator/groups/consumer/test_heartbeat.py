"""Members join, live and leave by heartbeats, and are refused with Kafka's codes."""

from typing import Any

import pytest

from headrace.coordinator.groups.consumer import ConsumerSettings, HeartbeatRequest, check_request
from headrace.coordinator.groups.consumer.member import MemberState
from headrace.protocol.errors import CodedError, ErrorCode
from tests.support.coordinator.consumer_group import Host, code, make_image, owned, put_topic, topic_id

ORDERS = topic_id("orders")


def orders(*indexes: int) -> dict[Any, frozenset[int]]:
    return {ORDERS: frozenset(indexes)}


@pytest.fixture
def host() -> Host:
    return Host(make_image({"orders": 4, "payments": 2}))


def test_the_first_member_gets_everything(host: Host) -> None:
    answer = host.join("a", "orders")
    assert owned(answer) == orders(0, 1, 2, 3)
    assert (answer["member_id"], answer["member_epoch"], answer["heartbeat_interval"]) == ("a", 1, 5_000)
    assert host.group.state_name == "Stable"


def test_an_answer_says_nothing_of_what_did_not_change(host: Host) -> None:
    host.join("a", "orders")
    assert owned(host.beat("a", 1)) is None
    full = {"rebalance_timeout_ms": 1, "subscribed_topic_names": frozenset({"orders"}), "owned": orders(0, 1, 2, 3)}
    assert owned(host.beat("a", 1, **full)) == orders(0, 1, 2, 3)


def test_a_partition_changes_hands_only_when_its_owner_has_given_it_up(host: Host) -> None:
    host.join("a", "orders")
    assert owned(host.join("b", "orders")) == {}
    assert owned(host.beat("a", 1)) == orders(0, 1)
    assert host.group.state.members["a"].state is MemberState.UNREVOKED_PARTITIONS
    assert owned(host.beat("b", 2)) is None
    assert owned(host.beat("a", 1, owned=orders(0, 1, 2))) is None
    assert owned(host.beat("b", 2)) is None
    assert host.beat("a", 1, owned=orders(0, 1))["member_epoch"] == 2
    assert owned(host.beat("b", 2)) == orders(2, 3)
    assert host.group.state_name == "Stable"


def test_a_member_that_does_not_give_up_in_time_is_out(host: Host) -> None:
    host.join("a", "orders", rebalance_timeout_ms=10_000)
    host.join("b", "orders")
    host.beat("a", 1)
    host.advance(5_000)
    host.beat("a", 1)
    host.advance(5_000)
    assert code(host.beat("a", 1)) is ErrorCode.unknown_member_id
    assert owned(host.beat("b", 2)) == orders(0, 1, 2, 3)


def test_a_silent_member_is_out(host: Host) -> None:
    host.join("a", "orders")
    host.join("b", "orders")
    host.advance(40_000)
    host.beat("b", 2)
    host.advance(10_000)
    assert owned(host.beat("b", 2)) == orders(0, 1, 2, 3)
    assert code(host.beat("a", 1)) is ErrorCode.unknown_member_id


def test_a_member_that_leaves_frees_its_partitions(host: Host) -> None:
    host.join("a", "orders")
    host.join("b", "orders")
    answer = host.beat("a", -1)
    assert (code(answer), answer["member_epoch"], answer["heartbeat_interval"]) == (ErrorCode.none, -1, 0)
    assert owned(host.beat("b", 2)) == orders(0, 1, 2, 3)
    host.beat("b", 3, owned=orders(0, 1, 2, 3))
    host.beat("b", -1)
    assert host.group.state_name == "Empty"
    assert not host.timers
    assert host.group.state.target_epoch == host.group.state.epoch


@pytest.mark.parametrize(("epoch", "order"), [(3, "greater"), (1, "smaller")])
def test_an_epoch_that_is_not_the_members_is_fenced(host: Host, epoch: int, order: str) -> None:
    host.join("a", "orders")
    host.beat("a", 1, subscribed_topic_names=frozenset({"payments"}), owned={})
    assert host.group.state.members["a"].epoch == 2
    answer = host.beat("a", epoch, owned=orders(1))
    assert code(answer) is ErrorCode.fenced_member_epoch
    assert answer["error_message"] == (
        f"The consumer group member has a {order} member epoch ({epoch}) than the one known by the group coordinator "
        "(2). The member must abandon all its partitions and rejoin."
    )


def test_the_previous_epoch_is_taken_from_a_member_that_missed_its_answer(host: Host) -> None:
    host.join("a", "orders")
    host.beat("a", 1, subscribed_topic_names=frozenset({"orders", "payments"}), owned=orders(0, 1, 2, 3))
    full = {
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": frozenset({"orders", "payments"}),
        "owned": orders(0, 1, 2, 3),
    }
    answer = host.beat("a", 1, **full)
    assert answer["member_epoch"] == 2
    assert (owned(answer) or {}).keys() == {ORDERS, topic_id("payments")}
    assert code(host.beat("a", 1)) is ErrorCode.fenced_member_epoch


def test_a_fenced_member_joins_again_under_its_id(host: Host) -> None:
    host.join("a", "orders")
    host.join("b", "orders")
    host.beat("a", 1)
    assert code(host.beat("a", 7)) is ErrorCode.fenced_member_epoch
    answer = host.join("a", "orders")
    assert (answer["member_epoch"], owned(answer)) == (2, orders(0, 1))
    assert owned(host.beat("b", 2)) == orders(2, 3)


def test_a_changed_subscription_makes_a_new_epoch(host: Host) -> None:
    host.join("a", "orders")
    answer = host.beat("a", 1, subscribed_topic_names=frozenset({"payments"}))
    assert (answer["member_epoch"], owned(answer)) == (1, {})
    assert host.group.state_name == "Reconciling"
    answer = host.beat("a", 1, owned={})
    assert (answer["member_epoch"], owned(answer)) == (2, {topic_id("payments"): frozenset({0, 1})})


def test_topics_that_grow_come_and_go_make_new_epochs(host: Host) -> None:
    host.join("a", "orders", "later")
    put_topic(host.image, "orders", 5)
    assert owned(host.beat("a", 1)) == orders(0, 1, 2, 3, 4)
    put_topic(host.image, "later", 1)
    assert owned(host.beat("a", 2)) == {**orders(0, 1, 2, 3, 4), topic_id("later"): frozenset({0})}
    host.image.remove_topic("orders")
    assert owned(host.beat("a", 3)) == {topic_id("later"): frozenset({0})}
    put_topic(host.image, "unrelated", 1)
    host.beat("a", 3, owned={topic_id("later"): frozenset({0})})
    assert host.group.state.epoch == 4


def test_a_topic_made_anew_is_another_topic(host: Host) -> None:
    host.join("a", "orders")
    host.image.remove_topic("orders")
    put_topic(host.image, "orders", 2, life=1)
    assert owned(host.beat("a", 1)) == {}
    assert owned(host.beat("a", 1, owned={})) == {topic_id("orders", 1): frozenset({0, 1})}


def test_an_expression_finds_topics_now_and_later(host: Host) -> None:
    answer = host.join("a", subscribed_topic_regex=".*orders.*")
    assert owned(answer) == orders(0, 1, 2, 3)
    put_topic(host.image, "new-orders", 1)
    host.advance(2_000)
    assert owned(host.beat("a", 1)) == {**orders(0, 1, 2, 3), topic_id("new-orders"): frozenset({0})}
    host.beat("a", 2, subscribed_topic_regex="")
    assert host.group.state.resolved == {}


def test_an_expression_finds_internal_topics_as_any_other(host: Host) -> None:
    put_topic(host.image, "__orders", 1)
    answer = host.join("a", subscribed_topic_regex="__(orders|payments)")
    assert owned(answer) == {topic_id("__orders"): frozenset({0})}


def test_an_invalid_expression_changes_nothing(host: Host) -> None:
    answer = host.join("a", subscribed_topic_regex="(")
    assert code(answer) is ErrorCode.invalid_regular_expression
    assert host.group.is_blank
    assert not host.log


def test_a_full_group_takes_nobody_but_its_own(host: Host) -> None:
    host.settings = ConsumerSettings(max_size=1)
    host.join("a", "orders", instance_id="i")
    answer = host.join("b", "orders")
    assert code(answer) is ErrorCode.group_max_size_reached
    assert answer["error_message"] == "The consumer group has reached its maximum capacity of 1 members."
    host.beat("a", -2, instance_id="i")
    assert code(host.join("c", "orders", instance_id="i")) is ErrorCode.none


def test_a_static_member_that_is_away_keeps_its_place_until_its_session_ends(host: Host) -> None:
    host.join("a", "orders", instance_id="i")
    host.join("b", "orders")
    epoch = host.group.state.epoch
    assert host.beat("a", -2, instance_id="i")["member_epoch"] == -2
    assert owned(host.beat("b", 2)) is None
    answer = host.join("a2", "orders", instance_id="i")
    assert host.group.state.epoch == epoch
    assert (answer["member_epoch"], owned(answer)) == (2, orders(0, 1))
    assert code(host.beat("a", 1, instance_id="i")) is ErrorCode.fenced_instance_id
    host.beat("a2", -2, instance_id="i")
    host.advance(44_000)
    host.beat("b", 2)
    host.advance(2_000)
    assert owned(host.beat("b", 2)) == orders(0, 1, 2, 3)


def test_an_instance_that_is_here_is_not_given_away(host: Host) -> None:
    host.join("a", "orders", instance_id="i")
    answer = host.join("b", "orders", instance_id="i")
    assert code(answer) is ErrorCode.unreleased_instance_id
    assert answer["error_message"] == (
        "Static member b with instance id i cannot join the group because the instance id is owned by a member."
    )
    assert code(host.join("a", "orders", instance_id="i")) is ErrorCode.none
    assert code(host.beat("x", 1, instance_id="unknown")) is ErrorCode.unknown_member_id


def test_the_assignor_that_most_ask_for_is_used(host: Host) -> None:
    host.join("a", "orders", server_assignor="range")
    assert host.group.describe()["assignor_name"] == "range"
    host.join("b", "orders", server_assignor="uniform")
    host.join("c", "orders", server_assignor="uniform")
    assert host.group.describe()["assignor_name"] == "uniform"


def test_commits_need_the_members_own_epoch(host: Host) -> None:
    host.group.check_commit("", None, -1, 0)
    host.join("a", "orders")
    host.group.check_commit("a", None, 1, 0)
    host.group.check_fetch("a", 1)
    host.group.check_fetch(None, -1)
    host.group.check_commit("", None, -1, 0, transactional=True)
    for member_id, epoch, expected in [
        ("a", 0, ErrorCode.stale_member_epoch),
        ("a", 2, ErrorCode.stale_member_epoch),
        ("b", 1, ErrorCode.unknown_member_id),
        ("", -1, ErrorCode.unknown_member_id),
    ]:
        with pytest.raises(CodedError) as refused:
            host.group.check_commit(member_id, None, epoch, 0)
        assert refused.value.code is expected


def test_a_group_is_described_as_it_is(host: Host) -> None:
    host.join("a", "orders", rack_id="r", client_id="c", client_host="/h")
    host.join("b", subscribed_topic_regex="orders")
    described = host.group.describe()
    assert (described["group_state"], described["group_epoch"], described["assignment_epoch"]) == ("Reconciling", 2, 2)
    first = described["members"][0]
    topic = {"topic_id": ORDERS, "topic_name": "orders"}
    assert first == {
        "member_id": "a",
        "instance_id": None,
        "rack_id": "r",
        "member_epoch": 1,
        "client_id": "c",
        "client_host": "/h",
        "subscribed_topic_names": ["orders"],
        "subscribed_topic_regex": None,
        "assignment": {"topic_partitions": [{**topic, "partitions": [0, 1, 2, 3]}]},
        "target_assignment": {"topic_partitions": [{**topic, "partitions": [0, 1]}]},
        "member_type": 1,
    }


def test_a_deleted_group_leaves_nothing_in_the_log(host: Host) -> None:
    host.join("a", subscribed_topic_regex="orders")
    host.log += host.group.tombstones()
    last = {write.key: write.value for write in host.log}
    assert set(last.values()) == {None}
    assert host.replayed().is_dead
    with pytest.raises(CodedError) as refused:
        host.group.check_delete()
    assert refused.value.code is ErrorCode.non_empty_group


def test_a_very_large_group_is_not_assigned_anew_at_every_join() -> None:
    host = Host(make_image({"wide": 4_000}))
    host.join("a", "wide")
    host.join("b", "wide")
    assert host.group.state_name == "Assigning"
    host.advance(1_000)
    host.beat("a", 1)
    assert host.group.state_name == "Reconciling"


@pytest.mark.parametrize(
    ("version", "fields", "message"),
    [
        (1, {"member_id": ""}, "MemberId can't be empty."),
        (0, {"member_id": "", "member_epoch": 1}, "MemberId can't be empty."),
        (1, {"instance_id": " "}, "InstanceId can't be empty."),
        (1, {"rack_id": ""}, "RackId can't be empty."),
        (1, {"rebalance_timeout_ms": -1}, "RebalanceTimeoutMs must be provided in first request."),
        (1, {"owned": None}, "TopicPartitions must be empty when (re-)joining."),
        (1, {"owned": orders(1)}, "TopicPartitions must be empty when (re-)joining."),
        (
            1,
            {"subscribed_topic_names": None},
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        (1, {"member_epoch": -2}, "InstanceId can't be null."),
        (1, {"member_epoch": -3}, "MemberEpoch is invalid."),
    ],
)
def test_invalid_requests_are_told_what_is_wrong(version: int, fields: dict[str, Any], message: str) -> None:
    valid: dict[str, Any] = {
        "token": None,
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout_ms": 1,
        "owned": {},
        "subscribed_topic_names": frozenset({"orders"}),
    }
    check_request("g", HeartbeatRequest(**valid), version, ("uniform", "range"))
    with pytest.raises(CodedError) as refused:
        check_request("g", HeartbeatRequest(**{**valid, **fields}), version, ("uniform", "range"))
    assert (refused.value.code, refused.value.message) == (ErrorCode.invalid_request, message)


def test_an_unknown_assignor_is_refused() -> None:
    request = HeartbeatRequest(token=None, member_id="m", member_epoch=1, server_assignor="sticky")
    with pytest.raises(CodedError) as refused:
        check_request("g", request, 1, ("uniform", "range"))
    assert refused.value.code is ErrorCode.unsupported_assignor
    assert refused.value.message == "ServerAssignor sticky is not supported. Supported assignors: uniform, range."


def test_a_groups_own_settings_stay_within_the_brokers_bounds() -> None:
    broker = {
        "group.consumer.assignors": ("uniform", "range"),
        "group.consumer.max.size": 5,
        "group.consumer.migration.policy": "UPGRADE",
        "group.max.size": 7,
        **{f"group.consumer.{bound}session.timeout.ms": ms for bound, ms in [("", 45), ("min.", 40), ("max.", 60)]},
        **{f"group.consumer.{bound}heartbeat.interval.ms": ms for bound, ms in [("", 5), ("min.", 4), ("max.", 9)]},
    }
    plain = ConsumerSettings.of(broker, {})
    assert (plain.session_timeout_ms, plain.heartbeat_interval_ms, plain.assignors[0]) == (45, 5, "uniform")
    assert plain.migration_policy.allows_upgrade
    assert not plain.migration_policy.allows_downgrade
    own = {
        "consumer.session.timeout.ms": "90",
        "consumer.heartbeat.interval.ms": "1",
        "consumer.assignor": "range",
    }
    given = ConsumerSettings.of(broker, own)
    assert (given.session_timeout_ms, given.heartbeat_interval_ms, given.assignors) == (60, 4, ("range", "uniform"))
