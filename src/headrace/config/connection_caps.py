"""`max.connections.per.ip.overrides`: addresses, and the most connections of each."""

from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address

from .setting import Value


@lru_cache(maxsize=8)
def connection_caps(text: str) -> Mapping[str, int]:
    """The caps by address; `ValueError` where the text is none."""
    caps = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        address, _, count = part.rpartition(":")
        if not count.isascii() or not count.isdigit():
            raise ValueError(part)
        caps[ip_address(address.removeprefix("[").removesuffix("]")).compressed] = int(count)
    return caps


def are_caps(value: Value) -> bool:
    """Whether a setting holds caps."""
    try:
        connection_caps(str(value or ""))
    except ValueError:
        return False
    return True
