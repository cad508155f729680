"""Members of a consumer group (KIP-848) of a wild run: they share partitions, read them, and keep their places."""

import asyncio
from typing import Final
from uuid import UUID

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from tests.support.simulation.clients import Failed, offset_topics

from .clients import Client, Scene, shown
from .transacting import GaveUp, committed_offset, coordinator

HEARTBEAT_SECONDS: Final = 0.7
_JOIN, _LEAVE = 0, -1
FENCED: Final = frozenset(
    {
        ErrorCode.fenced_member_epoch,
        ErrorCode.unknown_member_id,
        ErrorCode.stale_member_epoch,
        ErrorCode.illegal_generation,
    }
)


class Member:
    """One member; it begins anew as often as it is expelled."""

    def __init__(self, scene: Scene, name: str, group: str, topic: str) -> None:
        self.name = name
        self.commits = 0
        self._scene = scene
        self._client = Client(scene, name)
        self._group = group
        self._topic = topic
        self._member = UUID(int=self._client.rng.getrandbits(128)).hex
        self._epoch = _JOIN
        self._owned: dict[int, int] = {}
        """Positions by partition."""

    async def run(self) -> None:
        while not self._scene.is_over:
            try:
                await self._beat()
                for partition in list(self._owned):
                    await self._work(partition)
            except (Failed, OSError, GaveUp, TimeoutError, CodedError) as error:
                if not isinstance(error, OSError):
                    self._owned.clear()
                self._client.mistrust(self._topic)
            await asyncio.sleep(self._client.rng.uniform(0.2, 2 * HEARTBEAT_SECONDS))
        self._client.close()

    async def _beat(self) -> None:
        known = await self._client.known(self._topic)
        joining = self._epoch == _JOIN
        owned = [{"topic_id": known.id, "partitions": sorted(self._owned)}] if self._owned else []
        values = {
            "group_id": self._group,
            "member_id": self._member,
            "member_epoch": self._epoch,
            "rebalance_timeout": 5_000,
            "subscribed_topic_names": [self._topic] if joining else None,
            "topic_partitions": owned,
        }
        answer = await self._client.ask(
            await coordinator(self._client, self._group), ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, values
        )
        code = ErrorCode(answer.error_code)
        if code in FENCED:
            self._epoch = _JOIN
            self._owned.clear()
        if code is not ErrorCode.none:
            raise Failed(code)
        self._epoch = answer.member_epoch
        if answer.assignment is not None:
            assigned = [p for each in answer.assignment.topic_partitions for p in each.partitions]
            self._owned = {p: offset for p, offset in self._owned.items() if p in assigned}
            for partition in assigned:
                if partition not in self._owned:
                    self._owned[partition] = await self._place(known.id, partition)

    async def _place(self, topic_id: UUID, partition: int) -> int:
        since = self._scene.now
        offset = await committed_offset(self._client, self._group, self._topic, partition)
        self._scene.history.note(
            "committed",
            "ok",
            group=self._group,
            topic=topic_id.hex,
            partition=partition,
            offset=offset,
            since=since,
        )
        return max(offset, 0)

    async def _work(self, partition: int) -> None:
        known = await self._client.known(self._topic)
        offset, since = self._owned[partition], self._scene.now
        leader = await self._client.leader_of(self._topic, partition)
        found = await self._client.fetch_from(leader, known.id, partition, offset, committed_only=True)
        if found.error_code == ErrorCode.offset_out_of_range:
            self._owned[partition] = await self._client.list_offset(self._topic, partition)
            return
        if found.error_code != ErrorCode.none:
            raise Failed(ErrorCode(found.error_code))
        fetched = shown(found, offset, committed_only=True)
        self._scene.history.saw(
            self.name,
            known.id.hex,
            partition,
            offset,
            fetched.records,
            next_offset=fetched.next,
            committed_only=True,
            since=since,
        )
        if fetched.next > offset:
            self._owned[partition] = fetched.next
            await self._commit(known.id, partition, fetched.next)

    async def _commit(self, topic_id: UUID, partition: int, offset: int) -> None:
        values = {
            "group_id": self._group,
            "generation_id_or_member_epoch": self._epoch,
            "member_id": self._member,
            "group_instance_id": None,
            "topics": offset_topics(self._topic, partition, offset),
        }
        address = await coordinator(self._client, self._group)
        operation = self._scene.history.invoke(
            "commit", group=self._group, topic=topic_id.hex, partition=partition, offset=offset
        )
        try:
            answer = await self._client.ask(address, ApiKey.OFFSET_COMMIT, 9, values)
        except OSError:
            operation.info()
            raise
        code = ErrorCode(answer.topics[0].partitions[0].error_code)
        if code is ErrorCode.none:
            operation.ok()
            self.commits += 1
            return
        operation.fail(error=code.name) if code in FENCED else operation.info(error=code.name)
        if code in FENCED:
            self._epoch = _JOIN
        raise Failed(code)
