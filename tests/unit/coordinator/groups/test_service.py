"""The coordinator: what it promises when disks fail, brokers die, and logs are long."""

import asyncio
import errno
from datetime import timedelta

import pytest

from headrace.coordinator.groups.classic import members as classic_members
from headrace.coordinator.groups.offsets.records import OFFSETS_TOPIC
from headrace.coordinator.groups.shard import GroupShard
from headrace.coordinator.runtime import shard as runtime_shard
from headrace.coordinator.runtime.fields import LARGEST_TEXT
from headrace.coordinator.runtime.partitions import partition_of
from headrace.coordinator.runtime.shard import Phase
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from tests.support.coordinator.members import (
    commit,
    commit_values,
    fetch,
    find,
    heartbeat,
    join,
    lone_member,
    start_join,
    subscription,
    sync,
)
from tests.support.coordinator.world import World

DAY_MS = 86_400_000


def group_in(number: int) -> str:
    """A group id whose shard is that one of two."""
    return next(name for name in map(str, range(100)) if partition_of(name, 2) == number)


def make_room(world: World) -> None:
    """The disk has space again, and logs that were full are told so."""
    for partition in world.replicas.hosted():
        partition.log.condition.revive()


def test_the_internal_topic_is_made_when_the_first_group_is_looked_for(world: World) -> None:
    world.topic("t")
    assert commit(world, 1) is ErrorCode.not_coordinator
    found = find(world)
    assert (found.error_code, found.node_id, found.host, found.port) == (ErrorCode.none, 1, "localhost", 9092)
    topic = world.image.topic(OFFSETS_TOPIC)
    assert topic is not None
    assert (topic.internal, len(topic.partitions), topic.configs["cleanup.policy"]) == (True, 2, "compact")
    assert commit(world, 1) is ErrorCode.none


def test_commits_survive_a_kill_and_a_loss_of_power(world: World) -> None:
    world.topic("t")
    find(world)
    assert commit(world, 7) is ErrorCode.none
    world.kill()
    assert fetch(world) == 7
    assert commit(world, 8) is ErrorCode.none
    world.crash()
    assert fetch(world) == 8


def test_nothing_is_heard_before_it_is_on_stable_storage(world: World) -> None:
    world.topic("t")
    find(world)
    world.holds_syncs = True
    committing = world.send(ApiKey.OFFSET_COMMIT, 9, **commit_values(7))
    topics = [{"name": "t", "partition_indexes": [0]}]
    fetching = world.send(ApiKey.OFFSET_FETCH, 9, groups=[{"group_id": "g", "topics": topics}])
    assert not committing.done()
    assert not fetching.done()
    world.sync()
    world.settle()
    assert committing.result().topics[0].partitions[0].error_code is ErrorCode.none
    assert fetching.result().groups[0].topics[0].partitions[0].committed_offset == 7


def test_members_and_their_assignments_survive_a_kill(world: World) -> None:
    joined = lone_member(world, b"mine")
    world.kill()
    assert heartbeat(world, joined) is ErrorCode.none
    assert sync(world, joined).assignment == b"mine"


@pytest.mark.parametrize("letter", ["e", "\u20ac"])
def test_a_member_whose_client_id_is_as_long_as_can_be_is_one_like_others(world: World, letter: str) -> None:
    """Its id begins with that of its client, and has to fit where records and answers have it."""
    joined = lone_member(world, client_id=letter * (LARGEST_TEXT // len(letter.encode())))
    assert heartbeat(world, joined) is ErrorCode.none
    world.kill()
    assert heartbeat(world, joined) is ErrorCode.none


def test_members_that_stay_silent_after_a_start_are_out(world: World) -> None:
    joined = lone_member(world)
    world.kill()
    world.advance(10_001)
    assert heartbeat(world, joined) is ErrorCode.unknown_member_id


def test_a_commit_that_cannot_be_written_changes_nothing(world: World) -> None:
    world.topic("t")
    find(world)
    assert commit(world, 7) is ErrorCode.none
    world.disk.fail(errno.ENOSPC, kind="append", path=OFFSETS_TOPIC)
    assert commit(world, 8) is ErrorCode.coordinator_not_available
    assert fetch(world) == 7
    make_room(world)
    assert commit(world, 9) is ErrorCode.none
    assert fetch(world) == 9


def test_a_decision_that_cannot_be_written_never_happened(world: World) -> None:
    joined = lone_member(world, b"first")
    again = start_join(world, joined.member_id)
    world.advance(0)
    world.disk.fail(errno.ENOSPC, kind="append", path=OFFSETS_TOPIC)
    answer = sync(world, again.result(), {joined.member_id: b"second"})
    assert answer.error_code is ErrorCode.coordinator_not_available
    make_room(world)
    heartbeat(world, joined)
    world.settle()
    assert heartbeat(world, joined) is ErrorCode.none
    assert sync(world, joined).assignment == b"first"


def test_a_member_whose_group_cannot_be_written_is_told_so_instead_of_waiting_to_join(world: World) -> None:
    find(world)
    world.disk.fail(errno.ENOSPC, kind="append", path=OFFSETS_TOPIC)
    joining = start_join(world, version=3)
    assert joining.done()
    assert joining.result().error_code is ErrorCode.coordinator_not_available


def test_a_log_that_fails_to_sync_takes_its_groups_out_of_service(world: World) -> None:
    world.topic("t")
    find(world)
    world.disk.fail(kind="datasync", path=OFFSETS_TOPIC)
    assert commit(world, 7) is ErrorCode.coordinator_not_available
    assert commit(world, 8) is ErrorCode.coordinator_not_available
    world.crash()
    assert commit(world, 9) is ErrorCode.none
    assert fetch(world) == 9


def test_a_shard_that_is_being_loaded_does_not_hold_up_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_shard, "SLICE_BYTES", 1_000)
    long, short = group_in(0), group_in(1)
    world.topic("t")
    find(world)
    for offset in range(2_000):
        commit(world, offset, group_id=long, partition=offset % 4)
    assert commit(world, 5, group_id=short) is ErrorCode.none
    world.kill(load=False)
    world.run(asyncio.sleep(0))
    assert world.ask(ApiKey.LIST_GROUPS, 5).error_code is ErrorCode.coordinator_load_in_progress
    assert commit(world, 1, group_id=long) is ErrorCode.coordinator_load_in_progress
    beat = {"group_id": long, "generation_id": 1, "member_id": "m"}
    assert world.ask(ApiKey.HEARTBEAT, 4, **beat).error_code is ErrorCode.none, "members are not to fear for that"
    assert commit(world, 6, group_id=short) is ErrorCode.none
    assert commit(world, 1, group_id=long) is ErrorCode.coordinator_load_in_progress
    world.settle()
    world.settle()
    assert fetch(world, long, partition=3) == 1999
    assert fetch(world, short) == 6


def test_offsets_of_a_deleted_topic_go_with_it(world: World) -> None:
    world.topic("t")
    world.topic("u")
    find(world)
    commit(world, 7)
    commit(world, 8, topic="u")
    world.run(world.controller.delete_topic("t"))
    world.settle()
    world.topic("t")
    assert (fetch(world), fetch(world, topic="u")) == (-1, 8)
    world.kill()
    assert (fetch(world), fetch(world, topic="u")) == (-1, 8)


def test_offsets_expire_when_their_group_was_empty_for_long_enough(world: World) -> None:
    world.topic("t")
    joined = lone_member(world, protocols=[{"name": "range", "metadata": subscription("another")}])
    member = {"generation_id_or_member_epoch": joined.generation_id, "member_id": joined.member_id}
    assert commit(world, 7, **member) is ErrorCode.none
    world.clock.jump(30 * DAY_MS)
    assert world.run(world.groups.offsets.expire(world.clock.now_ms())) == 1, "the topic is not subscribed to"
    assert commit(world, 8, **member) is ErrorCode.none
    world.ask(ApiKey.LEAVE_GROUP, 4, group_id="g", members=[{"member_id": joined.member_id}])
    world.clock.jump(6 * DAY_MS)
    assert world.run(world.groups.offsets.expire(world.clock.now_ms())) == 0
    world.clock.jump(DAY_MS)
    assert world.run(world.groups.offsets.expire(world.clock.now_ms())) == 2, "the offset, and the group with it"
    assert world.ask(ApiKey.LIST_GROUPS, 5).groups == ()
    world.kill()
    assert fetch(world) == -1
    assert world.ask(ApiKey.LIST_GROUPS, 5).groups == ()


def test_offsets_of_what_a_static_member_reads_since_it_returned_do_not_expire(world: World) -> None:
    world.topic("t")
    find(world)
    before, since = ([{"name": "range", "metadata": subscription(topic)}] for topic in ("another", "t"))
    task = start_join(world, group_instance_id="i", protocols=before)
    world.advance(0)
    sync(world, task.result(), group_instance_id="i")
    group = world.groups.shard("g").groups["g"]
    assert "t" not in group.subscribed_topics()
    returned = join(world, group_instance_id="i", protocols=since)
    assert returned.generation_id == task.result().generation_id, "it needs no rebalance"
    member = {"generation_id_or_member_epoch": 1, "member_id": returned.member_id, "group_instance_id": "i"}
    assert commit(world, 7, **member) is ErrorCode.none
    world.clock.jump(30 * DAY_MS)
    assert world.run(world.groups.offsets.expire(world.clock.now_ms())) == 0
    assert fetch(world) == 7


def test_what_a_group_reads_is_looked_up_once_for_all_of_its_offsets(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = lone_member(world, protocols=[{"name": "range", "metadata": subscription("another")}])
    member = {"generation_id_or_member_epoch": joined.generation_id, "member_id": joined.member_id}
    for number in range(20):
        world.topic(f"t{number}")
        assert commit(world, 7, topic=f"t{number}", **member) is ErrorCode.none
    parsed = []

    def parse(metadata: bytes) -> set[str] | None:
        parsed.append(metadata)
        return set()

    monkeypatch.setattr(classic_members, "parse_topics", parse)
    waiting = start_join(world, version=3)
    group = world.groups.shard("g").groups["g"]
    assert group.state_name == "PreparingRebalance", "what members read may change with every join"
    assert world.run(world.groups.offsets.expire(world.clock.now_ms())) == 0
    assert len(set(parsed)) == len(parsed) == 2, "of each subscription once"
    waiting.cancel()


def test_a_commits_own_retention_comes_before_the_brokers(world: World) -> None:
    world.topic("t")
    find(world)
    commit(world, 7, version=3, retention_time=timedelta(hours=1))
    world.clock.jump(3_600_000 - 1)
    assert world.run(world.groups.offsets.expire(world.clock.now_ms())) == 0
    world.clock.jump(1)
    assert world.run(world.groups.offsets.expire(world.clock.now_ms())) == 1
    assert fetch(world) == -1


@pytest.mark.parametrize("group_type", ["classic", "consumer"])
def test_no_member_is_late_before_it_can_be_heard(world: World, group_type: str) -> None:
    world.topic("t")
    if group_type == "classic":
        lone_member(world)
    else:
        find(world)
        beat = {"group_id": "g", "member_id": "m", "member_epoch": 0, "rebalance_timeout": timedelta(minutes=1)}
        beat |= {"subscribed_topic_names": ["t"], "topic_partitions": []}
        assert world.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **beat).error_code is ErrorCode.none
    world.serving = asyncio.Event()
    world.kill()
    world.advance(10 * 60_000)
    assert not world.groups.shard("g").groups["g"].is_empty, "the broker takes long to start"
    world.serving.set()
    world.settle()
    world.advance(4_000)
    assert not world.groups.shard("g").groups["g"].is_empty
    world.advance(60_000)
    assert world.groups.shard("g").groups["g"].is_empty, "it was not heard for as long as its session lasts"


def test_closing_answers_everyone_who_waits(world: World) -> None:
    lone_member(world)
    waiting = start_join(world, version=3)
    assert not waiting.done()
    world.run(world.groups.close())
    world.settle()
    assert waiting.result().error_code is ErrorCode.not_coordinator
    assert join(world).error_code is ErrorCode.not_coordinator


def test_a_shard_with_records_that_nobody_can_read_does_not_hold_up_the_others(world: World) -> None:
    world.topic("t")
    find(world)
    for offset in range(8):
        assert commit(world, offset, group_id=group_in(1)) is ErrorCode.none, "it is the larger one, and loaded last"
    assert commit(world, 7, group_id=group_in(0)) is ErrorCode.none
    world.groups.shard(group_in(0))._append([(b"\0\2\0\1\xff", b"not a group, under a name that is not text")])
    world.settle()
    world.kill()
    assert fetch(world, group_id=group_in(1)) == 7
    answer = world.ask(ApiKey.OFFSET_FETCH, 9, groups=[{"group_id": group_in(0), "topics": None}])
    assert answer.groups[0].error_code is ErrorCode.coordinator_not_available
    assert world.groups.runtime.active() == [world.groups.shard(group_in(1))]


def test_a_log_that_cannot_be_read_is_not_read_with_every_request(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.topic("t")
    find(world)
    assert commit(world, 7, group_id=group_in(0)) is ErrorCode.none
    world.groups.shard(group_in(0))._append([(b"\0\2\0\1\xff", b"not a group, under a name that is not text")])
    world.settle()
    loads: list[float] = []
    load = GroupShard.load

    async def note(shard: GroupShard) -> None:
        loads.append(world.clock.monotonic())
        await load(shard)

    monkeypatch.setattr(GroupShard, "load", note)
    world.kill()
    for _ in range(1_000):
        world.ask(ApiKey.OFFSET_FETCH, 9, groups=[{"group_id": group_in(0), "topics": None}])
        world.settle()
        world.advance(100)
    assert 5 <= len(loads) <= 8, "after 2, 4, 8, … seconds"


def test_a_shard_that_was_closed_before_it_was_loaded_stays_closed(world: World) -> None:
    world.topic("t")
    find(world)
    for number in (0, 1):
        assert commit(world, 7, group_id=group_in(number)) is ErrorCode.none
    world.kill(load=False)
    shards = world.groups.runtime.inactive()
    for one in shards:
        one.close()
    world.settle()
    assert [one.phase for one in shards] == [Phase.CLOSED, Phase.CLOSED]


def test_offsets_that_are_still_committed_do_not_expire_with_a_group_that_had_members(world: World) -> None:
    world.topic("t")
    joined = lone_member(world)
    world.ask(ApiKey.LEAVE_GROUP, 4, group_id="g", members=[{"member_id": joined.member_id}])
    world.advance(6 * DAY_MS)
    assert commit(world, 5) is ErrorCode.none, "by a consumer that assigns itself"
    world.advance(2 * DAY_MS)
    world.run(world.groups.offsets.expire(world.clock.now_ms()))
    assert fetch(world) == 5
    world.advance(6 * DAY_MS)
    world.run(world.groups.offsets.expire(world.clock.now_ms()))
    assert fetch(world) == -1


def test_offsets_of_a_topic_that_was_deleted_while_they_were_loaded_go_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_shard, "SLICE_BYTES", 1)
    world.topic("t")
    find(world)
    for offset in range(20):
        assert commit(world, offset) is ErrorCode.none
    world.kill(load=False)
    assert world.groups.runtime.inactive()
    world.run(world.groups.offsets.forget_topic("t"))
    world.settle()
    assert fetch(world) == -1
    world.kill()
    assert fetch(world) == -1


def test_groups_end_with_the_internal_topic(world: World) -> None:
    world.topic("t")
    joined = lone_member(world)
    waiting = start_join(world, version=3)
    world.run(world.controller.delete_topic(OFFSETS_TOPIC))
    world.settle()
    assert waiting.result().error_code is ErrorCode.not_coordinator
    assert heartbeat(world, joined) is ErrorCode.not_coordinator
    assert world.ask(ApiKey.LIST_GROUPS, 5).groups == ()
    find(world)
    assert heartbeat(world, joined) is ErrorCode.unknown_member_id
    assert commit(world, 8) is ErrorCode.none
    world.kill()
    assert fetch(world) == 8
