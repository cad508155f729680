"""`python -m bench.rule PARTITIONS`: a controller on a store in memory; what it took, as JSON."""

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from random import Random
from typing import Final
from uuid import UUID

from headrace.cluster import election
from headrace.cluster.feed import Feed
from headrace.cluster.fenced import FencedStore
from headrace.cluster.image import BrokerNode, ClusterImage, Topic
from headrace.cluster.leaders import rules_of
from headrace.cluster.metadata_writer import MetadataWriter
from headrace.cluster.placement import place
from headrace.cluster.registration import CONTROLLER_EPOCH
from headrace.cluster.store import Create, Entries, Operation, Put, Versioned
from headrace.cluster.subscriber import Subscriber
from headrace.cluster.topics import TOPICS, creation, led_by_first
from headrace.config import BrokerConfig
from headrace.protocol.peer import PeerMessage, decode_message, encode_message

from .machine import resident_mb
from .model import Sample

_BROKERS: Final = 10
_VICTIM: Final = 3
_OF_A_TOPIC: Final = 1_000
_WATCHER: Final = 1
_NODE: Final = BrokerNode(id=0, host="h", port=9092)


class Records:
    """A store that holds topics as they would be made, and counts what is written to it."""

    def __init__(self, partitions: int) -> None:
        self._entries = list(_records(partitions))
        self.commits = 0
        self.bytes = 0

    async def get(self, key: str) -> Versioned | None:  # noqa: ARG002 - there is nothing else
        return None

    async def list(self, prefix: str) -> Entries:
        return self._entries if prefix == TOPICS else []

    async def commit(self, operations: Sequence[Operation]) -> None:
        await asyncio.sleep(0)
        self.commits += 1
        self.bytes += sum(len(one.value) for one in operations if isinstance(one, Create | Put))

    async def close(self) -> None:
        """Nothing to do."""


def _records(partitions: int) -> Iterator[tuple[str, Versioned]]:
    racks: dict[int, str | None] = dict.fromkeys(range(_BROKERS))
    for number in range(-(-partitions // _OF_A_TOPIC)):
        count = min(_OF_A_TOPIC, partitions - number * _OF_A_TOPIC)
        assignments = place(racks, partitions=count, replication_factor=3, start=number % _BROKERS)
        topic = Topic(
            name=f"topic-{number:05}", id=UUID(int=number + 1), partitions=tuple(led_by_first(assignments, racks))
        )
        for operation in creation(topic)[0]:
            assert isinstance(operation, Create)
            yield operation.key, Versioned(operation.value, 0)


class Ignoring:
    """A broker that holds none of the partitions it hears of."""

    def apply_topic(self, topic: Topic, changed: Iterable[int] | None = None) -> None: ...
    def remove_topic(self, topic: Topic) -> None: ...
    def set_topic_aside(self, topic: Topic) -> None: ...
    def brokers_changed(self, gone: AbstractSet[int]) -> None: ...
    def configs_changed(self, kind: str, name: str) -> None: ...


class Reign:
    """A controller, its store and its feed."""

    def __init__(self, partitions: int) -> None:
        self.records = Records(partitions)
        self.config = BrokerConfig.parse({"min.insync.replicas": "2"})
        self.image = ClusterImage(cluster_id="c", controller_id=0)
        self.feed = Feed(self.image, 1, lambda topic: rules_of(topic, self.config).min_insync_replicas)
        self.controller = MetadataWriter(
            store=FencedStore(self.records, CONTROLLER_EPOCH, 0),
            image=self.image,
            config=self.config,
            node=_NODE,
            rng=Random(1),
            listeners=self.feed,
        )

    async def begin(self) -> None:
        await self.controller.load()
        self.feed.begin()
        self.image.brokers = {number: BrokerNode(id=number, host="h", port=9092) for number in range(_BROKERS)}

    async def lose(self, victim: int) -> None:
        alive = frozenset(range(_BROKERS)) - {victim}
        await self.controller.leaders.change_all(
            lambda state, rules, offline: election.after_change_of_brokers(state, rules, alive - offline)
        )

    async def told(self, subscriber: Subscriber) -> None:
        """A broker that hears of everything there is to hear, as it comes over a link."""
        while subscriber.position.version < self.feed.version:
            place = subscriber.position
            answer = PeerMessage(await self.feed.poll(_WATCHER, place, 0.0))
            received = decode_message(memoryview(b"".join(encode_message(answer))))
            await subscriber.take(received.values, place)

    def check(self, victim: int) -> None:
        for topic in self.image.topics():
            for state in topic.partitions:
                assert state.leader not in (victim, -1)
                assert victim not in state.isr


async def longest_stall(until: asyncio.Event) -> float:
    longest, last = 0.0, time.perf_counter()
    while not until.is_set():
        await asyncio.sleep(0)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return longest


async def rule(partitions: int) -> Sample:
    reign = Reign(partitions)
    sample = await _loaded(reign, partitions)
    subscriber = Subscriber(ClusterImage(cluster_id="c", controller_id=0), Ignoring())
    start = time.process_time()
    await reign.told(subscriber)
    sample["snapshot"] = time.process_time() - start
    sample |= await _decided(reign)
    start = time.process_time()
    await reign.told(subscriber)
    return sample | {"tell": time.process_time() - start}


async def _loaded(reign: Reign, partitions: int) -> Sample:
    gc.collect()
    before, start = resident_mb(os.getpid()), time.process_time()
    await reign.begin()
    used = time.process_time() - start
    rss = resident_mb(os.getpid())
    return {"load": used, "memory": (rss - before) * 1e6 / partitions, "rss": rss}


async def _decided(reign: Reign) -> Sample:
    done = asyncio.Event()
    stall = asyncio.create_task(longest_stall(done))
    await asyncio.sleep(0)
    start = time.process_time()
    await reign.lose(_VICTIM)
    used = time.process_time() - start
    done.set()
    longest = await stall
    reign.check(_VICTIM)
    written = reign.records.bytes / 1e6
    return {"decide": used, "stall": longest, "commits": float(reign.records.commits), "written": written}


def main() -> None:
    print(json.dumps(asyncio.run(rule(int(sys.argv[1])))))


if __name__ == "__main__":
    main()
