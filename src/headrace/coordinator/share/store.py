"""`ShareStateStore` over the share coordinators of the cluster: this broker's own, or another's over a link.

What is asked while a request of the same kind, for the same group and coordinator, is under way goes together in the
next one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import structlog

from headrace.cluster.image import ClusterImage
from headrace.net.clock import Clock
from headrace.net.peers import Peers, PeerUnreachable, Purpose
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.share_state import (
    ANY_EPOCH,
    SharePartition,
    ShareState,
    ShareStateChange,
    ShareStateStore,
    ShareStateSummary,
    StateBatch,
)

from .service import ShareCoordinator

log = structlog.get_logger(__name__)

PATIENCE_SECONDS: Final = 20.0
"""How long a coordinator is asked again; less than clients wait for their brokers."""
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
MOST_PARTITIONS: Final = 1_000
"""In one request."""
_TRIED_AGAIN: Final = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.unknown_topic_or_partition,
    }
)

Values = Mapping[str, Any]


class _Api(NamedTuple):
    """One of the APIs of the share coordinator."""

    key: ApiKey
    version: int
    result: Callable[[Any], Any]
    """From the answer for one partition."""


class _Call(NamedTuple):
    """What is asked about one share-partition, and who waits for that."""

    key: SharePartition
    values: Values
    answer: "asyncio.Future[Any]"


class _Lane(NamedTuple):
    """Calls that may go in one request."""

    broker: int
    api: _Api
    group_id: str


class RoutedShareState(ShareStateStore):
    """Asks whoever coordinates a share-partition."""

    def __init__(
        self, *, broker_id: int, coordinator: ShareCoordinator, image: ClusterImage, clock: Clock, peers: Peers | None
    ) -> None:
        self._broker_id = broker_id
        self._coordinator = coordinator
        self._image = image
        self._clock = clock
        self._peers = peers
        self._waiting: dict[_Lane, list[_Call]] = {}
        """Of each lane that a request is under way on, what the next one is to ask."""

    async def initialize(self, key: SharePartition, state_epoch: int, start_offset: int) -> None:
        values = {"state_epoch": state_epoch, "start_offset": start_offset}
        await self._ask(_INITIALIZE, key, values, lambda: self._coordinator.initialize(key, state_epoch, start_offset))

    async def read(self, key: SharePartition, leader_epoch: int) -> ShareState:
        here = lambda: self._coordinator.read(key, leader_epoch)  # noqa: E731
        state: ShareState = await self._ask(_READ, key, {"leader_epoch": leader_epoch}, here)
        return state

    async def write(self, key: SharePartition, change: ShareStateChange) -> None:
        values = {
            "state_epoch": change.state_epoch,
            "leader_epoch": change.leader_epoch,
            "start_offset": change.start_offset,
            "delivery_complete_count": change.delivery_complete_count,
            "state_batches": [batch._asdict() for batch in change.batches],
        }
        await self._ask(_WRITE, key, values, lambda: self._coordinator.write(key, change))

    async def summary(self, key: SharePartition, leader_epoch: int = ANY_EPOCH) -> ShareStateSummary:
        here = lambda: self._coordinator.summary(key)  # noqa: E731
        summary: ShareStateSummary = await self._ask(_SUMMARY, key, {"leader_epoch": leader_epoch}, here)
        return summary

    async def delete(self, key: SharePartition) -> None:
        await self._ask(_DELETE, key, {}, lambda: self._coordinator.delete(key))

    async def _ask(self, api: _Api, key: SharePartition, values: Values, here: Callable[[], Awaitable[Any]]) -> Any:
        deadline, pause = self._clock.monotonic() + PATIENCE_SECONDS, FIRST_PAUSE
        while True:
            try:
                leader = await self._coordinator.leader(key)
                if leader == self._broker_id:
                    return await here()
                return await self._ask_peer(_Lane(leader, api, key.group_id), key, values)
            except CodedError as error:
                if error.code not in _TRIED_AGAIN:
                    raise
                is_unknown = error.code is ErrorCode.unknown_topic_or_partition
                if is_unknown and self._image.was_deleted(key.topic_id):
                    raise
                if self._clock.monotonic() + pause > deadline:
                    code = error.code if is_unknown else ErrorCode.coordinator_not_available
                    raise CodedError(code, error.message) from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    # Other brokers

    async def _ask_peer(self, lane: _Lane, key: SharePartition, values: Values) -> Any:
        if self._peers is None:
            raise CodedError(ErrorCode.coordinator_not_available, f"broker {lane.broker} cannot be asked")
        if self._coordinator.runtime.is_closed:
            raise CodedError(ErrorCode.coordinator_not_available, "this broker stops")
        call = _Call(key, values, asyncio.get_running_loop().create_future())
        waiting = self._waiting.get(lane)
        if waiting is None:
            self._waiting[lane] = [call]
            self._coordinator.runtime.spawn(self._work_off(lane, self._peers))
        else:
            waiting.append(call)
        return await call.answer

    async def _work_off(self, lane: _Lane, peers: Peers) -> None:
        """Send what waits on a lane, one request after the other."""
        calls: Mapping[SharePartition, _Call] = {}
        try:
            await asyncio.sleep(0)  # what is asked in the same turn goes along
            while calls := self._take(lane):
                try:
                    answers = await _exchange(peers, lane, calls.values())
                except PeerUnreachable as error:
                    _refuse(calls.values(), str(error))
                    continue
                for key, call in calls.items():
                    _settle(call, lane.api, answers.get(key))
        finally:
            _refuse([*calls.values(), *self._waiting.pop(lane)], "the request was given up")

    def _take(self, lane: _Lane) -> dict[SharePartition, _Call]:
        """The calls of the next request; of two for the same share-partition the later one waits for the one after."""
        taken: dict[SharePartition, _Call] = {}
        left = []
        for call in self._waiting[lane]:
            if call.key in taken or len(taken) == MOST_PARTITIONS:
                left.append(call)
            elif not call.answer.done():
                taken[call.key] = call
        self._waiting[lane] = left
        return taken


async def _exchange(peers: Peers, lane: _Lane, calls: Iterable[_Call]) -> dict[SharePartition, Any]:
    topics: dict[Any, list[Values]] = {}
    for call in calls:
        topics.setdefault(call.key.topic_id, []).append({"partition": call.key.partition, **call.values})
    asked = {
        "group_id": lane.group_id,
        "topics": [{"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in topics.items()],
    }
    answer = await peers.ask(lane.broker, lane.api.key, lane.api.version, asked, purpose=Purpose.SHARE)
    return {
        SharePartition(lane.group_id, topic.topic_id, partition.partition): partition
        for topic in answer.results
        for partition in topic.partitions
    }


def _settle(call: _Call, api: _Api, answer: Any) -> None:
    if call.answer.done():
        return
    if answer is None:
        call.answer.set_exception(CodedError(ErrorCode.coordinator_not_available, f"no answer about {call.key.text}"))
    elif answer.error_code is not ErrorCode.none:
        call.answer.set_exception(CodedError(answer.error_code, answer.error_message or ""))
    else:
        call.answer.set_result(api.result(answer))


def _refuse(calls: Iterable[_Call], reason: str) -> None:
    for call in calls:
        if not call.answer.done():
            call.answer.set_exception(CodedError(ErrorCode.coordinator_not_available, reason))


def _nothing(_: Any) -> None:
    """The answer says no more than that it was done."""


def _state(answer: Any) -> ShareState:
    return ShareState(
        state_epoch=answer.state_epoch,
        start_offset=answer.start_offset,
        batches=tuple(
            StateBatch(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
            for batch in answer.state_batches
        ),
    )


def _summary(answer: Any) -> ShareStateSummary:
    return ShareStateSummary(
        state_epoch=answer.state_epoch,
        leader_epoch=answer.leader_epoch,
        start_offset=answer.start_offset,
        delivery_complete_count=answer.delivery_complete_count,
    )


_INITIALIZE: Final = _Api(ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0, _nothing)
_READ: Final = _Api(ApiKey.READ_SHARE_GROUP_STATE, 0, _state)
_WRITE: Final = _Api(ApiKey.WRITE_SHARE_GROUP_STATE, 1, _nothing)
_DELETE: Final = _Api(ApiKey.DELETE_SHARE_GROUP_STATE, 0, _nothing)
_SUMMARY: Final = _Api(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, 1, _summary)
