"""What a client can be asked to do, in words that fit every client.

Scenarios speak only to `ClientDriver`; a client that lacks a verb raises `NotOffered`, one that waits for a
part of the broker raises `Pending`, and anything else that goes wrong is a failure of that scenario.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

TIMEOUT_SECONDS = 20.0
MAX_MESSAGE_BYTES = 12 * 1024 * 1024

Headers = tuple[tuple[str, bytes | None], ...]
Position = tuple[int, int]
Advertised = Mapping[int, tuple[int, int]]


class NotOffered(Exception):
    """The client has no way to do this; the message is the reason."""


class Pending(Exception):
    """The client could do this once the broker serves what the message names."""


class Codec(Enum):
    """Kafka's compressions; the value is the name every client's settings use."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Ability(Enum):
    """What a record may carry that not every client can write."""

    TIMESTAMPS = "a timestamp of the caller's choice"
    MIXED_HEADERS = "headers that differ from record to record"
    BINARY_HEADERS = "header values that hold any byte"
    NULL_HEADERS = "a header whose value is null"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record, as sent (offset -1, partition None to let the client choose) or as received."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int | None = None
    partition: int | None = None
    offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The offsets [start, end) of one partition; so many of them, the gaps, have no record that is to be seen."""

    partition: int
    start: int
    end: int
    gaps: int = 0

    @property
    def count(self) -> int:
        """How many records are to be seen."""
        return self.end - self.start - self.gaps


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """How to start a member of a group, and what it can do; a text in place of a function tells why it is missing.

    `stamp_seconds` is how late its lines may be stamped.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    protocols: tuple[str, ...] = ("classic",)
    no_patterns: str = ""
    no_static: str = ""
    no_cooperative: str = ""
    stamp_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """How to produce; `acks` is 0, 1 or -1 (all)."""

    codec: Codec = Codec.NONE
    acks: int = -1
    idempotent: bool = False

    def __str__(self) -> str:
        acks = "all" if self.acks == -1 else str(self.acks)
        return f"{self.codec.value}, {'idempotent' if self.idempotent else f'acks={acks}'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """How to write in a transaction: it holds an offset that a group has reached in partition 0 of the topic, too."""

    id: str
    commit: bool
    group: str
    offset: int


class ClientDriver(ABC):
    """A client library bound to one broker and told which APIs (key: lowest and highest version) that serves.

    Every verb opens what it needs and leaves nothing running.
    """

    name: ClassVar[str]
    default_hash: ClassVar[str]
    missing: ClassVar[Mapping[Ability, str]] = {}

    def __init__(self, bootstrap: str, advertised: Advertised) -> None:
        self.bootstrap = bootstrap
        self.advertised = advertised

    @abstractmethod
    def version(self) -> str:
        """The version of the library that answers."""

    @abstractmethod
    def membership(self) -> Membership:
        """How the library's members join groups of this broker."""

    @abstractmethod
    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        """Return once the broker has created the topic."""

    @abstractmethod
    def list_topics(self) -> set[str]:
        """The names of all topics the client is shown."""

    @abstractmethod
    def partition_count(self, topic: str) -> int:
        """How many partitions the client sees, each with a leader."""

    @abstractmethod
    def topic_config(self, topic: str) -> dict[str, str]:
        """The topic's settings, defaults included."""

    @abstractmethod
    def alter_config(self, topic: str, config: Mapping[str, str]) -> None:
        """Set the given settings of the topic."""

    @abstractmethod
    def delete_topic(self, topic: str) -> None:
        """Return once the broker has accepted the deletion."""

    @abstractmethod
    def produce(self, topic: str, records: Sequence[Record], sending: Sending) -> list[Position] | None:
        """The (partition, offset) of each record, in the order given; None where the client is not told."""

    @abstractmethod
    def transact(self, topic: str, records: Sequence[Record], transaction: Transaction) -> None:
        """Return once the transaction has ended."""

    @abstractmethod
    def consume(self, topic: str, spans: Sequence[Span], *, committed: bool = False) -> list[Record]:
        """The records of the spans as the client delivered them, or what came before the time was up."""

    @abstractmethod
    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        """The first offset whose timestamp is at least the one given; None when there is none."""

    def close(self) -> None:  # noqa: B027 - most clients hold nothing between verbs
        """Release what the driver holds."""


class SpanCollector:
    """Gathers delivered records until there are as many as asked for.

    Repeated records, or records from before a span, are kept: they are for the comparison to find.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        self._ends = {span.partition: span.end for span in spans}
        self._asked = sum(span.count for span in spans)
        self.records: list[Record] = []

    def add(self, record: Record) -> None:
        """Keep the record unless it lies beyond its span."""
        if record.partition is not None and record.offset < self._ends.get(record.partition, 0):
            self.records.append(record)

    @property
    def full(self) -> bool:
        """Whether as many records as asked for have come."""
        return len(self.records) >= self._asked
