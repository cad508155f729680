"""Accepts connections and keeps count of them.

Caps: `ConnectionCounts` is asked whenever somebody comes. Deadlines, whether bytes drip in or none come: a new
connection must have sent a whole request (and have authenticated, where it must) within `HANDSHAKE_SECONDS`, a request
that was begun must go on within `STALL_SECONDS` and come faster than `LEAST_RATE` in the end, and a connection that
asks nothing, or does not read its answers, is closed after `connections.max.idle.ms`. Who is muted waits for this
broker, not the other way round. A broker of this cluster may be silent: the system asks whether it is still there.
"""

import asyncio
import errno
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import structlog

from headrace.net.network import Acceptor, Network, Socket
from headrace.storage.disk import StorageError

from .authentication import Authenticator
from .connection import Connection, Serve
from .connection_counts import ConnectionCounts, ListenerCounts, Refusal, RefusalReason
from .request_memory import RequestMemory

if TYPE_CHECKING:
    from .handshakes import Handshakes

HANDSHAKE_SECONDS: Final = 30.0
STALL_SECONDS: Final = 30.0
LEAST_RATE: Final = 4 * 1024
"""Bytes a second that a request has to come with, once it has taken `STALL_SECONDS`."""
REST_SECONDS: Final = 10.0
"""After this long without a byte, a connection's grown buffer is given back."""
_ACCEPT_PAUSE_SECONDS: Final = 0.2
_OUT_OF_FILES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = structlog.get_logger(__name__)


class Listener:
    """A listening socket and the connections accepted there."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        network: Network,
        *,
        frame_limit: int,
        counts: ConnectionCounts | ListenerCounts,
        idle_seconds: float,
        on_read_failure: Callable[[StorageError], None],
        authenticator: Authenticator | None = None,
        handshakes: "Handshakes | None" = None,
        name: str = "PLAINTEXT",
        protocol: str = "PLAINTEXT",
        memory: RequestMemory | None = None,
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
        self._memory = memory
        self._acceptor: Acceptor | None = None
        self._emptied: asyncio.Future[None] | None = None
        self.connections: dict[Connection, None] = {}
        """In the order in which they were opened."""
        self.accepted = 0
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
        """Accept connections; `serve` gets their frames."""
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
            if self._is_overdue(connection, now, quiet):
                connection.close()
            elif quiet >= REST_SECONDS:
                connection.rest()

    def _is_overdue(self, connection: Connection, now: float, quiet: float) -> bool:
        has_been_known = connection.is_known or connection.session_expires_at is not None
        if not connection.requests or not has_been_known:
            return now - connection.opened_at > HANDSHAKE_SECONDS
        if connection.is_mid_request:
            return quiet > STALL_SECONDS or connection.seconds_late(now, LEAST_RATE) > STALL_SECONDS
        if connection.is_sending:
            return now - connection.last_sent_at > self._idle_seconds
        if connection.is_muted:
            return False
        return connection.is_idle and quiet > self._idle_seconds and connection.peer_broker is None

    def _accept(self) -> None:
        """One connection takes as long as a request: others who come wait for the next turn of the loop."""
        if self._acceptor is None:
            return
        pause = self._counts.pause()
        if pause > 0:
            self._pause(pause)
            return
        try:
            sock, peer = self._acceptor.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            self._accept_failed(error)
            return
        self._admit(sock, peer)

    def _admit(self, sock: Socket, peer: str) -> None:
        refusal = self._counts.refusal(sock.fileno(), peer)
        if refusal is not None:
            sock.close()
            self._refused(peer, refusal)
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
            memory=self._memory,
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

    def _refused(self, peer: str, refusal: Refusal) -> None:
        self._counts.refused(peer, *refusal)

    def _accept_failed(self, error: OSError) -> None:
        if self._acceptor is None or error.errno not in _OUT_OF_FILES:
            log.error("accept failed", reason=str(error))
            return
        self._refused("", Refusal(RefusalReason.DESCRIPTORS, str(error)))
        self._pause(_ACCEPT_PAUSE_SECONDS)

    def _pause(self, seconds: float) -> None:
        """Accept nobody for so long; the system keeps those who come."""
        assert self._acceptor is not None
        fd = self._acceptor.fileno()
        self._loop.remove_reader(fd)
        self._loop.call_later(seconds, self._resume, fd)

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
        """Accept connections at each listener; `serve` gets their frames."""
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
