"""What leaves the internal topic by itself: offsets that nobody has use for, and groups with nothing left.

An offset expires `offsets.retention.minutes` after its group's last member left; where the group still has members,
after the last commit for a topic that none of them reads; where it never had any, after the last commit. An empty
group goes once it has no offsets. The offsets of a deleted topic go with it. Nothing goes for which a transaction is
open that has committed an offset.
"""

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
from .turns import in_turns

log = structlog.get_logger(__name__)

OFFSETS_PER_TURN: Final = 2_000
"""How many offsets, or groups, are looked at before others get a turn."""
RECORDS_PER_BATCH: Final = 1_000


async def expire(coordinator: GroupCoordinator, now_ms: int) -> int:
    """Let go of what has expired at a time of day; returns how many offsets and groups went."""
    gone = 0
    for shard in coordinator.shards.active():
        async for group_id in in_turns(list(_group_ids(shard)), OFFSETS_PER_TURN):
            gone += await _expire_group(coordinator, shard, group_id, now_ms)
    if gone:
        log.info("offsets and groups expired", count=gone)
    return gone


def _group_ids(shard: Shard) -> Iterator[str]:
    return iter(dict.fromkeys((*shard.groups, *shard.offsets.groups())))


async def _expire_group(coordinator: GroupCoordinator, shard: Shard, group_id: str, now_ms: int) -> int:
    """Topic by topic: a group may have very many offsets, and others get their turns meanwhile."""
    gone = 0
    retention_ms = coordinator.settings.retention_ms
    group = coordinator.group(shard, group_id) if shard.phase is Phase.ACTIVE else None
    if group is None:
        return gone
    read = group.subscribed_topics()
    unread = [topic for topic in shard.offsets.topics(group_id) if topic not in read]
    try:
        async for topic in in_turns(unread, OFFSETS_PER_TURN):
            group = coordinator.group(shard, group_id) if shard.phase is Phase.ACTIVE else None
            if group is None:
                return gone
            tombstones = _expired(shard, group, topic, now_ms, retention_ms)
            _forget(coordinator, shard, tombstones)
            gone += len(tombstones)
        return gone + _remove_if_empty(coordinator, shard, group_id)
    except CodedError as error:
        log.warning("expired offsets could not be removed", group=group_id, reason=error.message)
        return gone


def _remove_if_empty(coordinator: GroupCoordinator, shard: Shard, group_id: str) -> int:
    group = coordinator.group(shard, group_id) if shard.phase is Phase.ACTIVE else None
    has_offsets = group_id in shard.offsets or shard.pending.has_any(group_id)
    if group is None or not group.is_empty or group.is_blank or has_offsets:
        return 0
    admin.remove(coordinator, shard, group)
    return 1


def _expired(shard: Shard, group: Group, topic: str, now_ms: int, retention_ms: int) -> list[Pair]:
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
        async for group_id in in_turns(shard.groups_with_offsets(), OFFSETS_PER_TURN):
            tombstones = shard.tombstones(group_id, topic) if shard.phase is Phase.ACTIVE else []
            if tombstones:
                try:
                    _forget(coordinator, shard, tombstones)
                except CodedError as error:
                    log.warning("offsets of a deleted topic remain", topic=topic, reason=error.message)
                    return gone
                gone += len(tombstones)
    return gone
