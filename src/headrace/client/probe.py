"""Is there a Kafka-speaking broker at an address? Asked with plain bytes, before any client library is loaded."""

import socket
import struct
from typing import Final, NamedTuple

from .errors import ClusterUnreachable

_METADATA: Final = 3
_VERSION: Final = 1
MAX_ANSWER: Final = 1 << 20
_CLIENT_ID: Final = b"headrace-probe"


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


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


def require_listener(bootstrap: str, timeout: float = 3.0) -> None:
    """Return once one of the addresses takes a connection; ClusterUnreachable with each one's reason if none does."""
    reasons = []
    for address in parse_bootstrap(bootstrap):
        try:
            socket.create_connection(address, timeout=timeout).close()
            return
        except OSError as error:
            reasons.append(f"{address} ({_reason(error)})")
    raise ClusterUnreachable(f"no broker answers at {', '.join(reasons)}", "_TRANSPORT")


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return (error.strerror or str(error)).lower()


def metadata_request() -> bytes:
    """A Metadata request, version 1, for the brokers and no topic."""
    head = struct.pack(">hhih", _METADATA, _VERSION, 1, len(_CLIENT_ID)) + _CLIENT_ID
    body = head + struct.pack(">i", 0)
    return struct.pack(">i", len(body)) + body


def count_brokers(answer: bytes) -> int:
    """The number of brokers in the answer (without its length); ValueError if it is no such answer."""
    if len(answer) < 8:
        raise ValueError("the answer is too short for Kafka's Metadata")
    correlation, brokers = struct.unpack_from(">ii", answer)
    if correlation != 1 or not 0 <= brokers <= len(answer) // 12:
        raise ValueError("the answer is not Kafka's Metadata")
    return int(brokers)


def broker_count(address: Address, timeout: float = 3.0) -> int:
    """How many brokers the cluster at this address has; OSError or ValueError if no broker answers there."""
    with socket.create_connection(address, timeout=timeout) as connection:
        connection.sendall(metadata_request())
        with connection.makefile("rb") as stream:
            length = checked_length(stream.read(4))
            return count_brokers(stream.read(length))


def checked_length(prefix: bytes) -> int:
    """The length that stands before an answer; ValueError if it cannot be one."""
    if len(prefix) < 4:
        raise ValueError("the connection closed before the answer")
    length = int.from_bytes(prefix, "big")
    if not 0 < length <= MAX_ANSWER:
        raise ValueError("the answer is not Kafka's")
    return length
