"""A session with a server that falls silent, or closes: noticed in time, and counted from its last word."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

import pytest

from headrace.cluster.kazoo_loop import LoopHandler
from headrace.cluster.keeper import Keeper
from headrace.cluster.store import SessionState, StoreError
from headrace.cluster.znodes import ZooKeeperAddress

SESSION_SECONDS = 1.5
LONG = 60.0
"""A bound that nothing reaches unless it hangs."""
BETWEEN_CALLS_SECONDS = 0.02

PINGS = 4
"""They come a third of a session apart, or sooner."""
LONGER_SESSION_SECONDS = 6.0
"""Of which a busy machine does not use up two thirds between a ping and its answer."""
PING, MULTI = 11, 14
NO_NODE = -101


class FakeServer:
    """As much of ZooKeeper as sessions, pings and barriers need; it answers those kinds of request it is told to."""

    def __init__(self, granted: float) -> None:
        self._granted_ms = int(granted * 1000)
        self._links: set[asyncio.StreamWriter] = set()
        self.answered: Iterable[int] = (PING, MULTI)
        self._pings = asyncio.Semaphore(0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._links.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await self._receive(reader)
            self._say(writer, struct.pack(">iiqi16s?", 0, self._granted_ms, 1, 16, b"", False))
            while True:
                xid, kind = struct.unpack_from(">ii", await self._receive(reader))
                if kind == PING:
                    self._pings.release()
                if kind in self.answered:
                    self._say(writer, struct.pack(">iqi", xid, 0, 0) + (_refusal() if kind == MULTI else b""))
        self._links.discard(writer)
        writer.close()

    async def until_pinged(self, times: int) -> None:
        async with asyncio.timeout(LONG):
            for _ in range(times):
                await self._pings.acquire()

    def close_links(self) -> None:
        for writer in self._links:
            writer.close()

    async def _receive(self, reader: asyncio.StreamReader) -> bytes:
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        return await reader.readexactly(size)

    def _say(self, writer: asyncio.StreamWriter, message: bytes) -> None:
        writer.write(struct.pack(">i", len(message)) + message)


def _refusal() -> bytes:
    return struct.pack(">i?ii", -1, False, NO_NODE, NO_NODE) + struct.pack(">i?i", -1, True, -1)


class Bench:
    """A session with a fake server, and what was known of it whenever it changed."""

    def __init__(self, server: FakeServer, keeper: Keeper) -> None:
        self.server = server
        self.keeper = keeper
        self.silence = 0.0
        """The seconds since the server's last word when the connection was given up."""
        self._suspended = asyncio.Event()
        keeper.listeners.append(self._take)

    @property
    def is_suspended(self) -> bool:
        return self._suspended.is_set()

    def _take(self, session: SessionState) -> None:
        if session is SessionState.SUSPENDED and not self.is_suspended:
            self.silence = self.keeper.silence()
            self._suspended.set()

    async def until_suspended(self) -> None:
        async with asyncio.timeout(LONG):
            await self._suspended.wait()

    async def keep_asking(self) -> None:
        """One call after another, each given up when the server does not answer it."""
        while not self.is_suspended:
            with suppress(StoreError):
                await self.keeper.barrier()
            await asyncio.sleep(BETWEEN_CALLS_SECONDS)


@asynccontextmanager
async def bench(
    *, asked: float = SESSION_SECONDS, granted: float = SESSION_SECONDS, patience: float = 0.1
) -> AsyncIterator[Bench]:
    fake = FakeServer(granted)
    listening = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()
    keeper = Keeper(ZooKeeperAddress(f"{host}:{port}", ""), asked, patience)
    try:
        keeper._patience = LONG  # to get there; the machine may be slow
        await keeper.start()
        await keeper.barrier()
        keeper._patience = patience
        yield Bench(fake, keeper)
    finally:
        fake.close_links()
        listening.close()
        await keeper.close()


@pytest.mark.slow
@pytest.mark.parametrize("asked", [SESSION_SECONDS, 600.0], ids=["as granted", "longer than granted"])
def test_a_server_that_falls_silent_is_left_though_calls_go_on_and_are_given_up(asked: float) -> None:
    async def run() -> None:
        async with bench(asked=asked) as at, asyncio.TaskGroup() as group:
            at.server.answered = ()
            group.create_task(at.keep_asking())
            await at.until_suspended()
            assert at.silence >= SESSION_SECONDS * 2 / 3

    asyncio.run(run())


@pytest.mark.slow
def test_a_server_that_falls_silent_is_left_though_nothing_is_asked() -> None:
    async def run() -> None:
        async with bench() as at:
            at.server.answered = ()
            await at.until_suspended()

    asyncio.run(run())


@pytest.mark.slow
def test_a_server_that_answers_no_more_than_pings_is_left_by_who_asked_more() -> None:
    async def run() -> None:
        async with bench(patience=LONG) as at, asyncio.TaskGroup() as group:
            at.server.answered = (PING,)
            asking = group.create_task(at.keeper.barrier())
            await at.until_suspended()
            at.server.answered = (PING, MULTI)
            await asking

    asyncio.run(run())


@pytest.mark.slow
def test_a_server_that_answers_pings_is_kept_by_who_asks_nothing() -> None:
    async def run() -> None:
        async with bench(asked=LONGER_SESSION_SECONDS, granted=LONGER_SESSION_SECONDS) as at:
            await at.server.until_pinged(PINGS)
            assert not at.is_suspended

    asyncio.run(run())


def test_the_end_of_a_connection_does_not_count_as_a_word_of_the_server() -> None:
    """A broker counts its session from the last word: counted from later, others would lead while it still does."""

    async def run() -> None:
        async with bench(asked=LONG, granted=LONG, patience=LONG) as at:
            quiet = 0.1
            await asyncio.sleep(quiet)
            at.server.close_links()
            await at.until_suspended()
            assert at.silence >= quiet

    asyncio.run(run())


def test_a_word_of_a_server_counts_from_when_it_came_however_late_the_loop_hears_of_it() -> None:
    """Counted from when the loop had time for it, others would lead while this broker still does."""
    loop = asyncio.new_event_loop()
    seconds = [1.0]
    handler = LoopHandler(loop, 1.0, lambda *_: None, lambda: seconds[0])
    link, server = socket.socketpair()
    with link, server:
        handler._link = link
        server.send(b"still here")
        seconds[0] = 5.0
        handler.select([link], [], [], 1.0)
        seconds[0] = 9.0
        loop.run_until_complete(asyncio.sleep(0))
        assert handler.heard_at == 5.0
    loop.close()
