"""Parquet files with a log of commits beside them.

`_headrace_log/00000000000000000007.json` is version 7: which files came and went, the columns, and where the rows are
from. A version is there once its file is, which is made only if nobody has made it. Now and then one, `...7.all.json`,
sums up all before it. Data files without a version that names them count for nothing.
"""

import base64
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import CommitConflict, LakeError
from ..evolution import conformed_batch
from ..files import DataFile, PartitionField, Partitioning
from ..places import Place
from ..records import STAGING
from ..state import TableState, state_of
from .model import Change, Snapshot

LOG: Final = "_headrace_log"
_SUM_EVERY: Final = 20
_ALL: Final = ".all.json"
_FORMAT: Final = 1
_DATA: Final = "data"
_FIELD_ID: Final = b"PARQUET:field_id"
_OWN: Final = frozenset({_DATA, STAGING})


class ParquetTable:
    """A directory of Parquet files with a log."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.data_directory = _DATA
        self.name = place.url
        self._known: tuple[int, dict[str, Any]] | None = None

    def snapshot(self) -> Snapshot | None:
        entry = self._newest()
        return None if entry is None else self._snapshot(*entry)

    def stored_columns(self, columns: pa.Schema, _partitioning: Partitioning) -> pa.Schema:
        return columns

    def create(self, columns: pa.Schema, partitioning: Partitioning, state: TableState) -> Snapshot:
        found = [name for name in self.place.walk() if name.endswith(".parquet") and name.split("/")[0] not in _OWN]
        if found:
            raise LakeError(
                f"{self.name} has Parquet files, such as {found[0]}, that belong to no table of Headrace: give another "
                "directory, or --format delta or iceberg for a table that is one of these"
            )
        content = _content(columns, partitioning, state)
        self._write(0, content, [], [], {})
        return self._snapshot(0, self._known[1] if self._known else {})

    def evolve(self, base: Snapshot, columns: pa.Schema) -> Snapshot:
        content = _content(columns, base.partitioning, base.state)
        return self._after(base, content, [], [])

    def commit(self, base: Snapshot, change: Change) -> Snapshot:
        content = _content(base.columns, base.partitioning, change.state)
        return self._after(base, content, change.add, change.remove)

    def _after(
        self, base: Snapshot, content: dict[str, Any], add: Sequence[DataFile], remove: Sequence[DataFile]
    ) -> Snapshot:
        known: dict[str, Any] = base.handle
        if missing := [one.name for one in remove if one.name not in known["files"]]:
            raise CommitConflict(f"{missing[0]} is no longer in {self.name}")
        self._write(base.version + 1, content, add, remove, known["files"])
        assert self._known is not None
        return self._snapshot(*self._known)

    def _write(
        self,
        version: int,
        content: dict[str, Any],
        add: Sequence[DataFile],
        remove: Sequence[DataFile],
        files: dict[str, Any],
    ) -> None:
        added = {one.name: _file_text(one) for one in add}
        removed = [one.name for one in remove]
        entry = {**content, "time": int(time.time() * 1000), "add": list(added.values()), "remove": removed}
        self.place.create(f"{LOG}/{version:020d}.json", _json(entry))
        now = {name: one for name, one in files.items() if name not in set(removed)} | added
        self._known = version, {**content, "files": now}
        if version and version % _SUM_EVERY == 0:
            self.place.write(f"{LOG}/{version:020d}{_ALL}", _json({**content, "add": list(now.values())}))

    def read(self, snapshot: Snapshot, files: Sequence[DataFile], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return read_files(self.place, snapshot.columns, files, columns)

    def obstacles(self, _snapshot: Snapshot) -> Sequence[str]:
        return ()

    def sweep(self, older_than: float) -> int:
        """Remove data files that no version names, or that were replaced before a time."""
        entry = self._newest()
        if entry is None:
            return 0
        needed = set(entry[1]["files"]) | self._removed_since(older_than)
        old = [
            name
            for name, changed in self.place.walk().items()
            if name.endswith(".parquet") and name not in needed and changed < older_than
        ]
        for name in [*old, *self._old_versions(older_than)]:
            self.place.remove(name)
        return len(old)

    def _old_versions(self, moment: float) -> list[str]:
        """Versions before the last one that sums up, but for those that tell of files replaced since a time."""
        sums = sorted(int(name[:20]) for name in self.place.names(LOG) if name.endswith(_ALL))
        changed = self.place.walk()
        names = [f"{LOG}/{one:020d}{end}" for one in sorted({*self._versions(), *sums}) for end in (".json", _ALL)]
        last = f"{LOG}/{sums[-1]:020d}" if sums else ""
        return [name for name in names if name < last and changed.get(name, moment) < moment]

    def _removed_since(self, moment: float) -> set[str]:
        found: set[str] = set()
        for version in sorted(self._versions(), reverse=True):
            entry = json.loads(self.place.read(f"{LOG}/{version:020d}.json"))
            if entry["time"] < moment * 1000:
                break
            found |= set(entry["remove"])
        return found

    def _versions(self) -> list[int]:
        names = self.place.names(LOG)
        return [int(name[:20]) for name in names if name.endswith(".json") and not name.endswith(_ALL)]

    def _newest(self) -> tuple[int, dict[str, Any]] | None:
        """The last version and what it amounts to."""
        names = self.place.names(LOG)
        versions = sorted(int(name[:20]) for name in names if name.endswith(".json") and not name.endswith(_ALL))
        if not versions:
            return None
        sums = sorted(int(name[:20]) for name in names if name.endswith(_ALL))
        if self._known is None or self._known[0] > versions[-1] or self._known[0] + 1 < versions[0]:
            self._known = self._summed(sums[-1]) if sums else None
        for version in versions:
            if self._known is None or version > self._known[0]:
                self._known = version, self._next(version, {} if self._known is None else self._known[1]["files"])
        assert self._known is not None
        return self._known

    def _summed(self, version: int) -> tuple[int, dict[str, Any]]:
        entry = json.loads(self.place.read(f"{LOG}/{version:020d}{_ALL}"))
        return version, {**entry, "files": {one["name"]: one for one in entry["add"]}}

    def _next(self, version: int, files: dict[str, Any]) -> dict[str, Any]:
        entry = json.loads(self.place.read(f"{LOG}/{version:020d}.json"))
        if entry["format"] != _FORMAT:
            raise LakeError(f"{self.name} is of format {entry['format']}, which a newer Headrace wrote: upgrade this")
        removed = set(entry["remove"])
        kept = {name: one for name, one in files.items() if name not in removed}
        return {**entry, "files": kept | {one["name"]: one for one in entry["add"]}}

    def _snapshot(self, version: int, entry: dict[str, Any]) -> Snapshot:
        return Snapshot(
            version=version,
            columns=pa.ipc.read_schema(pa.py_buffer(base64.b64decode(entry["schema"]))),
            state=state_of(json.dumps(entry["state"])),
            partitioning=tuple(PartitionField(**one) for one in entry["partitioning"]),
            list_files=lambda: [_file_of(one) for one in entry["files"].values()],
            handle=entry,
        )


def read_files(
    place: Place,
    table: pa.Schema,
    files: Sequence[DataFile],
    columns: Sequence[str],
    ids: Mapping[str, int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Rows of Parquet files, of these columns as a table has them.

    `ids` are those of the table's columns, by which a file has them that knows ids: there a column may have had another
    name.
    """
    wanted = pa.schema([table.field(name) for name in columns])
    for one in files:
        with place.open(one.name) as source, pq.ParquetFile(source) as file:
            stored = _stored_names(file.schema_arrow, ids or {})
            there = {stored[name]: name for name in columns if name in stored}
            for batch in file.iter_batches(batch_size=65536, columns=list(there)):
                yield conformed_batch(batch.rename_columns([there[name] for name in batch.schema.names]), wanted)


def _stored_names(file: pa.Schema, ids: Mapping[str, int]) -> dict[str, str]:
    """The columns of a file by their names in the table."""
    by_id = {int(one.metadata[_FIELD_ID]): one.name for one in file if one.metadata and _FIELD_ID in one.metadata}
    if not (ids and by_id):
        return {name: name for name in file.names}
    return {name: by_id[number] for name, number in ids.items() if number in by_id}


def _content(columns: pa.Schema, partitioning: Partitioning, state: TableState) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "columns": {one.name: str(one.type) for one in columns},
        "schema": base64.b64encode(columns.serialize().to_pybytes()).decode(),
        "partitioning": [asdict(one) for one in partitioning],
        "state": json.loads(state.text()),
    }


def _json(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode()


def _file_text(one: DataFile) -> dict[str, Any]:
    return {
        "name": one.name,
        "rows": one.rows,
        "size": one.size,
        "partition": dict(one.partition),
        "spans": {str(number): span for number, span in one.spans.items()},
        "times": one.times,
    }


def _file_of(entry: dict[str, Any]) -> DataFile:
    return DataFile(
        name=entry["name"],
        rows=entry["rows"],
        size=entry["size"],
        partition=entry["partition"],
        spans={int(number): (span[0], span[1]) for number, span in entry["spans"].items()},
        times=None if entry["times"] is None else (entry["times"][0], entry["times"][1]),
    )
