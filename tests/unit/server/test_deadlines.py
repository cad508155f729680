"""Connections past their deadline are closed by the sweep; the clock is the test's."""

import asyncio
import socket
from collections.abc import Callable
from struct import pack

import uvloop

from headrace.net.tcp import TcpNetwork
from headrace.server.connection import Connection, Parts, Serve
from headrace.server.listener import HANDSHAKE_SECONDS, REST_SECONDS, STALL_SECONDS, Caps, ConnectionCounts, Listener

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
        frame_limit=1000,
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
