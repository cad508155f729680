"""What every bare server shares: a loopback socket, with or without TLS, the ready line, a reply of a given size."""

import socket
import ssl
from collections.abc import Callable
from struct import Struct
from types import TracebackType
from typing import Final, Self, cast

BACKLOG: Final = 16
PIECE: Final = 256 * 1024
_RECORD: Final = 17 * 1024
"""The most that a TLS record has, with its head and its tag."""
_LENGTH: Final = Struct(">i")


def listen() -> socket.socket:
    """A listening loopback socket, announced on stdout."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    announce(listener)
    return listener


def announce(listener: socket.socket) -> None:
    print(f"ready 127.0.0.1:{listener.getsockname()[1]}", flush=True)


def accept(listener: socket.socket) -> socket.socket:
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class TlsConnection:
    """The least that is TLS by Python's `ssl`: as much of a socket as bare servers use, in pieces of `PIECE` bytes."""

    def __init__(self, sock: socket.socket, keystore: str) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(keystore)
        self._sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._received = memoryview(bytearray(PIECE))
        self._shake_hands()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sock.close()

    def recv_into(self, view: memoryview) -> int:
        """As a socket does; the view has to have room for more than a record."""
        while not (count := self._decrypt(view)):
            received = self._sock.recv_into(self._received[: len(view) - _RECORD])
            if not received:
                return 0
            self._incoming.write(self._received[:received])
        return count

    def sendall(self, data: bytes | memoryview, flags: int = 0) -> None:
        """As a socket does."""
        self._tls.write(data)
        self._sock.sendall(self._outgoing.read(), flags)

    def _decrypt(self, view: memoryview) -> int:
        read = cast("Callable[[int, memoryview], int]", self._tls.read)
        count = 0
        try:
            while True:
                count += read(len(view) - count, view[count:])
        except ssl.SSLWantReadError:
            return count

    def _shake_hands(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._sock.sendall(self._outgoing.read())
                self._incoming.write(self._sock.recv(PIECE))
            else:
                self._sock.sendall(self._outgoing.read())
                return


Connection = socket.socket | TlsConnection


def accept_by(listener: socket.socket, keystore: str | None) -> Connection:
    """The next client, over TLS where there is a keystore (PEM)."""
    sock = accept(listener)
    return sock if keystore is None else TlsConnection(sock, keystore)


def head_of(frame_size: int, size: int) -> bytes:
    """The first `size` bytes of a frame of `frame_size` bytes: its length, then zeros."""
    return _LENGTH.pack(frame_size - _LENGTH.size) + bytes(size - _LENGTH.size)


def reply_of(size: int) -> bytes:
    """A whole frame of that many bytes."""
    return head_of(size, size)
