"""What a leader and a follower conclude from what they hear of each other on a link."""

from dataclasses import replace

import pytest

from headrace.replication.throttle import Throttle
from tests.intake import RULES

from .links import FOLLOWER, LEADER, Pair, append, readable

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
    pair.outflow.close()
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


def diverged(throttle: Throttle | None = None) -> Pair:
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
        throttle = Throttle(lambda: 1_000, lambda: 0.0)
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
    pair.inflow.add((pair.leaders[0].topic_id, 0), pair.followers[0])
    pair.exchange(2)
    assert pair.followers[0].high_watermark == 1
