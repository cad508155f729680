"""A cluster as the columnar client sees it: topics, offsets, committed offsets, and connections to leaders.

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
from typing import Final, Self, TypeVar

from headrace.protocol.api import ApiKey
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import ErrorCode
from headrace.protocol.topic_partition import TopicPartition

from ..core.codes import Remedy, is_retriable, remedy_of
from ..core.errors import ConnectionLost
from ..core.groups import (
    CommittedOffset,
    commit_passes,
    commit_request,
    committed_request,
    find_coordinator_request,
    read_committed,
    read_coordinator,
    read_refused_commits,
)
from ..core.metadata import (
    UNKNOWN_TOPIC_TRIES,
    CoordinatorKind,
    Metadata,
    MetadataImage,
    PartitionRoute,
    TopicImage,
    metadata_request,
    read_metadata,
)
from ..core.offsets import ListedOffset, OffsetQuery, list_offsets_request, read_offsets
from ..errors import ClientError, UnknownPartition, UnknownTopic
from .channel import Channel
from .connections import Connections
from .retry import Patience, TryAgain, refused, refused_or_again, retried
from .settings import ClientSettings

T = TypeVar("T")

_UNSET: Final = -1


class Cluster:
    """A cluster by its settings, which have Kafka's names: `Cluster({"bootstrap.servers": "127.0.0.1:9092"})`.

    Blocking; may be used from several threads, and on both sides of a fork. `ClientError` is raised for settings that
    are unknown or wrong, `ClusterUnreachable` when no broker answers, `UnknownTopic` for a topic that is not there.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = ClientSettings(settings)
        self._connections = Connections(self.settings)
        self._lock = threading.Lock()
        self._metadata = Metadata()
        self._first_asked = 0
        """Which broker to ask what any should know: another one after one that did not, as it may have just started."""
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
            known = {name: image for name in names if (image := self._metadata.topic(name, since)) is not None}
        missing = [name for name in names if name not in known]
        if missing:
            known |= self._describe_anew(missing)
        return {name: known[name] for name in names}

    def offsets(
        self, timestamps: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, int | None]:
        """An offset for each partition: at one of its ends (`EARLIEST`, `LATEST`), or of the first record that is not
        earlier than a time in milliseconds; None where no record is that late.

        With `read_committed` the latest is where the first transaction that is still open begins.
        """
        offsets: dict[TopicPartition, int | None] = {}

        def attempt() -> None:
            left = {where: value for where, value in timestamps.items() if where not in offsets}
            self._list_offsets(left, read_committed, offsets)

        self.retried(attempt)
        return {where: offsets[where] for where in timestamps}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets of a group that has no members: what lag is measured from."""
        if not offsets:
            return
        values = commit_request(group, {partition: CommittedOffset(offset) for partition, offset in offsets.items()})

        def attempt(channel: Channel) -> None:
            for partition, code in read_refused_commits(channel.ask(ApiKey.OFFSET_COMMIT, values)).items():
                raise _commit_error(code, group, partition)

        self.with_coordinator(CoordinatorKind.GROUP, group, attempt)

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """What a group has committed; None where it has nothing."""
        asked = list(partitions)
        values = committed_request(group, asked, require_stable=True)

        def attempt(channel: Channel) -> dict[TopicPartition, int | None]:
            answer = channel.ask(ApiKey.OFFSET_FETCH, values)
            _check_group(getattr(answer, "error_code", ErrorCode.none), group)
            offsets: dict[TopicPartition, int | None] = dict.fromkeys(asked)
            for partition, (code, committed) in read_committed(answer).items():
                _check_group(code, group)
                offsets[partition] = None if committed is None else committed.offset
            return offsets

        return self.with_coordinator(CoordinatorKind.GROUP, group, attempt)

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

    def locate(self, topic_partition: TopicPartition) -> PartitionRoute:
        """Who leads a partition; `TryAgain` while nobody does."""
        topic = self.describe([topic_partition.topic])[topic_partition.topic]
        if topic_partition.partition not in topic.leaders:
            topic = self._grown(topic_partition)
        route = topic.route(topic_partition.partition)
        if route is None:
            self.forget_leaders([topic_partition.topic])
            raise TryAgain(refused(ErrorCode.leader_not_available, topic_partition.text, "has no leader"))
        return route

    def forget_leaders(self, topics: Iterable[str] | None = None) -> None:
        """Ask for the leaders of these topics, or of all, before they are used again."""
        with self._lock:
            self._metadata.forget_topics(topics)

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
            known = list(self._metadata.nodes.values())
        start = self._first_asked % len(known) if known else 0
        with self._connections.lent_by_any([*known[start:], *known[:start]]) as channel:
            yield channel

    def borrow(self, node: int) -> Channel:
        """A connection to a broker, to be given back."""
        with self._lock:
            address = self._metadata.nodes.get(node)
        if address is None:
            raise ConnectionLost(f"broker {node}: its address is not known")
        return self._connections.borrow(address)

    def give_back(self, channel: Channel) -> None:
        self._connections.give_back(channel)

    def coordinator(self, kind: CoordinatorKind, key: str) -> int:
        """The broker that coordinates a group or a transactional id; `TryAgain` while there is none."""
        with self._lock:
            known = self._metadata.coordinator(kind, key)
        if known is not None:
            return known
        with self.any_channel() as channel:
            answer = channel.ask(ApiKey.FIND_COORDINATOR, find_coordinator_request(kind, key))
        if answer.error_code is not ErrorCode.none:
            message = getattr(answer, "error_message", None)
            raise refused_or_again(answer.error_code, f"the coordinator of '{key}'", message)
        node, address = read_coordinator(answer)
        with self._lock:
            self._metadata.learn_coordinator(kind, key, node, address)
        return node

    def forget_coordinator(self, kind: CoordinatorKind, key: str) -> None:
        with self._lock:
            self._metadata.forget_coordinator(kind, key)

    def with_coordinator(self, kind: CoordinatorKind, key: str, attempt: Callable[[Channel], T]) -> T:
        """What `attempt` returns on a connection to the coordinator, which is found again when it moves."""

        def once() -> T:
            try:
                with self.channel_to(self.coordinator(kind, key)) as channel:
                    return attempt(channel)
            except (TryAgain, ConnectionLost):
                self.forget_coordinator(kind, key)
                raise

        return self.retried(once)

    def with_leader(self, topic_partition: TopicPartition, attempt: Callable[[Channel], T]) -> T:
        """What `attempt` returns on a connection to the leader of a partition, which is found again when it moves."""

        def once() -> T:
            try:
                with self.channel_to(self.locate(topic_partition).node) as channel:
                    return attempt(channel)
            except TryAgain:
                self.forget_leaders([topic_partition.topic])
                raise

        return self.retried(once)

    def with_broker(self, node: int, attempt: Callable[[Channel], T]) -> T:
        """What `attempt` returns on a connection to one broker, wherever that is by then."""

        def once() -> T:
            with self.channel_to(node) as channel:
                return attempt(channel)

        return self.retried(once)

    def with_any(self, attempt: Callable[[Channel], T]) -> T:
        """What `attempt` returns on a connection to whichever broker answers."""

        def once() -> T:
            with self.any_channel() as channel:
                return attempt(channel)

        return self.retried(once)

    def reset_after_fork(self) -> None:
        self._lock = threading.Lock()
        self._connections.reset_after_fork()

    def _describe_anew(self, names: list[str]) -> dict[str, TopicImage]:
        unknown_tries = 0

        def attempt() -> dict[str, TopicImage]:
            nonlocal unknown_tries
            image = self._ask_metadata(names)
            for name in names:
                code = image.error_of(name)
                if code is None:
                    continue
                if code is ErrorCode.unknown_topic_or_partition:
                    unknown_tries += 1
                    self._first_asked += 1
                raise _topic_error(name, code, is_final=unknown_tries >= UNKNOWN_TOPIC_TRIES)
            return {name: image.topics[name] for name in names}

        return self.retried(attempt)

    def _ask_metadata(self, names: list[str] | None) -> MetadataImage:
        with self.any_channel() as channel:
            image = read_metadata(channel.ask(ApiKey.METADATA, metadata_request(names)))
        with self._lock:
            self._metadata.learn(image, time.monotonic())
        return image

    def _grown(self, topic_partition: TopicPartition) -> TopicImage:
        """The topic, asked for again for a partition that it did not have: not every broker may know of it yet."""
        tries = 0

        def attempt() -> TopicImage:
            nonlocal tries
            topic = self.describe([topic_partition.topic], max_age=0.0)[topic_partition.topic]
            if topic_partition.partition in topic.leaders:
                return topic
            tries += 1
            self._first_asked += 1
            error = UnknownPartition(topic_partition, topic.partitions)
            raise error if tries >= UNKNOWN_TOPIC_TRIES else TryAgain(error)

        return self.retried(attempt)

    def _list_offsets(
        self, timestamps: Mapping[TopicPartition, int], read_committed: bool, offsets: dict[TopicPartition, int | None]
    ) -> None:
        """Put what the leaders say into `offsets`; `TryAgain` unless all did."""
        by_leader: dict[int, dict[TopicPartition, OffsetQuery]] = defaultdict(dict)
        for where, value in timestamps.items():
            route = self.locate(where)
            by_leader[route.node][where] = OffsetQuery(value, route.epoch)
        error: ClientError | None = None
        with ExitStack() as stack:
            channels = []
            for node, queries in by_leader.items():
                channel = stack.enter_context(self.channel_to(node))
                version = channel.version_of(ApiKey.LIST_OFFSETS)
                values = list_offsets_request(queries, isolation=int(read_committed))
                channel.send(ApiKey.LIST_OFFSETS, version, [encode_request(ApiKey.LIST_OFFSETS, version, values)])
                channels.append(channel)
            for channel in channels:
                error = self._take_offsets(read_offsets(channel.receive_entity()), offsets) or error
        if error is not None:
            raise TryAgain(error)

    def _take_offsets(
        self, answered: Mapping[TopicPartition, ListedOffset], offsets: dict[TopicPartition, int | None]
    ) -> ClientError | None:
        error = None
        for partition, listed in answered.items():
            if listed.code is ErrorCode.none:
                offsets[partition] = listed.offset if listed.offset != _UNSET else None
                continue
            error = refused(listed.code, partition.text)
            if not is_retriable(listed.code):
                raise error
            if remedy_of(listed.code) is Remedy.REFRESH_METADATA:
                self.forget_leaders([partition.topic])
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
    return refused_or_again(code, f"topic '{name}'")


def _check_group(code: ErrorCode, group: str) -> None:
    if code is not ErrorCode.none:
        raise refused_or_again(code, f"the coordinator of '{group}'")


def _commit_error(code: ErrorCode, group: str, partition: TopicPartition) -> Exception:
    if code is ErrorCode.unknown_member_id or code is ErrorCode.illegal_generation:
        return ClientError(
            f"group '{group}' has members, and only they may commit its offsets; use a group of its own",
            code.name.upper(),
        )
    error = refused(code, f"group '{group}' cannot commit {partition.text}")
    # Who is no member waits until those who are have joined again.
    return TryAgain(error) if commit_passes(code) or code is ErrorCode.rebalance_in_progress else error
