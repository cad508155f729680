"""The response of Fetch, by hand: headers of ours between ranges of files that are sent as they lie on disk.

Versions 4-18. From 12 on lengths are varints and structs end in tagged fields; from 13 on a topic is named by its id.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from .encode import write_count, write_topic, write_uvarint

FIRST_FLEXIBLE: Final = 12
FIRST_WITH_IDS: Final = 13
SMALL_READ: Final = 64 * 1024
"""Below this a range is copied into the answer: one send costs less than a second system call."""
MOST_COPIED: Final = 1 << 20
"""Of one answer; a client that does not read it keeps that much of the broker's memory."""
STEP: Final = 500
"""Partitions that are written before others get a turn."""
ANY_DESCRIPTOR: Final = 1 << 62

_I32: Final = Struct(">i")
_TOP: Final = Struct(">ihi")
_V4: Final = Struct(">ihqq")
_V5: Final = Struct(">ihqqq")


class ReadableFile(Protocol):
    """A file as much as a response needs it."""

    @property
    def path(self) -> str: ...
    def fileno(self) -> int: ...
    def pread(self, size: int, position: int) -> bytes: ...


class FileRange(Protocol):
    """A range of a file: `storage.log.FileSlice`."""

    @property
    def file(self) -> ReadableFile: ...
    @property
    def position(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def next_offset(self) -> int:
        """Where who has read it goes on."""
        ...


class EpochEnd(NamedTuple):
    """Where a leader epoch ends."""

    epoch: int
    end_offset: int


class FetchedPartition(NamedTuple):
    """What one partition answers."""

    partition: int
    code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: FileRange | None = None
    aborted: tuple[tuple[int, int], ...] | None = None
    diverging: EpochEnd | None = None
    preferred_read_replica: int = -1


class FetchedTopic(NamedTuple):
    """What the partitions of one topic answer."""

    name: str
    id: UUID | None
    partitions: list[FetchedPartition]


Part = bytes | bytearray | FileRange


class Response:
    """Collects the parts of a response: runs of bytes, and ranges of files between them.

    Ranges of files whose descriptor is not below `held_below` are copied: they would be held open until they are sent.
    """

    __slots__ = ("_copied", "_held_below", "length", "parts", "run")

    def __init__(self, head: bytes, held_below: int = ANY_DESCRIPTOR) -> None:
        self.parts: list[Part] = []
        self._held_below = held_below
        self.length = 0
        self._copied = 0
        self.run = bytearray(head)
        """Where bytes between ranges are appended; another one after each range."""

    def records(self, data: FileRange | None, flexible: bool) -> None:
        size = 0 if data is None else data.length
        if flexible:
            write_uvarint(self.run, size + 1)
        else:
            self.run += _I32.pack(size)
        if data is None:
            return
        if (size <= SMALL_READ and self._copied < MOST_COPIED) or not 0 <= data.file.fileno() < self._held_below:
            copy = data.file.pread(size, data.position)
            if len(copy) != size:
                raise OSError(f"the log is shorter than what was promised of it: {data}")
            self.run += copy
            self._copied += size
            return
        self._close_run()
        self.parts.append(data)
        self.length += size

    def finish(self) -> list[Part]:
        """All parts in order; `length` is then their sum."""
        self._close_run()
        return self.parts

    def _close_run(self) -> None:
        self.parts.append(self.run)
        self.length += len(self.run)
        self.run = bytearray()


def write_response(
    response: Response,
    version: int,
    topics: list[FetchedTopic],
    *,
    code: int = 0,
    session_id: int = 0,
    throttle_ms: int = 0,
) -> None:
    """Append the body of a response."""
    for _ in write_in_steps(response, version, topics, code=code, session_id=session_id, throttle_ms=throttle_ms):
        pass


def write_in_steps(
    response: Response,
    version: int,
    topics: list[FetchedTopic],
    *,
    code: int = 0,
    session_id: int = 0,
    throttle_ms: int = 0,
) -> Iterator[None]:
    """The same, some partitions at a time, so that others get a turn in between."""
    written = 0
    flexible = version >= FIRST_FLEXIBLE
    if version >= 7:
        response.run.extend(_TOP.pack(throttle_ms, code, session_id))
    else:
        response.run.extend(_I32.pack(throttle_ms))
    write_count(response.run, len(topics), flexible)
    for topic in topics:
        write_topic(
            response.run,
            topic.name,
            topic.id.bytes if topic.id else None,
            by_id=version >= FIRST_WITH_IDS,
            flexible=flexible,
        )
        write_count(response.run, len(topic.partitions), flexible)
        for partition in topic.partitions:
            _write_partition(response, partition, version, flexible)
            written += 1
            if written % STEP == 0:
                yield
        if flexible:
            response.run.append(0)
    if flexible:
        response.run.append(0)


def _write_partition(response: Response, partition: FetchedPartition, version: int, flexible: bool) -> None:
    run = response.run
    if version >= 5:
        run += _V5.pack(*partition[:5])
    else:
        run += _V4.pack(*partition[:4])
    _write_aborted(run, partition.aborted, flexible)
    if version >= 11:
        run += _I32.pack(partition.preferred_read_replica)
    response.records(partition.records, flexible)
    if flexible:
        _write_tags(response.run, partition.diverging)


def _write_aborted(out: bytearray, aborted: tuple[tuple[int, int], ...] | None, flexible: bool) -> None:
    if flexible:
        write_uvarint(out, 0 if aborted is None else len(aborted) + 1)
    else:
        out += _I32.pack(-1 if aborted is None else len(aborted))
    for producer_id, first_offset in aborted or ():
        out += producer_id.to_bytes(8, "big", signed=True) + first_offset.to_bytes(8, "big", signed=True)
        if flexible:
            out.append(0)


def _write_tags(out: bytearray, diverging: EpochEnd | None) -> None:
    if diverging is None:
        out.append(0)
        return
    body = _I32.pack(diverging.epoch) + diverging.end_offset.to_bytes(8, "big", signed=True) + b"\0"
    out += bytes((1, 0, len(body))) + body
