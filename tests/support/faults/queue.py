"""Workers of a queue: members of a share group that accept each job, and what of their history must not be."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from types import TracebackType
from typing import Any, NamedTuple, Self

from confluent_kafka import KafkaException, ShareConsumer, TopicPartition

from .load import IMPATIENT

Place = tuple[int, int]
"""Partition and offset."""


class Delivery(NamedTuple):
    """A record that a worker got."""

    at: float
    worker: int
    place: Place
    job: bytes


class Workers:
    """So many members of a share group, each with its own thread, until the end of the block.

    Each takes some jobs, works on them for a moment, accepts them, and notes what it was told.
    """

    def __init__(self, bootstrap: str, topic: str, group: str, count: int, *, seconds: float, most: int = 100) -> None:
        self.deliveries: list[Delivery] = []
        self.accepted: defaultdict[Place, int] = defaultdict(int)
        """How often workers were told that a job is done."""
        self.uncertain: set[Place] = set()
        """Jobs whose workers were told nothing, or of an error."""
        self.failures: list[BaseException] = []
        self._topic = topic
        self._seconds = seconds
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": most,
            **IMPATIENT,
        }
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(count)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)

    @property
    def settled(self) -> int:
        """Jobs that are done, or may be."""
        with self._lock:
            return len(self.accepted.keys() | self.uncertain)

    def problems(self, jobs: Iterable[bytes], kills: Iterable[float], lock_seconds: float) -> list[str]:
        """What must not be: jobs lost, done twice, or given to another before their lock had expired.

        Who leads anew knows of no locks: what was delivered before a kill may come again after it.
        """
        found = [f"failed: {failure!r}" for failure in self.failures]
        found += [f"{place} was accepted {count} times" for place, count in self.accepted.items() if count > 1]
        by_place: defaultdict[Place, list[Delivery]] = defaultdict(list)
        for delivery in self.deliveries:
            by_place[delivery.place].append(delivery)
        for place, deliveries in by_place.items():
            if place not in self.accepted and place not in self.uncertain:
                found.append(f"{place} was delivered, and nobody was told that it is done")
            for first, second in pairwise(deliveries):
                if second.at - first.at < lock_seconds and not any(first.at < at <= second.at for at in kills):
                    found.append(
                        f"{place} went to {first.worker} and after {second.at - first.at} s to {second.worker}"
                    )
        missing = set(jobs) - {delivery.job for delivery in self.deliveries}
        return [*found, *(f"{job!r} was never delivered" for job in missing)]

    def _run(self, number: int) -> None:
        try:
            consumer = ShareConsumer(self._settings)
            consumer.subscribe([self._topic])
            while not self._is_over.is_set():
                self._work(consumer, number)
            consumer.close()
        except BaseException as failure:
            self.failures.append(failure)

    def _work(self, consumer: ShareConsumer, number: int) -> None:
        taken: defaultdict[int, list[Place]] = defaultdict(list)
        for message in consumer.poll(1.0):
            if message.error() is None:
                place = message.partition(), message.offset()
                taken[place[0]].append(place)
                with self._lock:
                    self.deliveries.append(Delivery(time.monotonic(), number, place, message.value() or b""))
                consumer.acknowledge(message)
        if taken:
            time.sleep(self._seconds)
            told = _committed(consumer)
            with self._lock:
                for partition, places in taken.items():
                    if told.get(partition, False):
                        for place in places:
                            self.accepted[place] += 1
                    else:
                        self.uncertain.update(places)


def _committed(consumer: ShareConsumer) -> dict[int, bool]:
    """Of each partition that the coordinator spoke of, whether what was acknowledged is committed."""
    try:
        told: dict[TopicPartition, Any] = consumer.commit_sync(30.0)
    except KafkaException:
        return {}
    return {where.partition: error is None for where, error in told.items()}
