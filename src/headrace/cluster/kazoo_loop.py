"""kazoo on an event loop: the one place where its thread and ours meet.

kazoo runs one thread of its own per client. All that thread learns (answers, watches that fired, changes of the
session) is put in one queue in the order it happened, and told on the loop in that order; nothing else crosses.
"""

import asyncio
import select
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler

_SHUT_BOTH: Final = 2
_NO_MORE: Final = getattr(select, "POLLRDHUP", 0)
"""The other side has closed: not every system says so."""
_ENDED: Final = _NO_MORE | select.POLLHUP | select.POLLERR

Answer = tuple[Any, int]
"""What a server said, and the number of the connection it said it over."""

Answered = Callable[["asyncio.Future[Answer]", object, BaseException | None], None]


class KazooResult:
    """Where kazoo's thread puts an answer."""

    def __init__(self, handler: "LoopHandler") -> None:
        self._handler = handler
        self.answer: asyncio.Future[Answer] = handler.loop.create_future()

    def set(self, value: object = None) -> None:
        self._handler.post(self._handler.answered, self.answer, value, None)

    def set_exception(self, error: BaseException) -> None:
        self._handler.post(self._handler.answered, self.answer, None, error)


def _is_speech(event: int) -> bool:
    """Whether a server said something: the end of a connection, be it broken by us, can be read but tells nothing."""
    return event & _ENDED == 0


class LoopHandler(SequentialThreadingHandler):  # type: ignore[misc] # kazoo has no types
    """The bridge from kazoo's thread to the loop: the one place where the two meet."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connect_seconds: float,
        answered: Answered,
        now: Callable[[], float],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__()
        self._tls = tls
        self.failure = ""
        """Why the latest connection could not be made; empty where it could."""
        self.loop = loop
        self._now = now
        self.answered = answered
        self._connect_seconds = connect_seconds
        self._news: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_woken = False
        self._link: Any = None
        self.heard_at = now()
        """When a server last said something, noted by kazoo's thread: the loop may be late to hear of it, and others
        count this broker's session from when it came."""

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def async_result(self) -> KazooResult:
        return KazooResult(self)

    def dispatch_callback(self, callback: Any) -> None:
        self.post(callback.func, *callback.args)

    def post(self, call: Callable[..., object], *arguments: object) -> None:
        """Have a call made on the loop, after those posted before it. From any thread."""
        self._news.append((call, arguments))
        if not self._is_woken:
            self._is_woken = True
            try:
                self.loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop is closed: nobody listens any more
                pass

    @property
    def has_news(self) -> bool:
        """Whether calls posted to the loop are pending."""
        return bool(self._news)

    def _deliver(self) -> None:
        self._is_woken = False  # before the queue is looked at: what comes after that wakes again
        while self._news:
            call, arguments = self._news.popleft()
            try:
                call(*arguments)
            except Exception as error:
                self.loop.call_exception_handler({"message": "told of ZooKeeper's news", "exception": error})

    def select(self, readers: list[Any], writers: list[Any], _: list[Any], timeout: float | None = None) -> Any:
        """As kazoo's, which makes and closes an epoll for each byte it waits for, at twice the time per request; and
        which does not see what TLS has decrypted already.
        """
        if self._link in readers and self._tls is not None and self._link.pending():
            return [self._link], [], []
        poll = select.poll()
        for one in readers:
            poll.register(one, select.POLLIN | _NO_MORE)
        for one in writers:
            poll.register(one, select.POLLOUT)
        ready = dict(poll.poll(None if timeout is None else timeout * 1000))
        if self._link in readers and _is_speech(ready.get(self._link.fileno(), _ENDED)):
            self.heard_at = self._now()
        return [r for r in readers if r.fileno() in ready], [w for w in writers if w.fileno() in ready], []

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        """As kazoo's, but a host that does not answer leaves time to try the others before the session ends."""
        try:
            link = super().create_connection(*args, **{**kwargs, "timeout": self._connect_seconds})
            self._link = link if self._tls is None else self._encrypted(self._tls, link, kwargs["hostname"])
        except OSError as error:
            self.failure = str(error)
            raise
        self.failure = ""
        return self._link

    def _encrypted(self, tls: ssl.SSLContext, link: Any, host: str) -> ssl.SSLSocket:
        try:
            link.settimeout(self._connect_seconds)
            return tls.wrap_socket(link, server_hostname=host)
        except BaseException:
            link.close()
            raise

    def drop(self) -> None:
        """Break the connection; kazoo makes another."""
        try:
            if isinstance(self._link, ssl.SSLSocket):
                super(ssl.SSLSocket, self._link).shutdown(_SHUT_BOTH)  # its own has kazoo's thread read on in the clear
            else:
                self._link.shutdown(_SHUT_BOTH)
        except OSError:
            pass


class LoopClient(KazooClient):  # type: ignore[misc]
    """kazoo's client with requests given as they go over the wire."""

    def on_grant(self, notify: Callable[[float], None]) -> None:
        """`told` is called on the loop for each new connection, with the seconds that its session lasts.

        The servers may grant less than was asked for, and kazoo keeps what they granted to itself.
        """
        connect = self._connection._connect

        def connect_and_tell(*place: Any) -> Any:
            read_ms, connect_ms = connect(*place)
            self.handler.post(notify, read_ms * 3 / 2000)  # kazoo reads for two thirds of a session
            return read_ms, connect_ms

        self._connection._connect = connect_and_tell

    def send(self, request: object) -> KazooResult:
        result: KazooResult = self.handler.async_result()
        self._call(request, result)
        return result

    def send_transaction(self, parts: Sequence[object]) -> KazooResult:
        transaction = self.transaction()
        transaction.operations = list(parts)
        result: KazooResult = transaction.commit_async()
        return result
