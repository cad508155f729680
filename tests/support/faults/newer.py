"""A producer of the newer protocol of transactions (KIP-890), which no client for Python speaks yet, on real sockets.

Produce v12 adds partitions to a transaction by itself, and EndTxn v5 gives the epoch of the next. A request whose
connection was closed, or that was not answered in time, is sent again as it was on a new one, as a client does.
"""

import time
from types import TracebackType
from typing import Any, Final, Self

from headrace.protocol.api import ApiKey
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import ErrorCode
from tests.support.wire import Closed, Wire, batch_of

PRODUCE_VERSION: Final = 12
END_VERSION: Final = 5
INIT_VERSION: Final = 5
OFFSETS_VERSION: Final = 5
FIND_VERSION: Final = 3
PATIENCE_SECONDS: Final = 120.0
BACKOFF_SECONDS: Final = 0.02
AGAIN: Final = {
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
}


class NewerProducer:
    """One transactional id at one broker. What it is refused is an `AssertionError` with the broker's word."""

    def __init__(self, bootstrap: str, name: str, topic: str, *, answer_seconds: float = 1.0) -> None:
        self.name = name
        self._bootstrap = bootstrap
        self._topic = topic
        self._answer_seconds = answer_seconds
        self._wire: Wire | None = None
        self.id, self.epoch = -1, -1
        self._sequences: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop()

    def init(self) -> None:
        """Take the transactional id over; an open transaction is aborted."""
        self.find(self.name, kind=1)
        values = {
            "transactional_id": self.name,
            "transaction_timeout": 120_000,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        answer = self._until_told(ApiKey.INIT_PRODUCER_ID, INIT_VERSION, values)
        self.id, self.epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()

    def find(self, name: str, *, kind: int) -> None:
        """Have the broker make the topic that keeps a group (kind 0) or a transactional id (1)."""
        self._until_told(ApiKey.FIND_COORDINATOR, FIND_VERSION, {"key": name, "key_type": kind})

    def write(self, partition: int, value: str) -> ErrorCode:
        """What the partition says in the end."""
        code = ErrorCode(_code_of(self._until_told(ApiKey.PRODUCE, PRODUCE_VERSION, self.batch(partition, value))))
        if code is ErrorCode.none:
            self._sequences[partition] = self._sequences.get(partition, 0) + 1
        return code

    def end(self, *, commit: bool) -> ErrorCode:
        """What the coordinator says in the end; the next transaction has the epoch that it gave."""
        answer = self._until_told(ApiKey.END_TXN, END_VERSION, self.ending(commit=commit))
        if answer.error_code == ErrorCode.none:
            self.id, self.epoch = answer.producer_id, answer.producer_epoch
            self._sequences.clear()
        return ErrorCode(answer.error_code)

    def send_offset(self, group: str, partition: int, offset: int) -> ErrorCode:
        """What the group's coordinator says in the end to an offset in the transaction."""
        values = self.offset(group, partition, offset)
        return ErrorCode(_code_of(self._until_told(ApiKey.TXN_OFFSET_COMMIT, OFFSETS_VERSION, values)))

    def abandon(self, api_key: ApiKey, version: int, values: dict[str, Any]) -> None:
        """Send a request, wait in vain for its answer, and forget it."""
        try:
            self._ask(api_key, version, values)
        except TimeoutError:
            self._drop()
            return
        raise AssertionError(f"{api_key.name}: was answered")

    def batch(self, partition: int, value: str) -> dict[str, Any]:
        """The Produce request of the next batch."""
        records = batch_of(
            value.encode(),
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=self._sequences.get(partition, 0),
            transactional=True,
        )
        data = {"name": self._topic, "partition_data": [{"index": partition, "records": records}]}
        return {"transactional_id": self.name, "acks": -1, "timeout": 10_000, "topic_data": [data]}

    def offset(self, group: str, partition: int, offset: int) -> dict[str, Any]:
        """The TxnOffsetCommit request of an offset."""
        place = {"partition_index": partition, "committed_offset": offset, "committed_leader_epoch": -1}
        return {
            "transactional_id": self.name,
            "group_id": group,
            "producer_id": self.id,
            "producer_epoch": self.epoch,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": self._topic, "partitions": [{**place, "committed_metadata": None}]}],
        }

    def ending(self, *, commit: bool) -> dict[str, Any]:
        """The EndTxn request of the transaction."""
        return {
            "transactional_id": self.name,
            "producer_id": self.id,
            "producer_epoch": self.epoch,
            "committed": commit,
        }

    def _until_told(self, api_key: ApiKey, version: int, values: dict[str, Any]) -> Any:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            try:
                answer = self._ask(api_key, version, values)
            except (Closed, TimeoutError, ConnectionError):
                self._drop()
                continue
            if _code_of(answer) not in AGAIN:
                return answer
            time.sleep(BACKOFF_SECONDS)
        raise AssertionError(f"{api_key.name}: no answer but to try again")

    def _ask(self, api_key: ApiKey, version: int, values: dict[str, Any]) -> Any:
        if self._wire is None:
            self._wire = Wire(self._bootstrap)
            self._wire.socket.settimeout(self._answer_seconds)
        self._wire.send_body(api_key, version, bytes(encode_request(api_key, version, values)))
        return self._wire.receive(api_key, version)

    def _drop(self) -> None:
        if self._wire is not None:
            self._wire.socket.close()
        self._wire = None


def _code_of(answer: Any) -> int:
    if hasattr(answer, "responses"):
        return int(answer.responses[0].partition_responses[0].error_code)
    if hasattr(answer, "topics"):
        return int(answer.topics[0].partitions[0].error_code)
    return int(answer.error_code)
