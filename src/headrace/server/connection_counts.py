"""How many connections there are and how fast they come, of a broker and of each address; who is not taken, and why.

    what                  from                                                     beyond it
    of the broker         max.connections, and the descriptors there are           refused
    of an address         max.connections.per.ip, .overrides; and, unless it is    refused
                          loopback, headrace.max.connections.per.remote.ip
                          for all of its /64 together, where it is of IPv6
    a second, of all      max.connection.creation.rate                             wait in the system's queue
    a second, of an       the quota connection_creation_rate of the address or     refused
    address               the default; else, unless it is loopback,
                          headrace.connection.creation.rate.per.remote.ip

What IPv6 gives one subscriber, 2**64 addresses, has one number together, but for those that an operator names.
Rates are means over `quota.window.num` samples, so that a client may open many connections at once. The same numbers
hold for all listeners of a broker together; a listener can have numbers of its own below them
(`listener.name.<listener>.max.connections`, `.max.connections.per.ip`, `.max.connection.creation.rate`). A listener for
brokers alone is spared what is not its own: who floods clients' listeners keeps no broker out.
"""

from asyncio import AbstractEventLoop
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from enum import StrEnum
from ipaddress import ip_address
from typing import Final, NamedTuple

import structlog

from headrace.net.address import owner_of
from headrace.security.quotas.bucket import Bucket

ANY_NUMBER: Final = 1 << 62
MOST_ADDRESSES: Final = 10_000
"""Whose connections a second are remembered."""
_REPORT_SECONDS: Final = 5.0
"""Refused connections are reported together, at most this often: who floods the broker must not fill its log."""
_NO_OVERRIDES: Final[Mapping[str, int]] = {}

log = structlog.get_logger(__name__)


class RefusalReason(StrEnum):
    """Why a connection was not taken."""

    BROKER = "max_connections"
    ADDRESS = "max_connections_per_ip"
    RATE = "connection_creation_rate"
    DESCRIPTORS = "open_files"


class Refusal(NamedTuple):
    """Why a connection is not taken, also in words."""

    reason: RefusalReason
    words: str


class Caps(NamedTuple):
    """The most connections at one time, and in a second."""

    all: int
    one_address: int
    descriptors: int = ANY_NUMBER
    """A connection that gets this descriptor or a higher one is refused: the rest is for other files."""
    overrides: Mapping[str, int] = _NO_OVERRIDES
    """Addresses with a number of their own."""
    remote_address: int = ANY_NUMBER
    """Of one address that is not this machine's loopback."""
    rate: float = ANY_NUMBER
    remote_rate: float = ANY_NUMBER


class ConnectionCounts:
    """The connections of all listeners of a broker, and those that were refused."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        caps: Callable[[], Caps],
        *,
        quota: Callable[[str], tuple[float, str] | None] = lambda _: None,
        averaged_seconds: float = 10.0,
    ) -> None:
        self._loop = loop
        self._caps = caps
        self._quota = quota
        """The connections a second that an operator allows an address, and who shares them; None where no one has."""
        self._averaged = averaged_seconds
        self._all = 0
        self._per_address: Counter[str] = Counter()
        self._rate: Bucket | None = None
        self._rates: OrderedDict[str, Bucket] = OrderedDict()
        self.refusals: Counter[RefusalReason] = Counter()
        """Since the start."""
        self._unreported = 0
        self._reports_at = 0.0

    def of_listener(self, own: Callable[[], Caps], *, is_for_brokers: bool = False) -> "ListenerCounts":
        """The counts that one listener goes by, with its own caps."""
        return ListenerCounts(self, ConnectionCounts(self._loop, own, averaged_seconds=self._averaged), is_for_brokers)

    def pause(self) -> float:
        """The seconds until the next connection may be accepted."""
        rate = self._caps().rate
        if rate >= ANY_NUMBER:
            return 0.0
        bucket = self._rate = self._renewed(self._rate, rate)
        return bucket.pause(self._loop.time())

    def refusal(self, fd: int, address: str, *, is_broker: bool = False) -> Refusal | None:
        """Why a connection is not taken; None when it is."""
        caps = self._caps()
        if is_broker:  # not to be kept out by clients, however many there are; what is set for its listener holds
            caps = caps._replace(all=caps.descriptors, remote_address=ANY_NUMBER, remote_rate=ANY_NUMBER)
        if self._all >= caps.all:
            return Refusal(
                RefusalReason.BROKER,
                f"there are {self._all} connections; max.connections and the limit of open files allow no more",
            )
        if (too_many := self._too_many(address, caps)) is not None:
            return too_many
        if fd >= caps.descriptors:
            return Refusal(
                RefusalReason.DESCRIPTORS,
                f"{fd} file descriptors are taken, and the rest is for logs; raise the limit of open files (ulimit -n)",
            )
        return self._too_fast(address, caps)

    def _too_many(self, address: str, caps: Caps) -> Refusal | None:
        named = caps.overrides.get(address)
        here = self._per_address[address]
        if here >= (caps.one_address if named is None else named):
            return Refusal(
                RefusalReason.ADDRESS,
                f"there are {here} connections from this address; max.connections.per.ip allows no more",
            )
        if named is not None or is_loopback(address):
            return None
        owner = owner_of(address)
        of_owner = self._per_address[owner] - sum(
            self._per_address[other] for other in caps.overrides if other != owner_of(other) == owner
        )
        if of_owner < caps.remote_address:
            return None
        where = "this address" if owner == address else owner
        return Refusal(
            RefusalReason.ADDRESS,
            f"there are {of_owner} connections from {where}; headrace.max.connections.per.remote.ip allows no more",
        )

    def _too_fast(self, address: str, caps: Caps) -> Refusal | None:
        rate, spender = self._quota(address) or (
            ANY_NUMBER if is_loopback(address) else caps.remote_rate,
            owner_of(address),
        )
        if rate >= ANY_NUMBER:
            return None
        bucket = self._renewed(self._rates.get(spender), rate)
        self._remember(spender, bucket)
        now = self._loop.time()
        if bucket.pause(now) > 0:
            return Refusal(
                RefusalReason.RATE,
                f"connections from {'this address' if spender == address else spender} come faster than {rate:g} a "
                "second; its quota connection_creation_rate or headrace.connection.creation.rate.per.remote.ip allows "
                "no more",
            )
        bucket.charge(1, now)
        return None

    def _renewed(self, bucket: Bucket | None, rate: float) -> Bucket:
        if bucket is not None and bucket.rate == rate:
            return bucket
        return Bucket(rate, burst_seconds=self._averaged, most_debt_seconds=self._averaged, now=self._loop.time())

    def _remember(self, address: str, bucket: Bucket) -> None:
        self._rates[address] = bucket
        self._rates.move_to_end(address)
        if len(self._rates) > MOST_ADDRESSES:
            self._rates.popitem(last=False)

    def opened(self, address: str) -> None:
        """A connection was taken."""
        self._all += 1
        self._per_address[address] += 1
        if (owner := owner_of(address)) != address:
            self._per_address[owner] += 1
        if self._rate is not None:
            self._rate.charge(1, self._loop.time())

    def closed(self, address: str) -> None:
        self._all -= 1
        for counted in {address, owner_of(address)}:
            self._per_address[counted] -= 1
            if not self._per_address[counted]:
                del self._per_address[counted]

    def refused(self, address: str, reason: RefusalReason, words: str) -> None:
        """Count and log a refused connection; many at a time become one log line."""
        self.refusals[reason] += 1
        self._unreported += 1
        now = self._loop.time()
        if now >= self._reports_at:
            log.warning("connections refused", count=self._unreported, last_peer=address, reason=words)
            self._unreported = 0
            self._reports_at = now + _REPORT_SECONDS


class ListenerCounts:
    """What one listener goes by: the counts of the broker, and its own."""

    def __init__(self, broker: ConnectionCounts, own: ConnectionCounts, is_for_brokers: bool) -> None:
        self._broker = broker
        self._own = own
        self._is_for_brokers = is_for_brokers

    def pause(self) -> float:
        """The seconds until the next connection may be accepted."""
        own = self._own.pause()
        return own if self._is_for_brokers else max(own, self._broker.pause())

    def refusal(self, fd: int, address: str) -> Refusal | None:
        """Why a connection is not taken; None when it is."""
        own = self._own.refusal(fd, address)
        return own if own is not None else self._broker.refusal(fd, address, is_broker=self._is_for_brokers)

    def opened(self, address: str) -> None:
        """A connection was taken."""
        self._own.opened(address)
        self._broker.opened(address)

    def closed(self, address: str) -> None:
        self._own.closed(address)
        self._broker.closed(address)

    def refused(self, address: str, reason: RefusalReason, words: str) -> None:
        """Count and log a refused connection; many at a time become one log line."""
        self._broker.refused(address, reason, words)


def is_loopback(address: str) -> bool:
    """Whether an address is this machine itself."""
    if address.startswith("127.") or address == "::1":
        return True
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return parsed.is_loopback or (mapped is not None and mapped.is_loopback)
