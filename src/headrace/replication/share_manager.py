"""The share-partitions of the partitions that this broker leads, each loaded when a member of its group first comes."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final
from uuid import UUID

from headrace.net.clock import Clock
from headrace.net.tasks import Tasks
from headrace.protocol.errors import CodedError, ErrorCode

from .partition import Partition
from .replica_fetch_state import Key
from .share_choice import drop_past
from .share_leader import ShareCounts, ShareGroupSettings, ShareLeader, Waits
from .share_letters import DeadLetterStore
from .share_state import SharePartition, ShareStateStore

IDLE_SECONDS: Final = 60.0
"""After which a share-partition that nobody has asked for is forgotten, and read again when somebody does."""


class ShareManager:
    """Finds share-partitions, and gives them up with the leadership. Implements `Leadership`."""

    def __init__(
        self,
        *,
        store: ShareStateStore,
        settings: Callable[[str], ShareGroupSettings],
        clock: Clock,
        letters: DeadLetterStore,
    ) -> None:
        self.settings = settings
        """Those of a group."""
        self.counts = ShareCounts()
        self._store = store
        self._letters = letters
        self._free_at: dict[tuple[str, Key], dict[int, float]] = {}
        """Of share-partitions: which keys have to wait until when."""
        self._waits: dict[tuple[str, Key], Waits] = {}
        """Of share-partitions that are forgotten, while some of their records are not to be delivered yet."""
        self._clock = clock
        self._tasks = Tasks()
        self._leaders: dict[Key, dict[str, ShareLeader]] = {}
        self._is_closed = False

    def __iter__(self) -> Iterator[ShareLeader]:
        for groups in self._leaders.values():
            yield from groups.values()

    @property
    def locks(self) -> int:
        """How many records are acquired now."""
        return sum(leader.window.locks for leader in self if leader.window is not None)

    @property
    def letters_due(self) -> int:
        """How many records wait for their dead letters."""
        return sum(leader.letters_due for leader in self)

    def leader(self, group_id: str, partition: Partition) -> ShareLeader:
        """The partition as a group reads it; `CodedError` where this broker does not lead it. It may still load."""
        partition.check_leads()
        if self._is_closed:
            raise CodedError(ErrorCode.not_leader_or_follower, "the broker stops")
        groups = self._leaders.setdefault((partition.topic_id, partition.index), {})
        leader = groups.get(group_id)
        if leader is None or leader.is_over or leader.partition is not partition:
            if leader is not None:
                leader.close()
            key = SharePartition(group_id, UUID(bytes=partition.topic_id), partition.index)
            leader = groups[group_id] = ShareLeader(
                key,
                partition,
                store=self._store,
                settings=self.settings,
                clock=self._clock,
                tasks=self._tasks,
                counts=self.counts,
                letters=self._letters,
                free_at=self._free_at.setdefault((group_id, (partition.topic_id, partition.index)), {}),
                waits=self._waits.pop((group_id, (partition.topic_id, partition.index)), None),
            )
            self._tasks.spawn(leader.load())
        return leader

    def verify(self, group_id: str, keys: Iterable[Key]) -> None:
        """A member begins to read partitions: what is loaded of them may be out of date, as a group without members can
        be made to begin anew. While others go on to fetch, and nothing is written, nobody else would notice."""
        for key in keys:
            leader = self._leaders.get(key, {}).get(group_id)
            if leader is not None and leader.is_loaded:
                self._tasks.spawn(leader.verify())

    def release(self, group_id: str, member: str, key: Key) -> None:
        """A member's session has ended: what it has acquired of a partition is for others."""
        leader = self._leaders.get(key, {}).get(group_id)
        if leader is not None:
            leader.release(member)

    def leads(self, partition: Partition) -> None:
        """A leader epoch has begun: what was loaded for an earlier one is not true any more."""
        self.leads_no_more(partition)

    def leads_no_more(self, partition: Partition) -> None:
        """Whoever waits for this broker is to look for the next leader."""
        key = partition.topic_id, partition.index
        for leader in self._leaders.pop(key, {}).values():
            leader.close()
        for of in [of for of in self._waits if of[1] == key]:
            del self._waits[of]

    def drop_idle(self) -> None:
        """Forget what nobody has asked for in a while."""
        now = self._clock.monotonic()
        for key, groups in list(self._leaders.items()):
            for group_id, leader in list(groups.items()):
                if leader.is_over or now - leader.used_at > IDLE_SECONDS:
                    self.forget(group_id, [key])
            if not groups:
                self._leaders.pop(key, None)
        for of, free_at in list(self._free_at.items()):
            drop_past(free_at, now)
            if not free_at and of[0] not in self._leaders.get(of[1], {}):
                del self._free_at[of]
        for of, (_, waits) in list(self._waits.items()):
            if all(wait.until <= now for wait in waits):
                del self._waits[of]

    def forget(self, group_id: str, keys: Iterable[Key]) -> None:
        """Forget the share-partitions of a group that reads them no more, unless its members still have records."""
        for key in keys:
            groups = self._leaders.get(key, {})
            leader = groups.get(group_id)
            if leader is not None and (leader.is_over or (leader.is_loaded and leader.is_idle)):
                self._close(leader, key)
                del groups[group_id]
                if not groups:
                    del self._leaders[key]

    def read_again(self, group_id: str, keys: Iterable[Key]) -> None:
        """The first member of a group comes, who can have none of its records yet: where the group has come to may have
        been set anew since others left, also while what they left behind was still being written."""
        for key in keys:
            leader = self._leaders.get(key, {}).pop(group_id, None)
            if leader is not None:
                self._close(leader, key)

    def _close(self, leader: ShareLeader, key: Key) -> None:
        """It may be read again, and its records wait as before."""
        waits = leader.waits
        if waits is not None:
            self._waits[leader.key.group_id, key] = waits
        leader.close()

    async def close(self) -> None:
        """Give up all of them: the broker stops. Nobody is kept waiting."""
        self._is_closed = True
        for leader in list(self):
            leader.close(CodedError(ErrorCode.not_leader_or_follower))
        self._leaders.clear()
        await self._tasks.close()
