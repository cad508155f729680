"""What is done to all logs of a broker from time to time: syncs, retention, checkpoints, files to delete."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import structlog

from headrace.config import BrokerConfig
from headrace.net.clock import Clock
from headrace.protocol.errors import CodedError
from headrace.protocol.topic_partition import TopicPartition
from headrace.storage.disk import StorageError
from headrace.storage.flusher import Flusher
from headrace.storage.log_starts import LogStartWriter
from headrace.storage.manager import LogManager
from headrace.storage.sync import SyncTicket

from .opening import RunInBackground
from .partition import Partition

_SYNCED_AT_ONCE: Final = 64
"""Logs whose syncs are begun together; what is written to them meanwhile waits for the next time."""

logger = structlog.get_logger(__name__)


class LogMaintenance:
    """The chores over the logs of the partitions that `hosted` names. Each pauses often, for those who are served."""

    def __init__(
        self,
        hosted: Callable[[], Iterable[Partition]],
        *,
        config: BrokerConfig,
        clock: Clock,
        retention_clock: Clock,
        logs: LogManager,
        flusher: Flusher,
        run_in_background: RunInBackground | None,
    ) -> None:
        self._hosted = hosted
        self._config = config
        self._clock = clock
        self._retention_clock = retention_clock
        self._logs = logs
        self._flusher = flusher
        self._run_in_background = run_in_background
        """None where logs are synced only as their settings say."""
        self._log_starts = LogStartWriter(logs, flusher)

    async def flush_due(self) -> None:
        """Sync the logs whose time has come, by `flush.ms` or because a segment ended.

        When too many files are open, all that was written is synced, so that they can be closed.
        """
        self._log_starts.retry()
        now = self._clock.now_ms()
        files = self._logs.files
        files.trim()

        def look_after(partition: Partition) -> None:
            if partition.log.flush_due(now) or (files.is_short and partition.log.is_dirty):
                partition.flush()

        await self.for_each("flush", look_after)

    async def retain(self) -> None:
        """Apply retention, and finish deletions."""
        expired_by = self._retention_clock.now_ms()
        await self.for_each("retention", lambda held: held.log.retain(expired_by, held.high_watermark))
        now = self._clock.now_ms()
        if self._logs.must_store_starts(now):
            await self._store_log_starts()
        self._logs.delete_files(now)

    async def _store_log_starts(self) -> None:
        write = self._logs.prepare_log_starts()
        try:
            await self.off_loop(write.run)
        except StorageError as error:
            if not error.is_full:
                raise
        else:
            self._logs.finish(write)

    def bound_producers(self) -> None:
        """Keep the memory that producers take within `headrace.max.producer.ids`."""
        most = int(self._config["headrace.max.producer.ids"])
        forgotten = self._logs.bound_producers(most)
        if forgotten:
            logger.warning(
                "forgot idempotent producers", count=forgotten, setting="headrace.max.producer.ids", most=most
            )

    async def for_each(self, chore: str, act: Callable[[Partition], object]) -> None:
        """Do something with all partitions, with a breath for others every millisecond. One may be deleted before its
        turn comes; one that fails does not keep the others from it."""
        began = self._clock.now_ms()
        for partition in list(self._hosted()):
            try:
                act(partition)
            except Exception as error:
                is_foreseen = isinstance(error, CodedError | StorageError)
                name = partition.log.name
                logger.error("chore failed", chore=chore, log=name, reason=str(error), exc_info=not is_foreseen)
            if (now := self._clock.now_ms()) != began:
                await asyncio.sleep(0)
                began = now

    async def checkpoint(self) -> None:
        """Sync what was written, in the background, and write down how far each log is synced, committed and deleted.

        So a start after a crash has only what was written since to read and check.
        """
        await self._sync_in_background()
        await self.for_each("checkpoint", lambda held: held.log.save())
        write = self._logs.prepare_checkpoint(self.high_watermarks())
        await self.off_loop(write.run)
        self._logs.finish(write)

    async def off_loop(self, work: Callable[[], None]) -> None:
        """Return when the worker has done it, or raise what it raised."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def finished(error: BaseException | None) -> None:
            if not done.done():
                done.set_result(None) if error is None else done.set_exception(error)

        self._flusher.run(work, finished)
        await done

    async def _sync_in_background(self) -> None:
        """Sync the logs that nobody waits for: those of durable topics are synced with each request."""
        run = self._run_in_background
        if run is None:
            return
        written: list[Partition] = []

        def collect(held: Partition) -> None:
            if held.log.is_dirty and not held.is_durable:
                written.append(held)

        await self.for_each("sync", collect)
        for start in range(0, len(written), _SYNCED_AT_ONCE):
            part = written[start : start + _SYNCED_AT_ONCE]
            await _run_tickets(run, [(held, ticket) for held in part if (ticket := held.log.begin_sync()) is not None])

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """Of all partitions, by topic and index."""
        return {TopicPartition(held.topic, held.index): held.high_watermark for held in self._hosted()}


async def _run_tickets(run: RunInBackground, tickets: Sequence[tuple[Partition, SyncTicket]]) -> None:
    if not tickets:
        return
    failures = await run(lambda: [_failure(ticket) for _, ticket in tickets])
    for (partition, ticket), failure in zip(tickets, failures, strict=True):
        partition.log.finish_sync(ticket, failure)
        partition.synced()


def _failure(ticket: SyncTicket) -> Exception | None:
    """What a sync fails with: one log's failure does not keep the others from being synced."""
    try:
        ticket.run()
    except Exception as error:
        return error
    return None
