"""What replication costs: confluent-kafka produces with acks=all to three replicas, beside the same to one.

Both on a fresh cluster of three brokers, with the same producer and the same partitions, so that the difference is what
followers fetch, write and acknowledge. That they keep up is looked at while the producer still runs: a round in which a
follower leaves an ISR does not count.
"""

import time
from collections.abc import Callable
from functools import partial
from threading import Event, Thread
from typing import Any, Final

from confluent_kafka import KafkaError, Producer

from .cluster import Asker, BrokerCluster, a_cluster, create_until_done
from .model import CPU, Aim, BenchError, Figure, Of, Sample, Work
from .produce import RELAXED, TOPIC
from .setting import Setting

_PARTITIONS: Final = 6
_FLUSH_SECONDS: Final = 60.0
_QUEUE_FULL_SECONDS: Final = 0.01
_POLL_EVERY: Final = 1000
_LOOK_SECONDS: Final = 0.5
_WARM_UP_SECONDS: Final = 0.5


class _Deliveries:
    """What became of records."""

    def __init__(self) -> None:
        self.failures: list[KafkaError] = []

    def __call__(self, error: KafkaError | None, _: object) -> None:
        if error is not None:
            self.failures.append(error)


class _Watch:
    """Looks at the ISRs again and again: the smallest one that was seen."""

    def __init__(self, cluster: BrokerCluster) -> None:
        self.smallest = _isr(cluster)
        self._cluster = cluster
        self._is_over = Event()
        self._thread = Thread(target=self._look)

    def __enter__(self) -> "_Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_over.wait(_LOOK_SECONDS):
            self.smallest = min(self.smallest, _isr(self._cluster))


def _isr(cluster: BrokerCluster) -> int:
    """The smallest ISR of the topic."""
    with Asker(next(iter(cluster.servers.values()))) as asker:
        topics = [topic for topic in asker.metadata().topics if topic.name == TOPIC]
    return min(len(partition.isr_nodes) for topic in topics for partition in topic.partitions)


def lag_mb(cluster: BrokerCluster) -> float:
    """How far the last replica is behind its leader. Leaders are asked last: what comes between counts as well."""
    askers = [Asker(server) for server in cluster.servers.values()]
    try:
        leaders = {partition.partition_index: partition.leader_id for partition in _topic(askers[0]).partitions}
        held = [asker.sizes(TOPIC) for asker in askers]
        led = dict(zip(cluster.servers, (asker.sizes(TOPIC) for asker in askers), strict=True))
        return max(led[leader][index] - sizes[index] for sizes in held for index, leader in leaders.items()) / 1e6
    finally:
        for asker in askers:
            asker.close()


def _topic(asker: Asker) -> Any:
    return next(topic for topic in asker.metadata().topics if topic.name == TOPIC)


def produce(setting: Setting, *, value_size: int, replicas: int, durable: bool) -> Sample:
    """Records from the first `produce` to the last delivery report, and what that took the three brokers."""
    value = bytes(n * 131 % 251 for n in range(value_size))
    delivered = _Deliveries()
    with a_cluster(setting) as cluster:
        settings = {"min.insync.replicas": str(min(replicas, 2)), **({} if durable else RELAXED)}
        create_until_done(cluster, [TOPIC], partitions=_PARTITIONS, replicas=replicas, settings=settings)
        producer = Producer(_settings(cluster))
        _produce_until(producer, value, time.perf_counter() + _WARM_UP_SECONDS, delivered)
        producer.flush(_FLUSH_SECONDS)
        with _Watch(cluster) as watch:
            cpu, start = cluster.cpu_seconds(), time.perf_counter()
            count = _produce_until(producer, value, start + setting.seconds, delivered)
            lag = lag_mb(cluster) if replicas > 1 else 0.0
            left = producer.flush(_FLUSH_SECONDS)
            seconds, used = time.perf_counter() - start, cluster.cpu_seconds() - cpu
    if delivered.failures or left:
        raise BenchError(f"{left} records were never answered, {len(delivered.failures)} failed")
    if watch.smallest < replicas:
        raise BenchError(f"followers did not keep up: an ISR of {watch.smallest}")
    size = count * value_size
    sample = {"records": count / seconds, "rate": size / seconds / 1e6, CPU: used / (size / 1e9)}
    return sample | ({"isr": float(watch.smallest), "lag": lag} if replicas > 1 else {})


def _settings(cluster: BrokerCluster) -> dict[str, Any]:
    return {
        "bootstrap.servers": cluster.bootstrap,
        "acks": "all",
        "linger.ms": 5,
        "queue.buffering.max.messages": 200_000,
        "log_level": 0,
    }


def _produce_until(
    producer: Producer, value: bytes, deadline: float, delivered: Callable[[KafkaError | None, object], None]
) -> int:
    count = 0
    send, poll = producer.produce, producer.poll
    while time.perf_counter() < deadline:
        for _ in range(_POLL_EVERY):
            try:
                send(TOPIC, value, on_delivery=delivered)
                count += 1
            except BufferError:
                poll(_QUEUE_FULL_SECONDS)
        poll(0)
    return count


def _work(value_size: int, words: str, *, durable: bool) -> Work:
    synced = "fsync" if durable else "no fsync"
    measure = partial(produce, value_size=value_size, durable=durable)
    return Work(
        name=f"replicated-{words}{'-fsync' if durable else ''}",
        title=f"three replicas, acks=all, {value_size:,} B records, {synced}",
        against="one replica, acks=all, on the same three brokers",
        figures=(
            Figure(key="rate", label="", unit="MB/s"),
            Figure(key="records", label="", unit="records/s"),
            Figure(key="isr", label="smallest ISR", unit="", aim=Aim(of=Of.VALUE, bound=3, at_least=True)),
            Figure(key="lag", label="furthest behind at full ingest", unit="MB"),
        ),
        broker=partial(measure, replicas=3),
        ceiling=partial(measure, replicas=1),
        cpu_unit="s/GB",
        rounds=2,
    )


def works() -> list[Work]:
    return [
        _work(size, words, durable=durable)
        for size, words in ((100, "100b"), (1000, "1k"))
        for durable in (False, True)
    ]
