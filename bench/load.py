"""The load generator: one socket, requests that are ready to send, and a count of the bytes that come back."""

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from select import POLLIN, POLLOUT, poll
from struct import Struct
from typing import Final

from .model import BenchError

WARM_UP_SECONDS: Final = 0.3
_STALL_MS: Final = 20_000
_RECEIVE: Final = 256 * 1024
_BLOCK: Final = 256 * 1024
_LENGTH: Final = Struct(">i")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to send and how: `block` holds whole frames of one size, sent round and round."""

    block: bytes
    frame_size: int
    reply_size: int
    window: int
    """Requests that may be without an answer at one time."""
    most_frames: int
    """Where to stop before the time is up: what is written is bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pumped:
    """What came of it, within the measured time; `last` is the very last reply, or its end when it is large."""

    frames: int
    seconds: float
    cpu_seconds: float
    total_frames: int
    last: bytes


def repeated(frame: bytes) -> bytes:
    """A block of one frame, long enough that sending it costs few calls."""
    return frame * max(_BLOCK // len(frame), 1)


def ask(sock: socket.socket, frame: bytes) -> bytes:
    """Send one frame to a blocking socket and wait for the whole reply."""
    sock.sendall(frame)
    return read_frame(sock)


def read_frame(sock: socket.socket) -> bytes:
    head = _read(sock, _LENGTH.size)
    return head + _read(sock, int(_LENGTH.unpack(head)[0]))


def _read(sock: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = sock.recv_into(view)
        if not count:
            raise BenchError("the server closed the connection")
        view = view[count:]
    return bytes(data)


class Pump:
    """Keeps a window of requests under way on one socket."""

    def __init__(self, sock: socket.socket, load: Load) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._load = load
        self._block = memoryview(load.block)
        self._sent = 0
        self._received = 0
        self._into = memoryview(bytearray(max(_RECEIVE, min(load.reply_size, 1 << 20))))
        self._tail = b""
        self._poll = poll()
        self._poll.register(sock.fileno(), POLLIN)
        self._wants_to_send = False

    @property
    def answered(self) -> int:
        return self._received // self._load.reply_size

    def run(self, seconds: float, cpu: Callable[[], float]) -> Pumped:
        """Warm up, measure, then wait for what is still under way."""
        self._until(time.perf_counter() + min(WARM_UP_SECONDS, seconds / 2), self._load.most_frames // 4)
        first, cpu_before, start = self.answered, cpu(), time.perf_counter()
        self._until(start + seconds, self._load.most_frames)
        last, cpu_after, end = self.answered, cpu(), time.perf_counter()
        self._drain()
        return Pumped(
            frames=last - first,
            seconds=end - start,
            cpu_seconds=cpu_after - cpu_before,
            total_frames=self.answered,
            last=self._tail[-self._load.reply_size :],
        )

    def _until(self, deadline: float, most_frames: int) -> None:
        load = self._load
        while time.perf_counter() < deadline and self.answered < most_frames:
            allowed = min(self.answered + load.window, most_frames) * load.frame_size
            moved = self._send(allowed)
            moved += self._receive()
            if not moved:
                self._wait(self._sent < allowed)

    def _drain(self) -> None:
        frame_size = self._load.frame_size
        whole = -(-self._sent // frame_size)
        while self.answered < whole:
            moved = self._send(whole * frame_size)
            moved += self._receive()
            if not moved:
                self._wait(self._sent < whole * frame_size)

    def _send(self, allowed: int) -> int:
        at = self._sent % len(self._block)
        size = min(allowed - self._sent, len(self._block) - at)
        if size <= 0:
            return 0
        try:
            count = self._sock.send(self._block[at : at + size])
        except BlockingIOError:
            return 0
        self._sent += count
        return count

    def _receive(self) -> int:
        try:
            count = self._sock.recv_into(self._into)
        except BlockingIOError:
            return 0
        if not count:
            raise BenchError("the server closed the connection")
        self._received += count
        size = min(self._load.reply_size, 1024)
        self._tail = (self._tail + bytes(self._into[max(count - size, 0) : count]))[-size:]
        return count

    def _wait(self, wants_to_send: bool) -> None:
        if wants_to_send != self._wants_to_send:
            self._poll.modify(self._sock.fileno(), POLLIN | (POLLOUT if wants_to_send else 0))
            self._wants_to_send = wants_to_send
        if not self._poll.poll(_STALL_MS):
            raise BenchError(f"no answer for {_STALL_MS / 1000:.0f} s, {self.answered} were answered before")
