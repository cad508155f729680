"""Requests as consumers send them, for the tests of groups."""

import asyncio
from datetime import timedelta
from struct import pack
from typing import Any

from headrace.protocol.api import ApiKey
from tests.support.coordinator.world import World

SESSION = timedelta(seconds=10)


def find(world: World, group_id: str = "g") -> Any:
    (found,) = world.ask(ApiKey.FIND_COORDINATOR, 4, coordinator_keys=[group_id]).coordinators
    return found


def join_values(group_id: str = "g", member_id: str = "", **values: Any) -> dict[str, Any]:
    return {
        "group_id": group_id,
        "session_timeout": SESSION,
        "rebalance_timeout": SESSION,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
        **values,
    }


def join(world: World, member_id: str = "", version: int = 9, **values: Any) -> Any:
    """A JoinGroup that is answered without others."""
    return world.ask(ApiKey.JOIN_GROUP, version, **join_values(member_id=member_id, **values))


def start_join(world: World, member_id: str = "", version: int = 9, **values: Any) -> "asyncio.Task[Any]":
    return world.send(ApiKey.JOIN_GROUP, version, **join_values(member_id=member_id, **values))


def sync(world: World, joined: Any, assignments: dict[str, bytes] | None = None, **values: Any) -> Any:
    return world.ask(ApiKey.SYNC_GROUP, 4, **sync_values(joined, assignments, **values))


def sync_values(joined: Any, assignments: dict[str, bytes] | None = None, **values: Any) -> dict[str, Any]:
    given = [{"member_id": key, "assignment": value} for key, value in (assignments or {}).items()]
    return {
        "group_id": "g",
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "assignments": given,
        **values,
    }


def lone_member(world: World, assignment: bytes = b"all", **values: Any) -> Any:
    """The JoinGroup's answer of a member that is alone in the stable group `g`."""
    find(world)
    member_id = join(world, **values).member_id
    task = start_join(world, member_id, **values)
    world.advance(0)
    joined = task.result()
    assert sync(world, joined, {joined.member_id: assignment}).assignment == assignment
    return joined


def subscription(*topics: str) -> bytes:
    """The metadata of a consumer that reads these topics."""
    names = b"".join(pack(">h", len(topic)) + topic.encode() for topic in topics)
    return pack(">hi", 0, len(topics)) + names + pack(">i", -1)


def heartbeat(world: World, joined: Any, **values: Any) -> Any:
    given = {"group_id": "g", "generation_id": joined.generation_id, "member_id": joined.member_id, **values}
    return world.ask(ApiKey.HEARTBEAT, 4, **given).error_code


def commit_values(offset: int, topic: str = "t", partition: int = 0, **values: Any) -> dict[str, Any]:
    return {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": partition,
                        "committed_offset": offset,
                        "committed_leader_epoch": 0,
                        "committed_metadata": "",
                    }
                ],
            }
        ],
        **values,
    }


def commit(world: World, offset: int, version: int = 9, **values: Any) -> Any:
    """The code of a commit for one partition."""
    answer = world.ask(ApiKey.OFFSET_COMMIT, version, **commit_values(offset, **values))
    return answer.topics[0].partitions[0].error_code


def fetch(world: World, group_id: str = "g", topic: str = "t", partition: int = 0) -> int:
    """The committed offset of one partition."""
    topics = [{"name": topic, "partition_indexes": [partition]}]
    (group,) = world.ask(ApiKey.OFFSET_FETCH, 9, groups=[{"group_id": group_id, "topics": topics}]).groups
    assert group.error_code.value == 0
    return int(group.topics[0].partitions[0].committed_offset)
