"""Replication, the leader's side: followers' requests of `protocol.replicate`, each link with a link of its own.

A request is answered at once when there is something to say, else when there is, or when its time is over. The next
request of a link may come before: it tells new positions, and the one that waits is answered first.
"""

from asyncio import AbstractEventLoop, TimerHandle
from struct import Struct
from typing import Final

from headrace.protocol.errors import ErrorCode
from headrace.protocol.fetch import MOST_COPIED, SMALL_READ, Part
from headrace.protocol.replicate import Asked, decode_positions, encode_progress, encode_refusal
from headrace.replication.follower_session import FollowerSession
from headrace.replication.replica_manager import ReplicaManager
from headrace.replication.throttle import ReplicationThrottle
from headrace.storage.disk import StorageError

from ..connection import Connection, Parts, Slot

_HEAD: Final = Struct(">ii")
LONGEST_WAIT_SECONDS: Final = 5.0


class _Link:
    """One follower on one link."""

    def __init__(self, number: int, session: FollowerSession, connection: Connection, loop: AbstractEventLoop) -> None:
        self.id = number
        self.session = session
        self.connection = connection
        self.next_number = 0
        self._loop = loop
        self._slot: Slot | None = None
        self._timer: TimerHandle | None = None
        self._correlation_id = 0
        self._max_bytes = 0
        self._is_woken = False

    def take(self, request: Asked, correlation_id: int) -> Parts | None:
        """Answer now, or later through a slot."""
        self.finish()
        self.next_number += 1
        self.session.take(request.positions, request.broker_epoch)
        self._max_bytes = request.max_bytes
        if self.session.is_ready or request.max_wait_ms <= 0:
            return self._answer(correlation_id)
        self._correlation_id = correlation_id
        self._slot = self.connection.open_slot()
        self._slot.abandoned = self.close
        self._timer = self._loop.call_later(min(request.max_wait_ms / 1000, LONGEST_WAIT_SECONDS), self.finish)
        self.session.wake = self._wake
        return None

    def _wake(self) -> None:
        """Once for all appends of this turn of the loop."""
        self.session.wake = None
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon(self.finish)

    def finish(self) -> None:
        """Answer the request that waits, if one does."""
        slot, self._slot = self._slot, None
        self._is_woken = False
        self.session.wake = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if slot is None or slot.connection.is_closed:
            return
        try:
            slot.answer(self._answer(self._correlation_id))
        except StorageError as error:
            slot.connection.read_failed(error)

    def close(self) -> None:
        """The link is gone, or a new session has taken the place of this one, perhaps on the same connection."""
        self.finish()
        self.session.close()

    def _answer(self, correlation_id: int) -> Parts:
        entries = self.session.collect(self._max_bytes)
        head = encode_progress(progress for progress, _ in entries)
        ranges = [records for _, records in entries if records is not None]
        size = len(head) + sum(records.length for records in ranges)
        parts: list[Part] = [_HEAD.pack(4 + size, correlation_id), head]
        copied = 0
        for records in ranges:
            is_small = records.length <= SMALL_READ and copied < MOST_COPIED
            if is_small or records.file.fileno() < 0:
                parts.append(records.file.pread(records.length, records.position))
                copied += records.length
            else:
                parts.append(records)
        return parts


class ReplicateHandler:
    """Serves followers."""

    def __init__(
        self, loop: AbstractEventLoop, replicas: ReplicaManager, throttle: ReplicationThrottle | None = None
    ) -> None:
        self._loop = loop
        self._replicas = replicas
        self._throttle = throttle
        self._links: dict[int, _Link] = {}
        """By broker: a follower has one at a time."""
        self._is_closed = False

    def __call__(self, connection: Connection, correlation_id: int, body: memoryview) -> Parts | None:
        broker = connection.peer_broker
        assert broker is not None
        request = decode_positions(body)
        link = self._links.get(broker)
        if request.number == 0 and not self._is_closed:
            if link is not None:
                link.close()
            session = FollowerSession(broker, self._replicas, self._replicas.clock.monotonic, self._throttle)
            link = self._links[broker] = _Link(request.session, session, connection, self._loop)
        elif not _continues(link, request, connection):
            refusal = encode_refusal(ErrorCode.fetch_session_id_not_found.value)
            return [_HEAD.pack(4 + len(refusal), correlation_id) + refusal]
        assert link is not None
        return link.take(request, correlation_id)

    def close(self) -> None:
        """Answer waiting followers and stop: the broker shuts down."""
        self._is_closed = True
        for link in self._links.values():
            link.close()
        self._links.clear()


def _continues(link: _Link | None, request: Asked, connection: Connection) -> bool:
    return (
        link is not None
        and link.connection is connection
        and link.id == request.session
        and link.next_number == request.number
    )
