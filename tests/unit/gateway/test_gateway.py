import asyncio
import json
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace import __version__
from headrace.client.probe import Address
from headrace.gateway import app, http
from headrace.gateway.app import Gateway
from headrace.gateway.http import MAX_HEAD_BYTES, serving

Ask = Callable[[bytes], Awaitable[bytes]]


def conversation(talk: Callable[[Ask], Awaitable[None]], bootstrap: tuple[Address, ...] = ()) -> None:
    """Run `talk` with a function that sends bytes to a gateway and gives its whole answer."""

    async def main() -> None:
        async with serving("127.0.0.1", 0, Gateway(bootstrap).respond) as port:

            async def ask(data: bytes) -> bytes:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(data)
                try:
                    return await reader.read()
                finally:
                    writer.close()

            await talk(ask)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def body(answer: bytes) -> Any:
    return json.loads(answer.partition(b"\r\n\r\n")[2])


def test_the_root_tells_the_version() -> None:
    async def talk(ask: Ask) -> None:
        assert body(await ask(get("/?a=b"))) == {"name": "headrace", "version": __version__}

    conversation(talk)


def test_health_counts_brokers_and_asks_the_cluster_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Address] = []

    async def count(address: Address, _timeout: float) -> int:
        asked.append(address)
        if address.port == 1:
            raise ConnectionRefusedError
        return 3

    monkeypatch.setattr(app, "broker_count", count)

    async def talk(ask: Ask) -> None:
        for _ in range(5):
            answer = await ask(get("/health"))
            assert (status(answer), body(answer)) == (200, {"status": "ok", "brokers": 3})

    conversation(talk, (Address("h", 1), Address("h", 2)))
    assert asked == [Address("h", 1), Address("h", 2)]


def test_health_is_503_while_no_broker_answers() -> None:
    async def talk(ask: Ask) -> None:
        answer = await ask(get("/health"))
        assert (status(answer), body(answer)["status"]) == (503, "unavailable")

    conversation(talk)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (get("/nothing"), 404),
        (get("/", "POST"), 405),
        (b"\x00\x00\x00\x10\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET http://x/ HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/2\r\n\r\n", 400),
        ("GET /é HTTP/1.1\r\n\r\n".encode(), 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n", 431),
        (b"x" * (4 * MAX_HEAD_BYTES), 431),
    ],
)
def test_other_requests_are_refused(request_: bytes, expected: int) -> None:
    async def talk(ask: Ask) -> None:
        assert status(await ask(request_)) == expected

    conversation(talk)


def test_head_has_no_body() -> None:
    async def talk(ask: Ask) -> None:
        answer = await ask(get("/", "HEAD"))
        assert status(answer) == 200
        assert answer.endswith(b"\r\n\r\n")

    conversation(talk)


def test_a_request_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HEAD_SECONDS", 0.05)

    async def talk(ask: Ask) -> None:
        assert status(await ask(b"GET / HT")) == 408

    conversation(talk)


def test_closing_does_not_wait_for_silent_clients() -> None:
    async def main() -> None:
        async with serving("127.0.0.1", 0, Gateway(()).respond) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET")
            await writer.drain()
        writer.close()

    asyncio.run(asyncio.wait_for(main(), 5))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (struct.pack(">iii", 32, 1, 2) + bytes(24), 200),
        (b"", 503),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", 503),
        (struct.pack(">i", 100) + b"short", 503),
    ],
)
def test_health_tells_a_broker_from_what_is_none(answer: bytes, expected: int) -> None:
    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1024)
        writer.write(answer)
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(broker, "127.0.0.1", 0) as server:
            address = Address(*server.sockets[0].getsockname())
            response = await Gateway((address,)).respond(http.Request(method="GET", path="/health"))
            assert response.status == expected

    asyncio.run(main())
