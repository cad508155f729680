"""Everything that `headrace doctor` judges a cluster by, read within a few seconds, whatever of it is down."""

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from headrace.client.columnar.channel import Channel
from headrace.client.core.topics import BROKER, TOPIC
from headrace.client.core.transactions import list_transactions_request
from headrace.client.waiting import in_background
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.protocol.topic_partition import TopicPartition, indexes_by_topic

from .observer import Observer
from .overview import BrokerView, PartitionView
from .reading import BATCH, Settings, read_ends, read_settings
from .samples import ClusterSample
from .transactions import ActiveProducer, active_producers

TOPIC_SETTINGS: Final = ["min.insync.replicas", "unclean.leader.election.enable"]
BROKER_SETTINGS: Final = [
    "zookeeper.connect",
    "default.replication.factor",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "transaction.state.log.min.isr",
    "transaction.max.timeout.ms",
]
_OPEN_STATES: Final = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
_MOST_DESCRIBED: Final = 100
"""Transactions, or partitions with open ones, that are looked into at each broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongTransaction:
    """A transaction that its coordinator has had open for long."""

    id: str
    state: str
    producer_id: int
    age_ms: int
    timeout_ms: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenProducer:
    """A producer with an open transaction in a partition, by the partition's leader."""

    partition: TopicPartition
    producer: ActiveProducer
    age_ms: int
    """Since its last record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What was read. Parts that were not asked for, or of which nothing came, are empty."""

    first: ClusterSample
    last: ClusterSample
    """The second look, or the same as the first."""
    topics: Mapping[str, Settings] = field(default_factory=dict)
    brokers: Mapping[int, Settings] = field(default_factory=dict)
    transactions: tuple[LongTransaction, ...] = ()
    producers: tuple[OpenProducer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectionScope:
    """What to read beside the first look."""

    settings: bool = True
    groups: bool = True
    """A second look, so that it is seen how lags change."""
    transactions: bool = True
    older_than_ms: int = 900_000
    """Of transactions."""


def inspect(observer: Observer, scope: InspectionScope, pause: float = 1.0) -> Inspection:
    """Read it. `ClientError` where the cluster lets nobody in by these credentials."""
    first = observer.observe(whole=True)
    living = _answering(first)
    if not living:
        return Inspection(first=first, last=first)
    settings = in_background(partial(_read_all_settings, observer, first, living)) if scope.settings else None
    transactions = None
    if scope.transactions:
        transactions = in_background(partial(_read_transactions, observer, first, living, scope.older_than_ms))
    last = first
    if scope.groups and any(reading.groups for reading in first.brokers.values()):
        time.sleep(pause)
        again = observer.observe(whole=True, only={broker.id for broker in living})
        last = replace(again, brokers={**first.brokers, **again.brokers})
    patience = 2 * observer.seconds + 1
    topics, brokers = _result(settings, ({}, {}), patience)
    opened, producers = _result(transactions, ((), ()), patience)
    return Inspection(first=first, last=last, topics=topics, brokers=brokers, transactions=opened, producers=producers)


def _answering(sample: ClusterSample) -> list[BrokerView]:
    if sample.view is None:
        return []
    return [b for b in sample.view.brokers if b.id in sample.brokers and not sample.brokers[b.id].reason]


def _result(future: "Future[Any] | None", otherwise: Any, seconds: float) -> Any:
    if future is None:
        return otherwise
    try:
        return future.result(seconds)
    except TimeoutError:
        return otherwise


def _read_all_settings(
    observer: Observer, sample: ClusterSample, living: list[BrokerView]
) -> tuple[dict[str, Settings], dict[int, Settings]]:
    assert sample.view is not None
    names = sorted({p.topic for p in sample.view.partitions})
    topics: dict[str, Settings] = {}
    for broker in living:
        found = observer.ask([broker], lambda _, channel: read_settings(channel, TOPIC, names, TOPIC_SETTINGS))
        if found:
            topics = found[broker.id]
            break
    own = observer.ask(living, lambda b, channel: read_settings(channel, BROKER, [str(b.id)], BROKER_SETTINGS))
    return topics, {broker: values[str(broker)] for broker, values in own.items() if str(broker) in values}


def _read_transactions(
    observer: Observer, sample: ClusterSample, living: list[BrokerView], older_than_ms: int
) -> tuple[tuple[LongTransaction, ...], tuple[OpenProducer, ...]]:
    assert sample.view is not None
    led: dict[int, list[PartitionView]] = {}
    for partition in sample.view.partitions:
        if partition.leader is not None:
            led.setdefault(partition.leader, []).append(partition)

    def read(broker: BrokerView, channel: Channel) -> tuple[list[LongTransaction], list[OpenProducer]]:
        now_ms = int(time.time() * 1000)
        opened = read_open_transactions(channel, older_than_ms, now_ms)
        return opened, read_open_producers(channel, led.get(broker.id, []), older_than_ms, now_ms)

    found = observer.ask(living, read).values()
    return (
        tuple(each for opened, _ in found for each in opened),
        tuple(each for _, producers in found for each in producers),
    )


def read_open_transactions(channel: Channel, older_than_ms: int, now_ms: int) -> list[LongTransaction]:
    """The transactions that this broker coordinates and that have been open for longer."""
    if ApiKey.LIST_TRANSACTIONS not in channel.served:
        return []
    answer = channel.ask(ApiKey.LIST_TRANSACTIONS, list_transactions_request(_OPEN_STATES, (), older_than_ms))
    ids = [each.transactional_id for each in answer.transaction_states][:_MOST_DESCRIBED]
    described = channel.describe_transactions(ids) if ids else []
    return [
        LongTransaction(
            id=each.transactional_id,
            state=each.state,
            producer_id=each.producer_id,
            age_ms=now_ms - each.start_ms,
            timeout_ms=each.timeout_ms,
            partitions=each.partitions,
        )
        for each in described
        if each.error_code is ErrorCode.none and each.start_ms >= 0 and now_ms - each.start_ms >= older_than_ms
    ]


def read_open_producers(
    channel: Channel, led: Iterable[PartitionView], older_than_ms: int, now_ms: int
) -> list[OpenProducer]:
    """Producers whose open transactions keep readers of committed records from the ends of partitions."""
    partitions = list(led)
    held: list[TopicPartition] = []
    for start in range(0, len(partitions), BATCH):
        some = partitions[start : start + BATCH]
        stable, ends = read_ends(channel, some, committed_only=True), read_ends(channel, some)
        held += [where for where, offset in stable.items() if offset < ends.get(where, offset)]
    if not held or ApiKey.DESCRIBE_PRODUCERS not in channel.served:
        return []
    asked = [
        {"name": topic, "partition_indexes": indexes}
        for topic, indexes in indexes_by_topic(held[:_MOST_DESCRIBED]).items()
    ]
    answer = channel.ask(ApiKey.DESCRIBE_PRODUCERS, {"topics": asked})
    return [
        OpenProducer(
            partition=TopicPartition(topic.name, p.partition_index),
            producer=producer,
            age_ms=now_ms - producer.last_timestamp,
        )
        for topic in answer.topics
        for p in topic.partitions
        if p.error_code is ErrorCode.none
        for producer in active_producers(p)
        if producer.start_offset is not None and now_ms - producer.last_timestamp >= older_than_ms
    ]
