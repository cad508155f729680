"""Transactions: what they cost a producer that commits ten times a second, and how many ids commit at once.

The first through confluent-kafka, beside the same producer without transactions, which is idempotent as well. The
second over bare connections: each of a thousand transactional ids adds a partition and commits, again and again.
"""

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from confluent_kafka import Producer

from . import commits
from .model import CPU, Aim, BenchError, Figure, Of, Sample, Work
from .produce import RELAXED, TOPIC
from .setting import Server, Setting
from .wire import Link, Links, decoded, framed, nested, run

_VALUE: Final = bytes(n * 131 % 251 for n in range(1000))
_COMMIT_SECONDS: Final = 0.1
_FLUSH_SECONDS: Final = 30.0
_CHUNK: Final = 500
_IDS: Final = 1_000
_LINKS: Final = 50
_PARTITIONS: Final = 20
_MINUTE: Final = timedelta(minutes=1)
_FIND, _INIT, _ADD, _END = (10, 4), (22, 4), (24, 3), (26, 3)
_AGAIN: Final = (15, 14, 51)
"""Not available, loading, the transaction before is being ended."""


def produce(setting: Setting, *, transactional: bool, durable: bool) -> Sample:
    """Records per second, of which those in transactions count once they are committed."""
    with setting.broker() as server:
        server.create_topic(TOPIC, {} if durable else RELAXED)
        producer = _producer(server, transactional)
        took: list[float] = []
        _round(producer, transactional, took)
        took.clear()
        cpu, start = server.cpu_seconds(), time.perf_counter()
        count = 0
        while time.perf_counter() < start + setting.seconds:
            count += _round(producer, transactional, took)
        producer.flush(_FLUSH_SECONDS)
        seconds, used = time.perf_counter() - start, server.cpu_seconds() - cpu
    sample = {"records": count / seconds, CPU: used / (count * len(_VALUE) / 1e9)}
    return sample | (_quantiles(took) if transactional else {})


def _producer(server: Server, transactional: bool) -> Producer:
    settings: dict[str, Any] = {
        "bootstrap.servers": server.bootstrap,
        "enable.idempotence": True,
        "linger.ms": 5,
        "queue.buffering.max.messages": 200_000,
        "log_level": 0,
    }
    if transactional:
        producer = Producer({**settings, "transactional.id": "bench"})
        producer.init_transactions(_FLUSH_SECONDS)
        return producer
    return Producer(settings)


def _round(producer: Producer, transactional: bool, took: list[float]) -> int:
    """As many records as a tenth of a second allows, then a commit."""
    if transactional:
        producer.begin_transaction()
    count, deadline = 0, time.perf_counter() + _COMMIT_SECONDS
    while time.perf_counter() < deadline:
        for _ in range(_CHUNK):
            try:
                producer.produce(TOPIC, _VALUE)
                count += 1
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    if transactional:
        producer.flush(_FLUSH_SECONDS)
        began = time.perf_counter()
        producer.commit_transaction(_FLUSH_SECONDS)
        took.append(time.perf_counter() - began)
    return count


def _quantiles(took: Sequence[float]) -> Sample:
    ordered = sorted(took)
    at = [ordered[min(int(len(ordered) * part), len(ordered) - 1)] * 1000 for part in (0.5, 0.99)]
    return {"p50": at[0], "p99": at[1]}


def many_ids(setting: Setting, *, durable: bool) -> Sample:
    """Transactions per second of a thousand ids, and how long each takes. Each file of the internal topic is synced."""
    with setting.broker({} if durable else commits.RELAXED) as server:
        server.create_topic(TOPIC, {}, _PARTITIONS)
        return run(_many(server, setting.seconds))


async def _many(server: Server, seconds: float) -> Sample:
    took: list[float] = []
    async with Links(server.port) as links:
        opened = [await links.open() for _ in range(_LINKS)]
        await opened[0].ask(framed(*_FIND, key_type=1, coordinator_keys=("id-0",)))
        producers = [await _init(opened[number % _LINKS], number) for number in range(_IDS)]
        cpu, start = server.cpu_seconds(), time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for number, (add, end) in enumerate(producers):
                tasks.create_task(_commit(opened[number % _LINKS], add, end, start + seconds, took))
        spent, used = time.perf_counter() - start, server.cpu_seconds() - cpu
    return {"rate": len(took) / spent, CPU: used / len(took) * 1e6, **_quantiles(took)}


async def _init(link: Link, number: int) -> tuple[bytes, bytes]:
    name = f"id-{number}"
    while True:
        reply = decoded(*_INIT, await link.ask(framed(*_INIT, transactional_id=name, transaction_timeout=_MINUTE)))
        if not reply.error_code:
            break
        if reply.error_code not in _AGAIN:
            raise BenchError(f"a producer was refused: {reply.error_code!r}")
        await asyncio.sleep(0.05)
    who = (reply.producer_id, reply.producer_epoch)
    topic = nested(*_ADD, "AddPartitionsToTxnTopic")(name=TOPIC, partitions=(number % _PARTITIONS,))
    add = framed(
        *_ADD,
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=who[0],
        v3_and_below_producer_epoch=who[1],
        v3_and_below_topics=(topic,),
    )
    end = framed(*_END, transactional_id=name, producer_id=who[0], producer_epoch=who[1], committed=True)
    return add, end


async def _commit(link: Link, add: bytes, end: bytes, deadline: float, took: list[float]) -> None:
    while (began := time.perf_counter()) < deadline:
        added = decoded(*_ADD, await link.ask(add)).results_by_topic_v3_and_below[0].results_by_partition[0]
        code = added.partition_error_code
        if code in _AGAIN:
            await asyncio.sleep(0.02)
            continue
        code = code or decoded(*_END, await link.ask(end)).error_code
        if code:
            raise BenchError(f"a transaction was refused: {code!r}")
        took.append(time.perf_counter() - began)


def _work(*, durable: bool) -> Work:
    return Work(
        name="transactions" + ("-fsync" if durable else ""),
        title=f"transactions of 100 ms, 1,000 B records, confluent-kafka, {'fsync' if durable else 'no fsync'}",
        against="the same idempotent producer without transactions",
        figures=(
            Figure(key="records", label="", unit="records/s", aim=Aim(of=Of.RATIO, bound=0.9, at_least=True)),
            Figure(key="p50", label="commit p50", unit="ms"),
            Figure(key="p99", label="commit p99", unit="ms"),
        ),
        broker=lambda setting: produce(setting, transactional=True, durable=durable),
        ceiling=lambda setting: produce(setting, transactional=False, durable=durable),
        cpu_unit="s/GB",
    )


def works() -> list[Work]:
    """Throughput and latency of one producer, and a thousand ids at once."""
    return [
        _work(durable=False),
        _work(durable=True),
        _many_work(durable=False),
        _many_work(durable=True),
    ]


def _many_work(*, durable: bool) -> Work:
    return Work(
        name="transactions-1000-ids" + ("-fsync" if durable else ""),
        title=f"1,000 transactional ids at once, one partition each, {'fsync' if durable else 'no fsync'}",
        against="",
        figures=(
            Figure(key="rate", label="", unit="transactions/s"),
            Figure(key="p50", label="p50", unit="ms"),
            Figure(key="p99", label="p99", unit="ms"),
        ),
        broker=lambda setting: many_ids(setting, durable=durable),
        cpu_unit="µs/transaction",
        rounds=1,
    )
