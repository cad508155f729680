import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.cluster.entries import EntryKind, EntryValues
from headrace.cluster.identity import cluster_id
from headrace.cluster.image import BrokerNode, ClusterImage, Topic
from headrace.cluster.log_settings import intake_settings, log_settings
from headrace.cluster.metadata_writer import MetadataWriter, TopicSpec
from headrace.cluster.producer_ids import BLOCK
from headrace.cluster.sqlite import SqliteStore
from headrace.cluster.store import Create, StoreError
from headrace.cluster.store import Operation as StoreOperation
from headrace.config import AlterConfigOp, AlterConfigOpType, BrokerConfig
from headrace.protocol.compression import GZIP, NONE, ZSTD
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.storage.disk import StorageError


def versions(topic: Topic) -> tuple[int, ...]:
    """Of all its records."""
    return topic.version, *topic.page_versions


@dataclass
class Logs:
    """Remembers what it was told; fails when told to."""

    image: ClusterImage
    topics: dict[str, Topic] = field(default_factory=dict)
    failure: Exception | None = None
    shown_too_early: list[str] = field(default_factory=list)

    def apply_topic(self, topic: Topic) -> None:
        if self.failure is not None:
            raise self.failure
        shown = self.image.topic(topic.name)
        if shown is not None and versions(shown) >= versions(topic) and shown is not topic:
            self.shown_too_early.append(topic.name)
        self.topics[topic.name] = topic

    def configs_changed(self, kind: str, name: str, configs: Mapping[str, str]) -> None:
        """Nobody here goes by them."""

    def remove_topic(self, topic: Topic) -> None:
        assert self.image.topic(topic.name) is None
        self.topics.pop(topic.name, None)
        if self.failure is not None:
            raise self.failure


class Broker:
    """A controller on a store, with the logs it controls."""

    def __init__(self, store: SqliteStore, brokers: int = 1) -> None:
        self.store = store
        self.image = ClusterImage(cluster_id="c", controller_id=1)
        self.config = BrokerConfig.parse({})
        self.logs = Logs(self.image)
        for number in range(2, brokers + 1):
            self.image.brokers[number] = BrokerNode(id=number, host="h", port=number)
        self.controller = MetadataWriter(
            store=store,
            image=self.image,
            config=self.config,
            node=BrokerNode(id=1, host="h", port=1),
            rng=Random(5),
            listeners=self.logs,
        )


def with_broker(
    work: Callable[[Broker], Coroutine[Any, Any, None]], path: str | Path = ":memory:", brokers: int = 1
) -> None:
    async def run() -> None:
        store = await SqliteStore.open(path)
        broker = Broker(store, brokers)
        try:
            await broker.controller.load()
            await work(broker)
            assert broker.logs.shown_too_early == []
        finally:
            await broker.controller.close()
            await store.close()

    asyncio.run(run())


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    made: list[Topic] = []

    async def change(broker: Broker) -> None:
        controller = broker.controller
        await controller.create_topic(TopicSpec(name="a", partitions=2, configs={"retention.ms": "5"}))
        await controller.create_partitions("a", 3)
        await controller.alter_topic_configs("a", [AlterConfigOp(AlterConfigOpType.SET, "segment.bytes", "99")])
        await controller.create_topic(TopicSpec(name="b"))
        await controller.delete_topic("b")
        await controller.alter_broker_configs("", [AlterConfigOp(AlterConfigOpType.SET, "log.retention.bytes", "7")])
        await controller.alter_broker_configs("1", [AlterConfigOp(AlterConfigOpType.SET, "log.segment.bytes", "500")])
        await controller.alter_broker_configs("1", [AlterConfigOp(AlterConfigOpType.SET, "log.segment.bytes", "600")])
        made.extend(broker.image.topics())

    async def look(broker: Broker) -> None:
        assert list(broker.image.topics()) == made
        (topic,) = made
        assert topic.configs == {"retention.ms": "5", "segment.bytes": "99"}
        assert (len(topic.partitions), topic.version) == (3, 2)
        assert broker.image.topic_by_id(topic.id) == topic
        assert broker.image.broker_configs == {"": {"log.retention.bytes": "7"}, "1": {"log.segment.bytes": "600"}}
        assert (broker.config["log.retention.bytes"], broker.config["log.segment.bytes"]) == (7, 600)
        await broker.controller.alter_broker_configs(
            "1", [AlterConfigOp(AlterConfigOpType.DELETE, "log.segment.bytes")]
        )
        await broker.controller.create_partitions("a", 4)
        with pytest.raises(CodedError):
            await broker.controller.create_topic(TopicSpec(name="a"))

    with_broker(change, tmp_path / "metadata.db")
    with_broker(look, tmp_path / "metadata.db")


def test_of_two_creations_one_wins() -> None:
    async def work(broker: Broker) -> None:
        specs = [TopicSpec(name="same", partitions=n) for n in (1, 2, 3)]
        outcomes = await asyncio.gather(*map(broker.controller.create_topic, specs), return_exceptions=True)
        codes = [outcome.code for outcome in outcomes if isinstance(outcome, CodedError)]
        assert codes == [ErrorCode.topic_already_exists] * 2
        (topic,) = broker.image.topics()
        assert broker.logs.topics == {"same": topic}

    with_broker(work)


def test_growth_and_deletion_of_one_topic_take_turns() -> None:
    async def work(broker: Broker) -> None:
        controller = broker.controller
        await controller.create_topic(TopicSpec(name="t"))
        outcomes = await asyncio.gather(
            controller.create_partitions("t", 5),
            controller.alter_topic_configs("t", [AlterConfigOp(AlterConfigOpType.SET, "retention.ms", "1")]),
            controller.create_partitions("t", 7),
            controller.delete_topic("t"),
            controller.create_partitions("t", 9),
            return_exceptions=True,
        )
        *done, last = outcomes
        assert [len(t.partitions) for t in done if isinstance(t, Topic)] == [5, 5, 7, 7]
        assert isinstance(last, CodedError)
        assert broker.logs.topics == {}

    with_broker(work)


def test_a_topic_created_again_has_another_id() -> None:
    async def work(broker: Broker) -> None:
        first = await broker.controller.create_topic(TopicSpec(name="t"))
        await broker.controller.delete_topic("t", first.id)
        second = await broker.controller.create_topic(TopicSpec(name="t"))
        assert first.id != second.id
        assert broker.image.topic_by_id(first.id) is None
        with pytest.raises(CodedError) as caught:
            await broker.controller.delete_topic("t", first.id)
        assert caught.value.code is ErrorCode.unknown_topic_id
        assert broker.image.topic("t") is second

    with_broker(work)


def test_a_change_that_the_disk_refuses_is_taken_back() -> None:
    async def work(broker: Broker) -> None:
        controller = broker.controller
        before = await controller.create_topic(TopicSpec(name="t"))
        broker.logs.failure = StorageError("/data/t-1", 28, "No space left on device")
        for change in (
            controller.create_partitions("t", 2),
            controller.alter_topic_configs("t", [AlterConfigOp(AlterConfigOpType.SET, "retention.ms", "1")]),
            controller.create_topic(TopicSpec(name="u")),
        ):
            with pytest.raises(CodedError) as caught:
                await change
            assert caught.value.code is ErrorCode.kafka_storage_error
            assert "No space left" in caught.value.message
        broker.logs.failure = None
        (topic,) = broker.image.topics()
        assert (topic.partitions, topic.configs) == (before.partitions, {})
        assert [key for key, _ in await broker.store.list("/topics/")] == ["/topics/t"]
        assert len((await controller.create_partitions("t", 2)).partitions) == 2

    with_broker(work)


def test_a_topic_whose_logs_cannot_be_deleted_is_gone_all_the_same() -> None:
    async def work(broker: Broker) -> None:
        await broker.controller.create_topic(TopicSpec(name="t"))
        broker.logs.failure = StorageError("/data/t-0", 5, "Input/output error")
        await broker.controller.delete_topic("t")
        assert len(broker.image) == 0

    with_broker(work)


def test_a_change_outlives_the_one_who_asked_for_it() -> None:
    async def work(broker: Broker) -> None:
        asking = asyncio.create_task(broker.controller.create_topic(TopicSpec(name="t")))
        await asyncio.sleep(0)
        asking.cancel()
        await broker.controller.close()
        assert broker.image.topic("t") is not None
        assert asking.cancelled()

    with_broker(work)


def test_a_store_that_fails_is_a_storage_error() -> None:
    async def work(broker: Broker) -> None:
        async def fail(operations: object) -> None:
            raise StoreError("disk gone")

        broker.store.commit = fail  # type: ignore[method-assign]
        for change in (
            broker.controller.create_topic(TopicSpec(name="t")),
            broker.controller.allocate_producer_id(),
            broker.controller.alter_broker_configs("", [AlterConfigOp(AlterConfigOpType.SET, "log.retention.ms", "1")]),
        ):
            with pytest.raises(CodedError) as caught:
                await change
            assert caught.value.code is ErrorCode.kafka_storage_error
        assert len(broker.image) == 0
        assert broker.config["log.retention.ms"] == 604_800_000

    with_broker(work)


def test_partitions_are_spread_over_all_brokers() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.controller.create_topic(TopicSpec(name="t", partitions=6, replication_factor=2))
        grown = await broker.controller.create_partitions("t", 12)
        assert grown.partitions[:6] == topic.partitions
        leaders = [state.leader for state in grown.partitions]
        assert sorted(leaders) == sorted([1, 2, 3] * 4)
        assert all(len(set(state.replicas)) == 2 and state.isr == state.replicas for state in grown.partitions)

    with_broker(work, brokers=3)


def test_producer_ids_never_repeat(tmp_path: Path) -> None:
    seen: list[int] = []

    async def take(broker: Broker) -> None:
        ids = await asyncio.gather(*(broker.controller.allocate_producer_id() for _ in range(BLOCK + 1)))
        seen.extend(ids)

    for _ in range(3):
        with_broker(take, tmp_path / "metadata.db")
    assert len(set(seen)) == len(seen) == 3 * (BLOCK + 1)
    assert min(seen) == 0


def test_the_cluster_keeps_its_id(tmp_path: Path) -> None:
    found: list[str] = []

    async def look(broker: Broker) -> None:
        found.append(await cluster_id(broker.store, Random(len(found))))
        found.append(await cluster_id(broker.store, Random(len(found))))

    for _ in range(2):
        with_broker(look, tmp_path / "metadata.db")
    assert len(set(found)) == 1
    assert len(found[0]) == 22


def test_a_record_that_cannot_be_read_is_named() -> None:
    async def work(broker: Broker) -> None:
        await broker.store.commit([Create("/topics/bad", b"{}")])
        with pytest.raises(StoreError, match="/topics/bad"):
            await Broker(broker.store).controller.load()

    with_broker(work)


def test_settings_reach_the_logs_and_the_intake() -> None:
    async def work(broker: Broker) -> None:
        plain = await broker.controller.create_topic(TopicSpec(name="a"))
        other = await broker.controller.create_topic(TopicSpec(name="b"))
        special = await broker.controller.create_topic(
            TopicSpec(
                name="c",
                configs={
                    "cleanup.policy": "compact",
                    "segment.bytes": "4096",
                    "compression.type": "gzip",
                    "message.timestamp.type": "LogAppendTime",
                    "max.message.bytes": "77",
                    "min.insync.replicas": "2",
                },
            )
        )
        config = broker.config
        assert log_settings(plain, config) is log_settings(other, config)
        assert intake_settings(plain, config) is intake_settings(other, config)
        assert (log_settings(plain, config).flush_messages, log_settings(plain, config).segment_bytes) == (1, 1 << 30)
        logs, rules = log_settings(special, config), intake_settings(special, config)
        assert (logs.cleanup_policy, logs.segment_bytes, logs.max_message_bytes) == (frozenset({"compact"}), 4096, 77)
        assert (rules.requires_keys, rules.append_time, rules.codec, rules.codec_level) == (True, True, GZIP, None)
        assert (rules.max_message_bytes, rules.min_insync_replicas) == (77, 2)
        assert intake_settings(plain, config).codec is None
        before = log_settings(plain, config)
        await broker.controller.alter_broker_configs(
            "", [AlterConfigOp(AlterConfigOpType.SET, "log.segment.bytes", "8192")]
        )
        assert log_settings(plain, config).segment_bytes == 8192
        assert before.segment_bytes == 1 << 30

    with_broker(work)


@pytest.mark.parametrize(
    ("configs", "codec", "level"),
    [
        ({"compression.type": "uncompressed"}, NONE, None),
        ({"compression.type": "zstd"}, ZSTD, 3),
        ({"compression.type": "zstd", "compression.zstd.level": "-1"}, ZSTD, -1),
        ({"compression.type": "gzip", "compression.gzip.level": "9"}, GZIP, 9),
        ({"compression.type": "producer", "compression.gzip.level": "9"}, None, None),
    ],
)
def test_codecs_and_their_levels(configs: dict[str, str], codec: int | None, level: int | None) -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.controller.create_topic(TopicSpec(name="t", configs=configs))
        rules = intake_settings(topic, broker.config)
        assert (rules.codec, rules.codec_level) == (codec, level)

    with_broker(work)


def test_a_change_of_a_very_large_topic_is_stored_in_portions() -> None:
    async def work(broker: Broker) -> None:
        await broker.controller.create_topic(TopicSpec(name="t", partitions=20_500))
        sizes: list[int] = []
        commit = broker.store.commit

        async def counted(operations: Sequence[StoreOperation]) -> None:
            sizes.append(len(operations))
            await commit(operations)

        broker.store.commit = counted  # type: ignore[method-assign]
        await broker.controller.change_partitions(
            "t", lambda topic: {i: replace(s, partition_epoch=1) for i, s in enumerate(topic.partitions)}
        )
        assert sizes == [8, 1 + 8, 1 + 5]
        topic = broker.image.topic("t")
        assert topic is not None
        assert {state.partition_epoch for state in topic.partitions} == {1}

    with_broker(work)


def test_a_topic_grows_by_more_than_a_commit_takes() -> None:
    async def work(broker: Broker) -> None:
        await broker.controller.create_topic(TopicSpec(name="t", partitions=1))
        grown = await broker.controller.create_partitions("t", 30_000)
        assert len(grown.partitions) == 30_000
        assert len(broker.logs.topics["t"].partitions) == 30_000

    with_broker(work)


def test_entries_are_kept_and_those_without_values_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    names = ["alice", ".", "..", "a/b", "ü", "=", "long" * 50]

    async def make(broker: Broker) -> None:
        heard: list[tuple[EntryKind, str, EntryValues]] = []
        broker.image.on_entry(lambda kind, name, values: heard.append((kind, name, values)))
        for name in names:
            await broker.controller.change_entries(EntryKind.USER, {name: lambda _: {"m": "1"}})
        await broker.controller.change_entries(EntryKind.USER, {"alice": lambda now: {**now, "n": "2"}})
        await broker.controller.change_entries(EntryKind.USER, {"a/b": lambda _: {}, "nobody": lambda now: now})
        assert heard[-2:] == [(EntryKind.USER, "alice", {"m": "1", "n": "2"}), (EntryKind.USER, "a/b", {})]
        assert broker.image.entries_version[EntryKind.USER] == len(heard) == len(names) + 2

    async def look(broker: Broker) -> None:
        left = {name: {"m": "1"} for name in names if name != "a/b"} | {"alice": {"m": "1", "n": "2"}}
        assert broker.image.entries[EntryKind.USER] == left
        assert broker.image.entries[EntryKind.ACL] == {}
        await broker.controller.change_entries(EntryKind.USER, {"a/b": lambda now: {"again": str(len(now))}})
        assert broker.image.entries[EntryKind.USER]["a/b"] == {"again": "0"}

    with_broker(make, path)
    with_broker(look, path)


def test_no_entry_changes_where_one_decision_is_refused_or_only_tried() -> None:
    def refuse(now: EntryValues) -> EntryValues:
        raise CodedError(ErrorCode.invalid_request, f"not {now}")

    async def work(broker: Broker) -> None:
        change = broker.controller.change_entries
        with pytest.raises(CodedError):
            await change(EntryKind.ACL, {"one": lambda _: {"a": ""}, "two": refuse})
        assert await change(EntryKind.ACL, {"one": lambda _: {"a": ""}}, validate_only=True) == {"one": {"a": ""}}
        with pytest.raises(CodedError, match="too much") as refused:
            await change(EntryKind.ACL, {"one": lambda _: {"a": "x" * 2_000_000}})
        assert refused.value.code is ErrorCode.invalid_request
        assert broker.image.entries[EntryKind.ACL] == {}

    with_broker(work)


def test_thousands_of_entries_change_together() -> None:
    async def work(broker: Broker) -> None:
        names = [f"user-{number}" for number in range(1_000)]
        await broker.controller.change_entries(
            EntryKind.QUOTA, {name: lambda _: {"rate": "9" * 2_000} for name in names}
        )
        assert len(broker.image.entries[EntryKind.QUOTA]) == len(names)
        await broker.controller.change_entries(EntryKind.QUOTA, dict.fromkeys(names, lambda _: {}))
        assert not broker.image.entries[EntryKind.QUOTA]

    with_broker(work)
