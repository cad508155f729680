"""What a leader and a follower conclude from what they hear of each other on a link."""

import errno
from contextlib import suppress
from dataclasses import replace
from math import inf
from random import Random

import pytest

from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.partition import Partition
from headrace.replication.throttle import ReplicationThrottle
from headrace.storage.log import Log
from headrace.testing.disk import PowerLost
from tests.support.intake import RULES
from tests.support.links import FOLLOWER, LEADER, TOPIC_ID, Pair, append, readable

LONGEST = 30.0


def laggards(pair: Pair) -> list[frozenset[int]]:
    """The ISRs that the leader asks for, because the follower has not kept up."""
    pair.proposed.clear()
    leader = pair.leaders[0]
    leader.drop_laggards(pair.clock.monotonic(), LONGEST, lambda isr: pair.propose_isr(leader, isr))
    return pair.proposed


def idle(pair: Pair, seconds: int) -> None:
    """Time passes in which nothing is written, and the follower asks again and again."""
    for _ in range(seconds):
        pair.clock.advance(1_000)
        pair.exchange(1)


def test_a_follower_that_had_nothing_to_fetch_was_caught_up_when_it_last_asked() -> None:
    pair = Pair()
    pair.elect(1)
    idle(pair, 100)
    append(pair.leaders[0], b"after a long silence")
    pair.clock.advance(25_000)
    assert not laggards(pair), "the follower has had no more than 25 s to fetch it"
    pair.clock.advance(10_000)
    assert laggards(pair) == [frozenset({LEADER})]


def test_a_follower_that_has_not_asked_for_long_lags_as_soon_as_there_is_something_to_fetch() -> None:
    pair = Pair()
    pair.elect(1)
    idle(pair, 1)
    pair.clock.advance(60_000)
    assert not laggards(pair)
    append(pair.leaders[0], b"nobody is there to fetch it")
    assert laggards(pair) == [frozenset({LEADER})]


def test_a_follower_whose_link_breaks_was_caught_up_until_then() -> None:
    pair = Pair()
    pair.elect(1)
    idle(pair, 100)
    pair.follower_session.close()
    append(pair.leaders[0], b"while there is no link")
    pair.clock.advance(25_000)
    assert not laggards(pair)
    pair.clock.advance(10_000)
    assert laggards(pair)


def test_what_was_appended_before_a_follower_asked_again_is_not_taken_for_fetched() -> None:
    """It asks for other partitions for as long as it likes: this one it does not fetch."""
    pair = Pair()
    pair.elect(1)
    idle(pair, 2)
    append(pair.leaders[0], b"a")
    for _ in range(31):
        pair.clock.advance(1_000)
        pair.ask()
    assert laggards(pair) == [frozenset({LEADER})]


def diverged(throttle: ReplicationThrottle | None = None) -> Pair:
    """The follower led once, and has five records from then that nobody else has. The new leader has others.

    There is a second partition, with so much in it that an answer has no room for the first one.
    """
    pair = Pair(2, throttle=throttle)
    pair.rules = replace(RULES, throttled_leaders=frozenset({"*"}))
    for held in pair.leaders + pair.followers:
        held.rules = pair.rules
    pair.elect(1)
    for number in range(5):
        append(pair.leaders[0], b"common %d" % number)
    pair.exchange()
    former = pair.followers[0]
    former.lead(FOLLOWER, replace(former.state, leader=FOLLOWER, leader_epoch=2, partition_epoch=2), 0.0)
    for number in range(5):
        append(former, b"never committed %d" % number)
    pair.connect(throttle)
    pair.elect(3, (LEADER,), 1, 0)
    for _ in range(30):
        append(pair.leaders[1], bytes(500))
    return pair


@pytest.mark.parametrize("is_throttled", [False, True])
def test_no_high_watermark_is_told_before_the_logs_agree(is_throttled: bool) -> None:
    throttle = None
    if is_throttled:
        throttle = ReplicationThrottle(lambda: 1_000, lambda: 0.0)
        throttle.took(100_000)
    pair = diverged(throttle)
    leader, follower = pair.leaders[0], pair.followers[0]
    assert follower.high_watermark == 5
    pair.ask(max_bytes=1_000)
    for number in range(5):
        append(leader, b"committed %d" % number)
    assert leader.high_watermark == 10
    pair.answer(max_bytes=1_000)
    assert follower.high_watermark == 5
    assert readable(follower, 5) == []


def test_a_follower_is_told_the_high_watermark_once_it_agrees() -> None:
    pair = diverged()
    pair.exchange(10)
    assert readable(pair.followers[0], 0) == [b"common %d" % number for number in range(5)]
    append(pair.leaders[0], b"committed")
    pair.exchange(10)
    assert readable(pair.followers[0], 5) == [b"committed"]


def test_a_follower_that_has_everything_learns_the_high_watermark_of_a_new_link() -> None:
    pair = Pair()
    pair.elect(1)
    append(pair.leaders[0], b"a")
    pair.exchange(2)
    assert pair.leaders[0].high_watermark == 1
    pair.followers[0].high_watermark = 0
    pair.connect()
    pair.fetch_state.add((pair.leaders[0].topic_id, 0), pair.followers[0])
    pair.exchange(2)
    assert pair.followers[0].high_watermark == 1


def deleted(leader: Partition, offset: int, deadline: float = inf) -> list[CodedError | None]:
    """What a deletion is answered with, as soon as it is."""
    answers: list[CodedError | None] = []
    leader.delete_below(offset, answers.append, deadline)
    return answers


def begun_inside_a_batch() -> Pair:
    """The leader has deleted the first half of its first batch, and has one more; the follower has nothing."""
    pair = Pair()
    pair.elect(1, (LEADER,))
    append(pair.leaders[0], *(b"%d" % number for number in range(10)))
    append(pair.leaders[0], b"10")
    assert deleted(pair.leaders[0], 5) == [None]
    return pair


def test_an_empty_follower_begins_with_the_batch_that_the_leaders_log_begins_in() -> None:
    pair = begun_inside_a_batch()
    pair.exchange(4)
    log = pair.followers[0].log
    assert (log.log_start_offset, log.log_end_offset) == (5, 11)
    assert readable(pair.followers[0], 5) == readable(pair.leaders[0], 5)
    assert pair.proposed


@pytest.mark.parametrize("operation", range(0, 40, 2))
def test_a_follower_that_dies_while_it_begins_inside_a_batch_begins_again(operation: int) -> None:
    pair = begun_inside_a_batch()
    pair.disks[FOLLOWER].lose_power(after=operation)
    with suppress(PowerLost):
        pair.exchange(4)
    pair.disks[FOLLOWER].crash(Random(operation))
    pair.restart_follower()
    pair.exchange(4)
    log = pair.followers[0].log
    assert (log.log_start_offset, log.log_end_offset) == (5, 11)


def test_a_log_that_begins_inside_a_batch_can_be_cut_to_nothing() -> None:
    pair = begun_inside_a_batch()
    pair.exchange(4)
    log = pair.followers[0].log
    log.truncate_to(7)
    assert (log.log_start_offset, log.log_end_offset) == (5, 5)


def test_a_follower_that_was_left_behind_by_retention_and_elections_begins_where_the_leaders_log_does() -> None:
    pair = Pair()
    pair.elect(1)
    append(pair.leaders[0], b"0")
    pair.exchange(2)
    pair.elect(2, (LEADER,))
    for number in range(1, 5):
        append(pair.leaders[0], b"%d" % number)
    leader = pair.leaders[0].log
    leader.configure(replace(leader.settings, retention_ms=1))
    leader.retain(1 << 45, leader.log_end_offset)
    append(pair.leaders[0], b"5")
    pair.exchange(6)
    log = pair.followers[0].log
    assert (log.log_start_offset, log.log_end_offset) == (leader.log_start_offset, leader.log_end_offset) == (5, 6)
    assert log.latest_epoch() == 2


def test_a_deletion_is_answered_once_the_whole_isr_has_it() -> None:
    pair = Pair()
    pair.elect(1)
    append(pair.leaders[0], b"a", b"b", b"c")
    pair.exchange(3)
    answers = deleted(pair.leaders[0], 2)
    assert pair.follower_session.is_ready, "the follower is told at once"
    pair.answer()
    assert pair.followers[0].log.log_start_offset == 2
    assert not answers
    pair.ask()
    assert answers == [None]
    assert pair.leaders[0].low_watermark == 2


def test_a_deletion_is_answered_when_who_did_not_have_it_has_left_the_isr() -> None:
    pair = Pair()
    pair.elect(1)
    append(pair.leaders[0], b"a", b"b", b"c")
    pair.exchange(3)
    answers = deleted(pair.leaders[0], 2)
    leader = pair.leaders[0]
    leader.lead(LEADER, replace(leader.state, isr=(LEADER,), partition_epoch=2), 0.0)
    assert answers == [None]


def test_a_deletion_that_a_follower_does_not_hear_of_times_out() -> None:
    pair = Pair()
    pair.elect(1)
    append(pair.leaders[0], b"a", b"b", b"c")
    pair.exchange(3)
    answers = deleted(pair.leaders[0], 2, deadline=5.0)
    pair.leaders[0].expire(4.9)
    assert not answers
    pair.leaders[0].expire(5.0)
    assert [error.code for error in answers if error] == [ErrorCode.request_timed_out]


def test_nobody_waits_for_a_deletion_on_a_leader_that_is_none_any_more() -> None:
    pair = Pair()
    pair.elect(1)
    append(pair.leaders[0], b"a", b"b", b"c")
    pair.exchange(3)
    answers = deleted(pair.leaders[0], 2)
    leader = pair.leaders[0]
    leader.follow(replace(leader.state, leader=FOLLOWER, leader_epoch=2, partition_epoch=2))
    assert [error.code for error in answers if error] == [ErrorCode.not_leader_or_follower]


@pytest.mark.parametrize(("number", "is_offline"), [(errno.ENOSPC, False), (errno.EIO, True)])
def test_a_checkpoint_that_cannot_be_written_holds_up_no_other_partition(number: int, is_offline: bool) -> None:
    pair = Pair(2)
    pair.elect(1)
    for leader in pair.leaders:
        append(leader, b"a", b"b", b"c")
    pair.exchange(3)
    pair.disks[FOLLOWER].fail(number, kind="append", path="log-start-offset-checkpoint", times=1)
    deleted(pair.leaders[0], 2)
    append(pair.leaders[1], b"d")
    pair.exchange(3)
    assert pair.followers[1].log.log_end_offset == 4
    assert (pair.followers[0].log.offline is not None) is is_offline
    append(pair.leaders[0], b"d")
    pair.exchange(3)
    assert pair.followers[0].log.log_end_offset == (3 if is_offline else 4)


def test_a_follower_whose_log_failed_tells_no_position() -> None:
    pair = Pair()
    pair.elect(1)
    append(pair.leaders[0], b"a")
    pair.exchange()
    pair.followers[0].log.fail("the disk is broken")
    pair.follower_session.close()
    pair.connect()
    pair.elect(2, (LEADER,))
    pair.exchange()
    assert pair.proposed == []


def test_a_follower_that_withdrew_is_not_asked_into_the_isr_for_what_it_had() -> None:
    pair = Pair()
    pair.elect(1)
    append(pair.leaders[0], b"a")
    pair.exchange()
    pair.fetch_state.remove((TOPIC_ID.bytes, 0))
    pair.ask()
    leader = pair.leaders[0]
    leader.lead(LEADER, replace(leader.state, isr=(LEADER,), partition_epoch=2), pair.clock.monotonic())
    pair.clock.advance(1_000)
    assert leader.consider(FOLLOWER, now=pair.clock.monotonic(), propose=lambda isr: pair.propose_isr(leader, isr))
    assert pair.proposed == []


def test_a_follower_that_hears_first_who_leads_waits_until_the_leader_has_heard_it_too() -> None:
    pair = Pair()
    leader, follower = pair.leaders[0], pair.followers[0]
    state = replace(leader.state, leader=LEADER, leader_epoch=1, partition_epoch=1)
    follower.follow(state)
    pair.fetch_state.add((leader.topic_id, 0), follower)
    pair.ask()
    assert not pair.follower_session.is_ready, "it is not refused"
    leader.lead(LEADER, state, 0.0)
    append(leader, b"at once")
    assert leader.high_watermark == 0
    for follower_session in pair.awaited.pop((leader.topic_id, 0)):
        follower_session.led((leader.topic_id, 0))
    pair.answer()
    pair.ask()
    assert leader.high_watermark == 1
    assert not pair.later, "it had nothing to ask for again later"


def test_a_follower_for_which_there_is_no_batch_gets_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction may have removed all that lies between its position and the end of the log."""
    pair = Pair()
    pair.elect(1, (LEADER,))
    append(pair.leaders[0], b"as good as removed")
    with monkeypatch.context() as patch:
        patch.setattr(Log, "read", lambda *_: None)
        pair.exchange()
    append(pair.leaders[0], b"next")
    pair.exchange()
    assert pair.followers[0].log.log_end_offset == 2


def test_a_follower_that_leaves_is_not_waited_with_any_more() -> None:
    pair = Pair()
    leader, follower = pair.leaders[0], pair.followers[0]
    follower.follow(replace(leader.state, leader=LEADER, leader_epoch=1, partition_epoch=1))
    pair.fetch_state.add((leader.topic_id, 0), follower)
    pair.ask()
    assert pair.awaited
    pair.fetch_state.remove((leader.topic_id, 0))
    pair.ask()
    assert not pair.awaited


def test_who_waits_for_a_leader_counts_neither_as_caught_up_nor_as_agreeing() -> None:
    pair = Pair()
    pair.elect(1)
    pair.exchange(2)
    leader, follower = pair.leaders[0], pair.followers[0]
    later = replace(leader.state, leader_epoch=2, partition_epoch=2)
    follower.follow(later)
    pair.fetch_state.add((leader.topic_id, 0), follower)
    pair.ask()
    pair.clock.advance(60_000)
    leader.lead(LEADER, later, 0.0)
    append(leader, b"a")
    assert laggards(pair) == [frozenset({LEADER})]
