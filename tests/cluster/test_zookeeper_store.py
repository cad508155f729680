"""The store over real ZooKeeper servers that die, fall silent, and end sessions."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from shutil import rmtree

import pytest

from headrace.cli.zookeeper import Ensemble, ZooKeeperServer
from headrace.cluster.kazoo_loop import LoopClient
from headrace.cluster.store import Create, Put, SessionState, SharedStore, StoreError, Uncertain
from headrace.cluster.zookeeper import ZooKeeperStore
from tests.support.zookeeper import Service, client_of

pytestmark = pytest.mark.slow

LONG = 120.0
"""A bound that nothing reaches unless it hangs."""
POLL_SECONDS = 0.05


class Told(list[SessionState]):
    """What a store tells of its session."""

    def __init__(self, store: SharedStore) -> None:
        super().__init__()
        self._news = asyncio.Event()
        store.on_session(self._take)

    def _take(self, session: SessionState) -> None:
        self.append(session)
        self._news.set()

    async def until(self, *expected: SessionState) -> None:
        """Returns when these, and no more, have been told."""
        await self._until(lambda: self == [*expected])

    async def until_last(self, session: SessionState) -> None:
        """Returns when this is the last that was told."""
        await self._until(lambda: self[-1:] == [session])

    async def _until(self, is_told: Callable[[], bool]) -> None:
        async with asyncio.timeout(LONG):
            while not is_told():
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def opened(url: str, session_timeout: float = 30.0) -> AsyncIterator[ZooKeeperStore]:
    store = await ZooKeeperStore.open(url, session_timeout=session_timeout)
    try:
        yield store
    finally:
        await store.close()


def server_of(store: ZooKeeperStore, ensemble: Ensemble) -> ZooKeeperServer:
    """The server a store is connected to."""
    port = client_of(store)._connection._socket.getpeername()[1]
    return next(server for server in ensemble.servers if server.port == port)


def wait_until_none_serves(ensemble: Ensemble) -> None:
    """Returns when the servers left have noticed that they are no majority.

    For a moment after the others died they still take sessions over, and the store is connected once more.
    """
    deadline = time.monotonic() + LONG
    while any(server.mode() for server in ensemble.servers):
        assert time.monotonic() < deadline, "a server without a majority goes on serving"
        time.sleep(POLL_SECONDS)


class Ledger:
    """Numbered entries and their count, written in one commit each: any that is lost or doubled shows."""

    def __init__(self, store: SharedStore) -> None:
        self._store = store
        self.written: list[int] = []
        self.uncertain = 0
        self._grown = asyncio.Event()

    async def begin(self) -> None:
        await self._store.commit([Create("/count", b"0")])

    async def write(self, until: asyncio.Event) -> None:
        while not until.is_set():
            number = len(self.written)
            try:
                await self._store.commit(
                    [Put("/count", b"%d" % (number + 1), number), Create(f"/entry/{number:06}", b"")]
                )
            except Uncertain:
                self.uncertain += 1
                found = await self._store.get("/count")
                assert found is not None
                assert found.version in (number, number + 1)
                if found.version == number:
                    continue
            self.written.append(number)
            self._grown.set()

    async def grows(self, by: int) -> None:
        target = len(self.written) + by
        async with asyncio.timeout(LONG):
            while len(self.written) < target:
                self._grown.clear()
                await self._grown.wait()

    async def check(self, store: SharedStore) -> None:
        assert [key for key, _ in await store.list("/entry/")] == [f"/entry/{n:06}" for n in self.written]
        found = await store.get("/count")
        assert found is not None
        assert (int(found.value), found.version) == (len(self.written), len(self.written))


def during_writes(
    ensemble: Ensemble, path: str, trouble: Callable[[ZooKeeperStore, Ledger], Awaitable[None]], session: float = 30.0
) -> None:
    """Makes trouble while a session writes. The session is kept, and no entry is lost or doubled."""

    async def run() -> None:
        async with opened(ensemble.url(path), session) as store, opened(ensemble.url(path)) as other:
            told = Told(store)
            await store.commit([Create("/me", b"", ephemeral=True)])
            mine = await store.get("/me")
            ledger = Ledger(store)
            await ledger.begin()
            enough = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                group.create_task(ledger.write(enough))
                await ledger.grows(20)
                await trouble(store, ledger)
                enough.set()
            assert SessionState.LOST not in told
            assert await other.get("/me") == mine
            await ledger.check(other)

    asyncio.run(run())


def test_no_commit_is_lost_or_doubled_while_leaders_are_killed(ensemble: Ensemble) -> None:
    async def trouble(_store: ZooKeeperStore, ledger: Ledger) -> None:
        for _ in range(3):
            leader = await asyncio.to_thread(ensemble.leader)
            leader.kill()
            await ledger.grows(50)
            leader.launch()
            await asyncio.to_thread(leader.wait_until_serving)
            await ledger.grows(10)

    during_writes(ensemble, "/leaders", trouble)


def test_no_commit_is_lost_or_doubled_while_the_server_in_use_is_killed(ensemble: Ensemble) -> None:
    async def trouble(store: ZooKeeperStore, ledger: Ledger) -> None:
        for _ in range(4):
            server = server_of(store, ensemble)
            server.kill()
            await ledger.grows(50)
            server.launch()
            await asyncio.to_thread(server.wait_until_serving)

    during_writes(ensemble, "/servers", trouble)


def test_a_server_that_falls_silent_is_left_in_time_to_keep_the_session(ensemble: Ensemble) -> None:
    async def trouble(store: ZooKeeperStore, ledger: Ledger) -> None:
        server = server_of(store, ensemble)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            reads = [asyncio.create_task(store.get("/me")) for _ in range(5)]
            await ledger.grows(50)
            await asyncio.gather(*reads)
            assert server_of(store, ensemble) is not server
        finally:
            os.kill(server.pid, signal.SIGCONT)

    # Silence is noticed after two thirds of a session; the last third is for the machine to find another server.
    during_writes(ensemble, "/silent", trouble, session=18.0)


def test_a_list_shows_all_that_was_acknowledged_before_it(ensemble: Ensemble) -> None:
    """Without its barrier it does not: one in some hundred lists then lags behind on a follower."""

    async def run() -> None:
        acknowledged = 0
        async with AsyncExitStack() as stack:
            urls = [f"zookeeper://{server.address}/lists" for server in ensemble.servers]
            writer, *readers = [await stack.enter_async_context(opened(url)) for url in (urls[0], *urls)]
            await writer.commit([Create("/count", b"0")])

            async def write() -> None:
                nonlocal acknowledged
                for number in range(300):
                    await writer.commit([Put("/count", b"%d" % (number + 1), number)])
                    acknowledged = number + 1

            async def read(store: SharedStore) -> None:
                while acknowledged < 300:
                    least = acknowledged
                    ((_, found),) = await store.list("/count")
                    assert int(found.value) >= least

            await asyncio.gather(write(), *map(read, readers))

    asyncio.run(run())


@pytest.mark.long  # how soon the last server drops its clients is its own affair
def test_without_a_majority_calls_fail_in_words_and_later_ones_succeed(ensemble: Ensemble) -> None:
    async def run() -> None:
        store = await ZooKeeperStore.open(ensemble.url("/minority"), session_timeout=30, patience=1.5)
        try:
            await store.commit([Create("/a", b"")])
            told = Told(store)
            gone = ensemble.servers[:2]
            for server in gone:
                server.kill()
            await asyncio.to_thread(wait_until_none_serves, ensemble)
            await told.until_last(SessionState.SUSPENDED)
            with pytest.raises(StoreError, match="check that a majority of them runs"):
                await store.get("/a")
            with pytest.raises(StoreError, match="check that a majority of them runs"):
                await store.commit([Put("/a", b"", 0)])
            for server in gone:
                server.launch()
            await told.until_last(SessionState.CONNECTED)
            assert SessionState.LOST not in told
            await store.commit([Put("/a", b"", 0)])
        finally:
            await store.close()

    asyncio.run(run())


def test_the_first_request_of_each_connection_is_a_barrier(zookeeper: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers show what was true some time ago unless they are made to catch up first."""
    sent: list[str] = []

    def noting(name: str) -> Callable[..., object]:
        original = getattr(LoopClient, name)

        def noted(self: LoopClient, request: object) -> object:
            sent.append("check" if "CheckVersion" in repr(request) else name)
            return original(self, request)

        return noted

    async def run() -> None:
        async with opened(zookeeper.new_url()) as store:
            await store.commit([Create("/a", b"")])
            told = Told(store)
            for name in ("send", "send_transaction"):
                monkeypatch.setattr(LoopClient, name, noting(name))
            await asyncio.gather(*(store.get("/a") for _ in range(3)))
            assert sent == ["send"] * 3
            sent.clear()
            store._keeper._handler.drop()
            await told.until(SessionState.SUSPENDED, SessionState.CONNECTED)
            await asyncio.gather(*(store.get("/a") for _ in range(3)), store.watch("/a"))
            assert sent == ["check", "send", "send", "send"]
            sent.clear()
            await store.list("/a")
            assert sent[0] == "check"

    asyncio.run(run())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_of_kazoo_that_ends_by_a_defect_is_replaced(
    zookeeper: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with opened(zookeeper.new_url()) as store:
            told = Told(store)

            def fail(*_: object) -> None:
                monkeypatch.undo()
                raise RuntimeError("a defect")

            monkeypatch.setattr(client_of(store)._connection, "_read_socket", fail)
            with pytest.raises(Uncertain):
                await store.commit([Create("/a", b"")])
            await told.until(SessionState.LOST, SessionState.CONNECTED)
            await store.get("/a")

    asyncio.run(run())


def test_a_session_ends_when_its_broker_dies(zookeeper: Service) -> None:
    url = zookeeper.new_url()

    async def run() -> None:
        async with opened(url) as watching:
            dying = await ZooKeeperStore.open(url, session_timeout=5.0)
            await dying.commit([Create("/me", b"", ephemeral=True)])
            _, event = await watching.watch("/me")
            _die(dying)
            async with asyncio.timeout(LONG):
                await event.wait()
            assert await watching.get("/me") is None
            await dying.close()

    asyncio.run(run())


def _die(store: ZooKeeperStore) -> None:
    """Ends kazoo's thread without a goodbye, as a kill of the process would."""
    client = client_of(store)
    client._stopped.set()
    store._keeper._handler.drop()


@pytest.mark.parametrize("hosts", ["127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2"])
def test_nobody_there_is_said_in_words(hosts: str) -> None:
    async def run() -> None:
        with pytest.raises(StoreError, match=f"no ZooKeeper server answers at {hosts}"):
            await ZooKeeperStore.open(f"zookeeper://{hosts}/path", patience=0.5)

    asyncio.run(run())


def test_a_server_that_was_set_back_is_used_again_in_a_new_session(tmp_path: Path) -> None:
    """It refuses clients that have seen more than it has; to them it would be out of reach for good."""

    async def run() -> None:
        server = ZooKeeperServer(tmp_path)
        await asyncio.to_thread(server.start)
        try:
            async with opened(f"zookeeper://{server.address}", session_timeout=1.0) as store:
                for number in range(20):
                    await store.commit([Create(f"/{number}", b"")])
                told = Told(store)
                await asyncio.to_thread(server.stop)
                rmtree(tmp_path / "state")
                await asyncio.to_thread(server.start)
                await told.until_last(SessionState.CONNECTED)
                assert SessionState.LOST in told
                assert await store.get("/0") is None
                await store.commit([Create("/0", b"again")])
        finally:
            server.kill()

    asyncio.run(run())
