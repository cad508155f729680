"""Accepts connections and keeps count of them.

Caps: all connections together, and those of one address. Deadlines: a new connection must have sent a whole request
(and have authenticated, where it must) within `HANDSHAKE_SECONDS`, a request that was begun must go on within
`STALL_SECONDS`, and a connection that asks nothing, or does not read its answers, is closed after
`connections.max.idle.ms`.
"""

import asyncio
import errno
import socket
from collections import Counter
from typing import Final

import structlog

from .authentication import Authenticator
from .connection import Connection, Serve

HANDSHAKE_SECONDS: Final = 30.0
STALL_SECONDS: Final = 30.0
REST_SECONDS: Final = 10.0
"""After this long without a byte, a connection's grown buffer is given back."""
_BACKLOG: Final = 1024
_ACCEPTS_PER_TURN: Final = 64
_ACCEPT_PAUSE_SECONDS: Final = 0.2
_OUT_OF_FILES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = structlog.get_logger(__name__)


class Listener:
    """A listening socket and the connections it accepted."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        frame_limit: int,
        most_connections: int,
        most_per_address: int,
        idle_seconds: float,
        authenticator: Authenticator | None = None,
    ) -> None:
        self._loop = loop
        self._serve: Serve
        self._frame_limit = frame_limit
        self._most = most_connections
        self._most_per_address = most_per_address
        self._idle_seconds = idle_seconds
        self._authenticator = authenticator
        self._sock: socket.socket | None = None
        self._per_address: Counter[str] = Counter()
        self._emptied: asyncio.Future[None] | None = None
        self.connections: set[Connection] = set()

    def bind(self, host: str, port: int) -> int:
        """Take the address; returns the port, which the system chose if 0 was asked. Raises OSError.

        Clients that connect wait until `start`.
        """
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(_BACKLOG)
        except OSError:
            sock.close()
            raise
        sock.setblocking(False)
        self._sock = sock
        return int(sock.getsockname()[1])

    def start(self, serve: Serve) -> None:
        """Accept who waits and who comes; `serve` gets their frames."""
        assert self._sock is not None
        self._serve = serve
        self._loop.add_reader(self._sock.fileno(), self._accept)

    def stop_listening(self) -> None:
        if self._sock is not None:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
            self._sock = None

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
        if not connection.requests or not connection.is_known:
            return now - connection.opened_at > HANDSHAKE_SECONDS
        if connection.is_mid_request:
            return quiet > STALL_SECONDS
        if connection.is_sending:
            return now - connection.last_sent_at > self._idle_seconds
        return connection.is_idle and quiet > self._idle_seconds

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            if self._sock is None:
                return
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error)
                return
            self._admit(sock, str(address[0]))

    def _admit(self, sock: socket.socket, peer: str) -> None:
        if len(self.connections) >= self._most or self._per_address[peer] >= self._most_per_address:
            log.warning("connection refused", peer=peer, connections=len(self.connections))
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(
            self._loop,
            sock,
            peer,
            serve=self._serve,
            on_close=self._forget,
            frame_limit=self._frame_limit,
            now=self._loop.time(),
        )
        if self._authenticator is not None:
            self._authenticator.open(connection)
        self.connections.add(connection)
        self._per_address[peer] += 1

    def _forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if self._authenticator is not None:
            self._authenticator.close(connection)
        self._per_address[connection.peer] -= 1
        if not self._per_address[connection.peer]:
            del self._per_address[connection.peer]
        if not self.connections and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def _pause(self, error: OSError) -> None:
        if self._sock is None or error.errno not in _OUT_OF_FILES:
            log.error("accept failed", reason=str(error))
            return
        log.error("no more connections can be opened", reason=str(error))
        fd = self._sock.fileno()
        self._loop.remove_reader(fd)
        self._loop.call_later(_ACCEPT_PAUSE_SECONDS, self._resume, fd)

    def _resume(self, fd: int) -> None:
        if self._sock is not None and self._sock.fileno() == fd:
            self._loop.add_reader(fd, self._accept)
