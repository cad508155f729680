"""Backups of the metadata: everything that the store holds of a cluster, but for what lives only with a broker.

A backup is read until two readings in a row are the same, version for version: then it is what the store held at one
moment, between the two. It is kept as lines of JSON, compressed with gzip:

    {"headrace": "metadata backup", "format": 1, "cluster_id": …, "level": …, "store": …, "taken_ms": …, "version": …}
    {"key": "/topics/orders", "value": "…", "version": 3, "created": 17}       one for each key, in order
    {"entries": 42, "sha256": "…"}                                            of all bytes before this line

A value that is not text stands as `base64` instead. What only lives with a broker (registrations, the controller, what
was made of them) is left out, and so are the brokers' marks: a store that was restored looks to each broker like one
that was put back from an old copy, which it is (`lineage`).

Brokers may have done more than a backup knows. So a restore lets nobody lead before all replicas of a partition have
told how far their logs reach, leaves out producer ids that may have been given out since, and begins a new lineage. The
cluster's id comes last: until it is there no broker takes the store for its own, however far the restore has come.
"""

import gzip
import json
from base64 import b64decode, b64encode
from binascii import Error as BadBase64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from io import BytesIO
from random import Random
from typing import Any, Final

from .commits import portions
from .election import after_set_back
from .feature_level import LEVEL, decode_level
from .fenced import MOST_OPERATIONS
from .identity import CLUSTER_ID
from .image import Topic
from .lineage import LINEAGE, MARKS, Lineage
from .producer_ids import KEY as PRODUCER_IDS
from .producer_ids import skipped
from .registration import ACCOUNTED, BROKERS, CONTROLLER
from .store import Conflict, Create, Delete, Entries, MetadataStore, Operation, Versioned
from .topics import DELETED, TOPICS, creation, decode_topics

FORMAT: Final = 1
MOST_READINGS: Final = 50
MOST_BYTES: Final = 4 << 30
"""Of a backup that is not compressed: a million partitions take some hundred MB."""
_KIND: Final = "metadata backup"
_LEFT_OUT: Final = (f"{BROKERS}/", f"{CONTROLLER}/", f"{MARKS}/", f"{ACCOUNTED}/")
_OUR_ROOTS: Final = frozenset(
    (
        "brokers",
        "cluster",
        "config",
        "controller",
        "controller_epoch",
        "deleted_topics",
        "producer_ids",
        "security",
        "topics",
    )
)
_ALL: Final = "/"


class StoreKind(StrEnum):
    """Where a cluster keeps its metadata."""

    ZOOKEEPER = "zookeeper"
    SQLITE = "sqlite"


class BackupError(Exception):
    """A backup that cannot be taken, read or restored; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """The metadata of a cluster at one moment."""

    cluster_id: str
    level: int
    store: StoreKind
    taken_ms: int
    version: str
    """Of the program that took it."""
    entries: Entries

    @property
    def topics(self) -> list[Topic]:
        return list(decode_topics(_below(self.entries, TOPICS)))

    def summary(self) -> dict[str, Any]:
        """What is in it, in numbers."""
        topics = self.topics
        return {
            "cluster_id": self.cluster_id,
            "level": self.level,
            "store": self.store.value,
            "taken_ms": self.taken_ms,
            "version": self.version,
            "keys": len(self.entries),
            "topics": len(topics),
            "partitions": sum(len(topic.partitions) for topic in topics),
            "deleted_topics": len(_below(self.entries, DELETED)),
            "settings": len(_below(self.entries, "/config/")),
        }


# Taking one


async def take(store: MetadataStore, kind: StoreKind, *, now_ms: int, version: str) -> Backup:
    """The store's metadata at one moment."""
    entries = await _read_at_one_moment(store)
    found = dict(entries)
    if CLUSTER_ID not in found:
        raise BackupError("the store holds no cluster; was its path mistyped?")
    return Backup(
        cluster_id=found[CLUSTER_ID].value.decode(),
        level=decode_level(found.get(LEVEL)),
        store=kind,
        taken_ms=now_ms,
        version=version,
        entries=entries,
    )


async def _read_at_one_moment(store: MetadataStore) -> Entries:
    before = _kept(await store.list(_ALL))
    for _ in range(MOST_READINGS):
        after = _kept(await store.list(_ALL))
        if after == before:
            return after
        before = after
    raise BackupError(f"the metadata changed during each of {MOST_READINGS} readings; try again when less changes")


def _kept(entries: Entries) -> Entries:
    return [(key, stored) for key, stored in entries if not f"{key}/".startswith(_LEFT_OUT)]


def _below(entries: Entries, prefix: str) -> Entries:
    return [(key, stored) for key, stored in entries if key.startswith(prefix)]


# Files


def encode(backup: Backup) -> bytes:
    """The content of a backup's file."""
    out = BytesIO()
    digest = sha256()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0, compresslevel=6) as file:
        for line in _lines(backup):
            digest.update(line)
            file.write(line)
        file.write(_line({"entries": len(backup.entries), "sha256": digest.hexdigest()}))
    return out.getvalue()


def _lines(backup: Backup) -> Iterator[bytes]:
    yield _line(
        {
            "headrace": _KIND,
            "format": FORMAT,
            "cluster_id": backup.cluster_id,
            "level": backup.level,
            "store": backup.store.value,
            "taken_ms": backup.taken_ms,
            "version": backup.version,
            "secrets": "the secret by which brokers know each other, and settings as they are: keep this file private",
        }
    )
    for key, stored in backup.entries:
        yield _line({"key": key, **_value(stored.value), "version": stored.version, "created": stored.created})


def _line(values: dict[str, Any]) -> bytes:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _value(value: bytes) -> dict[str, str]:
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}


def decode(content: bytes) -> Backup:
    """The backup in a file's content; `BackupError` where it is damaged, cut off, or none."""
    lines = _decompressed(content).split(b"\n")
    head = _object(lines[0])
    if head.get("headrace") != _KIND:
        raise BackupError("it is not a backup of a cluster's metadata")
    if head.get("format") != FORMAT:
        raise BackupError(f"its format is {head.get('format')}, known is {FORMAT}: use the version that wrote it")
    _check_end(lines)
    try:
        return Backup(
            cluster_id=str(head["cluster_id"]),
            level=int(head["level"]),
            store=StoreKind(head["store"]),
            taken_ms=int(head["taken_ms"]),
            version=str(head["version"]),
            entries=[_entry(_object(line)) for line in lines[1:-2]],
        )
    except (KeyError, TypeError, ValueError, BadBase64) as error:
        raise BackupError(f"it is damaged ({error!r}); take another backup") from error


def _decompressed(content: bytes) -> bytes:
    try:
        with gzip.GzipFile(fileobj=BytesIO(content)) as file:
            text = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, ValueError) as error:
        raise BackupError(f"it is not a backup, or is damaged or cut off ({error}); take another one") from error
    except Exception as error:  # zlib's error is none of those above
        raise BackupError(f"it is damaged ({error}); take another one") from error
    if len(text) > MOST_BYTES:
        raise BackupError(f"it holds more than {MOST_BYTES} bytes, which no cluster's metadata does")
    return text


def _check_end(lines: Sequence[bytes]) -> None:
    end = _object(lines[-2]) if len(lines) > 2 and not lines[-1] else {}
    digest = sha256()
    for line in lines[:-2]:
        digest.update(line + b"\n")
    if end.get("sha256") != digest.hexdigest() or end.get("entries") != len(lines) - 3:
        raise BackupError("it does not match its checksum: it was damaged, cut off or changed; use another backup")


def _object(line: bytes) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BackupError("it is not a backup of a cluster's metadata, or is damaged") from error
    return values if isinstance(values, dict) else {}


def _entry(values: dict[str, Any]) -> tuple[str, Versioned]:
    value = b64decode(values["base64"], validate=True) if "base64" in values else str(values["value"]).encode()
    return str(values["key"]), Versioned(value, int(values["version"]), int(values["created"]))


# Restoring


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreTarget:
    """The current content of the store that a backup is to be restored to."""

    entries: Entries

    @property
    def cluster_id(self) -> str | None:
        return next((stored.value.decode(errors="replace") for key, stored in self.entries if key == CLUSTER_ID), None)

    @property
    def is_empty(self) -> bool:
        return not self.entries

    @property
    def brokers(self) -> list[str]:
        """Those that are registered."""
        return [key.rpartition("/")[2] for key, _ in self.entries if key.startswith(f"{BROKERS}/")]

    @property
    def has_controller(self) -> bool:
        return any(key == CONTROLLER for key, _ in self.entries)


async def look(store: MetadataStore) -> RestoreTarget:
    return RestoreTarget(entries=await store.list(_ALL))


def refuse(backup: Backup, kind: StoreKind, target: RestoreTarget, *, newest_level: int, force: bool) -> None:
    """Raises `BackupError` unless the backup may be restored there."""
    if backup.store is not kind:
        places = {
            StoreKind.ZOOKEEPER: "a cluster in ZooKeeper: use --store",
            StoreKind.SQLITE: "a lone broker: use --data",
        }
        raise BackupError(f"it is the backup of {places[backup.store]}")
    if backup.level > newest_level:
        raise BackupError(
            f"its feature level is {backup.level}, and this version knows {newest_level}: use a later one"
        )
    if target.cluster_id not in (None, backup.cluster_id):
        raise BackupError(
            f"the store is of cluster {target.cluster_id}, and the backup of cluster {backup.cluster_id}; "
            "give it a path of its own"
        )
    if target.brokers:
        raise BackupError(
            f"the cluster is alive: broker {', '.join(target.brokers)} is registered; stop all brokers first "
            "(a registration of one that died stays until its session ends)"
        )
    if target.has_controller:
        raise BackupError("a controller is still registered; wait until its session has ended")
    foreign = sorted({_root(key) for key, _ in target.entries} - _OUR_ROOTS - {_root(key) for key, _ in backup.entries})
    if foreign:
        raise BackupError(f"the path holds what is not a cluster's: /{foreign[0]}; give the cluster a path of its own")
    if not target.is_empty and not force:
        raise BackupError(
            f"the store is not empty: it has {len(target.entries)} keys; with --force they are replaced by the backup"
        )


def _root(key: str) -> str:
    return key[1:].partition("/")[0]


async def restore(store: MetadataStore, creation: Sequence[Operation], target: RestoreTarget) -> None:
    """Replace what the store holds by a `restoration`. If it fails half way no broker takes the store for its own."""
    try:
        for commit in _commits(_removal(target.entries)):
            await store.commit(commit)
        await _refuse_newcomers(store)
        *others, last = creation
        for commit in _commits(others):
            await store.commit(commit)
        await _refuse_newcomers(store)
        await store.commit([last])
    except Conflict as conflict:
        raise BackupError(
            f"somebody else has changed {conflict.key} meanwhile: stop all brokers, then restore with --force"
        ) from conflict


def _commits(operations: Sequence[Operation]) -> Iterator[list[Operation]]:
    """All of them in order, as many at a time as a store takes."""
    for start in range(0, len(operations), MOST_OPERATIONS):
        yield from portions([one] for one in operations[start : start + MOST_OPERATIONS])


async def _refuse_newcomers(store: MetadataStore) -> None:
    if await store.list(f"{BROKERS}/"):
        raise BackupError("a broker has registered meanwhile: stop all brokers, then restore with --force")


def _removal(entries: Entries) -> list[Operation]:
    """The cluster's id first, so that nobody takes for the cluster what is being removed; then what is below first."""
    removed = sorted(entries, key=lambda entry: entry[0], reverse=True)
    removed.sort(key=lambda entry: entry[0] != CLUSTER_ID)
    return [Delete(key, stored.version) for key, stored in removed]


def restoration(backup: Backup, rng: Random) -> list[Operation]:
    """What makes a store of a backup. Of a large cluster it takes seconds, for which a session would have to wait."""
    return list(_creation(backup, rng))


def _creation(backup: Backup, rng: Random) -> Iterable[Operation]:
    is_shared = backup.store is StoreKind.ZOOKEEPER
    values = {key: stored.value for key, stored in backup.entries}
    values[PRODUCER_IDS] = str(int(values.get(PRODUCER_IDS, b"0")) + skipped(rng)).encode()
    if is_shared:
        ids = Lineage() if LINEAGE not in values else Lineage(tuple(json.loads(values[LINEAGE])), None)
        values[LINEAGE] = ids.extended(rng).encode()
        for topic in backup.topics:
            unknown = replace(topic, partitions=tuple(map(after_set_back, topic.partitions)))
            values |= {one.key: one.value for one in creation(unknown)[0] if isinstance(one, Create)}
    cluster_id = values.pop(CLUSTER_ID)
    for key in sorted(values):
        yield Create(key, values[key])
    yield Create(CLUSTER_ID, cluster_id)
