"""The server on a port: heads that are too large, or never whole, and connections by the thousand."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address

import pytest

from headrace.web import server
from headrace.web.application import Application
from headrace.web.guard import Guard
from headrace.web.messages import Answer, Request
from headrace.web.routes import Reply, Routes
from headrace.web.server import Crowd, HttpServer, Listen
from headrace.web.sockets import WebSocket


def application() -> Application:
    routes = Routes(tag="Test")
    for path in ("/healthz", "/else"):

        async def answer(request: Request) -> Answer:
            return Answer(200, await request.body() or b"{}")

        routes.add("GET", path, "Answer.", answer, answers={200: Reply("It is.")}, name=path[1:])
        routes.add("POST", path, "Answer.", answer, answers={200: Reply("It is.")}, name=f"post_{path[1:]}")

    async def converse(request: Request, socket: WebSocket) -> None:
        await socket.accept()
        await socket.receive()

    routes.add("GET", "/socket", "Talk.", answer, answers={200: Reply("It is.")}, name="socket", converse=converse)
    return Application([routes], guard=Guard())


@contextmanager
def serving(most_connections: int = 4096, most_per_address: int = 1024) -> Iterator[int]:
    """The port of a server."""
    ready = threading.Event()
    listen = Listen(
        host="127.0.0.1",
        port=0,
        grace_seconds=1,
        most_connections=most_connections,
        most_per_address=most_per_address,
    )
    http = HttpServer(application(), listen, lambda *_: ready.set())
    thread = threading.Thread(target=http.run)
    thread.start()
    try:
        assert ready.wait(30)
        yield http.port
    finally:
        http.stop()
        thread.join(30)


def talked(port: int, *parts: bytes) -> bytes:
    """All that is answered until the server closes, or is told to."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as link:
        try:
            for part in parts:
                link.sendall(part)
            while data := link.recv(1 << 16):
                received += data
        except (ConnectionResetError, BrokenPipeError):
            pass
    return received


HEAD = b"GET /else HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    "parts",
    [
        (HEAD, b"X-A: ", *[b"a" * 65536] * 100),
        (HEAD, *[b"".join(b"X-%d: v\r\n" % i for i in range(4000))] * 50),
        (b"GET /", *[b"a" * 65536] * 100),
        (HEAD + b"X-A: " + b"a" * 70_000 + b"\r\n\r\n",),
        (
            b"POST /else HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n",
            b"T: v\r\n" * 20_000,
        ),
        (b"POST /else HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1;", *[b"a" * 65536] * 100),
        (b"\r\n" * 100_000, b"\0" * 100_000),
    ],
    ids=["one value", "many headers", "path", "at once", "trailers", "chunk extension", "no head"],
)
def test_a_head_is_bounded(parts: tuple[bytes, ...]) -> None:
    with serving() as port:
        answer = talked(port, *parts)
        assert not answer or answer.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400")), answer
        good = talked(port, HEAD + b"X-A: " + b"a" * 60_000 + b"\r\nConnection: close\r\n\r\n")
        assert good.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("request_line", "host", "status"),
    [
        (b"GET http://evil.example/else", b"localhost", 421),
        (b"GET http://user@localhost/else", b"localhost", 421),
        (b"GET http://localhost:80/else", b"evil.example", 200),
        (b"GET /else", b"localhost\r\nHost: evil.example", 400),
        (b"GET /else", b"localhost\r\nHost: localhost", 400),
        (b"GET /else", b"localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked", 400),
        (b"GET /else", b"localhost\r\nContent-Length: 1\r\nContent-Length: 2", 400),
        (b"GET /else", b"localhost\r\nTransfer-Encoding: chunked, identity", 400),
        (b"GET /else", b"localhost\r\nX-A: a\rX-B: b", 400),
        (b"GET /else", b"localhost\r\nX-A : b", 400),
        (b"GET /else", b"localhost\r\nX-A: a\r\n b", 400),
        (b"GET /\xff", b"localhost", 400),
    ],
)
def test_a_request_that_two_would_read_as_two_is_refused_with_a_problem(
    request_line: bytes, host: bytes, status: int
) -> None:
    with serving() as port:
        answer = talked(port, request_line + b" HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 %d" % status), answer
        assert status == 200 or b"application/problem+json" in answer


UPGRADE = b"Host: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
"""What Java's HttpClient sends with its first request, whatever that is."""
SOCKET = (
    b"Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


@pytest.mark.parametrize("cut", [0, 20, -3, None], ids=["head", "in the head", "in the body", "at once"])
@pytest.mark.parametrize(
    "body", [b"Content-Length: 5\r\n\r\nhello", b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"]
)
def test_the_body_of_a_request_that_would_rather_speak_http_2_is_read(body: bytes, cut: int | None) -> None:
    head = b"POST /else HTTP/1.1\r\n" + UPGRADE
    whole = head + body
    place = len(whole) if cut is None else cut or len(head) + body.index(b"\r\n\r\n") + 4
    with serving() as port:
        answer = talked(port, whole[:place], whole[place:], HEAD + b"Connection: close\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200") == 2
    assert b"\r\n\r\nhello" in answer


def test_such_requests_one_behind_the_other_are_all_read() -> None:
    many = 300
    one = b"POST /else HTTP/1.1\r\n" + UPGRADE + b"Content-Length: 5\r\n\r\nhello"
    with serving() as port:
        answer = talked(port, one * many + HEAD + b"Connection: close\r\n\r\n")
    assert answer.count(b"\r\n\r\nhello") == many


@pytest.mark.parametrize(
    "head",
    [
        b"POST /socket HTTP/1.1\r\nContent-Length: 9\r\n",
        b"POST /socket HTTP/1.1\r\n",
        b"GET /socket HTTP/1.1\r\nContent-Length: 9\r\n",
        b"GET /socket HTTP/1.1\r\nTransfer-Encoding: chunked\r\n",
    ],
)
def test_what_begins_no_websocket_is_refused_and_closed(head: bytes) -> None:
    with serving() as port:
        answer = talked(port, head + SOCKET + b"GET /else")
    assert answer.startswith(b"HTTP/1.1 400"), answer
    assert answer.count(b"HTTP/1.1") == 1


def test_websockets_count_as_connections_until_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's own addresses are not counted: here they are."""
    monkeypatch.setattr(server, "peer_address", lambda _: ip_address("192.0.2.1"))
    ended = threading.Event()
    leave = Crowd.leave

    def left(crowd: Crowd, key: bytes) -> None:
        leave(crowd, key)
        if not crowd.count(key):
            ended.set()

    monkeypatch.setattr(Crowd, "leave", left)
    with serving(most_per_address=1) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as talking:
            talking.sendall(b"GET /socket HTTP/1.1\r\n" + SOCKET)
            assert talking.recv(100).startswith(b"HTTP/1.1 101")
            refused = talked(port, b"GET /socket HTTP/1.1\r\n" + SOCKET)
            assert refused.startswith(b"HTTP/1.1 503")
            assert b"application/problem+json" in refused
            assert talked(port, HEAD + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 503")
            ended.clear()
        assert ended.wait(20)
        assert talked(port, HEAD + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 200")


def test_websockets_are_refused_where_there_are_too_many_connections() -> None:
    with serving(most_connections=1) as port:
        assert talked(port, b"GET /socket HTTP/1.1\r\n" + SOCKET).startswith(b"HTTP/1.1 503")


def test_large_bodies_are_no_heads() -> None:
    body = b"x" * (4 << 20)
    with serving() as port:
        head = b"POST /else HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n" % len(body)
        assert talked(port, head + b"\r\n" + body, HEAD + b"Connection: close\r\n\r\n").count(b"HTTP/1.1 200") == 2


def test_a_head_that_is_never_whole_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.2)
    with serving() as port:
        assert talked(port).startswith(b"HTTP/1.1 408")
        assert talked(port, HEAD).startswith(b"HTTP/1.1 408")
        assert talked(port, HEAD + b"\r\n", HEAD).count(b"HTTP/1.1") == 2


def test_probes_are_answered_where_there_are_too_many_connections() -> None:
    close = b"Host: localhost\r\nConnection: close\r\n\r\n"
    with serving(most_connections=1) as port:
        assert talked(port, b"GET /else HTTP/1.1\r\n" + close).startswith(b"HTTP/1.1 503")
        assert talked(port, b"GET /healthz?x HTTP/1.1\r\n" + close).startswith(b"HTTP/1.1")
        with socket.create_connection(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)):
            assert talked(port, b"GET /healthz HTTP/1.1\r\n" + close) == b""


def test_each_address_is_counted_by_itself() -> None:
    crowd = Crowd(1)
    assert crowd.enter("127.0.0.1") is None
    assert crowd.enter("::1") is None
    assert crowd.enter("/socket") is None
    one = crowd.enter("192.0.2.1")
    assert one == crowd.enter("::ffff:192.0.2.1")
    assert crowd.count(one) == 2
    assert crowd.enter("2001:db8::1") == crowd.enter("2001:db8::2%eth0") != crowd.enter("2001:db8:0:1::1")
    assert one is not None
    crowd.leave(one)
    crowd.leave(one)
    assert crowd.count(one) == 0
