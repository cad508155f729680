"""TLS beside plain text: the same work at two brokers that differ in nothing but their listener.

What is measured is the way through both programs, each on its own core: the load generator encrypts and decrypts too,
by the broker's own stream. The processor time is the broker's alone.

How much of plain text can be reached at all is told by the same comparison of bare servers, which do no more than
Python's `ssl` needs. Measured on one core of the machine that this was written on, `ssl` with OpenSSL 3.0 decrypts 3.7
and encrypts 4.1 GB/s of pieces in memory; AES-256-GCM alone does 5.2 there, and 10.8 with the vector instructions that
OpenSSL uses since 3.1.
"""

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from select import POLLIN, POLLOUT, poll
from types import TracebackType
from typing import Final, Self, cast

from headrace.net.tls_stream import Scratch, TlsStream
from tests.support.certificates import Authority

from .fetch import fetch_from_broker, send_file
from .frames import batch_up_to
from .model import Aim, BenchError, Figure, Measure, Of, Sample, Work
from .produce import LARGE, MEDIUM, Shape, copy_to_file, produce_to_broker, throughput
from .setting import Setting

_STALL_MS: Final = 20_000
_AIM: Final = Aim(of=Of.RATIO, bound=0.6, at_least=True)


class EncryptedSocket:
    """As much of a socket as the load generator uses, over TLS."""

    def __init__(self, context: ssl.SSLContext, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._stream = TlsStream(sock, context, Scratch(), server_side=False, server_hostname="localhost")
        self._blocks = True
        while not self._stream.shake_hands():
            self._wait(POLLIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def setblocking(self, flag: bool) -> None:
        self._blocks = flag

    def fileno(self) -> int:
        return self._stream.fileno()

    def sendall(self, data: bytes) -> None:
        sent = 0
        while sent < len(data):
            try:
                sent += self._stream.send(memoryview(data)[sent:])
            except BlockingIOError:
                self._wait(POLLOUT)

    def send(self, data: memoryview) -> int:
        return self._stream.send(data)

    def recv_into(self, buffer: memoryview) -> int:
        while True:
            try:
                return self._stream.recv_into(buffer)
            except BlockingIOError:
                if not self._blocks:
                    raise
                self._wait(POLLIN)

    def _wait(self, what: int) -> None:
        ready = poll()
        ready.register(self.fileno(), what)
        if not ready.poll(_STALL_MS):
            raise BenchError(f"no answer for {_STALL_MS / 1000:.0f} s")


@contextmanager
def encrypted(setting: Setting) -> Iterator[Setting]:
    """The same place with brokers that speak TLS, by a certificate on P-256."""
    authority = Authority()
    context = ssl.create_default_context(cadata=authority.pem)
    with setting.directory() as root:
        keystore = authority.sign().write(root / "server.pem")
        yield Setting(
            seconds=setting.seconds,
            rounds=setting.rounds,
            root=root,
            profile=setting.profile,
            listen="SSL://127.0.0.1:0",
            settings={"ssl.keystore.location": keystore},
            keystore=str(keystore),
            secure=cast("Callable[[socket.socket], socket.socket]", partial(EncryptedSocket, context)),
        )


def _over_tls(measure: Measure) -> Measure:
    def measured(setting: Setting) -> Sample:
        with encrypted(setting) as other:
            return measure(other)

    return measured


def _work(name: str, title: str, measure: Measure, aim: Aim | None = _AIM) -> Work:
    return Work(
        name=name,
        title=f"{title}, TLS 1.3",
        against="the same without TLS",
        figures=(Figure(key="rate", label="", unit="MB/s", aim=aim),),
        broker=_over_tls(measure),
        ceiling=measure,
        cpu_unit="s/GB",
    )


def _produce(size: int, window: int) -> Measure:
    shape = _shape(size, window)
    return lambda setting: throughput(produce_to_broker(setting, shape))


def _shape(size: int, window: int) -> Shape:
    return Shape(batch=batch_up_to(size, 100), window=window, durable=False)


def works() -> list[Work]:
    """Produce in two sizes, and fetch; the larger ones also through bare servers."""
    large = _shape(LARGE, 8)
    return [
        _work("tls-produce-1m", "produce, 1 MB requests, no fsync", _produce(LARGE, 8)),
        _work("tls-produce-16k", "produce, 16 KB requests, no fsync", _produce(MEDIUM, 128)),
        _work("tls-fetch", "fetch, 1 MB per request, from the page cache", fetch_from_broker),
        _work(
            "tls-bare-copy",
            "bare copy to a file, 1 MB per reply",
            lambda setting: throughput(copy_to_file(setting, large)),
            aim=None,
        ),
        _work("tls-bare-send", "bare server of a file, 1 MB per request", send_file, aim=None),
    ]
