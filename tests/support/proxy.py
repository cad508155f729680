"""A proxy that knows Kafka's requests, so that a test can hold one back, or lose its answer, and let the rest pass.

A request that is held stays held when its client gives up and goes away, as in a network that delivers late: its
connection to the broker is kept until it was delivered. The broker must advertise the proxy's address.
"""

import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from headrace.protocol.api import ApiKey


class Fate(Enum):
    """What becomes of a request."""

    PASS = "it is delivered, and answered"
    HOLD = "it is delivered when `Proxy.release` is called"
    LOSE_ANSWER = "it is delivered, and its client's connection closed before the answer"


@dataclass
class Plan:
    """What becomes of the next requests of an API."""

    api_key: ApiKey
    fate: Fate
    times: int = 1
    struck: int = 0
    delivered: threading.Event = field(default_factory=threading.Event)
    """Set when the broker has answered a request that was held, or closed its connection."""


class Proxy:
    """Listens on a free port; `upstream` is where the broker really is, once that is known."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.upstream: tuple[str, int] | None = None
        self._plans: list[Plan] = []
        self._lock = threading.Lock()
        self._release = threading.Event()
        self._is_closed = False
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def plan(self, api_key: ApiKey, fate: Fate, times: int = 1) -> Plan:
        plan = Plan(api_key, fate, times)
        with self._lock:
            self._plans.append(plan)
        return plan

    def release(self) -> None:
        """Deliver what is held."""
        self._release.set()

    def close(self) -> None:
        self._is_closed = True
        self._release.set()
        self._listener.close()
        with self._lock:
            sockets = list(self._sockets)
        for each in sockets:
            each.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            assert self.upstream is not None
            try:
                broker = socket.create_connection(self.upstream)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._sockets |= {client, broker}
            pipe = _Pipe(client, broker, self._fate)
            threading.Thread(target=pipe.requests, args=(self._release,), daemon=True).start()
            threading.Thread(target=pipe.answers, daemon=True).start()

    def _fate(self, api_key: int) -> Plan | None:
        with self._lock:
            for plan in self._plans:
                if plan.api_key == api_key and plan.struck < plan.times:
                    plan.struck += 1
                    return plan
        return None


class _Pipe:
    """One client's connection, and the broker's."""

    def __init__(self, client: socket.socket, broker: socket.socket, fate: Callable[[int], Plan | None]) -> None:
        self._client = client
        self._broker = broker
        self._fate = fate
        self._losing: set[int] = set()
        self._held: dict[int, Plan] = {}
        self._holds = 0

    def requests(self, release: threading.Event) -> None:
        while (frame := _frame(self._client)) is not None:
            api_key, _, correlation_id = struct.unpack_from(">hhi", frame, 4)
            plan = self._fate(api_key)
            if plan is not None and plan.fate is Fate.LOSE_ANSWER:
                self._losing.add(correlation_id)
            if plan is not None and plan.fate is Fate.HOLD:
                self._held[correlation_id] = plan
                release.wait()
            if not _send(self._broker, frame):
                break
        if not self._held:
            self._broker.close()

    def answers(self) -> None:
        while (frame := _frame(self._broker)) is not None:
            (correlation_id,) = struct.unpack_from(">i", frame, 4)
            plan = self._held.pop(correlation_id, None)
            if plan is not None:
                plan.delivered.set()
            if correlation_id in self._losing or not _send(self._client, frame):
                break
        for plan in self._held.values():
            plan.delivered.set()
        self._client.close()


def _frame(sock: socket.socket) -> bytes | None:
    head = _exactly(sock, 4)
    body = None if head is None else _exactly(sock, int.from_bytes(head, "big"))
    return None if head is None or body is None else head + body


def _exactly(sock: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        try:
            chunk = sock.recv(size - len(data))
        except OSError:
            return None
        if not chunk:
            return None
        data += chunk
    return bytes(data)


def _send(sock: socket.socket, frame: bytes) -> bool:
    try:
        sock.sendall(frame)
    except OSError:
        return False
    return True
