"""Produce, versions 3-13.

Each partition's batch is checked, appended, and answered once the topic's durability holds; the answer keeps the
order of the request. One partition's error never stops the others.

- acks=0 has no answer; an error closes the connection, which is all such a client can notice.
- acks=1 and acks=all wait alike on a lone broker: for the disk where the topic has `flush.messages=1`.
- v7 zstd; v8 error messages; v13 topic ids (an unknown or zero id is UNKNOWN_TOPIC_ID).
- Left out: transactional batches, until there is a coordinator for them.
"""

from struct import Struct
from typing import Final

from headrace.protocol.batch import TRANSACTIONAL_BIT, check_batch
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.produce import (
    FIRST_WITH_IDS,
    PartitionAnswer,
    PartitionRecords,
    ProduceRequest,
    TopicRecords,
    parse_request,
    refused,
    write_response,
)
from headrace.replication.purgatory import Committed
from headrace.replication.replica_manager import ReplicaManager

from ..connection import Slot
from ..dispatch import Request, response_head

_LENGTH: Final = Struct(">i")
_ACKS: Final = (-1, 0, 1)


class Pending:
    """A produce request under way: its answers so far, and how many partitions are not committed yet."""

    __slots__ = ("_head", "_slot", "_topics", "_version", "_waiting")

    def __init__(self, request: Request) -> None:
        self._slot: Slot = request.slot
        self._version = request.info.version
        self._head = response_head(request.info, request.correlation_id)
        self._topics: list[tuple[TopicRecords, list[PartitionAnswer]]] = []
        self._waiting = 1
        """One for the parsing itself, so that nothing is answered before every partition was appended."""

    def add(self, topic: TopicRecords, answers: list[PartitionAnswer]) -> None:
        self._topics.append((topic, answers))

    def expect(self, answers: list[PartitionAnswer]) -> Committed:
        """Wait for the partition that was answered last; the result is what to call when its fate is known."""
        self._waiting += 1
        at = len(answers) - 1

        def committed(error: CodedError | None) -> None:
            if error is not None:
                answers[at] = PartitionAnswer(answers[at].partition, error.code.value, message=error.message)
            self.done()

        return committed

    def done(self) -> None:
        self._waiting -= 1
        if not self._waiting and not self._slot.connection.is_closed:
            out = self._head
            write_response(out, self._version, self._topics)
            _LENGTH.pack_into(out, 0, len(out) - 4)
            self._slot.answer([out])


class ProduceHandler:
    """Serves Produce."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas
        self._clock = replicas.clock

    def __call__(self, request: Request) -> None:
        version = request.info.version
        produce = parse_request(request.frame, request.body, version)
        if produce.acks == 0:
            self._serve_without_answer(request, produce)
            return
        pending = Pending(request)
        for topic in produce.topics:
            pending.add(topic, self._append_topic(topic, produce, version, pending))
        pending.done()

    def _serve_without_answer(self, request: Request, produce: ProduceRequest) -> None:
        request.slot.answer(None)
        for topic in produce.topics:
            for answer in self._append_topic(topic, produce, request.info.version, None):
                if answer.code:
                    request.slot.connection.close()
                    return

    def _append_topic(
        self, topic: TopicRecords, produce: ProduceRequest, version: int, pending: Pending | None
    ) -> list[PartitionAnswer]:
        if produce.acks not in _ACKS:
            return refused(topic, ErrorCode.invalid_required_acks, f"acks is {produce.acks}; it can be -1, 0 or 1")
        name: str | None = topic.name
        if version >= FIRST_WITH_IDS:
            name = self._replicas.name_of(topic.id) if topic.id is not None else None
            if name is None:
                return refused(topic, ErrorCode.unknown_topic_id)
        assert name is not None
        answers: list[PartitionAnswer] = []
        for data in topic.partitions:
            try:
                self._append(name, data, produce, version, pending, answers)
            except CodedError as error:
                answers.append(PartitionAnswer(data.partition, error.code.value, message=error.message))
        return answers

    def _append(
        self,
        topic: str,
        data: PartitionRecords,
        produce: ProduceRequest,
        version: int,
        pending: Pending | None,
        answers: list[PartitionAnswer],
    ) -> None:
        partition = self._replicas.partition(topic, data.partition)
        if data.records is None:
            raise CodedError(ErrorCode.invalid_record, "no record batch")
        header = check_batch(data.records)
        if header.attributes & TRANSACTIONAL_BIT:
            raise CodedError(ErrorCode.invalid_txn_state, "transactions are not available on this broker")
        if produce.acks == -1 and partition.rules.min_insync_replicas > 1:
            raise CodedError(
                ErrorCode.not_enough_replicas,
                f"1 replica is in sync, min.insync.replicas is {partition.rules.min_insync_replicas}",
            )
        now_ms = self._clock.now_ms()
        appended = partition.append(data.records, header, now_ms=now_ms, version=version)
        append_time = now_ms if partition.rules.append_time else -1
        start = partition.log.log_start_offset
        answers.append(PartitionAnswer(data.partition, 0, appended.base_offset, append_time, start))
        end = appended.last_offset + 1
        if pending is not None and end > partition.high_watermark:
            partition.commits.wait(end, pending.expect(answers))
