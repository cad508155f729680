"""Who may ask at all: the Host a request was meant for, the Origin it comes from, and how often.

A page of somebody else's can make a browser send requests here. It cannot choose their Host and Origin headers, so
these are checked: a name that is not ours (DNS rebinding) and a write from another site are refused. An address as
Host is always good: no foreign name leads there.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from time import monotonic
from typing import Final
from urllib.parse import urlsplit

from .messages import Request
from .problem import Problem, bad_request

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_REMEMBERED_HOSTS: Final = 256
_REMEMBERED_CALLERS: Final = 10_000
_FAILED_LOGIN: Final = 10
"""As how many requests a login that fails counts."""
_IPV6_NETWORK_BYTES: Final = 8


class Guard:
    """`hosts` are names besides localhost by which we are called, `*` for any; `rate` is requests a second of one
    caller, 0 for no limit. A caller is the user that it has proved to be, and its address until then: who guesses
    passwords is the same caller at each guess."""

    def __init__(
        self,
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        rate: float = 0,
        burst: int = 0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._hosts = {"localhost", *(host.lower() for host in hosts)}
        self.origins = frozenset(origins)
        """Sites whose pages may ask, beside our own."""
        self._known: dict[bytes, bool] = {}
        self._limit = RateLimit(rate, burst or max(int(rate), 1), clock) if rate else None
        self.user_of: Callable[[Request], str | None] = lambda _request: None
        """The user that the caller of a request has proved to be before, if it has."""

    def check(self, request: Request) -> None:
        """Raises the `Problem` that ends the request."""
        headers = request.fields
        host = headers.get(b"host", b"")
        if len(headers) < len(request.scope["headers"]):
            _refuse_two_hosts(request)
        if not (self._known.get(host) or self._is_ours(host)):
            raise Problem(
                421, f"this is not '{host.decode('latin-1')[:80]}'; see --allow-host of the gateway", code="wrong-host"
            )
        if b"origin" in headers or b"sec-fetch-site" in headers:
            self._check_origin(request, host)

    def take(self, request: Request) -> None:
        """Count a request of a caller; `Problem` 429 when there were too many."""
        if self._limit is None:
            return
        user = self.user_of(request)
        wait = self._limit.take(_address_of(request) if user is None else b"user " + user.encode())
        if wait > 0:
            raise Problem(
                429,
                f"too many requests; the next one is welcome in {wait:.1f} s",
                code="rate-limited",
                headers=((b"retry-after", str(int(wait) + 1).encode()),),
            )

    def login_failed(self, request: Request) -> None:
        """Let the address of a caller whose credentials were refused wait longer."""
        if self._limit is not None and b"authorization" in request.fields:
            self._limit.charge(_address_of(request), _FAILED_LOGIN - 1)

    def _is_ours(self, host: bytes) -> bool:
        name = host_name(host.decode("latin-1"))
        good = bool(name) and (name in self._hosts or "*" in self._hosts or _is_address(name))
        if good and len(self._known) < _REMEMBERED_HOSTS:
            self._known[host] = True
        return good

    def _check_origin(self, request: Request, host: bytes) -> None:
        is_socket = request.scope["type"] == "websocket"
        if request.method in _SAFE and not is_socket:
            return
        origin = request.header(b"origin")
        if origin is None:
            good = request.fields.get(b"sec-fetch-site") in (b"same-origin", b"none")
        else:
            good = origin in self.origins or _authority(origin) == host.decode("latin-1").lower()
        if not good:
            raise Problem(
                403, "requests that change something are not taken from pages of other sites", code="cross-site"
            )


def _refuse_two_hosts(request: Request) -> None:
    """A proxy might have taken the other one."""
    if sum(name == b"host" for name, _ in request.scope["headers"]) > 1:
        raise bad_request("a request has one Host header")


def _address_of(request: Request) -> bytes:
    address = peer_address(request.address)
    return b"address " + (request.address.encode() if address is None else network_of(address))


def peer_address(host: str) -> IPv4Address | IPv6Address | None:
    """The address of the other side: an IPv4 one also where it is mapped into IPv6; None where there is none."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def network_of(address: IPv4Address | IPv6Address) -> bytes:
    """What counts as one caller: an IPv4 address, of IPv6 a network of 64 bits."""
    return address.packed[:_IPV6_NETWORK_BYTES]


def _authority(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def host_name(host: str) -> str:
    """The name or address in a Host header, without its port; empty where it is malformed."""
    host = host.strip().lower()
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        port = port.removeprefix(":")
        return name if bracket and (not port or port.isdigit()) else ""
    name, colon, port = host.partition(":")
    return name if not colon or port.isdigit() else ""


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


class RateLimit:
    """Token buckets, one per caller; those used least recently are forgotten, which means they are full."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float]) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._buckets: OrderedDict[bytes, tuple[float, float]] = OrderedDict()

    def take(self, caller: bytes) -> float:
        """Seconds to wait; 0 when one may go ahead."""
        tokens, now = self._tokens(caller)
        good = tokens >= 1
        self._put(caller, tokens - 1 if good else tokens, now)
        return 0.0 if good else (1 - tokens) / self._rate

    def charge(self, caller: bytes, count: int) -> None:
        """Take more from a caller who has gone ahead, also what it will get later."""
        tokens, now = self._tokens(caller)
        self._put(caller, max(tokens - count, -float(count)), now)

    def _tokens(self, caller: bytes) -> tuple[float, float]:
        """What a caller has now, and when that is."""
        now = self._clock()
        tokens, at = self._buckets.pop(caller, (float(self._burst), now))
        return min(self._burst, tokens + (now - at) * self._rate), now

    def _put(self, caller: bytes, tokens: float, now: float) -> None:
        self._buckets[caller] = (tokens, now)
        if len(self._buckets) > _REMEMBERED_CALLERS:
            self._buckets.popitem(last=False)
