"""Transactions from the writer's side: the conversation with the coordinator of a transactional id.

The first transaction protocol, which every broker with transactions speaks: partitions are added before records are
sent to them, and a transaction that was given up gets a new epoch, so that what is still on its way cannot come into
the next one.
"""

from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Final, NamedTuple, TypeVar

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.protocol.topic_partition import TopicPartition

from ..core.codes import Remedy, remedy_of
from ..core.errors import VersionNotServed
from ..core.metadata import CoordinatorKind
from ..core.transactions import (
    NOBODY,
    ProducerId,
    add_partitions_request,
    end_request,
    init_producer_request,
    read_added,
    read_producer,
)
from ..errors import ClientError
from .channel import Channel
from .cluster import Cluster
from .producing import FENCED, WHY_FENCED
from .retry import refused_or_again

T = TypeVar("T")


class WriterState(Enum):
    """Where a transaction is."""

    NEW = auto()
    """The coordinator does not know us yet, or is to give us a new epoch."""
    READY = auto()
    OPEN = auto()
    FAILED = auto()
    """Something could not be written: only to be aborted."""
    FENCED = auto()
    """Somebody else has the transactional id: nothing more can be done."""


class WriterEvent(Enum):
    BEGIN = auto()
    COMMIT = auto()
    ABORT = auto()
    HAND_OVER = auto()
    FAIL = auto()
    FENCE = auto()


TRANSITIONS: Final[dict[tuple[WriterState, WriterEvent], WriterState]] = {
    (WriterState.NEW, WriterEvent.BEGIN): WriterState.OPEN,
    (WriterState.READY, WriterEvent.BEGIN): WriterState.OPEN,
    (WriterState.OPEN, WriterEvent.COMMIT): WriterState.READY,
    (WriterState.OPEN, WriterEvent.ABORT): WriterState.NEW,
    (WriterState.OPEN, WriterEvent.HAND_OVER): WriterState.NEW,
    (WriterState.OPEN, WriterEvent.FAIL): WriterState.FAILED,
    (WriterState.FAILED, WriterEvent.FAIL): WriterState.FAILED,
    (WriterState.FAILED, WriterEvent.ABORT): WriterState.NEW,
    **{(state, WriterEvent.FENCE): WriterState.FENCED for state in WriterState},
    (WriterState.FENCED, WriterEvent.FAIL): WriterState.FENCED,
}

_WORDS: Final = {
    WriterState.NEW: "no transaction has begun",
    WriterState.READY: "no transaction has begun",
    WriterState.OPEN: "a transaction is open already",
    WriterState.FAILED: "the transaction failed and can only be aborted",
    WriterState.FENCED: WHY_FENCED,
}


class PreparedTransaction(NamedTuple):
    """A transaction whose records are all written, to be ended by whoever holds this, in any process."""

    transactional_id: str
    producer_id: int
    epoch: int
    has_records: bool

    @property
    def producer(self) -> ProducerId:
        return ProducerId(self.producer_id, self.epoch)


class WriterTransactions:
    """The transactions of one writer, one after the other."""

    def __init__(self, cluster: Cluster, transactional_id: str, timeout_ms: int) -> None:
        self._cluster = cluster
        self.id = transactional_id
        self._timeout_ms = timeout_ms
        self._added: set[TopicPartition] = set()
        self.producer = NOBODY
        self.state = WriterState.NEW

    @property
    def is_open(self) -> bool:
        return self.state in (WriterState.OPEN, WriterState.FAILED)

    def begin(self) -> bool:
        """Begin; True when the producer is another one than before."""
        self.check(WriterEvent.BEGIN)
        is_new = self.state is WriterState.NEW
        if is_new:
            self.producer = self._guarded(self._new_producer)
        self._added.clear()
        self.move(WriterEvent.BEGIN)
        return is_new

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Make partitions part of the transaction, which they must be before records are sent to them."""
        new = [where for where in partitions if where not in self._added]
        if new:
            self._guarded(lambda: _add_partitions(self._cluster, self.id, self.producer, new))
            self._added.update(new)

    def prepared(self) -> PreparedTransaction:
        """Hand the open transaction over; the next one begins with a new epoch."""
        self.check(WriterEvent.HAND_OVER)
        self.move(WriterEvent.HAND_OVER)
        return PreparedTransaction(self.id, *self.producer, bool(self._added))

    def end(self, event: WriterEvent) -> None:
        """Commit or abort."""
        self.check(event)
        prepared = PreparedTransaction(self.id, *self.producer, bool(self._added))
        self._guarded(lambda: finish_transaction(self._cluster, prepared, commit=event is WriterEvent.COMMIT))
        self.move(event)

    def check(self, event: WriterEvent) -> None:
        """`ClientError` when this cannot be done now."""
        if (self.state, event) not in TRANSITIONS:
            code = FENCED if self.state is WriterState.FENCED else "INVALID_TXN_STATE"
            raise ClientError(f"transactional id '{self.id}': {_WORDS[self.state]}", code)

    def move(self, event: WriterEvent) -> None:
        self.state = TRANSITIONS[(self.state, event)]

    def _new_producer(self) -> ProducerId:
        if self.producer == NOBODY:
            _require_transactions(self._cluster)
        return init_producer(self._cluster, self.id, self._timeout_ms, self.producer)

    def _guarded(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except ClientError as error:
            if error.code == FENCED:
                self.move(WriterEvent.FENCE)
            elif self.is_open:
                self.move(WriterEvent.FAIL)
            raise


def finish_transaction(cluster: Cluster, prepared: PreparedTransaction, *, commit: bool) -> None:
    """Commit or abort a transaction that was prepared here or elsewhere; ending it twice the same way is no error."""
    if not prepared.has_records:
        return
    values = end_request(prepared.transactional_id, prepared.producer, commit=commit)

    def attempt(channel: Channel) -> None:
        answer = channel.ask(ApiKey.END_TXN, values)
        _check(answer.error_code, prepared.transactional_id)

    cluster.with_coordinator(CoordinatorKind.TRANSACTION, prepared.transactional_id, attempt)


def init_producer(cluster: Cluster, transactional_id: str | None, timeout_ms: int, before: ProducerId) -> ProducerId:
    """An id for a producer; with a transactional id its own one, with a new epoch and older ones fenced off."""
    values = init_producer_request(transactional_id, timeout_ms, before)

    def attempt(channel: Channel) -> ProducerId:
        answer = channel.ask(ApiKey.INIT_PRODUCER_ID, values)
        if answer.error_code is ErrorCode.invalid_transaction_timeout:
            raise ClientError(
                f"transaction.timeout.ms={timeout_ms} is more than the brokers allow; lower it, "
                "or raise transaction.max.timeout.ms of the brokers",
                answer.error_code.name.upper(),
            )
        _check(answer.error_code, transactional_id)
        return read_producer(answer)

    if transactional_id is not None:
        return cluster.with_coordinator(CoordinatorKind.TRANSACTION, transactional_id, attempt)

    return cluster.with_any(attempt)


def _add_partitions(cluster: Cluster, transactional_id: str, producer: ProducerId, new: list[TopicPartition]) -> None:
    values = add_partitions_request(transactional_id, producer, new)

    def attempt(channel: Channel) -> None:
        for code in read_added(channel.ask(ApiKey.ADD_PARTITIONS_TO_TXN, values)):
            _check(code, transactional_id)

    cluster.with_coordinator(CoordinatorKind.TRANSACTION, transactional_id, attempt)


def _require_transactions(cluster: Cluster) -> None:
    def attempt(channel: Channel) -> None:
        try:
            channel.version_of(ApiKey.END_TXN)
        except VersionNotServed as error:
            raise ClientError(
                "this cluster has no transactions yet; write without a transactional id: "
                "each record is then written once, but not all or nothing",
                "UNSUPPORTED_VERSION",
            ) from error

    cluster.with_any(attempt)


def _check(code: ErrorCode, transactional_id: str | None) -> None:
    if code is ErrorCode.none:
        return
    what = "the writer's id" if transactional_id is None else f"transactional id '{transactional_id}'"
    if remedy_of(code) is Remedy.GIVE_UP_PRODUCER:
        raise ClientError(f"{what}: {WHY_FENCED}", FENCED)
    raise refused_or_again(code, what)
