"""The small HTTP server of probes and scrapes."""

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import pytest

from headrace.server.monitoring import endpoint
from headrace.server.monitoring.endpoint import MOST_CONNECTIONS, Headers, HttpAnswer, MetricsEndpoint

LARGE = 32 << 20
"""More than the buffers of a connection hold."""


async def _hello(headers: Headers) -> HttpAnswer:
    return HttpAnswer(f"hello {headers.get('user-agent', '?')}".encode())


async def _large(_headers: Headers) -> HttpAnswer:
    return HttpAnswer(bytes(LARGE))


async def _broken(_headers: Headers) -> HttpAnswer:
    raise RuntimeError("a defect")


def serve(talk: Callable[[int, MetricsEndpoint], Awaitable[None]]) -> None:
    async def main() -> None:
        served = MetricsEndpoint({"/hello": _hello, "/broken": _broken, "/large": _large})
        port = await served.start("127.0.0.1", 0)
        try:
            await talk(port, served)
        finally:
            await served.close()

    asyncio.run(main())


async def said(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """What comes before the end, also where the connection is reset."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n", HTTPStatus.OK),
        (b"GET /hello HTTP/1.0\r\n\r\n", HTTPStatus.OK),
        (b"GET /hello?a=b HTTP/1.1\r\n\r\n", HTTPStatus.OK),
        (b"HEAD /hello HTTP/1.1\r\n\r\n", HTTPStatus.OK),
        (b"GET /other HTTP/1.1\r\n\r\n", HTTPStatus.NOT_FOUND),
        (b"POST /hello HTTP/1.1\r\nContent-Length: 0\r\n\r\n", HTTPStatus.METHOD_NOT_ALLOWED),
        (b"GET /hello HTTP/2.0\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET http://elsewhere/hello HTTP/1.1\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET /hello HTTP/1.1\r\nno colon\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET /broken HTTP/1.1\r\n\r\n", HTTPStatus.INTERNAL_SERVER_ERROR),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
    ],
)
def test_a_request_is_answered_with_the_status_that_it_deserves(request_: bytes, expected: HTTPStatus) -> None:
    async def talk(port: int, _: MetricsEndpoint) -> None:
        assert status(await said(port, request_)) == expected

    serve(talk)


def test_the_body_comes_with_its_length_and_not_for_head() -> None:
    async def talk(port: int, _: MetricsEndpoint) -> None:
        head, body = (await said(port, b"GET /hello HTTP/1.1\r\nUser-Agent: me\r\n\r\n")).split(b"\r\n\r\n")
        assert body == b"hello me"
        assert b"Content-Length: 8" in head
        assert (await said(port, b"HEAD /hello HTTP/1.1\r\nUser-Agent: me\r\n\r\n")).split(b"\r\n\r\n") == [head, b""]

    serve(talk)


def test_who_sends_no_request_in_time_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "HEAD_SECONDS", 0.01)

    async def talk(port: int, _: MetricsEndpoint) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /hello")
        assert await until_closed(reader) == b""
        writer.close()

    serve(talk)


async def ask_without_end(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /hello HTTP/1.1\r\n")
    return reader, writer


def test_who_keeps_its_request_back_makes_room_for_the_next() -> None:
    async def talk(port: int, _: MetricsEndpoint) -> None:
        slow = [await ask_without_end(port) for _number in range(MOST_CONNECTIONS + 8)]
        for _number in range(MOST_CONNECTIONS - 1):
            assert status(await said(port, b"GET /hello HTTP/1.1\r\n\r\n")) == HTTPStatus.OK
        assert await until_closed(slow[0][0]) == b""
        slow[-1][1].write(b"\r\n")
        assert status(await slow[-1][0].read()) == HTTPStatus.OK, "the latest of them had its place still"
        for connection in slow:
            connection[1].close()

    serve(talk)


@pytest.mark.slow
def test_who_does_not_read_its_answer_makes_room_for_the_next() -> None:
    async def talk(port: int, _: MetricsEndpoint) -> None:
        slow = []
        for _number in range(MOST_CONNECTIONS + 1):
            slow.append(await asyncio.open_connection("127.0.0.1", port, limit=1))
            slow[-1][1].write(b"GET /large HTTP/1.1\r\n\r\n")
            await slow[-1][0].readexactly(1)
        assert status(await said(port, b"GET /hello HTTP/1.1\r\n\r\n")) == HTTPStatus.OK
        assert len(await until_closed(slow[0][0])) < LARGE, "it was cut off"
        for connection in slow:
            connection[1].close()

    serve(talk)
