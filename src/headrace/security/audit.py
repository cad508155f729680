"""The audit log: who did what to the cluster, who was turned away, who came in.

An event is one fact as JSON on one line. It goes to the broker's log, and into a queue that whoever writes the topic
takes from. Recording never waits and never fails: a queue that is full drops what comes, counts it and says so, in the
log and as an event of its own. Half of the queue is kept for what administrators do, so that a flood of refusals
cannot push that out.

What is refused again and again is one event and a count: the first is recorded at once, those with the same principal,
address, operation and resource within `WINDOW_SECONDS` are counted, and told together. So it is with logins that
succeed, and with offsets that are committed from outside a group's membership.
"""

import asyncio
import json
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import Any, Final

import structlog

from headrace.net.clock import Clock
from headrace.protocol.acl import AclOperation, ResourceType

TOPIC: Final = "__audit_log"
WINDOW_SECONDS: Final = 10.0
LONG_WINDOW_SECONDS: Final = 600.0
"""For what goes on all the time where it is meant to."""
MOST_WINDOWS: Final = 10_000
MOST_WINDOWS_BYTES: Final = 16 << 20
"""About what the events take that are being counted: clients make up the names in them."""
MOST_QUEUED_BYTES: Final = 8 << 20
MOST_RESOURCES: Final = 100
"""Of one event: what is about more becomes several, as nothing that was done may be left out."""
MOST_LINES: Final = 200
"""Lines of the broker's log in a second, without what only administrators do."""
_LONGEST_TEXT: Final = 1_000
_EACH_WINDOW: Final = 1_000
_EACH_RESOURCE: Final = 600
_EACH_CHARACTER: Final = 4
_EACH_MORE: Final = 64
"""Bytes that a queued event takes beside its text."""

log = structlog.get_logger(__name__)


class AuditTarget(StrEnum):
    """Where events go."""

    OFF = "off"
    LOG = "log"
    TOPIC = "topic"


class AuditLevel(IntEnum):
    """How much is recorded; each level includes those before it."""

    DENIALS = 0
    ADMIN = 1
    ALL = 2


class AuditKind(StrEnum):
    """What an event is about."""

    ADMIN = "admin"
    DENIAL = "denial"
    LOGIN = "login"
    AUDIT = "audit"
    """The audit log itself: what it has lost."""


class AuditOutcome(StrEnum):
    """What came of it."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DENIED = "denied"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedResource:
    """What an action was about, with what else tells of it: `{"partitions": "3"}`."""

    type: str
    name: str
    error: str = ""
    """Kafka's name of the error, where it failed for this one."""
    details: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, str]:
        values = {"type": self.type, "name": _cut(self.name), **({"error": self.error} if self.error else {})}
        return values | {key: _cut(value) for key, value in self.details.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """One fact. Nothing in it is secret."""

    kind: AuditKind
    operation: str
    """An API, as CreateTopics; what was refused, as Write; how somebody came in, as SCRAM-SHA-512."""
    outcome: AuditOutcome
    principal: str
    host: str
    listener: str = ""
    client_id: str | None = None
    resources: tuple[AuditedResource, ...] = ()
    error: str = ""
    message: str = ""
    is_dry_run: bool = False
    level: AuditLevel = AuditLevel.ADMIN
    """The first level at which it is recorded."""
    window_seconds: float = 0.0
    """How long those that repeat it are counted; 0 where each is told."""
    count: int = 1
    since_ms: int | None = None
    """Of several: when the first of them was."""

    @property
    def key(self) -> tuple[Any, ...]:
        """What is equal in events that repeat each other."""
        resources = tuple((each.type, each.name) for each in self.resources)
        return self.kind, self.operation, self.outcome, self.principal, self.host, self.listener, resources

    @property
    def weight(self) -> int:
        """The bytes of memory that it takes at most, about."""
        characters = len(self.principal) + len(self.client_id or "") + len(self.message)
        for each in self.resources:
            characters += len(each.name) + sum(map(len, each.details.values()))
        return _EACH_WINDOW + _EACH_RESOURCE * len(self.resources) + _EACH_CHARACTER * characters

    @property
    def is_of_admin(self) -> bool:
        """Whether it has room of its own, in the queue and in the log. What is counted as it goes on all the time has
        not, as anybody may do that."""
        return self.kind is AuditKind.AUDIT or (self.kind is AuditKind.ADMIN and not self.window_seconds)

    def parts(self) -> Iterator["AuditEvent"]:
        """The event as often as it takes for all its resources."""
        if len(self.resources) <= MOST_RESOURCES:
            yield self
            return
        for start in range(0, len(self.resources), MOST_RESOURCES):
            yield replace(self, resources=self.resources[start : start + MOST_RESOURCES])

    def to_json(self, event_id: str, broker_id: int, time_ms: int) -> dict[str, Any]:
        """The event as it is kept; what says nothing is left out."""
        values = {
            "id": event_id,
            "time": _time(time_ms),
            "broker": broker_id,
            "kind": self.kind.value,
            "operation": self.operation,
            "outcome": self.outcome.value,
            "principal": _cut(self.principal),
            "host": self.host,
            "listener": self.listener,
            "client_id": None if self.client_id is None else _cut(self.client_id),
            "resources": [each.to_json() for each in self.resources],
            "error": self.error,
            "message": _cut(self.message),
            "dry_run": self.is_dry_run,
            "count": self.count if self.count > 1 else None,
            "since": None if self.since_ms is None else _time(self.since_ms),
        }
        return {name: value for name, value in values.items() if value or name == "broker"}


class Queued:
    """Events that wait to be written, as lines of JSON."""

    def __init__(self, most_bytes: int = MOST_QUEUED_BYTES) -> None:
        self.bytes = 0
        self._most_bytes = most_bytes
        self._lines: deque[bytes] = deque()
        self._filled = asyncio.Event()

    def put(self, line: bytes, *, is_admin: bool) -> bool:
        """Whether there was room. Only an administrator's events may take the second half of it."""
        most = self._most_bytes if is_admin else self._most_bytes // 2
        if self.bytes + len(line) + _EACH_MORE > most:
            return False
        self.bytes += len(line) + _EACH_MORE
        self._lines.append(line)
        self._filled.set()
        return True

    def take(self, most_bytes: int) -> list[bytes]:
        """The oldest that have room in so many bytes, at least one if there is any."""
        taken: list[bytes] = []
        size = 0
        while self._lines and (not taken or size + len(self._lines[0]) <= most_bytes):
            line = self._lines.popleft()
            self.bytes -= len(line) + _EACH_MORE
            size += len(line)
            taken.append(line)
        if not self._lines:
            self._filled.clear()
        return taken

    async def wait(self) -> None:
        """Returns once there is something to take."""
        await self._filled.wait()

    def __len__(self) -> int:
        return len(self._lines)


@dataclass(slots=True)
class _Window:
    event: AuditEvent
    ends: float
    since_ms: int
    weight: int
    """Of the event; those that repeat it have the same names, and their own of what else they say."""
    repeats: int = 0


class AuditLog:
    """Takes events, and gives each an id. `sweep` is to be called each second."""

    def __init__(
        self,
        *,
        broker_id: int,
        clock: Clock,
        target: AuditTarget,
        level: AuditLevel,
        queued: Queued | None = None,
    ) -> None:
        self.recorded: Counter[AuditKind] = Counter()
        """Events that came, with those that are only counted."""
        self.dropped = 0
        """Events that nobody will read, as the queue was full."""
        self.queued = Queued() if queued is None else queued
        self._broker_id = broker_id
        self._clock = clock
        self._target = target
        self._level = level
        self._run = f"{clock.now_ms():x}"
        self._number = 0
        self._windows: OrderedDict[tuple[Any, ...], _Window] = OrderedDict()
        self._weight = 0
        """Of all of them."""
        self._lines = 0
        """Written to the log since the last sweep."""
        self._left_out = 0
        self._logged_drops = self._told_drops = 0

    def records(self, level: AuditLevel) -> bool:
        """Whether events of a level are recorded at all."""
        return level <= self._level

    def record(self, event: AuditEvent) -> None:
        """Take an event; one that repeats another is counted."""
        if event.level > self._level:
            return
        self.recorded[event.kind] += 1
        if not event.window_seconds:
            self._write(event)
            return
        key = event.key
        window = self._windows.get(key)
        if window is not None:
            window.repeats += 1
            self._weight -= window.weight
            window.event, window.weight = event, event.weight
        else:
            ends = self._clock.monotonic() + event.window_seconds
            window = self._windows[key] = _Window(event, ends, self._clock.now_ms(), event.weight)
            self._write(event)
        self._weight += window.weight
        while len(self._windows) > MOST_WINDOWS or self._weight > MOST_WINDOWS_BYTES:
            self._end_window(next(iter(self._windows)))

    def _end_window(self, key: tuple[Any, ...]) -> None:
        window = self._windows.pop(key)
        self._weight -= window.weight
        self._tell_repeats(window)

    def denied(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> None:
        """The authorizer has refused something: perhaps for the thousandth time in a second, which is only counted."""
        resources = ((titled(resource_type), name),)
        key = (AuditKind.DENIAL, titled(operation), AuditOutcome.DENIED, principal, host, "", resources)
        window = self._windows.get(key)
        if window is None:
            self.record(denial(principal, host, operation, resource_type, name))
            return
        window.repeats += 1
        self.recorded[AuditKind.DENIAL] += 1

    def sweep(self) -> None:
        """Tell repeated events whose time is over, and what was dropped."""
        now = self._clock.monotonic()
        for key in [key for key, window in self._windows.items() if window.ends <= now]:
            self._end_window(key)
        self._report_losses()

    def close(self) -> None:
        """Tell what is still being counted."""
        while self._windows:
            self._end_window(next(iter(self._windows)))
        self._report_losses()

    def _tell_repeats(self, window: _Window) -> None:
        if window.repeats:
            self._write(replace(window.event, count=window.repeats, since_ms=window.since_ms))

    def _report_losses(self) -> None:
        if self.dropped > self._logged_drops:
            lost, self._logged_drops = self.dropped - self._logged_drops, self.dropped
            log.error("audit events lost", events=lost, reason=f"more than {MOST_QUEUED_BYTES >> 20} MiB wait")
        if self.dropped > self._told_drops and self._enqueue(self._loss(self.dropped - self._told_drops)):
            self._told_drops = self.dropped
        if self._left_out:
            log.warning("audit lines left out", lines=self._left_out, reason=f"more than {MOST_LINES} in a second")
        self._lines = self._left_out = 0

    def _loss(self, events: int) -> AuditEvent:
        return AuditEvent(
            kind=AuditKind.AUDIT,
            operation="Dropped",
            outcome=AuditOutcome.FAILED,
            principal=f"Broker:{self._broker_id}",
            host="",
            count=events,
            message="the queue of events was full",
        )

    def _write(self, event: AuditEvent) -> None:
        for part in event.parts():
            values = self._values(part)
            self._log(part, values)
            if self._target is AuditTarget.TOPIC and not self._put(part, values):
                self.dropped += 1

    def _enqueue(self, event: AuditEvent) -> bool:
        return self._put(event, self._values(event))

    def _put(self, event: AuditEvent, values: Mapping[str, Any]) -> bool:
        return self.queued.put(encode(values), is_admin=event.is_of_admin)

    def _values(self, event: AuditEvent) -> dict[str, Any]:
        self._number += 1
        event_id = f"{self._broker_id}-{self._run}-{self._number}"
        return event.to_json(event_id, self._broker_id, self._clock.now_ms())

    def _log(self, event: AuditEvent, values: Mapping[str, Any]) -> None:
        if not event.is_of_admin:
            if self._lines >= MOST_LINES:
                self._left_out += 1
                return
            self._lines += 1
        # Texts of clients go through JSON, so that a line of the log is one line whatever they hold.
        told = {name: value for name, value in values.items() if name not in ("time", "broker")}
        log.info("audit", record=encode(told).decode())


def encode(values: Mapping[str, Any]) -> bytes:
    """An event on one line. Everything but printable ASCII is escaped: no text in it can forge a line, nor move the
    cursor of a terminal."""
    return json.dumps(values, ensure_ascii=True, separators=(",", ":")).replace("\x7f", "\\u007f").encode()


def denial(principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str) -> AuditEvent:
    """Somebody was refused an operation on a resource, by the ACLs."""
    return AuditEvent(
        kind=AuditKind.DENIAL,
        operation=titled(operation),
        outcome=AuditOutcome.DENIED,
        principal=principal,
        host=host,
        resources=(AuditedResource(type=titled(resource_type), name=name),),
        level=AuditLevel.DENIALS,
        window_seconds=WINDOW_SECONDS,
    )


def login(principal: str, host: str, listener: str, mechanism: str, *, error: str = "") -> AuditEvent:
    """Somebody has shown who it is, or `error` says why that failed."""
    return AuditEvent(
        kind=AuditKind.LOGIN,
        operation=mechanism,
        outcome=AuditOutcome.DENIED if error else AuditOutcome.SUCCEEDED,
        principal=principal,
        host=host,
        listener=listener,
        message=error,
        level=AuditLevel.DENIALS if error else AuditLevel.ALL,
        window_seconds=WINDOW_SECONDS,
    )


@lru_cache(maxsize=None, typed=True)  # members of two enumerations can be equal
def titled(value: IntEnum) -> str:
    """A member's name as Kafka writes it: TransactionalId, DescribeConfigs."""
    return "".join(part.capitalize() for part in value.name.split("_"))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}... ({len(text)} characters)"


def _time(time_ms: int) -> str:
    text = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
