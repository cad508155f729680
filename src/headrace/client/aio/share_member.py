"""A member of a share group that renews its locks: what it fetches is nobody else's until it says what became of it.

Heartbeats tell which partitions the member reads. The leader of each is asked on a connection that belongs to the
session there, one request after another: a session counts its requests, and ends with its connection.

    ShareFetch (epoch 0) -> ShareFetch | ShareAcknowledge (epoch 1, 2, ...) -> ShareAcknowledge (epoch -1)

A session that is lost is begun anew; what had been acquired in it may have gone to others, who acknowledge it says so.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from enum import IntEnum
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid4

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.records import Record
from headrace.protocol.share_fetch import delay_releases

from ..core.codes import Remedy, remedy_of
from ..core.errors import ConnectionLost
from .cluster import Cluster, checked
from .connection import BrokerConnection
from .fetching import unpack
from .retrying import Unavailable, passes

log: Final = logging.getLogger("headrace.client")
"""That of programs, which decide what becomes of it."""

_MAX_BYTES: Final = 64 << 20
_STRICT: Final = 1
"""The acquire mode in which a fetch gets no more records than it asks for."""
_PAUSE_SECONDS: Final = 0.2
_JOIN_SECONDS: Final = 0.5
"""Between heartbeats of a member that has no partitions yet."""
_TRIES: Final = 4
_JOINING: Final = 0
_LEAVING: Final = -1
_FINAL_EPOCH: Final = -1
_SESSION_LOST: Final = frozenset({ErrorCode.share_session_not_found, ErrorCode.invalid_share_session_epoch})
_JOIN_AGAIN: Final = frozenset({ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch})
Key = tuple[UUID, int]
"""Of a partition: the id of its topic, and its number."""


class Outcome(IntEnum):
    """What a member says of a record."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class Acquired(NamedTuple):
    """A record that is this member's until its lock expires."""

    topic: str
    key: Key
    node: int
    """The leader that gave it."""
    record: Record
    deliveries: int


class _Session:
    """What one leader is asked, and with which number the next request comes."""

    def __init__(self, node: int) -> None:
        self.node = node
        self.turn = asyncio.Lock()
        self.epoch = 0
        self.partitions: set[Key] = set()
        self._connection: BrokerConnection | None = None
        self._lent = AsyncExitStack()

    async def connection(self, cluster: Cluster) -> BrokerConnection:
        if self._connection is None or not self._connection.is_usable():
            await self.reset()
            self._connection = await self._lent.enter_async_context(cluster.lent(self.node))
        return self._connection

    async def reset(self) -> None:
        """Begin anew with the next request, on another connection."""
        self.epoch = 0
        self.partitions.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        await self._lent.aclose()


class ShareMember:
    """A member; `run` keeps it one until it is cancelled."""

    def __init__(self, cluster: Cluster, group: str, topics: Sequence[str]) -> None:
        self.lock_seconds = 30.0
        """How long a lock holds, as the brokers said last."""
        self._cluster = cluster
        self._group = group
        self._topics = tuple(topics)
        self._id = str(uuid4())
        self._epoch = _JOINING
        self._assigned: frozenset[Key] = frozenset()
        self._sessions: dict[int, _Session] = {}
        self._turn = 0

    @property
    def has_partitions(self) -> bool:
        """Whether the group has given it something to read."""
        return bool(self._assigned)

    # Membership

    async def run(self) -> None:
        """Heartbeats; raises what no further one mends."""
        while True:
            try:
                pause = await self._beat()
            except (ConnectionLost, Unavailable) as error:
                log.info("no heartbeat in group '%s': %s", self._group, error)
                self._cluster.forget_coordinator(self._group)
                pause = _PAUSE_SECONDS
            except CodedError as error:
                if error.code in _JOIN_AGAIN:
                    self._epoch, self._assigned = _JOINING, frozenset()
                elif remedy_of(error.code) is Remedy.FIND_COORDINATOR:
                    self._cluster.forget_coordinator(self._group)
                elif not passes(error):
                    raise
                pause = _PAUSE_SECONDS
            await asyncio.sleep(pause)

    async def _beat(self) -> float:
        """One heartbeat; how long to wait before the next."""
        answer = checked(await self._heartbeat(self._epoch))
        self._epoch = answer.member_epoch
        if answer.assignment is not None:
            named = answer.assignment.topic_partitions
            self._assigned = frozenset((each.topic_id, int(index)) for each in named for index in each.partitions)
        interval = float(answer.heartbeat_interval.total_seconds())
        return interval if self._assigned else min(interval, _JOIN_SECONDS)

    async def _heartbeat(self, epoch: int) -> Any:
        connection = await self._cluster.to_node(await self._cluster.coordinator(self._group))
        values = {
            "group_id": self._group,
            "member_id": self._id,
            "member_epoch": epoch,
            "rack_id": None,
            "subscribed_topic_names": self._topics if epoch == _JOINING else None,
        }
        return await connection.ask(ApiKey.SHARE_GROUP_HEARTBEAT, values)

    async def leave(self) -> None:
        """End the sessions, which releases what is still held, and leave the group."""
        for session in self._sessions.values():
            try:
                if session.epoch:
                    async with session.turn:
                        values = {"is_renew_ack": False, "topics": ()}
                        await self._ask(session, ApiKey.SHARE_ACKNOWLEDGE, values, epoch=_FINAL_EPOCH)
            except (ConnectionLost, CodedError, Unavailable) as error:
                log.info("a session ends with its connection to broker %d: %s", session.node, error)
            await session.reset()
        try:
            await self._heartbeat(_LEAVING)
        except (ConnectionLost, CodedError, Unavailable) as error:
            log.info("left group '%s' without a word: %s", self._group, error)

    # Records

    async def fetch(self, most: int, wait: float) -> list[Acquired]:
        """Up to so many records, of whichever leader has some; none if none come within so many seconds."""
        by_node = await self._by_node()
        for node, session in self._sessions.items():
            if session.partitions:  # those that have another leader now are to be forgotten
                by_node.setdefault(node, {})
        nodes = sorted(by_node)
        self._turn += 1
        turn = self._turn % max(len(nodes), 1)
        for patience in (0.0, wait / max(len(nodes), 1)):
            for node in nodes[turn:] + nodes[:turn]:
                found = await self._fetch_from(node, by_node[node], most, patience)
                if found:
                    return found
        if not nodes:
            await asyncio.sleep(min(wait, _PAUSE_SECONDS))
        return []

    async def _by_node(self) -> dict[int, dict[Key, str]]:
        """The partitions that are read, by their leaders."""
        found: dict[int, dict[Key, str]] = {}
        for name in self._topics:
            try:
                image = await self._cluster.topic(name)
            except CodedError as error:
                if error.code is ErrorCode.topic_authorization_failed:
                    raise
                continue  # the group waits for topics that are not there yet
            topic_id = UUID(bytes=image.id) if image.id else None
            for partition, leader in image.leaders.items():
                if topic_id is not None and leader.node >= 0 and (topic_id, partition) in self._assigned:
                    found.setdefault(leader.node, {})[topic_id, partition] = name
        return found

    async def _fetch_from(self, node: int, wanted: Mapping[Key, str], most: int, wait: float) -> list[Acquired]:
        session = self._sessions.setdefault(node, _Session(node))
        try:
            async with session.turn:
                await session.connection(self._cluster)  # a new one has no partitions yet
                values = {
                    "max_wait": round(wait * 1000),
                    "min_bytes": 1 if wanted else 0,
                    "max_bytes": _MAX_BYTES if wanted else 0,
                    "max_records": most,
                    "batch_size": most,
                    "share_acquire_mode": _STRICT,
                    "is_renew_ack": False,
                    "topics": _topics({key: () for key in wanted if key not in session.partitions}),
                    "forgotten_topics_data": _forgotten(session.partitions - set(wanted)),
                }
                answer = await self._ask(session, ApiKey.SHARE_FETCH, values, patience=wait)
                session.partitions = set(wanted)
        except ConnectionLost as error:
            session.partitions.clear()  # they ended with the connection
            self._forget_leaders(str(error))
            await asyncio.sleep(min(wait, _PAUSE_SECONDS))
            return []
        except CodedError as error:
            if error.code in _SESSION_LOST or passes(error):
                return []
            raise
        self.lock_seconds = answer.acquisition_lock_timeout.total_seconds() or self.lock_seconds
        return await self._acquired(node, wanted, answer)

    def _forget_leaders(self, reason: str) -> None:
        log.info("leaders are asked for again: %s", reason)
        for name in self._topics:
            self._cluster.forget(name)

    async def _acquired(self, node: int, names: Mapping[Key, str], answer: Any) -> list[Acquired]:
        found: list[Acquired] = []
        unreadable: list[tuple[Acquired, Outcome]] = []
        for topic in answer.responses:
            for part in topic.partitions:
                key = topic.topic_id, int(part.partition_index)
                if part.error_code is not ErrorCode.none:
                    self._heed(names.get(key, ""), part)
                if not part.acquired_records or key not in names:
                    continue
                readable, damage = _readable(part)
                for run in part.acquired_records:
                    for offset in range(run.first_offset, run.last_offset + 1):
                        record = readable.get(offset)
                        held = record or Record(offset, -1, None, None)
                        acquired = Acquired(names[key], key, node, held, int(run.delivery_count))
                        if record is None:
                            unreadable.append((acquired, damage))
                        else:
                            found.append(acquired)
        if unreadable:
            await self.acknowledge(unreadable)
        return found

    def _heed(self, name: str, part: Any) -> None:
        """An error of one partition: another leader is looked for, or it is told."""
        error = CodedError(part.error_code, part.error_message or f"topic '{name}'")
        if part.error_code is ErrorCode.unknown_topic_id or passes(error):
            self._cluster.forget(name)
            return
        raise error

    async def acknowledge(
        self, said: Iterable[tuple[Acquired, Outcome]], release_seconds: float | None = None
    ) -> list[tuple[Acquired, str]]:
        """Say what became of records; those that are not this member's any more, and why. What is released is delivered
        again after `release_seconds`; without them after the backoff of the group."""
        by_node: dict[int, list[tuple[Acquired, Outcome]]] = {}
        for acquired, outcome in said:
            by_node.setdefault(acquired.node, []).append((acquired, outcome))
        lost: list[tuple[Acquired, str]] = []
        for node, some in by_node.items():
            lost += await self._acknowledge_to(node, some, release_seconds)
        return lost

    async def _acknowledge_to(
        self, node: int, said: list[tuple[Acquired, Outcome]], release_seconds: float | None
    ) -> list[tuple[Acquired, str]]:
        session = self._sessions.setdefault(node, _Session(node))
        by_key: dict[Key, list[tuple[Acquired, Outcome]]] = {}
        for acquired, outcome in sorted(said, key=_offset):
            by_key.setdefault(acquired.key, []).append((acquired, outcome))
        values = {
            "is_renew_ack": any(outcome is Outcome.RENEW for _, outcome in said),
            "topics": _topics({key: [_batch(*each) for each in some] for key, some in by_key.items()}),
        }
        try:
            answer = await self._asked_to_acknowledge(session, values, release_seconds)
        except (ConnectionLost, CodedError) as error:
            return [(acquired, str(error)) for acquired, _ in said]
        lost: list[tuple[Acquired, str]] = []
        for topic in answer.responses:
            for part in topic.partitions:
                some = by_key.get((topic.topic_id, int(part.partition_index)), [])
                code = part.error_code
                if code is ErrorCode.invalid_record_state and len(some) > 1:  # all or none: one is somebody else's
                    for each in some:
                        lost += await self._acknowledge_to(node, [each], release_seconds)
                elif code is not ErrorCode.none:
                    lost += [(acquired, part.error_message or code.name) for acquired, _ in some]
        return lost

    async def _asked_to_acknowledge(
        self, session: _Session, values: Mapping[str, Any], release_seconds: float | None
    ) -> Any:
        """The answer; where a session or its connection is lost, in the next: the broker may still hold the locks."""
        edit = None if release_seconds is None else partial(delay_releases, milliseconds=round(release_seconds * 1000))
        for tries_left in reversed(range(_TRIES)):
            try:
                async with session.turn:
                    await session.connection(self._cluster)
                    if not session.epoch:
                        await self._begin(session)
                    return await self._ask(session, ApiKey.SHARE_ACKNOWLEDGE, values, edit=edit)
            except (ConnectionLost, CodedError) as error:
                if not tries_left or (isinstance(error, CodedError) and error.code not in _SESSION_LOST):
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)
        raise AssertionError("unreachable")

    async def _begin(self, session: _Session) -> None:
        """A session without partitions: it begins with a fetch, which acknowledges nothing."""
        nothing = {"max_wait": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 1, "batch_size": 1}
        await self._ask(session, ApiKey.SHARE_FETCH, {**nothing, "topics": (), "forgotten_topics_data": ()})

    async def _ask(
        self,
        session: _Session,
        api_key: ApiKey,
        values: Mapping[str, Any],
        *,
        epoch: int | None = None,
        patience: float = 0.0,
        edit: Callable[[bytearray], None] | None = None,
    ) -> Any:
        """The answer to the next request of a session, which is begun anew where it is lost."""
        connection = await session.connection(self._cluster)
        asked = {
            "group_id": self._group,
            "member_id": self._id,
            "share_session_epoch": session.epoch if epoch is None else epoch,
            **values,
        }
        try:
            answer = checked(await connection.ask(api_key, asked, patience=patience, edit=edit))
        except (ConnectionLost, CodedError, asyncio.CancelledError):
            await session.reset()
            raise
        session.epoch += 1
        return answer


def _readable(part: Any) -> tuple[dict[int, Record], Outcome]:
    """The records of an answer by their offsets, and what is to be said of acquired offsets that have none here."""
    data = memoryview(bytes(part.records or b""))
    try:
        unpacked = unpack(data, part.acquired_records[0].first_offset, ())
    except CodedError as error:
        log.warning("records of partition %d cannot be read: %s", part.partition_index, error.message)
        return {}, Outcome.RELEASE
    return {record.offset: record for record in unpacked.records}, Outcome.GAP


def _offset(said: tuple[Acquired, Outcome]) -> int:
    return said[0].record.offset


def _batch(acquired: Acquired, outcome: Outcome) -> dict[str, Any]:
    offset = acquired.record.offset
    return {"first_offset": offset, "last_offset": offset, "acknowledge_types": (int(outcome),)}


def _topics(batches: Mapping[Key, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Partitions, each with what is acknowledged of it, as requests have them."""
    found: dict[UUID, list[dict[str, Any]]] = {}
    for (topic_id, partition), said in batches.items():
        found.setdefault(topic_id, []).append({"partition_index": partition, "acknowledgement_batches": said})
    return [{"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in found.items()]


def _forgotten(keys: Iterable[Key]) -> list[dict[str, Any]]:
    found: dict[UUID, list[int]] = {}
    for topic_id, partition in keys:
        found.setdefault(topic_id, []).append(partition)
    return [{"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in found.items()]
