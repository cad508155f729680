"""The check of the members' logs finds what is planted in them."""

import pytest

from .check import Limits, check
from .member import Event, MemberLog

_LIMITS = Limits(gap_seconds=5)
_PLACE = ("t", 0)


def _log(name: str, *events: tuple[str, int], killed: int | None = None) -> MemberLog:
    log = MemberLog(name)
    for kind, second in events:
        value = f"{name}-{second}" if kind == "record" else ""
        log.events.append(Event(kind=kind, at=second * 1_000_000_000, places=(_PLACE,), value=value))
    log.ended = None if killed is None else killed * 1_000_000_000
    return log


def _check(*logs: MemberLog, produced: tuple[str, ...] = (), until: int = 10) -> None:
    check(logs, produced, until * 1_000_000_000, _LIMITS)


def test_a_partition_handed_over_is_fine() -> None:
    _check(_log("a", ("assigned", 0), ("revoked", 4)), _log("b", ("assigned", 4), ("record", 5)), produced=("b-5",))


def test_a_killed_member_owns_nothing_afterwards() -> None:
    _check(_log("a", ("assigned", 0), killed=3), _log("b", ("assigned", 6)))


def test_what_a_closing_member_is_still_assigned_does_not_count() -> None:
    _check(_log("a", ("assigned", 0), ("revoked", 2), ("closing", 3), ("assigned", 4)), _log("b", ("assigned", 5)))


def test_two_owners_are_found() -> None:
    with pytest.raises(AssertionError, match=r"t\[0\] was given to b 1000.0 ms before a gave it up"):
        _check(_log("a", ("assigned", 0), ("revoked", 4)), _log("b", ("assigned", 3)))


def test_an_owner_that_never_gave_up_is_found() -> None:
    with pytest.raises(AssertionError, match="given to b while a kept it"):
        _check(_log("a", ("assigned", 0)), _log("b", ("assigned", 3)))


def test_a_short_ownership_inside_a_long_one_is_found() -> None:
    with pytest.raises(AssertionError, match="given to b"):
        _check(_log("a", ("assigned", 0), ("revoked", 8)), _log("b", ("assigned", 2), ("revoked", 3)))


def test_a_record_processed_by_no_one_is_found() -> None:
    with pytest.raises(AssertionError, match="1 records were never processed: lost"):
        _check(_log("a", ("assigned", 0), ("record", 1)), produced=("a-1", "lost"))


def test_a_record_processed_after_giving_up_is_found() -> None:
    with pytest.raises(AssertionError, match=r"a processed a-5 of .* which it did not own"):
        _check(_log("a", ("assigned", 0), ("revoked", 4), ("record", 5)))


@pytest.mark.parametrize("until", [10, 30])
def test_a_partition_left_alone_for_too_long_is_found(until: int) -> None:
    later = _log("b", ("assigned", 9)) if until == 10 else _log("b")
    with pytest.raises(AssertionError, match="had no owner for"):
        _check(_log("a", ("assigned", 0), ("revoked", 1)), later, until=until)
