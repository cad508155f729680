"""What leaves the internal topic by itself: offsets that nobody has use for, and groups with nothing left.

An offset expires `offsets.retention.minutes` after its group's last member left; where the group still has members,
after the last commit for a topic that none of them reads; where it never had any, after the last commit. An empty
group goes once it has no offsets. The offsets of a deleted topic go with it. Nothing goes for which a transaction is
open that has committed an offset.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

import structlog

from headrace.protocol.errors import CodedError

from . import admin
from .group import Group
from .journal import Pair
from .loading import Phase
from .partitions import OFFSETS_TOPIC
from .records import NONE, offset_times
from .service import GroupCoordinator
from .shard import Shard

log = structlog.get_logger(__name__)

OFFSETS_PER_TURN: Final = 2_000
"""How many offsets, or groups, are looked at before others get a turn."""
RECORDS_PER_BATCH: Final = 1_000


async def expire(coordinator: GroupCoordinator, now_ms: int) -> int:
    """Let go of what has expired at a time of day; returns how many offsets and groups went."""
    gone = 0
    for shard in coordinator.shards.active():
        looked_at = 0
        for group_id in list(_group_ids(shard)):
            looked_at += 1 + sum(map(len, shard.offsets.topics(group_id).values()))
            if looked_at >= OFFSETS_PER_TURN:
                looked_at = 0
                await asyncio.sleep(0)
            if shard.phase is Phase.ACTIVE:
                gone += _expire_group(coordinator, shard, group_id, now_ms)
    if gone:
        log.info("offsets and groups expired", count=gone)
    return gone


def _group_ids(shard: Shard) -> Iterator[str]:
    return iter(dict.fromkeys((*shard.groups, *shard.offsets.groups())))


def _expire_group(coordinator: GroupCoordinator, shard: Shard, group_id: str, now_ms: int) -> int:
    group = coordinator.group(shard, group_id)
    if group is None:
        return 0
    tombstones = _expired(shard, group, now_ms, coordinator.settings.retention_ms)
    try:
        _forget(coordinator, shard, tombstones)
        has_offsets = group_id in shard.offsets or shard.pending.has_any(group_id)
        if group.is_empty and not group.is_blank and not has_offsets:
            admin.remove(coordinator, shard, group)
            return len(tombstones) + 1
    except CodedError as error:
        log.warning("expired offsets could not be removed", group=group_id, reason=error.message)
        return 0
    return len(tombstones)


def _expired(shard: Shard, group: Group, now_ms: int, retention_ms: int) -> list[Pair]:
    found: list[Pair] = []
    for topic, values in shard.offsets.topics(group.group_id).items():
        if group.is_subscribed(topic):
            continue
        due = [
            index
            for index, value in values.items()
            if _is_expired(group, value, now_ms, retention_ms) and not shard.pending.has(group.group_id, topic, index)
        ]
        found += shard.offsets.tombstones(group.group_id, topic, due)
    return found


def _is_expired(group: Group, value: bytes, now_ms: int, retention_ms: int) -> bool:
    commit_timestamp, expire_timestamp = offset_times(value)
    since = group.offsets_idle_since(commit_timestamp)
    if since is None:
        return False
    if expire_timestamp != NONE:
        return now_ms >= expire_timestamp
    return now_ms - since >= retention_ms


def _forget(coordinator: GroupCoordinator, shard: Shard, tombstones: list[Pair]) -> None:
    for start in range(0, len(tombstones), RECORDS_PER_BATCH):
        some = tombstones[start : start + RECORDS_PER_BATCH]
        coordinator.write(shard, some)
        shard.offsets.forget(some)


async def forget_topic(coordinator: GroupCoordinator, topic: str) -> int:
    """Let go of every offset of a topic that was deleted; returns how many there were.

    Shards that cannot write now do so once they can. Without the internal topic itself there are no groups.
    """
    if topic == OFFSETS_TOPIC:
        coordinator.shards.close()
        return 0
    gone = 0
    for shard in coordinator.shards.silent():
        shard.deleted_topics.add(topic)
    for shard in coordinator.shards.active():
        for number, group_id in enumerate(shard.groups_with_offsets(), 1):
            if number % OFFSETS_PER_TURN == 0:
                await asyncio.sleep(0)
            tombstones = shard.tombstones(group_id, topic) if shard.phase is Phase.ACTIVE else []
            if tombstones:
                try:
                    _forget(coordinator, shard, tombstones)
                except CodedError as error:
                    log.warning("offsets of a deleted topic remain", topic=topic, reason=error.message)
                    return gone
                gone += len(tombstones)
    return gone
