"""What operators ask of a cluster during a wild run: topics made and deleted, records deleted, replicas moved."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from tests.support.simulation.clients import Failed

from .clients import AGAIN, Client, Scene
from .ledger import TRANSACTIONS
from .transacting import coordinator

STEADY: Final = "steady"
"""A topic that is never deleted."""
FLEETING: Final = "fleeting"
"""A topic that is deleted and made again, under the same name."""
COMPACTED: Final = "compacted"
RETAINED: Final = "retained"
TARGET: Final = "target"
"""Written by transactions alone."""
LETTERS: Final = "dlq.sharers"
"""Has the dead letters of the share group."""
SHARERS: Final = "sharers"
REWIND_SECONDS: Final = 12.0
"""How long an operator tries to have the share group begin anew."""


class Operator:
    """Makes the topics, and changes them while clients are at work."""

    def __init__(self, scene: Scene) -> None:
        self._client = Client(scene, "operator")
        self._scene = scene
        self._rng = self._client.rng
        self._mix = scene.mix

    async def make_topics(self) -> None:
        mix, scene = self._mix, self._scene
        names = [STEADY]
        if mix.does("topics"):
            names.append(FLEETING)
        if mix.does("compaction"):
            names.append(COMPACTED)
        if mix.does("retention"):
            names.append(RETAINED)
        scene.topics += names
        if mix.does("transactions") or mix.does("copier"):
            names.append(TARGET)
        for name in names:
            await self.create(name)
        if mix.does("share"):
            await self._make_queue([STEADY, *([TARGET] if TARGET in names else [])])
        if mix.is_durable and TARGET in names:
            await self._sync_transactions()

    async def _make_queue(self, topics: list[str]) -> None:
        """A share group with dead letters, whose settings are drawn."""
        rng, scene = self._scene.rng("queue"), self._scene
        scene.share_topics, scene.shares_committed = topics, rng.random() < 0.5
        await self.create(LETTERS)
        settings = {
            "share.auto.offset.reset": "earliest",
            "share.isolation.level": "read_committed" if scene.shares_committed else "read_uncommitted",
            "share.delivery.count.limit": str(rng.choice((2, 3, 5))),
            "headrace.share.retry.backoff.ms": rng.choice(("0", "0", "300")),
            "headrace.share.order": rng.choice(("none", "none", "key")),
            "headrace.share.priority.enable": rng.choice(("false", "false", "true")),
            "errors.deadletterqueue.topic.name": LETTERS,
            "errors.deadletterqueue.copy.record.enable": "true",
        }
        configs = [{"name": name, "config_operation": 0, "value": value} for name, value in settings.items()]
        resource = {"resource_type": 32, "resource_name": SHARERS, "configs": configs}
        values = {"resources": [resource], "validate_only": False}
        async with asyncio.timeout(60):
            while True:
                try:
                    answer = await self._client.ask_anyone(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, values)
                    if answer.responses[0].error_code == ErrorCode.none:
                        return
                except OSError:
                    pass
                await self._client.pause()

    async def _sync_transactions(self) -> None:
        """What the docs ask for where topics that sync are written in transactions."""
        async with asyncio.timeout(60):
            while True:
                try:
                    await coordinator(self._client, group="", transactional_id="any")
                    answer = await self._set_flush_messages(TRANSACTIONS, "1")
                    if answer.responses[0].error_code == ErrorCode.none:
                        return
                except (Failed, OSError):
                    pass
                await self._client.pause()

    async def create(self, name: str) -> None:
        """Asks until it is there."""
        mix = self._mix
        configs = {"min.insync.replicas": str(mix.min_isr), "segment.bytes": str(mix.segment_bytes)}
        if mix.is_durable:
            configs["flush.messages"] = "1"
        if mix.flush_ms is not None:
            configs["flush.ms"] = str(mix.flush_ms)
        if mix.does("large batches"):
            configs["max.message.bytes"] = "1500"
        if name == LETTERS:
            configs |= {"errors.deadletterqueue.group.enable": "true", "max.message.bytes": "1000000"}
        if name == COMPACTED:
            configs |= {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "3000"}
        if name == RETAINED:
            configs |= {"retention.bytes": "3000", "segment.bytes": "800"}
        await self._client.create_topic(name, partitions=mix.partitions, replicas=mix.replicas, configs=configs)

    async def run(self) -> None:
        kinds: dict[str, Callable[[], Awaitable[None]]] = {
            "topics": self._make_anew,
            "partitions": self._add_partition,
            "delete records": self._delete_records,
            "reassignment": self._reassign,
            "flush setting": self._change_flush_messages,
        }
        chosen = [kinds[kind] for kind in kinds if self._mix.does(kind)]
        if self._mix.does("rewind") and self._mix.does("share"):
            chosen.append(self._rewind)
        if self._mix.does("reassignment"):
            chosen.append(self._elect_preferred)
        longest = self._mix.operator_pace or 3 * self._mix.pace
        while chosen and not self._scene.is_calm:
            await asyncio.sleep(self._rng.uniform(0.2, longest))
            try:
                await self._rng.choice(chosen)()
            except (Failed, OSError, TimeoutError):
                self._client.mistrust(STEADY)
        self._client.close()

    async def _make_anew(self) -> None:
        known = await self._client.refresh(FLEETING)
        operation = self._scene.history.invoke("delete_topic", topic=known.id.hex)
        while True:
            try:
                answer = await self._client.ask_anyone(
                    ApiKey.DELETE_TOPICS, 6, {"topics": [{"name": None, "topic_id": known.id}], "timeout": 5_000}
                )
                code = ErrorCode(answer.responses[0].error_code)
            except OSError:
                code = ErrorCode.network_exception
            if code in (ErrorCode.none, ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition):
                break
            if code not in AGAIN:
                raise Failed(code)
            await self._client.pause()
        operation.ok()
        self._client.mistrust(FLEETING)
        async with asyncio.timeout(30):
            await self.create(FLEETING)

    async def _add_partition(self) -> None:
        known = await self._client.refresh(STEADY)
        if known.count < 5:
            topic = {"name": STEADY, "count": known.count + 1, "assignments": None}
            await self._ask(ApiKey.CREATE_PARTITIONS, 3, {"topics": [topic], "timeout": 5_000, "validate_only": False})

    async def _delete_records(self) -> None:
        topic = self._rng.choice([name for name in self._scene.topics if name not in (COMPACTED, FLEETING)])
        known = await self._client.refresh(topic)
        partition = self._rng.randrange(known.count)
        start = await self._client.list_offset(topic, partition)
        end = await self._client.list_offset(topic, partition, -1)
        if end <= start:
            return
        before = self._rng.randint(start, end)
        leader = await self._client.leader_of(topic, partition, known.id)
        asked = {"partition_index": partition, "offset": before}
        values = {"topics": [{"name": topic, "partitions": [asked]}], "timeout": 4_000}
        operation = self._scene.history.invoke("delete_records", topic=known.id.hex, partition=partition, before=before)
        answer = await self._client.ask(leader, ApiKey.DELETE_RECORDS, 2, values)
        found = answer.topics[0].partitions[0]
        if found.error_code == ErrorCode.none and self._scene.cluster.topics()[topic].id == known.id:
            state = self._scene.cluster.state(topic, partition)
            short = len(state.isr) < state.least_isr(self._mix.min_isr)
            operation.ok(low_watermark=found.low_watermark, short=short)

    async def _reassign(self) -> None:
        known = await self._client.refresh(STEADY)
        topic = self._rng.choice([STEADY, *(["__consumer_offsets"] if self._rng.random() < 0.2 else [])])
        count = known.count if topic == STEADY else (await self._client.refresh(topic)).count
        brokers = list(range(self._mix.brokers))
        replicas = self._rng.sample(brokers, min(self._mix.replicas, len(brokers)))
        cancel = self._rng.random() < 0.1
        asked = {"partition_index": self._rng.randrange(count), "replicas": None if cancel else replicas}
        values = {"timeout": 5_000, "topics": [{"name": topic, "partitions": [asked]}]}
        await self._ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, values)

    async def _rewind(self) -> None:
        """Have the share group begin anew in a partition, at the first record that there is, while nobody reads it."""
        scene = self._scene
        known = await self._client.refresh(STEADY)
        partition = self._rng.randrange(known.count)
        start = await self._client.list_offset(STEADY, partition)
        asked = {"partition_index": partition, "start_offset": start}
        values = {"group_id": SHARERS, "topics": [{"topic_name": STEADY, "partitions": [asked]}]}
        operation = scene.history.invoke("rewind", group=SHARERS, topic=known.id.hex, partition=partition, offset=start)
        scene.is_rewinding = True
        code = ErrorCode.non_empty_group
        try:
            async with asyncio.timeout(REWIND_SECONDS):
                while code is not ErrorCode.none:
                    await self._client.pause()
                    with suppress(OSError, Failed):
                        address = await coordinator(self._client, SHARERS)
                        answer = await self._client.ask(address, ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, values)
                        code = ErrorCode(answer.error_code)
                        if code is ErrorCode.none:
                            code = ErrorCode(answer.responses[0].partitions[0].error_code)
        finally:
            scene.is_rewinding = False
            operation.ok() if code is ErrorCode.none else operation.info(error=code.name)

    async def _change_flush_messages(self) -> None:
        value = self._rng.choice(("1", "1", "1000000"))
        await self._set_flush_messages(self._rng.choice(self._scene.topics), value)

    async def _set_flush_messages(self, topic: str, value: str) -> Any:
        config = {"name": "flush.messages", "config_operation": 0, "value": value}
        resource = {"resource_type": 2, "resource_name": topic, "configs": [config]}
        return await self._ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False})

    async def _elect_preferred(self) -> None:
        values = {"election_type": 0, "topic_partitions": None, "timeout": 5_000}
        await self._ask(ApiKey.ELECT_LEADERS, 2, values)

    async def _ask(self, api_key: ApiKey, version: int, values: dict[str, Any]) -> Any:
        return await self._client.ask_anyone(api_key, version, values)
