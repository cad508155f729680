"""Receiving messages, as a member of a group or alone."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Generic, Literal, Self, TypeVar, overload

from confluent_kafka import Consumer as LibraryConsumer
from confluent_kafka import KafkaException, TopicPartition

from .errors import ClientError, UnknownTopic, from_kafka, translated
from .forking import LeftBehind, stays_with_parent
from .formats import Format, format_of
from .messages import Message
from .producer import OF_PRODUCERS, Settings, library_settings, log
from .waiting import LibraryErrors

V = TypeVar("V")
Start = Literal["earliest", "latest"]
OnPartitions = Callable[[list[tuple[str, int]]], None]
"""Is told of partitions that this member has been given, or is about to give up."""

_POLL_SECONDS: Final = 0.5
_SLICE_SECONDS: Final = 0.1
_MOST: Final = 1000
_QUICK_SECONDS: Final = 0.25
_SLOW_SECONDS: Final = 1.0
_COMMIT_SECONDS: Final = 5.0
_METADATA_SECONDS: Final = 30.0
_PASSING: Final = frozenset(
    {"_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT", "REQUEST_TIMED_OUT", "_PARTITION_EOF", "_WAIT_COORD"}
    | {"COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "_MAX_POLL_EXCEEDED"}
)
_MOVED_ON: Final = frozenset(
    {"ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", "STALE_MEMBER_EPOCH", "FENCED_MEMBER_EPOCH"}
    | {"_STATE", "_ASSIGNMENT_LOST", "_NO_OFFSET"}
)
"""Why a commit is refused once the partitions are somebody else's, who handles the messages again."""


def named_topics(topics: str | Iterable[str]) -> list[str]:
    """One topic or several, in a list; none is refused."""
    found = [topics] if isinstance(topics, str) else list(topics)
    if not found or "" in found:
        raise ClientError("there is no topic to read: name one, or several", "_INVALID_ARG")
    return found


class Consumer(Generic[V]):
    """Messages of topics, each at least once: it counts as handled when the next one is asked for.

    with Consumer("orders", group="billing", value=Order) as consumer:
        for message in consumer:
            bill(message.value)

    What was handled is committed every few seconds, when partitions go to another member, and at the end; where the
    block is left with an error, the message in hand does not count. With `commits=False` only `commit` does that.
    Without a group it reads every partition, and commits nothing. `value` is the type of values; see `formats`.
    A consumer belongs to one thread.
    """

    @overload
    def __init__(
        self: "Consumer[bytes]",
        topics: str | Iterable[str],
        *,
        group: str | None,
        bootstrap: str | None = None,
        start: Start = "earliest",
        commits: bool = True,
        settings: Settings | None = None,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        topics: str | Iterable[str],
        *,
        group: str | None,
        value: type[V] | Format[V],
        bootstrap: str | None = None,
        start: Start = "earliest",
        commits: bool = True,
        settings: Settings | None = None,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
    ) -> None: ...

    def __init__(
        self,
        topics: str | Iterable[str],
        *,
        group: str | None,
        value: Any = bytes,
        bootstrap: str | None = None,
        start: Start = "earliest",
        commits: bool = True,
        settings: Settings | None = None,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
    ) -> None:
        self.topics = named_topics(topics)
        if group == "":
            raise ClientError("the group has no name; group=None reads without a group", "INVALID_GROUP_ID")
        self._format: Format[V] = format_of(value)
        self._group = group
        self._commits = commits and group is not None
        self._on_assigned = on_assigned or (lambda _partitions: None)
        self._on_revoked = on_revoked or (lambda _partitions: None)
        self._errors = LibraryErrors()
        self._batch: list[Message[V]] = []
        self._settled = self._begun = self._given = 0
        """Places in the batch: messages before `settled` count as handled, those before `begun` have been handled,
        those before `given` are being handled, the others wait. Of earlier batches all have been handled."""
        self._committed: dict[tuple[str, int], int] = {}
        self._size = 1
        self._fetched_at = time.monotonic()
        self._committed_at = self._fetched_at
        self._is_closed = False
        with translated():
            self._consumer = LibraryConsumer(
                {
                    "auto.offset.reset": start,
                    "isolation.level": "read_committed",
                    "partition.assignment.strategy": "cooperative-sticky",
                    "allow.auto.create.topics": False,
                    "fetch.queue.backoff.ms": 20,  # a second by default, in which a full queue may run empty
                    **library_settings(bootstrap, settings, self._errors, OF_PRODUCERS),
                    "group.id": group or "headrace-alone",
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                }
            )
            if group is not None:
                self._consumer.subscribe(
                    self.topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
                )
        stays_with_parent(self)
        if group is None:
            self._assign_all(start)

    # Receiving

    def receive(self, timeout: float | None = None) -> Message[V] | None:
        """The next message; None if none comes in time. Those received before count as handled."""
        found = self.receive_many(1, timeout)
        return found[0] if found else None

    def receive_many(self, most: int | None = None, timeout: float | None = None) -> Sequence[Message[V]]:
        """Up to so many messages, or as many as take about a second to handle; none if none comes in time. Those
        received before count as handled."""
        self.fill(most, timeout)
        return self.give(most)

    def __iter__(self) -> Iterator[Message[V]]:
        """Messages, for ever. They are fetched in batches that take about a second to handle, so that the group sees
        that this member is alive."""
        while not self._is_closed:
            self.fill(None, None)
            yield from self.each()

    # The three steps of receiving, for those who drive a consumer from another thread. Only the first may block, and
    # whoever gives up waiting for it has been given nothing.

    def fill(self, most: int | None, timeout: float | None) -> None:
        """Count what was given as handled, and fetch, if nothing that was fetched waits: so many, or as many as fit."""
        if self._is_closed:
            raise ClientError("this consumer has been closed", "_STATE")
        self._settle(self._given)
        if self._given == len(self._batch):
            self._fetch(most or self._fitting_size(), timeout)

    def give(self, most: int | None) -> Sequence[Message[V]]:
        """Up to so many of those fetched."""
        self._begun, self._given = self._given, min(len(self._batch), self._given + (most or _MOST))
        return self._batch[self._begun : self._given]

    def each(self) -> Iterator[Message[V]]:
        """Those fetched, one by one; one counts as handled when the next is asked for."""
        batch, first = self._batch, self._given
        self._begun = first
        for given, message in enumerate(batch[first:], first + 1):
            self._given = given
            yield message
            if self._batch is not batch or self._given != given:
                return
            self._begun = given

    def _fitting_size(self) -> int:
        took = time.monotonic() - self._fetched_at
        if took > _SLOW_SECONDS:
            self._size = max(1, self._size // 4)
        elif took < _QUICK_SECONDS:
            self._size = min(_MOST, self._size * 4)
        return self._size

    def _fetch(self, most: int, timeout: float | None) -> None:
        """Put the next messages in the place of the batch, all of which has been handled."""
        if self._commits and time.monotonic() - self._committed_at > _COMMIT_SECONDS:
            self._commit_positions(wait=False)
        deadline = None if timeout is None else time.monotonic() + timeout
        self._replace_batch([])
        while not self._batch and not self._is_closed:
            left = _POLL_SECONDS if deadline is None else min(_POLL_SECONDS, max(0.0, deadline - time.monotonic()))
            with translated():
                self._batch += self._messages(self._consumer.consume(1, left))  # which would wait until all are there
                if self._batch and most > 1:
                    self._batch += self._messages(self._consumer.consume(most - 1, 0))
            if self._errors.refusal is not None:
                raise self._errors.refusal
            if deadline is not None and time.monotonic() >= deadline:
                break
        self._fetched_at = time.monotonic()

    def _replace_batch(self, batch: list[Message[V]]) -> None:
        self._batch = batch
        self._settled = self._begun = self._given = 0

    def _messages(self, records: list[Any]) -> list[Message[V]]:
        form = self._format
        found = [Message(record, form) for record in records if record.error() is None]
        if len(found) != len(records):
            for record in records:
                self._check(record)
        return found

    def _check(self, record: Any) -> None:
        error = record.error()
        if error is None or (error.name() in _PASSING and not error.fatal()):
            return
        raise from_kafka(error, record.topic())

    # Offsets

    def handled(self) -> list[Any]:
        """The offsets (`confluent_kafka.TopicPartition`) after every handled message, the one in hand too."""
        self._settle(self._given)
        return self._positions(self._consumer.assignment())

    def _positions(self, partitions: list[Any]) -> list[Any]:
        """Where all that has been taken was handled, or the first message that was not."""
        found = {(each.topic, each.partition): each.offset for each in self._consumer.position(partitions)}
        for message in reversed(self._batch[self._settled :]):
            place = message.topic, message.partition
            if place in found:
                found[place] = message.offset
        return [TopicPartition(*place, offset) for place, offset in found.items() if offset >= 0]

    def committed(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The positions that the group has committed, once no transaction holds one of them; negative where none is."""
        with translated():
            found = self._consumer.committed(self._named(partitions), timeout=_METADATA_SECONDS)
        return {(each.topic, each.partition): each.offset for each in found}

    def member(self) -> object:
        """Which member of the group this is, for transactions."""
        return self._consumer.consumer_group_metadata()

    def commit(self) -> None:
        """Commit what was handled, the message in hand too, and wait until that is done."""
        self._settle(self._given)
        self._commit_positions(wait=True)

    def _settle(self, through: int) -> None:
        """The messages of the batch up to this place count as handled."""
        self._settled = max(self._settled, through)

    def _commit_positions(self, *, wait: bool, partitions: list[Any] | None = None) -> None:
        self._committed_at = time.monotonic()
        if self._group is None:
            return
        with translated():
            found = self._positions(self._consumer.assignment() if partitions is None else partitions)
        offsets = [each for each in found if self._committed.get((each.topic, each.partition)) != each.offset]
        if offsets and self.commit_offsets(offsets, wait=wait):
            self._committed |= {(each.topic, each.partition): each.offset for each in offsets}

    def commit_offsets(self, offsets: list[Any], *, wait: bool = True) -> bool:
        """Commit these offsets (`confluent_kafka.TopicPartition`); whether their partitions are still this member's."""
        try:
            with translated():
                self._consumer.commit(offsets=offsets, asynchronous=not wait)
        except ClientError as error:
            if error.code not in _MOVED_ON:
                raise
            log.info("offsets were not committed, as the partitions have moved on: %s", error)
            return False
        return True

    # Positions

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on from an offset of a partition that this consumer has."""
        self._seek([TopicPartition(topic, partition, offset)])

    def seek_to_start(self) -> None:
        """Read all partitions that this consumer has again from their first message."""
        self._seek([TopicPartition(each.topic, each.partition, -2) for each in self._assignment()])

    def seek_to_end(self) -> None:
        """Go on with what comes from now on."""
        self._seek([TopicPartition(each.topic, each.partition, -1) for each in self._assignment()])

    def seek_to_time(self, when: datetime) -> None:
        """Go on from the first message at or after a time; from the end where there is none."""
        asked = [TopicPartition(e.topic, e.partition, int(when.timestamp() * 1000)) for e in self._assignment()]
        with translated():
            self._seek(self._consumer.offsets_for_times(asked, timeout=_METADATA_SECONDS))

    def assignment(self) -> list[tuple[str, int]]:
        """The partitions that this consumer has, once it has any."""
        return [(each.topic, each.partition) for each in self._assignment()]

    def _assignment(self) -> list[Any]:
        """Waits for the group to give some; what comes meanwhile is read again."""
        deadline = time.monotonic() + _METADATA_SECONDS
        with translated():
            while not (found := self._consumer.assignment()):
                if time.monotonic() > deadline:
                    raise ClientError(
                        f"the group gave no partition of {', '.join(self.topics)} within {_METADATA_SECONDS:g} s",
                        "_STATE",
                    )
                self._batch += self._messages(self._consumer.consume(1, _SLICE_SECONDS))
            return list(found)

    def rewind(self, messages: Iterable[Message[V]]) -> None:
        """Read these messages again, in the partitions that this consumer still has; but for those that the group has
        committed: whoever was told that a transaction failed may not have been told the truth."""
        firsts: dict[tuple[str, int], int] = {}
        for message in messages:
            firsts.setdefault((message.topic, message.partition), message.offset)
        with translated():
            mine = {(each.topic, each.partition) for each in self._consumer.assignment()}
            asked = [TopicPartition(*place) for place in firsts if place in mine]
            found = self._consumer.committed(asked, _METADATA_SECONDS) if asked else []
        places = {(each.topic, each.partition): each.offset for each in found}
        self._seek([TopicPartition(*place, max(offset, firsts[place])) for place, offset in places.items()])

    def _seek(self, targets: list[Any]) -> None:
        """Where the fetching of a partition has only begun, it may take a moment until it can be sent elsewhere."""
        self._settle(self._given)
        self._replace_batch(self._batch[self._given :])
        self._forget((target.topic, target.partition) for target in targets)
        for target in targets:
            deadline = time.monotonic() + _METADATA_SECONDS
            while True:
                try:
                    self._consumer.seek(target)
                    break
                except KafkaException as exception:
                    error = exception.args[0]
                    if error.name() != "_STATE" or time.monotonic() > deadline:
                        raise from_kafka(error, target.topic) from exception
                    time.sleep(0.02)

    def pause(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Fetch no more of these partitions, or of all, until `resume`; membership of the group goes on."""
        self._consumer.pause(self._named(partitions))

    def resume(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Fetch again."""
        self._consumer.resume(self._named(partitions))

    def _named(self, partitions: Iterable[tuple[str, int]] | None) -> list[Any]:
        if partitions is None:
            return list(self._consumer.assignment())
        return [TopicPartition(topic, partition) for topic, partition in partitions]

    # The group

    def idle(self) -> None:
        """Take part in the group without asking for messages; one that comes all the same waits."""
        with translated():
            self._batch += self._messages(self._consumer.consume(1, 0))

    def _assign_all(self, start: Start) -> None:
        found = []
        with translated():
            for topic in self.topics:
                about = self._consumer.list_topics(topic, timeout=_METADATA_SECONDS).topics[topic]
                if about.error is not None or not about.partitions:
                    raise UnknownTopic(topic) if about.error is None else from_kafka(about.error, topic)
                found += [TopicPartition(topic, partition, -2) for partition in about.partitions]
            if start == "latest":  # as of now, not of when the first fetch is under way
                for each in found:
                    each.offset = self._consumer.get_watermark_offsets(each, timeout=_METADATA_SECONDS)[1]
            self._consumer.assign(found)

    def leave_to_parent(self, stub: LeftBehind) -> None:
        """Refuse to work, in a child process."""
        self._parents, self._consumer = self._consumer, stub

    def _assigned(self, _consumer: Any, partitions: list[Any]) -> None:
        self._on_assigned([(each.topic, each.partition) for each in partitions])

    def _revoked(self, _consumer: Any, partitions: list[Any]) -> None:
        """Commits while that is still possible: fetching, where this is called, all before has been handled."""
        gone = [(each.topic, each.partition) for each in partitions]
        self._on_revoked(gone)
        if self._commits:
            try:
                self._commit_positions(wait=True, partitions=partitions)
            except ClientError as error:
                log.warning("offsets were not committed before partitions went to another member: %s", error)
        self._forget(gone)

    def _lost(self, _consumer: Any, partitions: list[Any]) -> None:
        gone = [(each.topic, each.partition) for each in partitions]
        self._forget(gone)
        self._on_revoked(gone)

    def _forget(self, partitions: Iterable[tuple[str, int]]) -> None:
        """What is of partitions that are no longer this member's."""
        gone = set(partitions)
        for partition in gone:
            self._committed.pop(partition, None)
        waiting = self._batch[self._given :]
        if waiting:
            self._batch[self._given :] = [each for each in waiting if (each.topic, each.partition) not in gone]

    def close(self, *, counts: bool = False) -> None:
        """Commit what was handled, leave the group. The message in hand `counts`, or does not."""
        if self._is_closed:
            return
        self._is_closed = True
        self._settle(self._given if counts else self._begun)
        try:
            if self._commits:
                self._commit_positions(wait=True)
        finally:
            self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: object, _traceback: TracebackType | None) -> None:
        try:
            self.close(counts=kind is None)
        except ClientError as error:
            if kind is None:
                raise
            log.error("the consumer could not commit: %s", error)
