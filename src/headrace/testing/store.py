"""A store that brokers share, in memory: what ZooKeeper promises, with the faults that ZooKeeper meets.

    ensemble = SimulatedEnsemble(session_timeout=2)
    one, other = ensemble.session(), ensemble.session()   # a broker's each
    ...
    ensemble.cut(one)          # `one` is suspended; 2 s later what is ephemeral of it is gone
    ensemble.heal(one)         # it hears that its session is lost, and gets a new one

Time is the running loop's, so that in a loop of virtual time all of it is virtual. Nothing is random: the same calls
give the same run.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from headrace.cluster.commits import refuse_bad_commit, refuse_bad_key
from headrace.cluster.store import Conflict, Entries, Operation, SessionState, StoreError, Uncertain, Versioned

from .tree import Tree, TreeSnapshot

T = TypeVar("T")
Act = Callable[[], None]
Names = list[str]
NEVER: Final = float("inf")
_OUTSIDE: Final = Context()
"""What is on its way, and what the servers do, belongs to no broker: it happens also when its sender is dead."""


class _Broken(Exception):
    """The connection ended before the answer came."""


@dataclass(slots=True)
class _Parcel:
    act: Act
    is_due: bool = False


class _Pipe:
    """One direction of a connection: what is sent arrives later, in order; a closed one holds it back."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: deque[_Parcel] = deque()
        self._is_open = True

    def send(self, act: Act, seconds: float) -> None:
        """Have `act` done at the other end after that time, and after all that was sent before."""
        parcel = _Parcel(act)
        self._queue.append(parcel)

        def arrive() -> None:
            parcel.is_due = True
            self._let_through()

        later = self._loop.call_later
        later(seconds, arrive, context=_OUTSIDE) if seconds else self._loop.call_soon(arrive, context=_OUTSIDE)

    def set_open(self, is_open: bool) -> None:
        self._is_open = is_open
        self._let_through()

    def clear(self) -> None:
        """Forget what has not arrived."""
        self._queue.clear()

    def _let_through(self) -> None:
        while self._is_open and self._queue and self._queue[0].is_due:
            self._queue.popleft().act()


def _outcome(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error


class _Link:
    """A connection of a session, until it breaks."""

    def __init__(self, loop: asyncio.AbstractEventLoop, latency: float, session: int) -> None:
        self.session = session
        self.is_broken = False
        self._loop = loop
        self._latency = latency
        self._there = _Pipe(loop)
        self._back = _Pipe(loop)
        self._pending: dict[asyncio.Future[Any], None] = {}

    def ask(self, work: Callable[[], T], delay: float = 0.0) -> "asyncio.Future[T]":
        """What `work` gives when done at the server: which it is even if nobody waits any more."""
        answer: asyncio.Future[T] = self._loop.create_future()
        if self.is_broken:
            answer.set_exception(_Broken())
            return answer
        self._pending[answer] = None

        def serve() -> None:
            outcome, failure = _outcome(work)
            self.notify(lambda: self._answer(answer, outcome, failure))

        self._there.send(serve, self._latency / 2 + delay)
        return answer

    def _answer(self, answer: "asyncio.Future[Any]", outcome: object, failure: Exception | None) -> None:
        self._pending.pop(answer, None)
        if answer.done():
            return
        answer.set_result(outcome) if failure is None else answer.set_exception(failure)

    def notify(self, act: Act) -> None:
        """Have the client told something it did not ask."""
        if not self.is_broken:
            self._back.send(act, self._latency / 2)

    def set_open(self, is_open: bool) -> None:
        self._there.set_open(is_open)
        self._back.set_open(is_open)

    def silence(self) -> None:
        """Let nothing come back; what was sent still arrives."""
        self._back.set_open(False)

    def break_(self) -> None:
        """End it: what has not arrived never does."""
        self.is_broken = True
        self._there.clear()
        self._back.clear()
        pending, self._pending = self._pending, {}
        for answer in pending:
            if not answer.done():
                answer.set_exception(_Broken())


class SimulatedStore:
    """A `SharedStore` as one broker has it. Made by `SimulatedEnsemble.session`, which also makes its faults."""

    def __init__(self, ensemble: "SimulatedEnsemble", link: _Link, patience: float) -> None:
        self._ensemble = ensemble
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._link = link
        self._session = SessionState.CONNECTED
        self._session_number = 0
        self.silent_since: float | None = None
        """When its connection was cut, if it is."""
        self._listeners: list[Callable[[SessionState], None]] = []
        self._changed: asyncio.Future[None] = self._loop.create_future()
        self._watches: dict[asyncio.Event, None] = {}
        self._closed = False

    @property
    def session(self) -> SessionState:
        return self._session

    @property
    def session_seconds(self) -> float:
        return self._ensemble.session_seconds

    def silence(self) -> float:
        return 0.0 if self.silent_since is None else self._loop.time() - self.silent_since

    def on_session(self, told: Callable[[SessionState], None]) -> None:
        self._listeners.append(told)

    async def get(self, key: str) -> Versioned | None:
        refuse_bad_key(key)
        return await self._repeatedly(lambda _: self._ensemble.tree.get(key))

    async def list(self, prefix: str) -> Entries:
        return await self._repeatedly(lambda _: self._ensemble.tree.list(prefix))

    async def commit(self, operations: Sequence[Operation]) -> None:
        refuse_bad_commit(operations)
        number = self._session_number
        await self._until_connected()
        if number != self._session_number:
            raise StoreError("the session ended before the commit was sent; nothing was changed")
        try:
            await self._ensemble.ask_to_commit(self, self._link, tuple(operations))
        except _Broken:
            raise Uncertain("the connection broke during a commit: it may have happened or not") from None

    async def watch(self, key: str) -> tuple[Versioned | None, asyncio.Event]:
        refuse_bad_key(key)

        def look(fire: Act) -> Versioned | None:
            self._ensemble.tree.watch(key, fire)
            return self._ensemble.tree.get(key)

        return await self._watching(look)

    async def watch_children(self, parent: str) -> tuple[Names, asyncio.Event]:
        key = parent.rstrip("/")

        def look(fire: Act) -> Names:
            self._ensemble.tree.watch_names(key, fire)
            return [*self._ensemble.tree.names(key)]

        return await self._watching(look)

    async def close(self) -> None:
        """Ends the session: what is ephemeral goes at once."""
        if not self._closed:
            self._closed = True
            self._session = SessionState.LOST
            self._ensemble.forget(self, self._link)
            self._note_change()

    async def _watching(self, look: Callable[[Act], T]) -> tuple[T, asyncio.Event]:
        def work(link: _Link) -> tuple[T, asyncio.Event]:
            event = asyncio.Event()

            def fire() -> None:
                event.set()
                self._watches.pop(event, None)

            self._watches[event] = None
            return look(lambda: link.notify(fire)), event

        return await self._repeatedly(work)

    async def _repeatedly(self, work: Callable[[_Link], T]) -> T:
        try:
            async with asyncio.timeout(self._patience):
                while True:
                    await self._until_connected()
                    try:
                        return await self._link.ask(partial(work, self._link))
                    except _Broken:
                        pass
        except TimeoutError:
            raise StoreError("no server of the simulated store answers") from None

    async def _until_connected(self) -> None:
        try:
            async with asyncio.timeout(self._patience):
                while True:
                    if self._closed:
                        raise StoreError("the simulated store is closed")
                    if self._session is SessionState.CONNECTED and not self._link.is_broken:
                        return
                    await asyncio.shield(self._changed)
        except TimeoutError:
            raise StoreError("no server of the simulated store answers") from None

    @property
    def link(self) -> _Link:
        """Its connection, for the ensemble to break."""
        return self._link

    def take(self, session: SessionState, link: _Link | None = None) -> None:
        """The ensemble tells what became of the session."""
        if self._closed or session is self._session:
            return
        self._session = session
        if link is not None:
            self._link = link
        if session is SessionState.LOST:
            self._session_number += 1
        self._note_change()
        for told in self._listeners:
            told(session)

    def _note_change(self) -> None:
        changed, self._changed = self._changed, self._loop.create_future()
        changed.set_result(None)
        watches, self._watches = self._watches, {}
        for event in watches:
            event.set()


@dataclass(slots=True)
class _Line:
    """What the ensemble knows of a broker."""

    session: int
    is_cut: bool = False
    is_dead: bool = False
    expiry: asyncio.TimerHandle | None = None
    commit_delay: float = 0.0
    lost_answers: deque[bool] = field(default_factory=deque)
    """For each of the next commits: its answer gets lost after it was done (True), or not done."""
    late_commits: deque[float] = field(default_factory=deque)
    """For each of the next commits: its answer gets lost, and it is done that many seconds later."""


class SimulatedEnsemble:
    """The servers, as one; and everything that can go wrong between them and a broker."""

    def __init__(
        self, *, session_timeout: float = 2.0, latency: float = 0.0, reconnect: float = 0.05, patience: float = 15.0
    ) -> None:
        """`latency` is a request's way there and back, `reconnect` the time without a connection after one broke."""
        self.tree = Tree()
        self.session_seconds = session_timeout
        self._latency = latency
        self._reconnect_seconds = reconnect
        self._patience = patience
        self._last_session = 0
        self._alive: set[int] = set()
        self._lines: dict[SimulatedStore, _Line] = {}
        self._has_quorum = True

    def session(self) -> SimulatedStore:
        """A store for one more broker. Within a running loop."""
        link = self._connect(self._begin_session())
        store = SimulatedStore(self, link, self._patience)
        self._lines[store] = _Line(link.session)
        return store

    def cut(self, store: SimulatedStore, *, unnoticed: float = 0.0) -> None:
        """No more reaches the servers, nor comes back. The session ends there after its timeout.

        The broker hears that it is suspended after `unnoticed` seconds; with `NEVER` it hears nothing before `heal`,
        like one that was stopped for that time. What is on the way when it notices has not happened.
        """
        line = self._lines[store]
        line.is_cut = True
        store.silent_since = asyncio.get_running_loop().time()
        store.link.set_open(False)
        self._start_expiry(line)
        if unnoticed == 0:
            self._break(store)
        elif unnoticed != NEVER:
            self._later(unnoticed, self._notice, store)

    def heal(self, store: SimulatedStore) -> None:
        """The broker reaches the servers again: in its session, or after hearing that it is lost in a new one.

        One that has closed its session meanwhile does not want to.
        """
        line = self._lines.get(store)
        if line is None:
            return
        line.is_cut = False
        store.silent_since = None
        self._stop_expiry(line)
        if line.session in self._alive and not store.link.is_broken:
            store.link.set_open(True)
        else:
            self.drop(store)

    def kill(self, store: SimulatedStore) -> None:
        """The broker's process is dead: it hears nothing more, and its session ends after the timeout.

        What it had sent before still happens.
        """
        line = self._lines[store]
        line.is_dead = True
        store.link.silence()
        self._start_expiry(line)

    def expire(self, store: SimulatedStore) -> None:
        """The servers end the session now. The broker is told suspended, lost, connected; a cut one when healed."""
        line = self._lines[store]
        self._end_session(line)
        if not line.is_cut:
            self.drop(store)

    def drop(self, store: SimulatedStore) -> None:
        """The connection breaks, as when a server dies, and the broker finds another server."""
        self._break(store)
        self._later(self._reconnect_seconds, self._reconnect, store)

    def delay_commits(self, store: SimulatedStore, seconds: float) -> None:
        """Commits asked from now on happen that much later; what is asked after them waits, too.

        Nothing comes from a store that is closed, as that of a broker which is about to be down.
        """
        line = self._lines.get(store)
        if line is not None:
            line.commit_delay = seconds

    def lose_answer(self, store: SimulatedStore, *, done: bool) -> None:
        """The connection breaks under the next commit (each call arms one more), after it was done or before."""
        self._lines[store].lost_answers.append(done)

    def commit_late(self, store: SimulatedStore, seconds: float) -> None:
        """The connection breaks under the next commit (each call arms one more), which a server had passed on: it is
        done after that time, if the session has not ended by then.
        """
        self._lines[store].late_commits.append(seconds)

    def lose_quorum(self) -> None:
        """A majority of the servers is gone: everyone is suspended, and no session ends while that lasts."""
        self._has_quorum = False
        for store, line in self._lines.items():
            self._stop_expiry(line)
            if not line.is_dead:
                self._break(store)

    def regain_quorum(self) -> None:
        """The servers are back. Sessions have their whole timeout again."""
        self._has_quorum = True
        for store, line in self._lines.items():
            if line.is_cut or line.is_dead:
                self._start_expiry(line)
            else:
                self.drop(store)

    def set_back(self, snapshot: TreeSnapshot, *, renumber: bool = False) -> None:
        """The servers have lost their data and are restored from a backup: every session is over."""
        self.tree.set_back(snapshot, renumber=renumber)
        for store in list(self._lines):
            self.expire(store)

    def ask_to_commit(
        self, store: SimulatedStore, link: _Link, operations: Sequence[Operation]
    ) -> "asyncio.Future[None]":
        """For the store alone: a commit sent over its link."""
        line = self._lines[store]

        def work() -> None:
            if line.late_commits:
                self._later(line.late_commits.popleft(), self._commit_passed_on, operations, link.session)
                self.drop(store)
                return
            lost = line.lost_answers.popleft() if line.lost_answers else None
            try:
                if lost is not False:
                    self.tree.commit(operations, link.session)
            finally:
                if lost is not None:
                    self.drop(store)

        return link.ask(work, line.commit_delay)

    def _commit_passed_on(self, operations: Sequence[Operation], session: int) -> None:
        if session in self._alive and self._has_quorum:
            with suppress(Conflict):  # nobody waits for the answer
                self.tree.commit(operations, session)

    def forget(self, store: SimulatedStore, link: _Link) -> None:
        """For the store alone: it was closed."""
        line = self._lines.pop(store)
        self._end_session(line)
        link.break_()

    def _begin_session(self) -> int:
        self._last_session += 1
        self._alive.add(self._last_session)
        return self._last_session

    def _end_session(self, line: _Line) -> None:
        self._stop_expiry(line)
        if line.session in self._alive:
            self._alive.discard(line.session)
            self.tree.end_session(line.session)

    def _connect(self, session: int) -> _Link:
        return _Link(asyncio.get_running_loop(), self._latency, session)

    def _start_expiry(self, line: _Line) -> None:
        self._stop_expiry(line)
        if self._has_quorum:
            line.expiry = self._later(self.session_seconds, self._end_session, line)

    def _stop_expiry(self, line: _Line) -> None:
        if line.expiry is not None:
            line.expiry.cancel()
            line.expiry = None

    def _notice(self, store: SimulatedStore) -> None:
        line = self._lines.get(store)
        if line is not None and line.is_cut:
            self._break(store)

    def _break(self, store: SimulatedStore) -> None:
        if not store.link.is_broken:
            store.link.break_()
            self._later(0, store.take, SessionState.SUSPENDED)

    def _later(self, seconds: float, act: Callable[..., None], *arguments: Any) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, act, *arguments, context=_OUTSIDE)

    def _reconnect(self, store: SimulatedStore) -> None:
        line = self._lines.get(store)
        if line is None or line.is_cut or line.is_dead or not self._has_quorum or not store.link.is_broken:
            return
        if line.session not in self._alive:
            store.take(SessionState.LOST)
            line.session = self._begin_session()
        store.take(SessionState.CONNECTED, self._connect(line.session))
