"""Dead letters: what is in a topic of them, put back where it came from, or given up.

They are those of handlers and push subscriptions, whose headers begin with `headrace.dlq.`, and those that brokers
write for share groups, ours and Apache Kafka's (KIP-1191), whose headers begin with `__dlq.errors.`. A letter of a
share group may be without its record; then that is read where it was. It may also stand there twice, as a broker that
was killed may have written it already: those that name the same group and place count as one.

A log cannot lose single records. That a letter has been dealt with is a record of its own in the same topic, a mark: it
has the header `headrace.dlq.resolved`, and names the partition and offset of each letter that it stands for. Letters
that are put back and their marks are written in one transaction, so that each goes back exactly once; whoever begins
fences out others who are at the same topic, by its transactional id, and then sees all that they have done.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from .admin import Admin
from .errors import ClientError, ProducerFenced
from .messages import MESSAGE_ID
from .producer import Producer, Transaction
from .reader import RecordReader

PREFIX: Final = "headrace.dlq."
SHARE_PREFIX: Final = "__dlq.errors."
"""As the headers begin that brokers write."""
LETTER_TOPICS: Final = "dlq."
"""How the names of topics begin that share groups may name for their dead letters, unless brokers are set otherwise."""
_SHARE_NAMES: Final = {"delivery.count": "attempts", "message": "reason"}
"""What brokers call otherwise."""
RESOLVED: Final = f"{PREFIX}resolved"
_INTERNAL: Final = "__"
"""How the names of topics begin that are the brokers' own."""
SUFFIX: Final = ".dead-letter"
"""How the names of topics end that we make for dead letters."""
_BATCH: Final = 500

_Place = tuple[int, int]
_Identity = tuple[bytes | None, ...]
HeaderPairs = list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that was given up, as its topic of dead letters has it."""

    partition: int
    offset: int
    timestamp: datetime
    """When it died."""
    key: bytes | None
    value: bytes | None = field(repr=False)
    headers: HeaderPairs = field(repr=False)
    """Those that it had when it came."""
    about: Mapping[str, str] = field(repr=False)
    """Where it was, and why it is here: topic, partition, offset, timestamp, group, attempts, reason."""
    is_bare: bool = False
    """Whether it only tells where its record is."""
    twins: tuple[tuple[int, int], ...] = ()
    """Other partitions and offsets at which it stands, too."""

    @property
    def topic(self) -> str | None:
        """Where it was."""
        return self.about.get("topic")

    @property
    def reason(self) -> str:
        return self.about.get("reason", "")

    @property
    def place(self) -> str:
        """Its name in its topic: partition and offset."""
        return f"{self.partition}:{self.offset}"


Chosen = Callable[[DeadLetter], bool]
Fix = Callable[[DeadLetter], DeadLetter | None]
"""What is put back in the place of a letter; None leaves it where it is."""


class DeadLetters:
    """One topic of dead letters."""

    def __init__(self, admin: Admin, bootstrap: str, topic: str, settings: Mapping[str, Any] | None = None) -> None:
        self._admin = admin
        self._bootstrap = bootstrap
        self._settings = dict(settings or {})
        self.topic = topic

    def __iter__(self) -> Iterator[DeadLetter]:
        """Those that nobody has dealt with yet, up to the end that the topic has now."""
        partitions = self._admin.partition_numbers(self.topic)
        starts = self._admin.start_offsets(self.topic, partitions)
        ends = self._admin.end_offsets(self.topic, partitions, committed_only=True)
        resolved: set[_Place] = set()
        identities: dict[_Identity, list[_Place]] = {}
        for record in self._read(starts, ends):
            resolved.update(_resolved_by(record))
            identity = _identity(record)
            if identity is not None:
                identities.setdefault(identity, []).append((record.partition(), record.offset()))
        for record in self._read(starts, ends):
            place = record.partition(), record.offset()
            if _is_mark(record) or place in resolved:
                continue
            identity = _identity(record)
            twins = [] if identity is None else [each for each in identities[identity] if each not in resolved]
            if not twins or twins[0] == place:
                yield _letter(record, tuple(twins[1:]))

    def record_count(self) -> int:
        """How many records the topic has: letters, of which some may have been dealt with, and marks."""
        partitions = self._admin.partition_numbers(self.topic)
        starts = self._admin.start_offsets(self.topic, partitions)
        ends = self._admin.end_offsets(self.topic, partitions, committed_only=True)
        return sum(ends[partition] - starts[partition] for partition in partitions)

    def redrive(
        self,
        chosen: Chosen,
        *,
        to: str | None = None,
        fix: Fix = lambda letter: letter,
        on_batch: Callable[[int], None] = lambda _count: None,
    ) -> int:
        """Put letters back, each exactly once, into the topic that they came from or another; how many."""

        def put_back(producer: Producer, letter: DeadLetter) -> bool:
            fixed = _fixed(fix, self.whole(letter))
            if fixed is None:
                return False
            topic = to or fixed.topic
            if topic is None:
                raise ClientError(
                    f"letter {letter.place} does not say where it came from: name a topic (--to)", "_INVALID_ARG"
                )
            if topic.startswith(_INTERNAL):
                raise ClientError(
                    f"letter {letter.place} would go to '{topic}', which is internal: discard it (--at), or name a "
                    "topic (--to)",
                    "_INVALID_ARG",
                )
            # With its id it would be a duplicate of itself.
            headers = [each for each in fixed.headers if each[0] != MESSAGE_ID]
            producer.send(topic, fixed.value, key=fixed.key, headers=headers)
            return True

        return self._resolve(chosen, "redriven", put_back, on_batch)

    def whole(self, letter: DeadLetter) -> DeadLetter:
        """The letter with its record: one that is without it gets it from where it was, as long as that is there."""
        if not letter.is_bare:
            return letter
        try:
            topic, partition, offset = (
                letter.about["topic"],
                int(letter.about["partition"]),
                int(letter.about["offset"]),
            )
        except (KeyError, ValueError):
            return letter
        if self._admin.start_offsets(topic, [partition])[partition] <= offset:
            settings = {**self._settings, "isolation.level": "read_committed"}
            reader = RecordReader(self._bootstrap, topic, {partition: offset}, {partition: offset + 1}, settings)
            with closing(reader.messages()) as messages:
                for record in messages:
                    if record is not None and record.offset() == offset:
                        headers: HeaderPairs = record.headers() or []
                        return replace(letter, key=record.key(), value=record.value(), headers=headers, is_bare=False)
        raise ClientError(
            f"letter {letter.place} is without its record, and {topic}-{partition} does not have it at offset {offset} "
            "any more: discard it (--at)",
            "RECORD_GONE",
        )

    def discard(self, chosen: Chosen, *, on_batch: Callable[[int], None] = lambda _count: None) -> int:
        """Give letters up; how many. They stay in the log, but are no letters any more."""
        return self._resolve(chosen, "discarded", lambda _producer, _letter: True, on_batch)

    def _resolve(
        self,
        chosen: Chosen,
        how: str,
        deal_with: Callable[[Producer, DeadLetter], bool],
        on_batch: Callable[[int], None],
    ) -> int:
        transactional_id = f"headrace.dlq.{self.topic}"
        count = 0
        with Producer(self._bootstrap, transactional_id=transactional_id, settings=self._settings) as producer:
            transaction = producer.begin()  # before reading: what others were about to do has failed from here on
            done: list[DeadLetter] = []
            try:
                for letter in self:
                    if chosen(letter) and deal_with(producer, letter):
                        done.append(letter)
                    if len(done) >= _BATCH:
                        count += self._commit(producer, transaction, done, how)
                        on_batch(count)
                        done = []
                        transaction = producer.begin()
                count += self._commit(producer, transaction, done, how)
            except ProducerFenced as error:
                raise ClientError(
                    f"somebody else deals with the letters of '{self.topic}' now; {count} of this run have been",
                    error.code,
                ) from error
            except BaseException:
                transaction.abort()
                raise
        on_batch(count)
        return count

    def _commit(self, producer: Producer, transaction: Transaction, done: list[DeadLetter], how: str) -> int:
        places: dict[int, list[int]] = {}
        for letter in done:
            for partition, offset in ((letter.partition, letter.offset), *letter.twins):
                places.setdefault(partition, []).append(offset)
        for partition, offsets in places.items():
            mark = {"partition": partition, "offsets": offsets}
            producer.send(self.topic, mark, partition=partition, headers={RESOLVED: how})
        transaction.commit()
        return len(done)

    def _read(self, starts: dict[int, int], ends: dict[int, int]) -> Iterator[Any]:
        settings = {**self._settings, "isolation.level": "read_committed"}
        reader = RecordReader(self._bootstrap, self.topic, starts, ends, settings)
        with closing(reader.messages()) as messages:
            yield from (message for message in messages if message is not None)


def selection(
    *,
    places: Iterable[str] = (),
    reason: str = "",
    key: str | None = None,
    topic: str | None = None,
    group: str | None = None,
) -> Chosen:
    """Whether a letter is one of these places (PARTITION:OFFSET), and all else that is given holds for it."""
    wanted = frozenset(places)
    data = None if key is None else key.encode()

    def chosen(letter: DeadLetter) -> bool:
        return (
            (not wanted or letter.place in wanted)
            and reason.lower() in letter.reason.lower()
            and (data is None or letter.key == data)
            and (topic is None or letter.topic == topic)
            and (group is None or letter.about.get("group") == group)
        )

    return chosen


def _fixed(fix: Fix, letter: DeadLetter) -> DeadLetter | None:
    try:
        found = fix(letter)
    except Exception as error:
        raise ClientError(
            f"the fix-up function failed at letter {letter.place}: {type(error).__name__}: {error}", "FIX_FAILED"
        ) from error
    if found is not None and not isinstance(found, DeadLetter):
        raise ClientError(
            f"the fix-up function gave {type(found).__name__} for letter {letter.place}; it gives a DeadLetter, such "
            "as dataclasses.replace(letter, value=...), or None to leave it",
            "FIX_FAILED",
        )
    return found


def _is_mark(record: Any) -> bool:
    return any(name == RESOLVED for name, _ in record.headers() or ())


def _resolved_by(record: Any) -> Iterator[tuple[int, int]]:
    """The places that a mark names; what is none, or cannot be read, names none."""
    if not _is_mark(record):
        return
    try:
        mark = json.loads(record.value())
        yield from ((int(mark["partition"]), int(offset)) for offset in mark["offsets"])
    except (ValueError, KeyError, TypeError):
        return


def _identity(record: Any) -> _Identity | None:
    """What a broker has written a letter of: its place, and the group. None for other records."""
    about = dict(record.headers() or ())
    names = ("topic", "partition", "offset", "group")
    found = tuple(about.get(f"{SHARE_PREFIX}{name}") for name in names)
    return None if None in found or _is_mark(record) else found


def _letter(record: Any, twins: tuple[_Place, ...] = ()) -> DeadLetter:
    headers: HeaderPairs = record.headers() or []
    own = [each for each in headers if not each[0].startswith((PREFIX, SHARE_PREFIX))]
    about = _about(headers)
    is_of_broker = any(name.startswith(SHARE_PREFIX) for name, _ in headers)
    return DeadLetter(
        partition=record.partition(),
        offset=record.offset(),
        timestamp=datetime.fromtimestamp(record.timestamp()[1] / 1000, UTC),
        key=record.key(),
        value=record.value(),
        headers=own,
        about=about,
        is_bare=is_of_broker and record.key() is None and record.value() is None and not own,
        twins=twins,
    )


def _about(headers: HeaderPairs) -> dict[str, str]:
    """What headers tell of a record; what a broker has written, and the last of a name, counts."""
    about: dict[str, str] = {}
    for prefix in (PREFIX, SHARE_PREFIX):
        for name, data in headers:
            if name.startswith(prefix):
                name = name.removeprefix(prefix)
                about[_SHARE_NAMES.get(name, name)] = (data or b"").decode(errors="replace")
    return about
