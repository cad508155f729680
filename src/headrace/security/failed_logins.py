"""How long a failed login is made to wait: longer with each one of the same user and address, so that guessing is slow.

Also the next login of that user from there has to wait for its verdict, whatever that will be: a client that takes a
slow answer for a wrong password and hangs up would else guess as fast as it can connect. Others do not wait: behind a
gateway, say, where all share an address, a stranger who guesses delays nobody else. But where so many are wrong that
somebody tries one user after the other, all of the address wait together. Other addresses never do.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.net.address import owner_of

from .quotas.bucket import Bucket

FIRST_DELAY: Final = 0.1
LONGEST_DELAY: Final = 1.5
"""Seconds. Whoever mistypes a password is still told so within two."""
LONGEST_PAUSE: Final = 0.25
"""Seconds between a failure and the next verdict, at most: four guesses a second, and little to wait for those who
share the address and know their passwords."""
FORGOTTEN_AFTER: Final = 60.0
"""Seconds without another failure after which an address begins anew."""
REPORT_SECONDS: Final = 1.0
MOST_REMEMBERED: Final = 10_000
LONGEST_NAME: Final = 256
"""Characters by which users differ: who claims to be somebody may send half a megabyte of a name."""
WRONG_A_SECOND: Final = 10.0
WRONG_AT_ONCE_SECONDS: Final = 3.0
"""Wrong logins of one address, of whichever users, up to which only their own users wait: so many a second, and those
of so many seconds at once."""


class Turn(NamedTuple):
    """Those who are told their verdicts one after the other: logins of one user from one address, or all from there."""

    address: str
    user: str | None = None


class FailedLogin(NamedTuple):
    """What to do about one failed login."""

    delay: float
    """Seconds to wait before the answer."""
    failures: int
    """How many there were from this address without a quiet minute between them, of whichever users."""
    is_reported: bool
    """Whether it is worth a line in the log: no more than one a second for each address."""


@dataclass(slots=True)
class _Record:
    failures: int = 0
    last: float = 0.0
    reported: float = float("-inf")
    next_verdict: float = float("-inf")

    @property
    def delay(self) -> float:
        doublings: int = min(self.failures - 1, 10)
        return min(FIRST_DELAY * (1 << doublings), LONGEST_DELAY)


class FailedLogins:
    """Counts failed logins by address, and by user and address."""

    def __init__(self) -> None:
        self._records: OrderedDict[Turn, _Record] = OrderedDict()
        self._wrong: OrderedDict[str, Bucket] = OrderedDict()

    def turn(self, address: str, user: str, now: float, *, is_wrong: bool) -> Turn:
        """With whom a login waits whose verdict is known, but not told yet."""
        owner = owner_of(address)
        wrong = self._wrong.get(owner)
        if is_wrong:
            wrong = self._wrong.pop(owner, None) or Bucket(
                WRONG_A_SECOND,
                burst_seconds=WRONG_AT_ONCE_SECONDS,
                most_debt_seconds=WRONG_AT_ONCE_SECONDS,
                now=now,
            )
            wrong.charge(1, now)
            self._wrong[owner] = wrong
            if len(self._wrong) > MOST_REMEMBERED:
                self._wrong.popitem(last=False)
        return Turn(owner, user[:LONGEST_NAME]) if wrong is None or not wrong.pause(now) else Turn(owner)

    def pause(self, turn: Turn, now: float) -> float:
        """Seconds until the next of them may be told its verdict."""
        record = self._records.get(turn)
        return 0.0 if record is None else max(0.0, record.next_verdict - now)

    def failed(self, turn: Turn, now: float) -> FailedLogin:
        """Another of these logins has failed."""
        of_address = self._noted(Turn(turn.address), now)
        record = of_address if turn.user is None else self._noted(turn, now)
        is_reported = now - of_address.reported >= REPORT_SECONDS
        if is_reported:
            of_address.reported = now
        return FailedLogin(record.delay, of_address.failures, is_reported)

    def _noted(self, turn: Turn, now: float) -> _Record:
        record = self._records.pop(turn, None)
        if record is None or now - record.last > FORGOTTEN_AFTER:
            record = _Record()
        self._records[turn] = record
        if len(self._records) > MOST_REMEMBERED:
            self._records.popitem(last=False)
        record.failures += 1
        record.last = now
        record.next_verdict = now + min(record.delay, LONGEST_PAUSE)
        return record
