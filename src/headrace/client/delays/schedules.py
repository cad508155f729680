"""Schedules: messages that are sent again and again, at the times of a cron expression in a time zone.

Those of `orders` are records of the compacted topic `orders.headrace-schedules`, which has one partition. The record of
a schedule is written by whoever makes or changes it; how far it is stands in a record of its own, which the mover
writes in the transaction that sends the message. So each time is sent once, and nobody's change is lost.
"""

import base64
import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from headrace.protocol.delayed import LONGEST_TOPIC, SCHEDULES, schedules_topic, target_of

from ..admin import Admin
from ..errors import ClientError, UnknownTopic
from ..producer import Delivered, Producer
from ..reader import RecordReader
from .topics import make_derived_topic

log: Final = logging.getLogger("headrace.delays")

NAME_HEADER: Final = "headrace.schedule"
TIME_HEADER: Final = "headrace.schedule.time"
"""Of the messages that are sent: which schedule, and the time it was meant for, in ms since 1970."""
_SCHEDULE: Final = b"schedule:"
_FIRED: Final = b"fired:"
MOST: Final = 10_000
"""Schedules of one topic: whoever sends them has all in memory."""
_LONGEST_NAME: Final = 200
_FORMAT: Final = 1
TOPIC_SETTINGS: Final = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",
    "segment.ms": "86400000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What is sent when."""

    name: str
    cron: str
    time_zone: str = "UTC"
    value: bytes | None = field(default=None, repr=False)
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    is_paused: bool = False
    since_ms: int = 0
    """Times up to this one are none of its own: when it was made, changed or resumed."""
    id: str = ""
    """Another one for each schedule of a name."""

    def next_ms(self, after_ms: int) -> int | None:
        """Its first time after another; None where there is none, or it is paused."""
        if self.is_paused:
            return None
        after = datetime.fromtimestamp(max(after_ms, self.since_ms) / 1000, ZoneInfo(self.time_zone))
        found = next(CronSim(self.cron, after), None)
        return None if found is None else int(found.timestamp() * 1000)


def checked(schedule: Schedule) -> Schedule:
    """A schedule that can be kept; `ClientError` says what is wrong with any other."""
    name = schedule.name
    if not name or len(name) > _LONGEST_NAME or not name.isprintable():
        raise ClientError(f"a schedule's name has 1 to {_LONGEST_NAME} printable characters", "_INVALID_ARG")
    try:
        zone = ZoneInfo(schedule.time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ClientError(
            f"there is no time zone '{schedule.time_zone}': name one as Europe/Berlin or UTC", "_INVALID_ARG"
        ) from error
    try:
        found = next(CronSim(schedule.cron, datetime.now(zone)), None)
    except CronSimError as error:
        raise ClientError(
            f"'{schedule.cron}' is no cron expression: {error}. It has minute, hour, day, month and weekday, as "
            "'0 8 * * MON-FRI'; with six fields the first is the second",
            "_INVALID_ARG",
        ) from error
    if found is None:
        raise ClientError(f"'{schedule.cron}' never comes", "_INVALID_ARG")
    return schedule


def encode(schedule: Schedule) -> tuple[bytes, bytes]:
    """The key and the value of its record."""
    body = {
        "format": _FORMAT,
        "id": schedule.id,
        "cron": schedule.cron,
        "time_zone": schedule.time_zone,
        "value": _text(schedule.value),
        "key": _text(schedule.key),
        "headers": [[name, _text(data)] for name, data in schedule.headers],
        "paused": schedule.is_paused,
        "since_ms": schedule.since_ms,
    }
    return _SCHEDULE + schedule.name.encode(), json.dumps(body).encode()


def encode_fired(schedule: Schedule, time_ms: int) -> tuple[bytes, bytes]:
    """The key and the value of the record that says up to which of its times a schedule is."""
    return _FIRED + schedule.name.encode(), json.dumps({"id": schedule.id, "time_ms": time_ms}).encode()


class ScheduleTable:
    """What the records of one topic amount to."""

    def __init__(self) -> None:
        self.schedules: dict[str, Schedule] = {}
        self._fired: dict[str, tuple[str, int]] = {}
        self._next: dict[str, int | None] = {}

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Take in a record; one that is not understood is told of, and left out."""
        try:
            if key is not None and key.startswith(_SCHEDULE):
                self._put(key.removeprefix(_SCHEDULE).decode(), value)
            elif key is not None and key.startswith(_FIRED):
                self._put_fired(key.removeprefix(_FIRED).decode(), value)
        except (ValueError, KeyError, TypeError, ClientError) as error:
            log.warning("a record of schedules is left out, with key %r: %s", key, error)

    def fired_ms(self, schedule: Schedule) -> int:
        """Up to which of its times a schedule is."""
        fired = self._fired.get(schedule.name)
        return fired[1] if fired is not None and fired[0] == schedule.id else 0

    def next_ms(self, schedule: Schedule) -> int | None:
        """When it is to be sent next."""
        if schedule.name not in self._next:
            self._next[schedule.name] = schedule.next_ms(self.fired_ms(schedule))
        return self._next[schedule.name]

    def _put(self, name: str, value: bytes | None) -> None:
        self._next.pop(name, None)
        if value is None:
            self.schedules.pop(name, None)
        elif name in self.schedules or len(self.schedules) < MOST:
            self.schedules[name] = _decode(name, value)

    def _put_fired(self, name: str, value: bytes | None) -> None:
        self._next.pop(name, None)
        if value is None:
            self._fired.pop(name, None)
            return
        body = json.loads(value)
        found = (str(body["id"]), int(body["time_ms"]))
        known = self._fired.get(name)
        # What was applied when it was written comes again when it is read: it never sets a schedule back.
        if known is None or known[0] != found[0] or known[1] < found[1]:
            self._fired[name] = found


def _decode(name: str, value: bytes) -> Schedule:
    body = json.loads(value)
    schedule = Schedule(
        name=name,
        id=str(body["id"]),
        cron=str(body["cron"]),
        time_zone=str(body["time_zone"]),
        value=_data(body["value"]),
        key=_data(body["key"]),
        headers=tuple((str(header), _data(data)) for header, data in body["headers"]),
        is_paused=bool(body["paused"]),
        since_ms=int(body["since_ms"]),
    )
    return checked(schedule)


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _data(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


def read_table(admin: Admin, bootstrap: str, topic: str, settings: Mapping[str, Any]) -> tuple[ScheduleTable, int]:
    """What the topic amounts to now, and the offset up to which it was read: waits for transactions under way."""
    table = ScheduleTable()
    start, end = admin.start_offsets(topic, [0]), admin.end_offsets(topic, [0])
    while admin.end_offsets(topic, [0], committed_only=True)[0] < end[0]:
        time.sleep(0.05)
    reader = RecordReader(bootstrap, topic, start, end, {**settings, "isolation.level": "read_committed"})
    with closing(reader.messages()) as messages:
        for message in messages:
            if message is not None:
                table.apply(message.key(), message.value())
    return table, end[0]


class Schedules:
    """The schedules of one topic, for whoever administers them."""

    def __init__(self, admin: Admin, bootstrap: str, target: str, settings: Mapping[str, Any] | None = None) -> None:
        if target_of(target) is not None or len(schedules_topic(target)) > LONGEST_TOPIC:
            raise ClientError(
                f"'{target}' cannot have schedules: with '{SCHEDULES}' its name is too long, or it is where messages "
                "of another topic wait",
                "TOPIC_EXCEPTION",
            )
        self.target = target
        self.topic = schedules_topic(target)
        self._admin = admin
        self._bootstrap = bootstrap
        self._settings = dict(settings or {})

    def setup(self) -> None:
        """See that the topic is there in which they are kept."""
        make_derived_topic(self._admin, self.target, self.topic, 1, lambda: TOPIC_SETTINGS)

    def table(self) -> ScheduleTable:
        """All of them."""
        try:
            return read_table(self._admin, self._bootstrap, self.topic, self._settings)[0]
        except UnknownTopic:
            return ScheduleTable()

    def __iter__(self) -> Iterator[Schedule]:
        table = self.table()
        return iter([table.schedules[name] for name in sorted(table.schedules)])

    def get(self, name: str) -> Schedule:
        """The one of that name."""
        found = self.table().schedules.get(name)
        if found is None:
            raise ClientError(f"topic '{self.target}' has no schedule '{name}'", "UNKNOWN_SCHEDULE")
        return found

    def create(self, schedule: Schedule, *, replaces: bool = False) -> Schedule:
        """Keep a schedule: it begins with its first time from now on."""
        made = replace(checked(schedule), id=uuid4().hex, since_ms=_now_ms())
        self.setup()
        table = self.table()
        if schedule.name in table.schedules and not replaces:
            raise ClientError(f"topic '{self.target}' has a schedule '{schedule.name}' already", "SCHEDULE_EXISTS")
        if len(table.schedules) >= MOST and schedule.name not in table.schedules:
            raise ClientError(f"topic '{self.target}' has {MOST} schedules, and takes no more", "POLICY_VIOLATION")
        self._put(made)
        return made

    def pause(self, name: str) -> None:
        """Send nothing until it is resumed."""
        self._put(replace(self.get(name), is_paused=True))

    def resume(self, name: str) -> None:
        """Go on with its first time from now on."""
        self._put(replace(self.get(name), is_paused=False, since_ms=_now_ms()))

    def delete(self, name: str) -> None:
        """Forget it."""
        self.get(name)
        with Producer(self._bootstrap, settings=self._settings) as producer:
            for prefix in (_SCHEDULE, _FIRED):
                producer.send(self.topic, None, key=prefix + name.encode(), partition=0)

    def run_now(self, name: str) -> Delivered:
        """Send its message now, too."""
        schedule = self.get(name)
        headers = message_headers(schedule, _now_ms())
        with Producer(self._bootstrap, settings=self._settings) as producer:
            return producer.deliver(self.target, schedule.value, key=schedule.key, headers=headers)

    def _put(self, schedule: Schedule) -> None:
        key, value = encode(schedule)
        with Producer(self._bootstrap, settings=self._settings) as producer:
            producer.deliver(self.topic, value, key=key, partition=0)


def message_headers(schedule: Schedule, time_ms: int) -> list[tuple[str, bytes | None]]:
    """The headers of a message that is sent for one of its times."""
    return [
        *schedule.headers,
        (NAME_HEADER, schedule.name.encode()),
        (TIME_HEADER, str(time_ms).encode()),
    ]


def _now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)
