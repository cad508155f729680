"""Is there a Kafka-speaking broker at an address? Asked with plain bytes, before any client library is loaded."""

import socket
import struct
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final

from headrace.net.address import Address, parse_bootstrap

from .errors import ClusterUnreachable

_API_VERSIONS: Final = 18
_METADATA: Final = 3
_VERSION: Final = 1
MAX_ANSWER: Final = 1 << 20
_CLIENT_ID: Final = b"headrace-probe"
CONNECT_SECONDS: Final = 2.0
ANSWER_SECONDS: Final = 8.0
_SLACK_SECONDS: Final = 5.0
"""What a thread may take, beside what it waits for, on a machine that has much else to do."""


def require_listener(bootstrap: str, timeout: float = 2.5) -> None:
    """Return once one of the addresses takes a connection; ClusterUnreachable with each one's reason if none does."""

    def connect(address: Address) -> None:
        socket.create_connection(address, timeout=timeout).close()

    _require_one(bootstrap, connect, timeout + _SLACK_SECONDS)


def require_answer(bootstrap: str) -> None:
    """Return once a broker answers at one of the addresses, if only by hanging up; ClusterUnreachable if none does.

    One that takes connections is there: it may be busy for seconds.
    """

    def ask(address: Address) -> None:
        with socket.create_connection(address, timeout=CONNECT_SECONDS) as connection:
            connection.settimeout(ANSWER_SECONDS)
            connection.sendall(_api_versions_request())
            try:
                connection.recv(4)
            except TimeoutError:
                raise TimeoutError("takes connections, but does not answer") from None

    _require_one(bootstrap, ask, CONNECT_SECONDS + ANSWER_SECONDS + _SLACK_SECONDS)


def _require_one(bootstrap: str, attempt: Callable[[Address], None], timeout: float) -> None:
    """Try all addresses at the same time; a name that is not resolved in time is a reason as any other."""
    addresses = list(dict.fromkeys(parse_bootstrap(bootstrap)))
    outcomes: SimpleQueue[tuple[Address, OSError | None]] = SimpleQueue()

    def run(address: Address) -> None:
        try:
            attempt(address)
        except OSError as error:
            outcomes.put((address, error))
        else:
            outcomes.put((address, None))

    for address in addresses:
        Thread(target=run, args=(address,), name="headrace-probe", daemon=True).start()
    deadline = time.monotonic() + timeout
    reasons: dict[Address, str] = {}
    while len(reasons) < len(addresses):
        try:
            address, error = outcomes.get(timeout=max(deadline - time.monotonic(), 0.01))
        except Empty:
            break
        if error is None:
            return
        reasons[address] = _reason(error)
    listed = ", ".join(f"{address} ({reasons.get(address, 'timed out')})" for address in addresses)
    raise ClusterUnreachable(f"no broker answers at {listed}", "_TRANSPORT")


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return str(error)
    return (error.strerror or str(error)).lower()


def _api_versions_request() -> bytes:
    """An ApiVersions request, version 0, which a broker answers also before it knows who asks."""
    body = struct.pack(">hhih", _API_VERSIONS, 0, 1, len(_CLIENT_ID)) + _CLIENT_ID
    return struct.pack(">i", len(body)) + body


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
