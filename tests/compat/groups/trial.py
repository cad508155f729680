"""A group at work on topics of its own, and the questions asked of it while things happen."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from ..broker import OwnBroker
from ..clients.confluent import ConfluentDriver
from ..members.common import Order
from ..model import TIMEOUT_SECONDS, Membership, NotOffered
from ..wire import end_offsets
from .check import Limits, check, check_processed
from .feed import Feed
from .member import Event, Member, MemberLog, Place

SESSION_MS = 6000
HEARTBEAT_MS = 1000
_LONG_SESSION_MS = 20_000
_CALM_SECONDS = 1.5
_BALANCE_SECONDS = 15.0
_PROCESS_SECONDS = 20.0
_REBALANCE_SECONDS = 8.0
_STEP_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where a client's groups work: through `tap` to the broker at `direct`, which is `own` or someone's."""

    membership: Membership
    protocol: str
    tap: str
    direct: str
    reference: ConfluentDriver
    own: OwnBroker | None
    session_ms: int
    logs: Path


class Trial(AbstractContextManager["Trial"]):
    """One group with its topics; leaving the context ends every member."""

    def __init__(self, site: Site, name: str) -> None:
        self.site = site
        self.name = name
        self.members: list[Member] = []
        self.topics: list[str] = []
        self.session_ms = site.session_ms
        self._admin = AdminClient({"bootstrap.servers": site.direct, "log_level": 2})
        self._feeds = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self.members:
            member.discard()

    @property
    def logs(self) -> list[MemberLog]:
        return [member.log for member in self.members]

    def topic(self, what: str, partitions: int) -> list[Place]:
        """The places of a new topic, once they are led."""
        topic = f"{self.name}-{what}"
        self.topics.append(topic)
        self.site.reference.create_topic(topic, partitions, {})
        self._wait_led(topic, partitions)
        return [(topic, partition) for partition in range(partitions)]

    def grow(self, topic: str, before: int, after: int) -> list[Place]:
        """The places that the topic gained."""
        self._admin.create_partitions([NewPartitions(topic, after)])[topic].result(TIMEOUT_SECONDS)
        self._wait_led(topic, after)
        return [(topic, partition) for partition in range(before, after)]

    def _wait_led(self, topic: str, partitions: int) -> None:
        self.wait(
            f"every partition of {topic} is led",
            lambda: None not in end_offsets(self.site.direct, topic, partitions),
            TIMEOUT_SECONDS,
        )

    def start(
        self, *, topics: Iterable[str] = (), regex: str | None = None, instance: str = "", assignor: str = ""
    ) -> Member:
        """A new member of the group, by the names of topics or by an expression."""
        order = Order(
            bootstrap=self.site.tap,
            group=self.name,
            topics=tuple(topics),
            regex=regex,
            protocol=self.site.protocol,
            instance=instance or None,
            assignor=assignor or None,
            session_ms=self.session_ms,
            heartbeat_ms=HEARTBEAT_MS,
        )
        name = f"m{len(self.members) + 1}"
        member = Member(name, self.site.membership, order, self.site.logs / f"{self.name}-{name}.log")
        self.members.append(member)
        return member

    def feed(self, places: Iterable[Place]) -> Feed:
        """Records for these places, from the reference client past the tap."""
        self._feeds += 1
        return Feed(self.site.direct, f"feed-{self._feeds}", places)

    def lengthen_session(self) -> None:
        """Give members time to restart, before any starts; by a setting of the group where the broker decides."""
        if self.session_ms >= _LONG_SESSION_MS:
            return
        self.session_ms = _LONG_SESSION_MS
        if self.site.protocol == "classic":
            return
        entry = ConfigEntry(
            "consumer.session.timeout.ms", str(_LONG_SESSION_MS), incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ResourceType.GROUP, self.name, incremental_configs=[entry])
        self._admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_SECONDS)

    def restart_broker(self, *, kill: bool) -> None:
        """Stop the broker and start it again on its data."""
        if self.site.own is None:
            raise NotOffered("only a broker that the suite started is restarted")
        self.site.own.restart(kill=kill)

    def wait(self, what: str, holds: Callable[[], bool], seconds: float) -> None:
        """Return once it holds; a member that ended by itself meanwhile is an error."""
        deadline = time.monotonic() + seconds
        while not holds():
            for member in self.members:
                gone = not member.running and member.log.ended is None and not member.log.closed()
                assert not gone, f"{member.name} ended by itself{member.words()}"
            assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}{self._state()}"
            time.sleep(_STEP_SECONDS)

    def _state(self) -> str:
        owned = [f"{m.name} owns {len(m.log.owned())}{m.words()}" for m in self.members if m.log.ended is None]
        return f"; {', '.join(owned)}" if owned else ""

    def balanced(self, members: Sequence[Member], places: Iterable[Place], seconds: float = _BALANCE_SECONDS) -> None:
        """Wait until the members own all places, each of them some."""
        wanted = sorted(places)

        def holds() -> bool:
            owned = [member.log.owned() for member in members]
            return all(owned) and sorted(place for one in owned for place in one) == wanted

        self.wait(f"{len(members)} members own {len(wanted)} partitions", holds, seconds)

    def settled(self, members: Sequence[Member], places: Sequence[Place]) -> None:
        """Wait until that is so and has been for a while."""

        def calm() -> bool:
            since = time.monotonic_ns() - int(_CALM_SECONDS * 1e9)
            return not any(member.log.changes(since) for member in members)

        deadline = time.monotonic() + _BALANCE_SECONDS
        self.balanced(members, places)
        self.wait("the group is calm", calm, deadline - time.monotonic())
        self.balanced(members, places)

    def takeover_seconds(self) -> float:
        """How long to wait for others to have the partitions of a killed member."""
        return self.session_ms / 1000 + _BALANCE_SECONDS

    def processed(self, values: Iterable[str]) -> None:
        """Wait until every value is in some member's log."""
        wanted = set(values)
        deadline = time.monotonic() + _PROCESS_SECONDS
        while wanted.difference(*(log.values() for log in self.logs)) and time.monotonic() < deadline:
            time.sleep(_STEP_SECONDS)
        check_processed(self.logs, wanted)

    def check(self, produced: Iterable[str]) -> None:
        """Hold the logs against what must always be so."""
        gap = self.session_ms / 1000 + _REBALANCE_SECONDS
        limits = Limits(gap_seconds=gap, stamp_seconds=self.site.membership.stamp_seconds)
        check(self.logs, produced, time.monotonic_ns(), limits)


def given_up(members: Iterable[Member], since: int) -> list[Event]:
    """Every revocation and loss in these members' logs since then."""
    return [event for member in members for event in member.log.changes(since) if event.kind != "assigned"]
