"""Requests about committed offsets: commit them, alone or in a transaction, fetch them, delete them, let them expire.

A commit in a transaction is written at once and counts when the transaction is committed. The group's partition is part
of the transaction as any other: who begins it there is verified with the transaction coordinator; its marker, which
comes through the partition's log, decides (see `pending`).

An offset expires `offsets.retention.minutes` after its group's last member left; where the group still has members,
after the last commit for a topic that none of them reads; where it never had any, after the last commit. An empty
group goes once it has no offsets. The offsets of a deleted topic go with it. Nothing goes for which a transaction is
open that has committed an offset.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import structlog

from headrace.coordinator.groups.group import Group, check_group_id, check_text
from headrace.coordinator.groups.settings import GroupSettings
from headrace.coordinator.groups.shard import GroupShard
from headrace.coordinator.runtime.batches import Pair
from headrace.coordinator.runtime.decision import Decision
from headrace.coordinator.runtime.runtime import Runtime
from headrace.coordinator.runtime.shard import Phase, unavailable
from headrace.net.pacing import paced
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.topic_partition import TopicPartition
from headrace.replication.transactions import TransactionVerifier, Verification

from .records import (
    NONE,
    OFFSETS_TOPIC,
    Committed,
    decode_offset,
    offset_key,
    offset_prefix,
    offset_times,
    read_prefix,
    split_offset_key,
)
from .store import pairs_of

log = structlog.get_logger(__name__)

Fetched = dict[str, dict[int, Committed | None]]
"""Committed offsets by topic and partition; None where there is none."""
Codes = dict[str, dict[int, ErrorCode]]
"""Codes by topic and partition."""
UNSTABLE: Final = Committed(-1, -1, "", -1)
"""Stands for an offset that a transaction which is still open may replace."""
OFFSETS_PER_SLICE: Final = 2_000
"""How many offsets, or groups, are looked at before other requests run."""
RECORDS_PER_BATCH: Final = 1_000
_PASSED_ON: Final = frozenset({ErrorCode.invalid_producer_epoch, ErrorCode.invalid_txn_state})
"""Errors that a producer gets as they are, where its offsets cannot be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalCommit:
    """A TxnOffsetCommit: the offsets, and the producer and the member that commit them."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    adds_itself: bool
    """Whether the commit makes the group's partition part of the transaction, where it is not yet."""
    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    offsets: Mapping[str, Mapping[int, bytes]]
    """Encoded, by topic and partition."""


class OffsetCoordinator:
    """Serves the committed offsets of the groups that this broker coordinates.

    `verifier` gives the one that knows which transactions are open; None where there are none.
    """

    def __init__(
        self,
        runtime: Runtime[GroupShard],
        settings: GroupSettings,
        verifier: Callable[[], TransactionVerifier | None],
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._verifier = verifier

    # Commits

    async def commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Mapping[str, Mapping[int, bytes]],
        *,
        names_missing_groups: bool = True,
    ) -> None:
        """Keep encoded offsets by topic and partition. A group that is not there is made, for commits without members.

        Clients of v9 and later understand that a group is missing; older ones get ILLEGAL_GENERATION.
        """
        check_text(group_id)
        shard = self._runtime.shard(group_id)
        group = shard.group(group_id)
        if group is not None:
            decision = group.check_commit(member_id, instance_id, generation, shard.now_ms())
        elif generation >= 0:
            raise CodedError(ErrorCode.group_id_not_found if names_missing_groups else ErrorCode.illegal_generation)
        else:
            decision = Decision(shard.now_ms())
        decision.records += pairs_of(group_id, offsets)
        decision.when_written(lambda: shard.offsets.update(group_id, offsets))
        shard.commit(group_id, decision)
        await shard.committed()

    async def commit_in_transaction(self, commit: TransactionalCommit) -> None:
        """Keep offsets as part of a producer's transaction; `CodedError` with the producer's answer otherwise."""
        check_group_id(commit.group_id)
        verification = await self._verify(commit)
        shard = self._runtime.shard(commit.group_id)
        _check_member(shard, commit)
        try:
            pairs = pairs_of(commit.group_id, commit.offsets)
            shard.append_pending(commit.producer_id, commit.producer_epoch, pairs, verification)
        except CodedError as error:
            if error.code in _PASSED_ON:
                raise
            raise unavailable(error) from error
        await shard.committed()

    async def _verify(self, commit: TransactionalCommit) -> Verification | None:
        """What the transaction may begin with on the group's partition, once its coordinator has agreed."""
        partition = self._runtime.shard(commit.group_id).partition
        if partition.log.has_open_transaction(commit.producer_id, commit.producer_epoch):
            return None
        verifier = self._verifier()
        if verifier is None:
            raise CodedError(ErrorCode.invalid_txn_state, "transactions are not available on this broker")
        verification = partition.verifications.begin(commit.producer_id, commit.producer_epoch)
        key = TopicPartition(partition.topic, partition.index)
        answered = await verifier.verify(
            commit.transactional_id,
            commit.producer_id,
            commit.producer_epoch,
            [key],
            {partition.topic: UUID(bytes=partition.topic_id)},
            add=commit.adds_itself,
        )
        code = answered.get(key, ErrorCode.invalid_txn_state)
        if code is not ErrorCode.none:
            partition.verifications.end(commit.producer_id)
            raise CodedError(code, f"the transaction coordinator refuses {key[0]}-{key[1]}: {code.name}")
        return verification

    # Fetches

    async def fetch(
        self,
        group_id: str,
        topics: Mapping[str, Sequence[int]] | None,
        member_id: str | None = None,
        member_epoch: int = -1,
        *,
        stable_only: bool = False,
    ) -> Fetched:
        """Committed offsets, of some partitions or of all. A group that is not there has committed nothing.

        With `stable_only` those are UNSTABLE for which an open transaction has committed something.
        """
        check_text(group_id)
        shard = self._runtime.shard(group_id)
        group = shard.group(group_id)
        if group is not None:
            group.check_fetch(member_id, member_epoch)
        elif member_epoch >= 0:
            raise CodedError(ErrorCode.group_id_not_found)
        kept = shard.offsets.topics(group_id)
        names = kept if topics is None else topics
        values = {name: dict(kept.get(name, ())) for name in names}  # as of now: others commit while these are decoded
        pending = shard.pending.keys(group_id) if stable_only else []
        await shard.committed()
        fetched: Fetched = {}
        async for name, encoded in paced(values.items()):
            asked = encoded if topics is None else topics[name]
            fetched[name] = {p: decode_offset(encoded[p]) if p in encoded else None for p in asked}
        _mark_unstable(fetched, pending)
        return fetched

    # Deletion

    async def delete(self, group_id: str, partitions: Mapping[str, Sequence[int]]) -> Codes:
        """Delete offsets of topics that no member reads; the code of each partition."""
        check_text(group_id)
        shard = self._runtime.shard(group_id)
        group = shard.group(group_id)
        if group is None:
            raise CodedError(ErrorCode.group_id_not_found)
        group.check_offset_delete()
        codes: Codes = {}
        tombstones: list[Pair] = []
        subscribed_topics = group.subscribed_topics()
        for topic, indexes in partitions.items():
            subscribed = topic in subscribed_topics
            code = ErrorCode.group_subscribed_to_topic if subscribed else ErrorCode.none
            codes[topic] = dict.fromkeys(indexes, code)
            if not subscribed:
                keys = {offset_key(offset_prefix(group_id, topic), index) for index in indexes}
                tombstones += [pair for pair in shard.tombstones(group_id, topic) if pair[0] in keys]
        shard.delete_offsets(group_id, tombstones)
        await shard.committed()
        return codes

    async def forget_topic(self, topic: str) -> int:
        """Delete every offset of a topic that was deleted; returns how many there were.

        Shards that cannot write now do so once they can. Without the internal topic itself there are no groups.
        """
        if topic == OFFSETS_TOPIC:
            self._runtime.close_shards()
            return 0
        count = 0
        for shard in self._runtime.inactive():
            shard.deleted_topics.add(topic)
        for shard in self._runtime.active():
            async for group_id in paced(shard.groups_with_offsets(), OFFSETS_PER_SLICE):
                tombstones = shard.tombstones(group_id, topic) if shard.phase is Phase.ACTIVE else []
                if tombstones:
                    try:
                        _delete(shard, group_id, tombstones)
                    except CodedError as error:
                        log.warning("offsets of a deleted topic remain", topic=topic, reason=error.message)
                        return count
                    count += len(tombstones)
        return count

    # Expiry

    async def expire(self, now_ms: int) -> int:
        """Delete what has expired at a time of day; returns how many offsets and groups that were."""
        count = 0
        for shard in self._runtime.active():
            async for group_id in paced(list(_group_ids(shard)), OFFSETS_PER_SLICE):
                count += await self._expire_group(shard, group_id, now_ms)
        if count:
            log.info("offsets and groups expired", count=count)
        return count

    async def _expire_group(self, shard: GroupShard, group_id: str, now_ms: int) -> int:
        """Topic by topic: a group may have very many offsets, and other requests run meanwhile."""
        count = 0
        group = shard.group(group_id) if shard.phase is Phase.ACTIVE else None
        if group is None:
            return count
        subscribed = group.subscribed_topics()
        unread = [topic for topic in shard.offsets.topics(group_id) if topic not in subscribed]
        try:
            async for topic in paced(unread, OFFSETS_PER_SLICE):
                group = shard.group(group_id) if shard.phase is Phase.ACTIVE else None
                if group is None:
                    return count
                tombstones = _expired(shard, group, topic, now_ms, self._settings.retention_ms)
                _delete(shard, group_id, tombstones)
                count += len(tombstones)
            return count + _remove_if_empty(shard, group_id)
        except CodedError as error:
            log.warning("expired offsets could not be removed", group=group_id, reason=error.message)
            return count


def _check_member(shard: GroupShard, commit: TransactionalCommit) -> None:
    group = shard.group(commit.group_id)
    if group is not None:
        group.check_commit(commit.member_id, commit.instance_id, commit.generation, shard.now_ms(), transactional=True)
    elif commit.generation >= 0:
        raise CodedError(ErrorCode.illegal_generation, f"there is no group {commit.group_id!r}")


def _mark_unstable(fetched: Fetched, pending: Iterable[bytes]) -> None:
    """`pending` are the keys of offsets that open transactions have committed."""
    for key in pending:
        prefix, partition = split_offset_key(key)
        values = fetched.get(read_prefix(prefix)[1], {})
        if partition in values:
            values[partition] = UNSTABLE


def _delete(shard: GroupShard, group_id: str, tombstones: Sequence[Pair]) -> None:
    for start in range(0, len(tombstones), RECORDS_PER_BATCH):
        shard.delete_offsets(group_id, tombstones[start : start + RECORDS_PER_BATCH])


def _group_ids(shard: GroupShard) -> Iterator[str]:
    return iter(dict.fromkeys((*shard.groups, *shard.offsets.groups())))


def _remove_if_empty(shard: GroupShard, group_id: str) -> int:
    group = shard.group(group_id) if shard.phase is Phase.ACTIVE else None
    has_offsets = group_id in shard.offsets or shard.pending.has_any(group_id)
    if group is None or not (group.expires and group.is_empty) or group.is_blank or has_offsets:
        return 0
    shard.remove(group)
    return 1


def _expired(shard: GroupShard, group: Group, topic: str, now_ms: int, retention_ms: int) -> list[Pair]:
    values = shard.offsets.topics(group.group_id).get(topic, {})
    due = [
        index
        for index, value in values.items()
        if _is_expired(group, value, now_ms, retention_ms) and not shard.pending.has(group.group_id, topic, index)
    ]
    return shard.offsets.tombstones(group.group_id, topic, due)


def _is_expired(group: Group, value: bytes, now_ms: int, retention_ms: int) -> bool:
    commit_timestamp, expire_timestamp = offset_times(value)
    since = group.offsets_idle_since(commit_timestamp)
    if since is None:
        return False
    if expire_timestamp != NONE:
        return now_ms >= expire_timestamp
    return now_ms - since >= retention_ms
