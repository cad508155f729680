"""The mover: takes messages out of their lanes when their time has come.

Any number may run; the group `headrace.mover` gives each lane to one of them. What it reads of a lane it moves, in one
transaction with the lane's position; from the first message on that is not due it forgets all and comes back later. So
its memory does not depend on how many wait, and nothing is lost or doubled when it dies.

What a target does not take for what it is (too large, say) goes to `orders.headrace-delayed.dead-letter`. Where a
target is missing, or may not be written to, its messages wait.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple
from uuid import uuid4

from confluent_kafka import TopicPartition

from headrace.protocol.delayed import SCHEDULES, target_of

from ..admin import Admin
from ..consumer import Consumer
from ..dead_letters import PREFIX as LETTER_PREFIX
from ..dead_letters import SUFFIX as LETTER_SUFFIX
from ..errors import ClientError, NotDelivered, ProducerFenced
from ..messages import Message
from ..producer import OF_CONSUMERS, OF_PRODUCERS, Delivered, OncePerMinute, Producer, Settings, library_settings
from ..waiting import LibraryErrors
from .clock import ClusterClock
from .lanes import CLOCK, due_of, lane_for, leaves_at, own_headers, partition_of, patience_ms
from .schedules import Schedule, ScheduleTable, encode_fired, message_headers, read_table
from .topics import admin_like

log: Final = logging.getLogger("headrace.delays")
log.addFilter(OncePerMinute())

GROUP: Final = "headrace.mover"
_MOST: Final = 2000
"""Messages of one transaction."""
_IDLE_SECONDS: Final = 0.25
_AGAIN_SECONDS: Final = 2.0
_HELD_BACK_SECONDS: Final = 10.0
"""Until a target that is missing, or may not be written to, is tried again."""
_REFRESH_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.05
_CHEAP: Final = 100
"""Between two looks at the topics lies so many times what a look takes."""
_DELETE_SECONDS: Final = 60.0
_EARLY_MS: Final = 50
"""A lane is fetched so long before its first message leaves it; so short a wait is slept through."""
_PROBE_SECONDS: Final = 5.0
_MOST_MISSED: Final = 100
_SCHEDULES_SECONDS: Final = 1.0
"""Between two tries of schedules whose targets take nothing."""
_NEVER_MS: Final = 2**53
_CONSUMER_SETTINGS: Final = {
    "fetch.wait.max.ms": 50,  # a lane that is looked at again is in the next request
    "queued.max.messages.kbytes": 8192,
    "queued.min.messages": 10_000,
    "session.timeout.ms": 6000,
    "heartbeat.interval.ms": 1000,
}
_PRODUCER_SETTINGS: Final = {"linger.ms": 1, "transaction.timeout.ms": 6000, "queue.buffering.max.kbytes": 65_536}
"""A transaction takes less than a second; that of a mover which was killed holds up readers until it times out."""
_OF_THE_TOPIC: Final = frozenset(
    {"TOPIC_AUTHORIZATION_FAILED", "UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"}
    | {"CLUSTER_AUTHORIZATION_FAILED", "NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND"}
)
_OF_THE_MESSAGE: Final = frozenset(
    {"MSG_SIZE_TOO_LARGE", "INVALID_RECORD", "INVALID_TIMESTAMP", "_UNKNOWN_PARTITION", "_INVALID_ARG"}
    | {"RECORD_LIST_TOO_LARGE", "POLICY_VIOLATION"}
)

Lane = tuple[str, int]


class Refusal(NamedTuple):
    """A message that was not taken, and why."""

    message: Message[bytes]
    error: NotDelivered


class Mover:
    """Moves until told to stop. `settings` are those of librdkafka or Java's client, for consumers and producers."""

    def __init__(
        self,
        bootstrap: str | None = None,
        settings: Settings | None = None,
        *,
        wall: Callable[[], float] = time.time,
        refresh_seconds: float = _REFRESH_SECONDS,
    ) -> None:
        self.moved = 0
        """Messages that have reached their targets by this mover."""
        self._bootstrap = bootstrap
        self._settings = dict(settings or {})
        self._transactional_id = f"{GROUP}-{uuid4().hex}"
        self._refresh_seconds = refresh_seconds
        self._clock = ClusterClock(wall)
        self._topics: frozenset[str] | None = None
        """All there are, as of the last look."""
        self._lanes = _Lanes()

    def run(self, stop: threading.Event, on_ready: Callable[[], None] = lambda: None) -> None:
        """Move what is due until the event is set; through any trouble with the cluster."""
        watch = threading.Thread(target=self._watch, args=(stop,), name="headrace-mover-topics", daemon=True)
        watch.start()
        while self._topics is None and not stop.wait(_LOOK_SECONDS):
            pass
        if self._topics is not None:
            on_ready()
        while not stop.is_set():
            try:
                self._move(stop)
            except ClientError as error:
                log.warning("delayed messages are not moved now: %s", error)
                stop.wait(_AGAIN_SECONDS)
            except Exception:
                log.exception("moving delayed messages failed; it begins anew")
                stop.wait(_AGAIN_SECONDS)
        watch.join()

    # Topics

    def _watch(self, stop: threading.Event) -> None:
        """Look for topics of lanes again and again, the more seldom the longer it takes."""
        admin: Admin | None = None
        while not stop.is_set():
            began = time.monotonic()
            try:
                admin = admin or self._admin()
                self._topics = frozenset(topic.name for topic in admin.list_topics())
            except ClientError as error:
                log.warning("the topics cannot be listed, so that no new delays are noticed: %s", error)
            stop.wait(max(self._refresh_seconds, _CHEAP * (time.monotonic() - began)))

    def _admin(self) -> Admin:
        return admin_like(library_settings(self._bootstrap, self._settings, LibraryErrors(), OF_CONSUMERS))

    def _read(self) -> frozenset[str]:
        """Topics of lanes, and of schedules."""
        return frozenset(name for name in self._topics or () if target_of(name) is not None)

    # Moving

    def _move(self, stop: threading.Event) -> None:
        topics = self._read()
        if not topics:
            stop.wait(min(self._refresh_seconds, 0.5))
            return
        self._lanes = _Lanes()
        producer = self._producer()
        consumer = Consumer(
            sorted(topics),
            group=GROUP,
            bootstrap=self._bootstrap,
            commits=False,
            settings={**_CONSUMER_SETTINGS, **self._settings},
            on_assigned=self._lanes.assigned,
            on_revoked=self._lanes.revoked,
        )
        try:
            rounds = _Rounds(self, consumer, producer, self._lanes, self._clock, stop)
            while not stop.is_set() and self._read() == topics:
                rounds.next()
            rounds.delete()
        finally:
            try:
                consumer.close()
            finally:
                _close(producer)

    def _producer(self) -> Producer:
        return Producer(
            self._bootstrap,
            transactional_id=self._transactional_id,
            settings={**_PRODUCER_SETTINGS, **self._settings},
        )

    def has_target(self, topic: str) -> bool:
        """Whether the messages of a topic of lanes have somewhere to go."""
        return target_of(topic) in (self._topics or ())

    def make_letters(self, topic: str) -> str:
        """The topic for what the target of a topic of lanes refuses."""
        name = topic + LETTER_SUFFIX
        if name not in (self._topics or ()):
            error = self._admin().create_topics([name], 1)[name]
            if error is not None and error.code != "TOPIC_ALREADY_EXISTS":
                raise error
        return name

    def schedules_of(self, topic: str) -> tuple[ScheduleTable, int]:
        """The schedules that a topic has, and the offset up to which it was read."""
        settings = library_settings(self._bootstrap, self._settings, LibraryErrors(), OF_PRODUCERS)
        bootstrap = settings.pop("bootstrap.servers")
        return read_table(self._admin(), bootstrap, topic, {**settings, "group.id": GROUP})

    def delete_before(self, topic: str, offsets: dict[int, int]) -> None:
        """Give up the space of what has been moved."""
        self._admin().delete_records(topic, offsets)


def _close(producer: Producer) -> None:
    try:
        producer.close(5.0)
    except ClientError as error:
        log.info("a producer was given up: %s", error)


class _Lanes:
    """When each lane that this mover has is looked at again, and what is not taken from any."""

    def __init__(self) -> None:
        self.resting: dict[Lane, float] = {}
        """Until when lanes are left alone, by a clock that nobody sets."""
        self.fresh: set[Lane] = set()
        """Lanes that have just been given, and may be paused from an earlier time."""
        self.moved_to: dict[Lane, int] = {}
        """Offsets below which everything has been moved, and the space not given up."""
        self.tables: dict[str, ScheduleTable] = {}
        """Schedules, by the topic in which they are kept."""
        self._given: set[Lane] = set()
        self._to_load: set[str] = set()
        self._next_schedule_ms: int | None = None

    def assigned(self, lanes: list[Lane]) -> None:
        self.fresh.update(lanes)
        self._given.update(lane for lane in lanes if not lane[0].endswith(SCHEDULES))
        self._to_load.update(topic for topic, _ in lanes if topic.endswith(SCHEDULES))

    def revoked(self, lanes: list[Lane]) -> None:
        for lane in lanes:
            self.tables.pop(lane[0], None)
            self._to_load.discard(lane[0])
            self.fresh.discard(lane)
            self._given.discard(lane)
            self.resting.pop(lane, None)
            self.moved_to.pop(lane, None)

    def awake(self, now: float) -> list[Lane]:
        """Those to fetch from again."""
        found = [lane for lane, until in self.resting.items() if until <= now]
        for lane in found:
            del self.resting[lane]
        found += [lane for lane in self.fresh if lane not in self.resting]
        self.fresh.clear()
        return found

    def given(self) -> list[Lane]:
        """Lanes that were another mover's, who may not have given up the space of all that it moved."""
        found, self._given = self._given, set()
        return sorted(found)

    def new_schedules(self) -> list[str]:
        """Topics of schedules that were given, and are to be read."""
        found, self._to_load = self._to_load, set()
        return sorted(found)

    def loaded(self, topic: str, table: ScheduleTable) -> None:
        self.tables[topic] = table
        self._next_schedule_ms = None

    def without_schedules(self, batch: Sequence[Message[bytes]]) -> Sequence[Message[bytes]]:
        """The messages that are delayed ones; the others change schedules."""
        if not self.tables and not self._to_load:
            return batch
        delayed = []
        for message in batch:
            if not message.topic.endswith(SCHEDULES):
                delayed.append(message)
            elif message.topic in self.tables:
                self.tables[message.topic].apply(message.key, message.data)
                self._next_schedule_ms = None
        return delayed

    def next_schedule_ms(self) -> int:
        """When the next schedule sends something."""
        if self._next_schedule_ms is None:
            times = [table.next_ms(each) for table in self.tables.values() for each in table.schedules.values()]
            self._next_schedule_ms = min((each for each in times if each is not None), default=_NEVER_MS)
        return self._next_schedule_ms

    def forget_next_schedule(self) -> None:
        """Something was sent."""
        self._next_schedule_ms = None


class _Rounds:
    """Rounds of one membership: fetch, see what may leave, move it in a transaction, let the lanes rest."""

    def __init__(
        self,
        mover: Mover,
        consumer: Consumer[bytes],
        producer: Producer,
        lanes: _Lanes,
        clock: ClusterClock,
        stop: threading.Event,
    ) -> None:
        self._mover = mover
        self._consumer = consumer
        self._producer = producer
        self._lanes = lanes
        self._clock = clock
        self._stop = stop
        self._singly: dict[str, int] = {}
        """Topics of lanes of which so many more messages are moved one by one, to find the one that is refused."""
        self._refused: dict[tuple[str, int, int], str] = {}
        """Messages that their targets refuse, and why: these become dead letters."""
        self._held: dict[str, float] = {}
        """Topics of lanes whose targets refuse everything, and until when that is not tried again."""
        self._schedules_rest_until = 0.0
        self._returned: set[Lane] = set()
        """Lanes that have just given messages to themselves, as where clocks of brokers differ: these rest a little."""
        self._deleted_at = time.monotonic()

    def next(self) -> None:
        now = time.monotonic()
        if awake := self._lanes.awake(now):
            self._consumer.resume(awake)
        for topic in self._lanes.new_schedules():
            self._load(topic)
        until = min(self._lanes.resting.values(), default=now + _IDLE_SECONDS)
        scheduled = now + (self._lanes.next_schedule_ms() - self._clock.now_ms()) / 1000
        until = min(until, max(scheduled, self._schedules_rest_until))
        batch = self._consumer.receive_many(_MOST, min(max(until - now, 0.001), _IDLE_SECONDS))
        if batch and (delayed := self._lanes.without_schedules(batch)):
            self._take(delayed)
        is_rested = time.monotonic() >= self._schedules_rest_until
        if is_rested and self._lanes.next_schedule_ms() <= self._clock.now_ms():
            self._send_scheduled()
        if now - self._deleted_at > _DELETE_SECONDS:
            self._deleted_at = now
            if given := self._lanes.given():
                moved = self._consumer.committed(given)
                self._lanes.moved_to = {
                    lane: offset for lane, offset in moved.items() if offset > 0
                } | self._lanes.moved_to
            self.delete()

    def _take(self, batch: Sequence[Message[bytes]]) -> None:
        by_lane: dict[Lane, list[Message[bytes]]] = {}
        for message in batch:
            by_lane.setdefault((message.topic, message.partition), []).append(message)
        if self._clock.is_stale:
            self._learn_time(batch[0].topic)
        self._sleep_through(by_lane)
        now_ms = self._clock.now_ms()
        ready = {lane: self._ready(lane, messages, now_ms) for lane, messages in by_lane.items()}
        leaving = [message for lane, count in ready.items() for message in by_lane[lane][:count]]
        if leaving and not self._transfer(leaving, now_ms):
            self._consumer.rewind(batch)
            return
        for lane, messages in by_lane.items():
            if ready[lane] < len(messages):
                self._rest(lane, messages[ready[lane]], now_ms)
            elif lane in self._returned:
                self._rest_for(lane, messages[-1].offset + 1, patience_ms(lane[1]) / 1000)

    def _sleep_through(self, by_lane: dict[Lane, list[Message[bytes]]]) -> None:
        """Where the next message of a lane leaves in a moment, this is waited for."""
        now_ms = self._clock.now_ms()
        waits = [
            wait
            for (_, lane), messages in by_lane.items()
            if 0 < (wait := _leaves(lane, messages[0]) - now_ms) <= _EARLY_MS
        ]
        if waits:
            self._stop.wait(min(waits) / 1000)

    def _ready(self, lane: Lane, messages: list[Message[bytes]], now_ms: int) -> int:
        """How many of a lane's next messages leave it now."""
        topic, number = lane
        if not self._may_go(topic):
            if topic not in self._held:
                log.warning("topic '%s' is not there: what waits for it goes on waiting", target_of(topic))
            return 0
        most = 1 if topic in self._singly else len(messages)
        for count, message in enumerate(messages[:most]):
            if _leaves(number, message) > now_ms:
                return count
        return most

    def _rest(self, lane: Lane, message: Message[bytes], now_ms: int) -> None:
        """Forget what was fetched of a lane from this message on, and come back when it leaves."""
        topic, number = lane
        wait_ms = _leaves(number, message) - now_ms + (patience_ms(number) or -_EARLY_MS)
        seconds = max(wait_ms, 0) / 1000 if self._may_go(topic) else _HELD_BACK_SECONDS
        self._rest_for(lane, message.offset, seconds)

    def _rest_for(self, lane: Lane, offset: int, seconds: float) -> None:
        self._consumer.pause([lane])
        self._consumer.seek(*lane, offset)
        self._lanes.resting[lane] = time.monotonic() + seconds

    # Schedules

    def _load(self, topic: str) -> None:
        """Read the schedules of a topic that was given to this mover, once no transaction of another is under way."""
        self._consumer.committed([(topic, 0)])
        table, end = self._mover.schedules_of(topic)
        self._consumer.seek(topic, 0, end)
        self._lanes.loaded(topic, table)

    def _send_scheduled(self) -> None:
        """Send what schedules have to send now: once, also where several times of one have passed."""
        if self._clock.is_stale:
            self._learn_time(next(iter(self._lanes.tables)))
        now_ms = self._clock.now_ms()
        for topic, table in self._lanes.tables.items():
            for schedule in list(table.schedules.values()):
                at_ms = table.next_ms(schedule)
                if at_ms is not None and at_ms <= now_ms and self._may_go(topic):
                    self._send_one(topic, table, schedule, at_ms, now_ms)
        self._lanes.forget_next_schedule()
        if self._lanes.next_schedule_ms() <= now_ms:
            self._schedules_rest_until = time.monotonic() + _SCHEDULES_SECONDS

    def _send_one(self, topic: str, table: ScheduleTable, schedule: Schedule, at_ms: int, now_ms: int) -> None:
        refusals: list[NotDelivered] = []
        key, value = encode_fired(schedule, _last_time(schedule, at_ms, now_ms))
        target = target_of(topic) or ""
        try:
            self._in_transaction_of(
                topic,
                lambda: self._send_for(target, schedule, at_ms, refusals),
                lambda: self._producer.send(topic, value, key=key, partition=0),
            )
        except ClientError as error:
            self._raise_if_fenced(error)
            reason = refusals[0] if refusals else error
            log.warning("schedule '%s' of '%s' could not send: %s", schedule.name, target, reason)
            if reason.code not in _OF_THE_MESSAGE:
                self._hold_back(topic)
                return
            log.error("schedule '%s' of '%s' leaves out a time, as its message is refused", schedule.name, target)
            self._in_transaction_of(topic, lambda: self._producer.send(topic, value, key=key, partition=0))
        table.apply(key, value)
        self._mover.moved += 1

    def _send_for(self, target: str, schedule: Schedule, at_ms: int, refusals: list[NotDelivered]) -> None:
        def told(error: NotDelivered | None, _found: Delivered | None) -> None:
            if error is not None:
                refusals.append(error)

        headers = message_headers(schedule, at_ms)
        self._producer.send_with(told, target, schedule.value, key=schedule.key, headers=headers)

    def _in_transaction_of(self, topic: str, *sends: Callable[[], object]) -> None:
        """Send in a transaction that fails for who has lost the schedules of a topic to another mover."""
        transaction = self._producer.begin()
        try:
            for send in sends:
                send()
            # The position means nothing: a mover reads schedules from their beginning.
            transaction.send_positions([TopicPartition(topic, 0, 0)], self._consumer.member())
        except BaseException:
            transaction.abort()
            raise
        transaction.commit()

    def _learn_time(self, topic: str) -> None:
        """Have a broker append a record, which it stamps with its time."""
        transaction = self._producer.begin()
        try:
            appended_ms = self._producer.append_time(
                topic, partition=0, key=CLOCK, headers=[(CLOCK, b"")], timeout=_PROBE_SECONDS
            )
        except BaseException:
            transaction.abort()
            raise
        transaction.commit()
        if appended_ms is not None:
            self._clock.appended_at(appended_ms)

    # A transaction

    def _transfer(self, messages: Sequence[Message[bytes]], now_ms: int) -> bool:
        """Move messages and the positions of their lanes; whether that is done. Else all are to be read again."""
        refusals: list[Refusal] = []
        self._returned.clear()
        transaction = self._producer.begin()
        try:
            try:
                moved = sum(self._send(message, now_ms, refusals) for message in messages)
                transaction.send_positions(_after(messages), self._consumer.member())
            except BaseException:
                transaction.abort()
                raise
            transaction.commit()
        except ClientError as error:
            self._settle(refusals, messages, error)
            return False
        self._mover.moved += moved
        self._passed(messages)
        return True

    def _send(self, message: Message[bytes], now_ms: int, refusals: list[Refusal]) -> bool:
        """Send a message on; whether to its target."""
        headers = message.headers
        if any(name == CLOCK for name, _ in headers):
            return False

        def told(error: NotDelivered | None, _found: Delivered | None) -> None:
            if error is not None:
                refusals.append(Refusal(message, error))

        due_ms = due_of(headers)
        reason = self._refused.get(_place(message))
        if reason is not None:
            name = self._mover.make_letters(message.topic)
            self._producer.send_with(told, name, message.data, key=message.key, headers=_about(message, reason))
            return False
        if due_ms > now_ms:
            lane = lane_for(due_ms - now_ms)
            if lane >= message.partition > 0:
                self._returned.add((message.topic, message.partition))
            self._producer.send_with(
                told, message.topic, message.data, key=message.key, headers=headers, partition=lane
            )
            return False
        target, asked = target_of(message.topic) or "", partition_of(headers)
        try:
            self._producer.send_with(
                told, target, message.data, key=message.key, headers=own_headers(headers), partition=asked
            )
        except NotDelivered as error:
            refusals.append(Refusal(message, error))
            raise
        return True

    def _passed(self, messages: Sequence[Message[bytes]]) -> None:
        for message in messages:
            self._lanes.moved_to[message.topic, message.partition] = message.offset + 1
            self._refused.pop(_place(message), None)
            left = self._singly.get(message.topic)
            if left is not None:
                self._singly[message.topic] = left - 1
                if left <= 1:
                    del self._singly[message.topic]

    def _settle(self, refusals: Sequence[Refusal], messages: Sequence[Message[bytes]], error: ClientError) -> None:
        """See to it that what was refused does not hold up the rest."""
        self._raise_if_fenced(error)
        first = next((each for each in refusals if not each.error.code.startswith("_PURGE")), None)
        if first is None:
            log.info("messages are moved again: %s", error)
            self._stop.wait(0.1)
            return
        message, refusal = first
        log.warning("%s is not taken: %s", message, refusal)
        if refusal.code not in _OF_THE_MESSAGE:
            self._stop.wait(1.0)
            if refusal.code in _OF_THE_TOPIC:
                self._hold_back(message.topic)
        elif len(messages) == 1:
            self._refused[_place(message)] = refusal.message
        else:
            self._singly[message.topic] = len(messages)

    def _raise_if_fenced(self, error: ClientError) -> None:
        """A producer that was fenced is of no use any more."""
        if isinstance(error, ProducerFenced):
            raise error

    def _hold_back(self, topic: str) -> None:
        """Leave the lanes of a topic alone for a while."""
        self._held[topic] = time.monotonic() + _HELD_BACK_SECONDS

    def _may_go(self, topic: str) -> bool:
        """Whether the target of a topic of lanes is there, and has not just refused."""
        if time.monotonic() >= self._held.get(topic, 0.0):
            self._held.pop(topic, None)
        return topic not in self._held and self._mover.has_target(topic)

    # Space

    def delete(self) -> None:
        """Give up the space of what has been moved. It is also what keeps a mover from moving it again that finds no
        positions: brokers forget those of groups that have had no member for long."""
        by_topic: dict[str, dict[int, int]] = {}
        for (topic, number), offset in self._lanes.moved_to.items():
            by_topic.setdefault(topic, {})[number] = offset
        self._lanes.moved_to.clear()
        for topic, offsets in by_topic.items():
            try:
                self._mover.delete_before(topic, offsets)
            except ClientError as error:
                log.warning("what was moved out of '%s' is not deleted: %s", topic, error)


def _last_time(schedule: Schedule, at_ms: int, now_ms: int) -> int:
    """The last of its times that has passed, this one or a later."""
    last = at_ms
    for _ in range(_MOST_MISSED):
        following = schedule.next_ms(last)
        if following is None or following > now_ms:
            return last
        last = following
    return now_ms


def _leaves(lane: int, message: Message[bytes]) -> int:
    return leaves_at(lane, message.record.timestamp()[1], due_of(message.headers))


def _place(message: Message[bytes]) -> tuple[str, int, int]:
    return message.topic, message.partition, message.offset


def _after(messages: Iterable[Message[bytes]]) -> list[Any]:
    """The positions after these messages."""
    found = {(message.topic, message.partition): message.offset + 1 for message in messages}
    return [TopicPartition(topic, partition, offset) for (topic, partition), offset in found.items()]


def _about(message: Message[bytes], reason: str) -> list[tuple[str, bytes | None]]:
    """The headers of a dead letter: those of the message, and why it is one."""
    found = {
        "topic": target_of(message.topic) or "",
        "timestamp": str(message.record.timestamp()[1]),
        "group": GROUP,
        "attempts": "1",
        "reason": reason,
    }
    about = [(LETTER_PREFIX + name, text.encode(errors="replace")) for name, text in found.items()]
    return [*own_headers(message.headers), *about]
