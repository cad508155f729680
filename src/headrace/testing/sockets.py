"""Sockets that lead to other sockets of the same process, through pipes that take their time and can be blocked.

The connections and links of the broker run on them unchanged. A pipe carries whole frames, so that a test can say what
becomes of a request or an answer: what is sent arrives once it makes up a frame, or when the sender closes.
"""

from collections import deque
from collections.abc import Callable, Iterable
from struct import Struct
from typing import Final, Protocol

from headrace.net.network import Buffer, Socket

from .loop import VirtualLoop

_LENGTH: Final = Struct(">i")


class LinkPath(Protocol):
    """What the network does with what is sent one way on one connection."""

    def arrival(self) -> float:
        """When a frame that is sent now gets there, if nothing is in its way."""
        ...

    def is_open(self) -> bool:
        """Whether anything gets through now."""
        ...

    def sent(self, frame: bytes) -> "Fate":
        """What becomes of a frame, asked once."""
        ...

    def delivered(self, size: int, fate: "Fate") -> None:
        """A frame has got there."""
        ...


class Fate(Protocol):
    """Decides about one frame."""

    @property
    def is_held(self) -> bool:
        """Whether it waits, and all that was sent after it."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether it never gets there: the connection breaks in its place."""
        ...


class Pipe:
    """One direction of a connection."""

    def __init__(self, loop: VirtualLoop, route: LinkPath) -> None:
        self._loop = loop
        self._route = route
        self._begun = bytearray()
        self._queue: deque[tuple[float, bytes | None, Fate | None]] = deque()
        """When it gets there, a frame or None for the end, what becomes of it."""
        self._last_arrival = 0.0
        self.target: SimulatedSocket
        self.is_broken = False
        self._has_ended = False

    @property
    def is_done(self) -> bool:
        """Whether nothing will ever come through any more."""
        return self.is_broken or (self._has_ended and not self._queue)

    def write(self, data: Buffer) -> None:
        begun = self._begun
        begun += data
        while len(begun) >= _LENGTH.size:
            size = _LENGTH.size + max(_LENGTH.unpack_from(begun)[0], 0)
            if size > len(begun):
                return
            frame = bytes(begun[:size])
            del begun[:size]
            self._put(frame, self._route.sent(frame))

    def end(self) -> None:
        """Nothing more will be sent."""
        if self._begun:
            self._put(bytes(self._begun), None)
            self._begun.clear()
        self._put(None, None)
        self._has_ended = True

    def flush(self) -> None:
        """Let through what may pass now."""
        while self._queue and self._route.is_open() and not self.is_broken:
            arrival, frame, fate = self._queue[0]
            if arrival > self._loop.time() or (fate is not None and fate.is_held):
                return
            self._queue.popleft()
            self._deliver(frame, fate)

    def _put(self, frame: bytes | None, fate: Fate | None) -> None:
        arrival = self._last_arrival = max(self._route.arrival(), self._last_arrival)
        self._queue.append((arrival, frame, fate))
        self._loop.call_at(arrival, self.flush, context=self._loop.outside)

    def _deliver(self, frame: bytes | None, fate: Fate | None) -> None:
        if self.target.is_gone or (fate is not None and fate.is_lost):
            self.target.break_both()
        elif frame is None:
            self.target.feed_end()
        else:
            if fate is not None:
                self._route.delivered(len(frame), fate)
            self.target.feed(frame)


class SimulatedSocket:
    """One end of a connection. Implements `headrace.net.network.Socket`."""

    def __init__(self, loop: VirtualLoop, out: Pipe, forget: Callable[["SimulatedSocket"], None]) -> None:
        self._loop = loop
        self._out = out
        self._forget = forget
        self._in = bytearray()
        self._has_ended = False
        self._is_broken = False
        self._is_closed = False
        self._fd = loop.register(self)
        self.other: SimulatedSocket

    @property
    def is_readable(self) -> bool:
        return bool(self._in) or self._has_ended or self._is_broken

    @property
    def is_gone(self) -> bool:
        """Whether there is nobody any more to read what comes; the system of the machine says so to who sent it."""
        return self._is_closed

    def fileno(self) -> int:
        return self._fd

    def recv_into(self, buffer: memoryview, /) -> int:
        self._require_whole()
        if not self._in:
            if self._has_ended:
                return 0
            raise BlockingIOError
        count = min(len(buffer), len(self._in))
        buffer[:count] = self._in[:count]
        del self._in[:count]
        return count

    def send(self, data: Buffer, flags: int = 0, /) -> int:  # noqa: ARG002 - everything is sent at once
        self._require_whole()
        self._out.write(data)
        return len(data)

    def sendmsg(self, buffers: Iterable[Buffer], /) -> int:
        self._require_whole()
        return sum(self.send(data) for data in buffers)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._forget(self)
        if not self._is_broken:
            self._out.end()

    def vanish(self) -> None:
        """Close without a word to the other end."""
        self._is_closed = True

    def feed(self, frame: bytes) -> None:
        if not self._is_closed:
            self._in += frame
            self._loop.now_readable(self._fd)

    def feed_end(self) -> None:
        self._has_ended = True
        self._loop.now_readable(self._fd)

    def break_both(self) -> None:
        """The connection was reset: both ends learn it, and nothing more arrives."""
        for end in (self, self.other):
            end._is_broken = end._out.is_broken = True
            end._in.clear()
            self._loop.now_readable(end._fd)

    def _require_whole(self) -> None:
        if self._is_closed:
            raise OSError("the socket is closed")
        if self._is_broken:
            raise ConnectionResetError("the connection was reset")


class SimulatedAcceptor:
    """A place that is listened on. Implements `headrace.net.network.Acceptor`."""

    def __init__(self, loop: VirtualLoop, port: int, forget: Callable[[], None]) -> None:
        self._loop = loop
        self._port = port
        self._forget = forget
        self._waiting: deque[tuple[SimulatedSocket, str]] = deque()
        self._fd = loop.register(self)

    @property
    def port(self) -> int:
        return self._port

    @property
    def is_readable(self) -> bool:
        return bool(self._waiting)

    def fileno(self) -> int:
        return self._fd

    def accept(self) -> tuple[Socket, str]:
        if not self._waiting:
            raise BlockingIOError
        return self._waiting.popleft()

    def offer(self, sock: SimulatedSocket, peer: str) -> None:
        """Somebody has connected."""
        self._waiting.append((sock, peer))
        self._loop.now_readable(self._fd)

    def close(self) -> None:
        self._forget()
        for sock, _ in self._waiting:
            sock.close()
        self._waiting.clear()
