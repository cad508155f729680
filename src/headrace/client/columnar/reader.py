"""Ranges of offsets as Arrow batches.

Each leader is asked for all its partitions at once, over one connection. As soon as an answer is there, and before it
is decoded, the next fetch goes out, so that the broker works while this side decodes. Several leaders work at the same
time; one thread takes their answers as they come. What is held in memory is one answer per leader.
"""

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from select import POLLIN, poll
from typing import Final

import pyarrow as pa

from headrace.protocol.api import ApiKey
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import ErrorCode, ProtocolViolation
from headrace.protocol.fetch import FIRST_WITH_IDS
from headrace.protocol.fetched import FetchAnswer, PartitionRecords, parse_fetch

from ..core.codes import code_of
from ..core.errors import ConnectionLost
from ..core.metadata import PartitionRoute
from ..errors import ClientError
from .channel import BrokerAnswer, Channel
from .cluster import Cluster
from .decode import FetchDecoder
from .fetching import FetchStep, PartitionRead, end_of_batches, next_fetch, step_after
from .model import EARLIEST, LATEST, OffsetsGone, Range, TopicPartition, TopicReplaced
from .retry import Patience, TryAgain, refused, translated_call, unreachable

_OPEN_TRANSACTION: Final = "a transaction before the end of the range is still open"


def read_ranges(
    cluster: Cluster,
    ranges: Sequence[Range],
    *,
    with_headers: bool = False,
    read_committed: bool = False,
    topic_ids: Mapping[str, bytes] | None = None,
) -> Iterator[pa.RecordBatch]:
    """All records of the ranges, as batches of `SCHEMA` or `SCHEMA_WITH_HEADERS`.

    A batch holds records of one partition, and those of a partition come in their order. Batches of several
    partitions come as their brokers send them. Raises `OffsetsGone` when the log does not have all of a range (any
    more), `UnknownTopic`, and `ClusterUnreachable` when leaders stay away for `default.api.timeout.ms`; `TopicReplaced`
    for a topic whose id is not the one of `topic_ids`, where that has one.
    """
    for wanted in ranges:
        if not 0 <= wanted.start <= wanted.end:
            raise ValueError(f"{wanted} does not run from an offset to a later one")
    reading = _Reading(
        cluster, ranges, with_headers=with_headers, read_committed=read_committed, topic_ids=topic_ids or {}
    )
    return reading.run()


class _Job:
    """Bytes to decode."""

    __slots__ = ("aborted", "records", "start", "state", "stop")

    def __init__(self, state: PartitionRead, answer: PartitionRecords, start: int, stop: int) -> None:
        self.state = state
        self.records = answer.records
        self.aborted = answer.aborted
        self.start = start
        self.stop = stop


@dataclass(slots=True, kw_only=True)
class _Leg:
    """The connection to one broker, and what it was asked for."""

    node: int
    channel: Channel
    requested: dict[tuple[str | bytes, int], PartitionRead]


class _Reading:
    """One call of `read_ranges`."""

    def __init__(
        self,
        cluster: Cluster,
        ranges: Sequence[Range],
        *,
        with_headers: bool,
        read_committed: bool,
        topic_ids: Mapping[str, bytes],
    ) -> None:
        self._cluster = cluster
        self._topic_ids = topic_ids
        self._settings = cluster.settings
        self._with_headers = with_headers
        self._read_committed = read_committed
        self._waiting: dict[TopicPartition, deque[Range]] = defaultdict(deque)
        for wanted in ranges:
            if wanted.start < wanted.end:
                self._waiting[TopicPartition(wanted.topic, wanted.partition)].append(wanted)
        self._open: dict[TopicPartition, PartitionRead] = {}
        self._in_flight: set[TopicPartition] = set()
        self._legs: dict[int, _Leg] = {}

    def run(self) -> Iterator[pa.RecordBatch]:
        for where in list(self._waiting):
            self._open_next(where)
        try:
            while self._open:
                self._ask_idle_brokers()
                leg = self._next_answered()
                if leg is not None:
                    yield from self._take(leg)
        finally:
            for leg in self._legs.values():
                self._cluster.give_back(leg.channel)

    def _open_next(self, topic_partition: TopicPartition) -> None:
        """Begin the next range of a partition, if it has one."""
        queue = self._waiting[topic_partition]
        before = self._open.pop(topic_partition, None)
        if not queue:
            return
        wanted = queue.popleft()
        decoder = before.decoder if before is not None else self._decoder(topic_partition)
        self._open[topic_partition] = PartitionRead(
            topic_partition=topic_partition, next_offset=wanted.start, end=wanted.end, decoder=decoder
        )

    def _decoder(self, topic_partition: TopicPartition) -> FetchDecoder:
        return FetchDecoder(
            *topic_partition,
            with_headers=self._with_headers,
            check_crcs=self._settings["check.crcs"],
            skip_unreadable=self._settings["unreadable.batches"] == "skip",
        )

    # Asking

    def _ask_idle_brokers(self) -> None:
        """Send a fetch to each broker that has partitions to be asked about and owes no answer."""
        due: dict[int, list[PartitionRead]] = defaultdict(list)
        now = time.monotonic()
        for state in list(self._open.values()):
            if state.topic_partition in self._in_flight or state.retry_at > now:
                continue
            node = self._locate(state)
            if node is not None:
                due[node].append(state)
        for node, states in due.items():
            leg = self._legs.get(node)
            if leg is None or not leg.requested:
                self._ask(node, states)

    def _locate(self, state: PartitionRead) -> int | None:
        """The broker to ask; None while there is none."""
        try:
            route = translated_call(lambda: self._route(state.topic_partition))
        except TryAgain as again:
            self._postpone(state, again.error)
            return None
        if state.topic_id is not None and route.topic_id != state.topic_id:
            raise self._gone(state)
        state.topic_id = route.topic_id
        state.epoch = route.epoch
        return route.node if state.replica is None else state.replica

    def _route(self, topic_partition: TopicPartition) -> PartitionRoute:
        """Who leads a partition of the very topic that is wanted; what is remembered may be of another one."""
        topic_id = self._topic_ids.get(topic_partition.topic)
        route = self._cluster.locate(topic_partition)
        if topic_id in (None, route.topic_id) or route.topic_id is None:
            return route
        self._cluster.forget_leaders([topic_partition.topic])
        route = self._cluster.locate(topic_partition)
        if route.topic_id != topic_id:
            raise TopicReplaced(topic_partition.topic)
        return route

    def _ask(self, node: int, states: list[PartitionRead]) -> None:
        try:
            leg = self._legs.get(node) or self._new_leg(node)
            self._send(leg, states)
        except ConnectionLost as lost:
            self._drop_leg(node, states, lost)

    def _new_leg(self, node: int) -> _Leg:
        channel = translated_call(lambda: self._cluster.borrow(node))
        leg = self._legs[node] = _Leg(node=node, channel=channel, requested={})
        return leg

    def _send(self, leg: _Leg, states: list[PartitionRead]) -> None:
        all_have_ids = all(state.topic_id is not None for state in states)
        version = translated_call(
            lambda: leg.channel.version_of(ApiKey.FETCH, None if all_have_ids else FIRST_WITH_IDS - 1)
        )
        values = next_fetch(
            states,
            max_bytes=self._settings["fetch.max.bytes"],
            partition_bytes=self._settings["max.partition.fetch.bytes"],
            read_committed=self._read_committed,
            rack=self._settings["client.rack"],
        )
        leg.channel.send(ApiKey.FETCH, version, [encode_request(ApiKey.FETCH, version, values)])
        by_id = version >= FIRST_WITH_IDS
        leg.requested = {(state.topic_key(by_id=by_id), state.topic_partition.partition): state for state in states}
        self._in_flight.update(state.topic_partition for state in states)

    # Answers

    def _next_answered(self) -> _Leg | None:
        """A leg whose answer has begun to come, waiting for the first; None when nobody was asked."""
        waiting = [leg for leg in self._legs.values() if leg.requested]
        if not waiting:
            self._sleep()
            return None
        if len(waiting) == 1:
            return waiting[0]
        poller = poll()
        for leg in waiting:
            if leg.channel.has_buffered_input():
                return leg
            poller.register(leg.channel, POLLIN)
        ready = {fd for fd, _ in poller.poll(self._settings["request.timeout.ms"])}
        return next((leg for leg in waiting if leg.channel.fileno() in ready), waiting[0])

    def _sleep(self) -> None:
        """Until the first partition that failed is to be tried again."""
        if self._open:
            first = min(state.retry_at for state in self._open.values())
            time.sleep(max(first - time.monotonic(), 0.0))

    def _take(self, leg: _Leg) -> Iterator[pa.RecordBatch]:
        """Receive the answer of a leg, send its next fetch, and only then decode."""
        states = list(leg.requested.values())
        try:
            answer = self._receive(leg)
        except ConnectionLost as lost:
            self._drop_leg(leg.node, states, lost)
            return
        by_key, leg.requested = leg.requested, {}
        self._in_flight.difference_update(state.topic_partition for state in states)
        jobs = self._sort_out(answer, by_key)
        self._ask_idle_brokers()
        for job in jobs:
            yield from self._decoded(job)

    def _receive(self, leg: _Leg) -> FetchAnswer:
        received: BrokerAnswer = leg.channel.receive()
        try:
            answer = parse_fetch(received.body, received.version)
        except ProtocolViolation as error:
            raise leg.channel.lose(str(error)) from error
        code = code_of(answer.code)
        if code is not ErrorCode.none:
            raise leg.channel.lose(f"a fetch was answered {code.name.upper()}")
        return answer

    def _sort_out(self, answer: FetchAnswer, requested: dict[tuple[str | bytes, int], PartitionRead]) -> list[_Job]:
        """Act on what each partition answered; gives what there is to decode."""
        total = sum(len(partition.records) for partition in answer.partitions)
        jobs = []
        for partition in answer.partitions:
            state = requested.pop((partition.topic, partition.partition), None)
            if state is None:
                continue
            step = step_after(state, partition, read_committed=self._read_committed, is_alone=not total)
            job = self._act(state, partition, step)
            if job is not None:
                jobs.append(job)
            if state.is_done:
                self._open_next(state.topic_partition)
        self._hold_back(requested.values(), answer.throttle_ms)
        return jobs

    def _hold_back(self, unanswered: Iterable[PartitionRead], throttle_ms: int) -> None:
        """A broker answers for no partition while a quota holds this client back."""
        for state in unanswered:
            if throttle_ms:
                state.retry_at = time.monotonic() + throttle_ms / 1000
            else:
                self._postpone(
                    state, refused(ErrorCode.unknown_server_error, state.topic_partition.text, "was not answered for")
                )

    def _act(self, state: PartitionRead, answer: PartitionRecords, step: FetchStep) -> _Job | None:
        code = code_of(answer.code)
        if step is FetchStep.RECORDS:
            return self._job(state, answer)
        if step is FetchStep.DONE:
            state.next_offset = state.end
        elif step is FetchStep.EMPTY:
            state.empty_answers += 1
        elif step is FetchStep.ASK and answer.preferred_read_replica >= 0:
            state.replica = answer.preferred_read_replica
        elif step is FetchStep.LEADER:
            state.replica = None
        elif step is FetchStep.STALE:
            self._cluster.forget_leaders([state.topic_partition.topic])
            state.replica = None
            self._postpone(state, refused(code, state.topic_partition.text))
        elif step is FetchStep.WAIT:
            words = _OPEN_TRANSACTION if code is ErrorCode.none else None
            self._postpone(state, refused(code, state.topic_partition.text, words))
        elif step is FetchStep.GONE:
            self._confirm_gone(state)
        elif step is FetchStep.REFUSED:
            raise refused(code, state.topic_partition.text)
        return None

    def _job(self, state: PartitionRead, answer: PartitionRecords) -> _Job | None:
        start = state.next_offset
        stop = end_of_batches(answer.records, start)
        if stop <= start:
            # Bytes that are no batch are refused here, in words; a batch that was only cut short is asked for again.
            state.decoder.decode(answer.records, start, state.end, answer.aborted)
            self._postpone(
                state, refused(ErrorCode.corrupt_message, state.topic_partition.text, "no whole batch was sent")
            )
            return None
        state.advance(stop, len(answer.records))
        # Those that got nothing come first in the next fetch: there a broker gives a batch whatever its size.
        self._open[state.topic_partition] = self._open.pop(state.topic_partition)
        return _Job(state, answer, start, stop)

    def _decoded(self, job: _Job) -> Iterator[pa.RecordBatch]:
        offset, stop = job.start, min(job.stop, job.state.end)
        while offset < stop:
            before = offset
            batch, offset = job.state.decoder.decode(job.records, offset, job.state.end, job.aborted)
            if batch is not None:
                yield batch
            elif offset <= before:
                break

    # What can go wrong

    def _postpone(self, state: PartitionRead, error: ClientError) -> None:
        """Ask this partition again in a moment; raises the error when that went on for too long."""
        if state.patience is None:
            state.patience = Patience(self._settings)
        state.retry_at = time.monotonic() + state.patience.next_pause(error)

    def _drop_leg(self, node: int, states: list[PartitionRead], lost: ConnectionLost) -> None:
        leg = self._legs.pop(node, None)
        if leg is not None:
            self._cluster.give_back(leg.channel)
        self._cluster.forget_leaders({state.topic_partition.topic for state in states})
        for state in states:
            self._in_flight.discard(state.topic_partition)
            state.replica = None
            self._postpone(state, unreachable(lost))

    def _confirm_gone(self, state: PartitionRead) -> None:
        """Raise `OffsetsGone` unless the leader has the offsets after all: a new one may know its end a little late."""
        error = self._gone(state)
        if error.earliest <= state.next_offset and state.end <= error.latest:
            self._postpone(state, error)
        else:
            raise error

    def _gone(self, state: PartitionRead) -> OffsetsGone:
        earliest = self._cluster.offsets({state.topic_partition: EARLIEST})[state.topic_partition] or 0
        latest = self._cluster.offsets({state.topic_partition: LATEST})[state.topic_partition] or 0
        first_missing = latest if earliest <= state.next_offset < latest < state.end else state.next_offset
        return OffsetsGone(state.topic_partition, first_missing, earliest, latest)
