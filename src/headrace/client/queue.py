"""Queues: share groups, in which each message goes to one member, whichever is free, and is acknowledged by itself."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, overload

from confluent_kafka import AcknowledgeType, IllegalStateException, KafkaException, ShareConsumer

from .admin import answers
from .consumer import Start, named_topics
from .errors import ClientError, from_kafka, translated
from .forking import LeftBehind, stays_with_parent
from .formats import Format, format_of
from .leased import LeasedConsumer, LockLost
from .messages import Message
from .producer import OF_PRODUCERS, Settings, library_settings, log
from .waiting import LibraryErrors, Waiter

V = TypeVar("V")
T = TypeVar("T")

LONGEST_DELAY_SECONDS: Final = 86_400.0
"""After which a message that is released is delivered again."""
_POLL_SECONDS: Final = 0.25
_COMMIT_SECONDS: Final = 0.5
_CLOSE_SECONDS: Final = 10.0
_GROUP_SECONDS: Final = 30.0
_MAY_NOT: Final = frozenset({"GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"})
_OF_GROUPS: Final = frozenset({"group.protocol", "group.instance.id", "session.timeout.ms", "heartbeat.interval.ms"})
"""Settings of members of other groups, which librdkafka refuses here."""


class Queue(Generic[V]):
    """One worker at a queue: a member of a share group.

    with Queue("jobs", group="workers", value=Job) as queue:
        for message in queue:
            work(message.value)

    A message is acknowledged when the next one is asked for; where the block is left with an error, it is released, and
    goes to another worker. `release` and `reject` say so of a message in hand. Any number of workers, more than there
    are partitions, take messages of a group; one that does not acknowledge in time
    (`group.share.record.lock.duration.ms`, 30 s) loses its message to another.

    `prefetch` is about how many messages wait at this worker while it has one in hand: their time runs, too. With
    `renew_for` that time is renewed in the background, for so many seconds from when they came, so that work may take
    minutes; a worker that dies loses its messages to others all the same within the lock's time. `start` is where a new
    group begins: it becomes a setting of the group. A queue belongs to one thread.
    """

    @overload
    def __init__(
        self: "Queue[bytes]",
        topics: str | Iterable[str],
        *,
        group: str,
        bootstrap: str | None = None,
        prefetch: int = 10,
        renew_for: float = 0.0,
        start: Start = "earliest",
        settings: Settings | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        topics: str | Iterable[str],
        *,
        group: str,
        value: type[V] | Format[V],
        bootstrap: str | None = None,
        prefetch: int = 10,
        renew_for: float = 0.0,
        start: Start = "earliest",
        settings: Settings | None = None,
    ) -> None: ...

    def __init__(
        self,
        topics: str | Iterable[str],
        *,
        group: str,
        value: Any = bytes,
        bootstrap: str | None = None,
        prefetch: int = 10,
        renew_for: float = 0.0,
        start: Start = "earliest",
        settings: Settings | None = None,
    ) -> None:
        names = named_topics(topics)
        if prefetch < 1 or not renew_for >= 0:
            raise ClientError("prefetch is at least 1, renew_for at least 0 seconds", "_INVALID_ARG")
        self._format: Format[V] = format_of(value)
        self._errors = LibraryErrors()
        self._waiting: deque[Message[V]] = deque()
        self._in_hand: Message[V] | None = None
        self._is_told = True
        """Whether the brokers know of every acknowledgement."""
        self._told_at = time.monotonic()
        self._is_closed = False
        shared = library_settings(bootstrap, settings, self._errors, OF_PRODUCERS)
        _begin_at(shared, group, start, self._errors)
        own = {name: value for name, value in shared.items() if name not in _OF_GROUPS}
        if renew_for > 0:
            self._consumer: Any = LeasedConsumer(own, group, names, most=prefetch, renew_for=renew_for)
        else:
            self._consumer = _library_consumer(own, group, names, prefetch)
        stays_with_parent(self)

    def leave_to_parent(self, stub: LeftBehind) -> None:
        """Refuse to work, in a child process."""
        self._parents, self._consumer = self._consumer, stub

    def receive(self, timeout: float | None = None) -> Message[V] | None:
        """The next message, after acknowledging the one before; None if none comes in time."""
        self.fill(timeout)
        return self.give()

    def __iter__(self) -> Iterator[Message[V]]:
        """Messages, for ever."""
        while not self._is_closed:
            message = self.receive()
            if message is not None:
                yield message

    def accept(self) -> None:
        """The message in hand has been handled. Asking for the next one says the same."""
        self._acknowledge(AcknowledgeType.ACCEPT)

    def release(self, delay: float | None = None) -> None:
        """The message in hand may go to any worker again, which counts as one more delivery: after `delay` seconds, up
        to a day, for which the queue needs `renew_for`; else after the backoff of the group, if it has one."""
        if delay is None:
            self._acknowledge(AcknowledgeType.RELEASE)
            return
        if not isinstance(self._consumer, LeasedConsumer):
            raise ClientError("a delay needs a queue with renew_for: librdkafka has none", "_INVALID_ARG")
        if not 0 <= delay <= LONGEST_DELAY_SECONDS:
            raise ClientError(f"a delay is 0 to {LONGEST_DELAY_SECONDS:.0f} seconds, not {delay}", "_INVALID_ARG")
        self._acknowledge(AcknowledgeType.RELEASE, delay)

    def reject(self) -> None:
        """The message in hand is not to be delivered again: nobody can handle it."""
        self._acknowledge(AcknowledgeType.REJECT)

    # Receiving in two steps, for those who drive a queue from another thread: whoever gives up waiting for the first
    # has been given nothing.

    def fill(self, timeout: float | None) -> None:
        """Acknowledge what is in hand, and fetch, if nothing that was fetched waits."""
        if self._is_closed:
            raise ClientError("this queue has been closed", "_STATE")
        self.accept()
        deadline = None if timeout is None else time.monotonic() + timeout
        self._tell()
        while not self._has_waiting() and not self._is_closed:
            left = _POLL_SECONDS if deadline is None else min(_POLL_SECONDS, max(0.0, deadline - time.monotonic()))
            with translated():
                for record in self._consumer.poll(left):
                    self._take(record)
            self._is_told = True
            if self._errors.refusal is not None:
                raise self._errors.refusal
            if deadline is not None and time.monotonic() >= deadline:
                return

    def _has_waiting(self) -> bool:
        """Whether a message waits. Those whose time is over are done with."""
        while self._waiting and self._waiting[0].is_expired():
            self._in_hand = self._waiting.popleft()
            log.info("%s has expired", self._in_hand)
            self.accept()
        return bool(self._waiting)

    def give(self) -> Message[V] | None:
        """The next of those fetched, which is then in hand."""
        self._in_hand = self._waiting.popleft() if self._waiting else None
        return self._in_hand

    def _take(self, record: Any) -> None:
        error = record.error()
        if error is None:
            self._waiting.append(Message(record, self._format))
        elif error.fatal() or not error.retriable():
            raise from_kafka(error, record.topic())

    def _acknowledge(self, how: Any, *delay: float) -> None:
        message, self._in_hand = self._in_hand, None
        if message is None:
            return
        self._is_told = False
        try:
            self._consumer.acknowledge(message.record, how, *delay)
        except (IllegalStateException, KafkaException, LockLost) as error:
            log.warning("%s is not this worker's any more: %s", message, error)

    def _tell(self) -> None:
        """Have the brokers know now and then, where the next request for messages is far away."""
        if self._waiting and not self._is_told and time.monotonic() - self._told_at > _COMMIT_SECONDS:
            self._told_at = time.monotonic()
            self._is_told = True
            with translated():
                self._consumer.commit_async()

    def close(self, *, counts: bool = False) -> None:
        """Leave the group. The message in hand `counts` as handled, or is released, as those are that wait."""
        if self._is_closed:
            return
        self._is_closed = True
        self._acknowledge(AcknowledgeType.ACCEPT if counts else AcknowledgeType.RELEASE)
        while self.give() is not None:
            self.release()
        try:
            with translated():
                self._consumer.commit_sync(_CLOSE_SECONDS)
        finally:
            self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: object, _traceback: TracebackType | None) -> None:
        try:
            self.close(counts=kind is None)
        except ClientError as error:
            if kind is None:
                raise
            log.error("the queue could not tell what was handled: %s", error)


class AsyncQueue(Generic[V]):
    """As `Queue`, on asyncio: `async with`, `async for`. All of it runs in a thread of its own."""

    @overload
    def __init__(
        self: "AsyncQueue[bytes]",
        topics: str | Iterable[str],
        *,
        group: str,
        bootstrap: str | None = None,
        prefetch: int = 10,
        renew_for: float = 0.0,
        start: Start = "earliest",
        settings: Settings | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        topics: str | Iterable[str],
        *,
        group: str,
        value: type[V] | Format[V],
        bootstrap: str | None = None,
        prefetch: int = 10,
        renew_for: float = 0.0,
        start: Start = "earliest",
        settings: Settings | None = None,
    ) -> None: ...

    def __init__(self, topics: str | Iterable[str], *, group: str, value: Any = bytes, **options: Any) -> None:
        self._thread = ThreadPoolExecutor(1, "headrace-queue")
        self._make: Callable[[], Queue[V]] = lambda: Queue(topics, group=group, value=value, **options)
        self._queue: Queue[V] | None = None

    async def receive(self, timeout: float | None = None) -> Message[V] | None:
        """The next message, after acknowledging the one before; None if none comes in time."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            left = _POLL_SECONDS if deadline is None else min(_POLL_SECONDS, max(0.0, deadline - loop.time()))
            await self._run(lambda: self._blocking.fill(left))  # noqa: B023 - it runs now
            message = self._blocking.give()
            if message is not None or (deadline is not None and loop.time() >= deadline):
                return message

    async def __aiter__(self) -> AsyncIterator[Message[V]]:
        while True:
            message = await self.receive()
            if message is not None:
                yield message

    async def accept(self) -> None:
        """As of `Queue`."""
        await self._run(self._blocking.accept)

    async def release(self, delay: float | None = None) -> None:
        """As of `Queue`."""
        await self._run(lambda: self._blocking.release(delay))

    async def reject(self) -> None:
        """As of `Queue`."""
        await self._run(self._blocking.reject)

    async def __aenter__(self) -> Self:
        self._queue = await self._run(self._make)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _error: object, _traceback: TracebackType | None
    ) -> None:
        try:
            await asyncio.shield(self._run(lambda: self._blocking.close(counts=kind is None)))
        except ClientError as error:
            if kind is None:
                raise
            log.error("the queue could not tell what was handled: %s", error)
        finally:
            self._thread.shutdown(wait=False)

    @property
    def _blocking(self) -> Queue[V]:
        if self._queue is None:
            raise RuntimeError("a queue is used in an `async with` block")
        return self._queue

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _library_consumer(settings: dict[str, Any], group: str, topics: list[str], most: int) -> Any:
    with translated():
        consumer = ShareConsumer(
            {
                **settings,
                "group.id": group,
                "share.acknowledgement.mode": "explicit",
                "max.poll.records": most,
            }
        )
        consumer.set_acknowledgement_commit_callback(_told)
        consumer.subscribe(topics)
    return consumer


def _begin_at(settings: dict[str, Any], group: str, start: Start, errors: LibraryErrors) -> None:
    """Have a share group begin there: at the end of its topics by default, where a queue would miss what waits."""
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entry = ConfigEntry("share.auto.offset.reset", start, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    bootstrap = str(settings["bootstrap.servers"])
    try:
        with translated():
            client = AdminClient(settings)
            waiter = Waiter(
                lambda: answers(bootstrap), limit=_GROUP_SECONDS, errors=errors, serve=lambda: client.poll(0)
            )
            for future in client.incremental_alter_configs([resource]).values():
                waiter.result(future, f"the settings of group '{group}'")
    except ClientError as error:
        if error.code not in _MAY_NOT:
            raise
        log.info("group '%s' begins where its own settings say, which this user may not change: %s", group, error)


def _told(offsets: Any, error: KafkaException | None) -> None:
    if error is not None:
        places = ", ".join(f"{each.topic}-{each.partition}" for each in offsets)
        log.warning("acknowledgements were refused in %s: their messages go to others: %s", places, error)
