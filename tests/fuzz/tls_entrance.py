"""`python -m tests.fuzz.tls_entrance --cases 100000`: whatever comes to a listener that speaks TLS.

Each case is a connection of the broker's own kind, over a pair of sockets: handshakes made wrong, cut and repeated,
other protocols, records made wrong after a sound handshake, empty ones. A case is over when the broker has closed the
connection. What must hold: it does, no error reaches the loop, and memory does not grow.
"""

import argparse
import asyncio
import os
import resource
import socket
import ssl
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from struct import pack
from typing import Any, Final

import structlog
import uvloop

from headrace.net.tls import ServerTls, ServerTlsSettings
from headrace.protocol.errors import ProtocolViolation
from headrace.security.certificates import PrincipalMapping
from headrace.server.connection import Connection, Parts
from headrace.server.handshakes import Handshakes
from tests.support.certificates import Authority
from tests.support.key_updates import KeyUpdates

from .mutation import mutated

_AT_ONCE: Final = 50
_SECONDS: Final = 60.0
"""A case that takes longer hangs."""
_MOST_GROWTH: Final = 48 << 20
_WARM_UP: Final = 5_000
_FRAME_LIMIT: Final = 100_000
_AUTHORITY: Final = Authority()
_STRANGER: Final = Authority("Another")
_PLAIN: Final = (
    b"\0\0\0\x1a\0\x12\0\0\0\0\0\x01\0\x04test",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT x:1 HTTP/1.1\r\n\r\n",
    b"SSH-2.0-OpenSSH_9.9\r\n",
    b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10\x01\x00\x80",
    b"\x16\x03\x01\xff\xff",
    b"\x15\x03\x03\x00\x02\x02\x28",
    b"\x14\x03\x03\x00\x01\x01" * 40,
    b"\x17\x03\x03\x00\x00" * 100,
)


class Failed(Exception):
    """What must hold did not."""


class Client:
    """A sound client in memory."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.to, self.back = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.to, self.back, server_hostname="localhost")

    def shake(self) -> bool:
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True


def _contexts() -> list[ssl.SSLContext]:
    made = []
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        for signed in (None, _AUTHORITY.sign("alice", hosts=()), _STRANGER.sign("mallory", hosts=())):
            context = ssl.create_default_context(cadata=_AUTHORITY.pem)
            context.minimum_version = context.maximum_version = version
            if signed is not None:
                path = Path(f"/proc/self/fd/{_memory_file(signed.key_pem() + signed.chain_pem)}")
                context.load_cert_chain(path)
            made.append(context)
    return made


def _memory_file(text: str) -> int:
    descriptor = os.memfd_create("client")
    os.write(descriptor, text.encode())
    return descriptor


class Entrance:
    """A listener's part of connections, and what comes of each."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.errors: list[str] = []
        self.loop.set_exception_handler(lambda _, context: self.errors.append(repr(context)))
        server = _AUTHORITY.sign()
        settings = ServerTlsSettings(
            certificate_chain=server.chain_pem,
            key=server.key_pem(),
            truststore_certificates=_AUTHORITY.pem,
            client_auth="requested",
        )
        mapping = PrincipalMapping("RULE:^CN=([a-z]*)$/$1/")
        self.handshakes = Handshakes(self.loop, ServerTls(settings), mapping, listener="ssl")
        self.contexts = _contexts()
        self.hellos = [self._hello(context) for context in self.contexts]
        self.served = 0

    def _hello(self, context: ssl.SSLContext) -> bytes:
        client = Client(context)
        client.shake()
        return client.back.read()

    def serve(self, connection: Connection, frame: memoryview) -> Parts | None:
        """As dispatch would: answers some, and refuses what is garbage."""
        self.served += 1
        if frame[0] > 100:
            raise ProtocolViolation("garbage")
        return [pack(">i", len(frame)), bytes(frame)]

    async def case(self, random: Random) -> str:
        """One connection; what kind of case it was."""
        near, far = socket.socketpair()
        for sock in (near, far):
            sock.setblocking(False)
        closed = self.loop.create_future()
        Connection(
            self.loop,
            near,
            "fuzz",
            serve=self.serve,
            on_close=lambda _: closed.set_result(None),
            on_read_failure=lambda error: self.errors.append(str(error)),
            frame_limit=_FRAME_LIMIT,
            now=self.loop.time(),
            handshakes=self.handshakes,
        )
        kind = random.choice(_KINDS)
        try:
            await kind(self, random, far)
            far.shutdown(socket.SHUT_WR)
            await asyncio.wait_for(asyncio.shield(closed), _SECONDS)
        except (BrokenPipeError, ConnectionResetError):
            await asyncio.wait_for(asyncio.shield(closed), _SECONDS)
        except TimeoutError:
            raise Failed(f"{kind.__name__}: the connection is not closed") from None
        finally:
            far.close()
        return kind.__name__

    async def hello(self, random: Random, far: socket.socket) -> None:
        """A first message made wrong."""
        await self._send(random, far, mutated(random, random.choice(self.hellos), self.hellos))

    async def other(self, random: Random, far: socket.socket) -> None:
        """What is no TLS, or hardly."""
        data = random.choice([*_PLAIN, random.randbytes(random.randrange(300))])
        await self._send(random, far, data if random.random() < 0.5 else mutated(random, data, _PLAIN))

    async def shaking(self, random: Random, far: socket.socket) -> None:
        """A handshake that goes wrong at its second step, or is one of a stranger."""
        client = Client(random.choice(self.contexts))
        client.shake()
        await self._send(random, far, client.back.read())
        client.to.write(await self.loop.sock_recv(far, 1 << 16))
        try:
            client.shake()
        except ssl.SSLError:
            return
        data = client.back.read()
        await self._send(random, far, data if random.random() < 0.3 else mutated(random, data, self.hellos))

    async def records(self, random: Random, far: socket.socket) -> None:
        """Records made wrong, in an order of its own, or without end, after a sound handshake."""
        client = await self._connected(random, far)
        if client is None:
            return
        sound = []
        for _ in range(random.randrange(1, 5)):
            body = random.randbytes(random.choice((1, 50, 3000, 20_000)))
            client.tls.write(pack(">i", random.choice((len(body), len(body), 0, -1, 2**31 - 1))) + body)
            sound.append(client.back.read())
        kept = [mutated(random, each, sound) if random.random() < 0.4 else each for each in sound]
        if random.random() < 0.2:
            random.shuffle(kept)
        await self._send(random, far, b"".join(kept) + random.choice((b"", *_PLAIN)))

    async def updates(self, random: Random, far: socket.socket) -> None:
        """Key updates between records, few or without end."""
        with tempfile.NamedTemporaryFile() as keys:
            context = ssl.create_default_context(cadata=_AUTHORITY.pem)
            context.keylog_filename = keys.name
            if await self._connected(random, far, context) is None:
                return
            client = KeyUpdates(Path(keys.name))
        frame = pack(">i", 5) + b"hello"
        for _ in range(3000 if random.random() < 0.02 else random.choice((1, 3, 10))):
            said = client.one(asks=random.random() < 0.5) + (client.data(frame) if random.random() < 0.2 else b"")
            await self.loop.sock_sendall(far, said)

    async def _connected(
        self, random: Random, far: socket.socket, context: ssl.SSLContext | None = None
    ) -> Client | None:
        client = Client(context or random.choice(self.contexts))
        try:
            while not client.shake():
                await self.loop.sock_sendall(far, client.back.read())
                data = await self.loop.sock_recv(far, 1 << 16)
                if not data:
                    return None
                client.to.write(data)
        except ssl.SSLError:
            return None
        await self.loop.sock_sendall(far, client.back.read())
        return client

    async def _send(self, random: Random, far: socket.socket, data: bytes) -> None:
        """In one piece, or in some."""
        cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.choice((0, 0, 1, 4))))
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            await self.loop.sock_sendall(far, data[start:end])
            if cuts:
                await asyncio.sleep(0)


_KINDS: Final[Sequence[Callable[[Entrance, Random, socket.socket], Any]]] = (
    Entrance.hello,
    Entrance.hello,
    Entrance.other,
    Entrance.shaking,
    Entrance.records,
    Entrance.updates,
)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def run(cases: int, seed: int, say: Callable[[str], None] = lambda _: None) -> Counter[str]:
    """So many cases by their kinds; `Failed` where something does not hold."""
    entrance = Entrance()
    kinds: Counter[str] = Counter()
    before, began = 0, time.monotonic()
    for first in range(seed, seed + cases, _AT_ONCE):
        numbers = range(first, min(first + _AT_ONCE, seed + cases))
        kinds.update(await asyncio.gather(*(entrance.case(Random(number)) for number in numbers)))
        if entrance.errors:
            raise Failed(f"cases {numbers.start}-{numbers.stop - 1}: {entrance.errors[:3]}")
        done = numbers.stop - seed
        if done >= _WARM_UP and not before:
            before = _resident()
        if before and _resident() - before > _MOST_GROWTH:
            raise Failed(f"memory grew by {_resident() - before:,} bytes in {done:,} cases")
        if done % 10_000 < _AT_ONCE:
            say(f"... {done:,} cases in {time.monotonic() - began:.0f} s, {_resident() - before:,} bytes more")
    if entrance.handshakes.failures + entrance.handshakes.succeeded == 0:
        raise Failed("no handshake was even begun")
    return kinds


def quiet() -> None:
    """Failures are made into words, and not shown."""
    structlog.configure(
        processors=[structlog.processors.format_exc_info, structlog.processors.JSONRenderer()],
        logger_factory=structlog.ReturnLoggerFactory(),
    )


def main() -> int:
    """0 where everything held."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.tls_entrance", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    def say(line: str) -> None:
        print(line, flush=True)  # noqa: T201 - what the command is for

    quiet()
    try:
        kinds = uvloop.run(run(given.cases, given.seed, say))
    except Failed as failure:
        say(f"FAILED: {failure}")
        return 1
    say(f"{kinds.total():,} cases held: {', '.join(f'{name} {count:,}' for name, count in kinds.most_common())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
