"""The small text files of a data directory, in Kafka's formats.

A checkpoint is `0` (its version), a count, and one line per entry; partitions are written `topic partition offset`.
"""

import base64
import binascii
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from threading import Lock
from typing import Final

from headrace.protocol.topic_partition import TopicPartition

from .disk import Disk

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"
LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
SYNCED_LOGS: Final = "synced-log-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
REFETCHING: Final = "refetching"
"""Stands in the directory of a log that lost what it had held, until the cluster counts on it no more."""
META_PROPERTIES: Final = "meta.properties"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
LOCK: Final = ".lock"

_VERSION: Final = "0"


def encode_lines(lines: list[str]) -> bytes:
    return "".join([f"{_VERSION}\n{len(lines)}\n", *[line + "\n" for line in lines]]).encode()


def decode_lines(data: bytes) -> list[str] | None:
    """The entries of a checkpoint; None when it is not one or is cut short."""
    try:
        lines = data.decode("ascii").split("\n")
    except UnicodeDecodeError:
        return None
    if len(lines) < 3 or lines[0] != _VERSION or not lines[1].isdecimal():
        return None
    count = int(lines[1])
    if len(lines) != count + 3 or lines[-1]:
        return None
    return lines[2:-1]


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    return encode_lines([f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())])


def decode_offsets(data: bytes) -> dict[TopicPartition, int] | None:
    """Offsets by partition; None when the file is damaged."""
    lines = decode_lines(data)
    if lines is None:
        return None
    offsets: dict[TopicPartition, int] = {}
    for line in lines:
        fields = line.split(" ")
        if len(fields) != 3 or not (fields[1].isdecimal() and fields[2].isdecimal()):
            return None
        offsets[TopicPartition(fields[0], int(fields[1]))] = int(fields[2])
    return offsets


def encode_topic_id(topic_id: uuid.UUID) -> str:
    """A topic id as Kafka prints it."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def decode_topic_id(text: str) -> uuid.UUID | None:
    try:
        data = base64.urlsafe_b64decode(text + "==")
    except (binascii.Error, ValueError):
        return None
    return uuid.UUID(bytes=data) if len(data) == 16 else None


def encode_topic_ids(topic_ids: Mapping[TopicPartition, uuid.UUID]) -> bytes:
    found = sorted(topic_ids.items())
    return encode_lines([f"{topic} {partition} {encode_topic_id(topic_id)}" for (topic, partition), topic_id in found])


def decode_topic_ids(data: bytes) -> dict[TopicPartition, uuid.UUID] | None:
    """Topic ids by partition; None when the file is damaged."""
    lines = decode_lines(data)
    if lines is None:
        return None
    topic_ids: dict[TopicPartition, uuid.UUID] = {}
    for line in lines:
        fields = line.split(" ")
        topic_id = decode_topic_id(fields[2]) if len(fields) == 3 and fields[1].isdecimal() else None
        if topic_id is None:
            return None
        topic_ids[TopicPartition(fields[0], int(fields[1]))] = topic_id
    return topic_ids


def encode_partition_metadata(topic_id: uuid.UUID) -> bytes:
    return f"version: 0\ntopic_id: {encode_topic_id(topic_id)}\n".encode()


def decode_partition_metadata(data: bytes) -> uuid.UUID | None:
    """The topic id of a partition's directory; None when the file is damaged or of another version."""
    fields = _fields(data, ":")
    return decode_topic_id(fields.get("topic_id", "")) if fields.get("version") == "0" else None


def encode_properties(properties: Iterable[tuple[str, object]]) -> bytes:
    return "".join([f"{key}={value}\n" for key, value in properties]).encode()


def decode_properties(data: bytes) -> dict[str, str]:
    return _fields(data, "=")


def _fields(data: bytes, separator: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in data.decode("utf-8", "replace").splitlines():
        key, found, value = line.partition(separator)
        if found and not line.startswith("#"):
            fields[key.strip()] = value.strip()
    return fields


class CheckpointFile:
    """A file of offsets by partition that any thread may write: what was prepared last is what stays."""

    __slots__ = ("_disk", "_lock", "_path", "_prepared", "_written")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._lock = Lock()
        self._prepared = 0
        self._written = 0

    def prepare(self, offsets: Mapping[TopicPartition, int]) -> Callable[[], None]:
        """Writes these offsets when it is called, on whichever thread; not if later ones have been written by then."""
        self._prepared += 1
        return partial(self._write, self._prepared, dict(offsets))

    def _write(self, number: int, offsets: Mapping[TopicPartition, int]) -> None:
        with self._lock:
            if number > self._written:
                self._disk.write_atomically(self._path, encode_offsets(offsets))
                self._written = number
