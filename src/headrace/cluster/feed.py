"""How brokers learn what has changed: the controller numbers the changes, brokers ask for what comes after theirs.

A broker's place is (controller epoch, version). One who comes from another epoch, or from further back than the
changes that are kept, gets a snapshot: everything, in pages. Values are what JSON can hold, so that they travel as
they are.

Changes, each a list that begins with its kind:

    topic       name, id, configs, [state, …]          a new topic, or one whose settings changed
    partitions  id, {index: state}                     some partitions of a topic
    deleted     id, name
    brokers     [[id, host, port, rack, epoch], …]     all that live
    configs     "broker" | "group", name, {…}
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from headrace.protocol.errors import CodedError, ErrorCode

from .image import BrokerNode, ClusterImage, PartitionState, Topic
from .topics import encode_state

Change = list[Any]
MOST_KEPT: Final = 50_000
"""Changes that a slow broker may be behind before it gets everything anew."""
MOST_SENT: Final = 2_000
"""Changes, or topics of a snapshot, in one answer."""
MOST_STATES: Final = 20_000
"""Partitions of topics in one page of a snapshot."""


class Feed:
    """The changes of one controller's reign."""

    def __init__(self, image: ClusterImage, epoch: int) -> None:
        self._image = image
        self.epoch = epoch
        self.version = 0
        self._kept: deque[Change] = deque(maxlen=MOST_KEPT)
        self._told: dict[str, Topic] = {}
        self._news = asyncio.Event()
        self._snapshots: dict[int, tuple[int, Iterator[list[Change]]]] = {}
        self._applied: dict[int, int] = {}
        self._progress = asyncio.Event()
        self._is_over = False

    def begin(self) -> None:
        """What the image holds now is what every snapshot begins with."""
        self._told = {topic.name: topic for topic in self._image.topics()}

    # What the controller tells

    def apply_topic(self, topic: Topic, changed: Iterable[int] | None = None) -> None:  # noqa: ARG002 - found here
        """A topic is new, or has changed: of a large one only what differs is told."""
        before = self._told.get(topic.name)
        self._told[topic.name] = topic
        if before is None or before.id != topic.id or before.configs != topic.configs:
            self._publish(_whole(topic))
            return
        pairs = enumerate(zip(before.partitions, topic.partitions, strict=False))
        states: dict[str, Any] = {str(i): encode_state(new) for i, (old, new) in pairs if old is not new and old != new}
        for index in range(len(before.partitions), len(topic.partitions)):
            states[str(index)] = encode_state(topic.partitions[index])
        if states:
            self._publish(["partitions", topic.id.hex, states])

    def remove_topic(self, topic: Topic) -> None:
        """A topic is no more."""
        self._told.pop(topic.name, None)
        self._publish(["deleted", topic.id.hex, topic.name])

    def brokers_changed(self) -> None:
        """Brokers came or went."""
        self._publish(_brokers(self._image.brokers.values()))

    def configs_changed(self, kind: str, name: str, configs: Mapping[str, str]) -> None:
        """Settings of a broker, of all brokers, or of a group were set."""
        self._publish(["configs", kind, name, dict(configs)])

    def _publish(self, change: Change) -> None:
        self.version += 1
        self._kept.append(change)
        self._news.set()

    # What brokers ask

    async def poll(self, broker: int, epoch: int, version: int, max_wait: float) -> dict[str, Any]:
        """What comes after a broker's place, at once or when there is something; empty after `max_wait`."""
        if broker in self._snapshots and epoch == self.epoch and version < 0:
            return self._next_page(broker)
        if epoch != self.epoch or not self.version - len(self._kept) <= version <= self.version:
            self._snapshots[broker] = (self.version, self._pages())
            return self._next_page(broker)
        self._note_applied(broker, version)
        if version == self.version:
            await self._wait(max_wait)
            if self._is_over:
                raise CodedError(ErrorCode.not_controller, "this reign is over")
        first = len(self._kept) - (self.version - version)
        changes = [self._kept[i] for i in range(first, min(first + MOST_SENT, len(self._kept)))]
        return {"epoch": self.epoch, "version": version + len(changes), "changes": changes}

    def close(self) -> None:
        """The reign is over: who waits is told."""
        self._is_over = True
        self._news.set()

    async def _wait(self, max_wait: float) -> None:
        if self._is_over:
            return
        self._news.clear()
        try:
            async with asyncio.timeout(max_wait):
                await self._news.wait()
        except TimeoutError:
            pass

    def _next_page(self, broker: int) -> dict[str, Any]:
        """A page of a snapshot. While more follow its version is -1, which the broker asks with again."""
        version, pages = self._snapshots[broker]
        page = next(pages, None)
        if page is None:
            del self._snapshots[broker]
            return {"epoch": self.epoch, "version": version, "changes": [], "complete": True}
        return {"epoch": self.epoch, "version": -1, "changes": page, "snapshot": True}

    def _pages(self) -> Iterator[list[Change]]:
        image = self._image
        first = [_brokers(image.brokers.values())]
        first += [["configs", "broker", name, dict(configs)] for name, configs in image.broker_configs.items()]
        first += [["configs", "group", name, dict(configs)] for name, configs in image.group_configs.items()]
        return _paged(first, list(image.topics()))

    def _note_applied(self, broker: int, version: int) -> None:
        if self._applied.get(broker, -1) < version:
            self._applied[broker] = version
            self._progress.set()

    async def applied_by(self, brokers: Iterable[int], version: int, max_wait: float) -> bool:
        """Waits until these brokers have taken up a version; False if that takes too long."""
        deadline = asyncio.get_running_loop().time() + max_wait
        wanted = list(brokers)
        while any(self._applied.get(broker, -1) < version for broker in wanted):
            self._progress.clear()
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return False
            try:
                async with asyncio.timeout(left):
                    await self._progress.wait()
            except TimeoutError:
                return False
        return True


def _paged(first: list[Change], topics: list[Topic]) -> Iterator[list[Change]]:
    yield first
    page: list[Change] = []
    states = 0
    for topic in topics:
        page.append(_whole(topic))
        states += len(topic.partitions)
        if len(page) >= MOST_SENT or states >= MOST_STATES:
            yield page
            page, states = [], 0
    if page:
        yield page


def _whole(topic: Topic) -> Change:
    return ["topic", topic.name, topic.id.hex, dict(topic.configs), encode_states(topic.partitions)]


def encode_states(states: Iterable[PartitionState]) -> list[list[Any]]:
    return [encode_state(state) for state in states]


def _brokers(nodes: Iterable[BrokerNode]) -> Change:
    return ["brokers", [[node.id, node.host, node.port, node.rack, node.epoch] for node in nodes]]
