"""The small HTTP server of probes and scrapes."""

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import pytest

from headrace.server.monitoring import endpoint
from headrace.server.monitoring.endpoint import Endpoint, Headers, HttpAnswer


async def _hello(headers: Headers) -> HttpAnswer:
    return HttpAnswer(f"hello {headers.get('user-agent', '?')}".encode())


async def _broken(_headers: Headers) -> HttpAnswer:
    raise RuntimeError("a defect")


def serve(talk: Callable[[int, Endpoint], Awaitable[None]]) -> None:
    async def main() -> None:
        served = Endpoint({"/hello": _hello, "/broken": _broken})
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
    async def talk(port: int, _: Endpoint) -> None:
        assert status(await said(port, request_)) == expected

    serve(talk)


def test_the_body_comes_with_its_length_and_not_for_head() -> None:
    async def talk(port: int, _: Endpoint) -> None:
        head, body = (await said(port, b"GET /hello HTTP/1.1\r\nUser-Agent: me\r\n\r\n")).split(b"\r\n\r\n")
        assert body == b"hello me"
        assert b"Content-Length: 8" in head
        assert (await said(port, b"HEAD /hello HTTP/1.1\r\nUser-Agent: me\r\n\r\n")).split(b"\r\n\r\n") == [head, b""]

    serve(talk)


def test_who_sends_no_request_in_time_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "HEAD_SECONDS", 0.01)

    async def talk(port: int, _: Endpoint) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /hello")
        assert await until_closed(reader) == b""
        writer.close()

    serve(talk)


def test_connections_beyond_the_limit_are_closed_and_the_others_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MOST_CONNECTIONS", 1)

    async def talk(port: int, _: Endpoint) -> None:
        first = await asyncio.open_connection("127.0.0.1", port)
        first[1].write(b"GET /hello HTTP/1.1\r\n")
        second = await asyncio.open_connection("127.0.0.1", port)
        assert await until_closed(second[0]) == b""
        first[1].write(b"\r\n")
        assert status(await first[0].read()) == HTTPStatus.OK
        for writer in (first[1], second[1]):
            writer.close()

    serve(talk)
