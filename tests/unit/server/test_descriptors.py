"""Connections take no descriptor that a log may need, and refusing them costs next to nothing."""

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from functools import partial
from itertools import count, islice

import pytest
from structlog.testing import capture_logs

from headrace.net.network import Socket
from headrace.net.tcp import TcpNetwork
from headrace.protocol.fetch import Response
from headrace.server.connection import Connection, Parts
from headrace.server.connection_counts import Caps, ConnectionCounts
from headrace.server.descriptors import divide
from headrace.server.listener import Listener, Listeners

from .test_deadlines import until


@pytest.mark.parametrize("limit", [64, 256, 700, 1024, 20_000, 1 << 20])
def test_every_share_of_the_descriptors_is_kept(limit: int) -> None:
    shares = divide(limit)
    assert shares.limit == limit
    assert min(shares) >= limit // 16 or shares.reserve == 256
    assert shares.connections >= limit // 2


def serve(connection: Connection, frame: memoryview) -> Parts:
    return [b"ok"]


class Refusing:
    """An acceptor that has somebody waiting and no descriptor for them."""

    def __init__(self, port: int, sock: socket.socket) -> None:
        self.port = port
        self.sock = sock
        self.asked = 0

    def fileno(self) -> int:
        return self.sock.fileno()

    def accept(self) -> tuple[Socket, str]:
        self.asked += 1
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def close(self) -> None:
        self.sock.close()


async def connected(caps: Caps, count: int, holds: Callable[[Listener], bool]) -> tuple[int, list[str]]:
    """How many of so many connections stay, once something holds; what was logged."""
    loop = asyncio.get_running_loop()
    listener = Listener(
        loop,
        TcpNetwork(),
        frame_limit=1000,
        counts=ConnectionCounts(loop, lambda: caps),
        idle_seconds=600,
        on_read_failure=lambda _: None,
    )
    port = listener.bind("127.0.0.1", 0)
    with capture_logs() as logged:
        listener.start(serve)
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
        await until(lambda: holds(listener))
        await until(lambda: all(_is_settled(client) for client in clients[len(listener.connections) :]))
        kept = len(listener.connections)
    for client in clients:
        client.close()
    listener.close()
    return kept, [entry["event"] for entry in logged if entry["log_level"] == "warning"]


def _is_settled(client: socket.socket) -> bool:
    """Whether the other side has closed the connection."""
    try:
        return client.recv(1, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_a_connection_that_would_take_a_descriptor_of_the_logs_is_refused() -> None:
    taken = {int(name) for name in os.listdir("/proc/self/fd")}
    free = (fd for fd in count() if fd not in taken)
    limit = next(islice(free, 80, None))  # 80 descriptors are free below it, wherever other tests have left theirs
    kept, logged = asyncio.run(connected(Caps(1000, 1000, limit), 60, lambda held: len(held.connections) > 2))
    assert 2 < kept < 20
    assert logged == ["connections refused"]


async def filled(caps: Caps, *, is_for_brokers: bool = False) -> tuple[int, int]:
    """How many connections two listeners of one broker have, and have refused, once two have come to each."""
    loop = asyncio.get_running_loop()
    counts = ConnectionCounts(loop, lambda: caps)
    kept = [
        Listener(
            loop,
            TcpNetwork(),
            frame_limit=1000,
            counts=counts.of_listener(lambda: Caps(1000, 1000), is_for_brokers=is_for_brokers and name == "INSIDE"),
            idle_seconds=600,
            on_read_failure=lambda _: None,
            name=name,
        )
        for name in ("OUTSIDE", "INSIDE")
    ]
    clients: list[socket.socket] = []
    found = Listeners(kept)

    def all_have_come(count: int) -> bool:
        return found.accepted + counts.refusals.total() == count

    for listener in kept:
        port = listener.bind("127.0.0.1", 0)
        listener.start(serve)
        clients += [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
        await until(partial(all_have_come, len(clients)))
    assert {connection.listener_name for connection in found.connections} == {"INSIDE", "OUTSIDE"}
    numbers = found.count, counts.refusals.total()
    for client in clients:
        client.close()
    found.close()
    return numbers


def test_the_listeners_of_a_broker_share_their_caps() -> None:
    assert asyncio.run(filled(Caps(3, 1000))) == (3, 1)


def test_however_many_clients_there_are_brokers_come_in_on_their_own_listener() -> None:
    assert asyncio.run(filled(Caps(2, 1000), is_for_brokers=True)) == (4, 0)


def test_a_flood_of_refused_connections_is_one_line_in_the_log() -> None:
    kept, logged = asyncio.run(connected(Caps(5, 1000), 50, lambda held: len(held.connections) == 5))
    assert kept == 5
    assert logged == ["connections refused"]


def test_a_listener_without_descriptors_does_not_spin() -> None:
    async def asked_in_many_turns() -> int:
        loop = asyncio.get_running_loop()
        listener = Listener(
            loop,
            TcpNetwork(),
            frame_limit=1000,
            counts=ConnectionCounts(loop, lambda: Caps(10, 10)),
            idle_seconds=600,
            on_read_failure=lambda _: None,
        )
        port = listener.bind("127.0.0.1", 0)
        acceptor = listener._acceptor
        assert acceptor is not None
        refusing = Refusing(port, acceptor._sock)  # type: ignore[attr-defined]
        listener._acceptor = refusing
        listener.start(serve)
        with socket.create_connection(("127.0.0.1", port)):
            await until(lambda: refusing.asked > 0)
            for _ in range(100):
                await asyncio.sleep(0)
            listener.close()
        return refusing.asked

    assert asyncio.run(asked_in_many_turns()) == 1


class Open:
    """A file of a log with a descriptor of one's choice."""

    path = "/data/log"

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def fileno(self) -> int:
        return self.fd

    def pread(self, size: int, position: int) -> bytes:
        return bytes(size)


class Slice:
    def __init__(self, fd: int) -> None:
        self.file = Open(fd)
        self.position = self.next_offset = 0
        self.length = 1 << 20


def test_an_answer_holds_no_file_open_that_takes_a_descriptor_of_the_logs() -> None:
    response = Response(b"", held_below=100)
    held, copied = Slice(99), Slice(100)
    response.records(held, flexible=False)
    response.records(copied, flexible=False)
    parts = response.finish()
    assert held in parts
    assert copied not in parts
    assert response.length == 2 * (4 + (1 << 20))
