"""A cluster as the columnar client sees it: topics, offsets, committed offsets, and connections to who leads what.

Every call goes on trying, with pauses that grow, until it has its answer or `default.api.timeout.ms` is over. Leaders
are remembered and asked for again when a broker says that it does not lead, or does not answer.
"""

import atexit
import os
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from headrace.client.columnar.channel import Channel
from headrace.client.core.errors import ConnectionLost
from headrace.net.address import Address
from headrace.protocol.api import ApiKey
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import ErrorCode

from ..errors import ClientError
from . import groups
from .connections import Connections
from .metadata import ClusterImage, TopicImage, image_of
from .model import TopicPartition, UnknownPartition, UnknownTopic
from .retry import PASSING, STALE_METADATA, Patience, TryAgain, refused, retried
from .settings import ClientSettings

T = TypeVar("T")

_UNKNOWN_TRIES: Final = 3
"""Times that a topic or a partition must be unknown before it is: a new one takes a moment to be known everywhere."""
_UNSET: Final = -1


class Place(NamedTuple):
    """Where a partition is led from, and what its topic is called on the wire."""

    node: int
    epoch: int
    topic_id: bytes | None


class Cluster:
    """A cluster by its settings, which have Kafka's names: `Cluster({"bootstrap.servers": "127.0.0.1:9092"})`.

    Blocking; may be used from several threads, and on both sides of a fork. `ClientError` is raised for settings that
    are unknown or wrong, `ClusterUnreachable` when no broker answers, `UnknownTopic` for a topic that is not there.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = ClientSettings(settings)
        self._connections = Connections(self.settings)
        self._lock = threading.Lock()
        self._nodes: dict[int, Address] = {}
        self._topics: dict[str, tuple[TopicImage, float]] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        _alive.add(self)

    def topics(self) -> list[str]:
        """The names of all topics, but for those that Kafka keeps for itself."""
        image = self.retried(lambda: self._ask_metadata(None))
        return sorted(name for name, topic in image.topics.items() if not topic.is_internal)

    def partitions(self, topics: Iterable[str]) -> dict[str, int]:
        """How many partitions each topic has now."""
        return {name: image.partitions for name, image in self.describe(topics, max_age=0.0).items()}

    def describe(self, topics: Iterable[str], max_age: float | None = None) -> dict[str, TopicImage]:
        """The topics as they are, or were at most `max_age` seconds ago (`metadata.max.age.ms` where it is None)."""
        names = list(dict.fromkeys(topics))
        since = time.monotonic() - (self.settings.seconds("metadata.max.age.ms") if max_age is None else max_age)
        with self._lock:
            known = {name: image for name in names if (image := self._remembered(name, since)) is not None}
        missing = [name for name in names if name not in known]
        if missing:
            known |= self._describe_anew(missing)
        return {name: known[name] for name in names}

    def offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, int | None]:
        """An offset for each partition: at one of its ends (`EARLIEST`, `LATEST`), or of the first record that is not
        earlier than a time in milliseconds; None where no record is that late.

        With `read_committed` the latest is where the first transaction that is still open begins.
        """
        found: dict[TopicPartition, int | None] = {}

        def attempt() -> None:
            left = {where: value for where, value in wanted.items() if where not in found}
            self._list_offsets(left, read_committed, found)

        self.retried(attempt)
        return {where: found[where] for where in wanted}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets of a group that has no members: what lag is measured from."""
        if offsets:
            groups.commit(self, group, offsets)

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """What a group has committed; None where it has nothing."""
        return groups.committed(self, group, list(partitions))

    def close(self) -> None:
        """Close every connection. The cluster can still be used: it opens new ones."""
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What the parts of this package use.

    def retried(self, attempt: Callable[[], T], patience: Patience | None = None) -> T:
        """What `attempt` returns, tried again as long as that may help, or as long as `patience` has it."""
        return retried(self.settings, attempt, self.forget_leaders, patience)

    def brokers(self) -> list[int]:
        """The numbers of all brokers, as they are now."""
        return sorted(self.retried(lambda: self._ask_metadata([])).nodes)

    def locate(self, where: TopicPartition) -> Place:
        """Who leads a partition; `TryAgain` while nobody does."""
        topic = self.describe([where.topic])[where.topic]
        if where.partition not in topic.leaders:
            topic = self._grown(where)
        leader = topic.leaders[where.partition]
        if leader.node < 0:
            self.forget_leaders([where.topic])
            raise TryAgain(refused(ErrorCode.leader_not_available, where.text, "has no leader"))
        return Place(leader.node, leader.epoch, topic.id)

    def forget_leaders(self, topics: Iterable[str] | None = None) -> None:
        """Ask for the leaders of these topics, or of all, before they are used again."""
        with self._lock:
            for name in list(self._topics) if topics is None else topics:
                self._topics.pop(name, None)

    @contextmanager
    def channel_to(self, node: int) -> Iterator[Channel]:
        """A connection to a broker for the length of a `with` block."""
        channel = self.borrow(node)
        try:
            yield channel
        finally:
            self.give_back(channel)

    @contextmanager
    def any_channel(self) -> Iterator[Channel]:
        """A connection to whichever broker answers first."""
        with self._lock:
            known = list(self._nodes.values())
        with self._connections.lent_by_any(known) as channel:
            yield channel

    def borrow(self, node: int) -> Channel:
        """A connection to a broker, to be given back."""
        with self._lock:
            address = self._nodes.get(node)
        if address is None:
            raise ConnectionLost(f"broker {node}: its address is not known")
        return self._connections.borrow(address)

    def give_back(self, channel: Channel) -> None:
        self._connections.give_back(channel)

    def coordinator(self, key: str, kind: int) -> int:
        """The broker that looks after a group (kind 0) or a transactional id (kind 1)."""
        with self._lock:
            known = self._coordinators.get((kind, key))
        if known is not None:
            return known
        with self.any_channel() as channel:
            answer = channel.ask(ApiKey.FIND_COORDINATOR, {"key": key, "key_type": kind})
        if answer.error_code is not ErrorCode.none:
            raise groups.coordinator_error(answer.error_code, key, getattr(answer, "error_message", None))
        with self._lock:
            self._nodes[answer.node_id] = Address(answer.host, answer.port)
            self._coordinators[(kind, key)] = answer.node_id
        return int(answer.node_id)

    def forget_coordinator(self, key: str, kind: int) -> None:
        with self._lock:
            self._coordinators.pop((kind, key), None)

    def reset_after_fork(self) -> None:
        self._lock = threading.Lock()
        self._connections.reset_after_fork()

    def _remembered(self, name: str, since: float) -> TopicImage | None:
        image, at = self._topics.get(name, (None, 0.0))
        return image if at > since else None

    def _describe_anew(self, names: list[str]) -> dict[str, TopicImage]:
        unknown_tries = 0

        def attempt() -> dict[str, TopicImage]:
            nonlocal unknown_tries
            image = self._ask_metadata(names)
            for name in names:
                if name in image.topics:
                    continue
                code = image.errors.get(name, ErrorCode.unknown_topic_or_partition)
                unknown_tries += code is ErrorCode.unknown_topic_or_partition
                raise _topic_error(name, code, is_final=unknown_tries >= _UNKNOWN_TRIES)
            return {name: image.topics[name] for name in names}

        return self.retried(attempt)

    def _ask_metadata(self, names: list[str] | None) -> ClusterImage:
        topics = None if names is None else [{"name": name, "topic_id": None} for name in names]
        values = {
            "topics": topics,
            "allow_auto_topic_creation": False,
            "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False,
        }
        with self.any_channel() as channel:
            image = image_of(channel.ask(ApiKey.METADATA, values))
        now = time.monotonic()
        with self._lock:
            self._nodes.update(image.nodes)
            self._topics.update({name: (topic, now) for name, topic in image.topics.items()})
        return image

    def _grown(self, where: TopicPartition) -> TopicImage:
        """The topic of a partition that it was not remembered to have; not every broker may know of a new one yet."""
        tries = 0

        def attempt() -> TopicImage:
            nonlocal tries
            topic = self.describe([where.topic], max_age=0.0)[where.topic]
            if where.partition in topic.leaders:
                return topic
            tries += 1
            error = UnknownPartition(where, topic.partitions)
            raise error if tries >= _UNKNOWN_TRIES else TryAgain(error)

        return self.retried(attempt)

    def _list_offsets(
        self, wanted: Mapping[TopicPartition, int], read_committed: bool, found: dict[TopicPartition, int | None]
    ) -> None:
        """Put what the leaders say into `found`; `TryAgain` unless all did."""
        by_leader: dict[int, dict[TopicPartition, tuple[int, int]]] = defaultdict(dict)
        for where, value in wanted.items():
            place = self.locate(where)
            by_leader[place.node][where] = (value, place.epoch)
        error: ClientError | None = None
        with ExitStack() as stack:
            asked = []
            for node, partitions in by_leader.items():
                channel = stack.enter_context(self.channel_to(node))
                version = channel.version_of(ApiKey.LIST_OFFSETS)
                body = encode_request(ApiKey.LIST_OFFSETS, version, _offsets_request(partitions, read_committed))
                channel.send(ApiKey.LIST_OFFSETS, version, [body])
                asked.append(channel)
            for channel in asked:
                error = self._take_offsets(channel.receive_entity(), found) or error
        if error is not None:
            raise TryAgain(error)

    def _take_offsets(self, answer: Any, found: dict[TopicPartition, int | None]) -> ClientError | None:
        error = None
        for topic in answer.topics:
            for partition in topic.partitions:
                where = TopicPartition(topic.name, partition.partition_index)
                code = partition.error_code
                if code is ErrorCode.none:
                    found[where] = partition.offset if partition.offset != _UNSET else None
                    continue
                error = refused(code, where.text)
                if code not in PASSING:
                    raise error
                if code in STALE_METADATA:
                    self.forget_leaders([topic.name])
        return error


def shared_cluster(settings: Mapping[str, str]) -> Cluster:
    """The one cluster of this process with these settings, made on first use and closed when the process ends."""
    key = frozenset(settings.items())
    with _shared_lock:
        cluster = _shared.get(key)
        if cluster is None:
            cluster = _shared[key] = Cluster(settings)
        return cluster


_alive: "weakref.WeakSet[Cluster]" = weakref.WeakSet()
_shared: dict[frozenset[tuple[str, str]], Cluster] = {}
_shared_lock = threading.Lock()


def _close_shared() -> None:
    for cluster in _shared.values():
        cluster.close()


def _reset_after_fork() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()
    for cluster in list(_alive):
        cluster.reset_after_fork()


atexit.register(_close_shared)
os.register_at_fork(after_in_child=_reset_after_fork)


def _topic_error(name: str, code: ErrorCode, *, is_final: bool) -> Exception:
    if code is ErrorCode.unknown_topic_or_partition:
        return UnknownTopic(name) if is_final else TryAgain(UnknownTopic(name))
    error = refused(code, f"topic '{name}'")
    return TryAgain(error) if code in PASSING else error


def _offsets_request(partitions: Mapping[TopicPartition, tuple[int, int]], read_committed: bool) -> dict[str, Any]:
    topics: dict[str, list[dict[str, int]]] = defaultdict(list)
    for where, (value, epoch) in partitions.items():
        topics[where.topic].append(
            {"partition_index": where.partition, "timestamp": value, "current_leader_epoch": epoch}
        )
    return {
        "replica_id": -1,
        "isolation_level": int(read_committed),
        "topics": [{"name": name, "partitions": asked} for name, asked in topics.items()],
    }
