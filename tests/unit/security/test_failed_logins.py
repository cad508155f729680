"""Failed logins are answered later and later, for each address by itself."""

from headrace.security.failed_logins import (
    FORGOTTEN_AFTER,
    LONGEST_DELAY,
    LONGEST_PAUSE,
    MOST_ADDRESSES,
    FailedLogins,
)


def test_the_delay_grows_up_to_its_limit() -> None:
    logins = FailedLogins()
    delays = [logins.failed("192.0.2.1", 0.0).delay for _ in range(50)]
    assert delays[:4] == [0.1, 0.2, 0.4, 0.8]
    assert set(delays[4:]) == {LONGEST_DELAY}


def test_another_address_does_not_pay_for_it() -> None:
    logins = FailedLogins()
    for _ in range(5):
        logins.failed("192.0.2.1", 0.0)
    assert logins.failed("192.0.2.2", 0.0).delay == 0.1


def test_an_address_that_was_quiet_begins_anew() -> None:
    logins = FailedLogins()
    logins.failed("192.0.2.1", 0.0)
    assert logins.failed("192.0.2.1", FORGOTTEN_AFTER).failures == 2
    assert logins.failed("192.0.2.1", 3 * FORGOTTEN_AFTER).failures == 1


def test_a_flood_is_reported_once_a_second() -> None:
    logins = FailedLogins()
    reported = [logins.failed("192.0.2.1", number / 100).is_reported for number in range(200)]
    assert sum(reported) == 2


def test_no_more_than_so_many_addresses_are_remembered() -> None:
    logins = FailedLogins()
    logins.failed("first", 0.0)
    for number in range(MOST_ADDRESSES):
        logins.failed(str(number), 0.0)
    assert logins.failed("first", 0.0).failures == 1


def test_the_next_verdict_of_an_address_with_failures_has_to_wait() -> None:
    logins = FailedLogins()
    assert logins.pause("192.0.2.1", 0.0) == 0
    for _ in range(5):
        logins.failed("192.0.2.1", 1.0)
    assert logins.pause("192.0.2.1", 1.0) == LONGEST_PAUSE
    assert logins.pause("192.0.2.1", 1.0 + LONGEST_PAUSE) == 0
    assert logins.pause("192.0.2.2", 1.0) == 0
