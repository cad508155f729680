"""The store as the controller writes to it: every commit also checks that it is still the controller.

Commits that are asked for at the same time go to the store together, as one: a broker's failure changes thousands of
topics. Where one of them conflicts, each is tried alone, so that none fails for another's sake.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from .commits import CommitTooLarge
from .store import Check, Conflict, Entries, MetadataStore, Operation, StoreError, Uncertain, Versioned

MOST_OPERATIONS: Final = 200
MOST_BYTES: Final = 512 * 1024
"""Of one commit: ZooKeeper takes 1 MB."""
MOST_UNDER_WAY: Final = 8


class Deposed(StoreError):
    """Another broker is the controller now: nothing that this one decides counts any more."""

    def __init__(self) -> None:
        super().__init__("this broker is no longer the controller")


Waiting = tuple[Sequence[Operation], "asyncio.Future[None]"]
Group = list[Waiting]


class FencedStore:
    """A store whose every commit fails with `Deposed` once the controller's epoch has another version."""

    def __init__(self, store: MetadataStore, epoch_key: str, epoch_version: int) -> None:
        self._store = store
        self._guard = Check(epoch_key, epoch_version)
        self._waiting: Group = []
        self._slots = asyncio.Semaphore(MOST_UNDER_WAY)
        self._tasks: set[asyncio.Task[None]] = set()
        self.ended = asyncio.Event()
        """Set when this controller is fenced, or what is in the store is no longer known."""
        self._is_closed = False

    async def get(self, key: str) -> Versioned | None:
        return await self._store.get(key)

    async def list(self, prefix: str) -> Entries:
        return await self._store.list(prefix)

    async def close(self) -> None:
        """Ends the commits that are under way; the store itself stays open.

        Who waits for one is told that it is uncertain: it may have been sent.
        """
        self._is_closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        waiting, self._waiting = self._waiting, []
        _settle(waiting, Deposed())

    async def commit(self, operations: Sequence[Operation]) -> None:
        if self._is_closed:
            raise Deposed
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((operations, done))
        if len(self._waiting) == 1:
            task = asyncio.get_running_loop().create_task(self._commit_waiting())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await done

    async def _commit_waiting(self) -> None:
        """Everything that was asked for until there is room for another commit."""
        await self._slots.acquire()
        try:
            waiting, self._waiting = self._waiting, []
            try:
                for group in _groups(waiting):
                    await self._commit_group(group)
            finally:
                _settle(waiting, Deposed())
        finally:
            self._slots.release()

    def _guarded(self, operations: Iterable[Operation]) -> Sequence[Operation]:
        """What the store does only as long as this is the controller."""
        return [self._guard, *operations]

    async def _commit_group(self, group: Group) -> None:
        try:
            await self._store.commit(self._guarded(one for operations, _ in group for one in operations))
        except Conflict as conflict:
            if conflict.key != self._guard.key and len(group) > 1:
                for one in group:
                    await self._commit_group([one])
                return
            if conflict.key == self._guard.key:
                self.ended.set()
                _settle(group, Deposed())
            else:
                _settle(group, conflict)
        except CommitTooLarge as error:
            _settle(group, error)
        except Exception as error:
            self.ended.set()
            _settle(group, error)
        except asyncio.CancelledError:
            _settle(group, Uncertain("the controller was fenced during a commit: it may have happened or not"))
            raise
        else:
            _settle(group, None)


def _settle(group: Group, error: Exception | None) -> None:
    for _, done in group:
        if not done.done():
            done.set_result(None) if error is None else done.set_exception(error)


def _groups(waiting: list[Waiting]) -> list[Group]:
    """Commits put together, each group small enough for the store."""
    groups: list[Group] = []
    operations = size = MOST_BYTES
    for one in waiting:
        own_size = sum(len(getattr(operation, "value", b"")) + 200 for operation in one[0])
        if operations + len(one[0]) > MOST_OPERATIONS or size + own_size > MOST_BYTES:
            groups.append([])
            operations = size = 0
        groups[-1].append(one)
        operations += len(one[0])
        size += own_size
    return groups
