"""Transactions from the writer's side: the conversation with the coordinator of a transactional id.

The first transaction protocol, which every broker with transactions speaks: partitions are added before records are
sent to them, and a transaction that was given up gets a new epoch, so that what is still on its way cannot come into
the next one.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Final, NamedTuple, TypeVar

from headrace.client.columnar.channel import Channel
from headrace.client.core.errors import VersionNotServed
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode

from ..errors import ClientError
from .cluster import Cluster
from .groups import LOADING, MOVED, TRANSACTION, with_coordinator
from .model import TopicPartition
from .producing import FENCED, FENCING, NOBODY, WHY_FENCED, Producer
from .retry import PASSING, TryAgain, refused

T = TypeVar("T")

_AGAIN: Final = MOVED | LOADING | PASSING | {ErrorCode.concurrent_transactions}


class State(Enum):
    """Where a transaction is."""

    NEW = auto()
    """The coordinator does not know us yet, or is to give us a new epoch."""
    READY = auto()
    OPEN = auto()
    FAILED = auto()
    """Something could not be written: only to be aborted."""
    FENCED = auto()
    """Somebody else has the transactional id: nothing more can be done."""


class Event(Enum):
    BEGIN = auto()
    COMMIT = auto()
    ABORT = auto()
    HAND_OVER = auto()
    FAIL = auto()
    FENCE = auto()


TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (State.NEW, Event.BEGIN): State.OPEN,
    (State.READY, Event.BEGIN): State.OPEN,
    (State.OPEN, Event.COMMIT): State.READY,
    (State.OPEN, Event.ABORT): State.NEW,
    (State.OPEN, Event.HAND_OVER): State.NEW,
    (State.OPEN, Event.FAIL): State.FAILED,
    (State.FAILED, Event.FAIL): State.FAILED,
    (State.FAILED, Event.ABORT): State.NEW,
    **{(state, Event.FENCE): State.FENCED for state in State},
    (State.FENCED, Event.FAIL): State.FENCED,
}

_WORDS: Final = {
    State.NEW: "no transaction has begun",
    State.READY: "no transaction has begun",
    State.OPEN: "a transaction is open already",
    State.FAILED: "the transaction failed and can only be aborted",
    State.FENCED: WHY_FENCED,
}


class PreparedTransaction(NamedTuple):
    """A transaction whose records are all written, to be ended by whoever holds this, in any process."""

    transactional_id: str
    producer_id: int
    epoch: int
    has_records: bool


class Transaction:
    """The transactions of one writer, one after the other."""

    def __init__(self, cluster: Cluster, transactional_id: str, timeout_ms: int) -> None:
        self._cluster = cluster
        self.id = transactional_id
        self._timeout_ms = timeout_ms
        self._added: set[TopicPartition] = set()
        self.producer = NOBODY
        self.state = State.NEW

    @property
    def is_open(self) -> bool:
        return self.state in (State.OPEN, State.FAILED)

    def begin(self) -> bool:
        """Begin; True when the producer is another one than before."""
        self.check(Event.BEGIN)
        is_new = self.state is State.NEW
        if is_new:
            self.producer = self._guarded(self._new_producer)
        self._added.clear()
        self.move(Event.BEGIN)
        return is_new

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Make partitions part of the transaction, which they must be before records are sent to them."""
        new = [where for where in partitions if where not in self._added]
        if new:
            self._guarded(lambda: _add_partitions(self._cluster, self.id, self.producer, new))
            self._added.update(new)

    def prepared(self) -> PreparedTransaction:
        """Hand the open transaction over; the next one begins with a new epoch."""
        self.check(Event.HAND_OVER)
        self.move(Event.HAND_OVER)
        return PreparedTransaction(self.id, *self.producer, bool(self._added))

    def end(self, event: Event) -> None:
        """Commit or abort."""
        self.check(event)
        prepared = PreparedTransaction(self.id, *self.producer, bool(self._added))
        self._guarded(lambda: finish_transaction(self._cluster, prepared, commit=event is Event.COMMIT))
        self.move(event)

    def check(self, event: Event) -> None:
        """`ClientError` when this cannot be done now."""
        if (self.state, event) not in TRANSITIONS:
            code = FENCED if self.state is State.FENCED else "INVALID_TXN_STATE"
            raise ClientError(f"transactional id '{self.id}': {_WORDS[self.state]}", code)

    def move(self, event: Event) -> None:
        self.state = TRANSITIONS[(self.state, event)]

    def _new_producer(self) -> Producer:
        if self.producer == NOBODY:
            _require_transactions(self._cluster)
        return init_producer(self._cluster, self.id, self._timeout_ms, self.producer)

    def _guarded(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except ClientError as error:
            if error.code == FENCED:
                self.move(Event.FENCE)
            elif self.is_open:
                self.move(Event.FAIL)
            raise


def finish_transaction(cluster: Cluster, prepared: PreparedTransaction, *, commit: bool) -> None:
    """Commit or abort a transaction that was prepared here or elsewhere; ending it twice the same way is no error."""
    if not prepared.has_records:
        return
    values = {
        "transactional_id": prepared.transactional_id,
        "producer_id": prepared.producer_id,
        "producer_epoch": prepared.epoch,
        "committed": commit,
    }

    def attempt(channel: Channel) -> None:
        answer = channel.ask(ApiKey.END_TXN, values)
        _check(answer.error_code, prepared.transactional_id)

    _with_coordinator(cluster, prepared.transactional_id, attempt)


def init_producer(cluster: Cluster, transactional_id: str | None, timeout_ms: int, before: Producer) -> Producer:
    """An id for a producer; with a transactional id its own one, with a new epoch and older ones fenced off."""
    values = {
        "transactional_id": transactional_id,
        "transaction_timeout": timeout_ms,
        "producer_id": before.id,
        "producer_epoch": before.epoch,
    }

    def attempt(channel: Channel) -> Producer:
        answer = channel.ask(ApiKey.INIT_PRODUCER_ID, values)
        if answer.error_code is ErrorCode.invalid_transaction_timeout:
            raise ClientError(
                f"transaction.timeout.ms={timeout_ms} is more than the brokers allow; lower it, "
                "or raise transaction.max.timeout.ms of the brokers",
                answer.error_code.name.upper(),
            )
        _check(answer.error_code, transactional_id)
        return Producer(answer.producer_id, answer.producer_epoch)

    if transactional_id is not None:
        return _with_coordinator(cluster, transactional_id, attempt)

    def with_any() -> Producer:
        with cluster.any_channel() as channel:
            return attempt(channel)

    return cluster.retried(with_any)


def _add_partitions(cluster: Cluster, transactional_id: str, producer: Producer, new: list[TopicPartition]) -> None:
    topics: dict[str, list[int]] = defaultdict(list)
    for where in new:
        topics[where.topic].append(where.partition)
    values = {
        "v3_and_below_transactional_id": transactional_id,
        "v3_and_below_producer_id": producer.id,
        "v3_and_below_producer_epoch": producer.epoch,
        "v3_and_below_topics": [{"name": name, "partitions": indexes} for name, indexes in topics.items()],
    }

    def attempt(channel: Channel) -> None:
        answer = channel.ask(ApiKey.ADD_PARTITIONS_TO_TXN, values)
        codes = {p.partition_error_code for t in answer.results_by_topic_v3_and_below for p in t.results_by_partition}
        # One partition's error keeps the broker from trying the others.
        for code in sorted(codes, key=lambda code: code is ErrorCode.operation_not_attempted):
            _check(code, transactional_id)

    _with_coordinator(cluster, transactional_id, attempt)


def _require_transactions(cluster: Cluster) -> None:
    def attempt() -> None:
        with cluster.any_channel() as channel:
            try:
                channel.version_of(ApiKey.END_TXN)
            except VersionNotServed as error:
                raise ClientError(
                    "this cluster has no transactions yet; write without a transactional id: "
                    "each record is then written once, but not all or nothing",
                    "UNSUPPORTED_VERSION",
                ) from error

    cluster.retried(attempt)


def _with_coordinator(cluster: Cluster, transactional_id: str, attempt: Callable[[Channel], T]) -> T:
    return with_coordinator(cluster, transactional_id, TRANSACTION, attempt)


def _check(code: ErrorCode, transactional_id: str | None) -> None:
    if code is ErrorCode.none:
        return
    what = "the writer's id" if transactional_id is None else f"transactional id '{transactional_id}'"
    if code in FENCING:
        raise ClientError(f"{what}: {WHY_FENCED}", FENCED)
    error = refused(code, what)
    raise TryAgain(error) if code in _AGAIN else error
