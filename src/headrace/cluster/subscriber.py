"""Takes up what the controller's feed brings: into this broker's image, and to those who hold the logs.

To open thousands of logs takes seconds, in which a broker has to serve others, follow its leaders and notice that its
session has ended. So it breathes between; and drops the rest when it has to begin anew meanwhile, as what it had been
told to lead is then not its to lead.
"""

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, Final, Protocol
from uuid import UUID

from .entries import KINDS, EntryKind
from .feed import ENDPOINTS, FeedPosition
from .image import BrokerNode, ClusterImage, Endpoint, PartitionState, Topic, endpoints_from_json
from .topics import INTERNAL, decode_state

AT_ONCE: Final = 4
"""Partitions that are taken up before the clock is looked at."""
MOST_AT_ONCE: Final = 200
LONGEST_SECONDS: Final = 0.005
"""What is taken up between two breaths: partitions, or time, whichever ends first."""
_MOST_STATES: Final = 100_000


class _BegunAnewError(Exception):
    """What is being taken up does not count any more."""


class MetadataListener(Protocol):
    """Who acts on what has changed."""

    def apply_topic(self, topic: Topic, changed: Iterable[int] | None = None) -> None:
        """A topic is new or has changed, in all partitions or in those named."""
        ...

    def remove_topic(self, topic: Topic) -> None:
        """A topic was deleted."""
        ...

    def set_topic_aside(self, topic: Topic) -> None:
        """A topic is not known any more, and was not deleted: its logs are kept, where they are in nobody's way."""
        ...

    def brokers_changed(self, gone: AbstractSet[int]) -> None:
        """Brokers came or went; `gone` are those who are not what they were: dead, or registered anew."""
        ...

    def configs_changed(self, kind: str, name: str) -> None:
        """Settings of brokers, or of a group, have changed."""
        ...


class Subscriber:
    """This broker's place in the feed, and its image as of there."""

    def __init__(self, image: ClusterImage, listener: MetadataListener) -> None:
        self._image = image
        self._image.is_whole = False
        self._listener = listener
        self.position = FeedPosition()
        self._newest_epoch = -1
        self._named: set[str] = set()
        """The topics that the snapshot under way has brought."""
        self._named_entries: set[tuple[str, str]] = set()
        """And the entries."""
        self._endpoints: dict[tuple[int, int], tuple[str, tuple[Endpoint, ...]]] = {}
        """Of the registrations of brokers, by id and epoch."""
        self._states: dict[str, PartitionState] = {}
        self._beginnings = 0
        self._without_breath = 0
        """Partitions taken up since others had a turn."""
        self._breathed_at = 0.0

    @property
    def is_current(self) -> bool:
        """Whether it has taken up everything once."""
        return self.position.version >= 0

    def forget_place(self) -> None:
        """Ask for everything anew: this broker is registered anew, and its leaderships with it."""
        self.position = FeedPosition()
        self._image.is_whole = False
        self._beginnings += 1

    def forget_controllers(self) -> None:
        """Controllers may count their epochs from a lower one: the store that knows them was set back."""
        self._newest_epoch = -1
        self.forget_place()

    async def take(self, answer: Mapping[str, Any], position: FeedPosition) -> bool:
        """One answer of the feed, to what was asked at a place; whether it counted.

        It is passed over when this broker is elsewhere by now, or when it is of an older controller than one that was
        heard before: then it means nothing any more.
        """
        if position != self.position or answer["epoch"] < self._newest_epoch:
            return False
        self._newest_epoch = answer["epoch"]
        try:
            await self._take_up(answer, position)
        except _BegunAnewError:
            return False
        return True

    async def _take_up(self, answer: Mapping[str, Any], position: FeedPosition) -> None:
        page = answer.get("page")
        if page is None:
            await self._take_changes(answer["changes"])
            self.position = FeedPosition(answer["epoch"], answer["version"])
            return
        if page == 0:
            self._named, self._named_entries = set(), set()
            self._image.is_whole = False
        elif (answer["epoch"], answer["snapshot"], page) != (position.epoch, position.snapshot, position.page):
            self.forget_place()
            return
        self._named |= {change[1] for change in answer["changes"] if change[0] == "topic"}
        self._named_entries |= {(change[1], change[2]) for change in answer["changes"] if change[0] == "configs"}
        await self._take_changes(answer["changes"])
        if answer["version"] < 0:
            self.position = FeedPosition(answer["epoch"], -1, answer["snapshot"], page + 1)
            return
        self._forget_all_but(self._named)
        self.position = FeedPosition(answer["epoch"], answer["version"])
        self._image.is_whole = True

    async def _take_changes(self, changes: Iterable[list[Any]]) -> None:
        for change in changes:
            changed = getattr(self, f"_take_{change[0]}")(*change[1:])
            if changed is not None:
                await self._apply(*changed)

    async def _apply(self, topic: Topic, indexes: Sequence[int]) -> None:
        for start in range(0, len(indexes), AT_ONCE):
            part = indexes[start : start + AT_ONCE]
            self._listener.apply_topic(topic, part)
            self._without_breath += len(part)
            await self._breathe()

    async def _breathe(self) -> None:
        """Let others have a turn, when it is time for that."""
        loop = asyncio.get_running_loop()
        if self._without_breath < MOST_AT_ONCE and loop.time() - self._breathed_at < LONGEST_SECONDS:
            return
        beginnings = self._beginnings
        await asyncio.sleep(0)
        self._without_breath, self._breathed_at = 0, loop.time()
        if self._beginnings != beginnings:
            raise _BegunAnewError

    def _forget_all_but(self, named: AbstractSet[str]) -> None:
        """What a whole snapshot does not name is gone."""
        for topic in [topic for topic in self._image.topics() if topic.name not in named]:
            self._take_gone(topic)
        for kind, entries in self._image.entries.items():
            for name in [name for name in entries if (kind.value, name) not in self._named_entries]:
                self._image.put_entry(kind, name, {})

    def _take_gone(self, topic: Topic) -> None:
        """A topic that is not there any more: only what is known to have been deleted is deleted here as well."""
        self._image.remove_topic(topic.name)
        if self._image.was_deleted(topic.id):
            self._listener.remove_topic(topic)
        else:
            self._listener.set_topic_aside(topic)

    def _take_ids_deleted(self, topic_ids: Iterable[str]) -> None:
        for topic_id in topic_ids:
            self._image.note_deleted(UUID(hex=topic_id))

    def _take_topic(
        self, name: str, topic_id: str, configs: Mapping[str, str], states: list[list[Any]], least_isr: int
    ) -> tuple[Topic, Sequence[int]]:
        before = self._image.topic(name)
        topic = Topic(
            name=name,
            id=UUID(hex=topic_id),
            partitions=tuple([self._state(values) for values in states]),
            configs=dict(configs),
            internal=name in INTERNAL,
            least_isr=least_isr,
        )
        if before is not None and before.id != topic.id:
            self._take_gone(before)
        self._image.put_topic(topic)
        return topic, range(len(topic.partitions))

    def _take_partitions(self, topic_id: str, states: Mapping[str, list[Any]]) -> tuple[Topic, Sequence[int]] | None:
        topic = self._image.topic_by_id(UUID(hex=topic_id))
        if topic is None:
            return None
        partitions = list(topic.partitions)
        changed = sorted(int(index) for index in states)
        for index in changed:
            state = self._state(states[str(index)])
            if index < len(partitions):
                partitions[index] = state
            else:
                partitions.append(state)
        topic = replace(topic, partitions=tuple(partitions))
        self._image.put_topic(topic)
        return topic, changed

    def _take_deleted(self, topic_id: str, name: str) -> None:
        self._image.note_deleted(UUID(hex=topic_id))
        topic = self._image.topic(name)
        if topic is not None and topic.id.hex == topic_id:
            self._take_gone(topic)

    def _take_brokers(self, nodes: list[list[Any]]) -> None:
        before = self._image.brokers
        self._image.brokers = now = {node[0]: self._node(*node) for node in nodes}
        self._image.version += 1
        self._listener.brokers_changed({id_ for id_, node in before.items() if now.get(id_) != node})

    def _node(self, id_: int, host: str, port: int, rack: str | None, epoch: int) -> BrokerNode:
        inter_broker, endpoints = self._endpoints.get((id_, epoch), ("", ()))
        return BrokerNode(
            id=id_, host=host, port=port, rack=rack, epoch=epoch, endpoints=endpoints, inter_broker=inter_broker
        )

    def _take_endpoints(self, told: Mapping[str, str]) -> None:
        self._endpoints = {}
        for id_, text in told.items():
            epoch, *endpoints = json.loads(text)
            self._endpoints[int(id_), epoch] = endpoints_from_json(endpoints)

    def _take_configs(self, kind: str, name: str, configs: Mapping[str, str]) -> None:
        image = self._image
        if kind == ENDPOINTS:
            self._take_endpoints(configs)
            return
        if kind in KINDS:
            image.put_entry(EntryKind(kind), name, dict(configs))
            return
        kinds = {"broker": image.broker_configs, "group": image.group_configs, "client_metrics": image.client_metrics}
        if kind in kinds:  # a controller of a later release may know others
            kinds[kind][name] = dict(configs)
        self._image.version += 1
        self._listener.configs_changed(kind, name)

    def _state(self, values: list[Any]) -> PartitionState:
        """Equal states are one value: a cluster has very many, nearly all alike."""
        text = str(values)
        state = self._states.get(text)
        if state is None:
            if len(self._states) > _MOST_STATES:
                self._states.clear()
            state = self._states[text] = decode_state(values)
        return state
