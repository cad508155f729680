"""Where somebody listens: a host and a port, and how people write them."""

from functools import lru_cache
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Final, NamedTuple

_OF_ONE_SUBSCRIBER: Final = 64
"""Bits of an IPv6 address that its owner has not chosen: the others are free for anybody to have 2**64 addresses."""
_MOST_REMEMBERED: Final = 10_000


class Address(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach it."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@lru_cache(maxsize=_MOST_REMEMBERED)
def owner_of(host: str) -> str:
    """Whom to count for what comes from an address: the address itself, or its /64 where it is one of IPv6."""
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host)
    except ValueError:
        return host
    if address.ipv4_mapped is not None or address.is_loopback:
        return host
    return str(IPv6Network((int(address), _OF_ONE_SUBSCRIBER), strict=False))


def parse_address(text: str) -> Address:
    """`HOST:PORT` or `[V6]:PORT` as a pair; ValueError tells what is wrong with it."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host:
        raise ValueError(f"'{text}' is not HOST:PORT")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"'{text}' is not HOST:PORT; write an IPv6 address as [::1]:9092")
    if not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"'{port}' in '{text}' is not a port between 0 and 65535")
    return Address(host, int(port))


def parse_bootstrap(text: str) -> list[Address]:
    """A comma-separated list of addresses; ValueError if one is wrong or none is there."""
    addresses = [parse_address(part) for part in text.split(",") if part.strip()]
    if not addresses:
        raise ValueError("no address given; write HOST:PORT")
    return addresses
