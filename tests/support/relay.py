"""A port that leads to another one."""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

_CHUNK = 65_536


class Relay:
    """Takes connections on one address and carries their bytes to another, until it is closed."""

    def __init__(self, listen: tuple[str, int], target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(listen)
        self.port = int(self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._begin(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in list(self._sockets):
            _hang_up(one)
        for thread in list(self._threads):
            thread.join(10)
        for one in self._sockets:
            one.close()

    def _begin(self, work: object, *arguments: socket.socket) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(here)
            try:
                there = socket.create_connection(self._target, 5)
            except OSError:
                _hang_up(here)
                continue
            there.settimeout(None)
            self._sockets.append(there)
            self._begin(_carry, here, there)
            self._begin(_carry, there, here)


def _carry(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
    _hang_up(source)
    _hang_up(target)


def _hang_up(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
