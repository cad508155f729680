"""Failed logins are answered later and later, for each user at each address by itself."""

import pytest

from headrace.security.failed_logins import (
    FORGOTTEN_AFTER,
    LONGEST_DELAY,
    LONGEST_NAME,
    LONGEST_PAUSE,
    MOST_REMEMBERED,
    WRONG_A_SECOND,
    WRONG_AT_ONCE_SECONDS,
    FailedLogins,
    Turn,
)

ALICE, BOB = Turn("192.0.2.1", "alice"), Turn("192.0.2.1", "bob")
ELSEWHERE = Turn("192.0.2.2", "alice")


def test_the_delay_grows_up_to_its_limit() -> None:
    logins = FailedLogins()
    delays = [logins.failed(ALICE, 0.0).delay for _ in range(50)]
    assert delays[:4] == [0.1, 0.2, 0.4, 0.8]
    assert set(delays[4:]) == {LONGEST_DELAY}


@pytest.mark.parametrize("other", [ELSEWHERE, BOB])
def test_another_address_or_user_does_not_pay_for_it(other: Turn) -> None:
    logins = FailedLogins()
    for _ in range(5):
        logins.failed(ALICE, 0.0)
    assert logins.pause(other, 0.0) == 0
    assert logins.failed(other, 0.0).delay == 0.1


def test_an_address_that_was_quiet_begins_anew() -> None:
    logins = FailedLogins()
    logins.failed(ALICE, 0.0)
    assert logins.failed(BOB, FORGOTTEN_AFTER).failures == 2
    assert logins.failed(ALICE, 3 * FORGOTTEN_AFTER).failures == 1


def test_a_flood_is_reported_once_a_second() -> None:
    logins = FailedLogins()
    reported = [logins.failed(Turn("192.0.2.1", str(number)), number / 100).is_reported for number in range(200)]
    assert sum(reported) == 2


def test_no_more_than_so_many_are_remembered() -> None:
    logins = FailedLogins()
    logins.failed(Turn("first", "alice"), 0.0)
    for number in range(MOST_REMEMBERED):
        logins.failed(Turn(str(number)), 0.0)
        logins.turn(str(number), "alice", 0.0, is_wrong=True)
    assert logins.failed(Turn("first", "alice"), 0.0).failures == 1
    assert len(logins._records) == len(logins._wrong) == MOST_REMEMBERED


def test_the_next_verdict_of_a_user_who_failed_has_to_wait() -> None:
    logins = FailedLogins()
    assert logins.pause(ALICE, 0.0) == 0
    for _ in range(5):
        logins.failed(ALICE, 1.0)
    assert logins.pause(ALICE, 1.0) == LONGEST_PAUSE
    assert logins.pause(ALICE, 1.0 + LONGEST_PAUSE) == 0
    assert logins.pause(ELSEWHERE, 1.0) == 0


def test_who_tries_many_users_has_his_whole_address_wait_until_he_is_slower() -> None:
    logins, many = FailedLogins(), int(WRONG_A_SECOND * WRONG_AT_ONCE_SECONDS)
    turns = [logins.turn("192.0.2.1", f"user-{number}", 0.0, is_wrong=True) for number in range(many + 1)]
    assert [turn.user for turn in turns] == [*(f"user-{number}" for number in range(many)), None]
    assert logins.turn("192.0.2.1", "alice", 0.0, is_wrong=False) == Turn("192.0.2.1")
    assert logins.turn("192.0.2.2", "alice", 0.0, is_wrong=False) == ELSEWHERE
    logins.failed(turns[0], 0.0)
    assert logins.pause(Turn("192.0.2.1"), 0.0) > 0, "whatever was wrong before counts for all"
    assert logins.turn("192.0.2.1", "alice", 1.0, is_wrong=False) == ALICE


def test_of_a_long_name_little_is_remembered() -> None:
    turn = FailedLogins().turn("192.0.2.1", "x" * 500_000, 0.0, is_wrong=True)
    assert len(turn.user or "") == LONGEST_NAME


def test_a_subscriber_of_ipv6_is_one_address() -> None:
    turns = {FailedLogins().turn(f"2001:db8::{number}", "alice", 0.0, is_wrong=False) for number in range(1, 9)}
    assert turns == {Turn("2001:db8::/64", "alice")}
