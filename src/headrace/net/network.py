"""How brokers are reached and reach each other: interfaces, so that a cluster can run in one process, in virtual time.

`headrace.net.tcp` is the real network; `headrace.testing.network` has one that delays, drops and cuts.
"""

import ssl
from collections.abc import Iterable, Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class LinkClosed(ConnectionError):
    """The connection ended before the answer came: the request may have been carried out or not."""


class Link(Protocol):
    """A connection to one broker. Requests may be sent before earlier ones are answered; answers keep their order."""

    @property
    def is_closed(self) -> bool: ...

    async def ask(self, frame: Sequence[Buffer]) -> memoryview:
        """The answer to a frame given in parts, both without the length in front; `LinkClosed` if none comes.

        The parts must stay as they are until then. The answer is the caller's own, to read and to write, for as long
        as it keeps it: its memory is used again only once no view into it is left.
        """
        ...

    def close(self) -> None:
        """Ends the connection; those who wait get `LinkClosed`. Safe to call twice."""
        ...


class Socket(Protocol):
    """A connected, non-blocking stream of bytes, as much of `socket.socket` as connections and links use."""

    def fileno(self) -> int: ...
    def recv_into(self, buffer: memoryview, /) -> int: ...
    def send(self, data: Buffer, flags: int = ..., /) -> int: ...
    def sendmsg(self, buffers: Iterable[Buffer], /) -> int: ...
    def close(self) -> None: ...


class Acceptor(Protocol):
    """A place that is listened on. Its descriptor is readable while somebody waits to be accepted."""

    @property
    def port(self) -> int: ...

    def fileno(self) -> int: ...

    def accept(self) -> tuple[Socket, str]:
        """The next connection and the address of who made it; `BlockingIOError` when nobody waits."""
        ...

    def close(self) -> None: ...


class Network(Protocol):
    """Opens links, and listens."""

    async def connect(self, host: str, port: int, timeout: float, tls: ssl.SSLContext | None = None) -> Link:
        """A new link, over TLS where there is a context for it; `OSError` when there is nobody, nobody answers in
        time, or the other side does not show that it is who it should be.
        """
        ...

    def listen(self, host: str, port: int) -> Acceptor:
        """Take an address; port 0 lets the system choose one. Who connects waits until accepted. Raises `OSError`."""
        ...
