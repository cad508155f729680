"""Batches to the leaders of their partitions: several requests at a time to each, over one connection."""

import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from select import POLLIN, poll

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.protocol.produce_request import Buffer, produce_parts
from headrace.protocol.topic_partition import TopicPartition

from ..core.errors import ConnectionLost
from ..core.produce import UNANSWERED, read_produced
from ..core.transactions import NOBODY, ProducerId
from ..errors import ClientError
from .channel import Channel
from .cluster import Cluster
from .encode import EncodedBatch
from .producing import FENCED, WHY_FENCED, Batch, Meaning, PartitionQueue, meaning_of
from .retry import TryAgain, refused, translated_call, unreachable
from .transaction import WriterTransactions, init_producer

_TOO_LARGE = frozenset({ErrorCode.message_too_large, ErrorCode.record_list_too_large})

Request = list[tuple[PartitionQueue, Batch]]
"""The batches of one request under way."""


@dataclass(slots=True)
class AcknowledgedOffsets:
    """Offsets of records that were written, as ranges from the first up to, not including, the last; not known of all
    when a broker recognised a batch that was sent twice and did not say where it is."""

    ranges: list[tuple[int, int]] = field(default_factory=list)
    are_known: bool = True

    def add(self, base_offset: int, count: int) -> None:
        if base_offset < 0:
            self.are_known = False
        elif self.ranges and self.ranges[-1][1] == base_offset:
            self.ranges[-1] = (self.ranges[-1][0], base_offset + count)
        else:
            self.ranges.append((base_offset, base_offset + count))


@dataclass(slots=True, kw_only=True)
class _Leg:
    """The connection to one leader, and what is under way on it."""

    node: int
    channel: Channel
    requests: deque[Request] = field(default_factory=deque)


class Sender:
    """The batches of one writer on their way. What will not be written is raised by whichever call finds it out."""

    def __init__(self, cluster: Cluster, *, acks: int, transaction: WriterTransactions | None) -> None:
        self._cluster = cluster
        self._settings = cluster.settings
        self._acks = acks
        self._transaction = transaction
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._legs: dict[int, _Leg] = {}
        self.queued_bytes = 0
        self.written: dict[TopicPartition, int] = defaultdict(int)
        """Records that are acknowledged, by partition."""
        self.written_ranges: dict[TopicPartition, AcknowledgedOffsets] = defaultdict(AcknowledgedOffsets)
        """Where those of a transaction are."""

    def add(self, topic_partition: TopicPartition, encoded: EncodedBatch, producer: ProducerId) -> None:
        """Take a batch to be sent; `producer` counts for the first batch of a partition."""
        queue = self._queues.get(topic_partition)
        if queue is None:
            queue = PartitionQueue(
                topic_partition=topic_partition, producer=producer, transactional=self._transaction is not None
            )
            self._queues[topic_partition] = queue
        deadline = time.monotonic() + self._settings.seconds("delivery.timeout.ms")
        self.queued_bytes += queue.add(encoded, deadline).size

    def pump(self, most_bytes: int) -> None:
        """Send, and take answers, until at most that many bytes are on their way."""
        while True:
            self._send_ready()
            self._take_ready(wait=self.queued_bytes > most_bytes)
            if self.queued_bytes <= most_bytes:
                return

    def drop(self) -> None:
        """Forget what was not sent, and wait for what was: it must not arrive after its transaction has ended."""
        for leg in self._legs.values():
            while leg.requests and not leg.channel.is_closed:
                try:
                    leg.channel.receive()
                except ConnectionLost:
                    break
                leg.requests.popleft()
        self._queues.clear()
        self.queued_bytes = 0
        self.give_back()

    def give_back(self) -> None:
        """Let others use the connections; new ones are borrowed when they are needed again."""
        legs, self._legs = self._legs, {}
        for leg in legs.values():
            self._cluster.give_back(leg.channel)

    # Sending

    def _send_ready(self) -> None:
        """Send as many requests as there is something for and their brokers may have under way."""
        is_sending = not self._are_full(self._legs)
        while is_sending:
            is_sending = False
            ready = self._ready()
            for node, queues in ready.items():
                if not self._are_full([node]):
                    is_sending = self._send(node, queues) or is_sending
            is_sending = is_sending and not self._are_full(ready)

    def _are_full(self, nodes: Collection[int]) -> bool:
        """Whether there are such brokers, and none of them may have another request under way."""
        most = self._settings["max.in.flight.requests.per.connection"]
        return bool(nodes) and all(node in self._legs and len(self._legs[node].requests) >= most for node in nodes)

    def _ready(self) -> dict[int, list[PartitionQueue]]:
        """The partitions that have something to send now, by their leaders."""
        ready: dict[int, list[PartitionQueue]] = defaultdict(list)
        now = time.monotonic()
        for queue in self._queues.values():
            node = self._locate(queue) if queue.next_batch(now) is not None else None
            if node is not None and queue.may_go_to(node):
                ready[node].append(queue)
        if self._transaction is not None:
            self._transaction.add(queue.topic_partition for queues in ready.values() for queue in queues)
        return ready

    def _locate(self, queue: PartitionQueue) -> int | None:
        try:
            return translated_call(lambda: self._cluster.locate(queue.topic_partition)).node
        except TryAgain as again:
            self._put_off(queue, again.error)
            return None

    def _send(self, node: int, queues: list[PartitionQueue]) -> bool:
        """Send one request with the next batch of as many partitions as fit."""
        request = self._fitting(queues)
        topics: dict[str, list[tuple[int, Buffer]]] = defaultdict(list)
        for queue, batch in request:
            topics[queue.topic_partition.topic].append((queue.topic_partition.partition, batch.encoded.data))
            queue.sent(node)
        try:
            leg = self._legs.get(node) or self._new_leg(node)
            leg.requests.append(request)
            self._send_on(leg, topics)
        except ConnectionLost as lost:
            self._lose(node, lost, request)
            return False
        if not self._acks:
            leg.requests.pop()
            self._acknowledge(request)
        return True

    def _fitting(self, queues: list[PartitionQueue]) -> Request:
        left = self._settings["max.request.size"]
        chosen: Request = []
        for queue in queues:
            batch = queue.batches[queue.in_flight]
            if not chosen or batch.size <= left:
                chosen.append((queue, batch))
                left -= batch.size
        return chosen

    def _new_leg(self, node: int) -> _Leg:
        channel = translated_call(lambda: self._cluster.borrow(node))
        leg = self._legs[node] = _Leg(node=node, channel=channel)
        return leg

    def _send_on(self, leg: _Leg, topics: dict[str, list[tuple[int, Buffer]]]) -> None:
        version = translated_call(lambda: leg.channel.version_of(ApiKey.PRODUCE))
        parts = produce_parts(
            version,
            topics,
            acks=self._acks,
            timeout_ms=self._settings["request.timeout.ms"],
            transactional_id=None if self._transaction is None else self._transaction.id,
        )
        leg.channel.send(ApiKey.PRODUCE, version, parts, is_answered=self._acks != 0)

    # Answers

    def _take_ready(self, *, wait: bool) -> None:
        """Take all answers that are there; with `wait` at least one, or until something can be sent again."""
        now = time.monotonic()
        put_off = [queue.retry_at for queue in self._queues.values() if queue.batches and queue.retry_at > now]
        longest = self._settings.seconds("request.timeout.ms")
        timeout = min([longest, *(at - now for at in put_off)]) if wait else 0.0
        owing = [leg for leg in self._legs.values() if leg.requests]
        if not owing:
            time.sleep(timeout if put_off else 0.0)
            return
        for leg in _readable(owing, timeout) or (owing[:1] if timeout == longest else ()):
            self._take(leg)

    def _take(self, leg: _Leg) -> None:
        try:
            answer = read_produced(leg.channel.receive_entity())
        except ConnectionLost as lost:
            self._lose(leg.node, lost, [])
            return
        for queue, batch in leg.requests.popleft():
            produced = answer.get(queue.topic_partition, UNANSWERED)
            if meaning_of(produced.code, queue, batch) is Meaning.WRITTEN:
                self._acknowledge([(queue, batch)])
                if self._transaction is not None:
                    self.written_ranges[queue.topic_partition].add(produced.base_offset, batch.count)
            else:
                self._settle_failure(queue, batch, produced.code, produced.message or None)

    def _settle_failure(self, queue: PartitionQueue, batch: Batch, code: ErrorCode, message: str | None) -> None:
        meaning = meaning_of(code, queue, batch)
        queue.failed()
        if meaning is Meaning.FENCED:
            raise ClientError(f"{queue.topic_partition.text}: {WHY_FENCED}", FENCED)
        if meaning is Meaning.FAILED:
            raise _final(queue, batch, code, message)
        if meaning is Meaning.ELSEWHERE:
            self._cluster.forget_leaders([queue.topic_partition.topic])
        queue.is_forgotten = queue.is_forgotten or meaning is Meaning.FORGOTTEN
        self._put_off(queue, refused(code, queue.topic_partition.text, message))
        if queue.is_forgotten and not queue.in_flight:
            queue.start_anew(init_producer(self._cluster, None, 0, NOBODY))

    def _acknowledge(self, request: Request) -> None:
        for queue, batch in request:
            queue.written(batch)
            self.queued_bytes -= batch.size
            self.written[queue.topic_partition] += batch.count

    # What can go wrong

    def _lose(self, node: int, lost: ConnectionLost, unsent: Request) -> None:
        """Send all that a lost connection had under way again."""
        leg = self._legs.pop(node, None)
        requests: Iterable[Request] = [unsent] if leg is None else leg.requests
        if leg is not None:
            self._cluster.give_back(leg.channel)
        failed = {queue.topic_partition: queue for request in requests for queue, _ in request}
        for request in requests:
            for queue, _ in request:
                queue.failed()
        self._cluster.forget_leaders({where.topic for where in failed})
        for queue in failed.values():
            self._put_off(queue, unreachable(lost))

    def _put_off(self, queue: PartitionQueue, error: ClientError) -> None:
        """Try again in a moment; raises the error when the time for the first batch is over."""
        now = time.monotonic()
        queue.put_off(now, self._settings.seconds("retry.backoff.ms"), self._settings.seconds("retry.backoff.max.ms"))
        if now >= queue.batches[0].deadline:
            limit = self._settings["delivery.timeout.ms"]
            raise type(error)(
                f"{error.message}; not written within delivery.timeout.ms={limit}: {queue.fate()}", error.code
            )


def _readable(legs: list[_Leg], timeout: float) -> list[_Leg]:
    """Those whose answers have begun to come."""
    buffered = [leg for leg in legs if leg.channel.has_buffered_input()]
    if buffered:
        return buffered
    poller = poll()
    for leg in legs:
        poller.register(leg.channel, POLLIN)
    ready = {fd for fd, _ in poller.poll(timeout * 1000)}
    return [leg for leg in legs if leg.channel.fileno() in ready]


def _final(queue: PartitionQueue, batch: Batch, code: ErrorCode, message: str | None) -> ClientError:
    """The error for a batch that will not be written."""
    if code in _TOO_LARGE:
        advice = "raise max.message.bytes of the topic" if batch.count == 1 else "set batch.size to less"
        return ClientError(
            f"{queue.topic_partition.text}: a batch of {batch.count} records has {batch.size} bytes, "
            f"more than max.message.bytes lets in; {advice}",
            code.name.upper(),
        )
    if code is ErrorCode.out_of_order_sequence_number or code is ErrorCode.unknown_producer_id:
        return refused(
            code, queue.topic_partition.text, f"the log does not have what was acknowledged before; {queue.fate()}"
        )
    return refused(code, queue.topic_partition.text, message)
