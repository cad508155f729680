"""Fetch, versions 4-18.

Partitions are read in the order of the request (or session) until `max_bytes` is full; the first batch found is
returned whole whatever its size. When there are fewer than `min_bytes` the fetch waits on its partitions until
there are, or until `max_wait` has passed; an append wakes it.

- Readers see nothing at or beyond the high watermark (`read_committed`: the last stable offset). `read_committed` gets
  the aborted transactions with records in what it gets, and leaves those out itself.
- v7 sessions (see `fetch_sessions`); v9 leader epochs are checked; v12 `last_fetched_epoch` finds divergence;
  v13 topic ids.
- A replica id is refused (CLUSTER_AUTHORIZATION_FAILED) unless the connection is that broker's.
- v11 tells the client's rack. With `replica.selector.class` a leader sends the client to a replica in it, without
  records (see `replication.replica_selector`). Followers serve what they know to be committed to such clients only: to
  another, which takes it for the leader, an end that lags would look like lost records.
- Who owes bytes by its quota is answered without records, and with `throttle_time_ms`: see `throttling`. A session is
  not begun by such an answer, and what it has told is not told.
"""

from asyncio import AbstractEventLoop, Task, TimerHandle, sleep
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from struct import Struct
from typing import Any, Final, NamedTuple
from uuid import UUID

import structlog

from headrace.cluster.image import BrokerNode
from headrace.protocol.acl import AclOperation, ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode, ProtocolViolation
from headrace.protocol.fetch import (
    ANY_DESCRIPTOR,
    FetchedPartition,
    FetchedTopic,
    Response,
    write_in_steps,
    write_response,
)
from headrace.protocol.stepwise import LARGE
from headrace.replication.partition import Partition
from headrace.replication.purgatory import DelayedFetch, FetchablePartition
from headrace.replication.replica_manager import ReplicaManager
from headrace.replication.replica_selector import NOBODY, reader_for
from headrace.security.authorizer import Authorizer, Decisions
from headrace.storage.disk import StorageError

from ..connection import Connection, Parts, Slot
from ..dispatch import Request, decode, decode_in_turns, response_head
from ..throttling import Throttling
from .fetch_sessions import FIRST_EPOCH, SESSIONLESS, FetchSessions, FetchSessionView, Interest

READ_COMMITTED: Final = 1
FIRST_WITH_RACK: Final = 11
MANY: Final = 2_000
"""Partitions of a fetch that is better served in turns: some 10 ms."""
STEP: Final = 500
MOST_PARTITIONS: Final = 100_000
"""Partitions of one fetch: who fetches more wants to do harm."""
_LENGTH: Final = Struct(">i")
_new_tuple: Final = tuple.__new__  # a third of what a NamedTuple's own constructor costs

log = structlog.get_logger(__name__)


Topics = dict[str | UUID | None, FetchedTopic]
Brokers = Callable[[], Mapping[int, BrokerNode]]
"""Those who live, and where."""


class FetchTerms(NamedTuple):
    """What a fetch wants, of all its partitions alike."""

    committed_only: bool
    leader_only: bool
    rack: str
    may_read: Callable[[str], bool] | None
    """Which topics whoever fetches may read, where not all."""
    listener: str = ""
    """That it came on."""


class Read(NamedTuple):
    """What one partition gave."""

    interest: Interest
    answer: FetchedPartition


class Amount(NamedTuple):
    """How much was read."""

    size: int
    files: int


NOTHING: Final = Amount(0, 0)


class FileCaps(NamedTuple):
    """Limits on the files that a fetch response holds open, so that no client takes all descriptors."""

    held_below: int
    """Until it is sent, an answer holds only files open whose descriptor is below this; others are copied."""
    in_answer: int
    """Partitions that one answer has records of."""


NO_CAPS: Final = FileCaps(ANY_DESCRIPTOR, ANY_DESCRIPTOR)


class FetchHandler:
    """Serves Fetch."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        replicas: ReplicaManager,
        sessions: FetchSessions,
        most_bytes: int,
        replica_brokers: Brokers | None = None,
        files: FileCaps = NO_CAPS,
        authorizer: Authorizer | None = None,
        throttling: Throttling | None = None,
    ) -> None:
        self.loop = loop
        self.reads = None if authorizer is None else authorizer.decisions(AclOperation.READ, ResourceType.TOPIC)
        """Who may read which topics; None where everybody may read all."""
        self.throttling = throttling
        self.files = files
        self._replica_brokers = replica_brokers
        """Given where consumers are sent to replicas near them."""
        self._replicas = replicas
        self._sessions = sessions
        self._most_bytes = most_bytes
        self._tasks: set[Task[None]] = set()
        self.waiting: dict[DelayedFetch, None] = {}
        """The fetches that wait now, in the order in which they came."""

    def __call__(self, request: Request) -> Parts | None:
        if len(request.frame) - request.body > LARGE:
            self._serve_in_turns(request)
            return None
        fetch = Fetch(self, request, decode(request))
        try:
            if request.connection.limits is not None and (throttled := self._throttled(fetch, request)) is not None:
                return throttled
            view = self._view(fetch.entity, request)
        except CodedError as error:
            return fetch.response([], code=error.code.value)
        if len(view.interests) > MANY:
            self._serve_in_turns(request, fetch, view)
            return None
        return fetch.start(view)

    def _throttled(self, fetch: "Fetch", request: Request) -> Parts | None:
        """The answer of a fetch whose client owes bytes. The epoch of a session goes on; a new one is not begun."""
        seconds = fetch.owed()
        if seconds <= 0:
            return None
        if getattr(fetch.entity, "session_epoch", SESSIONLESS) in (SESSIONLESS, FIRST_EPOCH):
            return fetch.throttled(0, seconds)
        return fetch.throttled(self._view(fetch.entity, request).session_id, seconds)

    def end_session(self, view: FetchSessionView) -> None:
        """A session was begun whose client does not learn of it."""
        self._sessions.end(view.session_id)

    def _view(self, entity: Any, request: Request) -> FetchSessionView:
        _refuse_foreign_replica(entity, request.connection.peer_broker)
        return self._sessions.view(entity, request.version, self.loop.time())

    def _serve_in_turns(
        self, request: Request, fetch: "Fetch | None" = None, view: FetchSessionView | None = None
    ) -> None:
        """A fetch of many partitions: nothing else of this connection, and something of others in between."""
        request.connection.hold()
        slot = request.connection.open_slot()
        self.run(self._in_turns(request, slot, fetch, view), request.connection)

    def run(self, work: Coroutine[Any, Any, None], connection: Connection) -> None:
        """Carry out in a task what may fail only for its connection."""
        task = self.loop.create_task(_guarded(work, connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _in_turns(
        self, request: Request, slot: Slot, fetch: "Fetch | None", view: FetchSessionView | None
    ) -> None:
        try:
            if fetch is None:
                entity = await decode_in_turns(request.api_key, request.version, request.frame[request.body :])
                _check_count(entity)
                fetch = Fetch(self, request, entity)
            await fetch.start_in_turns(view or self._view(fetch.entity, request), slot)
        except CodedError as error:
            assert fetch is not None
            if request.connection.is_closed:
                return
            slot.answer(fetch.response([], code=error.code.value))
        if not request.connection.is_closed:
            request.connection.release()

    def wake_all(self) -> None:
        """Answer every fetch that waits, with what there is: the broker stops."""
        for delayed in list(self.waiting):
            delayed.finish()

    def partition(self, interest: Interest, may_read: Callable[[str], bool] | None = None) -> Partition:
        topic, index = interest.key
        name: str | None
        if isinstance(topic, str):
            name = topic
        else:
            name = self._replicas.name_of(topic.bytes) if topic is not None else None
            if name is None:
                raise CodedError(ErrorCode.unknown_topic_id)
        if may_read is not None and not may_read(name):
            raise CodedError(ErrorCode.topic_authorization_failed)
        return self._replicas.partition(name, index)

    def read(
        self, interests: Sequence[Interest], max_bytes: int, terms: FetchTerms, before: Amount = NOTHING
    ) -> tuple[list[Read], Amount]:
        """Read partitions of a fetch until enough, after those `before`: what they gave, and how much it is."""
        total, files = before
        left = min(max_bytes, self._most_bytes) - total
        reads = []
        for interest in interests:
            allowed = left if files < self.files.in_answer else 0
            answer = self._read_one(interest, allowed, terms, is_first=not total)
            if answer.records is not None:
                total += answer.records.length
                left -= answer.records.length
                files += 1
            reads.append(_new_tuple(Read, (interest, answer)))
        return reads, _new_tuple(Amount, (total, files))

    def _read_one(self, interest: Interest, left: int, terms: FetchTerms, *, is_first: bool) -> FetchedPartition:
        max_bytes = max(min(left, interest.max_bytes), 0)
        try:
            partition = self.partition(interest, terms.may_read)
            if terms.leader_only or not terms.rack or self._replica_brokers is None:
                partition.check_leads()
            else:
                sent = self._sent_elsewhere(partition, interest, terms, self._replica_brokers())
                if sent is not None:
                    return sent
            answer = partition.read(
                interest.offset,
                max_bytes,
                committed_only=terms.committed_only,
                current_leader_epoch=interest.leader_epoch,
                last_fetched_epoch=interest.last_fetched_epoch,
            )
        except CodedError as error:
            return FetchedPartition(interest.partition, error.code.value)
        records = answer.records
        if records is None:
            return answer
        if records.length > max_bytes and not is_first:
            return answer._replace(records=None)
        partition.bytes_out += records.length
        partition.messages_out += records.next_offset - interest.offset
        return answer

    def _sent_elsewhere(
        self, partition: Partition, interest: Interest, terms: FetchTerms, brokers: Mapping[int, BrokerNode]
    ) -> FetchedPartition | None:
        """Whom to read from instead, if there is someone better."""
        followers = partition.followers
        if not partition.is_leader or followers is None:
            return None

        def end_of(broker: int) -> int:
            follower = followers.get(broker)
            return -1 if follower is None else follower.end

        reader = reader_for(terms.rack, interest.offset, partition.state, brokers, end_of, terms.listener)
        if reader == NOBODY:
            return None
        result = partition.read(
            interest.offset,
            0,
            committed_only=terms.committed_only,
            current_leader_epoch=interest.leader_epoch,
            last_fetched_epoch=interest.last_fetched_epoch,
        )
        return result if result.diverging else result._replace(records=None, preferred_read_replica=reader)


class Fetch:
    """One fetch under way."""

    __slots__ = (
        "_connection",
        "_correlation_id",
        "_delayed",
        "_handler",
        "_limits",
        "_max_bytes",
        "_max_wait",
        "_min_bytes",
        "_slot",
        "_terms",
        "_timer",
        "_version",
        "_view",
        "entity",
    )

    def __init__(self, handler: FetchHandler, request: Request, entity: Any) -> None:
        self.entity = entity
        self._handler = handler
        self._version = request.version
        self._correlation_id = request.correlation_id
        self._slot: Slot
        self._max_wait = entity.max_wait.total_seconds()
        self._min_bytes: int = entity.min_bytes
        self._max_bytes: int = entity.max_bytes
        self._connection = connection = request.connection
        may_read = None if handler.reads is None else _reader(handler.reads, connection)
        leader_only, rack = self._version < FIRST_WITH_RACK, getattr(entity, "rack_id", "")
        committed_only = entity.isolation_level == READ_COMMITTED
        self._terms = FetchTerms(committed_only, leader_only, rack, may_read, connection.listener_name)
        limits = connection.limits
        self._limits = None if limits is None or limits.fetch is None else limits
        if self._limits is not None and handler.throttling is not None:
            self._max_bytes = min(self._max_bytes, handler.throttling.most_fetched(self._limits))
            self._min_bytes = min(self._min_bytes, self._max_bytes)
        self._view: FetchSessionView
        self._delayed: DelayedFetch | None = None
        self._timer: TimerHandle | None = None

    def start(self, view: FetchSessionView) -> Parts | None:
        """The answer if there is enough now, else None and a slot."""
        self._view = view
        reads, amount = self._handler.read(view.interests, self._max_bytes, self._terms)
        if self._is_enough(amount.size, reads):
            return self._respond_with(reads)
        self._wait(self._given_back(reads), self._connection.open_slot())
        return None

    async def start_in_turns(self, view: FetchSessionView, slot: Slot) -> None:
        """The same for many partitions, with turns for others in between. The slot gets the answer."""
        self._view = view
        reads, size = await self._read_in_turns()
        if self._is_enough(size, reads):
            answer = await self._respond_in_turns(reads)
            if not self._connection.is_closed:
                slot.answer(answer)
        elif not self._connection.is_closed:
            self._wait(self._given_back(reads), slot)

    def _given_back(self, reads: list[Read]) -> list[Partition]:
        """The partitions that were read, with what they gave not counted: it is too little to be sent now."""
        self._take_back(reads)
        return [self._handler.partition(interest) for interest, _ in reads]

    def _take_back(self, reads: list[Read]) -> None:
        """Do not count what was read: it is not sent."""
        for interest, answer in reads:
            if answer.records is not None:
                with suppress(CodedError):  # the partition is not here any more
                    partition = self._handler.partition(interest)
                    partition.bytes_out -= answer.records.length
                    partition.messages_out -= answer.records.next_offset - interest.offset

    def _is_enough(self, size: int, reads: list[Read]) -> bool:
        if size >= self._min_bytes or self._max_wait <= 0 or not reads:
            return True
        return any(_is_urgent(read.answer) for read in reads)

    async def _read_in_turns(self) -> tuple[list[Read], int]:
        interests, reads, amount = self._view.interests, [], NOTHING
        for start in range(0, len(interests), STEP):
            found, amount = self._handler.read(interests[start : start + STEP], self._max_bytes, self._terms, amount)
            reads += found
            await sleep(0)
        return reads, amount.size

    def response(self, topics: list[FetchedTopic], *, code: int = 0, session_id: int = 0) -> Parts:
        response = self._begun()
        write_response(response, self._version, topics, code=code, session_id=session_id)
        return self._sent(response)

    def owed(self) -> float:
        """The seconds that the client has to wait for records."""
        throttling, limits = self._handler.throttling, self._limits
        return 0.0 if throttling is None or limits is None else throttling.owed(limits)

    def throttled(self, session_id: int, seconds: float) -> Parts:
        """The answer without records to a client that owes bytes."""
        assert self._handler.throttling is not None
        assert self._limits is not None
        response = self._begun()
        milliseconds = self._handler.throttling.refused_fetch(self._connection, self._limits, seconds)
        write_response(response, self._version, [], session_id=session_id, throttle_ms=milliseconds)
        return finished(response)

    def _throttled_after(self, reads: list[Read]) -> Parts | None:
        """The same where others of this client have used up its bytes while this fetch waited."""
        seconds = self.owed()
        if seconds <= 0:
            return None
        self._take_back(reads)
        view = self._view
        if view.is_incremental:
            return self.throttled(view.session_id, seconds)
        self._handler.end_session(view)
        return self.throttled(0, seconds)

    def _sent(self, response: Response) -> Parts:
        parts, throttling, limits = finished(response), self._handler.throttling, self._limits
        if limits is not None and throttling is not None:
            throttling.fetched(self._connection, limits, response.length, parts, ApiKey.FETCH, self._version)
        return parts

    def _begun(self) -> Response:
        head = bytes(response_head(ApiKey.FETCH, self._version, self._correlation_id))
        return Response(head, self._handler.files.held_below)

    def _respond_with(self, reads: list[Read]) -> Parts:
        if self._limits is not None and (throttled := self._throttled_after(reads)) is not None:
            return throttled
        topics: Topics = {}
        self._gather(reads, topics)
        return self.response(list(topics.values()), session_id=self._view.session_id)

    async def _respond_in_turns(self, reads: list[Read]) -> Parts:
        if self._limits is not None and (throttled := self._throttled_after(reads)) is not None:
            return throttled
        topics: Topics = {}
        for start in range(0, len(reads), STEP):
            self._gather(reads[start : start + STEP], topics)
            await sleep(0)
        response = self._begun()
        session_id = self._view.session_id
        for _ in write_in_steps(response, self._version, list(topics.values()), session_id=session_id):
            await sleep(0)
        return self._sent(response)

    def _gather(self, reads: Sequence[Read], topics: Topics) -> None:
        """Put what the client is to be told with its topic."""
        view = self._view
        for interest, answer in reads:
            if not view.tells(interest, answer):
                continue
            key = interest.key[0]
            topic = topics.get(key)
            if topic is None:
                name, topic_id = (key, None) if isinstance(key, str) else ("", key)
                topic = topics[key] = FetchedTopic(name, topic_id, [])
            topic.partitions.append(answer)

    def _wait(self, partitions: list[Partition], slot: Slot) -> None:
        self._slot = slot
        delayed = DelayedFetch(partitions, self._has_enough, self._wake)
        self._delayed = delayed
        self._handler.waiting[delayed] = None
        self._timer = self._handler.loop.call_later(self._max_wait, delayed.finish)
        self._slot.abandoned = self._stop_waiting

    def _stop_waiting(self) -> None:
        assert self._delayed is not None
        assert self._timer is not None
        self._delayed.cancel()
        self._handler.waiting.pop(self._delayed, None)
        self._timer.cancel()

    def _has_enough(self, moved: FetchablePartition) -> bool:
        """Whether there is enough now that a partition has moved, or an error to tell."""
        try:
            return (self._min_bytes <= 1 and self._shows_all(moved)) or self._available() >= max(self._min_bytes, 1)
        except CodedError:
            return True

    def _shows_all(self, moved: FetchablePartition) -> bool:
        """For `read_committed` nothing has come where the last stable offset stays behind an open transaction."""
        return not self._terms.committed_only or moved.last_stable_offset == moved.high_watermark

    def _available(self) -> int:
        total = 0
        for interest in self._view.interests:
            partition = self._handler.partition(interest)
            total += partition.available(interest.offset, committed_only=self._terms.committed_only)
            if total >= self._min_bytes:
                break
        return total

    def _wake(self) -> None:
        """Called by a partition that has others to tell: what fails here ends here."""
        self._stop_waiting()
        if self._connection.is_closed:
            return
        if len(self._view.interests) > MANY:
            self._handler.run(self._answer_in_turns(), self._connection)
            return
        try:
            reads, _ = self._handler.read(self._view.interests, self._max_bytes, self._terms)
            answer = self._respond_with(reads)
        except StorageError as error:
            self._connection.read_failed(error)
        except Exception:
            log.exception("request failed", api=ApiKey.FETCH.name, version=self._version)
            self._connection.close()
        else:
            self._slot.answer(answer)

    async def _answer_in_turns(self) -> None:
        reads, _ = await self._read_in_turns()
        answer = await self._respond_in_turns(reads)
        if not self._connection.is_closed:
            self._slot.answer(answer)


def _reader(reads: Decisions, connection: Connection) -> Callable[[str], bool] | None:
    """What the other end of a connection may read, each time that it is asked."""
    if connection.peer_broker is not None:
        return None
    return lambda topic: reads.allow(connection.principal, connection.peer, topic)


async def _guarded(work: Coroutine[Any, Any, None], connection: Connection) -> None:
    try:
        await work
    except ProtocolViolation as error:
        log.info("connection closed", peer=connection.peer, reason=str(error))
        connection.close()
    except StorageError as error:
        connection.read_failed(error)
    except Exception:
        log.exception("request failed", api=ApiKey.FETCH.name)
        connection.close()


def finished(response: Response) -> Parts:
    """All parts of a response, with their length in front."""
    parts = response.finish()
    head = parts[0]
    assert isinstance(head, bytearray)
    _LENGTH.pack_into(head, 0, response.length - 4)
    return parts


def _check_count(entity: Any) -> None:
    topics = (*(entity.topics or ()), *(getattr(entity, "forgotten_topics_data", None) or ()))
    if len(topics) > MOST_PARTITIONS or sum(len(topic.partitions or ()) for topic in topics) > MOST_PARTITIONS:
        raise ProtocolViolation(f"more than {MOST_PARTITIONS} partitions in one fetch")


def _is_urgent(answer: FetchedPartition) -> bool:
    """Whether the client should know at once."""
    return bool(answer.code) or answer.diverging is not None or answer.preferred_read_replica != NOBODY


def _refuse_foreign_replica(entity: Any, peer_broker: int | None) -> None:
    state = getattr(entity, "replica_state", None)
    replica_id = state.replica_id if state is not None else getattr(entity, "replica_id", -1)
    if replica_id >= 0 and replica_id != peer_broker:
        raise CodedError(ErrorCode.cluster_authorization_failed)
