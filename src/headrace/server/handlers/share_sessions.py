"""Share sessions: a member of a share group names its partitions once, then only what has changed.

A session belongs to a member, and to the connection on which it was heard last. Its requests, fetches and
acknowledgements alike, are numbered by its epoch, so that one that was lost or came twice is noticed.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from headrace.protocol.errors import CodedError, ErrorCode

from ..connection import Connection

FINAL_EPOCH: Final = -1
"""Ends the session."""
FIRST_EPOCH: Final = 0
"""Begins one."""
MOST_PARTITIONS: Final = 1_000_000
"""What all sessions together hold."""
MOST_OF_SESSION: Final = 4_000
"""Partitions of one: each of its fetches looks at all of them."""
_MAX_INT32: Final = 2**31 - 1

Key = tuple[UUID, int]
"""Of a partition: the id of its topic, and its number."""


class ShareSession:
    """The partitions that one member reads from this broker, and the epoch that its next request must have."""

    __slots__ = (
        "acquired_from",
        "connection",
        "end_wait",
        "epoch",
        "group_id",
        "is_over",
        "member_id",
        "partitions",
    )

    def __init__(self, group_id: str, member_id: str, connection: Connection) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.connection = connection
        self.epoch = FIRST_EPOCH
        self.partitions: dict[Key, None] = {}
        self.acquired_from: set[Key] = set()
        """The partitions whose records it has, or had: also those that it reads no more."""
        self.is_over = False
        """Whether it acquires nothing any more."""
        self.end_wait: Callable[[], None] = _nothing
        """Has the fetch answered that waits, if there is one: the next request of the session has come."""

    def in_turn(self) -> Sequence[Key]:
        """Its partitions, each time beginning with another one: none keeps the others from being read."""
        keys = list(self.partitions)
        first = self.epoch % len(keys) if keys else 0
        return keys[first:] + keys[:first]


class ShareSessions:
    """The sessions of all members that read from this broker, at most so many, and so many of one group."""

    def __init__(self, most: int, most_of_group: int) -> None:
        self._most = most
        self._most_of_group = most_of_group
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def is_full(self, group_id: str) -> bool:
        """Whether there is no room for one more of a group."""
        return len(self._sessions) >= self._most or self._is_too_large(group_id)

    def _is_too_large(self, group_id: str) -> bool:
        most = self._most_of_group
        return len(self._sessions) >= most and sum(1 for known, _ in self._sessions if known == group_id) >= most

    def begin(self, group_id: str, member_id: str, connection: Connection) -> ShareSession:
        """A new session in place of the one that the member may have had, whose records it still has."""
        before = self._sessions.get((group_id, member_id))
        if before is not None:
            self.end(before)
        if self.is_full(group_id):
            whose = f"of group {group_id}" if self._is_too_large(group_id) else "here"
            raise CodedError(ErrorCode.share_session_limit_reached, f"there are too many share sessions {whose}")
        session = self._sessions[group_id, member_id] = ShareSession(group_id, member_id, connection)
        if before is not None:
            session.acquired_from |= before.acquired_from
        return session

    def find(self, group_id: str, member_id: str, epoch: int, connection: Connection) -> ShareSession:
        """The session of a request that goes on with one, or ends it; it belongs to this connection from now on."""
        session = self._sessions.get((group_id, member_id))
        if session is None:
            raise CodedError(ErrorCode.share_session_not_found)
        if epoch not in (FINAL_EPOCH, session.epoch):
            raise CodedError(
                ErrorCode.invalid_share_session_epoch, f"epoch {epoch} where the session is at {session.epoch}"
            )
        session.connection = connection
        session.end_wait()
        return session

    def advance(self, session: ShareSession) -> None:
        """A request of the session has come: the next one has another epoch."""
        session.epoch = 1 if session.epoch == _MAX_INT32 else session.epoch + 1

    def update(self, session: ShareSession, added: Iterable[Key], forgotten: Iterable[Key]) -> None:
        """Let a session be about other partitions."""
        before = len(session.partitions)
        session.partitions.update(dict.fromkeys(added))
        for key in forgotten:
            session.partitions.pop(key, None)
        self._partitions += len(session.partitions) - before
        is_too_much = len(session.partitions) > MOST_OF_SESSION or self._partitions > MOST_PARTITIONS
        if is_too_much and len(session.partitions) > before:
            self.end(session)
            raise CodedError(ErrorCode.share_session_limit_reached, "share sessions have too many partitions")

    def end(self, session: ShareSession) -> bool:
        """Forget a session; whether it was its group's last one."""
        session.is_over = True
        session.end_wait()
        if self._sessions.get((session.group_id, session.member_id)) is session:
            del self._sessions[session.group_id, session.member_id]
            self._partitions -= len(session.partitions)
        return not self.has(session.group_id)

    def has(self, group_id: str) -> bool:
        """Whether a group has any."""
        return any(known == group_id for known, _ in self._sessions)

    def abandoned(self) -> list[ShareSession]:
        """Those whose connection is gone."""
        return [session for session in self._sessions.values() if session.connection.is_closed]


def _nothing() -> None:
    """No fetch waits."""


def keys_of(topics: Any) -> list[Key]:
    """The partitions that a request names."""
    return [
        (topic.topic_id or UUID(int=0), getattr(partition, "partition_index", partition))
        for topic in topics or ()
        for partition in topic.partitions or ()
    ]
