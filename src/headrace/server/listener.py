"""Accepts connections and keeps count of them.

Caps: all connections together, those of one address, and the descriptors that connections may take; they are asked for
whenever somebody comes, and hold for all listeners of a broker together (`ConnectionCounts`). Deadlines: a new
connection must have sent a whole request (and have authenticated, where it must) within `HANDSHAKE_SECONDS`, a request
that was begun must go on within `STALL_SECONDS`, and a connection that asks nothing, or does not read its answers, is
closed after `connections.max.idle.ms`. A broker of this cluster may be silent: the system asks whether it is still
there.
"""

import asyncio
import errno
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from headrace.net.network import Acceptor, Network, Socket
from headrace.storage.disk import StorageError

from .authentication import Authenticator
from .connection import Connection, Serve

if TYPE_CHECKING:
    from .handshakes import Handshakes

HANDSHAKE_SECONDS: Final = 30.0
STALL_SECONDS: Final = 30.0
REST_SECONDS: Final = 10.0
"""After this long without a byte, a connection's grown buffer is given back."""
_ACCEPTS_PER_TURN: Final = 64
_ACCEPT_PAUSE_SECONDS: Final = 0.2
_ANY_DESCRIPTOR: Final = 1 << 62
_REPORT_SECONDS: Final = 5.0
"""Refused connections are reported together, at most this often: who floods the broker must not fill its log."""
_OUT_OF_FILES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = structlog.get_logger(__name__)


class Caps(NamedTuple):
    """The most connections at one time."""

    all: int
    one_address: int
    descriptors: int = _ANY_DESCRIPTOR
    """A connection that gets this descriptor or a higher one is refused: the rest is for other files."""

    def refusal(self, fd: int, connections: int, of_address: int) -> str | None:
        """Why a connection is not taken; None when it is."""
        if connections >= self.all:
            return f"there are {connections} connections; max.connections and the limit of open files allow no more"
        if of_address >= self.one_address:
            return f"there are {of_address} connections from this address, and no more are allowed"
        if fd >= self.descriptors:
            return (
                f"{fd} file descriptors are taken, and the rest is for logs; raise the limit of open files (ulimit -n)"
            )
        return None


class ConnectionCounts:
    """The connections of all listeners of a broker, and those that were refused."""

    def __init__(self, loop: asyncio.AbstractEventLoop, caps: Callable[[], Caps]) -> None:
        self._loop = loop
        self._caps = caps
        self._all = 0
        self._per_address: Counter[str] = Counter()
        self._refusals = 0
        """How many were refused since that was reported."""
        self._reports_at = 0.0

    def refusal(self, fd: int, peer: str) -> str | None:
        """Why a connection is not taken; None when it is."""
        return self._caps().refusal(fd, self._all, self._per_address[peer])

    def opened(self, peer: str) -> None:
        self._all += 1
        self._per_address[peer] += 1

    def closed(self, peer: str) -> None:
        self._all -= 1
        self._per_address[peer] -= 1
        if not self._per_address[peer]:
            del self._per_address[peer]

    def refused(self, peer: str, reason: str) -> None:
        """Report it, or soon, with others."""
        self._refusals += 1
        now = self._loop.time()
        if now >= self._reports_at:
            log.warning("connections refused", count=self._refusals, last_peer=peer, reason=reason)
            self._refusals = 0
            self._reports_at = now + _REPORT_SECONDS


class Listener:
    """The place that is listened on, and the connections accepted there."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        network: Network,
        *,
        frame_limit: int,
        counts: ConnectionCounts,
        idle_seconds: float,
        on_read_failure: Callable[[StorageError], None],
        authenticator: Authenticator | None = None,
        handshakes: "Handshakes | None" = None,
        name: str = "PLAINTEXT",
        protocol: str = "PLAINTEXT",
    ) -> None:
        self.name = name
        self.protocol = protocol
        self._loop = loop
        self._network = network
        self._serve: Serve
        self._frame_limit = frame_limit
        self._counts = counts
        self._idle_seconds = idle_seconds
        self._on_read_failure = on_read_failure
        self._authenticator = authenticator
        self.handshakes = handshakes
        """Of its connections, where it speaks TLS."""
        self._acceptor: Acceptor | None = None
        self._emptied: asyncio.Future[None] | None = None
        self.connections: dict[Connection, None] = {}
        """In the order in which they were opened."""
        self.accepted = self.refused = 0
        """Connections, since the start."""
        self._closed_requests = 0
        """Requests of connections that are closed."""

    def bind(self, host: str, port: int) -> int:
        """Take the address; returns the port, which the system chose if 0 was asked. Raises OSError.

        Clients that connect wait until `start`.
        """
        self._acceptor = self._network.listen(host, port)
        return self._acceptor.port

    def start(self, serve: Serve) -> None:
        """Accept who waits and who comes; `serve` gets their frames."""
        assert self._acceptor is not None
        self._serve = serve
        self._loop.add_reader(self._acceptor.fileno(), self._accept)

    @property
    def requests(self) -> int:
        """How many requests have come."""
        return self._closed_requests + sum(connection.requests for connection in self.connections)

    def stop_listening(self) -> None:
        if self._acceptor is not None:
            self._loop.remove_reader(self._acceptor.fileno())
            self._acceptor.close()
            self._acceptor = None

    async def drain(self, seconds: float) -> None:
        """Let every connection answer what it was asked, and close; not for longer than `seconds`."""
        emptied = self._loop.create_future()
        self._emptied = emptied
        for connection in list(self.connections):
            connection.drain()
        if self.connections:
            await asyncio.wait([emptied], timeout=seconds)
        emptied.cancel()

    def close(self) -> None:
        self.stop_listening()
        for connection in list(self.connections):
            connection.close()

    def sweep(self, now: float) -> None:
        """Close what is past its deadline, take back memory from what is quiet."""
        for connection in list(self.connections):
            quiet = now - connection.last_read_at
            if quiet < REST_SECONDS:
                continue
            if self._is_overdue(connection, now, quiet):
                connection.close()
            else:
                connection.rest()

    def _is_overdue(self, connection: Connection, now: float, quiet: float) -> bool:
        has_been_known = connection.is_known or connection.session_expires_at is not None
        if not connection.requests or not has_been_known:
            return now - connection.opened_at > HANDSHAKE_SECONDS
        if connection.is_mid_request:
            return quiet > STALL_SECONDS
        if connection.is_sending:
            return now - connection.last_sent_at > self._idle_seconds
        if connection.is_muted:
            return False
        return connection.is_idle and quiet > self._idle_seconds and connection.peer_broker is None

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            if self._acceptor is None:
                return
            try:
                sock, peer = self._acceptor.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error)
                return
            self._admit(sock, peer)

    def _admit(self, sock: Socket, peer: str) -> None:
        reason = self._counts.refusal(sock.fileno(), peer)
        if reason is not None:
            sock.close()
            self._refused(peer, reason)
            return
        connection = Connection(
            self._loop,
            sock,
            peer,
            serve=self._serve,
            on_close=self._forget,
            on_read_failure=self._on_read_failure,
            frame_limit=self._frame_limit,
            now=self._loop.time(),
            handshakes=self.handshakes,
            listener_name=self.name,
        )
        if self._authenticator is not None:
            connection.authenticator = self._authenticator
            self._authenticator.open(connection)
        self.connections[connection] = None
        self.accepted += 1
        self._counts.opened(peer)

    def _forget(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        self._closed_requests += connection.requests
        if self._authenticator is not None:
            self._authenticator.close(connection)
        self._counts.closed(connection.peer)
        if not self.connections and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def _refused(self, peer: str, reason: str) -> None:
        self.refused += 1
        self._counts.refused(peer, reason)

    def _pause(self, error: OSError) -> None:
        if self._acceptor is None or error.errno not in _OUT_OF_FILES:
            log.error("accept failed", reason=str(error))
            return
        self._refused("", str(error))
        fd = self._acceptor.fileno()
        self._loop.remove_reader(fd)
        self._loop.call_later(_ACCEPT_PAUSE_SECONDS, self._resume, fd)

    def _resume(self, fd: int) -> None:
        if self._acceptor is not None and self._acceptor.fileno() == fd:
            self._loop.add_reader(fd, self._accept)


class Listeners:
    """All listeners of a broker: they begin and end together."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = listeners

    def __iter__(self) -> Iterator[Listener]:
        return iter(self._listeners)

    def start(self, serve: Serve) -> None:
        """Accept who waits and who comes at each; `serve` gets their frames."""
        for listener in self._listeners:
            listener.start(serve)

    @property
    def connections(self) -> list[Connection]:
        """Of all listeners."""
        return [connection for listener in self._listeners for connection in listener.connections]

    @property
    def count(self) -> int:
        """How many connections there are."""
        return sum(len(listener.connections) for listener in self._listeners)

    @property
    def requests(self) -> int:
        """How many requests have come."""
        return sum(listener.requests for listener in self._listeners)

    @property
    def accepted(self) -> int:
        """Connections, since the start."""
        return sum(listener.accepted for listener in self._listeners)

    @property
    def refused(self) -> int:
        """Connections that were not taken, since the start."""
        return sum(listener.refused for listener in self._listeners)

    def stop_listening(self) -> None:
        for listener in self._listeners:
            listener.stop_listening()

    async def drain(self, seconds: float) -> None:
        """Let every connection answer what it was asked, and close; not for longer than `seconds`."""
        await asyncio.gather(*(listener.drain(seconds) for listener in self._listeners))

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()

    def sweep(self, now: float) -> None:
        """Close what is past its deadline, take back memory from what is quiet."""
        for listener in self._listeners:
            listener.sweep(now)
