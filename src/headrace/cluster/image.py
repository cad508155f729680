"""What a broker knows of the cluster: frozen values, and one holder that the controller renews.

Handlers read the image and never change it. Each change makes new `Topic` values and a higher `version`.
"""

from collections.abc import Callable, Iterator, KeysView, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

from .entries import EntryKind, EntryValues

MOST_DELETED: Final = 5_000
"""Topics that are known to have been deleted: so many are remembered, the latest."""
NO_LEADER: Final = -1
"""The leader of a partition that nobody may lead now."""
EntryListener = Callable[[EntryKind, str, EntryValues], None]
"""Told of an entry that has changed; its values are empty where it was removed."""


class Endpoint(NamedTuple):
    """Where one listener of a broker is found."""

    name: str
    protocol: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerNode:
    """A broker as others reach it."""

    id: int
    host: str
    """Of the listener that stands for the broker where one address does, as is the port."""
    port: int
    rack: str | None = None
    epoch: int = 0
    endpoints: tuple[Endpoint, ...] = ()
    """Those that it advertises; none where it says only that one address, as releases did that had one listener."""
    inter_broker: str = ""
    """The name of the listener at which brokers reach it."""

    def endpoint(self, listener: str) -> Endpoint | None:
        """The broker's endpoint for clients of a listener; None where it has no such listener."""
        if not self.endpoints or not listener:
            return Endpoint(listener, "", self.host, self.port)
        return next((each for each in self.endpoints if each.name == listener), None)

    @property
    def for_brokers(self) -> Endpoint:
        """Where brokers reach it."""
        return self.endpoint(self.inter_broker) or Endpoint("", "", self.host, self.port)

    def endpoints_to_json(self) -> list[Any]:
        """The endpoints, and the one for brokers, as records and feeds have them."""
        return [self.inter_broker, *map(list, self.endpoints)]


def endpoints_from_json(values: Any) -> tuple[str, tuple[Endpoint, ...]]:
    """The listener for brokers, and the endpoints; `ValueError` for what is neither."""
    if not values:
        return "", ()
    name, *endpoints = values
    found = tuple(Endpoint(str(each[0]), str(each[1]), str(each[2]), int(each[3])) for each in endpoints)
    return str(name), found


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """A partition's replicas, ISR, leader and epochs."""

    replicas: tuple[int, ...]
    """Its preferred leader first; while it moves, also those who come and those who go."""
    isr: tuple[int, ...]
    """Those who hold everything that was acknowledged; empty where nobody is known to."""
    leader: int
    leader_epoch: int = 0
    """Grows with every election."""
    partition_epoch: int = 0
    """Grows with every change of the state."""
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    """Those who left the ISR while it was smaller than `min.insync.replicas`. Nothing was acknowledged since, so they
    hold all of it, too, and may lead when nobody of the ISR can.
    """
    last_known_elr: tuple[int, ...] = ()
    """Those who were in the ISR or the ELR and may have lost records that were not synced, while no ISR is large enough
    to acknowledge anything (KIP-966). What is left of acknowledged records is in their logs, if nobody holds all.
    """
    emptied: tuple[int, ...] = ()
    """Those of the last known ELR whose directory was new when they came back."""

    def counts_on(self, broker: int) -> bool:
        """Whether a broker may come to lead because of what it once held."""
        is_last_known = broker in self.last_known_elr and broker not in self.emptied
        return is_last_known or broker in self.isr or broker in self.elr

    def least_isr(self, configured: int) -> int:
        """The smallest ISR with which anything is committed, given `min.insync.replicas`.

        There cannot be more than there are replicas; those who only come do not count, so that a move never keeps
        producers waiting.
        """
        return min(configured, len(self.replicas) - len(self.adding))


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic: an id that is never used again, its partitions by index, its configs as they were set."""

    name: str
    id: UUID
    partitions: tuple[PartitionState, ...]
    configs: Mapping[str, str] = field(default_factory=dict)
    internal: bool = False
    version: int = 0
    """The version in the store, for compare-and-set."""
    page_versions: tuple[int, ...] = ()
    """The versions of the records that hold the partitions after the first thousand."""
    least_isr: int | None = None
    """`min.insync.replicas` as the controller goes by it; None where this broker's own settings say."""


class ClusterImage:
    """The brokers and topics as of `version`."""

    def __init__(self, *, cluster_id: str, controller_id: int) -> None:
        self.cluster_id = cluster_id
        self.controller_id = controller_id
        self.version = 0
        self.topics_version = 0
        """Grows when topics come, go, or have other replicas: seldom, where `version` grows with every election."""
        self.is_whole = True
        """Whether it holds everything as of a version: not before the first snapshot of the feed is taken up, nor while
        a later one is."""
        self.brokers: dict[int, BrokerNode] = {}
        self.broker_configs: dict[str, Mapping[str, str]] = {}
        """Dynamic broker configs by broker id as text; the empty id holds the defaults of the cluster."""
        self.group_configs: dict[str, Mapping[str, str]] = {}
        """What was set on groups, by group id."""
        self.client_metrics: dict[str, Mapping[str, str]] = {}
        """What was set on subscriptions to the metrics of clients, by their names."""
        self.entries: dict[EntryKind, dict[str, EntryValues]] = {kind: {} for kind in EntryKind}
        """What the cluster keeps for its security, by name."""
        self.entries_version: dict[EntryKind, int] = dict.fromkeys(EntryKind, 0)
        """Grows with each change of entries of that kind."""
        self._entry_listeners: list[EntryListener] = []
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._deleted: dict[UUID, None] = {}

    def reachable(self, listener: str) -> frozenset[int]:
        """The brokers with an endpoint for that listener."""
        return frozenset(id_ for id_, node in self.brokers.items() if node.endpoint(listener) is not None)

    def topic(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        return self._by_id.get(topic_id)

    def names(self) -> KeysView[str]:
        """The names of all topics, in the order of their coming."""
        return self._by_name.keys()

    def topics(self) -> Iterator[Topic]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def put_topic(self, topic: Topic) -> None:
        old = self._by_name.get(topic.name)
        if old is not None and old.id != topic.id:
            del self._by_id[old.id]
        if old is None or old.id != topic.id or not _has_same_replicas(old, topic):
            self.topics_version += 1
        self._by_name[topic.name] = topic
        self._by_id[topic.id] = topic
        self.version += 1

    def was_deleted(self, topic_id: UUID) -> bool:
        """Whether the cluster remembers that somebody deleted a topic. One that is only not there may have been lost
        with the metadata, and its logs are worth keeping.
        """
        return topic_id in self._deleted

    def note_deleted(self, topic_id: UUID) -> None:
        """A topic was deleted; the oldest of very many are forgotten."""
        self._deleted[topic_id] = None
        if len(self._deleted) > MOST_DELETED:
            del self._deleted[next(iter(self._deleted))]

    def deleted(self) -> Iterator[UUID]:
        """The topics that are known to have been deleted, in that order."""
        return iter(self._deleted)

    def put_entry(self, kind: EntryKind, name: str, values: EntryValues) -> None:
        """An entry is new or has changed; without values it is gone."""
        if values:
            self.entries[kind][name] = values
        else:
            self.entries[kind].pop(name, None)
        self.entries_version[kind] += 1
        for listener in self._entry_listeners:
            listener(kind, name, values)

    def on_entry(self, listener: "EntryListener") -> None:
        """`listener` is called with each entry that changes from now on; those that are there are its own to read."""
        self._entry_listeners.append(listener)

    def remove_topic(self, name: str) -> None:
        topic = self._by_name.pop(name)
        del self._by_id[topic.id]
        self.version += 1
        self.topics_version += 1


def _has_same_replicas(old: Topic, new: Topic) -> bool:
    pairs = zip(old.partitions, new.partitions, strict=False)
    return len(old.partitions) == len(new.partitions) and all(a is b or a.replicas == b.replicas for a, b in pairs)
