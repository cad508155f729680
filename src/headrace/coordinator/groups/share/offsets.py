"""Where share groups are in partitions: begun, told, set and deleted with the share coordinator.

What a group's records say of its state is what the share coordinator has: a partition is noted as initialized once it
is, and a topic as being deleted before its state is. Whoever takes a group over goes on from there. Of one group one
thing is done at a time.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID
from weakref import WeakValueDictionary

import structlog

from headrace.cluster.image import ClusterImage, Topic
from headrace.coordinator.groups.group import check_group_id, check_text
from headrace.coordinator.groups.shard import GroupShard
from headrace.coordinator.runtime.decision import Decision
from headrace.coordinator.runtime.runtime import Runtime
from headrace.net.pacing import gather_limited, paced
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.share_state import (
    NO_SUMMARY,
    UNINITIALIZED,
    SharePartition,
    ShareStateStore,
    ShareStateSummary,
)

from .group import SHARE, ShareGroup

log = structlog.get_logger(__name__)

JOIN_SECONDS: Final = 3.0
"""How long the first members of a group wait until there is state for what they read."""

Failure = CodedError | None
Told = dict[str, dict[int, ShareStateSummary | CodedError]]
"""Where a group is, or why that is not known, by topic and partition."""


_NOT_BEGUN: Final = CodedError(
    ErrorCode.coordinator_not_available, "not all partitions of the topic could be begun; try it again"
)


class ShareOffsets:
    """Sees to the state of the share groups that this broker coordinates."""

    def __init__(
        self,
        runtime: Runtime[GroupShard],
        store: ShareStateStore,
        image: ClusterImage,
        new_group: Callable[[str], ShareGroup],
    ) -> None:
        self._runtime = runtime
        self._store = store
        self._image = image
        self._new_group = new_group
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._initializing: dict[str, asyncio.Future[bool]] = {}

    def _lock(self, group_id: str) -> asyncio.Lock:
        lock = self._locks.get(group_id)
        if lock is None:
            lock = self._locks[group_id] = asyncio.Lock()
        return lock

    def _group(self, group_id: str) -> tuple[GroupShard, ShareGroup]:
        check_text(group_id)
        shard = self._runtime.shard(group_id)
        group = shard.group(group_id)
        if not isinstance(group, ShareGroup):
            raise SHARE.not_found(group_id, group)
        return shard, group

    def _empty_group(self, group_id: str) -> tuple[GroupShard, ShareGroup]:
        shard, group = self._group(group_id)
        group.check_delete()
        return shard, group

    def _empty_or_new_group(self, group_id: str) -> tuple[GroupShard, ShareGroup]:
        """A new one is there from its first record on."""
        check_group_id(group_id)
        shard = self._runtime.shard(group_id)
        if shard.group(group_id) is not None:
            return self._empty_group(group_id)
        return shard, self._new_group(group_id)

    async def _carry_out(self, shard: GroupShard, group: ShareGroup, decision: Decision) -> None:
        if shard.group(group.group_id) is None:
            decision.when_written(lambda: shard.put(group))
        shard.carry_out(group, decision)
        await shard.committed()

    # Initialization

    async def initialize(self, group_id: str, *, waits: bool) -> bool:
        """Have the partitions initialized that members of a group are subscribed to; whether any were, as far as is
        known after `JOIN_SECONDS`, or at once for who does not wait."""
        under_way = self._initializing.get(group_id)
        if under_way is None:
            _, group = self._group(group_id)
            if group.is_initialized:
                return False
            under_way = self._initializing[group_id] = asyncio.get_running_loop().create_future()
            self._runtime.spawn(self._initialize(group_id, under_way))
        if not waits:
            return False
        await asyncio.wait([under_way], timeout=JOIN_SECONDS)
        return under_way.done() and not under_way.cancelled() and under_way.result()

    async def _initialize(self, group_id: str, done: "asyncio.Future[bool]") -> None:
        initialized = False
        try:
            async with self._lock(group_id):
                await self._end_deletions(group_id)
                initialized = await self._begin(group_id)
        except CodedError as error:
            log.info("a share group's state is not initialized yet", group=group_id, reason=error.message)
        finally:
            del self._initializing[group_id]
            if not done.done():
                done.set_result(initialized)

    async def _begin(self, group_id: str) -> bool:
        """What is still there under an epoch that this group never had is of a former group of that id."""
        _, group = self._group(group_id)
        missing = group.uninitialized()
        failures = await self._initialize_all(missing, group.state.epoch)
        shard, group = self._group(group_id)
        begun = _complete(group, failures)
        if begun:
            await self._carry_out(shard, group, group.initialize(begun, shard.now_ms()))
        fenced = [key for key, failure in failures.items() if _is_fenced(failure)]
        if fenced:
            epochs = await gather_limited(self._store.summary, fenced)
            newest = max(summary.state_epoch for summary in epochs)
            await self._carry_out(shard, group, group.advance(newest + 1, shard.now_ms()))
        return bool(begun)

    async def _initialize_all(self, offsets: Mapping[SharePartition, int], epoch: int) -> dict[SharePartition, Failure]:
        async def one(key: SharePartition) -> Failure:
            try:
                await self._store.initialize(key, epoch, offsets[key])
            except CodedError as error:
                return error
            return None

        return dict(zip(offsets, await gather_limited(one, offsets), strict=True))

    # Deletion

    async def _delete(self, group_id: str, topics: Sequence[UUID]) -> None:
        """Delete the state of topics, which nobody relies on from the beginning on."""
        shard, group = self._group(group_id)
        await self._carry_out(shard, group, group.begin_deletion(topics, shard.now_ms()))
        await self._end_deletions(group_id)

    async def _end_deletions(self, group_id: str) -> None:
        """What a topic that is not there any more has left is forgotten with it; one that is not known may be new."""
        _, group = self._group(group_id)
        deleting = group.state.deleting
        if not deleting:
            return
        topics = [topic for topic in map(self._image.topic_by_id, deleting) if topic is not None]
        if len(topics) < len(deleting) and not self._image.is_whole:
            raise CodedError(ErrorCode.coordinator_load_in_progress)
        keys = [SharePartition(group_id, topic.id, index) for topic in topics for index in range(len(topic.partitions))]
        await gather_limited(self._store.delete, keys)
        shard, group = self._group(group_id)
        await self._carry_out(shard, group, group.end_deletion(deleting, shard.now_ms()))

    async def delete_group(self, group_id: str) -> None:
        """Delete an empty group with its state; `CodedError` otherwise."""
        async with self._lock(group_id):
            _, group = self._empty_group(group_id)
            if group.state.initialized or group.state.deleting:
                await self._delete(group_id, list(group.state.initialized))
            shard, group = self._empty_group(group_id)
            shard.remove(group)
            await shard.committed()

    async def delete(self, group_id: str, names: Iterable[str]) -> dict[str, Failure]:
        """Delete where an empty group is in topics; what became of each."""
        async with self._lock(group_id):
            self._empty_group(group_id)
            topics = {name: self._image.topic(name) async for name in paced(names)}
            known = {topic.id for topic in topics.values() if topic is not None}
            _, group = self._empty_group(group_id)
            here = group.state.initialized.keys() | group.state.deleting
            if known & here:
                await self._delete(group_id, [topic for topic in group.state.initialized if topic in known])
            return {
                name: _unknown(name) if topic is None or topic.id not in here else None
                async for name, topic in paced(topics.items())
            }

    # Operators

    async def alter(self, group_id: str, offsets: Mapping[str, Mapping[int, int]]) -> dict[str, dict[int, Failure]]:
        """Have a group that is empty, or new, begin anew at these offsets, by topic and partition; what became of
        each."""
        async with self._lock(group_id):
            _, group = self._empty_or_new_group(group_id)
            if group.state.deleting:
                await self._end_deletions(group_id)
            failures: dict[str, dict[int, Failure]] = {}
            wanted: dict[SharePartition, int] = {}
            for name, of_topic in offsets.items():
                topic = self._image.topic(name)
                failures[name] = {
                    index: _refusal(topic, name, index, of_topic[index]) async for index in paced(of_topic)
                }
                if topic is not None:
                    sound = (index for index, failure in failures[name].items() if failure is None)
                    wanted.update({SharePartition(group_id, topic.id, index): of_topic[index] for index in sound})
            if not wanted:
                return failures
            done = await self._begin_at(group_id, wanted)
            for name in offsets:
                topic = self._image.topic(name)
                for index in failures[name]:
                    if topic is not None and failures[name][index] is None:
                        failures[name][index] = done.get(SharePartition(group_id, topic.id, index))
            return failures

    async def _begin_at(self, group_id: str, wanted: Mapping[SharePartition, int]) -> dict[SharePartition, Failure]:
        """In a topic that is new to the group its other partitions begin, too, where the group's settings say."""
        summaries = await gather_limited(self._store.summary, wanted)
        shard, group = self._empty_or_new_group(group_id)
        begins = {**self._others(group, {key.topic_id for key in wanted}), **wanted}
        epoch = max(group.state.epoch, *(summary.state_epoch for summary in summaries)) + 1
        await self._carry_out(shard, group, group.advance(epoch, shard.now_ms()))
        done = await self._initialize_all(begins, epoch)
        shard, group = self._group(group_id)
        begun = _complete(group, done)
        if begun:
            await self._carry_out(shard, group, group.initialize(begun, shard.now_ms()))
        return done | {key: _NOT_BEGUN for key, failure in done.items() if failure is None and key not in begun}

    def _others(self, group: ShareGroup, topics: Iterable[UUID]) -> dict[SharePartition, int]:
        """All partitions of the topics that are new to a group."""
        found = (self._image.topic_by_id(topic_id) for topic_id in topics if topic_id not in group.state.initialized)
        return {
            SharePartition(group.group_id, topic.id, index): UNINITIALIZED
            for topic in found
            if topic is not None
            for index in range(len(topic.partitions))
        }

    async def describe(self, group_id: str, partitions: Mapping[str, Sequence[int]] | None) -> Told:
        """Where a group is in some partitions, or in all that it has state of: nowhere in those that are not there, and
        a group that is not there is nowhere, as in Kafka."""
        check_text(group_id)
        shard = self._runtime.shard(group_id)
        group = shard.group(group_id)
        initialized = group.state.initialized if isinstance(group, ShareGroup) else {}
        await shard.committed()
        if partitions is None:
            topics = [self._image.topic_by_id(topic_id) for topic_id in initialized]
            wanted = {topic.name: sorted(initialized[topic.id]) for topic in topics if topic is not None}
        else:
            wanted = {name: list(dict.fromkeys(indexes)) for name, indexes in partitions.items()}

        async def one(asked: tuple[str, int]) -> ShareStateSummary | CodedError:
            name, index = asked
            topic = self._image.topic(name)
            if topic is None or index not in initialized.get(topic.id, ()):
                return NO_SUMMARY
            try:
                return await self._store.summary(SharePartition(group_id, topic.id, index))
            except CodedError as error:
                return error

        asked = [(name, index) for name, indexes in wanted.items() for index in indexes]
        found = dict(zip(asked, await gather_limited(one, asked), strict=True))
        return {name: {index: found[name, index] for index in indexes} for name, indexes in wanted.items()}


def _complete(group: ShareGroup, done: Mapping[SharePartition, Failure]) -> set[SharePartition]:
    """The partitions that count as initialized: of a topic that is new to the group all or none, as those that are
    missing in one that it knows are taken for newer ones."""
    known = group.state.initialized
    unfinished = {key.topic_id for key, failure in done.items() if failure is not None and key.topic_id not in known}
    return {key for key, failure in done.items() if failure is None and key.topic_id not in unfinished}


def _is_fenced(failure: Failure) -> bool:
    return failure is not None and failure.code is ErrorCode.fenced_state_epoch


def _refusal(topic: Topic | None, name: str, index: int, offset: int) -> Failure:
    if topic is None or not 0 <= index < len(topic.partitions):
        return _unknown(name)
    if offset < 0:
        return CodedError(ErrorCode.invalid_request, f"{offset} is no offset of {name}-{index}")
    return None


def _unknown(name: str) -> CodedError:
    return CodedError(ErrorCode.unknown_topic_or_partition, f"There is no such partition of topic '{name}'.")
