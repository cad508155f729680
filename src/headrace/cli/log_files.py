"""Logs on disk, read without a broker: what `headrace log dump` and `headrace log verify` are about."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace.protocol.batch import APPEND_TIME_BIT, BatchHeader
from headrace.protocol.compression import CODECS
from headrace.protocol.errors import CodedError
from headrace.protocol.records import Record, iterate_records, marker_of
from headrace.storage.inspection import FileFault, IndexFiles, SegmentReport, batches, inspect_segment

from .console import bad_input
from .doctor.data_directory import is_locked
from .render import text_or_base64

_LOG: Final = ".log"
_LOCK: Final = ".lock"
_CODEC_NAMES: Final = {number: name for name, number in CODECS.items()}


@dataclass(slots=True)
class ReadOnlyFile:
    """A file to scan, which nothing here can change."""

    path: str
    descriptor: int

    def pread(self, size: int, position: int) -> bytes:
        return os.pread(self.descriptor, size, position)

    @property
    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def close(self) -> None:
        os.close(self.descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFile:
    """A segment, by its file."""

    path: Path
    base_offset: int
    is_last: bool
    """Whether it is the last of its log, at whose end somebody may be writing."""

    @property
    def prefix(self) -> str:
        return str(self.path).removesuffix(_LOG)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectory:
    """A partition's log."""

    name: str
    segments: tuple[SegmentFile, ...]


def find_logs(path: Path) -> list[LogDirectory]:
    """The logs in a data directory, that of a partition's directory, or the one segment of a file."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise bad_input(f"{path}: {error.strerror or error}") from error
    if stat.S_ISREG(mode):
        return [_single(path)]
    if not stat.S_ISDIR(mode):
        raise bad_input(f"{path} is neither a file nor a directory")
    found = _segments(path)
    if found:
        return [LogDirectory(name=path.resolve().name, segments=found)]
    logs = [
        LogDirectory(name=entry.name, segments=segments)
        for entry in sorted(path.iterdir())
        if entry.is_dir() and entry.name.rpartition("-")[2].isdecimal() and (segments := _segments(entry))
    ]
    if not logs:
        raise bad_input(f"{path} has no logs; give a data directory, the directory of a partition or a .log file")
    return logs


def is_in_use(path: Path) -> bool:
    """Whether a broker that runs has the data directory that this is in."""
    return any(is_locked(place / _LOCK) for place in (path, *list(path.resolve().parents)[:2]))


def _single(path: Path) -> LogDirectory:
    if path.suffix != _LOG or not path.stem.isdecimal():
        raise bad_input(f"{path} is no segment; segments are named by their first offset, such as {0:020d}.log")
    siblings = _segments(path.parent)
    (segment,) = [each for each in siblings if each.path == path]
    return LogDirectory(name=path.resolve().parent.name, segments=(segment,))


def _segments(directory: Path) -> tuple[SegmentFile, ...]:
    files = sorted(path for path in directory.glob(f"*{_LOG}") if path.stem.isdecimal())
    return tuple(SegmentFile(path=path, base_offset=int(path.stem), is_last=path == files[-1]) for path in files)


def open_segment(segment: SegmentFile) -> ReadOnlyFile:
    return ReadOnlyFile(str(segment.path), os.open(segment.path, os.O_RDONLY))


def inspect(segment: SegmentFile, *, records: bool) -> SegmentReport:
    """Check a segment. Indexes are read before the log, which may grow meanwhile."""
    indexes = IndexFiles(
        offsets=_read(f"{segment.prefix}.index"),
        times=_read(f"{segment.prefix}.timeindex"),
        aborted=_read(f"{segment.prefix}.txnindex"),
    )
    file = open_segment(segment)
    try:
        return inspect_segment(file, file.size, segment.base_offset, segment.prefix, indexes, records=records)
    finally:
        file.close()


def _read(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        return None


def dump(segment: SegmentFile, *, records: bool) -> Iterator[dict[str, Any] | FileFault]:
    """Each batch of a segment as plain values, and what is wrong in between."""
    file = open_segment(segment)
    try:
        for found in batches(file, file.size, segment.base_offset):
            if isinstance(found, FileFault):
                yield found
                continue
            position, header = found
            values = _batch(position, header)
            if records or header.is_control:
                try:
                    decoded = [_record(each, header) for each in iterate_records(file.pread(header.size, position))]
                except CodedError as error:
                    yield FileFault(file.path, position, f"records of offset {header.base_offset}: {error.message}")
                else:
                    values["records"] = decoded
            yield values
    finally:
        file.close()


def _batch(position: int, header: BatchHeader) -> dict[str, Any]:
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "position": position,
        "size": header.size,
        "record_count": header.record_count,
        "leader_epoch": header.leader_epoch,
        "max_timestamp": header.max_timestamp,
        "timestamp_type": "LogAppendTime" if header.attributes & APPEND_TIME_BIT else "CreateTime",
        "codec": _CODEC_NAMES.get(header.codec, str(header.codec)),
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "crc": header.crc,
    }


def _record(record: Record, header: BatchHeader) -> dict[str, Any]:
    marker = marker_of((record.key, record.value)) if header.is_control else None
    if marker is not None:
        kind = "commit" if marker.committed else "abort"
        return {"offset": record.offset, "marker": kind, "coordinator_epoch": marker.coordinator_epoch}
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": text_or_base64(record.key),
        "value": text_or_base64(record.value),
        "headers": [[name, text_or_base64(value)] for name, value in record.headers],
    }
