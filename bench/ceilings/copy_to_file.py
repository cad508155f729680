"""Bare TCP to file: bytes go from the socket to the file through one buffer, and every whole frame gets a reply.

With `--sync` a reply waits for an fdatasync; one fdatasync on a second thread serves all frames written before it.
With `--keystore` the bytes come over TLS.
"""

import argparse
import os
from threading import Condition, Thread
from typing import Final

from .bare import PIECE, Connection, accept_by, listen, reply_of

_BUFFER: Final = PIECE
"""The fastest of 64 KiB to 4 MiB: it stays in the processor's cache between the read and the write."""


class Replies:
    """Answers frames as they are written; `GroupCommit` waits for the disk first."""

    def __init__(self, connection: Connection, size: int, most: int) -> None:
        self._connection = connection
        self._size = size
        self._block = memoryview(reply_of(size) * most)
        self._answered = 0

    def written(self, frames: int) -> None:
        """So many frames are in the file, from the first on."""
        self.answer_up_to(frames)

    def answer_up_to(self, frames: int) -> None:
        due, self._answered = frames - self._answered, frames
        while due:
            count = min(due, len(self._block) // self._size)
            self._connection.sendall(self._block[: count * self._size])
            due -= count

    def close(self) -> None:
        """Nothing more will be written."""


class GroupCommit(Replies):
    """Answers frames once they are on stable storage."""

    def __init__(self, connection: Connection, size: int, most: int, fd: int) -> None:
        super().__init__(connection, size, most)
        self._fd = fd
        self._written = self._synced = 0
        self._is_closed = False
        self._changed = Condition()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def written(self, frames: int) -> None:
        with self._changed:
            self._written = frames
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._written > self._synced or self._is_closed)
                if self._is_closed:
                    return
                target = self._written
            os.fdatasync(self._fd)
            try:
                self.answer_up_to(target)
            except OSError:
                return
            self._synced = target


def copy(connection: Connection, fd: int, frame_size: int, replies: Replies) -> None:
    """Write what comes to the file until the client goes."""
    view = memoryview(bytearray(_BUFFER))
    received = answered = 0
    while count := connection.recv_into(view):
        left = view[:count]
        while left:
            left = left[os.write(fd, left) :]
        received += count
        whole = received // frame_size
        if whole > answered:
            answered = whole
            replies.written(whole)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--path", required=True)
    parser.add_argument("--frame", type=int, required=True)
    parser.add_argument("--reply", type=int, required=True)
    parser.add_argument("--sync", action="store_true")
    parser.add_argument("--keystore")
    options = parser.parse_args()
    fd = os.open(options.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with listen() as listener, accept_by(listener, options.keystore) as connection:
        most = max(_BUFFER // options.frame, 1)
        replies = (
            GroupCommit(connection, options.reply, most, fd)
            if options.sync
            else Replies(connection, options.reply, most)
        )
        try:
            copy(connection, fd, options.frame, replies)
        except ConnectionError:
            pass
        replies.close()


if __name__ == "__main__":
    main()
