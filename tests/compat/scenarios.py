"""The questions every client is asked. A scenario returns when the client did well and raises otherwise."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from headrace.protocol.partitioner import partition_for

from .broker import produce_with_tool
from .clients.confluent import ConfluentDriver
from .model import (
    Ability,
    ClientDriver,
    Codec,
    Headers,
    NotOffered,
    Pending,
    Record,
    Sending,
    Span,
    Transaction,
)
from .records import (
    PARTITIONS,
    check_equal,
    check_positions,
    hour_ago,
    sample,
    spans_of,
)
from .wire import end_offsets, stored_batches

SENDINGS = (
    partial(Sending, acks=0),
    partial(Sending, acks=1),
    partial(Sending, acks=-1),
    partial(Sending, acks=-1, idempotent=True),
)
_SETTLE_SECONDS = 10.0
_BIG = 10 * 1024 * 1024
_IN_EACH = 3
_BEHIND = _IN_EACH + 1
"""Where the second of two transactions begins: a marker is between them."""
_BOTH = Span(partition=0, start=0, end=_BEHIND + _IN_EACH, gaps=_BEHIND)
"""Two transactions, of which readers of committed records see the second."""


@dataclass(kw_only=True)
class Stage:
    """One client's place to work: its driver, a reference client, and the topics made so far.

    `unread` tells why the reference had to read in the client's place, if it had to.
    """

    driver: ClientDriver
    reference: ConfluentDriver
    prefix: str
    topics: list[str] = field(default_factory=list)
    unread: str = ""

    def name(self, what: str) -> str:
        """A topic name of this run and client, remembered for the cleaning up."""
        topic = f"{self.prefix}-{what}"
        self.topics.append(topic)
        return topic

    def topic(self, what: str, config: dict[str, str] | None = None) -> str:
        """A fresh topic of 12 partitions, made by the client where it can."""
        topic = self.name(what)
        try:
            self.driver.create_topic(topic, PARTITIONS, config or {})
        except NotOffered:
            self.reference.create_topic(topic, PARTITIONS, config or {})
        eventually("every partition is led", lambda: self._settled(topic))
        return topic

    def _settled(self, topic: str) -> bool:
        # A broker may name a leader before that leader is ready; acks=0 records sent then are lost for good.
        return end_offsets(self.reference.bootstrap, topic, PARTITIONS) == [0] * PARTITIONS

    def consume(self, topic: str, spans: Sequence[Span]) -> list[Record]:
        """Read with the client, or with the reference while the client cannot read from this broker."""
        try:
            return self.driver.consume(topic, spans)
        except Pending as reason:
            self.unread = str(reason)
            return self.reference.consume(topic, spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A row of the table."""

    title: str
    run: Callable[[Stage], None]


def eventually(what: str, holds: Callable[[], bool]) -> None:
    """Return once the condition holds; metadata reaches clients a little after the answer to a change."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"not within {_SETTLE_SECONDS:.0f} s: {what}"
        time.sleep(0.05)


def partitions_or_none(driver: ClientDriver, topic: str) -> int | None:
    """The partition count, or None while the topic is not known to the client."""
    try:
        return driver.partition_count(topic)
    except Exception:
        return None


def create(stage: Stage) -> None:
    """A topic made by the client is seen by another one."""
    topic = stage.name("created")
    stage.driver.create_topic(topic, PARTITIONS, {"retention.ms": "3600000"})
    eventually("12 partitions seen", lambda: partitions_or_none(stage.reference, topic) == PARTITIONS)
    setting = stage.reference.topic_config(topic)["retention.ms"]
    assert setting == "3600000", f"retention.ms is {setting}"


def list_topics(stage: Stage) -> None:
    """A new topic is in the client's list."""
    topic = stage.topic("listed")
    eventually("the topic is listed", lambda: topic in stage.driver.list_topics())


def describe(stage: Stage) -> None:
    """Partitions and, where the client shows them, settings."""
    topic = stage.topic("described", {"retention.ms": "5400000"})
    eventually("12 partitions described", lambda: partitions_or_none(stage.driver, topic) == PARTITIONS)
    try:
        config = stage.driver.topic_config(topic)
    except NotOffered:
        return
    assert config["retention.ms"] == "5400000", f"retention.ms is {config['retention.ms']}"
    assert config["cleanup.policy"] == "delete", f"cleanup.policy is {config['cleanup.policy']}"


def alter(stage: Stage) -> None:
    """Settings changed by the client are seen by it and by another one."""
    topic = stage.topic("altered")
    wanted = {"retention.ms": "7200000", "max.message.bytes": "2000000"}
    stage.driver.alter_config(topic, wanted)
    for reader in (stage.driver, stage.reference):

        def altered(reader: ClientDriver = reader) -> bool:
            return wanted.items() <= reader.topic_config(topic).items()

        eventually(f"{wanted} shown by {reader.name}", altered)


def delete(stage: Stage) -> None:
    """A topic deleted by the client is gone for it and for another one."""
    topic = stage.topic("deleted")
    stage.driver.delete_topic(topic)
    for reader in (stage.driver, stage.reference):

        def gone(reader: ClientDriver = reader) -> bool:
            return topic not in reader.list_topics()

        eventually(f"the topic is gone for {reader.name}", gone)


def round_trip(codec: Codec, stage: Stage) -> None:
    """Each way of sending has three partitions of its own; all come back equal and in order."""
    topic = stage.topic(f"codec-{codec.value}")
    expected: list[Record] = []
    for number, make in enumerate(SENDINGS):
        sending = make(codec=codec)
        partitions = range(3 * number, 3 * number + 3)
        records = [record for partition in partitions for record in sample(f"k{number}", partition, stage.driver)]
        try:
            check_positions(records, stage.driver.produce(topic, records, sending))
        except Exception as error:
            if not isinstance(error, NotOffered | Pending):
                error.add_note(f"sending {sending}")
            raise
        expected += records
    check_equal(expected, stage.consume(topic, spans_of(expected)))
    for partition in range(PARTITIONS):
        _check_stored(stage, topic, partition, SENDINGS[partition // 3](codec=codec))
    ends = end_offsets(stage.reference.bootstrap, topic, PARTITIONS)
    assert ends == [len(expected) // PARTITIONS] * PARTITIONS, f"the partitions end at {ends}"


def _check_stored(stage: Stage, topic: str, partition: int, sending: Sending) -> None:
    batches = stored_batches(stage.reference.bootstrap, topic, partition)
    codecs = {batch.codec for batch in batches}
    # Clients leave a batch as it is when compression makes it larger.
    expected = sending.codec in codecs <= {sending.codec, Codec.NONE}
    assert expected, f"partition {partition} is stored as {sorted(one.value for one in codecs)}"
    idempotent = [batch.producer_id >= 0 for batch in batches]
    assert idempotent == [sending.idempotent] * len(batches), f"partition {partition}: producer ids with {sending}"


def headers(stage: Stage) -> None:
    """None, one, repeated, empty, and binary where the client can."""
    shapes: list[Headers] = [
        (),
        (("one", b"1"),),
        (("twice", b"first"), ("twice", b"second"), ("after", b"x")),
        (("empty", b""),),
        (("größe", "größer".encode()),),
    ]
    if Ability.BINARY_HEADERS not in stage.driver.missing:
        shapes.append((("bytes", bytes([0, 255, 7])),))
    records = [Record(key=b"k", value=b"v", headers=shape, partition=3) for shape in shapes]
    _send_and_compare(stage, "headers", records)


def null_header(stage: Stage) -> None:
    """A header without a value is not a header with an empty one."""
    if reason := stage.driver.missing.get(Ability.NULL_HEADERS):
        raise NotOffered(reason)
    _send_and_compare(stage, "null-header", [Record(key=b"k", value=b"v", headers=(("null", None),), partition=3)])


def nulls(stage: Stage) -> None:
    """Null and empty stay different."""
    pairs = [(None, b"no key"), (b"tombstone", None), (b"empty value", b""), (b"", b"empty key")]
    records = [Record(key=key, value=value, partition=4) for key, value in pairs]
    _send_and_compare(stage, "nulls", records)


def _send_and_compare(stage: Stage, what: str, records: list[Record]) -> None:
    topic = stage.topic(what)
    check_positions(records, stage.driver.produce(topic, records, Sending()))
    check_equal(records, stage.consume(topic, spans_of(records)))


def timestamps(stage: Stage) -> None:
    """The caller's time is kept to the millisecond, also when it goes backwards."""
    if reason := stage.driver.missing.get(Ability.TIMESTAMPS):
        raise NotOffered(reason)
    base = hour_ago()
    times = [base, base + 1, base - 5000, base + 60_000]
    records = [Record(key=b"k", value=b"v", timestamp=when, partition=5) for when in times]
    _send_and_compare(stage, "timestamps", records)


def _timeline(stage: Stage, what: str) -> tuple[str, list[Record]]:
    writer = stage.reference if Ability.TIMESTAMPS in stage.driver.missing else stage.driver
    base = hour_ago()
    records = [
        Record(key=b"k", value=f"value {index}".encode(), timestamp=base + 1000 * index, partition=6)
        for index in range(30)
    ]
    topic = stage.topic(what)
    writer.produce(topic, records, Sending(codec=Codec.GZIP))
    return topic, records


def seek_offset(stage: Stage) -> None:
    """From the middle of a batch, and the last record alone."""
    topic, records = _timeline(stage, "seek-offset")
    for start in (17, 29, 0):
        read = stage.driver.consume(topic, [Span(partition=6, start=start, end=30)])
        check_equal(records[start:], read, start)


def seek_time(stage: Stage) -> None:
    """Between two records, exactly at one, before all and after all."""
    topic, records = _timeline(stage, "seek-time")
    base = records[0].timestamp
    assert base is not None
    for after, expected in ((11_500, 12), (20_000, 20), (-1, 0)):
        found = stage.driver.offset_at(topic, 6, base + after)
        assert found == expected, f"{after} ms after the first record is offset {found}, not {expected}"
    found = stage.driver.offset_at(topic, 6, base + 60_000)
    assert found in (None, 30), f"a time after the last record is offset {found}"
    check_equal(records[12:], stage.consume(topic, [Span(partition=6, start=12, end=30)]), 12)


def one_byte(stage: Stage) -> None:
    """The smallest message that is not empty."""
    _send_and_compare(stage, "one-byte", [Record(key=None, value=b"\x07", partition=0)])


def ten_megabytes(stage: Stage) -> None:
    """10 MiB that no codec makes smaller, with a small record before and after; the broker's settings are its own."""
    topic = stage.topic("ten-megabytes")
    big = random.Random(10).randbytes(_BIG)
    records = [Record(key=b"big", value=value, partition=7) for value in (b"before", big, b"after")]
    for record in records:
        stage.driver.produce(topic, [record], Sending())
    check_equal(records, stage.consume(topic, spans_of(records)))


def key_hash(stage: Stage) -> None:
    """With the client's murmur2, each key goes where `headrace produce` puts it, which is where Java does."""
    topic = stage.topic("key-hash")
    keys = [f"key-{number}".encode() for number in range(40)] + ["schlüssel-ß".encode(), b"a", b"abc", b"12345678"]
    stage.driver.produce(topic, [Record(key=key, value=b"client") for key in keys], Sending())
    produce_with_tool(stage.reference.bootstrap, topic, [(key, b"tool") for key in keys])
    expected = [
        Record(key=key, value=writer, partition=partition_for(key, PARTITIONS))
        for writer in (b"client", b"tool")
        for key in keys
    ]
    check_equal(expected, stage.reference.consume(topic, spans_of(expected)))


def write_in_transactions(stage: Stage) -> None:
    """What was aborted is seen by no reader of committed records, what was committed is, and so is its offset."""
    topic = stage.topic("transactions")
    _, committed = _in_transactions(stage.driver, topic)
    check_equal(committed, stage.reference.consume(topic, [_BOTH], committed=True), _BEHIND)
    group = f"{topic}-group"
    eventually("the committed offset", lambda: stage.reference.committed_offset(topic, group) == len(committed))


def read_committed(stage: Stage) -> None:
    """Aborted records are left out for who asks for committed ones, and shown to who does not."""
    topic = stage.topic("committed")
    aborted, committed = _in_transactions(stage.reference, topic)
    check_equal(committed, stage.driver.consume(topic, [_BOTH], committed=True), _BEHIND)
    everything = stage.driver.consume(topic, [Span(partition=0, start=0, end=len(aborted))])
    check_equal(aborted, everything)


def _in_transactions(driver: ClientDriver, topic: str) -> tuple[list[Record], list[Record]]:
    both: list[list[Record]] = []
    for commit in (False, True):
        records = [Record(key=b"k", value=f"{commit} {number}".encode(), partition=0) for number in range(_IN_EACH)]
        offset = len(records) if commit else 2 * len(records)
        transaction = Transaction(id=f"{topic}-id", commit=commit, group=f"{topic}-group", offset=offset)
        driver.transact(topic, records, transaction)
        both.append(records)
    return both[0], both[1]


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(title="create a topic of 12 partitions", run=create),
    Scenario(title="list topics", run=list_topics),
    Scenario(title="describe a topic", run=describe),
    Scenario(title="alter a topic's settings", run=alter),
    Scenario(title="delete a topic", run=delete),
    *(
        Scenario(
            title=f"produce and consume, {codec.value}: acks 0, 1, all, idempotent", run=partial(round_trip, codec)
        )
        for codec in Codec
    ),
    Scenario(title="headers: none, repeated, empty, binary", run=headers),
    Scenario(title="headers: null value", run=null_header),
    Scenario(title="null and empty keys and values", run=nulls),
    Scenario(title="timestamps of the caller", run=timestamps),
    Scenario(title="seek by offset", run=seek_offset),
    Scenario(title="seek by time", run=seek_time),
    Scenario(title="1-byte message", run=one_byte),
    Scenario(title="10 MB message", run=ten_megabytes),
    Scenario(title="write in transactions: commit, abort, offsets", run=write_in_transactions),
    Scenario(title="read committed records alone", run=read_committed),
    Scenario(title="keys in the partitions of `headrace produce` (murmur2)", run=key_hash),
)
