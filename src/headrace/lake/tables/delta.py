"""Delta Lake tables, through `deltalake`.

Files are added and removed by Delta's own commits. With each goes a transaction of the application `headrace`, whose
version names the file in `_headrace/` that has the table's state: so state and rows change together, and of two writers
that commit at once Delta refuses one.
"""

import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa

from ..errors import CommitConflict, LakeError, needed
from ..evolution import conformed_batch, plain_field
from ..files import BY_TIME, DataFile, PartitionField, Partitioning
from ..places import Place
from ..records import OFFSET, PARTITION, STAGING, TIMESTAMP
from ..state import TableState, state_of
from .model import Change, Snapshot, without_nulls
from .parquet import read_files

_APP: Final = "headrace"
_STATES: Final = "_headrace/"
_RANDOM_BITS: Final = 20
_CONSTRAINT: Final = "delta.constraints."
_COLUMN_RULES: Final = ("delta.generationExpression", "delta.invariants", "delta.identity")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CONFIGURATION: Final = {"delta.checkpointInterval": "20"}


class DeltaTable:
    """A Delta table."""

    def __init__(self, place: Place, options: Mapping[str, str] | None = None) -> None:
        self.place = place
        self.data_directory = ""
        self.name = place.url
        self._options = dict(options or {})
        self._table: Any = None

    def snapshot(self) -> Snapshot | None:
        delta = needed("deltalake", "a Delta table")
        if self._table is None:
            if not delta.DeltaTable.is_deltatable(self.name, self._options or None):
                return None
            self._table = delta.DeltaTable(self.name, storage_options=self._options or None)
        else:
            self._table.update_incremental()
        return self._snapshot()

    def stored_columns(self, columns: pa.Schema, partitioning: Partitioning) -> pa.Schema:
        """By which columns a table is partitioned is told by the log alone."""
        levels = {one.name for one in partitioning}
        return pa.schema([one for one in columns if one.name not in levels])

    def create(self, columns: pa.Schema, partitioning: Partitioning, state: TableState) -> Snapshot:
        delta = needed("deltalake", "a Delta table")
        schema = pa.schema([*columns, *(pa.field(one.name, one.type) for one in partitioning if one.is_derived)])
        # A transaction cannot be part of the commit that makes a table, so its state is told by the next one.
        self._table = delta.DeltaTable.create(
            self.name,
            schema=delta.Schema.from_arrow(schema),
            partition_by=[one.name for one in partitioning],
            configuration=_CONFIGURATION,
            storage_options=self._options or None,
        )
        return self.commit(self._snapshot(), Change(state=state))

    def evolve(self, base: Snapshot, columns: pa.Schema) -> Snapshot:
        delta = needed("deltalake", "a Delta table")
        self._require(base)
        empty = columns.empty_table()
        for one in base.partitioning:
            if one.is_derived:
                empty = empty.append_column(one.name, pa.array([], one.type))
        try:
            delta.write_deltalake(self._table, empty, mode="append", schema_mode="merge")
        except delta.exceptions.DeltaError as error:
            raise LakeError(f"{self.name} cannot get the columns of newer records: {error}") from error
        self._table.update_incremental()
        return self._snapshot()

    def commit(self, base: Snapshot, change: Change) -> Snapshot:
        delta = needed("deltalake", "a Delta table")
        self._require(base)
        before = self._table.transaction_version(_APP) or 0
        version = (((before >> _RANDOM_BITS) + 1) << _RANDOM_BITS) | random.getrandbits(_RANDOM_BITS)
        self.place.write(_state_name(version), change.state.text().encode())
        actions = [self._removed(one, change) for one in change.remove] + [_added(one, change) for one in change.add]
        try:
            self._table.create_write_transaction(
                actions,
                "append",
                self._table.schema(),
                list(self._table.metadata().partition_columns),
                commit_properties=delta.CommitProperties(
                    app_transactions=[delta.Transaction(_APP, version)],
                    custom_metadata={"headrace": change.state.topic or "rows"},
                ),
            )
        except delta.exceptions.CommitFailedError as error:
            self.place.remove(_state_name(version))
            raise CommitConflict(f"{self.name} was changed by somebody else: {error}") from error
        self._table.update_incremental()
        return self._snapshot()

    def read(self, snapshot: Snapshot, files: Sequence[DataFile], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        self._require_readable()
        levels = {one.name for one in snapshot.partitioning if not one.is_derived}
        if not levels & set(columns):
            yield from read_files(self.place, snapshot.columns, files, columns)
            return
        wanted = pa.schema([snapshot.columns.field(name) for name in columns])
        for one in files:
            for batch in read_files(self.place, snapshot.columns, [one], [n for n in columns if n not in levels]):
                for name in levels & set(columns):
                    value = pa.scalar(one.partition.get(name)).cast(wanted.field(name).type)
                    batch = batch.append_column(name, pa.repeat(value, len(batch)))
                yield conformed_batch(batch, wanted)

    def obstacles(self, _snapshot: Snapshot) -> Sequence[str]:
        """Rules that Delta leaves to who writes, and names of columns that are not those of files."""
        settings = self._table.metadata().configuration
        found = [
            f"it has the constraint '{name.removeprefix(_CONSTRAINT)}', which is not checked here"
            for name in settings
            if name.startswith(_CONSTRAINT)
        ]
        if settings.get("delta.columnMapping.mode", "none") != "none":
            found.append("its columns have other names in files (delta.columnMapping.mode)")
        for one in self._table.schema().fields:
            rules = [name for name in one.metadata if name.startswith(_COLUMN_RULES)]
            found += [f"column '{one.name}' has the rule {name}, which is not kept here" for name in rules]
        return [*found, *without_nulls(pa.schema(self._table.schema().to_arrow()))]

    def sweep(self, older_than: float) -> int:
        """Delta's own vacuum, and states that no version needs any more."""
        if self.snapshot() is None:
            return 0
        hours = max(0, int((time.time() - older_than) // 3600))
        removed = self._table.vacuum(hours, dry_run=False, enforce_retention_duration=False)
        newest = self._table.transaction_version(_APP) or 0
        for path, changed in self.place.walk().items():
            if path.startswith((_STATES, STAGING)) and path != _state_name(newest) and changed < older_than:
                self.place.remove(path)
        return len(removed)

    def _require(self, base: Snapshot) -> None:
        if self._table is None or self._table.version() != base.version:
            raise CommitConflict(f"{self.name} was changed by somebody else")

    def _require_readable(self) -> None:
        features = set(self._table.protocol().reader_features or ())
        if unknown := features & {"deletionVectors", "columnMapping"}:
            raise LakeError(
                f"{self.name} uses {', '.join(sorted(unknown))}, which cannot be read here: read it with another engine"
            )

    def _snapshot(self) -> Snapshot:
        table = self._table
        version = table.transaction_version(_APP)
        state = TableState() if version is None else state_of(self.place.read(_state_name(version)).decode())
        schema = pa.schema(table.schema().to_arrow())
        levels = list(table.metadata().partition_columns)
        partitioning = _partitioning(levels)
        derived = {one.name for one in partitioning if one.is_derived}
        return Snapshot(
            version=table.version(),
            columns=pa.schema([plain_field(one) for one in schema if one.name not in derived]),
            state=state,
            partitioning=partitioning,
            list_files=lambda: self._files(levels),
        )

    def _files(self, levels: Sequence[str]) -> list[DataFile]:
        actions = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        return [_file(row, levels) for row in actions]

    def _removed(self, one: DataFile, change: Change) -> Any:
        transaction = needed("deltalake.transaction", "a Delta table")
        return transaction.RemoveAction(
            _path(one),
            not change.is_rewrite,
            int(time.time() * 1000),
            one.size,
            dict(one.partition),
        )


def _partitioning(levels: Sequence[str]) -> Partitioning:
    by_time = {tuple(one.name for one in fields): fields for fields in BY_TIME.values()}
    known = by_time.get(tuple(levels))
    if known is not None:
        return known
    return tuple(PartitionField(name=name, source=name, transform="identity") for name in levels)


def _state_name(version: int) -> str:
    return f"{_STATES}state-{version}.json"


def _path(one: DataFile) -> str:
    return quote(one.name, safe="/=")


def _added(one: DataFile, change: Change) -> Any:
    transaction = needed("deltalake.transaction", "a Delta table")
    return transaction.AddAction(
        _path(one),
        one.size,
        dict(one.partition),
        int(time.time() * 1000),
        not change.is_rewrite,
        json.dumps(_stats(one)),
    )


def _stats(one: DataFile) -> dict[str, Any]:
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    if one.spans:
        low |= {PARTITION: min(one.spans), OFFSET: min(first for first, _ in one.spans.values())}
        high |= {PARTITION: max(one.spans), OFFSET: max(last for _, last in one.spans.values())}
    if one.times:
        # Delta keeps milliseconds: the last one is rounded up, so that what it bounds is within.
        low[TIMESTAMP] = _time_text(one.times[0] // 1000)
        high[TIMESTAMP] = _time_text(-(-one.times[1] // 1000))
    return {"numRecords": one.rows, "minValues": low, "maxValues": high, "nullCount": dict.fromkeys(low, 0)}


def _time_text(milliseconds: int) -> str:
    moment = _EPOCH + timedelta(milliseconds=milliseconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def _file(row: Mapping[str, Any], levels: Sequence[str]) -> DataFile:
    spans = {}
    first, last = row.get(f"min.{PARTITION}"), row.get(f"max.{PARTITION}")
    offsets = row.get(f"min.{OFFSET}"), row.get(f"max.{OFFSET}")
    if first is not None and last is not None and None not in offsets and last - first < 10_000:
        spans = dict.fromkeys(range(first, last + 1), (offsets[0], offsets[1]))
    partition = {name: row.get(f"partition.{name}") for name in levels}
    return DataFile(
        name=unquote(row["path"]),
        rows=row.get("num_records") or 0,
        size=row["size_bytes"],
        partition={name: None if value is None else str(value) for name, value in partition.items()},
        spans=spans,  # type: ignore[arg-type]
    )
