"""The state of share-partitions in memory, with all that can go wrong on the way there; a member of a share group."""

from asyncio import Event
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from headrace.protocol.encode import encode_request
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.share_state import (
    ANY_EPOCH,
    UNCHANGED,
    UNINITIALIZED,
    SharePartition,
    ShareState,
    ShareStateChange,
    ShareStateStore,
    ShareStateSummary,
    StateBatch,
)
from tests.support.wire import Wire


class ShareStates(ShareStateStore):
    """One coordinator for everybody, that forgets nothing."""

    def __init__(self) -> None:
        self.states: dict[SharePartition, ShareState] = {}
        self.leader_epochs: dict[SharePartition, int] = {}
        self.changes: list[ShareStateChange] = []
        """All that was written, in that order."""
        self.failures: list[CodedError] = []
        """What the next calls end in, one after the other; nothing is written."""
        self.may_write = Event()
        """Writes wait for it."""
        self.may_write.set()

    async def initialize(self, key: SharePartition, state_epoch: int, start_offset: int = UNINITIALIZED) -> None:
        self.states[key] = ShareState(state_epoch=state_epoch, start_offset=start_offset)

    async def read(self, key: SharePartition, leader_epoch: int) -> ShareState:
        self._fail()
        state = self._state(key)
        if leader_epoch < self.leader_epochs.get(key, -1):
            raise CodedError(ErrorCode.fenced_leader_epoch)
        self.leader_epochs[key] = leader_epoch
        return state

    async def write(self, key: SharePartition, change: ShareStateChange) -> None:
        await self.may_write.wait()
        self._fail()
        state = self._state(key)
        if change.state_epoch < state.state_epoch:
            raise CodedError(ErrorCode.fenced_state_epoch)
        if change.leader_epoch < self.leader_epochs.get(key, -1):
            raise CodedError(ErrorCode.fenced_leader_epoch)
        self.changes.append(change)
        start = state.start_offset if change.start_offset == UNCHANGED else max(change.start_offset, state.start_offset)
        kept: dict[int, tuple[int, int]] = {}
        for first, last, delivery_state, count in (*state.batches, *change.batches):
            for offset in range(max(first, start), last + 1):
                kept[offset] = max(kept.get(offset, (-1, -1)), (count, delivery_state))
        batches = tuple(StateBatch(o, o, delivery_state, count) for o, (count, delivery_state) in sorted(kept.items()))
        self.states[key] = replace(state, start_offset=start, batches=batches)

    async def summary(self, key: SharePartition, leader_epoch: int = ANY_EPOCH) -> ShareStateSummary:
        state = self._state(key)
        return ShareStateSummary(
            state_epoch=state.state_epoch,
            leader_epoch=self.leader_epochs.get(key, -1),
            start_offset=state.start_offset,
            delivery_complete_count=-1,
        )

    async def delete(self, key: SharePartition) -> None:
        self.states.pop(key, None)
        self.leader_epochs.pop(key, None)

    def _state(self, key: SharePartition) -> ShareState:
        state = self.states.get(key)
        if state is None:
            raise CodedError(ErrorCode.invalid_request, f"{key.text} is not initialized")
        return state

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)


Ack = tuple[int, int, int]
"""First offset, last offset, type."""


class ShareMember:
    """A member of a share group on one connection, which says what a test wants said; one partition of one topic."""

    def __init__(self, wire: Wire, topic_id: UUID, *, group: str = "jobs", member: str = "a", version: int = 2) -> None:
        self.wire = wire
        self.topic_id = topic_id
        self.group = group
        self.member = member
        self.version = version
        self.epoch = 0
        """Of its next request."""

    def initialize(self, partitions: int = 1, start_offset: int = 0, state_epoch: int = 1) -> None:
        """Have the group begin there, as its coordinator does."""
        begun = [
            {"partition": index, "state_epoch": state_epoch, "start_offset": start_offset}
            for index in range(partitions)
        ]
        topics = [{"topic_id": self.topic_id, "partitions": begun}]
        topic_id = urlsafe_b64encode(self.topic_id.bytes).decode().rstrip("=")
        key = f"{self.group}:{topic_id}:0"
        code = ErrorCode.not_coordinator
        while code in (ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress):
            self.wire.send_body(10, 6, bytes(encode_request(10, 6, {"key_type": 2, "coordinator_keys": [key]})))
            self.wire.receive(10, 6)
            self.wire.send_body(83, 0, bytes(encode_request(83, 0, {"group_id": self.group, "topics": topics})))
            code = ErrorCode(self.wire.receive(83, 0).results[0].partitions[0].error_code)
        assert code is ErrorCode.none

    def send_fetch(self, *acks: Ack, wait_ms: int = 0, epoch: int | None = None, **values: Any) -> None:
        """A fetch that acknowledges, too."""
        defaults = {"min_bytes": 1, "max_bytes": 1 << 20, "max_records": 500, "batch_size": 500}
        self._send(78, acks, epoch, {"max_wait": wait_ms, "forgotten_topics_data": (), **defaults, **values})

    def receive_fetch(self) -> Any:
        return self.wire.receive(78, self.version)

    def fetch(self, *acks: Ack, wait_ms: int = 0, epoch: int | None = None, **values: Any) -> Any:
        """The same, and its answer."""
        self.send_fetch(*acks, wait_ms=wait_ms, epoch=epoch, **values)
        return self.receive_fetch()

    def take(self, *acks: Ack, **values: Any) -> list[Ack]:
        """The ranges that a fetch acquires: first offset, last offset, delivery count."""
        answer = self.fetch(*acks, **values)
        assert not int(answer.error_code), answer
        partitions = [partition for topic in answer.responses for partition in topic.partitions]
        assert not any(int(partition.error_code) for partition in partitions), answer
        return [(r.first_offset, r.last_offset, r.delivery_count) for p in partitions for r in p.acquired_records]

    def acknowledge(self, *acks: Ack, epoch: int | None = None, renew: bool = False) -> Any:
        """The answer of ShareAcknowledge."""
        self._send(79, acks, epoch, {"is_renew_ack": renew})
        return self.wire.receive(79, self.version)

    def say(self, *acks: Ack, **values: Any) -> ErrorCode:
        """The code of the partition in the answer of ShareAcknowledge."""
        answer = self.acknowledge(*acks, **values)
        assert not int(answer.error_code), answer
        return ErrorCode(answer.responses[0].partitions[0].error_code)

    def _send(self, api_key: int, acks: Sequence[Ack], epoch: int | None, values: Mapping[str, Any]) -> None:
        said = [{"first_offset": a, "last_offset": z, "acknowledge_types": (kind,)} for a, z, kind in acks]
        partitions = ({"partition_index": 0, "acknowledgement_batches": said},)
        asked = {
            "group_id": self.group,
            "member_id": self.member,
            "share_session_epoch": self.epoch if epoch is None else epoch,
            "topics": ({"topic_id": self.topic_id, "partitions": partitions},),
            **values,
        }
        self.wire.send_body(api_key, self.version, bytes(encode_request(api_key, self.version, asked)))
        if epoch is None:
            self.epoch += 1
