"""Bare sendfile: for each small request a head, then the next bytes of a file, again and again from its start."""

import argparse
import os
import socket

from .bare import accept, head_of, listen


def send(connection: socket.socket, fd: int, position: int, size: int) -> None:
    """That many bytes of the file."""
    while size:
        sent = os.sendfile(connection.fileno(), fd, position, size)
        position += sent
        size -= sent


def serve(connection: socket.socket, fd: int, request_size: int, head: bytes, size: int) -> None:
    """Answer until the client goes."""
    view = memoryview(bytearray(64 * 1024))
    length = os.fstat(fd).st_size // size * size
    received = answered = position = 0
    while count := connection.recv_into(view):
        received += count
        while (answered + 1) * request_size <= received:
            connection.sendall(head, socket.MSG_MORE)
            send(connection, fd, position, size)
            position = (position + size) % length
            answered += 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--path", required=True)
    parser.add_argument("--request", type=int, required=True)
    parser.add_argument("--head", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    options = parser.parse_args()
    fd = os.open(options.path, os.O_RDONLY)
    head = head_of(options.head + options.size, options.head)
    with listen() as listener, accept(listener) as connection:
        try:
            serve(connection, fd, options.request, head, options.size)
        except ConnectionError:
            pass


if __name__ == "__main__":
    main()
