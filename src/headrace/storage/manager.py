"""All logs of a data directory."""

import uuid
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import structlog

from headrace.net.clock import Clock
from headrace.net.summaries import Summaries
from headrace.protocol.errors import CodedError
from headrace.protocol.topic_partition import TopicPartition

from . import checkpoints
from .checkpoints import PARTITION_METADATA, CheckpointFile
from .condition import Health
from .disk import DirectoryLocked, Disk, Lock, StorageError, parent_of
from .log import Log
from .open_files import UNLIMITED, OpenFiles
from .recovery import Expected, LogState, RecoveryProgress, open_log, sync_found
from .retention import Cause
from .segment import LOG_SUFFIX
from .settings import LogSettings
from .synced_logs import SyncedLogs

_DELETE_SUFFIX: Final = "-delete"
_STRAY_SUFFIX: Final = "-stray"
_DAMAGED_SUFFIX: Final = "-damaged"
_TEMPORARY_SUFFIX: Final = ".tmp"
_LONGEST_NAME: Final = 255

logger = structlog.get_logger(__name__)


class WrongDirectory(Exception):
    """The data directory belongs to another broker or cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLog:
    """A log whose directory is there, and all that opening it takes: `open` may run on any thread."""

    disk: Disk
    clock: Clock
    key: TopicPartition
    topic_id: uuid.UUID
    directory: str
    settings: LogSettings
    expected: Expected
    is_new: bool
    came_back: bool
    """Whether it had been set aside, and is its topic's again."""

    @property
    def opens_at_once(self) -> bool:
        """Whether nothing of it has to be read."""
        return self.is_new or self.expected.clean

    def open(self, progress: RecoveryProgress | None = None) -> LogState:
        """What the log is, after whatever happened to it. To be told of progress is to be on a thread: then what was
        found is also synced, where readers see only what is."""
        state = open_log(self.disk, self.clock, self.directory, self.settings, self.expected, progress)
        if progress is not None and self.settings.flush_messages <= 1:
            sync_found(state)
        return state


class CheckpointWrite(NamedTuple):
    """Checkpoints to be written, by whichever thread."""

    steps: list[Callable[[], None]]
    starts: dict[Log, int]
    """Where logs start according to them."""

    def run(self) -> None:
        for step in self.steps:
            step()


def _ignore() -> None:
    """Log starts that have moved are written with the next checkpoint."""


class LogManager:
    """Opens, remembers and closes the logs of one data directory, and writes its checkpoints."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        data_directory: str,
        *,
        cluster_id: str | None = None,
        broker_id: int,
        most_open_files: int = UNLIMITED,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self.data_directory = data_directory.rstrip("/") or "/"
        self.cluster_id = cluster_id
        self.broker_id = broker_id
        self.files = OpenFiles(most_open_files)
        self.summaries = Summaries(logger, "logs")
        """What has happened to logs and is to be told; whoever looks after them writes it."""
        self.was_deleted: Callable[[uuid.UUID], bool] = lambda _: False
        """Whether a topic is known to have been deleted."""
        self._lock: Lock | None = None
        self._clean = False
        self._is_marked_clean = False
        """Whether the mark of a clean shutdown is still there."""
        self._logs: dict[TopicPartition, Log] = {}
        self._closed_logs: set[TopicPartition] = set()
        """Logs that were found and are not adopted: being opened, or impossible to open."""
        self._topic_ids: dict[TopicPartition, uuid.UUID] = {}
        self._directories: set[str] = set()
        self._named: set[str] = set()
        """Those of them whose names were synced when the directory was opened: once for all, not for each log."""
        self._strays: set[str] = set()
        """Directories that were set aside because the metadata did not know their topics."""
        self._doomed: dict[str, int] = {}
        """Directories of deleted partitions, and when they are to go."""
        self._deleted: dict[str, str] = {}
        """Those of them whose names before, as `_name_before` has them, nobody has taken since."""
        self._recovery_points: dict[TopicPartition, int] = {}
        self._high_watermarks: dict[TopicPartition, int] = {}
        self._log_starts: dict[TopicPartition, int] = {}
        self._cleaner_offsets: dict[TopicPartition, int] = {}
        self._opened: set[TopicPartition] = set()
        """Logs that were opened since the start: what the last stop left counts for none of them any more."""
        self.faulty: dict[TopicPartition, None] = {}
        """Logs that are, or were lately, not well; whoever looks after them removes those that are."""
        self._outdated: set[str] = set()
        """Checkpoints that still name partitions which are gone."""
        self._is_checkpoint_lost = False
        """Whether nothing tells, until all logs of the start are loaded, which ones the directory had."""
        self._names_made = self._names_noted = 0
        """Directories that were made, and how many of them a checkpoint on disk names."""
        self._checkpoints = {name: CheckpointFile(disk, self._path(name)) for name in self._checkpointed()}
        self.synced_logs = SyncedLogs(disk, self._path(checkpoints.SYNCED_LOGS))
        self._moved: dict[TopicPartition, None] = {}
        """Logs whose start has moved since their starts were written."""
        self.on_starts_moved: Callable[[], None] = _ignore
        """Called when there is something for `prepare_moved_starts`: also when a log was made."""

    # Opening

    def open(self) -> None:
        """Take the directory for this process, see whose it is, and read its checkpoints."""
        self._make_data_directory()
        try:
            self._lock = self._disk.lock(self._path(checkpoints.LOCK))
        except DirectoryLocked as error:
            raise DirectoryLocked(
                f"{self.data_directory} is in use by another broker; stop it or give this one its own --data directory"
            ) from error
        try:
            self._check_owner()
            self._read_checkpoints()
            self._clean = self._disk.exists(self._path(checkpoints.CLEAN_SHUTDOWN))
            self._is_marked_clean = self._clean
            if not self._clean:
                self._disk.sync_directory(self.data_directory)
                self._named = set(self._directories)
        except BaseException:
            self._unlock()
            raise

    def claim(self, cluster_id: str) -> None:
        """Assign the directory to a cluster, once that is known; `WrongDirectory` if it is another's."""
        if self.cluster_id and self.cluster_id != cluster_id:
            raise self._other_cluster(self.cluster_id, cluster_id)
        self.cluster_id = cluster_id
        self._check_owner()

    def release(self) -> None:
        """Give the directory back as it is: marked clean only if it was, and no log was opened. Safe to call twice."""
        self._unlock()

    @property
    def was_closed(self) -> bool:
        """Whether the last process that used the directory shut down cleanly."""
        return self._clean

    @property
    def found_logs(self) -> int:
        """How many logs have a directory."""
        return len(self._directories)

    def free_bytes(self) -> int:
        return self._disk.free_bytes(self.data_directory)

    def total_bytes(self) -> int:
        return self._disk.total_bytes(self.data_directory)

    def _make_data_directory(self) -> None:
        """Every new directory on the way is a name in the one above it, which has to be synced."""
        missing = []
        path = self.data_directory
        while not self._disk.exists(path):
            missing.append(path)
            path = parent_of(path)
        self._disk.mkdir(self.data_directory)
        for path in reversed(missing):
            self._disk.sync_directory(parent_of(path))

    def _path(self, name: str) -> str:
        return f"{self.data_directory}/{name}"

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _check_owner(self) -> None:
        path = self._path(checkpoints.META_PROPERTIES)
        stored = checkpoints.decode_properties(self._read(path))
        broker_id = stored.get("node.id", stored.get("broker.id"))
        if broker_id is not None and broker_id != str(self.broker_id):
            raise WrongDirectory(
                f"{self.data_directory} belongs to broker {broker_id}, this is broker {self.broker_id}"
            )
        cluster_id = stored.get("cluster.id")
        if cluster_id and self.cluster_id and cluster_id != self.cluster_id:
            raise self._other_cluster(cluster_id, self.cluster_id)
        self.cluster_id = self.cluster_id or cluster_id
        properties: list[tuple[str, object]] = [("version", 1), ("node.id", self.broker_id)]
        if self.cluster_id:
            properties.append(("cluster.id", self.cluster_id))
        if not stored and not self._disk.exists(self._path(checkpoints.RECOVERY_POINTS)):
            self._write_offsets(checkpoints.RECOVERY_POINTS, {})
        if any(stored.get(key) != str(value) for key, value in properties):
            self._disk.write_atomically(path, checkpoints.encode_properties(properties))

    def _other_cluster(self, theirs: str, ours: str) -> WrongDirectory:
        return WrongDirectory(f"{self.data_directory} belongs to cluster {theirs}, this broker to cluster {ours}")

    def _read_checkpoints(self) -> None:
        recovery_points = self._read_offsets(checkpoints.RECOVERY_POINTS)
        self._is_checkpoint_lost = recovery_points is None
        self._recovery_points = recovery_points or {}
        self._high_watermarks = self._read_offsets(checkpoints.HIGH_WATERMARKS) or {}
        self._log_starts = self._read_offsets(checkpoints.LOG_STARTS) or {}
        self._cleaner_offsets = self._read_offsets(checkpoints.CLEANER_OFFSETS) or {}
        self.synced_logs.load(self._read(self._path(checkpoints.SYNCED_LOGS)))
        names = self._disk.listdir(self.data_directory)
        self._directories = {name for name in names if _partition_of(name)}
        self._strays = {name for name in names if name.endswith(_STRAY_SUFFIX)}
        self._doom_names((name for name in names if name.endswith(_DELETE_SUFFIX)), 0)
        self._drop_deleted()

    def _drop_deleted(self) -> None:
        """A deletion on a full disk may have left checkpoints that still name its partitions; no new topic is bound by
        them. Those of a topic that had the name since are not meant: see `_take_name`. Nor are names that are too long
        to be told apart here: another log of such a name may have lost its directory, and is no new one.
        """
        for name, offsets in self._checkpointed().items():
            for key in [key for key in offsets if _directory_of(key) in self._deleted]:
                if _directory_of(key) not in self._directories:
                    del offsets[key]
                    self._outdated.add(name)

    def _read_offsets(self, name: str) -> dict[TopicPartition, int] | None:
        """What a checkpoint says; None when it is missing or damaged."""
        return checkpoints.decode_offsets(self._read(self._path(name)))

    def _read(self, path: str) -> bytes:
        """What a file holds; nothing when there is none."""
        try:
            return self._disk.read(path)
        except StorageError as error:
            if not error.is_missing:
                raise
            return b""

    def _remove_clean_marker(self) -> None:
        """Before the first log is opened, so before anything can be written: until then the directory is as it was
        left, however many starts have failed.
        """
        if self._is_marked_clean:
            self._disk.unlink(self._path(checkpoints.CLEAN_SHUTDOWN))
            self._disk.sync_directory(self.data_directory)
            self._is_marked_clean = False

    # Logs

    def load(
        self, topic: str, partition: int, topic_id: uuid.UUID, settings: LogSettings, *, replicated: bool = False
    ) -> Log:
        """The log of a partition: opened, recovered if need be, or made.

        One that has lost everything is offline, unless it is `replicated`: then it begins anew, refetching.
        """
        known = self._logs.get(TopicPartition(topic, partition))
        if known is not None:
            return known
        closed = self.find(topic, partition, topic_id, settings, replicated=replicated)
        return self.adopt(closed, closed.open())

    def find(
        self, topic: str, partition: int, topic_id: uuid.UUID, settings: LogSettings, *, replicated: bool = False
    ) -> ClosedLog:
        """The log of a partition, whose directory is made if there is none; to be opened, then adopted."""
        key = TopicPartition(topic, partition)
        self._remove_clean_marker()
        name = _directory_of(key)
        directory = self._path(name)
        is_in_doubt = name in self._directories and self._may_be_anyones(key)
        if name in self._directories and (is_in_doubt or not self._belongs(key, topic_id)):
            for aside in self._dispose([key]):
                why = "does not say of which topic it is" if is_in_doubt else "is of another topic of this name"
                logger.warning("a log's directory was set aside", log=name, directory=aside, reason=f"it {why}")
        came_back = name not in self._directories and self._took_back(key, topic_id)
        is_new = name not in self._directories
        if is_new:
            self._make_directory(name, topic_id, refetching=replicated and (is_in_doubt or self._was_held(key)))
        self._closed_logs.add(key)
        closed = ClosedLog(
            disk=self._disk,
            clock=self._clock,
            key=key,
            topic_id=topic_id,
            directory=directory,
            settings=settings,
            expected=self._expected(key, replicated=replicated),
            is_new=is_new,
            came_back=came_back,
        )
        if is_new:
            self._recovery_points.setdefault(key, 0)
            self.on_starts_moved()
        return closed

    def adopt(self, closed: ClosedLog, state: LogState) -> Log:
        """Register a log that was opened."""
        key = closed.key
        if state.refetching:
            self._forget([key])
        log = Log(
            self._disk,
            self._clock,
            closed.directory,
            _directory_of(key),
            closed.settings,
            state,
            on_recovery_point_lowered=self._write_recovery_points,
            on_start_lowered=self._write_log_starts,
            on_start_moved=partial(self._start_moved, key),
            on_fault=partial(self._note_fault, key),
            on_deleted=self._note_deleted,
            files=self.files,
        )
        if closed.came_back:
            log.findings.append(f"{closed.directory} had been set aside, and is its topic's again")
        log.first_dirty_offset = min(self._cleaner_offsets.get(key, 0), log.log_end_offset)
        self._logs[key] = log
        self._opened.add(key)
        self._topic_ids[key] = closed.topic_id
        self._closed_logs.discard(key)
        if log.health is not Health.ONLINE:
            self._note_fault(key)
        return log

    def _note_fault(self, key: TopicPartition) -> None:
        self.faulty[key] = None
        log = self._logs.get(key)
        if log is not None and log.condition.offline is not None:
            command = f"headrace log refetch {key.topic} --partition {key.partition} --broker {self.broker_id}"
            log.condition.offline += f"; to fetch it from another replica: {command}"

    def unload(self, topic: str, partition: int, high_watermark: int) -> None:
        """Let go of a log, so that it can be opened anew."""
        log = self._logs.pop(TopicPartition(topic, partition), None)
        self._closed_logs.add(TopicPartition(topic, partition))
        self._high_watermarks[TopicPartition(topic, partition)] = high_watermark
        self.faulty.pop(TopicPartition(topic, partition), None)
        if log is not None:
            log.fail("it is opened anew")
            log.close()

    def begin_anew(self, topic: str, partition: int, topic_id: uuid.UUID, *, refetching: bool) -> str | None:
        """Set the directory of a log that failed aside, so that the next `load` makes an empty one; its new name, None
        where it is gone.

        With `refetching` that one knows, whenever it is opened, that it lost what it had held.
        """
        key = TopicPartition(topic, partition)
        name = _directory_of(key)
        self.unload(topic, partition, 0)
        aside = self._rename_aside(name, topic_id, _DAMAGED_SUFFIX) if name in self._directories else None
        self._disk.sync_directory(self.data_directory)
        if refetching:
            self._make_directory(name, topic_id, refetching=True)
        self._forget([key])
        return aside

    def _was_held(self, key: TopicPartition) -> bool:
        """Whether a log whose directory is gone was there before: every checkpoint names all logs that there are."""
        return key in self._recovery_points or self._is_checkpoint_lost

    def _expected(self, key: TopicPartition, *, replicated: bool) -> Expected:
        known = key in self._recovery_points
        return Expected(
            high_watermark=self._high_watermarks.get(key, 0) if replicated else 0,
            may_refetch=replicated,
            recovery_point=self._recovery_points.get(key, 0),
            log_start_offset=self._log_starts.get(key, 0),
            clean=self._clean and known and key not in self._opened,
            may_have_gaps=key in self._cleaner_offsets,
            is_named=_directory_of(key) in self._named,
        )

    def _belongs(self, key: TopicPartition, topic_id: uuid.UUID) -> bool:
        """Whether a log's directory is of the topic with this id; one that does not say is taken over.

        Somebody may have put it there: what the last stop left counts for another.
        """
        found = self._topic_id_of(key)
        if found is None:
            self._opened.add(key)
            path = f"{self._path(_directory_of(key))}/{PARTITION_METADATA}"
            self._disk.write_atomically(path, checkpoints.encode_partition_metadata(topic_id))
        return found is None or found == topic_id

    def _may_be_anyones(self, key: TopicPartition) -> bool:
        """Whether a log has records and does not say of which topic: they may be of an earlier one of this name.

        So it may be after a power loss before the first sync, which syncs that as well.
        """
        if self._clean or self._recovery_points.get(key, 0) > 0 or self._topic_id_of(key) is not None:
            return False
        return any(self._disk.sizes(self._path(_directory_of(key)), LOG_SUFFIX).values())

    def _topic_id_of(self, key: TopicPartition) -> uuid.UUID | None:
        path = f"{self._path(_directory_of(key))}/{PARTITION_METADATA}"
        return checkpoints.decode_partition_metadata(self._read(path))

    def _took_back(self, key: TopicPartition, topic_id: uuid.UUID) -> bool:
        """Whether the log was set aside when the metadata did not know its topic, and has its name again now.

        Not where the checkpoints still know the partition: its directory was lost later, and is not the one set aside.
        """
        if key in self._recovery_points:
            return False
        name = _directory_of(key)
        for stray in sorted(self._strays, reverse=True):
            if _name_before(stray, _STRAY_SUFFIX) == name and self._is_of(self._path(stray), topic_id):
                self._write_outdated()
                self._disk.rename(self._path(stray), self._path(name))
                self._disk.sync_directory(self.data_directory)
                self._strays.discard(stray)
                self._directories.add(name)
                return True
        return False

    def _is_of(self, directory: str, topic_id: uuid.UUID) -> bool:
        found = self._read(f"{directory}/{PARTITION_METADATA}")
        return checkpoints.decode_partition_metadata(found) == topic_id

    def _make_directory(self, name: str, topic_id: uuid.UUID, *, refetching: bool) -> None:
        """Checkpoints of an earlier directory of this name must be gone before the new one can be mistaken for it.

        One that is still there now is of this very partition, whose directory is lost. The new directory says so from
        its beginning: once it is there nothing else does.
        """
        self._write_outdated()
        self._take_name(name)
        directory = self._path(name)
        made = directory + _TEMPORARY_SUFFIX if refetching else directory
        self._disk.mkdir(made)
        self._disk.write(f"{made}/{PARTITION_METADATA}", checkpoints.encode_partition_metadata(topic_id))
        if refetching:
            self._disk.write_atomically(f"{made}/{checkpoints.REFETCHING}", b"")
            self._disk.rename(made, directory)
            self._disk.sync_directory(self.data_directory)
        self._directories.add(name)
        self._named.discard(name)
        self._names_made += 1

    def _take_name(self, name: str) -> None:
        """The deleted directory that had a name before no longer has to do with it."""
        aside = self._deleted.pop(_shortened(name), None)
        due_ms = self._doomed.pop(aside, None) if aside is not None else None
        if aside is not None and due_ms is not None:
            number, ending = int(name.rpartition("-")[2]), aside.rpartition(".")[2]
            while self._disk.exists(self._path(nameless := f"{number}.{ending}")):
                number += 1
            self._disk.rename(self._path(aside), self._path(nameless))
            self._doomed[nameless] = due_ms

    def _checkpointed(self) -> dict[str, dict[TopicPartition, int]]:
        return {
            checkpoints.RECOVERY_POINTS: self._recovery_points,
            checkpoints.HIGH_WATERMARKS: self._high_watermarks,
            checkpoints.LOG_STARTS: self._log_starts,
            checkpoints.CLEANER_OFFSETS: self._cleaner_offsets,
        }

    def _forget(self, keys: Iterable[TopicPartition]) -> None:
        for key in keys:
            self._topic_ids.pop(key, None)
            for name, offsets in self._checkpointed().items():
                if offsets.pop(key, None) is not None:
                    self._outdated.add(name)
        self._write_outdated()

    def _write_outdated(self) -> None:
        for name, offsets in self._checkpointed().items():
            if name in self._outdated:
                self._write_offsets(name, offsets)

    def _write_offsets(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        self._checkpoints[name].prepare(offsets)()
        self._outdated.discard(name)

    def logs(self) -> Iterator[Log]:
        return iter(list(self._logs.values()))

    def get(self, topic: str, partition: int) -> Log | None:
        return self._logs.get(TopicPartition(topic, partition))

    def proven_synced(self) -> frozenset[tuple[uuid.UUID, int]]:
        """The logs, by topic id and partition, that have lost nothing acknowledged whatever became of the machine."""
        named = self.synced_logs.named()
        return frozenset((topic_id, key.partition) for key, topic_id in named.items() if self._is_whole(key))

    def _is_whole(self, key: TopicPartition) -> bool:
        log = self._logs.get(key)
        if log is not None:
            return log.health is not Health.REFETCHING
        name = _directory_of(key)
        return name in self._directories and not self._disk.exists(f"{self._path(name)}/{checkpoints.REFETCHING}")

    def high_watermark(self, topic: str, partition: int) -> int:
        """The last one written down; 0 when there is none."""
        return self._high_watermarks.get(TopicPartition(topic, partition), 0)

    def strays(self) -> list[str]:
        """Names of partition directories that nobody has loaded: of topics that the metadata does not know."""
        loaded = {log.name for log in self._logs.values()}
        return sorted(self._directories - loaded)

    def set_strays_aside(self, but: Container[TopicPartition] = ()) -> list[str]:
        """Once all that is known is loaded: give the strays other names, so that a new topic can have theirs.

        Of them only logs of topics that are known to have been deleted go, as else it may be the metadata that is
        wrong: put back from an old copy, or lost. What does not look like a partition is left alone, and so are those
        that are known and could not be loaded. The new names of what is kept.
        """
        strays = [name for name in self.strays() if _partition_of(name) not in but]
        ours = [name for name in strays if self._disk.exists(f"{self._path(name)}/{PARTITION_METADATA}")]
        self._is_checkpoint_lost = False
        aside = self._dispose([key for name in ours if (key := _partition_of(name))])
        checkpointed = {key for offsets in self._checkpointed().values() for key in offsets}
        self._forget(key for key in checkpointed - self._logs.keys() if key not in but)
        return aside

    def _dispose(self, keys: Sequence[TopicPartition]) -> list[str]:
        """Set aside directories that are of no topic that is known; the new names of those that are kept."""
        deleted = {key for key in keys if self._was_deleted(key)}
        self._doom(deleted)
        return self._set_aside([key for key in keys if key not in deleted], _STRAY_SUFFIX)

    def _was_deleted(self, key: TopicPartition) -> bool:
        topic_id = self._topic_id_of(key)
        return topic_id is not None and self.was_deleted(topic_id)

    def set_aside(self, topic: str, partitions: Iterable[int]) -> list[str]:
        """Bring logs of a topic to rest and give their directories other names, so that a new topic can have theirs."""
        keys = [TopicPartition(topic, partition) for partition in partitions]
        for key in keys:
            log = self._logs.pop(key, None)
            if log is not None:
                log.close()
                log.fail("the partition is not known any more")
        return self._set_aside([key for key in keys if _directory_of(key) in self._directories], _STRAY_SUFFIX)

    def bound_producers(self, most: int) -> int:
        """Have the logs forget producers, those first that have been silent for longest; how many went.

        Those that wrote since the last checkpoint are left alone.
        """
        held = [producers for log in self._logs.values() if (producers := log.loaded_producers()) is not None]
        surplus = excess = sum(map(len, held)) - most
        if excess <= 0:
            return 0
        generations = [(generation, producers) for producers in held for generation in producers.generations()]
        for generation, known in sorted(generations, key=lambda pair: pair[0]):
            if surplus <= 0:
                break
            surplus -= known.forget(generation, surplus)
        return excess - surplus

    # Deleting

    def _note_deleted(self, log: Log, cause: Cause, segments: int, size: int) -> None:
        sums = {"segments": segments, "bytes": size}
        self.summaries.add("segments deleted", log.name, reason=cause.value, sums=sums)

    def delete(self, topic: str, partitions: Iterable[int]) -> None:
        """Take logs of a topic away; their files go with a later `delete_files`."""
        keys = [TopicPartition(topic, partition) for partition in partitions]
        logs = [log for key in keys if (log := self._logs.pop(key, None)) is not None]
        for log in logs:
            log.fail("the partition was deleted")
            log.close()
        delay_ms = max((log.settings.file_delete_delay_ms for log in logs), default=0)
        self._doom([key for key in keys if _directory_of(key) in self._directories], delay_ms)

    def _doom(self, keys: Iterable[TopicPartition], delay_ms: int = 0) -> None:
        self._doom_names(self._set_aside(keys, _DELETE_SUFFIX), self._clock.now_ms() + delay_ms)

    def _doom_names(self, names: Iterable[str], due_ms: int) -> None:
        for name in names:
            self._doomed[name] = due_ms
            self._deleted[_name_before(name, _DELETE_SUFFIX)] = name

    def _set_aside(self, keys: Iterable[TopicPartition], suffix: str) -> list[str]:
        """Rename directories and forget what the checkpoints say of them; the new names."""
        aside: dict[TopicPartition, str | None] = {}
        try:
            for key in keys:
                aside[key] = self._rename_aside(_directory_of(key), self._topic_ids.get(key), suffix)
        finally:
            if aside:
                self._settle_aside(aside)
        return [name for name in aside.values() if name is not None]

    def _settle_aside(self, keys: Iterable[TopicPartition]) -> None:
        """What is forgotten is so even if it cannot be written now: a new directory of the name waits for that."""
        try:
            self._disk.sync_directory(self.data_directory)
        finally:
            self._forget(keys)
            self._closed_logs.difference_update(keys)

    def _rename_aside(self, name: str, topic_id: uuid.UUID | None, suffix: str) -> str | None:
        """The new name; None where somebody else has removed the directory."""
        if not self._disk.exists(self._path(name)):
            self._directories.discard(name)
            return None
        number = topic_id.int if topic_id else 0
        while self._disk.exists(self._path(target := _aside_name(name, number, suffix))):
            number = (number + 1) % (1 << 128)
        self._disk.rename(self._path(name), self._path(target))
        self._directories.discard(name)
        if suffix == _STRAY_SUFFIX:
            self._strays.add(target)
        return target

    def delete_files(self, now_ms: int) -> None:
        """Unlink what was deleted long enough ago; may be slow, and touches nothing that a log still uses."""
        for name in [name for name, due_ms in list(self._doomed.items()) if due_ms <= now_ms]:
            if self._doomed.pop(name, None) is not None:  # else its name was taken meanwhile, and it has another
                self._deleted.pop(_name_before(name, _DELETE_SUFFIX), None)
                self._disk.rmtree(self._path(name))
        in_order = self.must_store_starts(now_ms) and not self._could_write_log_starts()
        for log in self._logs.values():
            if log.deleted_end(now_ms) is not None:
                log.unlink_deleted(now_ms, in_order=in_order)

    def must_store_starts(self, now_ms: int) -> bool:
        """Whether `delete_files` has to write where logs start before it unlinks anything."""
        ends = ((log, log.deleted_end(now_ms)) for log in self._logs.values())
        return any(end is not None and end > log.stored_start_offset for log, end in ends)

    def _could_write_log_starts(self) -> bool:
        try:
            self._write_log_starts()
        except StorageError as error:
            if not error.is_full:
                raise
            return False
        return True

    # Checkpoints

    def checkpoint(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Write down how far each log is synced, where it starts, and how far it is committed."""
        write = self.prepare_checkpoint(high_watermarks)
        write.run()
        self.finish(write)

    def prepare_checkpoint(self, high_watermarks: Mapping[TopicPartition, int]) -> CheckpointWrite:
        """As `checkpoint`, but what is slow is left to whoever runs it, and to `finish` when it has succeeded."""
        self._high_watermarks.update(high_watermarks)
        steps = [
            self._prepare_recovery_points(),
            self._checkpoints[checkpoints.HIGH_WATERMARKS].prepare(self._high_watermarks),
        ]
        starts = self.prepare_log_starts()
        steps += starts.steps
        offsets = {key: log.first_dirty_offset for key, log in self._logs.items() if log.first_dirty_offset}
        if any(self._cleaner_offsets.get(key) != offset for key, offset in offsets.items()):
            self._cleaner_offsets |= offsets
            steps.append(self._checkpoints[checkpoints.CLEANER_OFFSETS].prepare(self._cleaner_offsets))
        return CheckpointWrite(steps, starts.starts)

    def prepare_moved_starts(self) -> CheckpointWrite:
        """Where the logs start whose start has moved; to be run anywhere, then `finish` or `fail` is to be called.

        New logs are named first: one that no checkpoint names would be taken for new again once its directory is lost.
        """
        moved, self._moved = self._moved, {}
        write = self.prepare_log_starts(moved) if moved else CheckpointWrite([], {})
        if self._names_made == self._names_noted:
            return write
        return CheckpointWrite([self._prepared_with_names(), *write.steps], write.starts)

    def prepare_log_starts(self, keys: Iterable[TopicPartition] | None = None) -> CheckpointWrite:
        """As `prepare_moved_starts`, of these logs, or of all."""
        starts: dict[Log, int] = {}
        for key in self._logs if keys is None else keys:
            log = self._logs.get(key)
            if log is not None and log.offline is None and (log.log_start_offset or key in self._log_starts):
                self._log_starts[key] = starts[log] = log.log_start_offset
        return CheckpointWrite([self._checkpoints[checkpoints.LOG_STARTS].prepare(self._log_starts)], starts)

    def finish(self, write: CheckpointWrite) -> None:
        """Take note that checkpoints are on disk."""
        for log, offset in write.starts.items():
            try:
                log.start_stored(offset)
            except CodedError as error:
                logger.error("log start moved, but what lies before it cannot go", log=log.name, reason=error.message)

    def fail(self, write: CheckpointWrite, error: StorageError) -> None:
        """Take note that checkpoints could not be written; starts that have moved are to be written again."""
        for log, offset in write.starts.items():
            if log.stored_start_offset < offset:
                log.start_not_stored(error)
                key = _partition_of(log.name)
                if key is not None and log.offline is None:
                    self._moved[key] = None

    @property
    def has_moved_starts(self) -> bool:
        return bool(self._moved) or self._names_made != self._names_noted

    def _start_moved(self, key: TopicPartition) -> None:
        self._moved[key] = None
        self.on_starts_moved()

    def _write_recovery_points(self) -> None:
        self._prepare_recovery_points()()
        self._outdated.discard(checkpoints.RECOVERY_POINTS)

    def _prepare_recovery_points(self) -> Callable[[], None]:
        """What is named here and has no directory at the next start was lost: so names are synced first."""
        for key, log in self._logs.items():
            if log.offline is None:
                self._recovery_points[key] = log.synced_offset
        return self._prepared_with_names()

    def _prepared_with_names(self) -> Callable[[], None]:
        write = self._checkpoints[checkpoints.RECOVERY_POINTS].prepare(self._recovery_points)
        made = self._names_made
        return write if made == self._names_noted else partial(self._write_with_names, made, write)

    def _write_with_names(self, made: int, write: Callable[[], None]) -> None:
        self._disk.sync_directory(self.data_directory)
        write()
        self._names_noted = max(self._names_noted, made)

    def _write_log_starts(self) -> None:
        write = self.prepare_log_starts()
        write.run()
        self._outdated.discard(checkpoints.LOG_STARTS)
        self.finish(write)

    def close(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Sync everything, write the checkpoints and the mark of a clean shutdown, and give the directory back."""
        tickets = [ticket for log in self._logs.values() if (ticket := log.begin_close()) is not None]
        self._disk.do_all([ticket.try_run for ticket in tickets])
        for log in self._logs.values():
            log.close()
        self.checkpoint(high_watermarks)
        if not self._closed_logs and all(log.offline is None for log in self._logs.values()):
            self._disk.write_atomically(self._path(checkpoints.CLEAN_SHUTDOWN), b'{"version":0,"brokerEpoch":-1}')
        self._unlock()


def _partition_of(name: str) -> TopicPartition | None:
    """The partition that a directory's name stands for."""
    topic, _, partition = name.rpartition("-")
    key = TopicPartition(topic, int(partition)) if topic and partition.isdecimal() else None
    return key if key and _directory_of(key) == name else None


def _directory_of(key: TopicPartition) -> str:
    return f"{key.topic}-{key.partition}"


def _name_before(aside: str, suffix: str) -> str:
    """The name of a directory before it was set aside; what was cut from it is missing."""
    return aside.removesuffix(suffix).rpartition(".")[0]


def _shortened(name: str) -> str:
    """What `_name_before` tells of a name when it was deleted."""
    return _name_before(_aside_name(name, 0, _DELETE_SUFFIX), _DELETE_SUFFIX)


def _aside_name(name: str, unique: int, suffix: str) -> str:
    ending = f".{unique:032x}{suffix}"
    return name[: _LONGEST_NAME - len(ending)] + ending
