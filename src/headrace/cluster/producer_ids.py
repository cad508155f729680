"""Producer ids for idempotent producers: none is used twice.

They are taken from the store in blocks: a broker that stops loses the rest of its block, and no number comes twice. A
store that was set back has forgotten blocks that were taken: then many are left out.
"""

import asyncio
from random import Random
from typing import Final

from .identity import CLUSTER_ID, check_cluster
from .store import ANY_VERSION, Check, Conflict, Create, MetadataStore, Operation, Put

KEY: Final = "/producer_ids/next"
BLOCK: Final = 1000
SKIPPED: Final = 1 << 36
"""More than were ever taken since any backup: a store that was set back leaves out some multiple of it."""
MULTIPLES: Final = 1 << 20


class ProducerIds:
    """Hands out producer ids."""

    def __init__(self, store: MetadataStore, cluster_id: str | None = None) -> None:
        """Where a cluster is named no number is taken from a store that has lost it, and would begin with 0 again."""
        self._store = store
        self._cluster_id = cluster_id
        self._lock = asyncio.Lock()
        self._next = 0
        self._end = 0

    async def next(self) -> int:
        async with self._lock:
            while self._next == self._end:
                await self._take_block()
            self._next += 1
            return self._next - 1

    async def skip(self, rng: Random) -> None:
        """Leave out all that may have been handed out since the store's state was current.

        How many is drawn: the same state may come back more than once, and what was taken after it each time.
        """
        async with self._lock:
            self._next = self._end = 0
            while self._next == self._end:
                await self._take_block(skipped(rng))

    async def _take_block(self, skipped: int = 0) -> None:
        stored = await self._store.get(KEY)
        first = skipped if stored is None else int(stored.value) + skipped
        value = str(first + BLOCK).encode()
        guard = [] if self._cluster_id is None else [await self._guard(self._cluster_id)]
        taken = Create(KEY, value) if stored is None else Put(KEY, value, stored.version)
        try:
            await self._store.commit([*guard, taken])
        except Conflict:
            return
        self._next, self._end = first, first + BLOCK

    async def _guard(self, cluster_id: str) -> Operation:
        await check_cluster(self._store, cluster_id)
        return Check(CLUSTER_ID, ANY_VERSION)


def skipped(rng: Random) -> int:
    """How many numbers to leave out, so that none comes twice after the store was set back."""
    return SKIPPED * rng.randint(1, MULTIPLES)
