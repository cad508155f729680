"""The producer, the consumer and the administration for programs on asyncio.

Messages are sent from the event loop; a thread takes in what the brokers say, and tells the loop of many at once. A
consumer has a thread of its own, in which all of it runs.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Generic, ParamSpec, Self, TypeVar, overload

from .admin import Admin, Properties, TopicDescription, TopicSummary
from .consumer import Consumer, OnPartitions, Start
from .delays.lanes import Delay
from .errors import ClientError, NotDelivered, ProducerFenced
from .formats import Format
from .messages import Headers, Message
from .producer import Delivered, Key, Producer, Settings, Transaction, log

V = TypeVar("V")
P = ParamSpec("P")
T = TypeVar("T")

_POLL_SECONDS: Final = 0.1
_FULL_SECONDS: Final = 0.005


class AsyncProducer:
    """As `Producer`, on asyncio.

    async with AsyncProducer("127.0.0.1:9092") as producer:
        await producer.send("orders", {"id": 1})             # queued
        where = await producer.deliver("orders", {"id": 2})  # acknowledged
    """

    def __init__(
        self,
        bootstrap: str | None = None,
        *,
        value: type[Any] | Format[Any] | None = None,
        transactional_id: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._producer = Producer(bootstrap, value=value, transactional_id=transactional_id, settings=settings)
        self._loop = asyncio.get_running_loop()
        self._told: deque[tuple[asyncio.Future[Delivered] | None, NotDelivered | None, Delivered | None]] = deque()
        self._failures: list[NotDelivered] = []
        self._is_scheduled = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="headrace-producer", daemon=True)
        self._thread.start()

    async def send(
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
        """As of `Producer`."""
        options: dict[str, Any] = {
            "key": key,
            "headers": headers,
            "partition": partition,
            "timestamp_ms": timestamp_ms,
        }
        if deliver_after is not None or deliver_at is not None:
            await asyncio.to_thread(self._producer.prepare_delays, topic)
            options |= {"deliver_after": deliver_after, "deliver_at": deliver_at}
        await self._queue(None, topic, value, options)

    async def deliver(
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
        """As of `Producer`."""
        options: dict[str, Any] = {
            "key": key,
            "headers": headers,
            "partition": partition,
            "timestamp_ms": timestamp_ms,
        }
        options |= {"deliver_after": deliver_after, "deliver_at": deliver_at}
        return await (await self.submit(topic, value, **options))

    async def submit(self, topic: str, value: Any = None, **options: Any) -> asyncio.Future[Delivered]:
        """As `send`, with what `deliver` would return, in future."""
        if options.get("deliver_after") is not None or options.get("deliver_at") is not None:
            await asyncio.to_thread(self._producer.prepare_delays, topic)
        outcome: asyncio.Future[Delivered] = self._loop.create_future()
        await self._queue(outcome, topic, value, options)
        return outcome

    async def _queue(
        self, outcome: "asyncio.Future[Delivered] | None", topic: str, value: Any, options: dict[str, Any]
    ) -> None:
        def told(failure: NotDelivered | None, where: Delivered | None) -> None:
            self._told.append((outcome, failure, where))
            if not self._is_scheduled:
                self._is_scheduled = True
                self._loop.call_soon_threadsafe(self._tell)

        while not self._producer.send_with(told, topic, value, wait=False, **options):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(_FULL_SECONDS)

    def _tell(self) -> None:
        self._is_scheduled = False
        while self._told:
            outcome, failure, where = self._told.popleft()
            if outcome is None:
                if failure is not None:
                    self._failures.append(failure)
            elif not outcome.done():
                if where is not None:
                    outcome.set_result(where)
                elif failure is not None:
                    outcome.set_exception(failure)

    def _poll(self) -> None:
        while not self._closing.is_set():
            try:
                self._producer.poll(_POLL_SECONDS)
            except ClientError as error:  # what it is about fails, too, or is told by who sends next
                log.warning("the producer is done for: %s", error)
                self._closing.wait(_POLL_SECONDS)
            except Exception:
                log.exception("a function among the producer's settings failed")

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every message is acknowledged; `NotDelivered` if one that was sent was not."""
        await asyncio.to_thread(self._producer.flush, timeout)
        self._tell()
        failures, self._failures = self._failures, []
        if failures:
            raise NotDelivered(failures[0].message, failures[0].code, len(failures))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["AsyncTransaction"]:
        """As of `Producer`."""
        transaction = await asyncio.to_thread(self._producer.begin)
        try:
            yield AsyncTransaction(transaction)
        except ProducerFenced:
            self._failures.clear()
            raise
        except BaseException:
            await asyncio.shield(asyncio.to_thread(transaction.abort))
            self._failures.clear()
            raise
        await asyncio.shield(asyncio.to_thread(transaction.commit))

    async def close(self, timeout: float | None = None) -> None:
        """`flush`; what is not acknowledged within the timeout is given up."""
        try:
            await asyncio.to_thread(self._producer.close, timeout)
            await self.flush(0)
        finally:
            self._closing.set()
            await asyncio.to_thread(self._thread.join)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _error: object, _traceback: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except ClientError as error:
            if kind is None:
                raise
            log.error("messages were not delivered: %s", error)


class AsyncTransaction:
    """A transaction that has begun."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def send_offsets(self, consumer: "AsyncConsumer[Any]") -> None:
        """As of `Transaction`."""
        await consumer.run(self._transaction.send_offsets, consumer.blocking)

    async def send_positions(self, offsets: list[Any], member: object) -> None:
        """As of `Transaction`."""
        await asyncio.to_thread(self._transaction.send_positions, offsets, member)


class AsyncConsumer(Generic[V]):
    """As `Consumer`, on asyncio: `async with`, `async for`. `on_assigned` and `on_revoked` run in its thread."""

    @overload
    def __init__(
        self: "AsyncConsumer[bytes]",
        topics: str | Iterable[str],
        *,
        group: str | None,
        bootstrap: str | None = None,
        start: Start = "earliest",
        commits: bool = True,
        settings: Settings | None = None,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        topics: str | Iterable[str],
        *,
        group: str | None,
        value: type[V] | Format[V],
        bootstrap: str | None = None,
        start: Start = "earliest",
        commits: bool = True,
        settings: Settings | None = None,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
    ) -> None: ...

    def __init__(self, topics: str | Iterable[str], *, group: str | None, value: Any = bytes, **options: Any) -> None:
        self._thread = ThreadPoolExecutor(1, "headrace-consumer")
        self._make: Callable[[], Consumer[V]] = lambda: Consumer(topics, group=group, value=value, **options)
        self._consumer: Consumer[V] | None = None

    @property
    def blocking(self) -> Consumer[V]:
        """The consumer, to be used by `run` alone."""
        if self._consumer is None:
            raise RuntimeError("a consumer is used in an `async with` block, or after `await consumer.start()`")
        return self._consumer

    async def run(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """What a function returns that runs in the thread of this consumer."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: work(*args, **kwargs))

    async def start(self) -> None:
        """Join the group."""
        self._consumer = await self.run(self._make)

    async def receive(self, timeout: float | None = None) -> Message[V] | None:
        """The next message; None if none comes in time. Those received before count as handled."""
        found = await self.receive_many(1, timeout)
        return found[0] if found else None

    async def receive_many(self, most: int | None = None, timeout: float | None = None) -> Sequence[Message[V]]:
        """Up to so many messages, or as many as take about a second to handle; none if none comes in time. Those
        received before count as handled."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            left = _POLL_SECONDS if deadline is None else min(_POLL_SECONDS, max(0.0, deadline - loop.time()))
            await self.run(self.blocking.fill, most, left)
            found = self.blocking.give(most)
            if found or (deadline is not None and loop.time() >= deadline):
                return found

    async def __aiter__(self) -> AsyncIterator[Message[V]]:
        while True:
            await self.run(self.blocking.fill, None, _POLL_SECONDS)
            for message in self.blocking.each():
                yield message

    async def commit(self) -> None:
        """Commit what was handled, the message in hand too, and wait until that is done."""
        await self.run(self.blocking.commit)

    async def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on from an offset of a partition that this consumer has."""
        await self.run(self.blocking.seek, topic, partition, offset)

    async def seek_to_start(self) -> None:
        """Read all partitions that this consumer has again from their first message."""
        await self.run(self.blocking.seek_to_start)

    async def seek_to_end(self) -> None:
        """Go on with what comes from now on."""
        await self.run(self.blocking.seek_to_end)

    async def seek_to_time(self, when: datetime) -> None:
        """Go on from the first message at or after a time; from the end where there is none."""
        await self.run(self.blocking.seek_to_time, when)

    async def assignment(self) -> list[tuple[str, int]]:
        """The partitions that this consumer has, once it has any."""
        return await self.run(self.blocking.assignment)

    async def pause(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Fetch no more of these partitions, or of all, until `resume`; membership of the group goes on."""
        await self.run(self.blocking.pause, partitions)

    async def resume(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Fetch again."""
        await self.run(self.blocking.resume, partitions)

    async def close(self, *, counts: bool = False) -> None:
        """As of `Consumer`."""
        if self._consumer is not None:
            await asyncio.shield(self.run(self._consumer.close, counts=counts))
        self._thread.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _error: object, _traceback: TracebackType | None
    ) -> None:
        try:
            await self.close(counts=kind is None)
        except ClientError as error:
            if kind is None:
                raise
            log.error("the consumer could not commit: %s", error)


class AsyncAdmin:
    """As `Admin`, on asyncio."""

    def __init__(
        self,
        bootstrap: str | None = None,
        properties: Properties | None = None,
        timeout: float = 30.0,
        *,
        settings: Settings | None = None,
    ) -> None:
        self._make: Callable[[], Admin] = lambda: Admin(bootstrap, properties, timeout, settings=settings)
        self._made: Admin | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """As of `Admin`: there is nothing to be ended."""

    async def _call(self, method: Callable[..., T], *args: Any) -> T:
        def work() -> T:
            if self._made is None:
                self._made = self._make()
            return method(self._made, *args)

        return await asyncio.to_thread(work)

    async def list_topics(self) -> list[TopicSummary]:
        """As of `Admin`."""
        return await self._call(Admin.list_topics)

    async def cluster_id(self) -> str:
        """As of `Admin`."""
        return await self._call(Admin.cluster_id)

    async def create_topics(
        self,
        names: Iterable[str],
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Properties | None = None,
    ) -> dict[str, ClientError | None]:
        """As of `Admin`."""
        return await self._call(Admin.create_topics, names, partitions, replication_factor, configs)

    async def delete_topics(self, names: Iterable[str]) -> dict[str, ClientError | None]:
        """As of `Admin`."""
        return await self._call(Admin.delete_topics, names)

    async def create_partitions(self, topic: str, total: int) -> None:
        """As of `Admin`."""
        await self._call(Admin.create_partitions, topic, total)

    async def alter_configs(self, topic: str, set_: Properties, delete: Iterable[str] = ()) -> None:
        """As of `Admin`."""
        await self._call(Admin.alter_configs, topic, set_, delete)

    async def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        """As of `Admin`."""
        return await self._call(Admin.delete_records, topic, before)

    async def partition_numbers(self, topic: str) -> list[int]:
        """As of `Admin`."""
        return await self._call(Admin.partition_numbers, topic)

    async def topic_settings(self, topic: str) -> dict[str, str | None]:
        """As of `Admin`."""
        return await self._call(Admin.topic_settings, topic)

    async def describe_topic(self, topic: str) -> TopicDescription:
        """As of `Admin`."""
        return await self._call(Admin.describe_topic, topic)
