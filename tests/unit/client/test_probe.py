import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from headrace.client import probe
from headrace.client.errors import ClusterUnreachable
from headrace.client.probe import broker_count, require_answer, require_listener
from headrace.net.address import Address, parse_address, parse_bootstrap

Serve = Callable[[socket.socket], None]


@contextmanager
def server(serve: Serve) -> Iterator[Address]:
    """A server for one connection, in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            connection, _ = listener.accept()
            with connection:
                serve(connection)

        thread = threading.Thread(target=run)
        thread.start()
        yield Address("127.0.0.1", listener.getsockname()[1])
        thread.join()


def answering(answer: bytes) -> Serve:
    def serve(connection: socket.socket) -> None:
        connection.recv(1024)
        connection.sendall(answer)

    return serve


BODY = struct.pack(">ii", 1, 2) + bytes(24)
TWO_BROKERS = struct.pack(">i", len(BODY)) + BODY


def test_brokers_are_counted() -> None:
    with server(answering(TWO_BROKERS)) as address:
        assert broker_count(address, timeout=60.0) == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\0\0",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        struct.pack(">i", 100) + b"short",
        struct.pack(">iii", 8, 7, 0),
        struct.pack(">iii", 8, 1, 1_000_000),
        struct.pack(">i", 0),
    ],
)
def test_what_is_no_broker_is_told_apart(answer: bytes) -> None:
    with server(answering(answer)) as address, pytest.raises((ValueError, OSError)):
        broker_count(address, timeout=60.0)


@pytest.mark.parametrize(
    ("text", "expected"), [("a:1", Address("a", 1)), ("[::1]:0", Address("::1", 0)), (" h:65535 ", Address("h", 65535))]
)
def test_addresses(text: str, expected: Address) -> None:
    assert parse_address(text) == expected


def test_an_address_reads_back() -> None:
    assert parse_address(str(Address("::1", 9092))) == Address("::1", 9092)


@pytest.mark.parametrize("text", ["", "host", ":1", "h:", "h:x", "h:65536", "::1:9092", "h:-1", "h:٣"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError):
        parse_address(text)


def test_bootstrap_is_a_list() -> None:
    assert parse_bootstrap("a:1, b:2,") == [Address("a", 1), Address("b", 2)]


def test_one_listener_of_several_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        require_listener(f"127.0.0.1:{closed.getsockname()[1]},127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(ClusterUnreachable, match="connection refused"):
            require_listener(f"127.0.0.1:{closed.getsockname()[1]}")


def test_a_broker_that_listens_has_more_time_to_answer_than_to_take_a_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(probe, "ANSWER_SECONDS", 60.0)

    def serve(connection: socket.socket) -> None:
        connection.recv(1024)
        threading.Event().wait(1.0)  # five times what a connection may take
        connection.sendall(bytes(4))

    with server(serve) as address:
        require_answer(str(address))


def test_a_broker_that_listens_and_never_answers_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "ANSWER_SECONDS", 0.2)
    over = threading.Event()

    def serve(_: socket.socket) -> None:
        over.wait(60)

    with server(serve) as address:
        with pytest.raises(ClusterUnreachable, match="takes connections, but does not answer"):
            require_answer(str(address))
        over.set()
