"""Bare sendfile: for each small request a head, then the next bytes of a file, again and again from its start.

With `--keystore` they are read in pieces and sent over TLS.
"""

import argparse
import os
import socket
from collections.abc import Callable
from functools import partial

from .bare import PIECE, Connection, TlsConnection, accept_by, head_of, listen

Send = Callable[[int, int, int], None]
"""Sends of a file, from a position, so many bytes."""


def send_plain(connection: socket.socket, fd: int, position: int, size: int) -> None:
    while size:
        sent = os.sendfile(connection.fileno(), fd, position, size)
        position += sent
        size -= sent


def send_encrypted(connection: TlsConnection, piece: memoryview, fd: int, position: int, size: int) -> None:
    while size:
        count = os.preadv(fd, [piece[:size]], position)
        connection.sendall(piece[:count])
        position += count
        size -= count


def serve(connection: Connection, fd: int, request_size: int, head: bytes, size: int) -> None:
    """Answer until the client goes."""
    send: Send = (
        partial(send_encrypted, connection, memoryview(bytearray(PIECE)))
        if isinstance(connection, TlsConnection)
        else partial(send_plain, connection)
    )
    view = memoryview(bytearray(64 * 1024))
    length = os.fstat(fd).st_size // size * size
    received = answered = position = 0
    while count := connection.recv_into(view):
        received += count
        while (answered + 1) * request_size <= received:
            connection.sendall(head, socket.MSG_MORE)
            send(fd, position, size)
            position = (position + size) % length
            answered += 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--path", required=True)
    parser.add_argument("--request", type=int, required=True)
    parser.add_argument("--head", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--keystore")
    options = parser.parse_args()
    fd = os.open(options.path, os.O_RDONLY)
    head = head_of(options.head + options.size, options.head)
    with listen() as listener, accept_by(listener, options.keystore) as connection:
        try:
            serve(connection, fd, options.request, head, options.size)
        except ConnectionError:
            pass


if __name__ == "__main__":
    main()
