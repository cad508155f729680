"""A session with ZooKeeper's servers: kept up, told of, and asked over.

Questions are answered in the order they were put. What may be repeated (`repeatedly`) is, until it is answered over a
connection that a *barrier* has passed: an empty write, which the servers order after all earlier ones. Without it a
connection to a server that lags, or to a deposed leader, would show what was true some time ago. (ZooKeeper's own
`sync` asks the leader alone, which may not know yet that it is deposed.)
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import structlog
from kazoo.client import KazooState, KeeperState
from kazoo.exceptions import (
    ConnectionLoss,
    KazooException,
    OperationTimeoutError,
    RequestTimeoutError,
    SessionExpiredError,
    SessionMovedError,
    ThrottledOpError,
)
from kazoo.protocol.serialization import GetChildren, GetData
from kazoo.retry import KazooRetry

from headrace.config.zookeeper import AUTH
from headrace.net.clock import Clock, SystemClock

from .kazoo_loop import Answer, KazooResult, LoopClient, LoopHandler
from .store import ANY_VERSION, Check, SessionState, StoreError
from .znodes import MultiRead, Step, ZooKeeperAddress, explained, requests
from .zookeeper_access import OPEN, ZooKeeperAccess

BROKEN: Final = (
    ConnectionLoss,
    OperationTimeoutError,
    RequestTimeoutError,
    SessionExpiredError,
    SessionMovedError,
    ThrottledOpError,
)
"""What fails with one of these may be asked again, if it may be asked twice at all."""

_BETWEEN_TRIES_SECONDS: Final = 0.02
_BEFORE_REVIVAL_SECONDS: Final = 0.5
_SILENT_SHARE: Final = 2 / 3
"""Of a session: how long a server may be silent, as in ZooKeeper's own clients."""
_SECOND_LOOK_SHARE: Final = 1 / 12
_SESSIONS: Final = {
    KazooState.CONNECTED: SessionState.CONNECTED,
    KazooState.SUSPENDED: SessionState.SUSPENDED,
    KazooState.LOST: SessionState.LOST,
}

log = structlog.get_logger(__name__)
_KAZOOS_LOG: Final = logging.getLogger("headrace.kazoo")
_KAZOOS_LOG.setLevel(logging.ERROR)  # what it says below that, we say in our own words when the session changes

T = TypeVar("T")
Fired = Callable[[object], None]


class Keeper:
    """One session at a time, over one connection at a time; both are numbered."""

    def __init__(
        self,
        address: ZooKeeperAddress,
        session_timeout: float,
        patience: float,
        clock: Clock | None = None,
        access: ZooKeeperAccess = OPEN,
    ) -> None:
        self._acl = access.acl
        hosts = address.hosts.count(",") + 1
        self._address = address
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._now = (clock or SystemClock()).monotonic
        connect_seconds = max(session_timeout / (2 * hosts), 0.25)
        self._handler = LoopHandler(self._loop, connect_seconds, self._take_answer, self._now, access.tls)
        self._client = LoopClient(
            address.hosts,
            timeout=session_timeout,
            handler=self._handler,
            logger=_KAZOOS_LOG,
            auth_data=access.auth_data,
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=min(1.0, session_timeout / 4)),
        )
        self._client.add_listener(lambda state: self._handler.post(self._take_session, _SESSIONS[state]))
        self._client.on_grant(self._take_grant)
        self.session = SessionState.LOST
        self.session_number = 0
        self.listeners: list[Callable[[SessionState], None]] = []
        self._changed: asyncio.Future[None] = self._loop.create_future()
        self._connection = 0
        self._certain_connection = 0
        """The connection that a barrier has passed."""
        self._barrier_turn = asyncio.Lock()
        self._closed = False
        self._asked_seconds = session_timeout
        self.session_seconds = session_timeout
        """As the servers have granted it."""
        self._in_flight = 0
        self._answered_at = 0.0
        """When the servers last answered; or, where nothing was left to answer, were asked again."""
        self._silence_timer: asyncio.TimerHandle | None = None
        self._absence_timer: asyncio.TimerHandle | None = None
        """Runs while there is no connection."""

    async def start(self) -> None:
        """Returns when there is a session."""
        self._client.start_async()
        await self.until_connected()

    async def close(self) -> None:
        """Ends the session. What was asked before is answered first, if there is a connection."""
        if self._closed:
            return
        self._closed = True
        self._note_change()
        await self._loop.run_in_executor(None, self._stop_client)
        self.session = SessionState.LOST
        self._stop_listening()
        self._await_return(False)

    def _stop_client(self) -> None:
        self._client.stop()
        self._client.close()

    def refuse_when_closed(self) -> None:
        if self._closed:
            raise StoreError(f"the metadata store {self._address.hosts} is closed")

    async def until_connected(self) -> None:
        """Returns when the session is connected."""

        async def wait() -> None:
            while self.session is not SessionState.CONNECTED:
                await asyncio.shield(self._changed)
                self.refuse_when_closed()

        self.refuse_when_closed()
        if self.session is not SessionState.CONNECTED:
            await self.patiently(wait())

    async def patiently(self, work: Awaitable[T]) -> T:
        """The outcome of work; an error where the servers keep it waiting for too long."""
        try:
            async with asyncio.timeout(self._patience):
                return await work
        except TimeoutError:
            hosts = self._address.hosts
            if self._client.client_state == KeeperState.AUTH_FAILED:
                raise StoreError(f"ZooKeeper at {hosts} does not take the credentials of {AUTH}") from None
            reason = f" ({self._handler.failure})" if self._handler.failure else ""
            message = f"no ZooKeeper server answers at {hosts}{reason}; check that a majority of them runs"
            raise StoreError(message) from None

    async def transact(self, steps: Sequence[Step], root: str) -> Answer:
        """Sends a transaction once; the results of its steps."""
        return await self._ask(lambda: self._client.send_transaction(requests(steps, root, self._acl)))

    async def read(self, requests: Sequence[GetData | GetChildren]) -> Answer:
        """For each wanted a `Node`, names, None or an error."""
        return await self._ask(lambda: self._client.send(MultiRead(requests)))

    async def acl_of(self, path: str) -> Answer:
        """The ACL and stat of a znode."""
        return await self._ask(lambda: self._client.get_acls_async(path))

    async def set_acl(self, path: str, acl: Sequence[Any]) -> Answer:
        """Give a znode an ACL."""
        return await self._ask(lambda: self._client.set_acls_async(path, list(acl)))

    async def watch_data(self, path: str, fired: Fired) -> Answer:
        """The data and stat of a znode; `fired` is called once on the loop when it changes or the session does."""
        return await self._ask(lambda: self._client.get_async(path, watch=fired))

    async def watch_names(self, path: str, fired: Fired) -> Answer:
        """The names of a znode's children, likewise."""
        return await self._ask(lambda: self._client.get_children_async(path, watch=fired))

    async def watch_existence(self, path: str, fired: Fired) -> Answer:
        """The stat of a znode or None, likewise."""
        return await self._ask(lambda: self._client.exists_async(path, watch=fired))

    async def repeatedly(self, ask: Callable[[], Awaitable[Answer]]) -> Any:
        """The answer to what may be asked twice, over a connection that a barrier has passed."""

        async def work() -> Any:
            while True:
                await self.until_connected()
                try:
                    if self._certain_connection != self._connection:
                        await self._pass_barrier()
                    answer, connection = await ask()
                except BROKEN:
                    await asyncio.sleep(_BETWEEN_TRIES_SECONDS)
                    continue
                except KazooException as error:
                    raise StoreError(f"ZooKeeper refuses: {explained(error)}") from error
                if connection == self._certain_connection:
                    return answer

        return await self.patiently(work())

    async def barrier(self) -> None:
        """Returns when whatever was committed before the call can be read."""
        await self.repeatedly(self._empty_write)

    async def _pass_barrier(self) -> None:
        async with self._barrier_turn:
            if self._certain_connection != self._connection:
                _, self._certain_connection = await self._empty_write()

    async def _empty_write(self) -> Answer:
        """Servers agree on a write that fails, too: so nothing need be there for this one."""
        return await self.transact([Check("", ANY_VERSION)], self._address.root or "/")

    async def _ask(self, send: Callable[[], KazooResult]) -> Answer:
        """The answer to one request; kazoo fails it when the connection breaks."""
        self.refuse_when_closed()
        if self._in_flight == 0:
            self._answered_at = self._loop.time()
        self._in_flight += 1
        try:
            return await send().answer
        finally:
            self._in_flight -= 1

    def silence(self) -> float:
        """The seconds since a server said anything, be it that it is still there."""
        return self._now() - self._handler.heard_at

    # A server that fell silent is left while there is time to keep the session with another one. kazoo notices it only
    # where no request is sent meanwhile, so it is done here; pings see to it that something is heard in a third of a
    # session. A server that answers pings but no requests is left, too.

    def _listen(self, seconds: float, *, is_suspicious: bool = False) -> None:
        self._stop_listening()
        self._silence_timer = self._loop.call_later(seconds, self._check_silence, is_suspicious)

    def _stop_listening(self) -> None:
        if self._silence_timer is not None:
            self._silence_timer.cancel()
            self._silence_timer = None

    def _check_silence(self, is_suspicious: bool) -> None:
        """Leaves a server that was found silent twice: after the first time, a process that stood still may hear it."""
        limit = self.session_seconds * _SILENT_SHARE
        silent = self._loop.time() - self._answered_at if self._in_flight else 0.0
        left = limit - max(silent, self.silence())
        if self._handler.has_news:  # the loop was slow, not the server
            self._listen(0)
        elif left > 0:
            self._listen(left)
        elif not is_suspicious:
            self._listen(self.session_seconds * _SECOND_LOOK_SHARE, is_suspicious=True)
        else:
            log.warning("a ZooKeeper server fell silent; trying another", seconds=round(limit - left, 3))
            self._handler.drop()
            self._listen(limit)

    # What follows is told by the handler, on the loop, in the order it happened: so the number of the connection is
    # that of the one an answer came over.

    def _take_answer(self, answer: "asyncio.Future[Answer]", value: object, error: BaseException | None) -> None:
        self._answered_at = self._loop.time()
        if answer.done():
            return
        if error is None:
            answer.set_result((value, self._connection))
        else:
            answer.set_exception(error)

    def _take_session(self, session: SessionState) -> None:
        if self._closed:
            return
        self.session = session
        log.info("the session in ZooKeeper changed", session=session.value, servers=self._address.hosts)
        self._await_return(session is not SessionState.CONNECTED)
        if session is SessionState.CONNECTED:
            self._connection += 1
        else:
            self._stop_listening()
        if session is SessionState.LOST:
            self.session_number += 1
            if self._client.client_state == KeeperState.CLOSED:  # not by us: a defect has ended kazoo's thread
                self._loop.call_later(_BEFORE_REVIVAL_SECONDS, self._revive)
        self._note_change()
        for told in self.listeners:
            try:
                told(session)
            except Exception as error:
                context = {"message": f"a listener failed when told {session}", "exception": error}
                self._loop.call_exception_handler(context)

    def _await_return(self, is_gone: bool) -> None:
        if self._absence_timer is not None:
            self._absence_timer.cancel()
        self._absence_timer = self._loop.call_later(self.session_seconds, self._forget_zxid) if is_gone else None

    def _forget_zxid(self) -> None:
        """Let servers that were set back take this client, which they refuse while it has seen more than they have.

        The session is over by now; they will say so. What is read afterwards is as new as a barrier makes it.
        """
        self._client.last_zxid = 0
        self._await_return(self.session is not SessionState.CONNECTED)

    def _take_grant(self, seconds: float) -> None:
        if self._closed:
            return
        if seconds < min(self._asked_seconds, self.session_seconds):
            log.warning("ZooKeeper grants shorter sessions than asked for", asked=self._asked_seconds, granted=seconds)
        self.session_seconds = seconds
        self._answered_at = self._loop.time()
        self._listen(seconds * _SILENT_SHARE)

    def _revive(self) -> None:
        if not self._closed and self._client.client_state == KeeperState.CLOSED:
            self._client.start_async()

    def _note_change(self) -> None:
        changed, self._changed = self._changed, self._loop.create_future()
        changed.set_result(None)
