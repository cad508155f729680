"""Brokers of a script that hold the logs of some partitions, and fail where a test wants them to."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from headrace.client.columnar.model import TopicPartition
from headrace.net.versions import SPOKEN
from headrace.protocol.api import ApiKey
from headrace.protocol.batch import read_header
from headrace.protocol.errors import ErrorCode
from tests.scripted import Asked, Reply, ScriptedBroker

TOPIC = "orders"
TOPIC_ID = UUID(int=77)
FAST = {
    "retry.backoff.ms": "1",
    "retry.backoff.max.ms": "5",
    "default.api.timeout.ms": "2000",
    "request.timeout.ms": "2000",
}


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
    errors: list[ErrorCode] = field(default_factory=list)
    """Answered first, one by one."""

    @property
    def end(self) -> int:
        if self.high_watermark is not None:
            return self.high_watermark
        return read_header(self.batches[-1]).last_offset + 1 if self.batches else self.start

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
            return _HANDLERS[ApiKey(asked.api_key)](self, node, asked)

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
}


def partition(number: int) -> TopicPartition:
    return TopicPartition(TOPIC, number)
