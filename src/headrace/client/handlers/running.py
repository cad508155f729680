"""Running handlers: one consumer for each subscription and each of its delays, until told to stop.

A runner takes messages, puts them into lanes, sends what comes of them, and commits the position up to which all of a
partition has been handled. While handlers are busy it takes no more, but stays in its group. Before a partition goes to
another member, handlers that are at work on it may finish, and what they did is committed.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from uuid import uuid4

from confluent_kafka import TopicPartition

from ..asynchronous import AsyncAdmin, AsyncConsumer, AsyncProducer
from ..consumer import OnPartitions
from ..errors import ClientError, ClusterUnreachable, NotDelivered, ProducerFenced, TransactionAborted
from ..messages import Message
from .app import App, OwnTopic, Subscription
from .attempt import Attempts, HandlerFailed, is_hopeless, is_refusal
from .deduplication import Deduplication
from .lanes import Lanes, Progress, Work
from .outbox import OutgoingRecord
from .retry import delay_group, due_ms, due_seconds

log: Final = logging.getLogger("headrace.handlers")

_POLL_SECONDS: Final = 0.25
_IDLE_SECONDS: Final = 1.0
"""Between two signs of life to the group while nothing is taken."""
_COMMIT_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.01
_GRACE_SECONDS: Final = 25.0
"""How long handlers may go on once a stop or a rebalance is under way."""

_HEADERS_BYTES: Final = 64 << 10
"""Room for what a dead letter says of itself."""
_MOST_BYTES: Final = 2**31 - 1

Stopping = asyncio.Event


class Worker:
    """Runs the handlers of an application in this process."""

    def __init__(self, app: App, *, grace: float = _GRACE_SECONDS) -> None:
        self._app = app
        self._grace = grace

    async def run(self, stop: Stopping | None = None, on_ready: Callable[[], None] = lambda: None) -> None:
        """Run until the event is set, then finish what has begun. Raises what went wrong, HandlerFailed above all."""
        over = stop or asyncio.Event()
        admin = AsyncAdmin(self._app.bootstrap, settings=self._app.settings)
        needed = {name: own for one in self._app.subscriptions for name, own in one.own_topics().items()}
        topics = {topic for one in self._app.subscriptions for topic in one.topics}
        await self._look_at_topics(admin, topics - set(needed))
        await self._make_topics(admin, needed)
        async with self._app.lifespan():
            runners = [runner for one in self._app.subscriptions for runner in self._runners(one)]
            ended = asyncio.gather(*(self._run(runner, over) for runner in runners), return_exceptions=True)
            on_ready()
            failures = [found for found in await ended if isinstance(found, BaseException)]
        if failures:
            raise failures[0]

    async def _run(self, runner: "Runner", over: Stopping) -> None:
        """One that fails ends all: half of an application is worse than none."""
        try:
            await runner.run(over)
        finally:
            over.set()

    def _runners(self, subscription: Subscription) -> "list[Runner]":
        kind = ExactlyOnce if subscription.delivery == "exactly-once" else Runner
        group = subscription.group
        found = [kind(self._app, subscription, subscription.topics, group, self._grace)]
        for delay in dict.fromkeys(subscription.retry.delays):
            topics = tuple(subscription.delay_topics(delay))
            found.append(kind(self._app, subscription, topics, delay_group(group, delay), self._grace, waits=True))
        return found

    async def _look_at_topics(self, admin: AsyncAdmin, topics: set[str]) -> None:
        """UnknownTopic for one that is not there, ClusterUnreachable where no broker answers: nobody is ready then."""
        await admin.cluster_id()  # of a broker that hangs up nothing else says so
        for topic in sorted(topics):
            if not topic.startswith("^"):
                await admin.partition_numbers(topic)

    async def _make_topics(self, admin: AsyncAdmin, needed: Mapping[str, OwnTopic]) -> None:
        """Those of delays and dead letters that are not there yet, with as many partitions as what they are for."""
        if not needed:
            return
        counts = {summary.name: summary.partitions for summary in await admin.list_topics()}
        for name, own in needed.items():
            if name not in counts and own.like in counts:
                configs = {"retention.ms": str(own.keep_ms), **await _room_for_headers(admin, own.like)}
                failure = (await admin.create_topics([name], counts[own.like], configs=configs))[name]
                if failure is not None and failure.code != "TOPIC_ALREADY_EXISTS":
                    raise ClientError(f"the topic '{name}' cannot be made: {failure.message}", failure.code)


async def _room_for_headers(admin: AsyncAdmin, topic: str) -> dict[str, str]:
    """Settings with which another topic takes a copy of every message of this one, with headers of ours."""
    try:
        most = (await admin.topic_settings(topic)).get("max.message.bytes")
    except ClientError as error:
        log.info("the settings of '%s' cannot be read: %s", topic, error)
        return {}
    return {"max.message.bytes": str(min(int(most) + _HEADERS_BYTES, _MOST_BYTES))} if most else {}


class Runner:
    """Messages of some topics, at least once, or at most once."""

    def __init__(
        self,
        app: App,
        subscription: Subscription,
        topics: Sequence[str],
        group: str,
        grace: float,
        *,
        waits: bool = False,
    ) -> None:
        self._app = app
        self._subscription = subscription
        self._topics = topics
        self._group = group
        self._grace = grace
        self._waits = waits
        """Whether these are delay topics, whose messages are handled when they are due."""
        self._at_most_once = subscription.delivery == "at-most-once"
        self._attempts = Attempts(subscription, is_ending=lambda: self._lanes.is_ending)
        window_ms = None if waits else subscription.deduplicate_ms
        self._deduplication = (
            None if window_ms is None else Deduplication(group, window_ms, app.bootstrap, app.settings)
        )
        self._lanes = Lanes(subscription.concurrency, self._handle)
        self._progress: dict[tuple[str, int], Progress] = {}
        self._pending = 0
        """Messages that have been taken, and not yet handled."""
        self._instead: set[asyncio.Task[None]] = set()
        """Dead letters, and news of errors, on their way in the place of what brokers refused."""
        self._room = asyncio.Event()
        self._failure: BaseException | None = None
        self._over = asyncio.Event()
        self._committed_at = 0.0

    @property
    def _is_ending(self) -> bool:
        return self._over.is_set() or self._failure is not None

    async def run(self, over: Stopping) -> None:
        """Handle messages until the event is set, or a handler fails for good."""
        self._over = over
        self._loop = asyncio.get_running_loop()
        self._producer = self._new_producer()
        self._consumer = self._new_consumer()
        lanes = asyncio.create_task(self._lanes.run())
        lanes.add_done_callback(self._lanes_ended)
        try:
            await self._consumer.start()
            await self._take()
            await self._drain()
        finally:
            for task in (lanes, *self._instead):
                task.cancel()
            await asyncio.gather(lanes, *self._instead, return_exceptions=True)
            await self._consumer.close()
            await self._close_producer(self._producer)
        if self._failure is not None:
            raise self._failure

    def _lanes_ended(self, lanes: "asyncio.Task[None]") -> None:
        """Where nobody handles messages any more none is to be taken."""
        if not lanes.cancelled() and (error := lanes.exception()) is not None:
            reason = f"the handlers of group '{self._group}' have ended: {error!r}"
            self._failure = self._failure or ClientError(reason, "HANDLER_FAILED")
            self._pending = 0
            self._room.set()

    async def _close_producer(self, producer: AsyncProducer, grace: float | None = None) -> None:
        """What was not acknowledged has not been committed."""
        try:
            await producer.close(self._grace if grace is None else grace)
        except ClientError as error:
            log.warning("when closing a producer: %s", error)

    def _new_producer(self) -> AsyncProducer:
        prompt = {"linger.ms": 0} if self._subscription.answers else {}
        return AsyncProducer(self._app.bootstrap, settings={**prompt, **(self._app.settings or {})})

    def _new_consumer(self) -> AsyncConsumer[Any]:
        on_revoked: OnPartitions = self._revoked
        return AsyncConsumer(
            self._topics,
            group=self._group,
            value=self._subscription.format,
            bootstrap=self._app.bootstrap,
            settings=self._app.settings,
            start=self._subscription.start,
            commits=False,
            on_assigned=self._assigned,
            on_revoked=on_revoked,
        )

    # Taking messages

    async def _take(self) -> None:
        most = min(self._subscription.pending, 1000)
        while not self._is_ending:
            batch = await self._consumer.receive_many(most, _POLL_SECONDS)
            if batch and self._at_most_once and not await self._committed_before(batch):
                await self._rewind(batch)  # where the group changes without taking their partitions
                continue
            works = self._works(batch)
            await self._judge([work.message for work in works])
            if self._waits:
                await self._put_when_due(works)
            else:
                self._put(works)
            await self._commit_sometimes()
            await self._wait_for_room()

    async def _rewind(self, batch: Sequence[Message[Any]]) -> None:
        while not self._is_ending:
            try:
                await self._consumer.run(self._consumer.blocking.rewind, batch)
                return
            except ClusterUnreachable as error:
                log.warning("%s and what follows wait: %s", batch[0], error)

    async def _judge(self, messages: Sequence[Message[Any]]) -> None:
        """Find out which messages are duplicates, in their order."""
        if self._deduplication is not None:
            await self._deduplication.judge(messages)

    async def _handled(self, message: Message[Any]) -> Sequence[OutgoingRecord]:
        """What is to be sent before a message counts as handled."""
        if self._deduplication is not None and self._deduplication.is_duplicate(message):
            return ()
        return await self._attempts.handle(message)

    def _works(self, batch: Sequence[Message[Any]]) -> list[Work]:
        """These messages, each with the progress its partition has now. One that comes back has another, as has
        one that begins again."""
        works = []
        for message in batch:
            partition = (message.topic, message.partition)
            progress = self._progress.get(partition)
            if progress is None:
                continue
            if not progress.follows(message.offset):
                progress.is_over = True
                progress = self._progress[partition] = Progress()
                progress.follows(message.offset)
            works.append(Work(message, progress))
        return works

    def _put(self, works: Sequence[Work]) -> None:
        for work in works:
            if not work.progress.is_over:
                work.progress.begin(work.message.offset)
                self._pending += 1
                self._lanes.put(work)

    async def _put_when_due(self, works: Sequence[Work]) -> None:
        for work in _by_due(works):
            while (left := due_seconds(work.message)) > 0 and not self._is_ending:
                await self._stay(min(left, _IDLE_SECONDS), self._over)
                await self._commit_sometimes()
            if self._is_ending:
                return
            self._put([work])
            await self._wait_for_room()

    async def _wait_for_room(self) -> None:
        while self._pending >= self._subscription.pending and not self._is_ending:
            self._room.clear()
            await self._stay(_IDLE_SECONDS, self._room)
            await self._commit_sometimes()

    async def _stay(self, seconds: float, event: asyncio.Event) -> None:
        """Wait for an event, and stay in the group."""
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            await self._consumer.run(self._consumer.blocking.idle)

    # Handling

    async def _handle(self, work: Work) -> None:
        progress = work.progress
        if self._failure is not None or ((progress.is_over or self._over.is_set()) and not self._at_most_once):
            self._pending -= 1
            return
        progress.running += 1
        try:
            await self._send(work, await self._handled(work.message))
        except asyncio.CancelledError:
            progress.running -= 1
            raise
        except Exception as error:
            self._give_up_message(work, error)

    async def _send(self, work: Work, records: Sequence[OutgoingRecord], *, instead: bool = False) -> None:
        """Send what a handler sends, or what is sent `instead`; its message counts as handled once all of it is
        acknowledged."""
        left = len(records)
        if not left:
            self._finish(work)

        def not_sent(record: OutgoingRecord, error: BaseException) -> None:
            nonlocal left
            left = -1
            if instead or not is_refusal(error, record):
                self._give_up_message(work, error)
                return
            sending = self._loop.create_task(self._send_instead(work, error))
            self._instead.add(sending)
            sending.add_done_callback(self._instead.discard)

        def acknowledged(record: OutgoingRecord, future: "asyncio.Future[Any]") -> None:
            nonlocal left
            if future.cancelled() or left < 0:
                return
            if (error := future.exception()) is not None:
                not_sent(record, error)
                return
            left -= 1
            if not left:
                self._finish(work)

        for record in records:
            try:
                sent = await self._submit(record)
            except (ClientError, TypeError, ValueError) as error:
                not_sent(record, error)
                return
            sent.add_done_callback(partial(acknowledged, record))

    async def _submit(self, record: OutgoingRecord) -> "asyncio.Future[Any]":
        topic, value, key, headers, partition, due_ms = record
        if due_ms is None:
            return await self._producer.submit(topic, value, key=key, headers=headers, partition=partition)
        due = datetime.fromtimestamp(due_ms / 1000, UTC)
        return await self._producer.submit(topic, value, key=key, headers=headers, partition=partition, deliver_at=due)

    async def _send_instead(self, work: Work, error: BaseException) -> None:
        """No further attempt helps a message whose handler sends what the brokers refuse."""
        try:
            await self._send(work, await self._attempts.refused(work.message, error), instead=True)
        except Exception as failure:
            self._give_up_message(work, failure)

    def _give_up_message(self, work: Work, error: BaseException) -> None:
        """The message is handled no more; where that must not be, neither are those behind it."""
        if self._subscription.answers and isinstance(error, NotDelivered):
            log.error("%s is not answered: %s", work.message, error)
        elif self._at_most_once and isinstance(error, HandlerFailed):
            log.error("%s is given up", work.message, exc_info=error.__cause__)
        else:
            self._fail(work, error)
            return
        self._finish(work)

    def _finish(self, work: Work) -> None:
        work.progress.running -= 1
        work.progress.finish(work.message.offset)
        self._pending -= 1
        self._room.set()

    def _fail(self, work: Work, error: BaseException) -> None:
        work.progress.running -= 1
        self._pending -= 1
        self._failure = self._failure or error
        self._room.set()

    async def _drain(self) -> None:
        """Let handlers finish that are at work; at most once, also those whose messages have been committed."""
        deadline = self._loop.time() + self._grace
        while self._loop.time() < deadline:
            if not (self._pending if self._at_most_once else any(p.running for p in self._progress.values())):
                break
            await self._stay(_LOOK_SECONDS, asyncio.Event())
        await self._commit(wait=True)

    # Offsets

    async def _commit_sometimes(self) -> None:
        now = time.monotonic()
        if now - self._committed_at > _COMMIT_SECONDS:
            self._committed_at = now
            await self._commit(wait=False)

    async def _commit(self, *, wait: bool) -> None:
        offsets = self._positions(self._progress)
        if offsets:
            await self._consumer.run(self._consumer.blocking.commit_offsets, offsets, wait=wait)

    async def _committed_before(self, batch: Sequence[Message[Any]]) -> bool:
        return await self._consumer.run(self._consumer.blocking.commit_offsets, _after(batch))

    def _positions(self, partitions: dict[tuple[str, int], Progress]) -> list[Any]:
        """What to commit that has not been."""
        if self._at_most_once:
            return []
        offsets = []
        for (topic, partition), progress in partitions.items():
            if progress.position is not None:
                offsets.append(TopicPartition(topic, partition, progress.position))
                progress.position = None
        return offsets

    # The group; both are called in the consumer's thread, while it fetches

    def _assigned(self, partitions: list[tuple[str, int]]) -> None:
        async def take() -> None:
            self._progress |= {partition: Progress() for partition in partitions}

        asyncio.run_coroutine_threadsafe(take(), self._loop).result()

    def _revoked(self, partitions: list[tuple[str, int]]) -> None:
        offsets = asyncio.run_coroutine_threadsafe(self._give_up(partitions), self._loop).result()
        if offsets:
            self._consumer.blocking.commit_offsets(offsets)

    def _forget_ids(self, partitions: list[tuple[str, int]]) -> None:
        if self._deduplication is not None:
            self._deduplication.forget(partitions)

    async def _give_up(self, partitions: list[tuple[str, int]]) -> list[Any]:
        """What to commit once handlers at work on these partitions have finished."""
        self._forget_ids(partitions)
        gone = {each: self._progress.pop(each) for each in partitions if each in self._progress}
        for progress in gone.values():
            progress.is_over = True
        deadline = self._loop.time() + self._grace
        while any(progress.running for progress in gone.values()) and self._loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)
        return self._positions(gone)


class ExactlyOnce(Runner):
    """Messages in batches, each in a transaction with what its handlers send."""

    _broken: ClientError | None = None
    """Why the transaction that is open comes to nothing."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._refused: dict[tuple[str, int, int], BaseException] = {}
        """Messages whose handlers sent what the brokers refuse: in the next transaction they go elsewhere."""

    def _new_producer(self) -> AsyncProducer:
        return AsyncProducer(
            self._app.bootstrap, transactional_id=f"{self._group}-{uuid4().hex}", settings=self._app.settings
        )

    async def _take(self) -> None:
        while not self._is_ending:
            # While a message waits others may get its partition: nothing else is to be taken with it.
            batch = await self._consumer.receive_many(1 if self._waits else None, _POLL_SECONDS)
            if self._waits:
                batch = await self._when_due(self._works(batch))
            if not batch or self._is_ending:
                continue
            try:
                await self._judge(batch)
                await self._in_transaction(batch)
            except TransactionAborted as error:
                log.warning("%s and what follows are handled again: %s", batch[0], error)
                await self._rewind(batch)
            except ProducerFenced as error:
                log.warning("a transaction took too long; %s and what follows are handled again: %s", batch[0], error)
                await self._replace_producer()
                await self._rewind(batch)

    async def _when_due(self, works: Sequence[Work]) -> Sequence[Message[Any]]:
        for work in works:
            while (left := due_seconds(work.message)) > 0 and not self._is_ending:
                await self._stay(min(left, _IDLE_SECONDS), self._over)
        return [work.message for work in works if not work.progress.is_over]

    async def _in_transaction(self, batch: Sequence[Message[Any]]) -> None:
        async with self._producer.transaction() as transaction:
            done = Progress()
            for message in batch:
                self._pending += 1
                self._lanes.put(Work(message, done))
            self._broken = None
            await self._wait_for_handlers()
            if (error := self._failure or self._broken) is not None:
                raise error
            member = await self._consumer.run(self._consumer.blocking.member)
            await transaction.send_positions(_after(batch), member)
        self._refused.clear()

    async def _wait_for_handlers(self) -> None:
        handled, over = asyncio.create_task(self._all_handled()), asyncio.create_task(self._over.wait())
        try:
            await asyncio.wait({handled, over}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({handled}, timeout=self._grace)
            if not handled.done():
                raise TransactionAborted("a handler has not returned in time")
        finally:
            handled.cancel()
            over.cancel()

    async def _all_handled(self) -> None:
        while self._pending:
            self._room.clear()
            await self._room.wait()

    async def _handle(self, work: Work) -> None:
        try:
            if self._failure is None and self._broken is None:
                await self._send_in_transaction(work.message)
        except Exception as error:
            self._failure = self._failure or error
        self._pending -= 1
        self._room.set()

    async def _send_in_transaction(self, message: Message[Any]) -> None:
        place = (message.topic, message.partition, message.offset)
        refusal = self._refused.get(place)

        def not_sent(record: OutgoingRecord, error: BaseException) -> None:
            if isinstance(error, ProducerFenced):
                self._broken = error
                return
            self._broken = self._broken or TransactionAborted(str(error), getattr(error, "code", ""))
            is_refused = is_refusal(error, record)
            if is_refused and refusal is None:
                self._refused[place] = error
            elif is_refused or is_hopeless(error):
                self._failure = self._failure or error

        def acknowledged(record: OutgoingRecord, future: "asyncio.Future[Any]") -> None:
            if not future.cancelled() and (error := future.exception()) is not None:
                not_sent(record, error)

        handled = self._handled(message) if refusal is None else self._attempts.refused(message, refusal)
        for record in await handled:
            try:
                sent = await self._submit(record)
            except (ClientError, TypeError, ValueError) as error:
                not_sent(record, error)
                return
            sent.add_done_callback(partial(acknowledged, record))

    async def _replace_producer(self) -> None:
        fenced, self._producer = self._producer, self._new_producer()
        await self._close_producer(fenced, 0.0)

    async def _give_up(self, partitions: list[tuple[str, int]]) -> list[Any]:
        """No transaction is open while the consumer fetches."""
        self._forget_ids(partitions)
        for each in partitions:
            if each in self._progress:
                self._progress.pop(each).is_over = True
        return []


def _by_due(works: Sequence[Work]) -> list[Work]:
    """The first that is due first, but those of a partition in its order, in which positions are committed."""
    dues: dict[Progress, int] = {}

    def due(work: Work) -> int:
        dues[work.progress] = found = max(due_ms(work.message), dues.get(work.progress, 0))
        return found

    return sorted(works, key=due)


def _after(batch: Sequence[Message[Any]]) -> list[Any]:
    """The positions after these messages."""
    found = {(message.topic, message.partition): message.offset + 1 for message in batch}
    return [TopicPartition(topic, partition, offset) for (topic, partition), offset in found.items()]
