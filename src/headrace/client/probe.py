"""Is there a Kafka-speaking broker at an address? Asked with plain bytes, before any client library is loaded."""

import socket
import struct
from typing import Final

from headrace.net.address import Address, parse_bootstrap

from .errors import ClusterUnreachable

_METADATA: Final = 3
_VERSION: Final = 1
MAX_ANSWER: Final = 1 << 20
_CLIENT_ID: Final = b"headrace-probe"


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
