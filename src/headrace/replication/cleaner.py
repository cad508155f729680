"""Compacts the logs that ask for it, one after another, off the loop."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from headrace.net.clock import Clock
from headrace.protocol.errors import CodedError
from headrace.storage import compaction
from headrace.storage.disk import Disk, StorageError

from .partition import Partition
from .replica_manager import ReplicaManager

T = TypeVar("T")
RunAside = Callable[[Callable[[], T]], Awaitable[T]]
"""Runs a function on a worker thread."""

log = structlog.get_logger(__name__)


class Cleaner:
    """Cleans what is dirty enough."""

    def __init__(
        self, replicas: ReplicaManager, disk: Disk, clock: Clock, run_aside: "RunAside[compaction.Rewritten]"
    ) -> None:
        self._replicas = replicas
        self._disk = disk
        self._clock = clock
        self._run_aside = run_aside

    async def clean(self) -> None:
        """Look at every log once; one that cannot be cleaned is logged and does not keep the others from it."""
        for partition in [held for held in self._replicas.hosted() if held.log.settings.compacts]:
            try:
                await self._clean(partition)
            except (StorageError, CodedError) as error:
                log.error("a log could not be compacted", log=partition.log.name, reason=str(error))

    async def _clean(self, partition: Partition) -> None:
        plan = compaction.plan(
            self._disk,
            partition.log,
            now_ms=self._clock.now_ms(),
            last_stable_offset=partition.last_stable_offset,
        )
        if plan is None:
            return
        rewritten = await self._run_aside(lambda: compaction.rewrite(plan))
        if partition.log.offline is None:
            compaction.swap(rewritten, partition.log)
