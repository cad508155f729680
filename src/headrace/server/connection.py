"""One client's connection: bytes in, frames out to dispatch, answers back in the order of their requests.

Plain sockets on the event loop's readiness callbacks, one reused buffer, `sendfile` for ranges of log files. Where the
listener speaks TLS a `TlsStream` stands in the socket's place; then the connection begins with a handshake.

Flow control, both ways: while more than `MOST_OUT` bytes wait to be sent, or more than `MOST_PENDING` requests wait
for their answer, or a request that must run alone is running, nothing more is read, and TCP holds the client back. A
client that has used more than its quota is muted: for so long nothing more of it is read or served, but answers are
sent.
"""

import errno
import os
import socket
from asyncio import AbstractEventLoop, TimerHandle
from collections import deque
from collections.abc import Callable
from itertools import count
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, cast

import structlog

from headrace.net.network import Socket
from headrace.protocol.errors import ProtocolViolation
from headrace.protocol.fetch import FileRange, Part
from headrace.protocol.framing import Inbox
from headrace.security.quotas.client_quotas import Limits
from headrace.storage.disk import StorageError

from .monitoring.request_times import FAST_NS, ApiTimes
from .refusals import Refusals
from .request_memory import RequestMemory

MOST_OUT: Final = 4 * 1024 * 1024
MOST_PENDING: Final = 2_000
_FRAMES_PER_TURN: Final = 64
"""Requests of one connection served before the others get their turn."""
_RUN: Final = 256 * 1024
"""Bytes of answers joined for one `send`."""
_RANGE_CHUNK: Final = 1 << 20
"""Bytes of one `sendfile`, so that one fast reader does not keep the loop from the others."""

if TYPE_CHECKING:
    from .authentication import Authenticator
    from .handshakes import Handshakes

_BYTES: Final = (bytes, bytearray)

UNRESOLVED: Final = -2
"""The size of no client id."""
_NUMBERS: Final = count(1)

log = structlog.get_logger(__name__)

Parts = list[Part]
Serve = Callable[["Connection", memoryview], Parts | None]
"""Answers a frame whole, now (empty if it has no answer), or returns None and has opened a slot."""


class Slot:
    """The place of one request in the order of answers."""

    __slots__ = ("abandoned", "before_answer", "connection", "is_answered", "parts", "since_ns", "times")

    def __init__(self, connection: "Connection", times: ApiTimes | None, since_ns: int) -> None:
        self.connection = connection
        self.times = times
        self.since_ns = since_ns
        self.parts: Parts | None = None
        self.is_answered = False
        self.abandoned: Callable[[], None] | None = None
        """Called when the connection ends before the answer is there."""
        self.before_answer: Callable[[Parts], None] | None = None
        """Changes the answer, once it is there."""

    def answer(self, parts: Parts | None) -> None:
        """Give the answer, whole frames; None for a request that has none (acks=0)."""
        if self.before_answer is not None and parts:
            self.before_answer(parts)
        self.parts = parts
        self.is_answered = True
        self.abandoned = None
        self.connection.answered()


class Connection:
    """One connection. `serve` is called for each frame and opens a slot for its answer."""

    __slots__ = (
        "__weakref__",
        "_blocked",
        "_fd",
        "_handshakes",
        "_inbox",
        "_is_blocked",
        "_is_draining",
        "_is_read_due",
        "_is_reading",
        "_is_serving",
        "_is_starved",
        "_is_writing",
        "_looked_at",
        "_loop",
        "_memory",
        "_now_ns",
        "_on_close",
        "_on_read_failure",
        "_opened",
        "_out",
        "_out_bytes",
        "_partial",
        "_partial_since",
        "_range_sent",
        "_ranges",
        "_read_ns",
        "_sending_ns",
        "_serve_frame",
        "_slots",
        "_sock",
        "_tls",
        "_turn_ns",
        "_turn_requests",
        "_unmuting",
        "_waited",
        "_wake_is_due",
        "authenticator",
        "by_token",
        "is_closed",
        "is_held",
        "is_known",
        "last_read_at",
        "last_sent_at",
        "limited_client",
        "limited_size",
        "limits",
        "listener_name",
        "number",
        "opened_at",
        "peer",
        "peer_broker",
        "principal",
        "refusals",
        "requests",
        "session_expires_at",
        "times",
    )

    def __init__(
        self,
        loop: AbstractEventLoop,
        sock: Socket,
        peer: str,
        *,
        serve: Serve,
        on_close: Callable[["Connection"], None],
        on_read_failure: Callable[[StorageError], None],
        frame_limit: int,
        now: float,
        now_ns: Callable[[], int] = perf_counter_ns,
        handshakes: "Handshakes | None" = None,
        listener_name: str = "",
        memory: RequestMemory | None = None,
    ) -> None:
        self.peer = peer
        self.listener_name = listener_name
        """Of the listener on which it was accepted."""
        self.authenticator: Authenticator | None = None
        """Who is asked whether the client is who it says; None on a listener without SASL."""
        self.principal = "User:ANONYMOUS"
        self.is_known = True
        """False until the client has authenticated, where it must."""
        self.by_token = False
        """Whether it has shown a delegation token only."""
        self.session_expires_at: float | None = None
        """When, by the loop's clock, the client has to have authenticated again; None where it need not."""
        self.peer_broker: int | None = None
        """The broker at the other end, once it has shown that it is one of this cluster."""
        self.number = next(_NUMBERS)
        """Higher than that of every connection that was opened before."""
        self.refusals: Refusals = {}
        """Batches that were refused to producers, who may have sent on meanwhile."""
        self.limits: Limits | None = None
        """What its latest request was limited to; always None where there are no quotas."""
        self.limited_client: bytes | memoryview | None = None
        """The client id that `limits` are of; None where that is to be looked up."""
        self.limited_size = UNRESOLVED
        """Its size."""
        self.opened_at = now
        self.last_read_at = now
        self.last_sent_at = now
        self._looked_at = now
        self.requests = 0
        self._partial = 0
        """How many whole requests had come before the one that was looked at in part."""
        self._partial_since = now
        self.times: ApiTimes | None = None
        """Of the API of the latest request; None where nobody measures."""
        self._now_ns = now_ns
        self._turn_ns = 0
        """When the latest turn began."""
        self._read_ns = 0
        """When the turn began in which the latest bytes were read."""
        self._turn_requests = 0
        """Requests before this turn, or before the last of it that were of another API."""
        self._opened = 0
        """Requests since then that have a slot: the others were answered at once."""
        self._waited = 0
        """Answers of this turn to requests that had to wait."""
        self._sending_ns = 0
        """What `sendfile` took in this turn."""
        self._blocked: tuple[ApiTimes, int, int, int] | None = None
        """Answers that the client does not take for now: how many, how many of them at once, and since when."""
        self._loop = loop
        self._handshakes = handshakes
        self._tls = None if handshakes is None else handshakes.stream(sock)
        self._sock = sock if self._tls is None else self._tls
        self._fd = sock.fileno()
        self._serve_frame = serve
        self._on_close = on_close
        self._on_read_failure = on_read_failure
        self._memory = memory
        self._inbox = Inbox(frame_limit, None if memory is None else memory.share_of(self))
        self._is_starved = False
        """Not read because there is no memory for the rest of a request."""
        self._slots: deque[Slot] = deque()
        self._out: deque[Part | memoryview] = deque()
        self._out_bytes = 0
        self._ranges = 0
        """Of files, among what is to be sent."""
        self._range_sent = 0
        self._is_reading = True
        self._is_writing = False
        self._is_serving = False
        self._is_draining = False
        self._wake_is_due = False
        self.is_held = False
        self._unmuting: TimerHandle | None = None
        self._is_blocked = False
        """Held or muted: no further frame is served."""
        self._is_read_due = False
        self.is_closed = False
        loop.add_reader(self._fd, self._readable if self._tls is None else self._greeted)

    def open_slot(self) -> Slot:
        """The next place in the order of answers."""
        slot = Slot(self, self.times, self._turn_ns)
        self._opened += 1
        self._slots.append(slot)
        return slot

    def hold(self) -> None:
        """Serve no further frame until `release`: the request that runs now changes what later ones see."""
        self.is_held = self._is_blocked = True

    def release(self) -> None:
        self.is_held = False
        self._is_blocked = self._unmuting is not None
        self._wake_soon()

    def forget_limits(self) -> None:
        """Quotas have changed: look them up with the next request, and let nobody wait for what was."""
        self.limits = self.limited_client = None
        self.limited_size = UNRESOLVED
        self.unmute()

    def mute(self, seconds: float) -> None:
        """Read and serve nothing more for so long; what was asked is answered. Of two mutes the longer counts."""
        if self.is_closed or self._is_draining:
            return
        until = self._loop.time() + seconds
        if self._unmuting is not None:
            if self._unmuting.when() >= until:
                return
            self._unmuting.cancel()
        self._unmuting = self._loop.call_at(until, self.unmute)
        self._is_blocked = True
        if not self._is_serving:
            self._pause_reading()

    def unmute(self) -> None:
        """Go on, where the connection is muted."""
        if self._unmuting is None:
            return
        self._unmuting.cancel()
        self._unmuting = None
        self._is_blocked = self.is_held
        self.last_read_at = self._loop.time()
        self._wake_soon()

    @property
    def is_muted(self) -> bool:
        return self._unmuting is not None

    def answered(self) -> None:
        """A slot got its answer: send it soon, with those that come in the same turn of the loop."""
        if not self._is_serving:
            self._wake_soon()

    def set_frame_limit(self, limit: int) -> None:
        self._inbox.limit = limit

    @property
    def is_idle(self) -> bool:
        """No partial request, no pending response, nothing to send."""
        return self._inbox.is_empty and not self._slots and not self._out

    @property
    def is_mid_request(self) -> bool:
        waits_for_client = not self._inbox.is_empty and not self._is_blocked and not self._is_starved
        return waits_for_client and not self._slots and not self._out

    def seconds_late(self, now: float, rate: int) -> float:
        """How much longer the request that has come in part takes than it would at this rate, as far as it has come.

        Looked at now and then: the first look at a request is taken for its beginning.
        """
        if self._partial != self.requests:
            self._partial, self._partial_since = self.requests, now
        return now - self._partial_since - self._inbox.held / rate

    @property
    def latest_slot(self) -> Slot | None:
        """The slot that was opened last, while any request is under way."""
        return self._slots[-1] if self._slots else None

    @property
    def pending(self) -> int:
        """Requests that are read and not answered."""
        return len(self._slots)

    @property
    def queued_bytes(self) -> int:
        """Bytes of answers that wait for the client to read, without ranges of logs."""
        return self._out_bytes

    @property
    def is_sending(self) -> bool:
        """Whether answers wait for the client to read."""
        return bool(self._out)

    def rest(self) -> None:
        """Give memory back that only large requests need, and see once whether anybody is still there.

        Where the last bytes of a client come together with the news that it has reset the connection, uvloop tells
        once that there is something to read, and never again.
        """
        self._inbox.rest()
        if self._is_reading and self._looked_at != self.last_read_at:
            self._looked_at = self.last_read_at
            self._readable()

    def drain(self) -> None:
        """Read no more; answer what was asked, then close."""
        self._is_draining = True
        self._pause_reading()
        if not self._is_serving and not self._slots and not self._out and not self._wake_is_due:
            self.close()

    def close(self) -> None:
        """End the connection at once. Safe to call twice."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._unmuting is not None:
            self._unmuting.cancel()
            self._unmuting = None
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._sock.close()
        if self._memory is not None:
            self._memory.forget(self)
        self._inbox.close()  # connections are in cycles: what they hold would stay until somebody collects them
        abandoned = [slot.abandoned for slot in self._slots if slot.abandoned is not None]
        self._slots.clear()
        self._out.clear()
        for callback in abandoned:
            callback()
        self._on_close(self)

    def _greeted(self) -> None:
        """There is something of a handshake. It takes turns with those of others: each takes the loop for long."""
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        if self._handshakes is not None:
            self._handshakes.take_turn(self.peer, self._shake_hands)

    def _shake_hands(self) -> None:
        handshakes, tls = self._handshakes, self._tls
        if self.is_closed or handshakes is None or tls is None:
            return
        if not tls.has_begun:
            tls.begin()
            handshakes.take_turn(self.peer, self._shake_hands)
            return
        try:
            if not tls.shake_hands():
                self._loop.add_reader(self._fd, self._greeted)
                if tls.is_blocked:
                    self._loop.add_writer(self._fd, self._greeted)
                return
            principal = handshakes.principal(tls)
        except OSError as failure:
            if tls.has_heard:  # else it was a probe, such as a load balancer's
                handshakes.failed(self.peer, str(failure))
            self.close()
            return
        handshakes.succeeded += 1
        if principal is not None:
            self.principal = principal
            handshakes.named(self.peer, principal)
        self._loop.add_reader(self._fd, self._readable)
        self._readable()

    def _readable(self) -> None:
        # What was read before comes first; there may be no space for more. A request that runs alone keeps its frame.
        if self.is_closed or self._wake_is_due or self._is_blocked:
            return
        try:
            space = self._inbox.space()
            if not space:
                self._wait_for_memory()
                return
            count = self._sock.recv_into(space)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, ProtocolViolation) as error:
            self._fail(error)
            return
        if not count:
            self.close()
            return
        self._inbox.received(count)
        self.last_read_at = self._loop.time()
        self._read_ns = 0
        self._work()

    def _wait_for_memory(self) -> None:
        assert self._memory is not None
        self._is_starved = True
        self._pause_reading()
        self._memory.wait(self, self._inbox.memory_needed)

    def read_on(self) -> None:
        """There may be memory now for the rest of a request."""
        self._is_starved = False
        self.last_read_at = self._loop.time()
        self._wake_soon()

    def give_back(self) -> None:
        """Let go of a buffer that nothing is in; a request that runs alone keeps its frame."""
        if not self.is_held:
            self._inbox.rest()

    @property
    def held_bytes(self) -> int:
        """Bytes of requests that have come and are not served."""
        return self._inbox.held

    @property
    def is_incomplete(self) -> bool:
        """Whether a request has come in part, and the client could send more of it."""
        return not self._inbox.is_empty and not self._is_blocked

    def _wake_soon(self) -> None:
        if not self._wake_is_due and not self.is_closed:
            self._wake_is_due = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._wake_is_due = False
        if not self.is_closed:
            self._work()

    def _work(self) -> None:
        self._turn_ns = began = self._now_ns()
        self._is_serving = True
        try:
            self._serve_frames()
        except ProtocolViolation as error:
            self._fail(error)
        except StorageError as error:
            self.read_failed(error)
        finally:
            self._is_serving = False
        if not self.is_closed:
            self._collect_answers()
            if self._out and not self._is_writing:
                self._send()
            if self.times is not None:
                self._account(self.times, 0)
        limits = self.limits
        if limits is not None and limits.request is not None:
            self._spent(limits, began)
        if not self.is_closed:
            self._regulate()

    def _spent(self, limits: Limits, since_ns: int) -> None:
        """Time was spent on this client, which has a quota of it."""
        limits.left_ns -= self._now_ns() - since_ns
        if limits.left_ns < 0:
            limits.took(self._loop.time())

    def turn_to(self, times: ApiTimes) -> None:
        """The request that is served now is of another API than those before it."""
        if self.times is None:
            self._turn_requests = self.requests - 1
        else:
            self._turn_ns = self._account(self.times, 1)
        self._opened = 0
        self.times = times

    def _account(self, times: ApiTimes, but: int) -> int:
        """Note the requests and answers of this turn, but its latest requests; when that was."""
        now = self._now_ns()
        turn_ns, read_ns = self._turn_ns, self._read_ns
        elapsed = now - turn_ns
        count = self.requests - but - self._turn_requests
        self._turn_requests += count
        if not read_ns:
            self._read_ns = read_ns = turn_ns
        is_odd = self._opened or self._waited or self._out or self._sending_ns or read_ns != turn_ns
        if is_odd or elapsed >= FAST_NS:
            self._account_slow(times, count, elapsed)
        elif count:
            times.fast += count
            times.fast_ns += elapsed
            times.fast_total_ns += elapsed * count
        return now

    def _account_slow(self, times: ApiTimes, count: int, elapsed: int) -> None:
        at_once, answered = count - self._opened, count - self._opened + self._waited
        sending, self._sending_ns = self._sending_ns, 0
        self._opened = self._waited = 0
        if count:
            times.served(count, elapsed - sending, self._turn_ns - self._read_ns)
        if not answered:
            return
        if self._out:
            if self._blocked is None:
                self._blocked = (times, answered, at_once, self._turn_ns + elapsed - sending)
                return
            blocked, before, before_at_once, since = self._blocked
            self._blocked = (blocked, before + answered, before_at_once + at_once, since)
            return
        times.sent(answered, sending)
        if at_once:
            times.total.add(elapsed, at_once)

    def _account_unblocked(self) -> None:
        """The client has taken the answers that it was slow to take."""
        if self._blocked is not None:
            times, answered, at_once, since = self._blocked
            self._blocked = None
            waited = self._now_ns() - since
            times.sent(answered, waited)
            if at_once:
                times.total.add(waited, at_once)
            self._sending_ns = 0

    def _serve_frames(self) -> None:
        inbox, serve, slots = self._inbox, self._serve_frame, self._slots
        left = _FRAMES_PER_TURN
        while not self._is_blocked and len(slots) < MOST_PENDING and self._out_bytes < MOST_OUT and not self.is_closed:
            if slots and slots[0].is_answered:
                self._collect_answers()
            if not left:
                self._wake_soon()
                return
            left -= 1
            frame = inbox.next_frame()
            if frame is None:
                return
            self.requests += 1
            answer = serve(self, frame)
            if answer is None:
                continue
            if slots:
                self.open_slot().answer(answer)
            else:
                self._queue(answer)

    def _collect_answers(self) -> None:
        slots, since_ns, count = self._slots, 0, 0
        times: ApiTimes | None = None
        while slots and slots[0].is_answered:
            slot = slots.popleft()
            self._queue(slot.parts or [])
            if slot.since_ns != since_ns or slot.times is not times:
                self._account_waited(times, count, since_ns)
                times, since_ns, count = slot.times, slot.since_ns, 0
            count += 1
        if count:
            self._account_waited(times, count, since_ns)

    def _account_waited(self, times: ApiTimes | None, count: int, since_ns: int) -> None:
        """Requests that came in one turn, and could not be answered in it, have their answers now."""
        if times is not None and count:
            times.remote.add(self._turn_ns - since_ns, count)
            self._waited += count

    def _queue(self, parts: Parts) -> None:
        for part in parts:
            self._out.append(part)
            if isinstance(part, _BYTES):
                self._out_bytes += len(part)
            else:
                self._ranges += 1

    def _regulate(self) -> None:
        if self._is_draining:
            if not self._slots and not self._out and not self._wake_is_due:
                self.close()
            return
        if self._is_blocked or len(self._slots) >= MOST_PENDING or self._out_bytes >= MOST_OUT:
            self._pause_reading()
            return
        if not self._is_reading and not self._is_starved:
            self._is_reading = True
            self._loop.add_reader(self._fd, self._readable)
            if not self._inbox.is_empty:
                self._wake_soon()
        if self._tls is not None and self._tls.has_more and not self._is_read_due:
            self._is_read_due = True  # the socket does not tell of what was read from it already
            self._loop.call_soon(self._read_rest)

    def _read_rest(self) -> None:
        self._is_read_due = False
        if self._is_reading:
            self._readable()

    def _pause_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._fd)

    def _writable(self) -> None:
        if not self.is_closed:
            began = self._now_ns()
            self._send()
            limits = self.limits
            if limits is not None and limits.request is not None:
                self._spent(limits, began)
        if not self.is_closed:
            if not self._out:
                self._account_unblocked()
            self._work()

    def _send(self) -> None:
        try:
            while self._out:
                head = self._out[0]
                if isinstance(head, (bytes, bytearray, memoryview)):
                    if not self._send_bytes():
                        break
                elif not self._send_range(head):
                    break
        except (BlockingIOError, InterruptedError):
            pass
        except StorageError as error:
            self.read_failed(error)
            return
        except OSError as error:
            self._fail(error)
            return
        self._watch_writable(bool(self._out))

    def _send_bytes(self) -> bool:
        """Send the bytes before the next range in one call: answers are small, and joining them is cheap.

        Returns whether to go on: of what is large so much is sent in one turn, and then others have theirs.
        """
        out = self._out
        data = self._take_bytes()
        out.appendleft(data)
        is_large = len(data) > 2 * _RUN
        piece = memoryview(data)[:_RUN] if is_large else data
        sent = self._sock.send(piece, socket.MSG_MORE if len(out) > 1 else 0)
        self._out_bytes -= sent
        self.last_sent_at = self._loop.time()
        if sent == len(data):
            out.popleft()
        else:
            out[0] = memoryview(data)[sent:]
        return not is_large

    def _take_bytes(self) -> bytes | bytearray | memoryview:
        """The bytes before the next range, some 256 KiB at most; without ranges in one go."""
        out = self._out
        if not self._ranges and self._out_bytes < _RUN:
            all_bytes = cast("deque[bytes | bytearray | memoryview]", out)
            data = all_bytes[0] if len(out) == 1 else b"".join(all_bytes)
            out.clear()
            return data
        run: list[bytes | bytearray | memoryview] = []
        size = 0
        while out and size < _RUN:
            part = out[0]
            if not isinstance(part, (bytes, bytearray, memoryview)) or (run and len(part) >= _RUN):
                break
            run.append(part)
            size += len(part)
            out.popleft()
        return run[0] if len(run) == 1 else b"".join(run)

    def _send_range(self, part: FileRange) -> bool:
        left = part.length - self._range_sent
        position = part.position + self._range_sent
        began = self._now_ns()
        try:
            if self._tls is None:
                sent = os.sendfile(self._fd, part.file.fileno(), position, min(left, _RANGE_CHUNK))
            else:
                sent = self._tls.sendfile(part.file.fileno(), position, left)
        except OSError as error:
            if error.errno == errno.EIO:  # of the file: a socket has other errors
                raise StorageError(part.file.path, errno.EIO, os.strerror(errno.EIO)) from error
            raise
        if not sent:
            raise OSError(f"the log is shorter than what was promised of it: {part}")
        self._range_sent += sent
        self._sending_ns += self._now_ns() - began
        self.last_sent_at = self._loop.time()
        if sent == left:
            self._out.popleft()
            self._ranges -= 1
            self._range_sent = 0
            return True
        return sent == _RANGE_CHUNK

    def _watch_writable(self, wanted: bool) -> None:
        if wanted and not self._is_writing:
            self._loop.add_writer(self._fd, self._writable)
        elif not wanted and self._is_writing:
            self._loop.remove_writer(self._fd)
        self._is_writing = wanted

    def read_failed(self, error: StorageError) -> None:
        """A log could not be read for an answer: it is the log's fault, and this client has to ask again."""
        self._on_read_failure(error)
        self.close()

    def _fail(self, error: Exception) -> None:
        if isinstance(error, ProtocolViolation):
            log.warning("connection closed", peer=self.peer, reason=str(error))
        else:
            log.debug("connection lost", peer=self.peer, reason=str(error))
        self.close()
