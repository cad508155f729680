"""Which addresses a callback may have: public ones, and those that an operator allows.

A callback's host is resolved once per connection, every address found is checked, and the connection goes to a checked
address: a name cannot be resolved again to somewhere else in between.
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple
from urllib.parse import urlsplit

IpAddress = IPv4Address | IPv6Address
_PORTS: Final = {"http": 80, "https": 443}
_NAT64: Final = IPv6Network("64:ff9b::/96")
_LONGEST: Final = 2048
_SPECIAL_IPV4: Final = tuple(
    map(
        IPv4Network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
            *("192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16"),
            *("192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        ),
    )
)
"""IANA's registry of special addresses, whatever the interpreter's own table says of them."""
_GLOBAL_IPV6: Final = IPv6Network("2000::/3")
_SPECIAL_IPV6: Final = tuple(
    map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20"))
)


class AddressRefused(Exception):
    """The callback's address is not allowed."""


class Callback(NamedTuple):
    """A URL, taken apart."""

    is_secure: bool
    host: str
    port: int
    target: str
    """What stands in the request line."""

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS["https" if self.is_secure else "http"] else f"{host}:{self.port}"


def parse_callback(url: str) -> Callback:
    """A URL that can be posted to; `AddressRefused` says what is wrong with any other."""
    if len(url) > _LONGEST or not url.isascii() or not url.isprintable() or " " in url:
        raise AddressRefused(f"a callback is a URL of up to {_LONGEST} printable ASCII characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise AddressRefused(f"'{url}' is not a URL: {error}") from None
    if parts.scheme not in _PORTS:
        raise AddressRefused(f"a callback is http or https, not '{parts.scheme}'")
    if parts.username is not None or parts.password is not None:
        raise AddressRefused("a callback has no name or password in its URL; give headers instead")
    if not parts.hostname:
        raise AddressRefused("a callback has a host")
    if port == 0:
        raise AddressRefused("a callback's port is between 1 and 65535")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Callback(parts.scheme == "https", parts.hostname, port or _PORTS[parts.scheme], target)


class AddressRules:
    """What is allowed beside public addresses: addresses and networks (`10.0.0.0/8`), and names (`hooks.internal`)."""

    def __init__(self, allow: Iterable[str] = ()) -> None:
        self._networks: list[IPv4Network | IPv6Network] = []
        self._names: set[str] = set()
        for entry in allow:
            try:
                self._networks.append(ip_network(entry, strict=False))
            except ValueError:
                self._names.add(entry.lower())

    def check(self, host: str, found: Iterable[str]) -> list[str]:
        """The addresses of a host, all of which are allowed; `AddressRefused` when one is not."""
        addresses = [ip_address(each) for each in found]
        if not addresses:
            raise AddressRefused(f"'{host}' has no address")
        if host.lower() not in self._names:
            for address in addresses:
                if not self._is_allowed(address):
                    raise AddressRefused(f"'{host}' is {address}, which is not public; --push-allow lets it through")
        return [str(each) for each in addresses]

    def _is_allowed(self, address: IpAddress) -> bool:
        plain = unwrapped(address)
        allowed = any(each in network for network in self._networks for each in (address, plain))
        return allowed or is_public(plain)


def unwrapped(address: IpAddress) -> IpAddress:
    """The IPv4 address that an IPv6 one stands for: mapped, 6to4, Teredo, NAT64; or the address itself."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        if address.teredo is not None:
            return address.teredo[1]
        if address in _NAT64 or (int(address) >> 32 == 0 and int(address) > 1):
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_public(address: IpAddress) -> bool:
    """Whether an address is a public one."""
    if isinstance(address, IPv6Address):
        return (
            address.scope_id is None and address in _GLOBAL_IPV6 and not any(address in each for each in _SPECIAL_IPV6)
        )
    return not any(address in each for each in _SPECIAL_IPV4)
