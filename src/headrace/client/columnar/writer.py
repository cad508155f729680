"""Arrow rows to topics.

Rows are collected until there are enough for full batches, sorted into partitions, encoded, and handed to the sender,
which has several requests under way while the next rows are encoded. What fails in passing is sent again, in its
order; see `producing` for why nothing is lost or doubled by that.
"""

import random
import time
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from ..core.transactions import NOBODY, ProducerId
from ..errors import ClientError, ClusterUnreachable
from .cluster import Cluster
from .encode import encode_rows
from .model import Range, TopicPartition
from .producing import FENCED
from .rows import RowRouter, batches_of, by_topic, checked, highest_partition, joined, pieces
from .sender import Sender
from .transaction import PreparedTransaction, WriterEvent, WriterTransactions, init_producer

MIB: Final = 1 << 20
_LEAST_COLLECTED: Final = 4 * MIB
_MOST_COLLECTED: Final = 32 * MIB
_PER_PARTITION: Final = 512 * 1024
"""Bytes to collect for each partition of a topic, so that batches are not small where partitions are many."""
_WORTH_SENDING: Final = 1 * MIB
"""Bytes after which brokers get to work, while the rest of the rows is encoded."""
_BELIEVED_SECONDS: Final = 1.0
"""How old a topic's number of partitions may be for a new writer: clusters are shared by all writers of a process, and
the topic may have been made anew, with fewer, since the last one wrote to it."""
_ACKS: Final = {"all": -1, "-1": -1, "1": 1, "0": 0}
_INVALID: Final = "INVALID_CONFIG"


@dataclass(slots=True)
class _Collected:
    """Rows of one topic that are not encoded yet."""

    router: RowRouter
    batches: list[pa.RecordBatch] = field(default_factory=list)
    size: int = 0


class Writer:
    """Writes Arrow rows to topics; for one thread at a time.

        with Writer(cluster) as writer:
            writer.write(pa.table({"key": ["a"], "value": ["1"]}), "orders")

    Arguments that are None come from the cluster's settings (`acks`, `enable.idempotence`, `compression.type`,
    `transactional.id`). With acks=all each record is written once, whatever fails on the way; with 1 or 0 it may be
    missing or be there twice. `ClientError` tells what was not written, and ends the writer; but a transaction that
    failed can be aborted, and a new one begun.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: str | None = None,
        idempotent: bool | None = None,
        compression: str | None = None,
        transactional_id: str | None = None,
    ) -> None:
        settings = cluster.settings
        name = transactional_id or settings["transactional.id"]
        word = acks or settings["acks"]
        idempotence = settings["enable.idempotence"] if idempotent is None else idempotent
        self._cluster = cluster
        self._settings = settings
        self._compression = compression or settings["compression.type"]
        self._transaction = WriterTransactions(cluster, name, settings["transaction.timeout.ms"]) if name else None
        self._sender = Sender(cluster, acks=_checked_acks(word), transaction=self._transaction)
        self._producer: ProducerId | None = None if _is_idempotent(idempotence, word, name) else NOBODY
        self._collected: dict[str, _Collected] = {}
        self._collected_bytes = 0
        self._error: ClientError | None = None
        self._is_closed = False

    @property
    def written(self) -> dict[TopicPartition, int]:
        """How many records are acknowledged, by partition."""
        return dict(self._sender.written)

    @property
    def producer(self) -> ProducerId:
        """Who writes, as brokers know it; nobody before the first transaction or the first rows."""
        return self._producer or NOBODY

    @property
    def written_ranges(self) -> list[Range] | None:
        """Where the acknowledged records of the transaction are, in the order of their partitions; None where that is
        not known of all."""
        written = self._sender.written_ranges
        if not all(one.are_known for one in written.values()):
            return None
        return [Range(*partition, *span) for partition, one in sorted(written.items()) for span in one.ranges]

    @property
    def is_transactional(self) -> bool:
        """Whether rows are written in transactions, each begun with `begin`."""
        return self._transaction is not None

    def write(self, rows: Any, topic: str | None = None) -> None:
        """Take rows to be written: a table, a batch, or anything that gives an Arrow stream.

        Columns: `value`, and where wanted `key`, `headers`, `timestamp`, `partition` and, unless `topic` is given,
        `topic`. Returns when they are taken, not when they are written: see `flush`.
        """
        self._require_usable()
        for batch in batches_of(rows):
            for name, part in by_topic(checked(batch), topic):
                self._collect(name, part)

    def flush(self) -> None:
        """Return when all rows taken so far are acknowledged; raises when one is not."""
        self._require_usable()
        self._send_all()
        self._pump(0)
        self._sender.give_back()

    def begin(self) -> None:
        """Begin a transaction."""
        transaction = self._require_transaction()
        if transaction.begin():
            self._sender.drop()
        self._sender.written_ranges.clear()
        self._producer = transaction.producer

    def commit(self) -> None:
        """Write what is left, then make all of the transaction visible; raises when it is not."""
        self._require_transaction().check(WriterEvent.COMMIT)
        self.flush()
        self._require_transaction().end(WriterEvent.COMMIT)

    def abort(self) -> None:
        """Give the transaction up: nothing of it is ever shown to readers of what is committed."""
        transaction = self._require_transaction()
        transaction.check(WriterEvent.ABORT)
        self._collected.clear()
        self._collected_bytes = 0
        self._sender.drop()
        transaction.end(WriterEvent.ABORT)
        self._error = None

    def prepare(self) -> PreparedTransaction:
        """Write what is left, and hand the open transaction over to whoever ends it with `finish_transaction`."""
        self._require_transaction().check(WriterEvent.HAND_OVER)
        self.flush()
        return self._require_transaction().prepared()

    def close(self) -> None:
        """Flush and close; an open transaction is aborted."""
        if self._is_closed:
            return
        try:
            if self._transaction is None:
                if self._error is None:
                    self.flush()
            elif self._transaction.is_open:
                self.abort()
        finally:
            self._is_closed = True
            self._sender.give_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        # What went wrong in the block is what the caller is to hear of. A transaction left open would hold up readers
        # until the cluster ends it; where nobody answers, that is who must.
        is_open = self._transaction is not None and self._transaction.is_open
        if is_open and not (self._is_closed or isinstance(error, ClusterUnreachable)):
            with suppress(ClientError):
                self.abort()
        self._is_closed = True
        self._sender.give_back()

    def _collect(self, topic: str, rows: pa.RecordBatch) -> None:
        collected = self._collected.get(topic)
        if collected is None:
            self._cluster.describe([topic], max_age=_BELIEVED_SECONDS)
            router = RowRouter(topic, self._settings["batch.size"], random.randrange(1 << 16))
            collected = self._collected[topic] = _Collected(router)
        enough = min(max(self._partitions(topic) * _PER_PARTITION, _LEAST_COLLECTED), _MOST_COLLECTED)
        for piece in pieces(rows, enough):
            size = piece.nbytes
            # Joining copies, which only rows too few for a batch of their own are worth.
            if collected.batches and (2 * size > enough or collected.batches[0].schema != piece.schema):
                self._send(topic)
            collected.batches.append(piece)
            collected.size += size
            self._collected_bytes += size
            if 2 * collected.size > enough:
                self._send(topic)
        if self._collected_bytes > _MOST_COLLECTED:  # of many topics, none of which has enough by itself
            self._send_all()

    def _send_all(self) -> None:
        for topic in list(self._collected):
            self._send(topic)

    def _send(self, topic: str) -> None:
        """Turn the collected rows of a topic into batches on their way."""
        collected = self._collected[topic]
        if not collected.batches:
            return
        rows = joined(collected.batches)
        self._collected_bytes -= collected.size
        collected.batches, collected.size = [], 0
        try:
            self._route(topic, collected.router, rows)
        except ClientError as error:
            self._fail(error)
            raise

    def _route(self, topic: str, router: RowRouter, rows: pa.RecordBatch) -> None:
        producer = self._identity()
        now_ms = time.time_ns() // 1_000_000
        sent_at = self._sender.queued_bytes
        for number, part in router.split(rows, self._partitions(topic, highest_partition(rows))):
            for encoded in encode_rows(
                part,
                compression=self._compression,
                level=self._settings["compression.level"],
                batch_bytes=self._settings["batch.size"],
                now_ms=now_ms,
            ):
                self._sender.add(TopicPartition(topic, number), encoded, producer)
            if self._sender.queued_bytes - sent_at >= _WORTH_SENDING:
                self._pump(self._settings["buffer.memory"])
                sent_at = self._sender.queued_bytes
        self._pump(self._settings["buffer.memory"])

    def _pump(self, most_bytes: int) -> None:
        try:
            self._sender.pump(most_bytes)
        except ClientError as error:
            self._fail(error)
            raise

    def _partitions(self, topic: str, highest: int = -1) -> int:
        """How many a topic has; asked anew when rows name one that it did not have before."""
        count = self._cluster.describe([topic])[topic].partitions
        return count if highest < count else self._cluster.partitions([topic])[topic]

    def _identity(self) -> ProducerId:
        if self._producer is None:
            self._producer = init_producer(self._cluster, None, 0, NOBODY)
        return self._producer

    def _fail(self, error: ClientError) -> None:
        self._error = error
        if self._transaction is not None and self._transaction.is_open:
            self._transaction.move(WriterEvent.FENCE if error.code == FENCED else WriterEvent.FAIL)

    def _require_usable(self) -> None:
        if self._is_closed:
            raise ClientError("the writer is closed", "_STATE")
        if self._error is not None:
            raise self._error
        if self._transaction is not None and not self._transaction.is_open:
            raise ClientError("no transaction has begun: call begin() first", "INVALID_TXN_STATE")

    def _require_transaction(self) -> WriterTransactions:
        if self._transaction is None:
            raise ClientError("the writer has no transactional id; give it one to write in transactions", _INVALID)
        if self._is_closed:
            raise ClientError("the writer is closed", "_STATE")
        return self._transaction


def _checked_acks(word: str) -> int:
    if word not in _ACKS:
        raise ClientError(f"acks must be one of {', '.join(_ACKS)}, not '{word}'", _INVALID)
    return _ACKS[word]


def _is_idempotent(asked_for: bool | None, acks: str, transactional_id: str | None) -> bool:
    """Whether batches have sequence numbers: where nothing else is said, whenever acks=all lets them."""
    if _ACKS[acks] == _ACKS["all"]:
        if asked_for is False and transactional_id is not None:
            raise ClientError("a writer with a transactional id is idempotent: set enable.idempotence=true", _INVALID)
        return asked_for is not False
    if asked_for or transactional_id is not None:
        raise ClientError(f"an idempotent writer waits for all replicas: set acks=all, not {acks}", _INVALID)
    return False
