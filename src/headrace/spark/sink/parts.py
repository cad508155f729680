"""The rows of an attempt in one transaction after the other, all to be committed together.

The cluster aborts a transaction that is open for longer than `transaction.timeout.ms`, however much its task still has
to do. So none is written to for longer than half of that: it is left open, and another one is begun. One that is
aborted then, because its batch takes still longer, is no loss: its records stay in the log, where only readers of what
is not committed see them, and whoever commits the batch copies them into a transaction of their own (`copy_part`).
"""

import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import Final, NamedTuple

import pyarrow as pa

from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.model import OffsetsGone, Range
from headrace.client.columnar.prepared import describe_transactions, end_transactions
from headrace.client.columnar.producing import FENCED
from headrace.client.columnar.reader import read_ranges
from headrace.client.columnar.transaction import PreparedTransaction
from headrace.client.columnar.writer import Writer
from headrace.client.errors import ClientError, ClusterUnreachable

from .commit import Part, Prepared, not_there, suffix_of, transactional_id
from .slots import slots_of

_KEPT_BYTES: Final = 64 << 20
"""Rows that are kept until they are acknowledged, to be written again if their transaction is aborted meanwhile."""
_TRIES: Final = 3
_UNFINISHED: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")
_EXPIRED: Final = frozenset({FENCED, "INVALID_TXN_STATE", "INVALID_PRODUCER_ID_MAPPING"})
"""What brokers answer to who writes in a transaction that they have aborted."""
_COPIED: Final = ["topic", "partition", "key", "value", "headers", "timestamp"]

Clock = Callable[[], float]


class PartOrigin(NamedTuple):
    """Whose rows are written: a task of a batch."""

    query: str
    run: str
    batch: int
    partition: int
    reuses_ids: bool
    """Whether transactional ids are used again by later batches."""


def leased_suffix(cluster: Cluster, origin: PartOrigin) -> AbstractContextManager[str]:
    """The end of a transactional id under which nothing is open, and which nobody else has for a while."""
    if not origin.reuses_ids:
        return nullcontext(suffix_of(uuid.uuid4().hex, origin.batch))

    def are_free(suffixes: Collection[str]) -> list[str]:
        names = {transactional_id(origin.query, origin.run, one): one for one in suffixes}
        found = describe_transactions(cluster, names)
        return [names[name] for name, one in found.items() if one is None or one.state not in _UNFINISHED]

    return slots_of(origin.query, origin.run).lease(suffix_of("", origin.batch), are_free)


class _Open:
    """A transaction that is being written to."""

    def __init__(self, cluster: Cluster, origin: PartOrigin, topic: str | None, clock: Clock) -> None:
        self._origin = origin
        self._topic = topic
        self._lease = ExitStack()
        self._suffix = self._lease.enter_context(leased_suffix(cluster, origin))
        self.begun_at = clock()
        self._writer = Writer(cluster, transactional_id=transactional_id(origin.query, origin.run, self._suffix))
        self._writer.begin()
        self._producer = self._writer.producer
        self._written: list[Range] | None = []
        self.kept: list[pa.RecordBatch] = []
        """Rows that may not be in the log."""
        self._kept_bytes = 0

    def write(self, rows: pa.RecordBatch) -> None:
        self.kept.append(rows)
        self._kept_bytes += rows.nbytes
        self._writer.write(rows, self._topic)
        if self._kept_bytes >= _KEPT_BYTES:
            self.flush()

    def flush(self) -> None:
        """All rows are in the log when this returns."""
        self._writer.flush()
        self._written = self._writer.written_ranges
        self.kept, self._kept_bytes = [], 0

    def part(self) -> Part:
        """What is surely in the log."""
        origin = self._origin
        prepared = Prepared(origin.run, origin.partition, self._suffix, *self._producer)
        return Part(prepared, None if self._written is None else tuple(self._written))

    def hand_over(self) -> Part:
        """Leave it open, with all rows in it."""
        self.flush()
        self._writer.prepare()
        self._lease.close()
        return self.part()

    def leave(self) -> None:
        """Nobody is there to abort it: the cluster does, or the driver."""
        self._lease.close()

    def close(self) -> None:
        """Abort it."""
        try:
            with suppress(ClientError):
                self._writer.close()
        finally:
            self._lease.close()


class PartsWriter:
    """Writes the rows of an attempt."""

    def __init__(
        self, cluster: Cluster, origin: PartOrigin, topic: str | None = None, clock: Clock = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._origin = origin
        self._topic = topic
        self._clock = clock
        self._timeout = cluster.settings.seconds("transaction.timeout.ms")
        self._parts: list[Part] = []
        self._open: _Open | None = None

    def write_all(self, batches: Iterable[pa.RecordBatch]) -> tuple[Part, ...]:
        """Write rows, and leave their transactions open for the driver to end; none of them where this fails."""
        try:
            for rows in batches:
                if self._open is not None and self._age() > self._timeout / 2:
                    self._hand_over()
                self._write([rows])
            self._hand_over()
        except ClusterUnreachable:
            if self._open is not None:
                self._open.leave()
            raise
        except BaseException:
            self._undo()
            raise
        return tuple(self._parts)

    def _write(self, batches: Iterable[pa.RecordBatch]) -> None:
        for rows in batches:
            if self._open is None:
                self._open = _Open(self._cluster, self._origin, self._topic, self._clock)
            self._open.write(rows)

    def _hand_over(self) -> None:
        """Leave the transaction open. Where it was aborted meanwhile, write what may be missing in another one."""
        for _ in range(_TRIES):
            current = self._open
            if current is None:
                return
            try:
                self._parts.append(current.hand_over())
                self._open = None
                return
            except ClientError as error:
                if not self._has_expired(error):
                    raise
            self._open = None
            current.close()
            self._parts.append(current.part())
            self._write(current.kept)
        raise ClientError(f"{self._timeout:g} s (transaction.timeout.ms) are too short to write rows in", FENCED)

    def _has_expired(self, error: ClientError) -> bool:
        return error.code in _EXPIRED and self._age() >= self._timeout

    def _age(self) -> float:
        assert self._open is not None
        return self._clock() - self._open.begun_at

    def _undo(self) -> None:
        if self._open is not None:
            self._open.close()
        with suppress(ClientError):
            end_transactions(self._cluster, [self._named(one.prepared) for one in self._parts], commit=False)

    def _named(self, one: Prepared) -> PreparedTransaction:
        name = transactional_id(self._origin.query, one.run, one.suffix)
        return PreparedTransaction(name, one.producer_id, one.epoch, True)


def copy_part(cluster: Cluster, origin: PartOrigin, part: Part) -> tuple[Part, ...]:
    """Write the records of a transaction that was aborted in others; `CommitError` when they are not all there."""
    return PartsWriter(cluster, origin).write_all(_records(cluster, origin.batch, part))


def _records(cluster: Cluster, batch: int, part: Part) -> Iterator[pa.RecordBatch]:
    ranges = part.ranges or ()
    missing = sum(one.end - one.start for one in ranges)
    try:
        for rows in read_ranges(cluster, ranges, with_headers=True):
            missing -= rows.num_rows
            yield rows.select(_COPIED)
    except OffsetsGone as error:
        raise not_there(batch, part.prepared) from error
    if missing:
        raise not_there(batch, part.prepared)
