"""Brokers of a script that hold the logs of some partitions, and fail where a test wants them to."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from headrace.client.columnar.model import TopicPartition
from headrace.client.core.versions import SPOKEN
from headrace.protocol.api import ApiKey
from headrace.protocol.batch import check_batch, read_header, stamp
from headrace.protocol.errors import ErrorCode
from headrace.protocol.produce import parse_request
from headrace.protocol.records import decode_records
from tests.support.scripted import Asked, Reply, ScriptedBroker

TOPIC = "orders"
TOPIC_ID = UUID(int=77)
FAST = {
    "retry.backoff.ms": "1",
    "retry.backoff.max.ms": "5",
    "default.api.timeout.ms": "60000",
    "request.timeout.ms": "60000",
    "delivery.timeout.ms": "120000",
}
"""Fast to try again, slow to give up."""


@dataclass
class ScriptedLog:
    """One partition: its batches as bytes, and what it says of itself."""

    batches: Sequence[bytes | bytearray] = ()
    leader: int = 0
    epoch: int = 5
    start: int = 0
    high_watermark: int | None = None
    last_stable_offset: int | None = None
    aborted: tuple[tuple[int, int], ...] = ()
    preferred: int = -1
    sequences: dict[int, int] = field(default_factory=dict)
    """The sequence number that each producer is to go on with."""
    errors: list[ErrorCode] = field(default_factory=list)
    """Answered first, one by one."""

    @property
    def end(self) -> int:
        if self.high_watermark is not None:
            return self.high_watermark
        return read_header(self.batches[-1]).last_offset + 1 if self.batches else self.start

    def append(self, data: memoryview) -> int:
        """Append one batch as a broker does: a repeated one is recognised by its sequence number; gives the code."""
        header = check_batch(data)
        if header.producer_id >= 0:
            expected = self.sequences.get(header.producer_id, 0)
            if header.base_sequence < expected:
                return ErrorCode.duplicate_sequence_number.value
            if header.base_sequence > expected:
                return ErrorCode.out_of_order_sequence_number.value
            self.sequences[header.producer_id] = expected + header.record_count
        stored = bytearray(data)
        stamp(memoryview(stored), self.end, self.epoch)
        self.batches = [*self.batches, stored]
        return 0

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for batch in self.batches for record in decode_records(batch)]

    def read(self, offset: int, limit: int) -> bytes:
        """From the batch with the offset on, as a broker cuts it: the first batch is whole, the last perhaps not."""
        wanted = [bytes(batch) for batch in self.batches if read_header(batch).last_offset >= offset]
        return b"".join(wanted)[: max(limit, len(wanted[0]))] if wanted else b""


class ScriptedCluster:
    """Some brokers that serve the same partitions; `before` sees each request first, and may answer it."""

    def __init__(
        self, logs: dict[int, ScriptedLog], brokers: int = 1, versions: dict[int, tuple[int, int]] | None = None
    ) -> None:
        self.logs = logs
        self.before: Callable[[int, Asked], Reply | bool] = lambda _node, _asked: False
        self.after: Callable[[int, Asked, Reply], Reply] = lambda _node, _asked, reply: reply
        self.next_producer = 100
        self.epoch = 0
        self.added: list[int] = []
        """Partitions of the transaction that is open."""
        self.ended: list[bool] = []
        self.topic_id = TOPIC_ID
        self.fetches: dict[int, int] = defaultdict(int)
        served = {**SPOKEN, **(versions or {})}
        self.brokers = [ScriptedBroker(self._answerer(node), served) for node in range(brokers)]
        self._stack = ExitStack()

    @property
    def settings(self) -> dict[str, str]:
        return {"bootstrap.servers": self.brokers[0].bootstrap, **FAST}

    @property
    def asked(self) -> list[Asked]:
        return [asked for broker in self.brokers for asked in broker.asked]

    def count(self, api_key: ApiKey) -> int:
        return sum(asked.api_key == api_key for asked in self.asked)

    def __enter__(self) -> Self:
        for broker in self.brokers:
            self._stack.enter_context(broker)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _answerer(self, node: int) -> Callable[[Asked], Reply]:
        def answer(asked: Asked) -> Reply:
            reply = self.before(node, asked)
            if not isinstance(reply, bool):
                return reply
            return self.after(node, asked, _HANDLERS[ApiKey(asked.api_key)](self, node, asked))

        return answer

    def metadata(self, _node: int, asked: Asked) -> Reply:
        partitions = [
            {"error_code": 0, "partition_index": n, "leader_id": log.leader, "leader_epoch": log.epoch}
            for n, log in self.logs.items()
        ]
        topic = {"error_code": 0, "name": TOPIC, "topic_id": self.topic_id, "partitions": partitions}
        wanted = asked.entity.topics
        names = [TOPIC] if wanted is None else [t.name for t in wanted]
        missing = [{"error_code": 3, "name": n, "topic_id": None, "partitions": ()} for n in names if n != TOPIC]
        brokers = [{"node_id": n, "host": "127.0.0.1", "port": broker.port} for n, broker in enumerate(self.brokers)]
        return {"throttle_time": 0, "brokers": brokers, "topics": [topic, *missing] if TOPIC in names else missing}

    def list_offsets(self, node: int, asked: Asked) -> Reply:
        request = asked.entity
        partitions = []
        for wanted in request.topics[0].partitions:
            log = self.logs[wanted.partition_index]
            offset = log.start if wanted.timestamp == -2 else log.end
            code = self._error(node, log)
            partitions.append({"partition_index": wanted.partition_index, "error_code": code, "offset": offset})
        return {"throttle_time": 0, "topics": [{"name": TOPIC, "partitions": partitions}]}

    def fetch(self, node: int, asked: Asked) -> Reply:
        self.fetches[node] += 1
        left = asked.entity.max_bytes
        partitions = []
        for topic in asked.entity.topics:
            for wanted in topic.partitions:
                answer = self._fetched(node, wanted, left)
                left -= len(answer["records"])
                partitions.append(answer)
        answered = {"topic": TOPIC, "topic_id": self.topic_id, "partitions": partitions}
        return {"throttle_time": 0, "error_code": 0, "responses": [answered]}

    def _fetched(self, node: int, wanted: Any, left: int) -> dict[str, Any]:
        log = self.logs[wanted.partition]
        offset = wanted.fetch_offset
        if log.preferred >= 0 and node == log.leader:
            return _answer(wanted.partition, 0, log, b"") | {"preferred_read_replica": log.preferred}
        code = self._error(node, log)
        if not code and not log.start <= offset <= log.end:
            code = ErrorCode.offset_out_of_range.value
        records = b"" if code else log.read(offset, min(left, wanted.partition_max_bytes))
        return _answer(wanted.partition, code, log, records)

    def produce(self, node: int, asked: Asked) -> Reply:
        request = parse_request(memoryview(asked.body), 0, asked.version)
        partitions = []
        for index, records in request.topics[0].partitions:
            assert records is not None
            log = self.logs[index]
            end = log.end
            code = self._error(node, log) or log.append(records)
            base = -1 if code else end
            partitions.append(
                {"index": index, "error_code": code, "base_offset": base, "log_append_time": -1, "record_errors": ()}
            )
        return {"responses": [{"name": TOPIC, "partition_responses": partitions}], "throttle_time": 0}

    def init_producer_id(self, _node: int, asked: Asked) -> Reply:
        if asked.entity.transactional_id is None:
            self.next_producer += 1
            return {"throttle_time": 0, "error_code": 0, "producer_id": self.next_producer, "producer_epoch": 0}
        self.epoch += 1
        self.added.clear()
        for log in self.logs.values():
            log.sequences.clear()
        return {"throttle_time": 0, "error_code": 0, "producer_id": 7, "producer_epoch": self.epoch}

    def find_coordinator(self, _node: int, _asked: Asked) -> Reply:
        found = {"node_id": 0, "host": "127.0.0.1", "port": self.brokers[0].port}
        return {"throttle_time": 0, "error_code": 0, "error_message": None, **found}

    def add_partitions(self, _node: int, asked: Asked) -> Reply:
        code = self._fenced(asked.entity.v3_and_below_producer_epoch)
        indexes = [index for topic in asked.entity.v3_and_below_topics for index in topic.partitions]
        self.added += indexes
        results = [{"partition_index": index, "partition_error_code": code} for index in indexes]
        topic = {"name": TOPIC, "results_by_partition": results}
        return {"throttle_time": 0, "results_by_topic_v3_and_below": [topic]}

    def end_txn(self, _node: int, asked: Asked) -> Reply:
        code = self._fenced(asked.entity.producer_epoch)
        if not code:
            self.ended.append(asked.entity.committed)
        return {"throttle_time": 0, "error_code": code}

    def _fenced(self, epoch: int) -> int:
        return ErrorCode.producer_fenced.value if epoch < self.epoch else 0

    def _error(self, node: int, log: ScriptedLog) -> int:
        if log.errors:
            return log.errors.pop(0).value
        return 0 if node in (log.leader, log.preferred) else ErrorCode.not_leader_or_follower.value


def _answer(partition: int, code: int, log: ScriptedLog, records: bytes) -> dict[str, Any]:
    stable = log.end if log.last_stable_offset is None else log.last_stable_offset
    return {
        "partition_index": partition,
        "error_code": code,
        "high_watermark": log.end,
        "last_stable_offset": stable,
        "log_start_offset": log.start,
        "aborted_transactions": [{"producer_id": p, "first_offset": first} for p, first in log.aborted],
        "preferred_read_replica": -1,
        "records": records,
    }


_HANDLERS: dict[ApiKey, Callable[[ScriptedCluster, int, Asked], Reply]] = {
    ApiKey.METADATA: ScriptedCluster.metadata,
    ApiKey.LIST_OFFSETS: ScriptedCluster.list_offsets,
    ApiKey.FETCH: ScriptedCluster.fetch,
    ApiKey.PRODUCE: ScriptedCluster.produce,
    ApiKey.INIT_PRODUCER_ID: ScriptedCluster.init_producer_id,
    ApiKey.FIND_COORDINATOR: ScriptedCluster.find_coordinator,
    ApiKey.ADD_PARTITIONS_TO_TXN: ScriptedCluster.add_partitions,
    ApiKey.END_TXN: ScriptedCluster.end_txn,
}


def partition(number: int) -> TopicPartition:
    return TopicPartition(TOPIC, number)
