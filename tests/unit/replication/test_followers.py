"""What a leader concludes from where its followers are."""

from dataclasses import replace

import pytest

from headrace.cluster.image import PartitionState
from headrace.replication.followers import PAUSE_SECONDS, Followers

STATE = PartitionState(replicas=(0, 1, 2), isr=(0, 1, 2), leader=0, leader_epoch=5)
LONGEST = 10.0


def leading(isr: tuple[int, ...] = (0, 1, 2), *, epoch_start: int = 0, now: float = 0.0) -> Followers:
    return Followers(0, replace(STATE, isr=isr), epoch_start, now)


def fetched(followers: Followers, broker: int, offset: int, *, end: int, now: float = 0.0, epoch: int = 1) -> None:
    follower = followers.get(broker)
    assert follower is not None
    follower.fetched(offset, end, epoch, now)


def test_nothing_is_committed_before_all_of_the_isr_were_heard_of_in_this_epoch() -> None:
    followers = leading()
    assert followers.committed_end(10) == -1
    fetched(followers, 1, 10, end=10)
    assert followers.committed_end(10) == -1
    fetched(followers, 2, 7, end=10)
    assert followers.committed_end(10) == 7


def test_who_is_not_in_the_isr_is_not_waited_for() -> None:
    followers = leading(isr=(0, 1))
    fetched(followers, 1, 9, end=10)
    assert followers.committed_end(10) == 9


def test_who_was_asked_for_is_waited_for_until_it_is_certain_that_it_does_not_come() -> None:
    followers = leading(isr=(0, 1))
    fetched(followers, 1, 9, end=10)
    fetched(followers, 2, 5, end=10)
    followers.ask_for(joining=[2])
    assert followers.committed_end(10) == 5
    followers.refused(0.0)
    assert followers.committed_end(10) == 9


def test_who_is_to_leave_is_waited_for_until_it_has_left() -> None:
    followers = leading()
    fetched(followers, 1, 9, end=10)
    fetched(followers, 2, 5, end=10)
    followers.ask_for(leaving=[2])
    assert followers.committed_end(10) == 5
    followers.renew(replace(STATE, isr=(0, 1), partition_epoch=1), 0.0)
    assert followers.committed_end(10) == 9


@pytest.mark.parametrize(
    ("offset", "high_watermark", "epoch_start", "may"),
    [(9, 9, 0, True), (8, 9, 0, False), (9, 5, 10, False), (10, 5, 10, True)],
)
def test_who_has_reached_the_high_watermark_and_this_epoch_may_join(
    offset: int, high_watermark: int, epoch_start: int, may: bool
) -> None:
    followers = leading(isr=(0, 1), epoch_start=epoch_start)
    fetched(followers, 2, offset, end=20)
    assert followers.may_join(2, high_watermark, 0.0) is may


def test_who_still_holds_what_was_deleted_may_not_join() -> None:
    followers = leading(isr=(0, 1))
    follower = followers.get(2)
    assert follower is not None
    follower.fetched(10, 10, 1, 0.0, start=3)
    assert not followers.may_join(2, 10, 0.0, start=4)
    follower.fetched(10, 10, 1, 0.0, start=4)
    assert followers.may_join(2, 10, 0.0, start=4)


def test_one_wish_at_a_time_and_after_a_refusal_not_at_once_again() -> None:
    followers = leading(isr=(0,))
    fetched(followers, 1, 10, end=10)
    fetched(followers, 2, 10, end=10)
    followers.ask_for(joining=[1])
    assert not followers.may_join(2, 10, 0.0)
    followers.refused(100.0)
    assert not followers.may_join(1, 10, 100.0 + PAUSE_SECONDS / 2)
    assert followers.may_join(1, 10, 100.0 + PAUSE_SECONDS)


def test_laggards_are_those_who_have_not_had_everything_for_too_long() -> None:
    followers = leading()
    fetched(followers, 1, 10, end=10, now=1.0)
    fetched(followers, 2, 10, end=10, now=1.0)
    fetched(followers, 1, 20, end=20, now=9.0)
    assert followers.laggards(30, 11.0, LONGEST) == []
    assert followers.laggards(30, 11.5, LONGEST) == [2]
    assert followers.laggards(30, 19.5, LONGEST) == [1, 2]


def test_who_always_fetches_what_was_there_the_last_time_keeps_up_with_a_busy_leader() -> None:
    followers = leading(isr=(0, 1))
    end = 0
    for second in range(100):
        fetched(followers, 1, end, end=end + 10, now=float(second))
        end += 10
    assert followers.laggards(end, 100.0, LONGEST) == []


def test_who_has_everything_never_lags_however_long_nothing_was_written() -> None:
    followers = leading(isr=(0, 1))
    fetched(followers, 1, 10, end=10)
    assert followers.laggards(10, 1e9, LONGEST) == []


def test_a_new_replica_begins_unknown_and_a_former_one_is_forgotten() -> None:
    followers = leading(isr=(0, 1))
    fetched(followers, 1, 10, end=10)
    followers.renew(replace(STATE, replicas=(0, 1, 3), isr=(0, 1), partition_epoch=1), 0.0)
    assert 2 not in followers
    assert 3 in followers
    assert followers.committed_end(10) == 10
    assert not followers.may_join(3, 0, 0.0)


def test_members_are_named_with_the_registration_they_fetched_with() -> None:
    followers = leading()
    fetched(followers, 1, 10, end=10, epoch=77)
    assert followers.epochs_of((0, 1, 2), own_epoch=5) == {0: 5, 1: 77, 2: -1}
