"""How long a failed login is made to wait: longer with each one from the same address, so that guessing is slow.

Also the next login from that address has to wait for its verdict, whatever that will be: a client that takes a slow
answer for a wrong password and hangs up would else guess as fast as it can connect. Other addresses never wait.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple

FIRST_DELAY: Final = 0.1
LONGEST_DELAY: Final = 1.5
"""Seconds. Whoever mistypes a password is still told so within two."""
LONGEST_PAUSE: Final = 0.25
"""Seconds between a failure and the next verdict, at most: four guesses a second, and little to wait for those who
share the address and know their passwords."""
FORGOTTEN_AFTER: Final = 60.0
"""Seconds without another failure after which an address begins anew."""
REPORT_SECONDS: Final = 1.0
MOST_ADDRESSES: Final = 10_000


class FailedLogin(NamedTuple):
    """What to do about one failed login."""

    delay: float
    """Seconds to wait before the answer."""
    failures: int
    """How many there were from this address without a quiet minute between them."""
    is_reported: bool
    """Whether it is worth a line in the log: no more than one a second for each address."""


@dataclass(slots=True)
class _Record:
    failures: int = 0
    last: float = 0.0
    reported: float = float("-inf")
    next_verdict: float = float("-inf")


class FailedLogins:
    """Counts failed logins by address."""

    def __init__(self) -> None:
        self._records: OrderedDict[str, _Record] = OrderedDict()

    def pause(self, address: str, now: float) -> float:
        """Seconds until the next login from this address may be told its verdict."""
        record = self._records.get(address)
        return 0.0 if record is None else max(0.0, record.next_verdict - now)

    def failed(self, address: str, now: float) -> FailedLogin:
        """Another login from this address has failed."""
        record = self._records.pop(address, None)
        if record is None or now - record.last > FORGOTTEN_AFTER:
            record = _Record()
        self._records[address] = record
        if len(self._records) > MOST_ADDRESSES:
            self._records.popitem(last=False)
        record.failures += 1
        record.last = now
        is_reported = now - record.reported >= REPORT_SECONDS
        if is_reported:
            record.reported = now
        delay = min(FIRST_DELAY * 2 ** min(record.failures - 1, 10), LONGEST_DELAY)
        record.next_verdict = now + min(delay, LONGEST_PAUSE)
        return FailedLogin(delay, record.failures, is_reported)
