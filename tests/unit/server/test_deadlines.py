"""Connections past their deadline are closed by the sweep; the clock is the test's."""

import asyncio
import socket
from collections.abc import Callable
from struct import pack

import uvloop

from headrace.net.tcp import TcpNetwork
from headrace.server.connection import Connection, Parts, Serve
from headrace.server.connection_counts import Caps, ConnectionCounts
from headrace.server.listener import HANDSHAKE_SECONDS, LEAST_RATE, REST_SECONDS, STALL_SECONDS, Listener

IDLE_SECONDS = 600.0


SOON = 60.0
"""A bound that nothing reaches unless it hangs."""


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON):
        while not holds():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)


def new_listener() -> Listener:
    return Listener(
        asyncio.get_running_loop(),
        TcpNetwork(),
        frame_limit=1 << 20,
        counts=ConnectionCounts(asyncio.get_running_loop(), lambda: Caps(10, 10)),
        idle_seconds=IDLE_SECONDS,
        on_read_failure=lambda _: None,
    )


def answer(connection: Connection, frame: memoryview) -> Parts:
    return [b"ok"]


def answer_at_length(connection: Connection, frame: memoryview) -> Parts:
    return [bytes(16 << 20)]


async def swept(sent: bytes, later: float, serve: Serve = answer) -> bool:
    """Whether a client that sent these bytes, and reads nothing, is closed by a sweep so many seconds later."""
    loop = asyncio.get_running_loop()
    listener = new_listener()
    served = 0

    def counted(connection: Connection, frame: memoryview) -> Parts | None:
        nonlocal served
        served += 1
        return serve(connection, frame)

    port = listener.bind("127.0.0.1", 0)
    listener.start(counted)
    client = socket.create_connection(("127.0.0.1", port))
    try:
        client.sendall(sent)
        await until(lambda: len(listener.connections) == 1)
        # What comes after a whole request came in one piece with it.
        await until(lambda: served > 0 or not sent)
        listener.sweep(loop.time() + later)
        return not listener.connections
    finally:
        client.close()
        listener.close()


def test_a_connection_that_never_asks_is_closed() -> None:
    assert asyncio.run(swept(b"", HANDSHAKE_SECONDS + 1))
    assert not asyncio.run(swept(b"", HANDSHAKE_SECONDS - 5))


def test_a_request_that_stalls_is_closed() -> None:
    whole = b"\0\0\0\x08abcdefgh"
    assert asyncio.run(swept(whole + b"\0\0\0\x08abc", STALL_SECONDS + 1))
    assert not asyncio.run(swept(whole + b"\0\0\0\x08abc", STALL_SECONDS - 5))


def test_a_connection_that_asks_no_more_is_closed_after_the_idle_time() -> None:
    whole = b"\0\0\0\x08abcdefgh"
    assert asyncio.run(swept(whole, IDLE_SECONDS + 1))
    assert not asyncio.run(swept(whole, IDLE_SECONDS - 5))


def test_a_client_that_does_not_read_its_answers_is_closed_after_the_idle_time() -> None:
    asked = b"\0\0\0\x08abcdefgh" * 3
    assert asyncio.run(swept(asked, IDLE_SECONDS + 1, answer_at_length))
    assert not asyncio.run(swept(asked, IDLE_SECONDS - 5, answer_at_length))


def test_a_client_that_resets_right_after_its_last_bytes_is_noticed() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        listener = new_listener()
        port = listener.bind("127.0.0.1", 0)
        listener.start(answer)
        client = socket.create_connection(("127.0.0.1", port))
        await until(lambda: len(listener.connections) == 1)
        client.sendall(b"\0\0\0\x08abc")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        client.close()

        def is_noticed() -> bool:
            listener.sweep(loop.time() + REST_SECONDS + 1)
            return not listener.connections

        try:
            await until(is_noticed)
        finally:
            listener.close()

    uvloop.run(main())


async def dripped(sent: bytes, seconds: int, drip: bytes = b"\0") -> bool:
    """Whether a client that sent these bytes, and then one each second, is closed by the sweeps of so many seconds."""
    loop = asyncio.get_running_loop()
    listener = new_listener()
    port = listener.bind("127.0.0.1", 0)
    listener.start(answer)
    began = loop.time()
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(sent)
        await until(lambda: len(listener.connections) == 1)
        (connection,) = listener.connections
        for second in range(1, seconds):
            held = connection.held_bytes
            client.sendall(drip)
            await until(lambda held=held: connection.held_bytes > held)  # type: ignore[misc]
            connection.last_read_at = began + second
            listener.sweep(began + second)
            if connection.is_closed:
                break
        is_closed = connection.is_closed
    listener.close()
    return is_closed


def test_a_client_that_drips_before_its_first_request_is_closed() -> None:
    assert asyncio.run(dripped(b"\0\0\3", int(HANDSHAKE_SECONDS) + 3))
    assert not asyncio.run(dripped(b"\0\0\3", int(HANDSHAKE_SECONDS) - 3))


def test_a_request_that_drips_is_closed_however_long_it_would_go_on() -> None:
    whole = b"\0\0\0\x08abcdefgh"
    assert asyncio.run(dripped(whole + b"\0\0\3\0", int(STALL_SECONDS) + 4))
    assert not asyncio.run(dripped(whole + b"\0\0\3\0", int(STALL_SECONDS) - 3))


def test_a_request_over_a_slow_line_is_not_closed() -> None:
    whole = b"\0\0\0\x08abcdefgh"
    large = 2 * int(STALL_SECONDS) * LEAST_RATE
    assert not asyncio.run(dripped(whole + pack(">i", 2 * large), 2 * int(STALL_SECONDS), bytes(LEAST_RATE)))


def test_a_muted_connection_is_past_no_deadline() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        listener = new_listener()
        port = listener.bind("127.0.0.1", 0)
        listener.start(answer)
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"\0\0\0\x08abcdefgh")
            await until(lambda: any(connection.requests for connection in listener.connections))
            (connection,) = listener.connections
            connection.mute(10 * IDLE_SECONDS)
            client.sendall(b"\0\0\0\x08abc")
            listener.sweep(loop.time() + 2 * IDLE_SECONDS)
            assert not connection.is_closed
            connection.unmute()
            listener.sweep(loop.time())
            assert not connection.is_closed
            listener.sweep(loop.time() + 2 * IDLE_SECONDS)
            assert connection.is_closed
        listener.close()

    asyncio.run(main())
