"""ShareFetch, versions 1-2, and ShareAcknowledge, 1-2: what members of share groups ask the leaders of partitions.

A fetch acquires records for its member: they are nobody else's until it acknowledges them, or their lock expires. What
comes back are whole batches as they lie in the log, and the ranges of offsets that are the member's. With fewer than
`min_bytes` to get the fetch waits until there are, or until `max_wait` has passed; appends wake it, and so do records
that were released.

- Both take READ of the group, and of each topic. Other errors are those of partitions: NOT_LEADER_OR_FOLLOWER comes
  with who leads; while the share coordinator cannot be reached there is nothing to get.
- While a fetch waits its connection goes on, so that members which are gone are noticed: they would get records until
  the limit of deliveries is reached. The next request of its session, or its end, has it answered.
- Sessions (see `share_sessions`): SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH, SHARE_SESSION_LIMIT_REACHED,
  which a group reaches also by itself, with twice as many as it may have members (in Kafka one takes those of all). A
  session ends with its epoch of -1 or with its connection; what it had acquired is then released.
- Acknowledgements are answered once they are committed, those of a partition all or none: INVALID_RECORD_STATE where
  the member has not acquired all of it. They may come with a fetch, but not with the first one of a session.
- What they release may have a delay of its own, in a tagged field of ours (see `protocol.share_fetch`), up to a day.
- v2 renews locks (a request that says so fetches nothing), and limits records strictly instead of by whole batches.
- A request names at most 4,000 partitions, and says of the records of one at most 10,000 things one after the other:
  INVALID_REQUEST otherwise, as longer ones would keep everybody waiting. Nor has a session more partitions. Of a batch
  of more than 10,000 records the rest comes later.
- Who owes bytes by its quota gets no records for now; its acknowledgements count.
"""

from asyncio import AbstractEventLoop, Future, Task, gather
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final, TypeVar
from uuid import UUID

import structlog

from headrace.cluster.image import ClusterImage
from headrace.net.pacing import paced
from headrace.protocol.acl import AclOperation, ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.encode import blank_response
from headrace.protocol.errors import CodedError, ErrorCode, ProtocolViolation
from headrace.protocol.fetch import Response
from headrace.protocol.share_fetch import NodeEndpoint, SharedPartition, release_delay, write_response
from headrace.replication.purgatory import DelayedFetch, FetchablePartition
from headrace.replication.replica_manager import ReplicaManager
from headrace.replication.share_leader import MOST_RUNS, ShareLeader, Wanted
from headrace.replication.share_manager import ShareManager
from headrace.replication.share_window import Acknowledgement, AcknowledgeType
from headrace.security.acl import REFUSALS
from headrace.security.authorizer import Authorizer
from headrace.storage.disk import StorageError

from ..connection import Connection, Parts, Slot
from ..dispatch import Request, decode_in_turns, frame_response, response_head
from ..throttling import Throttling
from .fetch import FileCaps, finished
from .share_sessions import FINAL_EPOCH, FIRST_EPOCH, MOST_OF_SESSION, Key, ShareSession, ShareSessions, keys_of

STRICT: Final = 1
"""The acquire mode in which a fetch gets never more records than it asks for."""
LONGEST_DELAY_MS: Final = 86_400_000
"""After which a record that is released is delivered again; a day."""
LONGEST_ID: Final = 1_000
"""Characters of a member id: each record that is out is its member's."""

log = structlog.get_logger(__name__)

T = TypeVar("T")


class ShareHandler:
    """Serves ShareFetch and ShareAcknowledge."""

    def __init__(
        self,
        *,
        loop: AbstractEventLoop,
        image: ClusterImage,
        replicas: ReplicaManager,
        shares: ShareManager,
        sessions: ShareSessions,
        most_bytes: int,
        files: FileCaps,
        authorizer: Authorizer | None,
        throttling: Throttling,
    ) -> None:
        self.loop = loop
        self.most_bytes = most_bytes
        self.files = files
        self.throttling = throttling
        self.waiting: dict[DelayedFetch, None] = {}
        """The fetches that wait now, in the order in which they came."""
        self._image = image
        self._replicas = replicas
        self._shares = shares
        self._sessions = sessions
        self._authorizer = authorizer
        self._tasks: set[Task[None]] = set()

    def fetch(self, request: Request) -> None:
        """Serve ShareFetch."""
        self._begin(request, self._fetch)

    def acknowledge(self, request: Request) -> None:
        """Serve ShareAcknowledge."""
        self._begin(request, self._acknowledge)

    def wake_all(self) -> None:
        """Answer every fetch that waits, with what there is: the broker stops."""
        for delayed in list(self.waiting):
            delayed.finish()

    async def close(self) -> None:
        """End what is not answered yet: nobody is there to hear it."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await gather(*tasks, return_exceptions=True)

    def sweep(self) -> None:
        """End the sessions whose connections are gone."""
        for session in self._sessions.abandoned():
            self._end_session(session)

    def _begin(self, request: Request, serve: "Serve") -> None:
        """Both run alone on their connection, unless they wait for records: what they change the next request sees."""
        request.connection.hold()
        slot = request.connection.open_slot()
        task = self.loop.create_task(self._run(request, slot, serve))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, request: Request, slot: Slot, serve: "Serve") -> None:
        connection = request.connection
        try:
            entity = await decode_in_turns(request.api_key, request.version, request.frame[request.body :])
            fetch = ShareFetch(self, request, entity)
            parts = await serve(fetch, request, entity)
        except ProtocolViolation as error:
            log.info("connection closed", peer=connection.peer, reason=str(error))
            connection.close()
        except StorageError as error:
            connection.read_failed(error)
        except Exception:
            log.exception("request failed", api=ApiKey(request.api_key).name, version=request.version)
            connection.close()
        else:
            if not connection.is_closed:
                slot.answer(parts)
                fetch.let_others_run()

    # ShareFetch

    async def _fetch(self, fetch: "ShareFetch", request: Request, entity: Any) -> Parts:
        try:
            self._check_group(request.connection, entity)
            _check_count(entity)
            _check_renewal(entity)
            session = self._session_of_fetch(request.connection, entity)
        except CodedError as error:
            return fetch.response((), error)
        await fetch.acknowledge(session)
        if entity.share_session_epoch == FINAL_EPOCH:
            await fetch.settle()
            self._end_session(session)
        else:
            if not getattr(entity, "is_renew_ack", False):
                await fetch.acquire(session)
            await fetch.settle()
        return fetch.response(keys_of(entity.topics) if fetch.is_first else ())

    def _session_of_fetch(self, connection: Connection, entity: Any) -> ShareSession:
        epoch, group_id, member_id = entity.share_session_epoch, entity.group_id, entity.member_id
        if epoch == FIRST_EPOCH:
            if any(partition.acknowledgement_batches for topic in entity.topics for partition in topic.partitions):
                raise CodedError(ErrorCode.invalid_request, "the first fetch of a session acknowledges nothing")
            if self._sessions.is_full(group_id):
                self.sweep()
            if not self._sessions.has(group_id):
                keys = keys_of(entity.topics)
                self._shares.read_again(group_id, [(topic_id.bytes, index) for topic_id, index in keys])
            session = self._sessions.begin(group_id, member_id, connection)
        else:
            session = self._sessions.find(group_id, member_id, epoch, connection)
        if epoch != FINAL_EPOCH:
            named = keys_of(entity.topics)
            added = [(key[0].bytes, key[1]) for key in named if key not in session.partitions]
            self._sessions.update(session, named, keys_of(entity.forgotten_topics_data))
            self._sessions.advance(session)
            self._shares.verify(group_id, added)
        return session

    def _end_session(self, session: ShareSession) -> None:
        for topic_id, index in session.acquired_from:
            self._shares.release(session.group_id, session.member_id, (topic_id.bytes, index))
        if self._sessions.end(session):
            keys = {**session.partitions, **dict.fromkeys(session.acquired_from)}
            self._shares.forget(session.group_id, [(topic_id.bytes, index) for topic_id, index in keys])

    # ShareAcknowledge

    async def _acknowledge(self, fetch: "ShareFetch", request: Request, entity: Any) -> Parts:
        values = blank_response(request.api_key, request.version, ErrorCode.none.value)
        try:
            self._check_group(request.connection, entity)
            _check_count(entity)
            epoch = entity.share_session_epoch
            if epoch == FIRST_EPOCH:
                raise CodedError(ErrorCode.invalid_share_session_epoch, "a session begins with a fetch")
            session = self._sessions.find(entity.group_id, entity.member_id, epoch, request.connection)
            self._sessions.advance(session)
        except CodedError as error:
            values |= {"error_code": error.code, "error_message": error.message}
        else:
            await fetch.acknowledge(session)
            await fetch.settle()
            if epoch == FINAL_EPOCH:
                self._end_session(session)
            values |= fetch.acknowledged()
        return [frame_response(request.api_key, request.version, request.correlation_id, values)]

    # What both need

    def _check_group(self, connection: Connection, entity: Any) -> None:
        group_id, member_id = entity.group_id, entity.member_id
        if not group_id or not member_id or len(member_id) > LONGEST_ID:
            raise CodedError(ErrorCode.invalid_request, "a group id and a member id are needed")
        self._check_right(connection, ResourceType.GROUP, group_id)

    def _check_right(self, connection: Connection, kind: ResourceType, name: str) -> None:
        authorizer = self._authorizer
        if authorizer is None or connection.peer_broker is not None:
            return
        if not authorizer.allows(connection.principal, connection.peer, AclOperation.READ, kind, name):
            raise CodedError(REFUSALS[kind], f"{connection.principal} may not READ {kind.name} {name}")

    def leader(self, group_id: str, key: Key, connection: Connection) -> ShareLeader:
        """The share-partition, which this broker leads; or the `CodedError` that the partition is answered with."""
        topic = self._image.topic_by_id(key[0])
        if topic is None:
            raise CodedError(ErrorCode.unknown_topic_id)
        self._check_right(connection, ResourceType.TOPIC, topic.name)
        return self._shares.leader(group_id, self._replicas.partition(topic.name, key[1]))

    def lock_ms(self, group_id: str) -> int:
        """For how long records of a group are locked."""
        return round(self._shares.settings(group_id).record_lock_seconds * 1000)

    def current_leader(self, key: Key) -> tuple[int, int]:
        """Who leads a partition, and in which epoch, as far as this broker knows."""
        topic = self._image.topic_by_id(key[0])
        if topic is None or not 0 <= key[1] < len(topic.partitions):
            return -1, -1
        state = topic.partitions[key[1]]
        return state.leader, state.leader_epoch

    def endpoints(self, partitions: Iterable[SharedPartition], listener: str) -> list[NodeEndpoint]:
        """Where the leaders are found that the partitions of a response name."""
        nodes = []
        for leader in sorted({partition.leader[0] for partition in partitions} - {-1}):
            node = self._image.brokers.get(leader)
            endpoint = None if node is None else node.endpoint(listener)
            if node is not None and endpoint is not None:
                nodes.append(NodeEndpoint(leader, endpoint.host, endpoint.port, node.rack))
        return nodes


class ShareFetch:
    """One request under way: what it acknowledges, what it acquires, and the answer."""

    def __init__(self, handler: ShareHandler, request: Request, entity: Any) -> None:
        self.is_first = entity.share_session_epoch == FIRST_EPOCH
        self._handler = handler
        self._request = request
        self._entity = entity
        self._connection = request.connection
        self._release_ms = release_delay(request.frame[request.body :])
        self._answers: dict[Key, SharedPartition] = {}
        self._pending: list[tuple[SharedPartition, Key, Future[None]]] = []
        self._has_failed = False
        """Whether there is an error to tell at once."""
        self._bytes_left = self._records_left = self._files_left = 0
        self._session: ShareSession | None = None
        """That it acquires records for."""
        self._is_alone = True
        """Whether no other request of the connection is served meanwhile."""
        limits = self._connection.limits
        self._limits = None if limits is None or limits.fetch is None else limits

    def _answer(self, key: Key) -> SharedPartition:
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answers[key] = SharedPartition(key[1])
        return answer

    # Acknowledgements

    async def acknowledge(self, session: ShareSession) -> None:
        """Begin with what the request acknowledges."""
        may_renew = bool(getattr(self._entity, "is_renew_ack", False))
        release_seconds = None if self._release_ms is None else self._release_ms / 1000
        async for key, asked in paced(_partitions(self._entity.topics)):
            if not asked.acknowledgement_batches:
                continue
            answer = self._answer(key)
            try:
                said = acknowledgements(asked.acknowledgement_batches, may_renew=may_renew)
                _check_delay(self._release_ms)
                leader = self._handler.leader(session.group_id, key, self._connection)
                waiter = leader.acknowledge(session.member_id, said, release_seconds)
            except CodedError as error:
                self._refuse(answer, key, error)
            else:
                if waiter is not None:
                    self._pending.append((answer, key, waiter))

    def _refuse(self, answer: SharedPartition, key: Key, error: CodedError) -> None:
        self._has_failed = True
        answer.acknowledge_code, answer.acknowledge_message = error.code.value, error.message
        self._tell_leader(answer, key, error)

    def _tell_leader(self, answer: SharedPartition, key: Key, error: CodedError) -> None:
        if error.code is ErrorCode.not_leader_or_follower:
            answer.leader = self._handler.current_leader(key)

    async def settle(self) -> None:
        """Wait until what is acknowledged is committed, or will not be."""
        for answer, key, waiter in self._pending:
            try:
                await waiter
            except CodedError as error:
                self._refuse(answer, key, error)

    def acknowledged(self) -> dict[str, Any]:
        """What ShareAcknowledge answers."""
        topics: dict[Any, list[dict[str, Any]]] = {}
        for topic_id, index in keys_of(self._entity.topics):
            answer = self._answer((topic_id, index))
            topics.setdefault(topic_id, []).append(
                {
                    "partition_index": index,
                    "error_code": answer.acknowledge_code,
                    "error_message": answer.acknowledge_message,
                    "current_leader": {"leader_id": answer.leader[0], "leader_epoch": answer.leader[1]},
                }
            )
        endpoints = self._handler.endpoints(self._answers.values(), self._connection.listener_name)
        return {
            "acquisition_lock_timeout": self._handler.lock_ms(self._entity.group_id),
            "responses": [{"topic_id": topic_id, "partitions": found} for topic_id, found in topics.items()],
            "node_endpoints": [
                {"node_id": each.node_id, "host": each.host, "port": each.port, "rack": each.rack} for each in endpoints
            ],
        }

    # Records

    async def acquire(self, session: ShareSession) -> None:
        """Acquire records of the session's partitions: enough of them, or what there is when the time is over."""
        entity, handler, keys = self._entity, self._handler, session.in_turn()
        if self.owed() > 0:
            return
        self._session = session
        self._bytes_left = min(entity.max_bytes, handler.most_bytes)
        if self._limits is not None:
            self._bytes_left = min(self._bytes_left, handler.throttling.most_fetched(self._limits))
        self._records_left, self._files_left = entity.max_records, handler.files.in_answer
        seconds, least = entity.max_wait.total_seconds(), entity.min_bytes
        found = await self._find(keys)
        if self._connection.is_closed:
            return
        if not self._attempt(found, least if seconds > 0 else 0) and seconds > 0:
            await self._wait(session, keys, found, seconds)

    async def _wait(
        self, session: ShareSession, keys: Sequence[Key], found: Sequence[tuple[Key, ShareLeader]], seconds: float
    ) -> None:
        handler, slot, least = self._handler, self._connection.latest_slot, self._entity.min_bytes
        woken: Future[None] = handler.loop.create_future()

        watched: dict[FetchablePartition, tuple[Key, ShareLeader]] = {}
        for key, leader in found:
            watched[leader] = watched[leader.partition] = key, leader

        def is_ready(moved: FetchablePartition) -> bool:
            """Called by a partition that has others to tell: what fails here is told by the task that waits."""
            try:
                key, leader = watched[moved]
                if not leader.is_over and not leader.available():
                    return False
                return self._attempt(self._leaders(keys if least > 1 else (key,)), least)
            except Exception as error:
                if not woken.done():
                    woken.set_exception(error)
                return True

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        delayed = DelayedFetch(watched, is_ready, wake)
        handler.waiting[delayed] = None
        timer = handler.loop.call_later(seconds, delayed.finish)
        session.end_wait = delayed.finish
        if slot is not None:
            slot.abandoned = delayed.finish
        self.let_others_run()  # and see whether anybody is still there, as who is gone would take records with it
        try:
            await woken
        finally:
            delayed.cancel()
            timer.cancel()
            handler.waiting.pop(delayed, None)
        for key, leader in found:
            self._try(key, leader.check)  # it may be given up, and why is told once
        if self._is_news():
            return
        found = await self._find(keys)
        if not self._connection.is_closed:
            self._attempt(found)

    def let_others_run(self) -> None:
        """Let the connection go on with its next request."""
        if self._is_alone:
            self._is_alone = False
            self._connection.release()

    def _is_news(self) -> bool:
        return self._has_failed or any(answer.acquired for answer in self._answers.values())

    def _leaders(self, keys: Iterable[Key]) -> Iterator[tuple[Key, ShareLeader]]:
        """The share-partitions that are here; why others are not is told."""
        find, group_id = self._handler.leader, self._entity.group_id
        for key in keys:
            leader = self._try(key, partial(find, group_id, key, self._connection))
            if leader is not None:
                yield key, leader

    async def _find(self, keys: Sequence[Key]) -> Sequence[tuple[Key, ShareLeader]]:
        """The same, while others are served."""
        return [found async for key in paced(keys) for found in self._leaders((key,))]

    def _attempt(self, found: Iterable[tuple[Key, ShareLeader]], least: int = 0) -> bool:
        """Acquire what there is, unless it is less than so many bytes; whether there is something to answer."""
        found = list(found)
        available = least if least <= 1 else sum(self._try(key, leader.available) or 0 for key, leader in found)
        if available >= least or self._has_failed:
            for key, leader in found:
                self._acquire(key, leader)
        return self._is_news()

    def _try(self, key: Key, work: Callable[[], T]) -> T | None:
        """What work on a partition gives; where it fails that is told."""
        try:
            return work()
        except CodedError as error:
            self._fail(key, error)
            return None

    def _acquire(self, key: Key, leader: ShareLeader) -> None:
        entity, session = self._entity, self._session
        if session is None or session.is_over or min(self._bytes_left, self._records_left, self._files_left) <= 0:
            return
        wanted = Wanted(
            max_bytes=self._bytes_left,
            max_records=self._records_left,
            batch_size=entity.batch_size,
            is_strict=getattr(entity, "share_acquire_mode", 0) == STRICT,
        )
        acquired = self._try(key, lambda: leader.acquire(entity.member_id, wanted))
        if acquired is not None:
            session.acquired_from.add(key)
            answer = self._answer(key)
            answer.records, answer.acquired = acquired.records, acquired.ranges
            self._bytes_left -= acquired.records.length
            self._records_left -= acquired.record_count
            self._files_left -= 1

    def _fail(self, key: Key, error: CodedError) -> None:
        """Clients know no such error of a fetch as that the share coordinator is away: they just get nothing."""
        if error.code is ErrorCode.coordinator_not_available:
            return
        self._has_failed = True
        answer = self._answer(key)
        answer.code, answer.message = error.code.value, error.message
        self._tell_leader(answer, key, error)

    # The answer

    def owed(self) -> float:
        """The seconds that the client has to wait for records."""
        return 0.0 if self._limits is None else self._handler.throttling.owed(self._limits)

    def response(self, keys: Iterable[Key], error: CodedError | None = None) -> Parts:
        """The answer of ShareFetch: what there is to tell, and at any rate these partitions."""
        request, handler, limits = self._request, self._handler, self._limits
        for key in keys:
            self._answer(key)
        topics: dict[UUID, list[SharedPartition]] = {}
        for (topic_id, _), answer in self._answers.items():
            topics.setdefault(topic_id, []).append(answer)
        throttling, owed = handler.throttling, self.owed()
        throttle_ms = 0
        if limits is not None and owed > 0:
            throttle_ms = throttling.refused_fetch(self._connection, limits, owed)
        head = bytes(response_head(ApiKey.SHARE_FETCH, request.version, request.correlation_id))
        response = Response(head, handler.files.held_below)
        write_response(
            response,
            topics,
            code=0 if error is None else error.code.value,
            message=None if error is None else error.message,
            throttle_ms=throttle_ms,
            lock_ms=0 if error is not None else handler.lock_ms(self._entity.group_id),
            endpoints=handler.endpoints(self._answers.values(), self._connection.listener_name),
        )
        parts = finished(response)
        if limits is not None and not throttle_ms:
            throttling.fetched(self._connection, limits, response.length, parts, ApiKey.SHARE_FETCH, request.version)
        return parts


Serve = Callable[[ShareFetch, Request, Any], Coroutine[Any, Any, Parts]]


def _partitions(topics: Any) -> Iterator[tuple[Key, Any]]:
    """What a request says of each partition."""
    for topic in topics or ():
        yield from zip(keys_of((topic,)), topic.partitions or (), strict=True)


def acknowledgements(batches: Iterable[Any], *, may_renew: bool) -> list[Acknowledgement]:
    """What a request says of a partition's records; INVALID_REQUEST where it makes no sense."""
    said: list[Acknowledgement] = []
    last = -1
    for batch in batches:
        first: int = batch.first_offset
        types: Sequence[int] = batch.acknowledge_types or ()
        count = batch.last_offset - first + 1
        if first < max(last, 0) or count <= 0:
            raise CodedError(ErrorCode.invalid_request, f"offsets {first} to {batch.last_offset} come after {last}")
        if first == last:
            raise CodedError(ErrorCode.invalid_record_state, f"offset {first} is acknowledged twice")
        if len(types) not in (1, count):
            raise CodedError(ErrorCode.invalid_request, f"{len(types)} acknowledgements for {count} offsets")
        last = batch.last_offset
        for value, run in groupby(types):
            size = count if len(types) == 1 else sum(1 for _ in run)
            said.append(Acknowledgement(first, first + size - 1, _type_of(value, may_renew)))
            first += size
            if len(said) > MOST_RUNS:
                raise CodedError(ErrorCode.invalid_request, f"more than {MOST_RUNS} acknowledgements of a partition")
    return said


def _type_of(value: int, may_renew: bool) -> AcknowledgeType:
    if value not in _TYPES or (value == AcknowledgeType.RENEW and not may_renew):
        raise CodedError(ErrorCode.invalid_request, f"{value} is no type of acknowledgement here")
    return AcknowledgeType(value)


_TYPES: Final = frozenset(AcknowledgeType)


def _check_count(entity: Any) -> None:
    topics = (*(entity.topics or ()), *(getattr(entity, "forgotten_topics_data", None) or ()))
    if sum(len(topic.partitions or ()) for topic in topics) > MOST_OF_SESSION:
        raise CodedError(ErrorCode.invalid_request, f"more than {MOST_OF_SESSION} partitions in one request")


def _check_delay(milliseconds: int | None) -> None:
    if milliseconds is not None and not 0 <= milliseconds <= LONGEST_DELAY_MS:
        raise CodedError(ErrorCode.invalid_request, f"what is released waits 0 to {LONGEST_DELAY_MS} ms")


def _check_renewal(entity: Any) -> None:
    """A request that renews locks fetches nothing, and says so."""
    if getattr(entity, "is_renew_ack", False) and (
        entity.max_wait or entity.min_bytes or entity.max_bytes or entity.max_records
    ):
        raise CodedError(ErrorCode.invalid_request, "a request that renews locks asks for no records")
