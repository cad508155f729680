"""Ports for processes that are still to start, or to come back: chosen now, listened on later."""

import socket
from types import TracebackType
from typing import Self


class HeldPort:
    """A free port that the system gives to nobody else until it is released.

    It is bound and not listened on: a server that sets SO_REUSEADDR, as ours and Java's do, may listen on it any number
    of times, and is refused connections between them. A port that is only looked up is another program's by the time
    it is used, every few thousand times.
    """

    def __init__(self, host: str = "127.0.0.1", number: int = 0) -> None:
        """Any that is free, or the one with this number; `OSError` where that is taken."""
        self._sock = bound_socket(host, number)
        self.number = int(self._sock.getsockname()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Hold it no longer; safe to call twice."""
        self._sock.close()

    def keep(self) -> int:
        """Its number, held as long as this process lives."""
        self._sock.detach()
        return self.number


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound to an address of this machine, and does not listen yet."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on, held as long as this process lives."""
    held = [HeldPort() for _ in range(count)]
    return [port.keep() for port in held]
