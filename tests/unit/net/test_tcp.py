"""A link: requests out, answers in, whatever the pieces they come in."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from struct import pack

import pytest
import uvloop

from headrace.net.network import LinkClosed
from headrace.net.tcp import LARGEST_KEPT, Buffers, TcpLink, TcpNetwork
from tests.support.process import free_port

Play = Callable[["Far", TcpLink], Awaitable[None]]


class Far:
    """The other end of a link: sends and receives exactly what a test says."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._loop = asyncio.get_running_loop()

    async def receive(self) -> bytes:
        length = int.from_bytes(await self._exactly(4), "big")
        return await self._exactly(length)

    async def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = await self._loop.sock_recv(self.sock, size - len(data))
            assert chunk, "closed"
            data += chunk
        return bytes(data)

    async def answer(self, *frames: bytes) -> None:
        await self.send(b"".join(pack(">i", len(frame)) + frame for frame in frames))

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.sock, data)


def played(play: Play) -> None:
    """Run a test between a link and its other end."""

    async def main() -> None:
        acceptor = TcpNetwork().listen("127.0.0.1", 0)
        link = await TcpNetwork().connect("127.0.0.1", acceptor.port, 60)
        sock, peer = acceptor.accept()
        assert peer == "127.0.0.1"
        assert isinstance(sock, socket.socket)
        try:
            async with asyncio.timeout(60):
                await play(Far(sock), link)
        finally:
            link.close()
            sock.close()
            acceptor.close()

    uvloop.run(main())


def test_answers_go_to_those_who_asked_in_their_order() -> None:
    async def play(far: Far, link: TcpLink) -> None:
        asked = [asyncio.create_task(link.ask([b"%d" % number, b"?"])) for number in range(100)]
        for number in range(100):
            assert await far.receive() == b"%d?" % number
        await far.answer(*(b"%d!" % number for number in range(100)))
        assert [bytes(await one) for one in asked] == [b"%d!" % number for number in range(100)]

    played(play)


@pytest.mark.parametrize("size", [0, 1, 1000, 65_531, 65_532, 65_533, 300_000, LARGEST_KEPT + 1])
def test_an_answer_of_any_size_comes_whole(size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    content = content[:size]

    async def play(far: Far, link: TcpLink) -> None:
        asked = [asyncio.create_task(link.ask([b"?"])) for _ in range(3)]
        answering = asyncio.create_task(far.answer(content, b"small", content))
        assert [bytes(await one) for one in asked] == [content, b"small", content]
        await answering

    played(play)


def test_an_answer_that_comes_byte_by_byte_comes_whole() -> None:
    async def play(far: Far, link: TcpLink) -> None:
        asked = [asyncio.create_task(link.ask([b"?"])) for _ in range(2)]
        await far.receive()
        for byte in pack(">i", 5) + b"hello" + pack(">i", 2) + b"ok":
            await far.send(bytes((byte,)))
            await asyncio.sleep(0)
        assert [bytes(await one) for one in asked] == [b"hello", b"ok"]

    played(play)


def test_a_request_larger_than_the_systems_buffers_is_sent_whole() -> None:
    large = bytes(range(256)) * (64 << 10)

    async def play(far: Far, link: TcpLink) -> None:
        first = asyncio.create_task(link.ask([b"head", large, b"", memoryview(large)]))
        second = asyncio.create_task(link.ask([b"next"]))
        assert await far.receive() == b"head" + large + large
        assert await far.receive() == b"next"
        await far.answer(b"1", b"2")
        assert (bytes(await first), bytes(await second)) == (b"1", b"2")

    played(play)


def test_an_answer_stays_as_it_is_while_somebody_holds_it() -> None:
    async def play(far: Far, link: TcpLink) -> None:
        held = []
        for number in range(8):
            asked = asyncio.create_task(link.ask([b"?"]))
            await far.receive()
            await far.answer(bytes((number,)) * 200_000)
            held.append(await asked)
        assert [set(bytes(answer)) for answer in held] == [{number} for number in range(8)]

    played(play)


def test_who_is_cancelled_does_not_shift_the_answers_of_others() -> None:
    async def play(far: Far, link: TcpLink) -> None:
        first, second, third = (asyncio.create_task(link.ask([b"%d" % number])) for number in range(3))
        assert await far.receive() == b"0"
        second.cancel()
        await far.answer(b"0", b"1", b"2")
        assert (bytes(await first), bytes(await third)) == (b"0", b"2")
        assert second.cancelled()

    played(play)


@pytest.mark.parametrize("sent", [b"", pack(">i", 10) + b"part", pack(">i", 1 << 20) + b"part"])
def test_those_who_wait_learn_that_the_other_side_is_gone(sent: bytes) -> None:
    async def play(far: Far, link: TcpLink) -> None:
        asked = [asyncio.create_task(link.ask([b"?"])) for _ in range(3)]
        await far.receive()
        await far.send(sent)
        far.sock.close()
        for one in asked:
            with pytest.raises(LinkClosed):
                await one
        assert link.is_closed
        with pytest.raises(LinkClosed):
            await link.ask([b"?"])

    played(play)


@pytest.mark.parametrize("sent", [pack(">i", -1), b"HTTP/1.1 400", pack(">i", 1) + b"a" + pack(">i", 1) + b"b"])
def test_nonsense_closes_the_link(sent: bytes) -> None:
    async def play(far: Far, link: TcpLink) -> None:
        asked = asyncio.create_task(link.ask([b"?"]))
        await far.receive()
        await far.send(sent)
        assert await asyncio.gather(asked, return_exceptions=True)
        assert link.is_closed

    played(play)


def test_closing_tells_those_who_wait_and_can_be_done_twice() -> None:
    async def play(far: Far, link: TcpLink) -> None:
        asked = asyncio.create_task(link.ask([b"?"]))
        await far.receive()
        link.close()
        link.close()
        with pytest.raises(LinkClosed):
            await asked

    played(play)


def test_nobody_listening_is_an_error_of_the_system() -> None:
    async def main() -> None:
        port = free_port()
        with pytest.raises(OSError, match=str(port)):
            await TcpNetwork().connect("127.0.0.1", port, 60)

    uvloop.run(main())


def test_a_name_without_an_address_is_an_error_of_the_system() -> None:
    async def main() -> None:
        with pytest.raises(OSError):
            await TcpNetwork().connect("nobody.invalid", 9092, 60)

    uvloop.run(main())


def test_who_does_not_answer_in_time_is_an_error_of_the_system() -> None:
    async def main() -> None:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            waiting = [socket.create_connection(full.getsockname(), 60)]
            try:
                with pytest.raises(TimeoutError):
                    await TcpNetwork().connect("127.0.0.1", full.getsockname()[1], 0.2)
            finally:
                for sock in waiting:
                    sock.close()

    uvloop.run(main())


def test_memory_is_used_again_once_nobody_looks_at_it() -> None:
    buffers = Buffers()
    view = buffers.take(1_000_000)
    part = view[10:20]
    view[:] = bytes(1_000_000)
    del view
    other = buffers.take(1_000_000)
    other[:4] = b"next"
    assert bytes(part) == bytes(10)
    before = buffers.kept_bytes
    del part, other
    for _ in range(100):
        view = buffers.take(900_000)
        del view
    assert buffers.kept_bytes == before
    buffers.rest()
    assert buffers.kept_bytes == 0


def test_memory_that_is_kept_is_bounded_whoever_holds_on_to_it() -> None:
    buffers = Buffers()
    held = [buffers.take(size) for size in (100, 1 << 20, 5 << 20, LARGEST_KEPT, 20 * LARGEST_KEPT, 3 << 20)]
    assert buffers.kept_bytes <= 3 * LARGEST_KEPT
    assert [len(view) for view in held][4] == 20 * LARGEST_KEPT


def test_a_quiet_link_gives_its_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.net.tcp.REST_SECONDS", -1.0)

    async def play(far: Far, link: TcpLink) -> None:
        for answer in (bytes(1_000_000), b"small"):
            asked = asyncio.create_task(link.ask([b"?"]))
            await far.receive()
            await far.answer(answer)
            assert bytes(await asked) == answer
            del asked
        assert link.kept_bytes == 0

    played(play)
