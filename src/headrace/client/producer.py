"""Sending messages, with threads or without."""

import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaException
from confluent_kafka import Producer as LibraryProducer

from headrace.net.address import parse_bootstrap

from .delays.lanes import Delay, due_time, lane_for, lanes_topic, with_delay
from .errors import ClientError, NotDelivered, ProducerFenced, TransactionAborted, from_kafka, translated
from .forking import LeftBehind, stays_with_parent
from .formats import Format, Plain, format_of
from .messages import Headers, header_pairs
from .properties import Located, checked_name, for_librdkafka
from .tracing import is_traced, with_context
from .waiting import LibraryErrors, in_background
from .writer import MAX_RECORD_BYTES

if TYPE_CHECKING:
    from .consumer import Consumer

T = TypeVar("T")
Settings = Mapping[str, object]
"""Settings of clients by the names that librdkafka or Java's client has; functions are its callbacks."""
Key = str | bytes | None
log: Final = logging.getLogger("headrace.client")
"""Ours, and librdkafka's."""

OF_CONSUMERS: Final = re.compile(
    r"group\.|session\.timeout|heartbeat\.|max\.poll\.|fetch\.|auto\.(commit|offset)|isolation\.|partition\.assignment"
    r"|queued\.|check\.crcs|coordinator\.query|max\.partition\.fetch|enable\.(auto|partition\.eof)"
)
OF_PRODUCERS: Final = re.compile(
    r"acks|batch\.|compression\.|delivery\.|enable\.(idempotence|gapless)|linger\.|message\.(timeout|send)|partitioner"
    r"|queue\.buffering|queuing\.|request\.|retries|sticky\.|transaction"
)
_VARIES: Final = re.compile(r"\[[^\]]*#\w+-\d+\] |\(after \d+ms[^)]*\)")
"""Which client a line is of, and how long something took."""
_REPEAT_SECONDS: Final = 60.0
_MOST_LINES: Final = 1000
_RECONNECT_MS: Final = 1000
"""As Java's clients have it: after librdkafka's ten seconds a broker that is back would long have been of use."""
_DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
_SLICE_SECONDS: Final = 0.1
_POLL_EVERY: Final = 256
_TRANSACTION_SECONDS: Final = 60.0
_TRY_SECONDS: Final = 5.0
_FIRST_PAUSE_SECONDS: Final = 0.02
_LONGEST_PAUSE_SECONDS: Final = 1.0
"""Between two tries of a call, from the first on twice as long each time."""
_LATE_SECONDS: Final = 10.0
"""How much later than it was told a call may return."""
_HANGS: Final = "the transaction hangs: the brokers end it when its time is over, and this producer does no more"
_FENCED: Final = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "_FATAL"})
"""A transactional producer has hardly another reason to be finished for good (_FATAL), nor another cure."""


class Delivered(NamedTuple):
    """Where a message is."""

    topic: str
    partition: int
    offset: int


OnDelivery = Callable[[NotDelivered | None, Delivered | None], None]
"""Is told of one message: the reason that it did not arrive, or where it is."""


class OncePerMinute(logging.Filter):
    """Leaves out lines that were there within the last minute, of whichever client: librdkafka tells of a broker that
    does not answer at each attempt, many times a second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._shown: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        line, now = _VARIES.sub("", record.getMessage()), self._clock()
        if now - self._shown.get(line, -_REPEAT_SECONDS) < _REPEAT_SECONDS:
            return False
        if len(self._shown) >= _MOST_LINES:
            self._shown.clear()
        self._shown[line] = now
        return True


log.addFilter(OncePerMinute())


def library_settings(
    bootstrap: str | None, settings: Settings | None, errors: LibraryErrors, others: re.Pattern[str]
) -> dict[str, Any]:
    """Settings that every client of a program starts from; a name that no client has is refused.

    Clients of one program may share settings: those of `others`, other kinds of client, are left out.
    """
    given = {name: value for name, value in (settings or {}).items() if not others.match(name)}
    located = {
        checked_name(name, "settings"): Located(_text(value), f"setting {name}")
        for name, value in given.items()
        if not callable(value)
    }
    found: dict[str, Any] = {
        "client.id": "headrace",
        "log_level": 4,
        "logger": log,
        "error_cb": errors,
        **({} if "reconnect.backoff.ms" in located else {"reconnect.backoff.max.ms": _RECONNECT_MS}),
        **for_librdkafka(located),
        **{name: value for name, value in given.items() if callable(value)},
    }
    named = located["bootstrap.servers"].value if "bootstrap.servers" in located else None
    where = bootstrap or named or os.environ.get("HEADRACE_BOOTSTRAP") or _DEFAULT_BOOTSTRAP
    try:
        found["bootstrap.servers"] = ",".join(str(address) for address in parse_bootstrap(where))
    except ValueError as error:
        raise ClientError(f"the brokers' addresses: {error}", "INVALID_CONFIG") from error
    return found


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class Producer:
    """Sends messages: idempotent, acknowledged by all in-sync replicas, compressed with lz4 unless `settings` differ.

    with Producer("127.0.0.1:9092") as producer:
        producer.send("orders", {"id": 1}, key="alice")      # queued; sent in batches
        where = producer.deliver("orders", {"id": 2})        # returns once it is acknowledged

    Values are bytes, text, or what becomes JSON; `value` gives another format for all of them, `None` marks a key as
    deleted. Leaving the block, and `flush`, wait until everything is acknowledged and raise `NotDelivered` for what is
    not. Any number of threads may use one producer.
    """

    def __init__(
        self,
        bootstrap: str | None = None,
        *,
        value: type[Any] | Format[Any] | None = None,
        transactional_id: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._encode = (Plain() if value is None else format_of(value)).encode
        self._errors = LibraryErrors()
        self._failures: list[NotDelivered] = []
        self._is_traced = is_traced()
        self._sent = 0
        self._has_initialized = False
        self._is_stuck = False
        """Whether a call of the transactional API has not returned: every further one is refused until it does."""
        defaults: dict[str, Any] = {
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": "lz4",
            "linger.ms": 5,
            "partitioner": "murmur2_random",
            "message.max.bytes": MAX_RECORD_BYTES,
        }
        if transactional_id is not None:
            defaults["transactional.id"] = transactional_id
            # A transaction that is open while librdkafka bootstraps anew never gets its offsets, nor an end.
            defaults["metadata.recovery.strategy"] = "none"
        self.is_transactional = transactional_id is not None
        self._lanes: dict[str, str] = {}
        """Where messages of topics wait, of those that are known to have such a place."""
        with translated():
            self._settings = library_settings(bootstrap, settings, self._errors, OF_CONSUMERS)
            self._producer = LibraryProducer({**defaults, **self._settings})
        milliseconds = self._settings.get("transaction.timeout.ms", _TRANSACTION_SECONDS * 1000)
        self._transaction_seconds = float(milliseconds) / 1000
        self._began_at = 0.0
        # Looked up once: with them, each message would cost a tenth more.
        self._produce = self._producer.produce
        stays_with_parent(self)
        self._told = self._note

    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Key = None,
        headers: Headers | None = None,
        partition: int = -1,
        timestamp_ms: int = 0,
        deliver_after: Delay | None = None,
        deliver_at: datetime | None = None,
    ) -> None:
        """Queue a message; waits only while the queue is full. What becomes of it is told by `flush`.

        With `deliver_after` (seconds, or a timedelta) or `deliver_at` it waits in the cluster until then.
        """
        data = None if value is None else self._encode(value, topic)
        pairs = header_pairs(headers) if headers or self._is_traced else None
        if self._is_traced:
            pairs = with_context(pairs or [])
        if deliver_after is not None or deliver_at is not None:
            topic, partition, pairs = self._later(topic, partition, pairs or [], deliver_after, deliver_at)
        try:
            self._produce(topic, data, key, partition, self._told, None, timestamp_ms, pairs)
        except (BufferError, KafkaException):
            while not self._queued(topic, data, key, partition, self._told, timestamp_ms, pairs):
                self.poll(_SLICE_SECONDS)
        self._sent += 1
        if not self._sent % _POLL_EVERY:
            self.poll(0)

    def deliver(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Key = None,
        headers: Headers | None = None,
        partition: int = -1,
        timestamp_ms: int = 0,
        deliver_after: Delay | None = None,
        deliver_at: datetime | None = None,
    ) -> Delivered:
        """Send a message and return where it is, once the brokers have acknowledged it; else `NotDelivered`. One that
        is to be delivered later is where it waits."""
        outcome: list[NotDelivered | Delivered | None] = []
        self.send_with(
            lambda failure, where: outcome.append(failure or where),
            topic,
            value,
            key=key,
            headers=headers,
            partition=partition,
            timestamp_ms=timestamp_ms,
            deliver_after=deliver_after,
            deliver_at=deliver_at,
        )
        while not outcome:
            self._serve(lambda: self._producer.flush(_SLICE_SECONDS))
            self._raise_refusal()
        found = outcome[0]
        if isinstance(found, Delivered):
            return found
        raise found or NotDelivered("the message was not sent", "_FAIL")

    def send_with(
        self,
        on_delivery: OnDelivery,
        topic: str,
        value: Any = None,
        *,
        key: Key = None,
        headers: Headers | None = None,
        partition: int = -1,
        timestamp_ms: int = 0,
        deliver_after: Delay | None = None,
        deliver_at: datetime | None = None,
        wait: bool = True,
    ) -> bool:
        """Queue a message and be told what becomes of it, by whichever thread polls. Without `wait` it is not queued,
        and False returned, while the queue is full."""
        data = None if value is None else self._encode(value, topic)
        pairs = header_pairs(headers)
        if self._is_traced:
            pairs = with_context(pairs)
        if deliver_after is not None or deliver_at is not None:
            topic, partition, pairs = self._later(topic, partition, pairs, deliver_after, deliver_at)

        def told(error: Any, record: Any) -> None:
            if error is None:
                on_delivery(None, Delivered(record.topic(), record.partition(), record.offset()))
            else:
                on_delivery(_failure(error, topic), None)

        while not self._queued(topic, data, key, partition, told, timestamp_ms, pairs):
            if not wait:
                return False
            self.poll(_SLICE_SECONDS)
        return True

    def append_time(self, topic: str, *, partition: int, key: Key, headers: Headers, timeout: float) -> int | None:
        """The time at which a broker appends a record without a value, in ms since 1970, where the topic stamps that;
        None if it says nothing in time."""
        told: list[int | None] = []

        def stamped(error: Any, record: Any) -> None:
            kind, time_ms = (0, 0) if error is not None else record.timestamp()
            told.append(time_ms if kind == TIMESTAMP_LOG_APPEND_TIME else None)

        deadline = time.monotonic() + timeout
        if self._queued(topic, None, key, partition, stamped, 0, header_pairs(headers)):
            while not told and time.monotonic() < deadline:
                self.poll(_SLICE_SECONDS)
        return told[0] if told else None

    def prepare_delays(self, topic: str) -> str:
        """See that messages of a topic have where to wait, and return that: asks the brokers the first time."""
        name = self._lanes.get(topic)
        if name is None:
            from .delays.topics import admin_like, make_lanes

            name = lanes_topic(topic)
            own = {key: value for key, value in self._settings.items() if not OF_PRODUCERS.match(key)}
            make_lanes(admin_like(own), topic, name)
            self._lanes[topic] = name
        return name

    def _later(
        self,
        topic: str,
        partition: int,
        headers: list[tuple[str, bytes | None]],
        deliver_after: Delay | None,
        deliver_at: datetime | None,
    ) -> tuple[str, int, list[tuple[str, bytes | None]]]:
        """Where a message goes that is delivered later, and its headers; to its topic if that is now."""
        now_ms = time.time_ns() // 1_000_000
        due_ms = due_time(deliver_after, deliver_at, now_ms)
        if due_ms is None or due_ms <= now_ms:
            return topic, partition, headers
        return self.prepare_delays(topic), lane_for(due_ms - now_ms), with_delay(headers, due_ms, partition)

    def poll(self, timeout: float = 0) -> None:
        """Take in what the brokers have said, waiting so long for the first of it; ProducerFenced if that is said."""
        self._serve(lambda: self._producer.poll(timeout))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every message is acknowledged; `NotDelivered` if one since the last flush was not."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while left := self._serve(lambda: int(self._producer.flush(_SLICE_SECONDS))):
            self._raise_refusal()
            if deadline is not None and time.monotonic() >= deadline:
                raise NotDelivered(f"{left} messages have no answer after {timeout:g} s", "_TIMED_OUT", left)
        failures, self._failures = self._failures, []
        if failures:
            first = failures[0]
            more = f" ({len(failures)} messages)" if len(failures) > 1 else ""
            raise NotDelivered(f"{first.message}{more}", first.code, len(failures))

    @contextmanager
    def transaction(self) -> Iterator["Transaction"]:
        """Everything that is sent in the block is seen by readers of committed messages, or nothing of it.

        An error in the block aborts it. `TransactionAborted`: it took no effect, and may be tried again;
        `ProducerFenced`: another producer with this transactional id has begun.
        """
        transaction = self.begin()
        try:
            yield transaction
        except ProducerFenced:
            raise
        except BaseException:
            transaction.abort()
            raise
        transaction.commit()

    def begin(self) -> "Transaction":
        """Begin a transaction, to be committed or aborted; `transaction()` sees to that itself."""
        if not self.is_transactional:
            raise ClientError("transactions need a producer with a transactional_id", "_NOT_CONFIGURED")
        if not self._has_initialized:
            self._retried(lambda: self._returning(self._producer.init_transactions, _TRANSACTION_SECONDS))
            self._has_initialized = True
        self._retried(self._producer.begin_transaction)
        self._began_at = time.monotonic()
        return Transaction(self)

    def close(self, timeout: float | None = None) -> None:
        """`flush`; what is not acknowledged within the timeout is given up."""
        try:
            self.flush(timeout)
        except NotDelivered:
            self._producer.purge(in_queue=True, in_flight=True, blocking=False)
            self.poll(0)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: object, _traceback: TracebackType | None) -> None:
        try:
            self.close()
        except ClientError as error:
            if kind is None:
                raise
            log.error("messages were not delivered: %s", error)

    def __len__(self) -> int:
        """How many messages and reports wait."""
        return len(self._producer)

    def _queued(
        self, topic: str, data: bytes | None, key: Key, partition: int, told: Any, timestamp_ms: int, pairs: Any
    ) -> bool:
        try:
            self._produce(topic, data, key, partition, told, None, timestamp_ms, pairs)
        except BufferError:
            return False
        except KafkaException as exception:
            error = exception.args[0]
            if self.is_transactional and str(error.name()) in _FENCED:
                raise _transaction_error(error) from exception
            if self.is_transactional and error.name() == "_STATE":
                raise ClientError(
                    "a producer with a transactional_id sends within a transaction", "_STATE"
                ) from exception
            raise _failure(error, topic) from exception
        return True

    def _serve(self, call: Callable[[], T]) -> T:
        """A call of librdkafka's in which it tells of what has happened: with an error, if that is for good."""
        try:
            return call()
        except KafkaException as exception:
            raise _transaction_error(exception.args[0]) from exception

    def leave_to_parent(self, stub: LeftBehind) -> None:
        """Refuse to work, in a child process."""
        self._parents, self._producer = self._producer, stub
        self._produce = lambda *_: stub.produce

    def _note(self, error: Any, record: Any) -> None:
        if error is not None:
            self._failures.append(_failure(error, record.topic()))

    def _raise_refusal(self) -> None:
        if self._errors.refusal is not None:
            raise self._errors.refusal

    def _retried(self, call: Callable[[], object], deadline: float = math.inf) -> None:
        """A call of the transactional API, again while that helps. librdkafka may wait for a coordinator it lost long
        after the brokers ended the transaction: a deadline is for that."""
        pause = _FIRST_PAUSE_SECONDS
        while True:
            if self._is_stuck:
                raise ProducerFenced(_HANGS, "_STATE")
            try:
                call()
                return
            except KafkaException as exception:
                self._raise_refusal()
                error = exception.args[0]
                if not error.retriable():
                    raise _transaction_error(error) from exception
                if time.monotonic() > deadline:
                    raise ProducerFenced(
                        f"the transaction hangs, and so would others: {error.str()}", str(error.name())
                    ) from exception
                time.sleep(pause)  # while brokers are away some calls return at once
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _returning(self, call: Callable[[float], object], seconds: float) -> None:
        """A call of the transactional API that takes a time to wait. librdkafka does not return from some of them when
        a coordinator goes away meanwhile: such a one is left to itself, in its thread, and its producer is finished.
        """
        future = in_background(lambda: call(seconds))
        try:
            future.result(seconds + _LATE_SECONDS)
        except TimeoutError:
            self._is_stuck = True
            raise ProducerFenced(_HANGS, "_STATE") from None

    def _commit(self) -> None:
        self._retried(lambda: self._returning(self._producer.commit_transaction, _TRANSACTION_SECONDS))
        self._failures.clear()

    def _abort(self) -> None:
        self._retried(lambda: self._returning(self._producer.abort_transaction, _TRANSACTION_SECONDS))
        self._failures.clear()

    def _send_offsets(self, offsets: list[Any], member: object) -> None:
        """No longer than the brokers keep the transaction open."""
        seconds = min(self._transaction_seconds, _TRANSACTION_SECONDS)
        self._retried(
            lambda: self._returning(
                partial(self._producer.send_offsets_to_transaction, offsets, member), min(seconds, _TRY_SECONDS)
            ),
            min(time.monotonic(), self._began_at + self._transaction_seconds - seconds) + seconds,
        )


class Transaction:
    """A transaction that has begun."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def send_offsets(self, consumer: "Consumer[Any]") -> None:
        """Have what the consumer has handled, the message in hand too, count as read when the transaction commits."""
        offsets = consumer.handled()
        if offsets:
            self.send_positions(offsets, consumer.member())

    def send_positions(self, offsets: list[Any], member: object) -> None:
        """`send_offsets` for offsets (`confluent_kafka.TopicPartition`) of a member of a group."""
        self._producer._send_offsets(offsets, member)

    def commit(self) -> None:
        """Commit, or abort and raise `TransactionAborted` where that is not possible."""
        try:
            self._producer._commit()
        except TransactionAborted:
            self._producer._abort()
            raise

    def abort(self) -> None:
        """Undo what was sent; errors are logged, as what led here matters more."""
        try:
            self._producer._abort()
        except ClientError as error:
            log.warning("a transaction was not aborted, which the brokers will do when it times out: %s", error)


def _failure(error: Any, topic: str) -> NotDelivered:
    told = from_kafka(error, topic)
    return NotDelivered(f"a message to '{topic}' was not delivered: {told.message}", told.code)


def _transaction_error(error: Any) -> ClientError:
    name = str(error.name())
    if name in _FENCED:
        return ProducerFenced("another producer has taken over this transactional id", name)
    if error.txn_requires_abort():
        return TransactionAborted(f"the transaction was aborted: {error.str()}", name)
    return from_kafka(error)
