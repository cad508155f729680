"""A bare relay: what the first client sends goes to a file and to the second client, and the first gets a reply.

With `--sync` the file is synced before either of them hears of it.
"""

import argparse
import os
import socket

from .bare import accept, listen, reply_of


def relay(producer: socket.socket, consumer: socket.socket, fd: int, frame_size: int, reply: bytes, sync: bool) -> None:
    """Pass frames on until the producer goes."""
    view = memoryview(bytearray(frame_size))
    while True:
        held = 0
        while held < frame_size:
            count = producer.recv_into(view[held:])
            if not count:
                return
            held += count
        os.write(fd, view)
        if sync:
            os.fdatasync(fd)
        consumer.sendall(view)
        producer.sendall(reply)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--path", required=True)
    parser.add_argument("--frame", type=int, required=True)
    parser.add_argument("--reply", type=int, required=True)
    parser.add_argument("--sync", action="store_true")
    options = parser.parse_args()
    fd = os.open(options.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with listen() as listener, accept(listener) as producer, accept(listener) as consumer:
        try:
            relay(producer, consumer, fd, options.frame, reply_of(options.reply), options.sync)
        except ConnectionError:
            pass


if __name__ == "__main__":
    main()
