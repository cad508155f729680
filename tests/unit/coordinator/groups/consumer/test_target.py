"""The target of a large group is made aside: members go on with the one they have, and nobody waits for it."""

from collections.abc import Iterator

import pytest

from headrace.coordinator.groups.consumer import group as consumer_group
from tests.support.coordinator.consumer_group import Host, make_image, owned, put_topic, topic_id

A = topic_id("a")


@pytest.fixture
def host() -> Host:
    return Host(make_image({"a": consumer_group._SMALL_GROUP}))


def partitions(host: Host, member_id: str) -> frozenset[int]:
    return host.group.state.target_of(member_id).get(A, frozenset())


def targets(host: Host) -> Iterator[int]:
    for member_id in host.group.state.members:
        yield from partitions(host, member_id)


def test_a_small_group_gets_its_target_at_once() -> None:
    host = Host(make_image({"a": 1000}))
    answer = host.join("m", "a")
    assert owned(answer) == {A: frozenset(range(1000))}
    assert not host.aside


def test_the_first_member_of_a_large_group_has_an_epoch_and_gets_partitions_with_a_later_heartbeat(host: Host) -> None:
    answer = host.join("m", "a")
    assert answer["member_epoch"] == 1
    assert owned(answer) == {}
    assert host.group.state_name == "Assigning"
    host.beat("m", 1)
    assert len(host.aside) == 1
    host.finish_aside()
    answer = host.beat("m", 1, owned={})
    assert answer["member_epoch"] == 2
    assert owned(answer) == {A: frozenset(range(consumer_group._SMALL_GROUP))}
    assert host.group.state_name == "Stable"


def settle(host: Host, member_id: str) -> None:
    """Heartbeats of one member until the target is that of the group's epoch, and some time."""
    for _ in range(5):
        host.finish_aside()
        host.beat(member_id, host.group.state.members[member_id].epoch)
        host.advance(1000)
    assert host.group.state.epoch == host.group.state.target_epoch


def joined(host: Host, *members: str) -> None:
    """Members that have their targets."""
    for member_id in members:
        host.join(member_id, "a", **({"instance_id": member_id} if member_id.startswith("static") else {}))
        settle(host, member_id)


def test_members_keep_their_target_while_the_next_is_made(host: Host) -> None:
    joined(host, "m")
    before = partitions(host, "m")
    host.join("n", "a")
    assert partitions(host, "m") == before
    assert not partitions(host, "n")
    host.finish_aside()
    assert partitions(host, "m") == before
    host.beat("n", host.group.state.members["n"].epoch)
    assert len(partitions(host, "m")) == len(partitions(host, "n")) == consumer_group._SMALL_GROUP // 2


def test_a_target_that_is_overtaken_counts_for_those_that_are_left_until_the_next_one(host: Host) -> None:
    joined(host, "m", "n")
    host.join("o", "a")
    host.beat("n", -1)
    host.join("p", "a")
    host.finish_aside()
    epoch = host.group.state.epoch
    host.beat("m", host.group.state.members["m"].epoch)
    assert host.group.state.target_epoch < epoch
    assert set(host.group.state.targets) <= set(host.group.state.members)
    assert len(list(targets(host))) == len(set(targets(host))) < consumer_group._SMALL_GROUP
    settle(host, "m")
    assert host.group.state.target_epoch == epoch
    assert sorted(targets(host)) == list(range(consumer_group._SMALL_GROUP))


def test_a_static_member_that_returns_meanwhile_gets_what_its_former_id_was_given(host: Host) -> None:
    joined(host, "static", "n")
    put_topic(host.image, "a", consumer_group._SMALL_GROUP + 2)
    host.beat("n", host.group.state.members["n"].epoch)
    assert host.aside
    host.beat("static", -2, instance_id="static")
    host.join("again", "a", instance_id="static")
    host.finish_aside()
    host.beat("n", host.group.state.members["n"].epoch)
    assert sorted(targets(host)) == list(range(consumer_group._SMALL_GROUP + 2))
    assert set(host.group.state.targets) == {"again", "n"}


def test_a_group_that_was_emptied_meanwhile_drops_the_target(host: Host) -> None:
    host.join("m", "a")
    host.beat("m", -1)
    host.finish_aside()
    host.image.remove_topic("a")
    put_topic(host.image, "a", 10, life=1)
    answer = host.join("n", "a")
    assert owned(answer) == {topic_id("a", 1): frozenset(range(10))}


def test_a_target_that_cannot_be_made_is_tried_again(host: Host) -> None:
    host.join("m", "a")
    (_, done) = host.aside.pop()
    done(None)
    host.beat("m", 1)
    assert len(host.aside) == 1


def test_topics_that_change_meanwhile_do_no_harm(host: Host) -> None:
    put_topic(host.image, "b", 10)
    host.join("m", "a", "b")
    host.image.remove_topic("a")
    settle(host, "m")
    assert set(host.group.state.target_of("m")) == {topic_id("b")}


def test_a_large_group_is_read_back_as_it_is(host: Host) -> None:
    joined(host, "m", "n")
    again = host.replayed(compacted=True)
    assert vars(again.state) == vars(host.group.state)
