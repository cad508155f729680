"""The segments of a log, oldest first, of which the last one grows."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from headrace.net.clock import Clock

from .disk import Disk
from .open_files import OpenFiles
from .segment import Segment


class Chain:
    """Segments in the order of their offsets; there is always at least one."""

    __slots__ = ("_bases", "_clock", "_disk", "_files", "active", "directory", "segments")

    def __init__(
        self, disk: Disk, clock: Clock, directory: str, segments: list[Segment], files: OpenFiles | None = None
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._files = files
        for segment in segments:
            segment.open_files = files
        self.directory = directory
        self.segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self.active = segments[-1]

    def __len__(self) -> int:
        return len(self.segments)

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    def is_base(self, offset: int) -> bool:
        """Whether a segment starts at an offset."""
        number = bisect_right(self._bases, offset) - 1
        return number >= 0 and self._bases[number] == offset

    def locate(self, offset: int, end_offset: int) -> tuple[Segment, int, int] | None:
        """The segment that has the first batch to reach an offset, and from where to where it may be read."""
        number = len(self._bases) - 1
        if offset < self.active.base_offset:
            number = max(bisect_right(self._bases, offset) - 1, 0)
        while number < len(self.segments):
            segment = self.segments[number]
            if segment.base_offset >= end_offset:
                return None
            start = segment.position_of(offset)
            end = segment.size if end_offset >= segment.next_offset else segment.position_of(end_offset)
            if start < end:
                return segment, start, end
            number += 1
        return None

    def segments_from(self, offset: int) -> Iterator[Segment]:
        """The segment that holds an offset, and those after it."""
        first = max(bisect_right(self._bases, offset) - 1, 0)
        for number in range(first, len(self.segments)):
            yield self.segments[number]

    def add(self, base_offset: int, interval: int) -> Segment:
        """Start a new segment at the end."""
        segment = self._new(base_offset, interval)
        segment.create()
        self._append(segment)
        return segment

    def _new(self, base_offset: int, interval: int) -> Segment:
        segment = Segment(
            self._disk,
            self.directory,
            base_offset,
            size=0,
            next_offset=base_offset,
            created_ms=self._clock.now_ms(),
            interval=interval,
        )
        segment.open_files = self._files
        return segment

    def _append(self, segment: Segment) -> None:
        self.segments.append(segment)
        self._bases.append(segment.base_offset)
        self.active = segment

    def take_oldest(self, count: int) -> list[Segment]:
        """Remove the oldest segments from the chain; their files stay where they are."""
        taken = self.segments[:count]
        for segment in taken:
            segment.close()
        del self.segments[:count]
        del self._bases[:count]
        return taken

    def cut(self, offset: int) -> list[str]:
        """Drop everything at or above an offset, the newest first; paths of files that are now to be unlinked."""
        aside: list[str] = []
        while len(self.segments) > 1 and self.active.base_offset >= offset:
            aside += self._set_aside_newest()
        if self.active.next_offset > offset:
            self.active.cut(offset)
        return aside

    def prepare_cut(self, offset: int) -> int:
        """Where the log will end after `cut`, for which nothing has to be opened then: it must not stop half way."""
        return self.segments[max(bisect_left(self._bases, offset) - 1, 0)].prepare_cut(offset)

    def prepare_restart(self, offset: int, interval: int) -> Segment:
        """A new, empty segment beside the others, for `restart`."""
        segment = self._new(offset, interval)
        segment.create_aside()
        return segment

    def restart(self, segment: Segment) -> list[str]:
        """Drop everything and start with a prepared segment; paths of files that are now to be unlinked."""
        aside: list[str] = []
        while self.segments:
            aside += self._set_aside_newest()
        segment.come_in()
        self._append(segment)
        return aside

    def _set_aside_newest(self) -> list[str]:
        aside = self.active.set_aside()
        self.active.close()
        self.segments.pop()
        self._bases.pop()
        if self.segments:
            self.active = self.segments[-1]
        return aside

    def number_of(self, segments: list[Segment]) -> int | None:
        """Where these segments stand in the chain, one after the other; None when they do not."""
        for number, segment in enumerate(self.segments):
            if segment is segments[0]:
                found = self.segments[number : number + len(segments)]
                same = len(found) == len(segments) and all(a is b for a, b in zip(found, segments, strict=True))
                return number if same else None
        return None

    def replace(self, start: int, count: int, segments: list[Segment]) -> None:
        """Put segments in the place of others, as compaction does; never of the active one."""
        for segment in self.segments[start : start + count]:
            segment.close()
        for segment in segments:
            segment.open_files = self._files
        self.segments[start : start + count] = segments
        self._bases = [segment.base_offset for segment in self.segments]

    def release_idle(self) -> None:
        """Let go of files and indexes of segments that nobody has used since the last call."""
        for segment in self.segments[:-1]:
            segment.release()
        self.active.rest()

    def written(self) -> list[tuple[Segment, int]]:
        """The segments with bytes that are not on stable storage, and their sizes; the newest first."""
        found = []
        for segment in reversed(self.segments):
            if segment.is_synced and segment is not self.active:
                break
            found.append((segment, segment.size))
        return found
