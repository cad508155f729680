"""A listener that speaks TLS: who is let in, who each client is, what goes wrong, and that nothing is forgotten."""

import asyncio
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from struct import pack, unpack
from typing import Any, NamedTuple

import pytest
import uvloop
from structlog.testing import capture_logs

from headrace.net.tcp import TcpNetwork
from headrace.net.tls import ServerTls, ServerTlsSettings
from headrace.security.certificates import PrincipalMapping
from headrace.server.connection import MOST_OUT, Connection, Parts
from headrace.server.connection_counts import Caps, ConnectionCounts
from headrace.server.handshakes import Handshakes
from headrace.server.listener import HANDSHAKE_SECONDS, Listener
from tests.support.certificates import Authority, Signed, name

AUTHORITY = Authority()
SERVER = AUTHORITY.sign()
ALICE = AUTHORITY.sign(name("alice", unit="x", organization="y"), hosts=())
SETTINGS = ServerTlsSettings(
    certificate_chain=SERVER.chain_pem, key=SERVER.key_pem(), truststore_certificates=AUTHORITY.pem
)
SOON = 60.0


class Served(NamedTuple):
    listener: Listener
    handshakes: Handshakes
    port: int
    seen: list[str]
    """Principals, one for each request."""


def echo(connection: Connection, frame: memoryview) -> Parts:
    return [pack(">i", len(frame)), bytes(frame)]


@asynccontextmanager
async def serving(
    settings: ServerTlsSettings = SETTINGS,
    *,
    rules: str = "DEFAULT",
    names_clients: bool = True,
    answer: Callable[[Connection, memoryview], Parts | None] = echo,
    timer: Callable[[], float] | None = None,
) -> AsyncIterator[Served]:
    loop = asyncio.get_running_loop()
    more: dict[str, Any] = {} if timer is None else {"timer": timer}
    handshakes = Handshakes(
        loop, ServerTls(settings), PrincipalMapping(rules), listener="ssl", names_clients=names_clients, **more
    )
    listener = Listener(
        loop,
        TcpNetwork(),
        frame_limit=64 << 20,
        counts=ConnectionCounts(loop, lambda: Caps(1000, 1000)),
        idle_seconds=600.0,
        on_read_failure=lambda _: None,
        handshakes=handshakes,
    )
    seen: list[str] = []

    def serve(connection: Connection, frame: memoryview) -> Parts | None:
        seen.append(connection.principal)
        return answer(connection, frame)

    port = listener.bind("127.0.0.1", 0)
    listener.start(serve)
    try:
        yield Served(listener, handshakes, port, seen)
    finally:
        listener.close()


def trusting(client: Signed | None = None, authority: Authority = AUTHORITY, version: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority.pem)
    if version:
        context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    if client is not None:
        with tempfile.NamedTemporaryFile() as file:
            context.load_cert_chain(client.write(Path(file.name)))
    return context


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connected(port: int, context: ssl.SSLContext | None = None) -> Streams:
    return await asyncio.open_connection("127.0.0.1", port, ssl=context or trusting(), limit=1 << 24)


async def asked(streams: Streams, body: bytes) -> bytes:
    reader, writer = streams
    writer.write(pack(">i", len(body)) + body)
    await writer.drain()
    (length,) = unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(length)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON):
        while not holds():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)


def run(work: Any) -> Any:
    return uvloop.run(asyncio.wait_for(work, SOON))


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_requests_of_every_size_are_served(version: str) -> None:
    async def work() -> None:
        rng = Random(version)
        async with serving() as served:
            streams = await connected(served.port, trusting(version=version))
            for size in (1, 100, 4096, 16_384, 100_000, 1_000_000, 10_000_000):
                body = rng.randbytes(size)
                assert await asked(streams, body) == body
            streams[1].close()
            await until(lambda: not served.listener.connections)

    run(work())


def test_requests_sent_at_once_are_all_answered_though_the_socket_tells_of_them_once() -> None:
    async def work() -> None:
        async with serving() as served:
            reader, writer = await connected(served.port)
            bodies = [bytes([number % 256]) * (1 + 37 * number) for number in range(500)]
            writer.write(b"".join(pack(">i", len(body)) + body for body in bodies))
            for body in bodies:
                (length,) = unpack(">i", await reader.readexactly(4))
                assert await reader.readexactly(length) == body
            writer.close()

    run(work())


def test_a_client_that_reads_nothing_is_held_back_and_loses_nothing() -> None:
    async def work() -> None:
        body = bytes(100_000)
        async with serving() as served:
            reader, writer = await connected(served.port)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            for _ in range(200):
                writer.write(pack(">i", len(body)) + body)
            (connection,) = served.listener.connections
            await until(lambda: connection.queued_bytes >= MOST_OUT)
            requests = connection.requests
            await asyncio.sleep(0)
            assert connection.requests == requests < 200
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            for _ in range(200):
                assert await reader.readexactly(100_004)
            writer.close()

    run(work())


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_a_verified_certificate_says_who_a_client_is(version: str) -> None:
    async def work() -> None:
        settings = SETTINGS.__class__(**{**_values(SETTINGS), "client_auth": "requested"})
        async with serving(settings) as served:
            await asked(await connected(served.port, trusting(ALICE, version=version)), b"x")
            await asked(await connected(served.port, trusting(version=version)), b"x")
            assert served.seen == ["User:CN=alice,OU=x,O=y", "User:ANONYMOUS"]
        async with serving(settings, rules="RULE:^CN=(.*?),.*$/$1/U,DEFAULT") as served:
            await asked(await connected(served.port, trusting(ALICE, version=version)), b"x")
            assert served.seen == ["User:ALICE"]
        async with serving(settings, names_clients=False) as served:
            await asked(await connected(served.port, trusting(ALICE, version=version)), b"x")
            assert served.seen == ["User:ANONYMOUS"]

    run(work())


def _values(settings: ServerTlsSettings) -> dict[str, Any]:
    return {field: getattr(settings, field) for field in settings.__slots__}


async def refused(served: Served, context: ssl.SSLContext) -> str:
    """Why the broker says it did not let a client in."""
    with capture_logs() as logs:
        try:
            reader, writer = await connected(served.port, context)
            writer.write(pack(">i", 1) + b"x")
            await reader.readexactly(5)
        except (OSError, asyncio.IncompleteReadError):
            pass
        await until(lambda: any(line["event"] == "TLS handshake failed" for line in logs))
        await until(lambda: not served.listener.connections)
    (line,) = [line for line in logs if line["event"] == "TLS handshake failed"]
    assert line["peer"] == "127.0.0.1"
    return str(line["reason"])


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_who_shows_no_good_certificate_is_not_served(version: str) -> None:
    stranger = Authority("Another").sign("mallory", hosts=())
    expired = AUTHORITY.sign("alice", hosts=(), begins=-9, ends=-1)

    async def reasons(client: Signed | None, rules: str = "DEFAULT") -> str:
        settings = SETTINGS.__class__(**{**_values(SETTINGS), "client_auth": "required"})
        async with serving(settings, rules=rules) as served:
            reason = await refused(served, trusting(client, version=version))
            assert served.seen == []
            assert served.handshakes.failures == 1
            await asked(await connected(served.port, trusting(ALICE)), b"x") if rules == "DEFAULT" else None
            return reason

    assert "no client certificate" in run(reasons(None))
    assert "signed by nobody in the truststore" in run(reasons(stranger))
    assert "it has expired" in run(reasons(expired))
    assert "no rule of ssl.principal.mapping.rules applies to 'CN=alice,OU=x,O=y'" in run(
        reasons(ALICE, "RULE:^CN=(bob)$/$1/")
    )


def test_who_does_not_trust_us_is_told_apart_from_who_speaks_plain_text() -> None:
    async def work() -> None:
        async with serving() as served:
            assert "does not trust our certificate" in await refused(served, trusting(authority=Authority("Another")))
        async with serving() as served:
            with capture_logs() as logs:
                reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
                writer.write(b"\0\0\0\x1a\0\x12\0\0\0\0\0\x01\0\x04test")
                assert not (await reader.read()).startswith(b"\0")  # closed, perhaps after an alert
            assert "plain text" in logs[-1]["reason"]

    run(work())


def test_failures_are_logged_together() -> None:
    async def work() -> None:
        async with serving() as served:
            with capture_logs() as logs:
                for _ in range(30):
                    _, writer = await asyncio.open_connection("127.0.0.1", served.port)
                    writer.write(b"GET / HTTP/1.1\r\n\r\n")
                await until(lambda: served.handshakes.failures == 30)
            assert len(logs) == 1

    run(work())


def test_who_only_connects_is_a_probe_and_no_failure() -> None:
    async def work() -> None:
        async with serving() as served:
            with capture_logs() as logs:
                _, writer = await connected(served.port)
                await until(lambda: bool(served.listener.connections))
                writer.close()
                await until(lambda: not served.listener.connections)
            assert (served.handshakes.failures, logs) == (0, [])

    run(work())


def test_a_handshake_that_drips_is_ended_by_the_deadline() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        async with serving() as served:
            client = socket.create_connection(("127.0.0.1", served.port))
            client.sendall(b"\x16\x03\x01\x02")
            await until(lambda: len(served.listener.connections) == 1)
            served.listener.sweep(loop.time() + HANDSHAKE_SECONDS - 5)
            assert len(served.listener.connections) == 1
            client.sendall(b"\0")  # it is alive, and that does not help
            served.listener.sweep(loop.time() + HANDSHAKE_SECONDS + 1)
            assert not served.listener.connections
            client.close()

    run(work())


def test_many_handshakes_at_once_leave_turns_to_others() -> None:
    """However little a step takes, one is done in each turn of the loop."""

    async def work() -> None:
        async with serving(timer=lambda: 1.0) as served:
            done: list[int] = []
            for number in range(20):
                served.handshakes.take_turn("10.0.0.1", lambda number=number: done.append(number))  # type: ignore[misc]
            for turn in range(1, 21):
                await asyncio.sleep(0)
                assert len(done) <= turn
            await until(lambda: done == list(range(20)))

    run(work())


def test_between_turns_of_handshakes_the_loop_is_free_for_others() -> None:
    """A request takes some turns of the loop, and a thread that syncs: it is done while handshakes rest."""

    async def work() -> None:
        now = 0.0

        def step() -> None:
            nonlocal now
            now += 0.001
            done.append(now)

        async with serving(timer=lambda: now) as served:
            done: list[float] = []
            for _ in range(2):
                served.handshakes.take_turn("10.0.0.1", step)
            await until(lambda: bool(done))
            for now in (0.001, 0.0015, 0.00199):  # noqa: B007 - it is the clock
                for _ in range(5):
                    await asyncio.sleep(0)
                    assert len(done) == 1
            now = 0.002
            await until(lambda: len(done) == 2)

    run(work())


@pytest.mark.parametrize("flood", [["10.0.0.1"] * 9, [f"2001:db8::{number:x}" for number in range(9)]])
def test_who_floods_with_handshakes_waits_behind_himself(flood: list[str]) -> None:
    async def work() -> None:
        ticks = iter(range(10**9))
        async with serving(timer=lambda: float(next(ticks))) as served:
            done: list[str] = []
            for address in [*flood, "10.0.0.2"]:
                served.handshakes.take_turn(address, lambda address=address: done.append(address))  # type: ignore[misc]
            await until(lambda: len(done) == 10)
            assert done.index("10.0.0.2") == 1

    run(work())


def test_a_step_that_fails_does_not_stop_the_others() -> None:
    async def work() -> None:
        async with serving() as served:
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)
            done: list[int] = []
            served.handshakes.take_turn("10.0.0.1", lambda: done.append(1 // 0))
            served.handshakes.take_turn("10.0.0.1", lambda: done.append(2))
            await until(lambda: done == [2])

    run(work())


def test_a_connection_that_is_drained_says_goodbye() -> None:
    async def work() -> None:
        async with serving() as served:
            reader, writer = await connected(served.port)
            writer.write(pack(">i", 1) + b"x")
            assert await reader.readexactly(5)
            served.listener.stop_listening()
            await served.listener.drain(10)
            assert await reader.read() == b""
            assert not served.listener.connections
            writer.close()

    run(work())


def test_of_many_who_connect_at_once_one_is_accepted_in_each_turn_of_the_loop() -> None:
    async def work() -> None:
        async with serving() as served:
            clients = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(20)]
            before = served.listener.accepted
            while served.listener.accepted < len(clients):
                await asyncio.sleep(0)
                assert served.listener.accepted - before <= 1
                before = served.listener.accepted
            for client in clients:
                client.close()

    run(work())


def test_a_handshake_is_done_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One makes what it needs, one answers the client's first message, one takes its last."""
    turns = 0
    take_turn = Handshakes.take_turn

    def counted(handshakes: Handshakes, address: str, step: Callable[[], None]) -> None:
        nonlocal turns
        turns += 1
        take_turn(handshakes, address, step)

    async def work() -> None:
        async with serving() as served:
            _, writer = await connected(served.port)
            await until(lambda: served.handshakes.succeeded == 1)
            writer.close()

    monkeypatch.setattr(Handshakes, "take_turn", counted)
    run(work())
    assert turns >= 3
