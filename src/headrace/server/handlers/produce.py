"""Produce, versions 3-13.

Each partition's batch is checked, appended, and answered once the topic's durability holds; the answer keeps the
order of the request. One partition's error never stops the others.

- acks=0 has no answer; an error closes the connection, which is all such a client can notice.
- acks=1 waits for this broker alone, acks=all for the ISR (up to the request's timeout); both wait for the disk where
  the topic has `flush.messages=1`.
- What a producer sent behind a batch that was refused is refused like it, until that one comes again: see `refusals`.
- Records that are not what the batch's header says are refused (INVALID_RECORD); so is a compressed batch without the
  frame of its codec. `headrace.record.validation=full` also looks inside compressed batches.
- A batch that takes long to look inside, or to compress anew, is left to a thread; its connection waits, others do not.
- A max timestamp that the records do not have (-1, as older Go clients send) is corrected.
- A topic that holds what its storage quota allows refuses more (POLICY_VIOLATION): see `replication.storage_quota`.
- A topic with `headrace.schema.validation` refuses records without a registered schema (INVALID_RECORD, v8 says which).
- v7 zstd; v8 error messages; v13 topic ids (an unknown or zero id is UNKNOWN_TOPIC_ID).
- A batch of a transaction needs a transactional id in the request (TRANSACTIONAL_ID_AUTHORIZATION_FAILED), and an open
  transaction: see `produce_transactions`. INVALID_TXN_STATE, from v11 on TRANSACTION_ABORTABLE, says that it has none;
  v12 adds partitions to the transaction by producing to them.
"""

from asyncio import Task, get_running_loop, sleep
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from math import inf
from struct import Struct
from typing import Any, Final, NamedTuple

import structlog

from headrace.cluster.log_settings import IntakeSettings
from headrace.protocol.acl import AclOperation, ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.batch import TRANSACTIONAL_BIT, BatchHeader, check_batch
from headrace.protocol.errors import CodedError, ErrorCode, ProtocolViolation, RecordsRefused
from headrace.protocol.produce import (
    FIRST_WITH_IDS,
    PartitionAnswer,
    ProduceRequest,
    TopicRecords,
    one_response,
    parse_request,
    well,
    write_response,
)
from headrace.protocol.validation import SlowBatch
from headrace.replication.intake import admit
from headrace.replication.partition import Partition
from headrace.replication.purgatory import Committed
from headrace.replication.replica_manager import ReplicaManager
from headrace.replication.storage_quota import check_room, take_room
from headrace.security.authorizer import Authorizer
from headrace.storage.log import Appended, Origin

from ..connection import Connection, Parts, Slot
from ..dispatch import Request, response_head
from ..refusals import check_order, note_refusal
from ..schema_book import Named, SchemaBook, named_schemas
from .produce_transactions import (
    FIRST_ADDING,
    NOTHING_TO_VERIFY,
    Beginning,
    Verified,
    ask,
    beginnings,
    is_transactional,
)

_LENGTH: Final = Struct(">i")
MANY: Final = 1_000
"""Partitions of a request that is better served in turns: some 20 ms."""
_STEP: Final = 200
_READ_AT_ONCE: Final = 2_000
"""Records whose schemas are looked for while others wait: some 10 ms."""
_ACKS: Final = (-1, 0, 1)
_CLIENT: Final = Origin.CLIENT  # an attribute of an enumeration takes as long as a call

log = structlog.get_logger(__name__)

Answered = tuple[TopicRecords, list[PartitionAnswer]]


class Pending:
    """A produce request under way: its answers so far, and how many partitions are not committed yet."""

    __slots__ = ("_errors", "_request", "_slot", "_topics", "_waiting")

    def __init__(self, request: Request, errors: Counter[int]) -> None:
        self._errors = errors
        self._request = (request.version, request.correlation_id)
        self._slot: Slot | None = None
        self._topics: list[Answered] = []
        self._waiting = 0

    def add(self, topic: TopicRecords, answers: list[PartitionAnswer]) -> None:
        self._topics.append((topic, answers))

    @property
    def has_failed(self) -> bool:
        return any(answer.code for _, answers in self._topics for answer in answers)

    @property
    def first_failure(self) -> str | None:
        return next((answer.message for _, answers in self._topics for answer in answers if answer.code), None)

    def expect(self, answers: list[PartitionAnswer], at: int) -> Committed:
        """Wait for a partition that was answered; the result is what to call when its fate is known."""
        self._waiting += 1

        def committed(error: CodedError | None) -> None:
            if error is not None:
                self._errors[error.code.value] += 1
                answers[at] = PartitionAnswer(answers[at].partition, error.code.value, message=error.message)
            self._waiting -= 1
            if not self._waiting and self._slot is not None and not self._slot.connection.is_closed:
                self._slot.answer([response(*self._request, self._topics)])

        return committed

    def finish(self, connection: Connection) -> Parts | None:
        """Every partition was appended: the answer, or None where it comes later."""
        if not self._waiting:
            return [response(*self._request, self._topics)]
        self._slot = connection.open_slot()
        return None

    def finish_in(self, slot: Slot) -> None:
        """The same for a request whose place in the order of answers is known already."""
        if not self._waiting:
            slot.answer([response(*self._request, self._topics)])
        self._slot = slot


class Admitted(NamedTuple):
    """A batch that a thread has looked through."""

    batch: memoryview
    now_ms: int
    """When that was."""
    fields: Sequence[str]
    """Whose schemas were looked for."""
    named: Named


class Slow(NamedTuple):
    """A batch that a thread has to check, and where its answer belongs. Its bytes are its own."""

    topic: TopicRecords
    partition: int
    records: memoryview
    answers: list[PartitionAnswer]
    at: int


class ProduceHandler:
    """Serves Produce."""

    def __init__(self, replicas: ReplicaManager, schemas: SchemaBook, authorizer: Authorizer | None = None) -> None:
        self._replicas = replicas
        self._schemas = schemas
        self._clock = replicas.clock
        self._writes = None if authorizer is None else authorizer.decisions(AclOperation.WRITE, ResourceType.TOPIC)
        """Who may write to which topics; None where everybody may to all."""
        self._transactional_ids = (
            None if authorizer is None else authorizer.decisions(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID)
        )
        self.errors: Counter[int] = Counter()
        """Partitions of requests that were refused, by the code of the error."""
        self._tasks: set[Task[None]] = set()
        """The requests that wait for the transaction coordinator, or for a thread."""

    def __call__(self, request: Request) -> Parts | None:
        produce = parse_request(request.frame, request.body, request.version)
        if produce.transactional_id is not None:
            if self._refuses_id(request, produce):
                return self._refuse_id(request, produce)
            found = self._beginnings(request, produce)
            if found and self._replicas.verifier is not None:
                self._verify(request, produce, found)
                return None
        topics = produce.topics
        if produce.acks and len(topics) == 1 and len(topics[0].partitions) == 1:
            return self._serve_one(request, topics[0], produce)
        return self._serve_many(request, produce)

    def _serve_many(self, request: Request, produce: ProduceRequest) -> Parts | None:
        topics = produce.topics
        if len(topics) > MANY or sum(len(topic.partitions) for topic in topics) > MANY:
            self._run_alone(request, lambda slot: self._append_in_turns(request, produce, slot))
            return None
        slow: list[Slow] = []
        pending = Pending(request, self.errors)
        for topic in topics:
            pending.add(topic, self._append_topic(topic, produce, request, pending, slow))
        if slow:
            self._run_alone(request, lambda slot: self._append_rest(request, produce, pending, slow, slot))
            return None
        if produce.acks:
            return pending.finish(request.connection)
        if pending.has_failed:
            raise ProtocolViolation(f"a record without acks could not be written: {pending.first_failure}")
        return []

    def _beginnings(self, request: Request, produce: ProduceRequest) -> list[Beginning]:
        """Where the coordinator has to say that the transaction goes on."""
        return beginnings(
            self._replicas, produce, request.version, lambda name: self._may_write(request.connection, name)
        )

    def _may_write(self, connection: Connection, topic: str) -> bool:
        writes = self._writes
        if writes is None or connection.peer_broker is not None:
            return True
        return writes.allow(connection.principal, connection.peer, topic)

    def _refuses_id(self, request: Request, produce: ProduceRequest) -> bool:
        """Whether a request has batches of a transaction that is not the client's."""
        connection, allowed = request.connection, self._transactional_ids
        if allowed is None or connection.peer_broker is not None or not is_transactional(produce):
            return False
        return not allowed.allow(connection.principal, connection.peer, produce.transactional_id or "")

    def _refuse_id(self, request: Request, produce: ProduceRequest) -> Parts:
        """Nothing of it is written."""
        error = CodedError(
            ErrorCode.transactional_id_authorization_failed,
            f"{request.connection.principal} may not WRITE TRANSACTIONAL_ID {produce.transactional_id}",
        )
        if not produce.acks:
            raise ProtocolViolation(f"a record without acks could not be written: {error.message}")
        answers = [(topic, [self._failed(index, error) for index, _ in topic.partitions]) for topic in produce.topics]
        return [response(request.version, request.correlation_id, answers)]

    def _verify(self, request: Request, produce: ProduceRequest, found: list[Beginning]) -> None:
        """Go on when the coordinator has answered. The frame's bytes are another's by then, so they are copied."""
        frame = memoryview(bytearray(request.frame))
        produce = parse_request(frame, request.body, request.version)
        self._run_alone(request, lambda slot: self._append_verified(request, produce, found, slot))

    def _run_alone(self, request: Request, work: Callable[[Slot], Coroutine[Any, Any, None]]) -> None:
        """Serve nothing else of the connection meanwhile."""
        request.connection.hold()
        slot = request.connection.open_slot()
        task = get_running_loop().create_task(work(slot))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _append_in_turns(self, request: Request, produce: ProduceRequest, slot: Slot) -> None:
        """Append to many partitions, with turns for others in between. A connection that is held keeps its frame."""
        pending, slow, done = Pending(request, self.errors), list[Slow](), 0
        try:
            for topic in produce.topics:
                answers: list[PartitionAnswer] = []
                pending.add(topic, answers)
                for start in range(0, max(len(topic.partitions), 1), _STEP):
                    some = topic._replace(partitions=topic.partitions[start : start + _STEP])
                    self._append_topic(some, produce, request, pending, slow, answers=answers)
                    done += max(len(some.partitions), 1)
                    if done >= _STEP:
                        done = 0
                        await sleep(0)
        except Exception:
            _fail(request)
            return
        await self._append_rest(request, produce, pending, slow, slot)

    async def _append_verified(
        self, request: Request, produce: ProduceRequest, starts: list[Beginning], slot: Slot
    ) -> None:
        assert produce.transactional_id is not None
        assert self._replicas.verifier is not None
        pending, slow = Pending(request, self.errors), list[Slow]()
        try:
            verified = await ask(self._replicas.verifier, produce.transactional_id, starts, request.version)
            for topic in produce.topics:
                pending.add(topic, self._append_topic(topic, produce, request, pending, slow, verified))
        except Exception:
            _fail(request)
            return
        await self._append_rest(request, produce, pending, slow, slot, verified)

    async def _append_rest(
        self,
        request: Request,
        produce: ProduceRequest,
        pending: Pending,
        slow: list[Slow],
        slot: Slot,
        verified: Verified = NOTHING_TO_VERIFY,
    ) -> None:
        """Append what takes long to check, one after the other, and answer; then the connection is served again."""
        connection = request.connection
        try:
            for one in slow:
                await self._append_slow(one, produce, request, pending, verified)
        except Exception:
            _fail(request)
            return
        if connection.is_closed:
            return
        if produce.acks:
            pending.finish_in(slot)
        elif pending.has_failed:
            log.info("connection closed", peer=connection.peer, reason="a record without acks could not be written")
            connection.close()
            return
        else:
            slot.answer(None)
        connection.release()

    async def _append_slow(
        self, slow: Slow, produce: ProduceRequest, request: Request, pending: Pending, verified: Verified
    ) -> None:
        topic, index, records = slow.topic, slow.partition, slow.records
        try:
            partition = self._find(topic, index, produce.acks, request)
            header, now_ms = check_batch(records), self._clock.now_ms()
            check = partial(_look_through, records, header, partition.rules, now_ms, request.version)
            admitted = await self._replicas.in_thread(check)
            partition = self._find(topic, index, produce.acks, request)
            appended, answer = self._append(partition, admitted.batch, produce, request.version, verified, admitted)
        except CodedError as error:
            note_refusal(request.connection.refusals, topic, index, records, error.code)
            slow.answers[slow.at] = self._failed(index, error)
            return
        slow.answers[slow.at] = answer
        self._expect(partition, appended, produce, pending, slow.answers, slow.at)

    def _serve_one(self, request: Request, topic: TopicRecords, produce: ProduceRequest) -> Parts | None:
        """What most requests are. No function is made in it: each name that one would share costs as much as a call."""
        version, correlation_id, acks = request.version, request.correlation_id, produce.acks
        index, records = topic.partitions[0]
        refusals = request.connection.refusals
        try:
            if refusals:
                check_order(refusals, topic, index, records)
            partition = self._find(topic, index, acks, request)
            appended, answer = self._append(partition, records, produce, version)
        except CodedError as error:
            note_refusal(refusals, topic, index, records, error.code)
            return [response(version, correlation_id, [(topic, [self._failed(index, error)])])]
        except SlowBatch:
            self._serve_slow(request, topic, produce)
            return None
        end = appended.last_offset + 1
        if partition.is_acknowledged(end, acks):
            return [one_response(version, correlation_id, topic, answer)]
        committed = self._answer_once_committed(request, topic, answer)
        partition.wait(end, acks, committed, self._deadline(partition, produce.timeout_ms))
        return None

    def _serve_slow(self, request: Request, topic: TopicRecords, produce: ProduceRequest) -> None:
        """Leave the one batch of a request to a thread."""
        index, records = topic.partitions[0]
        pending, answers = Pending(request, self.errors), list[PartitionAnswer]()
        pending.add(topic, answers)
        slow = [_put_off(topic, index, records, answers)]
        self._run_alone(request, lambda slot: self._append_rest(request, produce, pending, slow, slot))

    def _answer_once_committed(self, request: Request, topic: TopicRecords, answer: PartitionAnswer) -> Committed:
        """Keep a place for the answer; the result is what to call when the batch's fate is known."""
        version, correlation_id = request.version, request.correlation_id
        slot = request.connection.open_slot()

        def committed(error: CodedError | None) -> None:
            if error is None:
                slot.answer([one_response(version, correlation_id, topic, answer)])
            else:
                failed_answer = self._failed(answer.partition, error)
                slot.answer([response(version, correlation_id, [(topic, [failed_answer])])])

        return committed

    def _append_topic(
        self,
        topic: TopicRecords,
        produce: ProduceRequest,
        request: Request,
        pending: Pending,
        slow: list[Slow],
        verified: Verified = NOTHING_TO_VERIFY,
        answers: list[PartitionAnswer] | None = None,
    ) -> list[PartitionAnswer]:
        """The answers, after those that are there already; what takes long to check is put off."""
        acks, version = produce.acks, request.version
        refusals = request.connection.refusals
        answers = [] if answers is None else answers
        for index, records in topic.partitions:
            try:
                if refusals:
                    check_order(refusals, topic, index, records)
                partition = self._find(topic, index, acks, request)
                appended, answer = self._append(partition, records, produce, version, verified)
            except CodedError as error:
                note_refusal(refusals, topic, index, records, error.code)
                answers.append(self._failed(index, error))
                continue
            except SlowBatch:
                slow.append(_put_off(topic, index, records, answers))
                continue
            answers.append(answer)
            self._expect(partition, appended, produce, pending, answers, len(answers) - 1)
        return answers

    def _expect(
        self,
        partition: Partition,
        appended: Appended,
        produce: ProduceRequest,
        pending: Pending,
        answers: list[PartitionAnswer],
        at: int,
    ) -> None:
        """Let the request wait until what was appended is acknowledged."""
        end, acks = appended.last_offset + 1, produce.acks
        if acks and not partition.is_acknowledged(end, acks):
            partition.wait(end, acks, pending.expect(answers, at), self._deadline(partition, produce.timeout_ms))

    def _failed(self, index: int, error: CodedError) -> PartitionAnswer:
        self.errors[error.code.value] += 1
        return failed(index, error)

    def _find(self, topic: TopicRecords, index: int, acks: int, request: Request) -> Partition:
        name: str | None = topic.name
        if request.version >= FIRST_WITH_IDS:
            name = self._replicas.name_of(topic.id) if topic.id is not None else None
            if name is None:
                raise CodedError(ErrorCode.unknown_topic_id)
        assert name is not None
        writes = self._writes
        if writes is not None:
            connection = request.connection
            asked = (connection.principal, connection.peer, name)
            if asked not in writes.granted and not self._may_write(connection, name):
                raise CodedError(ErrorCode.topic_authorization_failed)
        if acks not in _ACKS:
            raise CodedError(ErrorCode.invalid_required_acks, f"acks is {acks}; it can be -1, 0 or 1")
        partition = self._replicas.partition(name, index)
        if partition.is_internal:
            raise CodedError(ErrorCode.invalid_topic_exception, f"only the broker itself writes to {name}")
        if acks == -1:
            partition.check_isr()
        return partition

    def _deadline(self, partition: Partition, timeout_ms: int) -> float:
        """Until when to wait for followers; a disk always answers."""
        return inf if partition.followers is None else self._clock.monotonic() + timeout_ms / 1000

    def _append(
        self,
        partition: Partition,
        records: memoryview | None,
        produce: ProduceRequest,
        version: int,
        verified: Verified = NOTHING_TO_VERIFY,
        admitted: Admitted | None = None,
    ) -> tuple[Appended, PartitionAnswer]:
        """Write a batch. Of one that a thread has admitted, what that found."""
        if records is None:
            raise CodedError(ErrorCode.invalid_record, "no record batch")
        header = check_batch(records)
        rooms = partition.rooms
        if rooms:
            check_room(rooms, len(records))
        if partition.rules.checked_fields:
            self._check_schemas(partition, records, header, admitted)
        is_admitted = admitted is not None
        now_ms = self._clock.now_ms() if admitted is None else admitted.now_ms
        if header.attributes & TRANSACTIONAL_BIT:
            self._check_transactional(header, produce)
            appended = partition.append_transactional(
                records,
                header,
                verified.of(partition),
                now_ms=now_ms,
                version=version,
                from_zero=version >= FIRST_ADDING,
                is_admitted=is_admitted,
            )
        else:
            appended = partition.append(records, header, _CLIENT, now_ms, version, is_admitted)
        if rooms:
            take_room(rooms, len(records))
        append_time = now_ms if partition.rules.append_time else -1
        start = partition.log.log_start_offset
        return appended, well(partition.index, appended.base_offset, append_time, start)

    def _check_schemas(
        self, partition: Partition, batch: memoryview, header: BatchHeader, admitted: Admitted | None
    ) -> None:
        fields = partition.rules.checked_fields
        if admitted is None and header.record_count > _READ_AT_ONCE:
            raise SlowBatch
        found = None if admitted is None or admitted.fields != fields else admitted.named  # settings may have changed
        named = named_schemas(fields, batch) if found is None else found
        self._schemas.check(partition.topic, named)

    def _check_transactional(self, header: BatchHeader, produce: ProduceRequest) -> None:
        if self._replicas.verifier is None:
            raise CodedError(ErrorCode.invalid_txn_state, "transactions are not available on this broker")
        if produce.transactional_id is None:
            raise CodedError(
                ErrorCode.transactional_id_authorization_failed,
                "a batch of a transaction needs a transactional id in its request",
            )
        if header.producer_id < 0:
            raise CodedError(ErrorCode.invalid_record, "a batch of a transaction needs a producer id")


def _look_through(
    records: memoryview, header: BatchHeader, rules: IntakeSettings, now_ms: int, version: int
) -> Admitted:
    """In a thread: everything that takes long."""
    batch, _ = admit(records, header, rules, now_ms, version, in_thread=True)
    fields = rules.checked_fields
    return Admitted(batch, now_ms, fields, named_schemas(fields, batch) if fields else {})


def _put_off(topic: TopicRecords, index: int, records: memoryview | None, answers: list[PartitionAnswer]) -> Slow:
    """Keep a batch, as its frame's bytes will be another's, and a place for its answer."""
    assert records is not None
    answers.append(PartitionAnswer(index, 0))
    return Slow(topic, index, memoryview(bytearray(records)), answers, len(answers) - 1)


def _fail(request: Request) -> None:
    log.exception("request failed", api=ApiKey.PRODUCE.name, version=request.version)
    request.connection.close()


def failed(index: int, error: CodedError) -> PartitionAnswer:
    """What a partition answers that could not be written to."""
    refused = error.records if isinstance(error, RecordsRefused) else ()
    return PartitionAnswer(index, error.code.value, message=error.message, refused=refused)


def response(version: int, correlation_id: int, topics: list[Answered]) -> bytearray:
    """The whole frame of any answer."""
    out = response_head(ApiKey.PRODUCE, version, correlation_id)
    write_response(out, version, topics)
    _LENGTH.pack_into(out, 0, len(out) - 4)
    return out
