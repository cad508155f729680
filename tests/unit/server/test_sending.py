"""How a connection sends: what is large in turns, so that others have theirs in between."""

import asyncio
import socket
from struct import pack

from headrace.net.network import Buffer
from headrace.server.connection import Connection, Parts

BODY = bytes(range(256)) * (12 << 10)


class Recorded:
    """A socket that notes how much it is given, and in which turn of the loop."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.turn = 0
        self.given: list[tuple[int, int]] = []

    def fileno(self) -> int:
        return self._sock.fileno()

    def recv_into(self, buffer: memoryview, /) -> int:
        return self._sock.recv_into(buffer)

    def send(self, data: Buffer, flags: int = 0, /) -> int:
        self.given.append((self.turn, len(data)))
        return self._sock.send(data, flags)

    def sendmsg(self, buffers: list[Buffer], /) -> int:
        return self._sock.sendmsg(buffers)

    def close(self) -> None:
        self._sock.close()


async def answered(parts: Parts) -> tuple[bytes, list[tuple[int, int]]]:
    """What a client gets, and what the socket was given for it."""
    loop = asyncio.get_running_loop()
    near, far = socket.socketpair()
    for sock in (near, far):
        sock.setblocking(False)
    recorded = Recorded(near)
    connection = Connection(
        loop,
        recorded,  # type: ignore[arg-type]
        "peer",
        serve=lambda _connection, _frame: list(parts),
        on_close=lambda _: None,
        on_read_failure=lambda _: None,
        frame_limit=1000,
        now=loop.time(),
    )
    reader = asyncio.ensure_future(read(far, sum(len(part) for part in parts if isinstance(part, bytes))))
    await loop.sock_sendall(far, pack(">i", 1) + b"x")
    while not reader.done():
        recorded.turn += 1
        await asyncio.sleep(0)
    connection.close()
    far.close()
    return reader.result(), recorded.given


async def read(sock: socket.socket, count: int) -> bytes:
    loop, received = asyncio.get_running_loop(), bytearray()
    while len(received) < count:
        received += await loop.sock_recv(sock, 1 << 20)
    return bytes(received)


def test_a_large_answer_is_sent_a_piece_in_each_turn() -> None:
    got, given = asyncio.run(answered([b"head", BODY]))
    assert got == b"head" + BODY
    large = [turn for turn, size in given if size == 256 << 10]
    assert max(size for _, size in given) <= 512 << 10
    assert len(large) == len(set(large)) >= 10


def test_small_parts_are_sent_together() -> None:
    got, given = asyncio.run(answered([b"head", b"body"] * 100))
    assert got == b"headbody" * 100
    assert [size for _, size in given] == [800]
