"""The network of this machine: plain sockets on the event loop's readiness callbacks.

A link receives small answers through one small buffer. Of a large one it takes the memory as soon as its length is
known, and lets the system write into that: records that a follower fetches are not copied on their way.
"""

import asyncio
import mmap
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from itertools import islice
from struct import Struct
from typing import Final

import structlog

from headrace.protocol.exchange import LARGEST_ANSWER

from .network import Buffer, LinkClosed, Socket
from .ports import bound_socket
from .tls_stream import Scratch, TlsStream

BACKLOG: Final = 1024
REST_SECONDS: Final = 10.0
"""After this long without a large answer a link gives back the memory for them."""
LARGEST_KEPT: Final = 16 << 20
"""Bytes of the largest memory for frames that is used again."""
_MOST_KEPT: Final = 3
"""One that fills, one that is worked on, one to spare."""
_STEP: Final = 256 << 10
_SMALL: Final = 64 * 1024
_MOST_PARTS: Final = 64
_READS_PER_TURN: Final = 4
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""Of links: whoever waits for an answer learns within half a minute that none can come."""
_LENGTH: Final = Struct(">i")

log = structlog.get_logger(__name__)


class TcpNetwork:
    """Sockets as they are. For one event loop."""

    def __init__(self) -> None:
        self._scratch = Scratch()

    async def connect(self, host: str, port: int, timeout: float, tls: ssl.SSLContext | None = None) -> "TcpLink":
        """A new link; of several addresses of a host each has its share of the time."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout):
            addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            failure: OSError = ConnectionRefusedError(f"{host} has no address")
            for family, _, _, _, address in addresses:
                try:
                    async with asyncio.timeout(timeout / len(addresses)):
                        sock = await _connected(loop, family, address)
                        return TcpLink(loop, sock if tls is None else await self._encrypted(loop, sock, tls, host))
                except OSError as error:
                    failure = error
            raise failure

    async def _encrypted(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, context: ssl.SSLContext, host: str
    ) -> TlsStream:
        """The socket under TLS, after the handshake; `TlsFailure` says in words why there is none."""
        stream = TlsStream(sock, context, self._scratch, server_side=False, server_hostname=host)
        try:
            while not stream.shake_hands():
                await _ready(loop, stream)
        except BaseException:
            stream.close()
            raise
        return stream

    def listen(self, host: str, port: int) -> "TcpAcceptor":
        """Take an address of this machine."""
        return TcpAcceptor(listening_socket(host, port))


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that takes connections on an address of this machine, without blocking; `OSError` where it is taken."""
    sock = bound_socket(host, port)
    try:
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


async def _connected(loop: asyncio.AbstractEventLoop, family: int, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        _tune(sock)
        for option, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        await loop.sock_connect(sock, address)
        if sock.getsockname() == sock.getpeername():  # the system chose the very port that nobody listens on
            raise ConnectionRefusedError(f"nobody listens on {address[0]}:{address[1]}")
    except BaseException:
        sock.close()
        raise
    return sock


async def _ready(loop: asyncio.AbstractEventLoop, stream: TlsStream) -> None:
    """Waits until a handshake can go on."""
    ready = loop.create_future()

    def go_on() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(stream.fileno(), go_on)
    if stream.is_blocked:
        loop.add_writer(stream.fileno(), go_on)
    try:
        await ready
    finally:
        loop.remove_reader(stream.fileno())
        loop.remove_writer(stream.fileno())


def _tune(sock: socket.socket) -> None:
    """Never block, send at once, notice sooner or later that the other side's machine is gone."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class TcpAcceptor:
    """A listening socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    @property
    def port(self) -> int:
        return int(self._sock.getsockname()[1])

    def fileno(self) -> int:
        return self._sock.fileno()

    def accept(self) -> tuple[Socket, str]:
        """The next who waits; `OSError` as the system has it."""
        sock, address = self._sock.accept()
        _tune(sock)
        return sock, str(address[0])

    def close(self) -> None:
        self._sock.close()


class TcpLink:
    """A connection to one broker: frames out, answers in, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: Socket, *, frame_limit: int = LARGEST_ANSWER) -> None:
        self.is_closed = False
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._frame_limit = frame_limit
        self._waiting: deque[asyncio.Future[memoryview]] = deque()
        self._out: deque[memoryview] = deque()
        self._small = bytearray(_SMALL)
        self._small_view = memoryview(self._small)
        self._small_end = 0
        self._buffers = Buffers()
        self._large: memoryview | None = None
        """The answer that is being received, when it does not fit into the small buffer."""
        self._large_end = 0
        self._rests_at: float | None = None
        """When memory that only large answers need is given back, if none comes before."""
        loop.add_reader(self._fd, self._readable)

    @property
    def kept_bytes(self) -> int:
        """Memory that waits for large answers."""
        return self._buffers.kept_bytes

    async def ask(self, frame: Sequence[Buffer]) -> memoryview:
        """See `Link`. Who is cancelled while waiting leaves a place in the order; the answer that comes is dropped."""
        if self.is_closed:
            raise LinkClosed("the connection is closed")
        answer: asyncio.Future[memoryview] = self._loop.create_future()
        self._waiting.append(answer)
        is_first = not self._out
        self._out.append(memoryview(_LENGTH.pack(sum(map(len, frame)))))
        self._out.extend(memoryview(part) for part in frame if len(part))
        if is_first:
            self._send()
        return await answer

    def close(self) -> None:
        """End the connection now."""
        self._close("the connection was closed on this side")

    def _close(self, reason: str) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._sock.close()
        self._out.clear()
        self._large = None
        waiting, self._waiting = self._waiting, deque()
        for answer in waiting:
            if not answer.done():
                answer.set_exception(LinkClosed(reason))

    def _send(self) -> None:
        out = self._out
        try:
            while out:
                sent = self._sock.sendmsg(list(islice(out, _MOST_PARTS)))
                while sent and sent >= len(out[0]):
                    sent -= len(out.popleft())
                if sent:
                    out[0] = out[0][sent:]
        except (BlockingIOError, InterruptedError):
            self._loop.add_writer(self._fd, self._writable)
        except OSError as error:
            self._close(str(error))

    def _writable(self) -> None:
        if self.is_closed:
            return
        self._loop.remove_writer(self._fd)
        self._send()

    def _readable(self) -> None:
        """Read until there is nothing more, or until the others must have their turn.

        One read would not do: where the last bytes come together with the news that the connection was reset, uvloop
        tells once that there is something to read, and never again.
        """
        for _ in range(_READS_PER_TURN):
            if self.is_closed:
                return
            try:
                self._receive()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._close(str(error))
        self._loop.call_soon(self._readable)

    def _receive(self) -> None:
        large = self._large
        count = self._sock.recv_into(self._small_view[self._small_end :] if large is None else large[self._large_end :])
        if not count:
            self._close("the other side closed the connection")
        elif large is None:
            self._small_end += count
            self._take_answers()
        else:
            self._large_end += count
            if self._large_end == len(large):
                self._large = None
                self._answer(large)

    def _take_answers(self) -> None:
        """Hand out the whole answers in the small buffer, and begin the one that does not fit into it."""
        if self._rests_at is not None and self._loop.time() > self._rests_at:
            self._buffers.rest()
            self._rests_at = None
        start, end = 0, self._small_end
        while end - start >= _LENGTH.size and not self.is_closed:
            (length,) = _LENGTH.unpack_from(self._small, start)
            body = start + _LENGTH.size
            if not 0 <= length <= self._frame_limit:
                self._violated(f"a frame of {length} bytes; up to {self._frame_limit} are let in")
                return
            if length > _SMALL - _LENGTH.size:
                self._begin_large(length, self._small_view[body:end])
                return
            if body + length > end:
                break
            self._answer(memoryview(bytearray(self._small_view[body : body + length])))
            start = body + length
        if start:
            self._small_view[: end - start] = self._small_view[start:end]
            self._small_end = end - start

    def _begin_large(self, length: int, begun: memoryview) -> None:
        self._rests_at = self._loop.time() + REST_SECONDS
        self._large = self._buffers.take(length)
        self._large_end = len(begun)
        self._large[: len(begun)] = begun
        self._small_end = 0

    def _answer(self, frame: memoryview) -> None:
        if not self._waiting:
            self._violated("an answer that nobody asked for")
            return
        answer = self._waiting.popleft()
        if not answer.done():
            answer.set_result(frame)

    def _violated(self, reason: str) -> None:
        log.warning("link closed", reason=reason)
        self._close(reason)


class Buffers:
    """Memory for large frames: hands it out, and takes it back by itself once no view into it is left.

    A bytearray cannot be resized while a view into it lives, and says so: that is how a free one is told. Memory
    above `LARGEST_KEPT` comes fresh from the system each time and goes back there. Asking for it fresh is what costs:
    a new bytearray is zeroed, at a third of the speed at which the network fills it.
    """

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: list[bytearray] = []

    @property
    def kept_bytes(self) -> int:
        return sum(map(len, self._kept))

    def take(self, size: int) -> memoryview:
        """That many bytes, with anything in them; valid for as long as the view, or one made of it, is kept."""
        if size > LARGEST_KEPT:
            return memoryview(mmap.mmap(-1, size))
        free = [buffer for buffer in self._kept if _is_free(buffer)]
        fitting = next((buffer for buffer in free if len(buffer) >= size), None)
        if fitting is None:
            fitting = self._grow(free, -(-size // _STEP) * _STEP)
        return memoryview(fitting)[:size]

    def rest(self) -> None:
        """Give back what is free."""
        self._kept = [buffer for buffer in self._kept if not _is_free(buffer)]

    def _grow(self, free: list[bytearray], size: int) -> bytearray:
        """A new one in the place of one that is free and too small, or of the oldest."""
        fresh = bytearray(size)
        replaced = free[0] if free else self._kept[0] if len(self._kept) == _MOST_KEPT else None
        self._kept = [buffer for buffer in self._kept if buffer is not replaced]
        self._kept.append(fresh)
        return fresh


def _is_free(buffer: bytearray) -> bool:
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True
