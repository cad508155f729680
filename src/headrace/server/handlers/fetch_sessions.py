"""Fetch sessions (KIP-227): a client names its partitions once, then only what changed.

A session holds the partitions in the order in which they are read; one that returned records goes to the end, so
that a busy partition does not starve the others. Answers within a session leave out partitions with nothing new.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Final
from uuid import UUID

from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.fetch import FIRST_WITH_IDS, FetchedPartition

SESSIONLESS: Final = -1
FIRST_EPOCH: Final = 0
EVICTION_SECONDS: Final = 120.0
MOST_PARTITIONS: Final = 1_000_000
"""What all sessions together hold; a client beyond them names its partitions each time."""
_MAX_INT32: Final = 2**31 - 1

TopicKey = str | UUID | None
Key = tuple[TopicKey, int]


class Interest:
    """A partition that a client fetches, from where, and what it was told last."""

    __slots__ = (
        "key",
        "last_fetched_epoch",
        "leader_epoch",
        "max_bytes",
        "offset",
        "told_high_watermark",
        "told_log_start",
    )

    def __init__(self, key: Key) -> None:
        self.key = key
        self.told_high_watermark = -1
        self.told_log_start = -1

    def update(self, wanted: Any) -> None:
        self.offset: int = wanted.fetch_offset
        self.max_bytes: int = wanted.partition_max_bytes
        self.leader_epoch: int = getattr(wanted, "current_leader_epoch", -1)
        self.last_fetched_epoch: int = getattr(wanted, "last_fetched_epoch", -1)

    @property
    def partition(self) -> int:
        return self.key[1]

    def is_news(self, answer: FetchedPartition) -> bool:
        """Whether a partition's response has changed since the last one of the session; if so, remember it."""
        news = (
            answer.code != 0
            or answer.records is not None
            or answer.diverging is not None
            or answer.preferred_read_replica >= 0
            or answer.high_watermark != self.told_high_watermark
            or answer.log_start_offset != self.told_log_start
        )
        self.told_high_watermark = answer.high_watermark if not answer.code else -1
        self.told_log_start = answer.log_start_offset if not answer.code else -1
        return news


class FetchSession:
    """The partitions of one client, and the epoch its next request must have."""

    __slots__ = ("by_id", "epoch", "id", "interests", "used_at")

    def __init__(self, session_id: int, by_id: bool, interests: "OrderedDict[Key, Interest]", now: float) -> None:
        self.id = session_id
        self.by_id = by_id
        self.epoch = 1
        self.interests = interests
        self.used_at = now

    def update(self, request: Any, by_id: bool) -> None:
        for topic in request.forgotten_topics_data or ():
            topic_key = topic.topic_id if by_id else topic.topic
            for partition in topic.partitions or ():
                self.interests.pop((topic_key, partition), None)
        _add(self.interests, request, by_id)


class FetchSessionView:
    """What one request asks for: all its partitions, and how its answer is cut down."""

    __slots__ = ("interests", "is_incremental", "session")

    def __init__(self, interests: Iterable[Interest], session: FetchSession | None, is_incremental: bool) -> None:
        self.interests = list(interests)
        self.session = session
        self.is_incremental = is_incremental

    @property
    def session_id(self) -> int:
        return self.session.id if self.session is not None else 0

    def tells(self, interest: Interest, answer: FetchedPartition) -> bool:
        """Whether the answer of a partition belongs into the response."""
        if self.session is None:
            return True
        if answer.records is not None and interest.key in self.session.interests:
            self.session.interests.move_to_end(interest.key)
        return interest.is_news(answer) or not self.is_incremental


class FetchSessions:
    """The sessions of all clients, at most `slots` of them; a new one takes the place of one that went quiet."""

    def __init__(self, slots: int, new_id: Callable[[], int]) -> None:
        self._slots = slots
        self._new_id = new_id
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def view(self, request: Any, version: int, now: float) -> FetchSessionView:
        """What a request asks for, by its session if it has one."""
        by_id = version >= FIRST_WITH_IDS
        session_id, epoch = getattr(request, "session_id", 0), getattr(request, "session_epoch", SESSIONLESS)
        if epoch in (SESSIONLESS, FIRST_EPOCH):
            self.end(session_id)
            interests: OrderedDict[Key, Interest] = OrderedDict()
            _add(interests, request, by_id)
            session = self._open(by_id, interests, now) if epoch == FIRST_EPOCH and interests else None
            return FetchSessionView(interests.values(), session, is_incremental=False)
        session = self._find(session_id, epoch, by_id)
        before = len(session.interests)
        session.update(request, by_id)
        self._partitions += len(session.interests) - before
        if not session.interests:
            self.end(session_id)
            return FetchSessionView((), None, is_incremental=False)
        if self._partitions > MOST_PARTITIONS and len(session.interests) > before:
            self.end(session_id)
            raise CodedError(ErrorCode.fetch_session_id_not_found)
        session.epoch = 1 if epoch == _MAX_INT32 else epoch + 1
        session.used_at = now
        self._sessions.move_to_end(session_id)
        return FetchSessionView(session.interests.values(), session, is_incremental=True)

    def _find(self, session_id: int, epoch: int, by_id: bool) -> FetchSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise CodedError(ErrorCode.fetch_session_id_not_found)
        if session.epoch != epoch:
            raise CodedError(ErrorCode.invalid_fetch_session_epoch)
        if session.by_id != by_id:
            raise CodedError(ErrorCode.fetch_session_topic_id_error)
        return session

    def _open(self, by_id: bool, interests: OrderedDict[Key, Interest], now: float) -> FetchSession | None:
        if len(self._sessions) >= self._slots and not self._evict(now):
            return None
        if self._partitions + len(interests) > MOST_PARTITIONS:
            return None
        session_id = self._new_id()
        while session_id in self._sessions or not session_id:
            session_id = self._new_id()
        session = FetchSession(session_id, by_id, interests, now)
        self._sessions[session_id] = session
        self._partitions += len(interests)
        return session

    def end(self, session_id: int) -> None:
        """Forget a session, if there is one of that number."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.interests)

    def _evict(self, now: float) -> bool:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now - oldest.used_at < EVICTION_SECONDS:
            return False
        self.end(oldest.id)
        return True


def _add(interests: OrderedDict[Key, Interest], request: Any, by_id: bool) -> None:
    for topic in request.topics or ():
        topic_key: TopicKey = topic.topic_id if by_id else topic.topic
        for wanted in topic.partitions or ():
            key = (topic_key, wanted.partition)
            interest = interests.get(key)
            if interest is None:
                interest = interests[key] = Interest(key)
            interest.update(wanted)
