"""A batch of records into tables, exactly once: which offsets are still missing, files, and then one commit a table.

Nothing but the tables themselves is believed. Before a batch each table says which offsets it has; workers leave those
out; the commit adds what the batch has read to them, and is refused if the table has changed meanwhile. Then the batch
is tried again. So a batch may be run as often as one likes, by whomever, and be killed at any point.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from .compacting import compact
from .errors import CommitConflict, LakeError
from .evolution import Incompatible, merged_schema
from .files import BY_TIME, FILE_BYTES, DataFile
from .merging import merge_by_key
from .opening import Lake
from .records import BAD_COLUMNS, TABLE_COLUMNS, VALUE
from .state import Interval, TableState, without
from .tables.model import Change, LakeTable, Snapshot
from .writing import TableDecoder, TableTask, TopicResult, require_record_columns

_TRIES: Final = 10
APPEND: Final = "append"
UPSERT: Final = "upsert"

Execute = Callable[[Mapping[str, TableTask]], Sequence[TopicResult]]
"""Has workers write the rows of a batch that are of these topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions:
    """How topics become tables."""

    lake: Lake
    mode: str = APPEND
    partition: str = "day"
    keeps_bytes: bool = True
    """Whether the bytes of values are kept beside their fields; without them a table cannot be replayed."""
    bad: str = "table"
    """What becomes of records that cannot be decoded: `table`, or `fail`."""
    file_bytes: int = FILE_BYTES
    compression: str = "zstd"
    compact_every: int = 0
    """After how many commits small files are put together; 0 is never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicBatch:
    """The offsets of a topic in a batch. A start of None is wherever the first record is."""

    topic: str
    ranges: Mapping[int, tuple[int | None, int]]
    topic_id: str = ""
    may_skip: bool = False
    """Whether the batch may begin behind the end of what the table has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """What a batch has added to a table."""

    topic: str
    rows: int = 0
    bad: int = 0
    files: int = 0
    bytes: int = 0


@dataclass(slots=True)
class _Tables:
    """The tables of a topic, as they are before a batch."""

    table: LakeTable
    snapshot: Snapshot
    bad_table: LakeTable
    bad_snapshot: Snapshot | None


@dataclass(slots=True)
class Archive:
    """Adds batches to the tables of a lake."""

    options: ArchiveOptions
    decoders: Callable[[str], TableDecoder | None] = lambda _topic: None
    commits: dict[str, int] = field(default_factory=dict)
    _tables: dict[str, tuple[LakeTable, LakeTable]] = field(default_factory=dict)

    def add(self, batches: Sequence[TopicBatch], execute: Execute) -> list[Archived]:
        """Add what the batch has of each topic and its table does not have yet."""
        left = {one.topic: one for one in batches}
        done: list[Archived] = []
        for _ in range(_TRIES):
            before = {topic: self._look(batch) for topic, batch in left.items()}
            left = {topic: batch for topic, batch in left.items() if _is_missing(batch, before[topic].snapshot.state)}
            if not left:
                return done
            tasks = {topic: self._task(before[topic], topic) for topic in left}
            results = _by_topic(execute(tasks))
            for topic, batch in list(left.items()):
                added = self._settle(before[topic], batch, results.get(topic, []))
                if added is not None:
                    done.append(added)
                    del left[topic]
        raise LakeError(
            f"the tables of {', '.join(sorted(left))} in {self.options.lake.path} were changed {_TRIES} times "
            "by others while a batch was to be added; is another archive writing to them?"
        )

    def _look(self, batch: TopicBatch) -> _Tables:
        table, bad_table = self._open(batch.topic)
        snapshot = table.snapshot() or self._created(table, batch)
        _require_topic(table, snapshot.state, batch, self.options.mode)
        if not snapshot.state.topic:
            snapshot = self._adopted(table, snapshot, batch)
        return _Tables(table, snapshot, bad_table, bad_table.snapshot())

    def _open(self, topic: str) -> tuple[LakeTable, LakeTable]:
        if topic not in self._tables:
            lake = self.options.lake
            self._tables[topic] = lake.table(topic), lake.bad_table(topic)
        return self._tables[topic]

    def _created(self, table: LakeTable, batch: TopicBatch) -> Snapshot:
        columns = [one for one in TABLE_COLUMNS if self.options.keeps_bytes or one.name != VALUE]
        partitioning = BY_TIME[self.options.partition] if self.options.mode == APPEND else ()
        return table.create(pa.schema(columns), partitioning, self._first_state(batch))

    def _first_state(self, batch: TopicBatch) -> TableState:
        return TableState(topic=batch.topic, topic_id=batch.topic_id, mode=self.options.mode)

    def _adopted(self, table: LakeTable, snapshot: Snapshot, batch: TopicBatch) -> Snapshot:
        """A table of somebody else, with the columns of records."""
        if self.options.mode == UPSERT:
            raise LakeError(
                f"{table.name} was not made by an archive, so it is not known which key its rows have: archive with "
                "--upsert into a new table"
            )
        _require_writable_levels(table, snapshot)
        if obstacles := table.obstacles(snapshot):
            raise LakeError(f"{table.name} cannot have records: {'; '.join(obstacles)}")
        columns = require_record_columns(snapshot.columns, keeps_bytes=self.options.keeps_bytes, name=table.name)
        if not columns.equals(snapshot.columns):
            snapshot = table.evolve(snapshot, columns)
        return table.commit(snapshot, Change(state=self._first_state(batch)))

    def _task(self, before: _Tables, topic: str) -> TableTask:
        options, bad = self.options, before.bad_snapshot
        return TableTask(
            topic=topic,
            lake=options.lake,
            columns=before.snapshot.columns,
            partitioning=before.snapshot.partitioning,
            covered=before.snapshot.state.offsets,
            bad_covered={} if bad is None else bad.state.offsets,
            decoder=self.decoders(topic),
            is_keyed=options.mode == UPSERT,
            file_bytes=options.file_bytes,
            compression=options.compression,
        )

    def _settle(self, before: _Tables, batch: TopicBatch, results: Sequence[TopicResult]) -> Archived | None:
        """Commit what workers have written; None if the batch must be tried again."""
        needs = [one.needs for one in results if one.needs is not None]
        if needs:
            self._discard(before, results)
            self._evolve(before, needs)
            return None
        ranges = _ranges(batch, results)
        _require_no_gap(before.table, before.snapshot.state, batch, ranges)
        bad = sum(one.bad for one in results)
        if bad and self.options.bad == "fail":
            self._discard(before, results)
            raise LakeError(
                f"{bad} records of topic '{batch.topic}' cannot be decoded, the first because {_first_error(results)}; "
                "without --on-bad fail they are kept in a table of their own"
            )
        try:
            self._commit_bad(before, batch, ranges, [file for one in results for file in one.bad_files])
            added = self._commit(before, ranges, [file for one in results for file in one.files])
        except CommitConflict:
            self._discard(before, results)
            return None
        self._compact_now_and_then(before.table, batch.topic)
        return replace(added, topic=batch.topic, bad=bad)

    def _evolve(self, before: _Tables, needs: Sequence[pa.Schema]) -> None:
        columns = before.snapshot.columns
        for one in needs:
            try:
                columns = merged_schema(columns, one)
            except Incompatible:
                continue  # The next try sees what the table has got by then, and says of each record why it is bad.
        try:
            before.table.evolve(before.snapshot, columns)
        except CommitConflict:
            return

    def _commit_bad(
        self, before: _Tables, batch: TopicBatch, ranges: Mapping[int, Sequence[Interval]], files: Sequence[DataFile]
    ) -> None:
        """Bad records first: if only they are committed, the next try leaves them out by what their table has."""
        if not files:
            return
        table = before.bad_table
        base = before.bad_snapshot or table.create(BAD_COLUMNS, (), self._first_state(batch))
        table.commit(base, Change(state=base.state.adding(ranges), add=files))

    def _commit(self, before: _Tables, ranges: Mapping[int, Sequence[Interval]], files: Sequence[DataFile]) -> Archived:
        table, base = before.table, before.snapshot
        for attempt in range(_TRIES):
            try:
                if self.options.mode == UPSERT:
                    merge_by_key(table, base, files, base.state.adding(ranges), self.options.file_bytes)
                else:
                    table.commit(base, Change(state=base.state.adding(ranges), add=files))
                break
            except CommitConflict:
                newer = table.snapshot()
                # Somebody else may have put files together; as long as the rows are the same, so is what is to be done.
                if newer is None or newer.state != base.state or attempt == _TRIES - 1:
                    raise
                base = newer
        return Archived(
            topic="", rows=sum(one.rows for one in files), files=len(files), bytes=sum(one.size for one in files)
        )

    def _discard(self, before: _Tables, results: Sequence[TopicResult]) -> None:
        for one in results:
            for file in one.files:
                before.table.place.remove(file.name)
            for file in one.bad_files:
                before.bad_table.place.remove(file.name)

    def _compact_now_and_then(self, table: LakeTable, topic: str) -> None:
        self.commits[topic] = self.commits.get(topic, 0) + 1
        every = self.options.compact_every
        if every and self.commits[topic] % every == 0:
            compact(table, file_bytes=self.options.file_bytes)


def _by_topic(results: Sequence[TopicResult]) -> dict[str, list[TopicResult]]:
    found: dict[str, list[TopicResult]] = {}
    for one in results:
        found.setdefault(one.topic, []).append(one)
    return found


def _is_missing(batch: TopicBatch, state: TableState) -> bool:
    """Whether the table lacks anything of a batch. What has no start is looked at."""
    return any(
        not state.has(number, (end - 1 if start is None else start, end))
        for number, (start, end) in batch.ranges.items()
        if start is None or start < end
    )


def _ranges(batch: TopicBatch, results: Sequence[TopicResult]) -> dict[int, list[Interval]]:
    """The offsets that a batch has read."""
    first: dict[int, int] = {}
    for one in results:
        for partition, (begin, _) in one.spans.items():
            first[partition] = min(begin, first.get(partition, begin))
    return {
        number: [(first.get(number, end) if start is None else start, end)]
        for number, (start, end) in batch.ranges.items()
    }


def _require_topic(table: LakeTable, state: TableState, batch: TopicBatch, mode: str) -> None:
    if not state.topic:
        return
    if state.topic != batch.topic:
        raise LakeError(f"{table.name} has the records of topic '{state.topic}', not of '{batch.topic}'")
    if state.topic_id and batch.topic_id and state.topic_id != batch.topic_id:
        raise LakeError(
            f"topic '{batch.topic}' was deleted and made anew, and {table.name} has the records of the one before, "
            "with the same offsets: move the table away, or archive into another directory"
        )
    if state.mode != mode:
        how = "with one row for each key (--upsert)" if state.mode == UPSERT else "with every record"
        raise LakeError(f"{table.name} was made {how}, and cannot be changed to the other: give another directory")


def _require_no_gap(
    table: LakeTable, state: TableState, batch: TopicBatch, ranges: Mapping[int, Sequence[Interval]]
) -> None:
    """A batch that goes on behind the end of the table would leave out what is between, silently."""
    if batch.may_skip:
        return
    for number, intervals in ranges.items():
        end = state.end(number)
        if end is not None and intervals and intervals[0][0] > end and without((end, intervals[0][0]), ()):
            raise LakeError(
                f"{table.name} has {batch.topic}-{number} up to offset {end}, and the next batch begins at "
                f"{intervals[0][0]}: was the table set back? Archive what is between with --from {end} --until "
                f"{intervals[0][0]}, or begin anew with another --checkpoint"
            )


def _require_writable_levels(table: LakeTable, snapshot: Snapshot) -> None:
    for one in snapshot.partitioning:
        if one.source not in TABLE_COLUMNS.names:
            raise LakeError(
                f"{table.name} is partitioned by '{one.source}', which records do not have: archive into a new table"
            )


def _first_error(results: Sequence[TopicResult]) -> str:
    return next((one.error for one in results if one.error), "of what their values are")
