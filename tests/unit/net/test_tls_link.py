"""Links over TLS: both sides shown, large answers and requests whole, the wrong side refused in words."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from struct import pack, unpack

import pytest
import uvloop

from headrace.net.network import LinkClosed
from headrace.net.tcp import TcpLink, TcpNetwork
from headrace.net.tls import ServerTls, ServerTlsSettings
from headrace.net.tls_stream import TlsFailure
from tests.support.certificates import Authority, Signed

AUTHORITY = Authority()


def side(signed: Signed | None = None, *, identification: str = "https") -> ServerTls:
    """One broker's TLS: it shows a certificate both ways, and trusts the authority alone."""
    own = signed or AUTHORITY.sign()
    return ServerTls(
        ServerTlsSettings(
            certificate_chain=own.chain_pem,
            key=own.key_pem(),
            truststore_certificates=AUTHORITY.pem,
            client_auth="required",
            endpoint_identification=identification,
        )
    )


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            (length,) = unpack(">i", await reader.readexactly(4))
            writer.write(pack(">i", length) + await reader.readexactly(length))
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def played(
    play: Callable[[TcpLink], Awaitable[None]], far: ServerTls, near: ServerTls, host: str = "localhost"
) -> None:
    async def main() -> None:
        server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=far.context)
        try:
            port = server.sockets[0].getsockname()[1]
            link = await TcpNetwork().connect(host, port, 60, near.client_context)
            try:
                await play(link)
            finally:
                link.close()
        finally:
            server.close()

    uvloop.run(asyncio.wait_for(main(), 60))


def test_requests_and_answers_of_every_size_come_through_in_order() -> None:
    async def play(link: TcpLink) -> None:
        rng = Random(1)
        sizes = [1, 100, 16_384, 65_532, 65_533, 300_000, 5_000_000, 20_000_000]
        frames = [rng.randbytes(size) for size in sizes]
        answers = await asyncio.gather(*(link.ask([frame[:1], frame[1:70], frame[70:]]) for frame in frames))
        assert [bytes(answer) for answer in answers] == frames

    played(play, side(), side())


def test_a_side_that_is_not_who_it_should_be_is_refused_in_words() -> None:
    async def play(link: TcpLink) -> None:
        raise AssertionError("let in")

    stranger = Authority("Another").sign()
    with pytest.raises(TlsFailure, match="its certificate is refused: it is signed by nobody in the truststore"):
        played(play, side(stranger), side())
    with pytest.raises(TlsFailure, match="is not valid for 'localhost'"):
        played(play, side(AUTHORITY.sign("elsewhere", hosts=("elsewhere",))), side())
    with pytest.raises(TlsFailure, match="it has expired"):
        played(play, side(AUTHORITY.sign(begins=-9, ends=-1)), side())


def test_the_name_is_not_checked_where_that_is_said() -> None:
    async def play(link: TcpLink) -> None:
        assert bytes(await link.ask([b"x"])) == b"x"

    played(play, side(AUTHORITY.sign("elsewhere", hosts=("elsewhere",))), side(identification=""))


def test_a_far_side_that_refuses_us_ends_the_link() -> None:
    """In TLS 1.3 that shows only when an answer is waited for."""

    async def play(link: TcpLink) -> None:
        with pytest.raises(LinkClosed):
            await link.ask([b"x"])

    played(play, side(), side(Authority("Another").sign()))


def test_a_far_side_without_tls_or_that_says_nothing_is_no_link() -> None:
    async def main() -> None:
        async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"\0\0\0\x04test")
            await reader.read()
            writer.close()

        server = await asyncio.start_server(plain, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(TlsFailure, match="does not speak TLS"):
            await TcpNetwork().connect("localhost", port, 60, side().client_context)
        server.close()
        silent = TcpNetwork().listen("127.0.0.1", 0)
        with pytest.raises(TimeoutError):
            await TcpNetwork().connect("127.0.0.1", silent.port, 0.05, side().client_context)
        silent.close()

    uvloop.run(asyncio.wait_for(main(), 60))


def test_nothing_of_a_key_is_left_on_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    side()
    assert list(tmp_path.iterdir()) == []
