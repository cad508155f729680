"""Connections that take and give nothing, by the hundred: who means well is served beside them, as often as it asks."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from struct import pack

import pytest

from headrace.protocol.errors import ErrorCode
from headrace.testing import Broker
from tests.support.wire import TIMEOUT_SECONDS, Wire, batch_of, produce_request, request

MEBIBYTE = 1 << 20
MANY = 400
ASKED = pack(">i", 11) + pack(">hhih", 18, 0, 1, 1) + b"x"
"""ApiVersions."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"queued.max.request.bytes": 16 * MEBIBYTE}, topics=["t"]) as running:
        yield running


def silent(sock: socket.socket) -> None:
    """Says nothing at all."""


def half(sock: socket.socket) -> None:
    sock.sendall(b"\0\0")


def announcing(sock: socket.socket) -> None:
    """Announces a frame of 100 MB after a request that is sound, and sends a little of it."""
    sock.sendall(ASKED + pack(">i", 100_000_000) + b"a" * 100)


def withholding(sock: socket.socket) -> None:
    """Sends all but the end of a large request."""
    sock.setblocking(False)
    try:
        sock.sendall(ASKED + pack(">i", 8 * MEBIBYTE) + bytes(300_000))
    except BlockingIOError:
        pass


def deaf(sock: socket.socket) -> None:
    """Asks on and on, and reads no answer."""
    metadata = pack(">i", 15) + pack(">hhih", 3, 1, 1, 1) + b"x" + pack(">i", -1)
    sock.setblocking(False)
    try:
        sock.sendall(metadata * 20_000)
    except BlockingIOError:
        pass


@pytest.mark.parametrize(
    ("hostile", "count"), [(silent, MANY), (half, MANY), (announcing, MANY), (withholding, 100), (deaf, 50)]
)
def test_a_good_client_is_served_beside(broker: Broker, hostile: Callable[[socket.socket], None], count: int) -> None:
    host, port = broker.bootstrap.rsplit(":", 1)
    with ExitStack() as opened:
        for _ in range(count):
            hostile(opened.enter_context(socket.create_connection((host, int(port)), TIMEOUT_SECONDS)))
        for _ in range(5):
            with Wire(broker.bootstrap) as good:
                assert good.ask(18, 0, request(18, 0)).error_code is ErrorCode.none
                answer = good.ask(0, 9, produce_request("t", batch_of(bytes(200_000))))
                assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none
