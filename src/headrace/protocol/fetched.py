"""The response of Fetch as a reader gets it, by hand: records stay where they were received.

Versions 4-18. From 12 on lengths are varints and structs end in tagged fields; from 13 on a topic is named by its id.
Of the tagged fields only the diverging epoch is read, which a follower needs; the others are skipped.
"""

from struct import Struct
from struct import error as StructError  # noqa: N812 - an exception's name
from typing import Any, Final, NamedTuple

from .errors import ProtocolViolation
from .fetch import FIRST_FLEXIBLE, FIRST_WITH_IDS, EpochEnd
from .guard import Walk, skip_tags

_I16: Final = Struct(">h")
_I32: Final = Struct(">i")
_TOP: Final = Struct(">hi")
_V4: Final = Struct(">ihqq")
_V5: Final = Struct(">ihqqq")
_ABORTED: Final = Struct(">qq")
_EPOCH_END: Final = Struct(">iq")
_DIVERGING: Final = 0
"""The tag of the diverging epoch."""


class PartitionRecords(NamedTuple):
    """What one partition answered. `topic` is a name, or an id where the version has ids."""

    topic: str | bytes
    partition: int
    code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]
    """Transactions to leave out: producer id and first offset."""
    preferred_read_replica: int
    records: memoryview
    """A view into the received bytes, with perhaps a cut batch at its end."""
    diverging: EpochEnd | None = None
    """Where the leader's log and the reader's part: the largest epoch up to the reader's last that the leader knows."""


class FetchAnswer(NamedTuple):
    """A whole response. A broker that holds this client back answers with no partition at all."""

    throttle_ms: int
    code: int
    partitions: list[PartitionRecords]


def parse_fetch(data: memoryview, version: int) -> FetchAnswer:
    """The response whose body is `data`; `ProtocolViolation` when it is none."""
    try:
        return _Parser(data, version).answer()
    except (IndexError, StructError):
        raise ProtocolViolation("a fetch response that ends too early") from None
    except UnicodeDecodeError:
        raise ProtocolViolation("a string that is not UTF-8") from None


class _Parser:
    """One pass over one response."""

    def __init__(self, data: memoryview, version: int) -> None:
        self._data = data
        self._version = version
        self._flexible = version >= FIRST_FLEXIBLE
        self._walk = Walk(data)
        self._at = 0

    def answer(self) -> FetchAnswer:
        (throttle_ms,) = self._unpack(_I32)
        code = self._unpack(_TOP)[0] if self._version >= 7 else 0
        found: list[PartitionRecords] = []
        for _ in range(self._count()):
            topic = self._topic()
            found += [self._partition(topic) for _ in range(self._count())]
            self._end_struct()
        return FetchAnswer(throttle_ms, code, found)

    def _partition(self, topic: str | bytes) -> PartitionRecords:
        head = self._unpack(_V5) if self._version >= 5 else (*self._unpack(_V4), -1)
        index, code, high_watermark, last_stable_offset, log_start_offset = head
        aborted = self._aborted()
        preferred = self._unpack(_I32)[0] if self._version >= 11 else -1
        records = self._bytes(self._size())
        diverging = self._diverging()
        return PartitionRecords(
            topic,
            index,
            code,
            high_watermark,
            last_stable_offset,
            log_start_offset,
            aborted,
            preferred,
            records,
            diverging,
        )

    def _diverging(self) -> EpochEnd | None:
        """The end of the struct of a partition, and what its first tagged field says."""
        if not self._flexible or self._data[self._at] == 0:
            self._end_struct()
            return None
        diverging = None
        count, self._at = self._walk.uvarint(self._at)
        for _ in range(count):
            tag, at = self._walk.uvarint(self._at)
            size, at = self._walk.uvarint(at)
            self._at = self._walk.advance(at, size)
            if tag == _DIVERGING and size >= _EPOCH_END.size:
                diverging = EpochEnd(*_EPOCH_END.unpack_from(self._data, at))
        return diverging

    def _aborted(self) -> tuple[tuple[int, int], ...]:
        found = []
        for _ in range(self._count()):
            producer_id, first_offset = self._unpack(_ABORTED)
            found.append((producer_id, first_offset))
            self._end_struct()
        return tuple(found)

    def _topic(self) -> str | bytes:
        if self._version >= FIRST_WITH_IDS:
            return bytes(self._bytes(16))
        return str(self._bytes(self._size() if self._flexible else self._unpack(_I16)[0]), "utf-8")

    def _unpack(self, layout: Struct) -> tuple[Any, ...]:
        values = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return values

    def _count(self) -> int:
        count = self._size()
        self._walk.count(self._at, max(count, 0), 1)
        return count

    def _size(self) -> int:
        """A length or count; -1 for null."""
        if not self._flexible:
            return int(self._unpack(_I32)[0])
        size, self._at = self._walk.uvarint(self._at)
        return size - 1

    def _bytes(self, size: int) -> memoryview:
        start = self._at
        self._at = self._walk.advance(start, max(size, 0))
        return self._data[start : self._at]

    def _end_struct(self) -> None:
        if self._flexible:
            at = self._at
            self._at = at + 1 if self._data[at] == 0 else skip_tags(self._data, at)
