"""A transaction coordinator of a script, in front of a `ScriptedCluster`: ids, epochs and states as Kafka has them."""

from dataclasses import dataclass, field
from typing import Any

from headrace.client.columnar.transaction import PreparedTransaction
from headrace.protocol.api import ApiKey
from headrace.protocol.batch import read_header
from headrace.protocol.errors import ErrorCode
from headrace.protocol.produce import parse_request
from tests.support.scripted import Asked, Reply

from .scripted_cluster import ScriptedCluster

OPEN, COMMITTED, ABORTED, EMPTY = "Ongoing", "CompleteCommit", "CompleteAbort", "Empty"


@dataclass
class Entry:
    """A transactional id."""

    producer_id: int
    epoch: int = -1
    state: str = EMPTY


@dataclass
class ScriptedCoordinator:
    """Answers what concerns transactions; every broker of the cluster answers the same, but for the list of open ones,
    which only the first one gives."""

    cluster: ScriptedCluster
    entries: dict[str, Entry] = field(default_factory=dict)
    errors: dict[ApiKey, list[ErrorCode]] = field(default_factory=dict)
    """Answered first, one by one."""
    seen_epochs: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cluster.before = self._answer

    def open(self, name: str) -> PreparedTransaction:
        """A transaction whose records are written."""
        entry = self._init(name)
        entry.state = OPEN
        return PreparedTransaction(name, entry.producer_id, entry.epoch, True)

    def time_out(self, name: str) -> None:
        entry = self.entries[name]
        entry.epoch += 1
        entry.state = ABORTED

    def _answer(self, node: int, asked: Asked) -> Reply | bool:
        match ApiKey(asked.api_key):
            case ApiKey.INIT_PRODUCER_ID if asked.entity.transactional_id is not None:
                return self._refused(asked) or self._init_answer(asked.entity)
            case ApiKey.ADD_PARTITIONS_TO_TXN:
                return self._added(asked.entity)
            case ApiKey.END_TXN:
                return {"throttle_time": 0, "error_code": (self._passing(asked) or self._end(asked.entity)).value}
            case ApiKey.DESCRIBE_TRANSACTIONS:
                states = [self._described(asked, name) for name in asked.entity.transactional_ids]
                return {"throttle_time": 0, "transaction_states": states}
            case ApiKey.LIST_TRANSACTIONS:
                return self._listed(asked, node)
            case ApiKey.PRODUCE:
                return self._refuse_old_epochs(asked)
        return False

    def _refused(self, asked: Asked) -> Reply | None:
        code = self._passing(asked) or ErrorCode.none
        if code is ErrorCode.none:
            return None
        return {"throttle_time": 0, "error_code": code.value, "producer_id": -1, "producer_epoch": -1}

    def _init_answer(self, request: Any) -> Reply:
        known = self.entries.get(request.transactional_id)
        if known is not None and request.producer_id >= 0 and request.producer_epoch != known.epoch:
            code = ErrorCode.producer_fenced.value
            return {"throttle_time": 0, "error_code": code, "producer_id": -1, "producer_epoch": -1}
        entry = self._init(request.transactional_id)
        return {
            "throttle_time": 0,
            "error_code": 0,
            "producer_id": entry.producer_id,
            "producer_epoch": entry.epoch,
        }

    def _init(self, name: str) -> Entry:
        entry = self.entries.setdefault(name, Entry(1000 + len(self.entries)))
        entry.epoch += 1
        entry.state = EMPTY
        return entry

    def _added(self, request: Any) -> Reply:
        entry = self.entries[request.v3_and_below_transactional_id]
        is_ours = entry.epoch == request.v3_and_below_producer_epoch
        code = ErrorCode.none if is_ours else ErrorCode.producer_fenced
        if is_ours:
            entry.state = OPEN
        topics = [
            {
                "name": topic.name,
                "results_by_partition": [
                    {"partition_index": index, "partition_error_code": code.value} for index in topic.partitions
                ],
            }
            for topic in request.v3_and_below_topics
        ]
        return {"throttle_time": 0, "results_by_topic_v3_and_below": topics}

    def _end(self, request: Any) -> ErrorCode:
        entry = self.entries.get(request.transactional_id)
        if entry is None or entry.producer_id != request.producer_id:
            return ErrorCode.invalid_producer_id_mapping
        if entry.epoch != request.producer_epoch:
            return ErrorCode.producer_fenced
        wanted = COMMITTED if request.committed else ABORTED
        if entry.state not in (OPEN, wanted):
            return ErrorCode.invalid_txn_state
        entry.state = wanted
        return ErrorCode.none

    def _described(self, asked: Asked, name: str) -> dict[str, Any]:
        entry = self.entries.get(name)
        found = entry or Entry(-1)
        code = self._passing(asked) or (ErrorCode.none if entry else ErrorCode.transactional_id_not_found)
        return {
            "error_code": code.value,
            "transactional_id": name,
            "transaction_state": found.state,
            "transaction_timeout": 60_000,
            "transaction_start_time": 0,
            "producer_id": found.producer_id,
            "producer_epoch": found.epoch,
            "topics": [],
        }

    def _listed(self, asked: Asked, node: int) -> Reply:
        code = self._passing(asked) or ErrorCode.none
        states = [
            {"transactional_id": name, "producer_id": entry.producer_id, "transaction_state": entry.state}
            for name, entry in self.entries.items()
            if entry.state in asked.entity.state_filters and node == 0
        ]
        return {
            "throttle_time": 0,
            "error_code": code.value,
            "unknown_state_filters": [],
            "transaction_states": states,
        }

    def _refuse_old_epochs(self, asked: Asked) -> Reply | bool:
        request = parse_request(memoryview(asked.body), 0, asked.version)
        (index, records) = request.topics[0].partitions[0]
        assert records is not None
        header = read_header(records)
        seen = self.seen_epochs.get(header.producer_id, -1)
        if header.producer_epoch >= seen:
            if header.producer_epoch > seen:
                self.cluster.logs[index].sequences.pop(header.producer_id, None)
            self.seen_epochs[header.producer_id] = header.producer_epoch
            return False
        code = ErrorCode.invalid_producer_epoch.value
        answer = {"index": index, "error_code": code, "base_offset": -1, "log_append_time": -1, "record_errors": ()}
        return {"responses": [{"name": "orders", "partition_responses": [answer]}], "throttle_time": 0}

    def _passing(self, asked: Asked) -> ErrorCode | None:
        errors = self.errors.get(ApiKey(asked.api_key))
        return errors.pop(0) if errors else None
