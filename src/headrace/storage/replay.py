"""Making anew what a log derives from its batches: producer states and leader epochs."""

from collections.abc import Iterator, Sequence

from headrace.protocol.batch import NO_PRODUCER, BatchHeader
from headrace.protocol.records import decode_marker

from .checkpoints import LEADER_EPOCHS
from .disk import Disk, File
from .epochs import Epochs
from .producer_state import EndedTransaction, Producers
from .scan import scan
from .segment import SNAPSHOT_SUFFIX, Segment, offset_name


def snapshot_path(directory: str, offset: int) -> str:
    return f"{directory}/{offset_name(offset)}{SNAPSHOT_SUFFIX}"


def snapshot_offsets(names: Iterator[str] | Sequence[str]) -> list[int]:
    """Offsets of the producer snapshots among file names, growing."""
    stems = [name.removesuffix(SNAPSHOT_SUFFIX) for name in names if name.endswith(SNAPSHOT_SUFFIX)]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def load_producers(disk: Disk, directory: str, segments: Sequence[Segment], start: int, end: int) -> Producers:
    """Producer states at a log's end: the newest sound snapshot and the batches after it."""
    producers, offset = newest_snapshot(disk, directory, start, end)
    note_batches(producers, segments, offset, end)
    return producers


def newest_snapshot(disk: Disk, directory: str, start: int, end: int) -> tuple[Producers, int]:
    """The newest sound snapshot up to an offset, and of which offset it is; an empty one at the start otherwise."""
    for offset in reversed(snapshot_offsets(disk.listdir(directory))):
        if offset <= end:
            producers = Producers.decode(disk.read(snapshot_path(directory, offset)))
            if producers is not None:
                return producers, offset
    return Producers(), start


def note_batches(producers: Producers, segments: Sequence[Segment], start: int, end: int) -> None:
    """Let producer states know of the batches that reach `start`, up to offset `end`."""
    for file, position, header in batches_from(segments, start, end):
        note_batch(producers, header, header.base_offset, file, position)


def note_batch(
    producers: Producers, header: BatchHeader, base_offset: int, file: File, position: int
) -> EndedTransaction | None:
    """Let producer states know of a batch in a file; the transaction that it ended, if it did."""
    if header.producer_id == NO_PRODUCER:
        return None
    if header.is_control:
        marker = decode_marker(file.pread(header.size, position))
        return producers.note_marker(header, header.last_offset, marker) if marker else None
    producers.note(header, base_offset)
    return None


def load_epochs(disk: Disk, directory: str, segments: Sequence[Segment], end: int) -> Epochs:
    """Leader epochs of a log: from its file, or from every batch when the file is missing or damaged."""
    path = f"{directory}/{LEADER_EPOCHS}"
    epochs = Epochs.decode(disk.read(path)) if disk.exists(path) else None
    if epochs is None:
        epochs = Epochs()
        for _, _, header in batches_from(segments, 0, end):
            epochs.assign(header.leader_epoch, header.base_offset)
    return epochs


def batches_from(segments: Sequence[Segment], start: int, end: int) -> Iterator[tuple[File, int, BatchHeader]]:
    """Files, positions and headers of all batches that reach `start`, up to offset `end`."""
    for segment in segments:
        if segment.next_offset <= start or not segment.size:
            continue
        if segment.base_offset >= end:
            return
        file = segment.open()
        position = segment.position_of(start) if start > segment.base_offset else 0
        for at, header in scan(file, position, segment.size, floor=segment.base_offset):
            if header.base_offset >= end:
                return
            yield file, at, header
