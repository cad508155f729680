"""Between a client and a broker: a relay that carries bytes, and a proxy that knows Kafka's requests.

A test can hold a request back, or lose its answer, and let the rest pass.

A request that is held stays held when its client gives up and goes away, as in a network that delivers late: its
connection to the broker is kept until it was delivered. The broker must advertise the proxy's address.
"""

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Self

from headrace.protocol.api import ApiKey

from .wire import receive_exactly

_CHUNK = 65_536


class Relay:
    """Takes connections on one address and carries their bytes to another, `upstream`, until it is closed."""

    def __init__(self, listen: tuple[str, int] = ("127.0.0.1", 0), upstream: tuple[str, int] | None = None) -> None:
        self.upstream = upstream
        self._listener = socket.create_server(listen)
        self.port = int(self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take no more connections, and end those that there are."""
        for one in list(self._sockets):
            _hang_up(one)
        for thread in list(self._threads):
            thread.join(10)
        for one in self._sockets:
            one.close()

    def _begin(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(client)
            assert self.upstream is not None
            try:
                server = socket.create_connection(self.upstream, 5)
            except OSError:
                _hang_up(client)
                continue
            server.settimeout(None)
            self._sockets.append(server)
            self._connected(client, server)

    def _connected(self, client: socket.socket, server: socket.socket) -> None:
        self._begin(_carry, client, server)
        self._begin(_carry, server, client)


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


class Proxy(Relay):
    """Listens on a free port; `upstream` is where the broker really is, once that is known."""

    def __init__(self) -> None:
        self._plans: list[Plan] = []
        self._lock = threading.Lock()
        self._release = threading.Event()
        super().__init__()

    def plan(self, api_key: ApiKey, fate: Fate, times: int = 1) -> Plan:
        plan = Plan(api_key, fate, times)
        with self._lock:
            self._plans.append(plan)
        return plan

    def release(self) -> None:
        """Deliver what is held."""
        self._release.set()

    def close(self) -> None:
        self._release.set()
        super().close()

    def _connected(self, client: socket.socket, server: socket.socket) -> None:
        pipe = _Pipe(client, server, self._fate)
        self._begin(pipe.requests, self._release)
        self._begin(pipe.answers)

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
            _hang_up(self._broker)

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
        _hang_up(self._client)


def _carry(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
    _hang_up(source)
    _hang_up(target)


def _hang_up(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


def _frame(sock: socket.socket) -> bytes | None:
    """The next frame with its length; None when there is none."""
    try:
        head = receive_exactly(sock, 4)
        return head + receive_exactly(sock, int.from_bytes(head, "big"))
    except OSError:
        return None


def _send(sock: socket.socket, frame: bytes) -> bool:
    try:
        sock.sendall(frame)
    except OSError:
        return False
    return True
