"""What every bare server shares: a loopback socket, the ready line, a reply of a given size."""

import socket
from struct import Struct
from typing import Final

BACKLOG: Final = 16
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


def head_of(frame_size: int, size: int) -> bytes:
    """The first `size` bytes of a frame of `frame_size` bytes: its length, then zeros."""
    return _LENGTH.pack(frame_size - _LENGTH.size) + bytes(size - _LENGTH.size)


def reply_of(size: int) -> bytes:
    """A whole frame of that many bytes."""
    return head_of(size, size)
