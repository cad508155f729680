"""Publishing: chooses partitions, writes records together, and answers for each."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from headrace.client.aio import once
from headrace.client.aio.client import Client
from headrace.client.aio.producer import Written
from headrace.client.core.metadata import TopicImage
from headrace.client.core.produce import ALL_IN_SYNC
from headrace.protocol.errors import CodedError
from headrace.protocol.partitioner import partition_for
from headrace.protocol.records import Record
from headrace.web.problem import Problem

from .names import require_messages
from .translate import translate

ACKS: Final = {"all": ALL_IN_SYNC, "-1": ALL_IN_SYNC, "1": 1, "0": 0}
_STICKY: Final = 32
"""Records without a key that go to one partition before it is another's turn: they share batches."""


class PublishOutcome(NamedTuple):
    """Where a record went, or why it did not."""

    partition: int
    offset: int = -1
    timestamp: int = -1
    problem: Problem | None = None


class MessageToPublish(NamedTuple):
    """A record to write, and the partition it asks for."""

    record: Record
    partition: int | None = None


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Publisher:
    """Publishes for all callers."""

    def __init__(self) -> None:
        self._count = 0

    async def one(
        self, client: Client, topic: str, record: MessageToPublish, acks: int, key: str | None
    ) -> PublishOutcome:
        """One record; raises why it was not written."""
        require_messages(topic)
        view = client.cluster.known(topic) or await client.cluster.topic(topic)
        partition = self._partition(record, view, key)
        if key is not None:
            (outcome,) = await self._once(client, topic, {partition: [record.record]}, key)
            if outcome.problem is not None:
                raise outcome.problem
            return outcome
        written = await client.producer.send(topic, partition, (record.record,), acks)
        return _outcome(partition, written, 0, record.record)

    async def many(
        self, client: Client, topic: str, records: Sequence[MessageToPublish], acks: int, key: str | None
    ) -> list[PublishOutcome]:
        """Records in their order; each partition's are written all or not at all."""
        require_messages(topic)
        view = await client.cluster.topic(topic)
        places = [self._partition(each, view, key) for each in records]
        by_partition: dict[int, list[Record]] = {}
        for each, partition in zip(records, places, strict=True):
            by_partition.setdefault(partition, []).append(each.record)
        if key is not None:
            outcomes = await self._once(client, topic, by_partition, key)
        else:
            outcomes = await self._plainly(client, topic, by_partition, acks)
        if len(by_partition) == 1:
            return outcomes
        by_place = {partition: iter(some) for partition, some in _by_partition(outcomes).items()}
        return [next(by_place[partition]) for partition in places]

    def _partition(self, record: MessageToPublish, topic: TopicImage, key: str | None) -> int:
        """Where a record goes: where it asks to, where its key leads, or anywhere there is a leader."""
        asked, record_key = record.partition, record.record.key
        if asked is not None:
            if asked >= topic.partitions:
                raise Problem(
                    404,
                    f"topic '{topic.name}' has partitions 0 to {topic.partitions - 1}, not {asked}",
                    code="unknown-partition",
                )
            return asked
        if record_key is not None:
            return partition_for(record_key, topic.partitions)
        if key is not None:
            return once.partition_of(key, topic.partitions)
        self._count += 1
        if topic.partitions == 1:
            return 0
        led = topic.led or range(topic.partitions)
        return led[self._count // _STICKY % len(led)]

    async def _plainly(
        self, client: Client, topic: str, by_partition: dict[int, list[Record]], acks: int
    ) -> list[PublishOutcome]:
        sends = [client.producer.send(topic, partition, records, acks) for partition, records in by_partition.items()]
        results = await asyncio.gather(*sends, return_exceptions=True)
        return _outcomes(by_partition, results)

    async def _once(
        self, client: Client, topic: str, by_partition: dict[int, list[Record]], key: str
    ) -> list[PublishOutcome]:
        cluster, principal = client.cluster, client.principal
        sends = [
            client.producer.send_once(
                topic, partition, records, once.identity(cluster.cluster_id, principal, topic, key, records)
            )
            for partition, records in by_partition.items()
        ]
        results = await asyncio.gather(*sends, return_exceptions=True)
        return _outcomes(by_partition, [_reused(each) for each in results])


def _by_partition(outcomes: Sequence[PublishOutcome]) -> dict[int, list[PublishOutcome]]:
    """Outcomes by partition, each list in order."""
    found: dict[int, list[PublishOutcome]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.partition, []).append(outcome)
    return found


def _reused(result: Written | BaseException) -> Written | BaseException:
    if isinstance(result, CodedError) and result.code in once.USED_FOR_ANOTHER:
        detail = "this Idempotency-Key was used for another body; take a new key for a new message"
        return Problem(422, detail, code="idempotency-key-reused")
    return result


def _outcomes(
    by_partition: dict[int, list[Record]], results: Sequence[Written | BaseException]
) -> list[PublishOutcome]:
    found = []
    for (partition, records), result in zip(by_partition.items(), results, strict=True):
        if isinstance(result, Written):
            found += [_outcome(partition, result, i, record) for i, record in enumerate(records)]
        else:
            problem = _problem(result)
            found += [PublishOutcome(partition, problem=problem) for _ in records]
    return found


def _outcome(partition: int, written: Written, index: int, record: Record) -> PublishOutcome:
    timestamp = written.append_time if written.append_time >= 0 else record.timestamp
    offset = written.base_offset + index if written.base_offset >= 0 else -1
    return PublishOutcome(partition, offset, timestamp)


def _problem(error: BaseException) -> Problem:
    if isinstance(error, Problem):
        return error
    problem = translate(error) if isinstance(error, Exception) else None
    if problem is None:
        raise error
    return problem
