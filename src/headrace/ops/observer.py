"""Reads a cluster again and again, for `headrace top` and `headrace doctor`: brokers, health, offsets, sizes, groups.

All brokers are asked side by side, each on a connection of its own and with a deadline, so that one that hangs keeps
nobody waiting. What costs a broker much is asked in batches and in turns: a round reads the ends of 1000 partitions of
each broker and 50 of its groups, and what takes long to answer is not asked again before 20 times as long has passed.
So all of it takes no more than about 5 % of a broker's time, however large the cluster is.

Asks for nothing that Apache Kafka does not have, but for the health report, which is left out where it is not known.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Final, TypeVar

from headrace.client.columnar.channel import Channel
from headrace.client.columnar.connect import open_channel
from headrace.client.columnar.retry import TryAgain
from headrace.client.columnar.settings import ClientSettings
from headrace.client.core.errors import AuthenticationRefused, ConnectionLost, VersionNotServed
from headrace.client.core.handshake import ConnectionSettings
from headrace.client.errors import AUTHENTICATION_FAILED, ClientError
from headrace.client.waiting import HANGS_UP, in_background
from headrace.health import HealthReport
from headrace.net.address import Address
from headrace.protocol.errors import CodedError, ProtocolViolation
from headrace.protocol.topic_partition import TopicPartition

from .overview import BrokerView, ClusterView, PartitionView
from .reading import (
    BATCH,
    ListedGroup,
    LogDirs,
    list_groups,
    read_cluster,
    read_ends,
    read_groups,
    read_log_dirs,
    read_starts,
)
from .reading import read_report as ask_report
from .samples import BrokerReading, ClockReading, ClusterSample, GroupReading

T = TypeVar("T")
Clock = Callable[[], float]

SECONDS: Final = 2.0
"""How long a broker may take for each answer."""
GROUPS_AT_ONCE: Final = 50
_SHARE: Final = 20
_LISTS_SECONDS: Final = 2.0
_LOG_DIRS_SECONDS: Final = 5.0
_HEALTH_AGAIN_SECONDS: Final = 60.0
"""After which a broker that knows no health report is asked for one again: another may have its address."""
_GRACE_SECONDS: Final = 0.5
_CLOSED: Final = "the broker closed the connection"
_CONNECTION_ERRORS: Final = (ConnectionLost, AuthenticationRefused)
ERRORS: Final = (*_CONNECTION_ERRORS, VersionNotServed, ProtocolViolation, CodedError, TryAgain, ClientError)
"""What can go wrong when a broker is asked."""
_DEFAULTS: Final = {"client.id": "headrace-cli"}


class PollPace:
    """When something may be asked again: not before `least` seconds, nor 20 times what it took."""

    def __init__(self, least: float) -> None:
        self._least = least
        self._next = float("-inf")

    def is_due(self, now: float) -> bool:
        return now >= self._next

    def took(self, began: float, ended: float) -> None:
        """It was asked."""
        self._next = began + max(self._least, _SHARE * (ended - began))


class BrokerLink:
    """A connection to one broker that is kept, and made anew where it was lost. One thread at a time has it."""

    def __init__(self, address: Address, settings: ConnectionSettings) -> None:
        self.address = address
        self._settings = settings
        self._lock = threading.Lock()
        self._channel: Channel | None = None

    def call(self, work: Callable[[Channel], T]) -> T:
        """What `work` comes to; once again on a new connection where a kept one was closed meanwhile.

        `ConnectionLost` or `AuthenticationRefused` says why there is none.
        """
        with self._lock:
            began = time.monotonic()
            was_kept = self._channel is not None
            try:
                return self._attempt(work)
            except ConnectionLost:
                if not was_kept or time.monotonic() - began > self._settings.request_timeout / 2:
                    raise
                return self._attempt(work)

    def _attempt(self, work: Callable[[Channel], T]) -> T:
        if self._channel is None:
            self._channel = open_channel(self.address, self._settings)
        channel = self._channel
        try:
            return work(channel)
        finally:
            if not channel.is_reusable(time.monotonic()):
                channel.close()
                self._channel = None

    def close(self) -> None:
        """Let go of the connection, unless a thread still waits on it, which then closes it by its deadline."""
        if self._lock.acquire(blocking=False):
            try:
                if self._channel is not None:
                    self._channel.close()
                    self._channel = None
            finally:
                self._lock.release()


@dataclass(slots=True)
class _Turns:
    """What of one broker was asked when, and whose turn is next."""

    link: BrokerLink
    lists: PollPace = field(default_factory=lambda: PollPace(_LISTS_SECONDS))
    log_dirs: PollPace = field(default_factory=lambda: PollPace(_LOG_DIRS_SECONDS))
    offsets: PollPace = field(default_factory=lambda: PollPace(0.0))
    members: PollPace = field(default_factory=lambda: PollPace(0.0))
    ask_health_again_at: float = float("-inf")
    partition: int = 0
    uncommitted: int = 0
    group: int = 0
    listed: tuple[ListedGroup, ...] = ()
    under_way: "Future[BrokerReading] | None" = None
    asked_at: float = 0.0


class Observer:
    """One cluster. Threads of their own ask the brokers; the methods are for one thread."""

    def __init__(
        self,
        bootstrap: str,
        properties: Mapping[str, str] | None = None,
        *,
        seconds: float = SECONDS,
        clock: Clock = time.monotonic,
    ) -> None:
        settings = ClientSettings({**_DEFAULTS, **(properties or {}), "bootstrap.servers": bootstrap})
        self.bootstrap = settings.bootstrap
        self._settings = replace(settings.connection, connect_timeout=seconds, request_timeout=seconds)
        self._seconds = seconds
        self._clock = clock
        self._links: dict[Address, BrokerLink] = {}
        self._turns: dict[int, _Turns] = {}
        self._view: ClusterView | None = None
        self._view_pace = PollPace(0.0)
        self._informant: Address | None = None
        self._uncommitted: dict[str, frozenset[TopicPartition]] = {}
        """By group, the partitions of the topics that it reads which it has committed nothing of."""

    def __enter__(self) -> "Observer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        for link in self._links.values():
            link.close()

    @property
    def seconds(self) -> float:
        """How long a broker may take for each answer."""
        return self._seconds

    def observe(self, *, whole: bool = False, only: Collection[int] | None = None) -> ClusterSample:
        """One round; with `whole` nothing is left for later rounds, as far as brokers answer. `only` these are asked.

        `ClientError` where the cluster lets nobody in by these credentials.
        """
        reason = ""
        if whole or self._view is None or self._view_pace.is_due(self._clock()):
            reason = self._look()
        view = self._view
        readings = {} if view is None else self._ask_brokers(view, whole, only)
        if view is not None and not reason and readings and all(r.reason for r in readings.values()):
            reason = "no broker answers: " + "; ".join(sorted({r.reason for r in readings.values()}))
        return ClusterSample(at=self._clock(), view=view, reason=reason, brokers=readings)

    def ask(self, brokers: Iterable[BrokerView], work: Callable[[BrokerView, Channel], T]) -> dict[int, T]:
        """What `work` comes to at each of these brokers, side by side; who does not answer in time is left out."""
        futures = {
            broker.id: in_background(partial(self._link(Address(broker.host, broker.port)).call, partial(work, broker)))
            for broker in brokers
        }
        wait(futures.values(), 2 * self._seconds + _GRACE_SECONDS)
        answers = {}
        for broker, future in futures.items():
            if future.done() and isinstance(future.exception(), ERRORS):
                continue
            if future.done():
                answers[broker] = future.result()
        return answers

    # The cluster

    def _look(self) -> str:
        """Learn anew which brokers and partitions there are; why that could not be, or nothing."""
        began = self._clock()
        try:
            view = self._from_any(read_cluster)
        except _CONNECTION_ERRORS as error:
            if isinstance(error, AuthenticationRefused) and self._view is None:
                raise ClientError(f"not let in by {error}", AUTHENTICATION_FAILED) from error
            if self._look_at_health():
                return f"the cluster's metadata cannot be read: {error}"
            if self._view is None and _CLOSED in str(error):
                return f"{HANGS_UP} ({error})"
            return f"no broker answers at {error}"
        except (VersionNotServed, ProtocolViolation, CodedError, TryAgain) as error:
            return str(error)
        self._view_pace.took(began, self._clock())
        self._view = _with_addresses(view, self._view)
        return ""

    def _look_at_health(self) -> bool:
        """Whether brokers tell their health, though nothing else. Who does is known from then on, if nobody was."""
        addresses = enumerate(self._candidates())
        asked = {number: BrokerView(id=number, host=a.host, port=a.port) for number, a in addresses}
        reports = self.ask(asked.values(), lambda _, channel: ask_report(channel))
        if reports and self._view is None:
            found = {report.broker_id: replace(asked[n], id=report.broker_id) for n, report in reports.items()}
            self._view = ClusterView(
                cluster_id=next(iter(reports.values())).cluster_id,
                controller=None,
                brokers=tuple(found[broker] for broker in sorted(found)),
                partitions=(),
            )
        return bool(reports)

    def _from_any(self, work: Callable[[Channel], T]) -> T:
        """From the broker that answered last, else from whichever is first to answer."""
        informant = self._informant
        if informant is not None:
            try:
                return self._link(informant).call(work)
            except _CONNECTION_ERRORS:
                self._informant = None
        return self._from_first(work, [a for a in self._candidates() if a != informant] or [*self.bootstrap])

    def _candidates(self) -> list[Address]:
        known = () if self._view is None else (Address(b.host, b.port) for b in self._view.brokers if b.host)
        return list(dict.fromkeys([*known, *self.bootstrap]))

    def _from_first(self, work: Callable[[Channel], T], addresses: list[Address]) -> T:
        """What the first to shake hands says; the connections of the others are kept."""
        greetings = {in_background(partial(self._link(a).call, _greet)): a for a in addresses}
        errors: list[Exception] = []
        left = set(greetings)
        deadline = time.monotonic() + 2 * self._seconds + _GRACE_SECONDS
        while left:
            done, left = wait(left, max(deadline - time.monotonic(), 0), FIRST_COMPLETED)
            if not done:
                errors += [ConnectionLost(f"{greetings[future]}: timed out") for future in left]
                break
            for future in done:
                error = future.exception()
                if error is None:
                    try:
                        found = self._link(greetings[future]).call(work)
                    except _CONNECTION_ERRORS as lost:
                        errors.append(lost)
                        continue
                    self._informant = greetings[future]
                    return found
                errors.append(error if isinstance(error, Exception) else ConnectionLost(str(error)))
        raise next((e for e in errors if isinstance(e, AuthenticationRefused)), None) or ConnectionLost(
            ", ".join(sorted(str(e) for e in errors))
        )

    def _link(self, address: Address) -> BrokerLink:
        if address not in self._links:
            self._links[address] = BrokerLink(address, self._settings)
        return self._links[address]

    # The brokers

    def _ask_brokers(self, view: ClusterView, whole: bool, only: Collection[int] | None) -> dict[int, BrokerReading]:
        led: dict[int, list[PartitionView]] = {}
        for partition in view.partitions:
            if partition.leader is not None:
                led.setdefault(partition.leader, []).append(partition)
        futures: dict[int, Future[BrokerReading]] = {}
        beginning = frozenset().union(*self._uncommitted.values())
        for broker in view.brokers:
            if broker.host and (only is None or broker.id in only):
                futures[broker.id] = self._start(broker, led.get(broker.id, []), beginning, whole)
        patience = (4 if whole else 1) * self._seconds + _GRACE_SECONDS
        wait(futures.values(), patience)
        readings = {broker: self._taken(broker, future) for broker, future in futures.items()}
        self._note_uncommitted(view, [group for reading in readings.values() for group in reading.groups])
        return readings

    def _note_uncommitted(self, view: ClusterView, groups: list[GroupReading]) -> None:
        of_topic: dict[str, list[TopicPartition]] = {topic: [] for group in groups for topic in group.topics}
        for partition in view.partitions:
            if partition.topic in of_topic:
                of_topic[partition.topic].append(partition.key)
        for group in groups:
            read = chain.from_iterable(of_topic[topic] for topic in group.topics)
            self._uncommitted[group.group] = frozenset(read) - group.committed.keys()

    def _start(
        self, broker: BrokerView, led: list[PartitionView], beginning: frozenset[TopicPartition], whole: bool
    ) -> "Future[BrokerReading]":
        """The reading that is under way, or a new one."""
        link = self._link(Address(broker.host, broker.port))
        turns = self._turns.get(broker.id)
        if turns is None or turns.link is not link:
            turns = self._turns[broker.id] = _Turns(link)
        if turns.under_way is None:
            turns.asked_at = self._clock()
            turns.under_way = in_background(lambda: self._read(turns, led, beginning, whole))
        return turns.under_way

    def _taken(self, broker: int, future: "Future[BrokerReading]") -> BrokerReading:
        turns = self._turns[broker]
        if future.done():
            turns.under_way = None
            return future.result()
        now = self._clock()
        return BrokerReading(at=now, reason=f"has not answered for {now - turns.asked_at:.0f} s")

    def _read(
        self, turns: _Turns, led: list[PartitionView], beginning: frozenset[TopicPartition], whole: bool
    ) -> BrokerReading:
        now = self._clock()
        health: HealthReport | None = None
        clock: ClockReading | None = None
        try:
            health, clock = self._read_health(turns)
            reading = turns.link.call(lambda channel: self._read_rest(channel, turns, led, whole))
            starts = turns.link.call(
                lambda channel: self._read_starts(channel, turns, [p for p in led if p.key in beginning], whole)
            )
        except ERRORS as error:
            is_explained = health is not None and not health.ready
            return BrokerReading(at=now, reason="" if is_explained else str(error), health=health, clock=clock)
        return replace(reading, health=health, clock=clock, starts=starts)

    def _read_health(self, turns: _Turns) -> tuple[HealthReport | None, ClockReading | None]:
        """Nothing of a broker that closes the connection when asked for it, and takes a new one."""
        now = self._clock()
        if now < turns.ask_health_again_at:
            return None, None
        turns.link.call(_greet)
        began, wall = time.monotonic(), time.time()
        try:
            report = turns.link.call(ask_report)
        except (ConnectionLost, CodedError, ProtocolViolation):
            if time.monotonic() - began > self._seconds / 2:
                raise
            turns.link.call(_greet)
            turns.ask_health_again_at = now + _HEALTH_AGAIN_SECONDS
            return None, None
        took = time.monotonic() - began
        theirs = report.numbers.get("clock_ms")
        if theirs is None:
            return report, None
        ahead = theirs - (wall + took / 2) * 1000
        return report, ClockReading(ahead_ms=ahead, uncertainty_ms=took * 500)

    def _read_rest(self, channel: Channel, turns: _Turns, led: list[PartitionView], whole: bool) -> BrokerReading:
        at = self._clock()
        ends: dict[TopicPartition, int] = {}
        if whole or turns.offsets.is_due(at):
            for some in self._batches(turns, led, whole):
                ends |= read_ends(channel, some)
            turns.offsets.took(at, self._clock())
        listed, groups = self._read_groups(channel, turns, whole)
        dirs = self._read_log_dirs(channel, turns, whole)
        return BrokerReading(
            at=at,
            ends=ends,
            sizes=None if dirs is None else dirs.sizes,
            disk_total=None if dirs is None else dirs.total,
            disk_free=None if dirs is None else dirs.free,
            groups=tuple(groups),
            listed=listed,
        )

    def _read_starts(
        self, channel: Channel, turns: _Turns, uncommitted: list[PartitionView], whole: bool
    ) -> dict[TopicPartition, int]:
        if whole:
            batches = _in_batches(uncommitted)
        else:
            start = turns.uncommitted if turns.uncommitted < len(uncommitted) else 0
            turns.uncommitted = start + BATCH
            batches = [uncommitted[start : start + BATCH]]
        starts: dict[TopicPartition, int] = {}
        for batch in batches:
            starts |= read_starts(channel, batch)
        return starts

    def _batches(self, turns: _Turns, led: list[PartitionView], whole: bool) -> Iterable[list[PartitionView]]:
        if whole:
            return _in_batches(led)
        start = turns.partition if turns.partition < len(led) else 0
        turns.partition = start + BATCH
        return [led[start : start + BATCH]]

    def _read_groups(
        self, channel: Channel, turns: _Turns, whole: bool
    ) -> tuple[frozenset[str] | None, list[GroupReading]]:
        began = self._clock()
        listed: frozenset[str] | None = None
        if whole or turns.lists.is_due(began):
            found_groups = list_groups(channel)
            turns.lists.took(began, self._clock())
            if found_groups is not None:
                turns.listed = tuple(sorted(found_groups))
                listed = frozenset(each.group for each in turns.listed)
        began = self._clock()
        if not turns.listed or not (whole or turns.members.is_due(began)):
            return listed, []
        start = turns.group if turns.group < len(turns.listed) else 0
        turns.group = start + GROUPS_AT_ONCE
        most = len(turns.listed) if whole else start + GROUPS_AT_ONCE
        starts = range(0 if whole else start, most, GROUPS_AT_ONCE)
        found = [g for at in starts for g in read_groups(channel, turns.listed[at : at + GROUPS_AT_ONCE])]
        turns.members.took(began, self._clock())
        return listed, found

    def _read_log_dirs(self, channel: Channel, turns: _Turns, whole: bool) -> LogDirs | None:
        began = self._clock()
        if not (whole or turns.log_dirs.is_due(began)):
            return None
        found = read_log_dirs(channel)
        turns.log_dirs.took(began, self._clock())
        return found


def _in_batches(partitions: list[PartitionView]) -> list[list[PartitionView]]:
    return [partitions[start : start + BATCH] for start in range(0, len(partitions), BATCH)]


def _greet(_channel: Channel) -> None:
    """Nothing: that there is a connection says enough."""


def _with_addresses(view: ClusterView, before: ClusterView | None) -> ClusterView:
    """Brokers that are gone, with what was known of them: they stay to be seen, and are asked again."""
    if before is None:
        return view
    known = {broker.id: broker for broker in before.brokers}
    now = {broker.id: broker for broker in view.brokers}
    gone = {
        broker.id: replace(broker, is_alive=False)
        for broker in known.values()
        if broker.host and (broker.id not in now or not now[broker.id].is_alive)
    }
    merged = {**now, **gone}
    return replace(view, brokers=tuple(merged[broker] for broker in sorted(merged)))
