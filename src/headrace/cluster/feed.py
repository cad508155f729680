"""How brokers learn what has changed: the controller numbers the changes, brokers ask for what comes after theirs.

A broker's place is (controller epoch, version). One who comes from another epoch, or from further back than the
changes that are kept, gets a snapshot: everything, in numbered pages, as of one version. What a whole snapshot does not
name is gone, so a page is given again until the broker asks for the one after it. The logs of what is gone are deleted
only if its id is among those of deleted topics; else it may be the metadata that is wrong. Values are what JSON can
hold, so that they travel as they are.

Changes, each a list that begins with its kind:

    topic       name, id, configs, [state, …], least ISR   a new topic, or one whose settings changed
    partitions  id, {index: state}                         some partitions of a topic
    deleted     id, name
    ids_deleted [id, …]                                    topics that were deleted before; in a snapshot
    brokers     [[id, host, port, rack, epoch], …]         all that live
    configs     "endpoints", "", {id: JSON}                their listeners, before them: [epoch, the one for brokers,
                [name, protocol, host, port], …]; not told where each has one listener, which is PLAINTEXT
    configs     "broker" | "group" | "client_metrics", name, {…}
                "user" | "acl" | "quota" | "token", name, {…}   an entry (`entries`); gone where {} is told

The least ISR (`min.insync.replicas`) is told, not left to each broker's own settings: whom the controller may elect
depends on when leaders acknowledge, so both have to go by the same number, at the same version.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from headrace.protocol.errors import CodedError, ErrorCode

from .image import BrokerNode, ClusterImage, Endpoint, PartitionState, Topic
from .topics import encode_state

Change = list[Any]
ENDPOINTS: Final = "endpoints"
MOST_KEPT: Final = 50_000
"""Changes that a slow broker may be behind before it gets everything anew."""
MOST_SENT: Final = 2_000
"""Changes, or entries or topics of a snapshot, in one answer."""
MOST_STATES: Final = 20_000
"""Partitions in one answer; more only where one topic alone has more."""
_STATES_AT: Final = {"topic": 4, "partitions": 2}
"""Where the states of partitions stand in the changes that have any."""


class FeedPosition(NamedTuple):
    """A broker's position in a feed."""

    epoch: int = -1
    version: int = -1
    """-1 before the first snapshot is whole."""
    snapshot: int = -1
    """The one that is under way, and the page of it that comes next."""
    page: int = 0


class FeedProgress(NamedTuple):
    """How far a broker has come, and how many seconds ago it asked last and last had everything."""

    version: int
    heard_seconds: float
    behind_seconds: float


class _Snapshot:
    """Everything as of a version, for one broker, from which it takes page after page."""

    def __init__(self, number: int, version: int, pages: Iterator[list[Change]]) -> None:
        self.number = number
        self.version = version
        self._pages = pages
        self._page = 0
        self._next = next(pages, None)
        self._changes: list[Change] = []
        self._turn()

    def gives(self, position: FeedPosition) -> bool:
        """Whether the broker may ask for this page: the one it got last, or the next."""
        return (
            position.snapshot == self.number and position.page in (self._page, self._page + 1) and position.version < 0
        )

    def page(self, number: int, epoch: int) -> dict[str, Any]:
        if number > self._page:
            self._page += 1
            self._turn()
        answer = {"epoch": epoch, "snapshot": self.number, "page": self._page, "changes": self._changes}
        return answer | ({"version": self.version} if self._next is None else {"version": -1})

    def _turn(self) -> None:
        self._changes = self._next or []
        self._next = next(self._pages, None)


class Feed:
    """The metadata changes of one controller epoch."""

    def __init__(self, image: ClusterImage, epoch: int, least_isr: Callable[[Topic], int]) -> None:
        self._image = image
        self._least_isr = least_isr
        self.epoch = epoch
        self.version = 0
        self._kept: deque[Change] = deque(maxlen=MOST_KEPT)
        self._announced: dict[str, tuple[Topic, int]] = {}
        """The topics as they were told last, and their least ISRs."""
        self._news = asyncio.Event()
        self._snapshots: dict[int, _Snapshot] = {}
        self._count = 0
        self._applied: dict[int, int] = {}
        self._heard_at: dict[int, tuple[float, float]] = {}
        """When a broker asked last, and when it last had everything."""
        self._progress = asyncio.Event()
        self._is_over = False

    def begin(self) -> None:
        """What the image holds now is what every snapshot begins with."""
        self._announced = {topic.name: (topic, self._least_isr(topic)) for topic in self._image.topics()}

    # What the controller tells

    def apply_topic(self, topic: Topic, changed: Iterable[int] | None = None) -> None:  # noqa: ARG002 - found here
        """A topic is new, or has changed: of a large one only what differs is told."""
        before, least_before = self._announced.get(topic.name, (None, -1))
        least = self._least_isr(topic)
        self._announced[topic.name] = (topic, least)
        if before is None or before.id != topic.id or before.configs != topic.configs or least != least_before:
            self._publish(_whole(topic, least))
            return
        pairs = enumerate(zip(before.partitions, topic.partitions, strict=False))
        states: dict[str, Any] = {str(i): encode_state(new) for i, (old, new) in pairs if old is not new and old != new}
        for index in range(len(before.partitions), len(topic.partitions)):
            states[str(index)] = encode_state(topic.partitions[index])
        if states:
            self._publish(["partitions", topic.id.hex, states])

    def remove_topic(self, topic: Topic) -> None:
        """A topic was deleted."""
        self._announced.pop(topic.name, None)
        self._publish(["deleted", topic.id.hex, topic.name])

    def brokers_changed(self) -> None:
        """Brokers have registered, or their registrations have ended."""
        for change in _endpoints(self._image.brokers.values()):
            self._publish(change)
        self._publish(_brokers(self._image.brokers.values()))

    def configs_changed(self, kind: str, name: str, configs: Mapping[str, str]) -> None:
        """Settings of a broker, of all brokers, or of a group were set, or an entry."""
        self._publish(["configs", kind, name, dict(configs)])

    def _publish(self, change: Change) -> None:
        self.version += 1
        self._kept.append(change)
        self._news.set()

    # What brokers ask

    async def poll(self, broker: int, position: FeedPosition, max_wait: float) -> dict[str, Any]:
        """The changes after a broker's position, at once or when there are some; empty after `max_wait`."""
        self._require_active()
        under_way = self._snapshots.get(broker)
        if position.epoch == self.epoch and under_way is not None and under_way.gives(position):
            return under_way.page(position.page, self.epoch)
        version = position.version
        if position.epoch != self.epoch or not self.version - len(self._kept) <= version <= self.version:
            return self._new_snapshot(broker).page(0, self.epoch)
        self._snapshots.pop(broker, None)
        self._note_applied(broker, version)
        self._note_heard(broker, is_current=version == self.version)
        if version == self.version:
            await self._wait(max_wait)
            self._require_active()
        first = len(self._kept) - (self.version - version)
        if first < 0:
            return self._new_snapshot(broker).page(0, self.epoch)
        changes = _portion(islice(self._kept, first, first + MOST_SENT))
        return {"epoch": self.epoch, "version": version + len(changes), "changes": changes}

    def close(self) -> None:
        """This controller has resigned or is fenced: whoever waits is notified."""
        self._is_over = True
        self._news.set()
        self._progress.set()

    def _require_active(self) -> None:
        if self._is_over:
            raise CodedError(ErrorCode.not_controller, "this broker is no longer the controller")

    async def _wait(self, max_wait: float) -> None:
        self._news.clear()
        try:
            async with asyncio.timeout(max_wait):
                await self._news.wait()
        except TimeoutError:
            pass

    def _new_snapshot(self, broker: int) -> _Snapshot:
        self._count += 1
        self._applied.pop(broker, None)
        self._snapshots[broker] = _Snapshot(self._count, self.version, self._pages())
        return self._snapshots[broker]

    def _pages(self) -> Iterator[list[Change]]:
        image = self._image
        first = [*_endpoints(image.brokers.values()), _brokers(image.brokers.values())]
        first += [["ids_deleted", [topic_id.hex for topic_id in image.deleted()]]]
        first += [["configs", "broker", name, dict(configs)] for name, configs in image.broker_configs.items()]
        first += [["configs", "group", name, dict(configs)] for name, configs in image.group_configs.items()]
        first += [["configs", "client_metrics", name, dict(configs)] for name, configs in image.client_metrics.items()]
        entries = [
            ["configs", kind.value, name, dict(values)]
            for kind in image.entries
            for name, values in image.entries[kind].items()
        ]
        return _paged(first, entries, [(topic, self._least_isr(topic)) for topic in image.topics()])

    def _note_applied(self, broker: int, version: int) -> None:
        if self._applied.get(broker, -1) < version:
            self._applied[broker] = version
            self._progress.set()

    def _note_heard(self, broker: int, *, is_current: bool) -> None:
        now = asyncio.get_running_loop().time()
        self._heard_at[broker] = (now, now if is_current else self._heard_at.get(broker, (now, now))[1])

    def progress(self, broker: int) -> FeedProgress | None:
        """How far a broker has come; None where it has not taken up everything once."""
        heard = self._heard_at.get(broker)
        version = self._applied.get(broker)
        if heard is None or version is None:
            return None
        now = asyncio.get_running_loop().time()
        waits = version == self.version  # it has asked, and is answered once there is something
        return FeedProgress(version, now - heard[0], 0.0 if waits else now - heard[1])

    async def applied_by(self, brokers: Iterable[int], version: int, max_wait: float) -> bool:
        """Waits until these brokers have taken up a version; False if that takes too long, or it resigns."""
        wanted = list(brokers)
        try:
            async with asyncio.timeout(max_wait):
                while any(self._applied.get(broker, -1) < version for broker in wanted) and not self._is_over:
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            return False
        return not self._is_over


def _portion(changes: Iterable[Change]) -> list[Change]:
    """As many changes, from the first on, as one answer may hold."""
    portion: list[Change] = []
    states = 0
    for change in changes:
        states += len(change[_STATES_AT[change[0]]]) if change[0] in _STATES_AT else 1
        if portion and states > MOST_STATES:
            break
        portion.append(change)
    return portion


def _paged(first: list[Change], entries: list[Change], topics: list[tuple[Topic, int]]) -> Iterator[list[Change]]:
    yield first
    for start in range(0, len(entries), MOST_SENT):
        yield entries[start : start + MOST_SENT]
    page: list[Change] = []
    states = 0
    for topic, least_isr in topics:
        page.append(_whole(topic, least_isr))
        states += len(topic.partitions)
        if len(page) >= MOST_SENT or states >= MOST_STATES:
            yield page
            page, states = [], 0
    if page:
        yield page


def _whole(topic: Topic, least_isr: int) -> Change:
    return ["topic", topic.name, topic.id.hex, dict(topic.configs), encode_states(topic.partitions), least_isr]


def encode_states(states: Iterable[PartitionState]) -> list[list[Any]]:
    return [encode_state(state) for state in states]


def _endpoints(nodes: Iterable[BrokerNode]) -> list[Change]:
    """Told as a setting, which a release that knows nothing of it passes over."""
    known = list(nodes)
    if all(node.endpoints in ((), (Endpoint("PLAINTEXT", "PLAINTEXT", node.host, node.port),)) for node in known):
        return []
    told = {str(node.id): json.dumps([node.epoch, *node.endpoints_to_json()]) for node in known if node.endpoints}
    return [["configs", ENDPOINTS, "", told]]


def _brokers(nodes: Iterable[BrokerNode]) -> Change:
    return ["brokers", [[node.id, node.host, node.port, node.rack, node.epoch] for node in nodes]]
