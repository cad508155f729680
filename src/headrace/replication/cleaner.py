"""Compacts the logs that ask for it, one after another, off the loop.

One log's fault stays its own: a log that is damaged is left alone until it has changed, and the others are cleaned.
"""

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

import structlog

from headrace.net.clock import Clock
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.storage import compaction
from headrace.storage.disk import Disk, StorageError
from headrace.storage.log import Log
from headrace.storage.scan import CorruptBatch
from headrace.storage.settings import NEVER

from .partition import Partition
from .replica_manager import ReplicaManager

T = TypeVar("T")
RunAside = Callable[[Callable[[], T]], Awaitable[T]]
"""Runs a function on a worker thread."""

log = structlog.get_logger(__name__)


class _Fault(NamedTuple):
    """Why a log could not be cleaned, and its segments then; None where it is tried again in any case."""

    reason: str
    segments: tuple[int, ...] | None


def _dedupe_bytes() -> int:
    return compaction.DEDUPE_BYTES


class Cleaner:
    """Compacts the logs that are dirty enough, one after the other."""

    def __init__(
        self,
        replicas: ReplicaManager,
        disk: Disk,
        clock: Clock,
        run_aside: "RunAside[compaction.Rewritten]",
        dedupe_bytes: Callable[[], int] = _dedupe_bytes,
    ) -> None:
        self._replicas = replicas
        self._disk = disk
        self._clock = clock
        self._run_aside = run_aside
        self._dedupe_bytes: Final = dedupe_bytes
        self._faults: dict[str, _Fault] = {}

    @property
    def uncleanable(self) -> dict[str, str]:
        """The logs that could not be cleaned when they were looked at last, and why."""
        return {name: fault.reason for name, fault in self._faults.items()}

    async def clean(self) -> None:
        """Look at every log once; one that cannot be cleaned is logged and does not keep the others from it."""
        partitions = [held for held in self._replicas.hosted() if held.log.settings.compacts]
        names = {partition.log.name for partition in partitions}
        self._faults = {name: fault for name, fault in self._faults.items() if name in names}
        for partition in partitions:
            if self._is_set_aside(partition.log):
                continue
            try:
                await self._clean(partition)
            except (CorruptBatch, CodedError, StorageError) as error:
                self._note(partition.log, error, _segments(partition.log) if _is_damage(error) else None)
            else:
                self._faults.pop(partition.log.name, None)

    def _is_set_aside(self, held: Log) -> bool:
        """Whether a log was found damaged, and is as it was then."""
        fault = self._faults.get(held.name)
        return fault is not None and fault.segments == _segments(held)

    def _note(self, held: Log, error: Exception, segments: tuple[int, ...] | None) -> None:
        known = self._faults.get(held.name)
        self._faults[held.name] = _Fault(str(error), segments)
        if known is None or known.reason != str(error):
            log.error("log cannot be compacted", log=held.name, reason=str(error))

    async def _clean(self, partition: Partition) -> None:
        settings = partition.log.settings
        if settings.max_compaction_lag_ms != NEVER:
            partition.log.end_segment_older_than(self._clock.now_ms() - settings.max_compaction_lag_ms)
        plan = compaction.plan(
            self._disk,
            partition.log,
            now_ms=self._clock.now_ms(),
            last_stable_offset=partition.last_stable_offset,
        )
        if plan is None:
            return
        most_keys = max(self._dedupe_bytes() // compaction.BYTES_PER_KEY, 1)
        rewritten = await self._run_aside(lambda: compaction.rewrite(plan, most_keys))
        if partition.log.offline is None:
            compaction.swap(rewritten, partition.log)
        else:
            compaction.discard(rewritten)


def _is_damage(error: Exception) -> bool:
    """Whether a log has to change before trying again makes sense."""
    return isinstance(error, CorruptBatch) or (
        isinstance(error, CodedError) and error.code is ErrorCode.corrupt_message
    )


def _segments(held: Log) -> tuple[int, ...]:
    """What tells whether anything has changed that a cleaning reads."""
    segments = held.inactive_segments()
    return len(segments), segments[0].base_offset if segments else -1, sum(segment.size for segment in segments)
