"""Apache Iceberg tables, through `pyiceberg`.

The table's state is a property of it, `headrace.state`, set in the very commit that adds and removes files. A commit
names the snapshot that it follows, and the catalog refuses it if there is another one by then.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from ..errors import CommitConflict, LakeError, needed
from ..evolution import plain_field
from ..files import DataFile, PartitionField, Partitioning
from ..places import LocalPlace, Place
from ..records import OFFSET, PARTITION
from ..state import TableState, state_of
from .model import Change, Snapshot, without_nulls
from .parquet import read_files

STATE: Final = "headrace.state"
_VERSION: Final = "headrace.version"
_NAMES: Final = "schema.name-mapping.default"
_SPAN: Final = (PARTITION, OFFSET)
_MOST_PARTITIONS: Final = 10_000
_LEVELS: Final = {"day": "_day", "hour": "_hour"}
_RETRIES: Final = "commit.retry.num-retries"
"""None: pyiceberg would commit a state again that is old by then."""
_PROPERTIES: Final = {
    _RETRIES: "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
    "format-version": "2",
}


def catalog_at(root: Place, properties: Mapping[str, str]) -> Any:
    """The catalog that the properties describe; without any, one in a file of SQLite beside the tables."""
    catalogs = needed("pyiceberg.catalog", "an Iceberg table")
    given = dict(properties)
    name = given.pop("name", "headrace")
    if not given.keys() & {"uri", "type", "py-catalog-impl"} and name == "headrace":
        if not isinstance(root, LocalPlace):
            raise LakeError(
                f"Iceberg tables in {root.url} need a catalog: name it, for example with --catalog type=rest "
                "--catalog uri=http://host:8181"
            )
        root.path.mkdir(parents=True, exist_ok=True)
        given |= {"type": "sql", "uri": f"sqlite:///{root.path}/catalog.db"}
    given.setdefault("warehouse", _url(root))
    try:
        return catalogs.load_catalog(name, **given)
    except Exception as error:
        raise LakeError(f"the Iceberg catalog '{name}' cannot be used: {error}") from error


def _url(place: Place) -> str:
    return f"file://{place.path}" if isinstance(place, LocalPlace) else place.url


class IcebergTable:
    """A table of a catalog."""

    def __init__(self, place: Place, catalog: Any, identifier: tuple[str, ...]) -> None:
        self.place = place
        self.data_directory = "data"
        self.name = ".".join(identifier)
        self._catalog = catalog
        self._identifier = identifier

    def snapshot(self) -> Snapshot | None:
        errors = needed("pyiceberg.exceptions", "an Iceberg table")
        try:
            return self._snapshot(self._catalog.load_table(self._identifier))
        except (errors.NoSuchTableError, errors.NoSuchNamespaceError):
            return None

    def stored_columns(self, columns: pa.Schema, _partitioning: Partitioning) -> pa.Schema:
        return columns

    def create(self, columns: pa.Schema, partitioning: Partitioning, state: TableState) -> Snapshot:
        errors = needed("pyiceberg.exceptions", "an Iceberg table")
        self._catalog.create_namespace_if_not_exists(self._identifier[:-1])
        try:
            table = self._catalog.create_table(
                self._identifier,
                schema=columns,
                location=_url(self.place),
                properties={**_PROPERTIES, STATE: state.text(), _VERSION: "0"},
            )
        except errors.TableAlreadyExistsError as error:
            raise CommitConflict(f"{self.name} was made by somebody else") from error
        with table.transaction() as change:
            if partitioning:
                spec = change.update_spec()
                for one in _finest(partitioning):
                    spec.add_field(one.source, one.transform, _level_name(one))
                spec.commit()
            change.set_properties(**{_NAMES: table.schema().name_mapping.model_dump_json()})
        return self._snapshot(table)

    def evolve(self, base: Snapshot, columns: pa.Schema) -> Snapshot:
        errors = needed("pyiceberg.exceptions", "an Iceberg table")
        table = base.handle
        try:
            with table.update_schema() as update:
                update.union_by_name(columns)
        except errors.CommitFailedException as error:
            raise CommitConflict(f"{self.name} was changed by somebody else: {error}") from error
        except (ValueError, errors.ValidationError) as error:
            raise LakeError(f"{self.name} cannot get the columns of newer records: {error}") from error
        return self._snapshot(self._catalog.load_table(self._identifier))

    def commit(self, base: Snapshot, change: Change) -> Snapshot:
        errors = needed("pyiceberg.exceptions", "an Iceberg table")
        table = base.handle
        transaction = table.transaction()
        try:
            if _NAMES not in table.properties:  # Without it, nobody could read files that know columns by names alone.
                transaction.set_properties(**{_NAMES: table.schema().name_mapping.model_dump_json(), _RETRIES: "0"})
            if change.add or change.remove:
                self._change_files(table, transaction, change, str(base.version + 1))
            transaction.set_properties(**{STATE: change.state.text(), _VERSION: str(base.version + 1)})
            self._require(base)
            transaction.commit_transaction()
        except (errors.CommitFailedException, errors.ValidationException) as error:
            raise CommitConflict(f"{self.name} was changed by somebody else: {error}") from error
        return self._snapshot(table)

    def _require(self, base: Snapshot) -> None:
        """A commit of properties alone names no snapshot, so that it would pass whatever was committed meanwhile."""
        now = self._catalog.load_table(self._identifier)
        if now.metadata_location != base.handle.metadata_location:
            raise CommitConflict(f"{self.name} was changed by somebody else")

    def _change_files(self, table: Any, transaction: Any, change: Change, version: str) -> None:
        arrow = needed("pyiceberg.io.pyarrow", "an Iceberg table")
        update = transaction.update_snapshot(snapshot_properties={_VERSION: version})
        known = {one.file_path: one for one in self._data_files(table)} if change.remove else {}
        with update.overwrite() if change.remove else update.fast_append() as producer:
            for one in change.remove:
                path = self._path(one.name)
                if path not in known:
                    raise CommitConflict(f"{path} is no longer in {self.name}")
                producer.delete_data_file(known[path])
            for one in change.add:
                producer.append_data_file(
                    arrow.parquet_file_to_data_file(table.io, transaction.table_metadata, self._path(one.name))
                )

    def read(self, snapshot: Snapshot, files: Sequence[DataFile], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if any(self._deletes(snapshot.handle)):
            raise LakeError(f"{self.name} has delete files, which cannot be read here: read it with another engine")
        ids = {one.name: one.field_id for one in snapshot.handle.schema().fields}
        return read_files(self.place, snapshot.columns, files, columns, ids)

    def obstacles(self, snapshot: Snapshot) -> Sequence[str]:
        location = snapshot.handle.location().rstrip("/")
        found = []
        if location not in (_url(self.place), self.place.url):
            found.append(
                f"its location is {location}, and files of an archive go to {self.place.url}, by --to and topic"
            )
        return [*found, *without_nulls(snapshot.handle.schema().as_arrow())]

    def sweep(self, older_than: float) -> int:
        """Expire snapshots before a time, and remove files of the table that no snapshot has."""
        from datetime import UTC, datetime

        found = self.snapshot()
        if found is None:
            return 0
        table = found.handle
        current = table.current_snapshot()
        old = [one for one in table.snapshots() if one.timestamp_ms < older_than * 1000 and one != current]
        if old:
            table.maintenance.expire_snapshots().older_than(datetime.fromtimestamp(older_than, UTC)).commit()
            table.refresh()
        needed_files = {self._name(one["file_path"]) for one in table.inspect.all_data_files().to_pylist()}
        unused = [
            name
            for name, changed in self.place.walk().items()
            if name.endswith(".parquet") and name not in needed_files and changed < older_than
        ]
        for name in unused:
            self.place.remove(name)
        return len(unused)

    def _snapshot(self, table: Any) -> Snapshot:
        text = table.properties.get(STATE)
        bounds = _Bounds(table.schema())
        return Snapshot(
            version=int(table.properties.get(_VERSION, "0")),
            columns=pa.schema([plain_field(one) for one in table.schema().as_arrow()]),
            state=TableState() if text is None else state_of(text),
            partitioning=_partitioning(table),
            list_files=lambda: [self._file(one, bounds) for one in self._data_files(table)],
            handle=table,
        )

    def _data_files(self, table: Any) -> list[Any]:
        return [task.file for task in table.scan().plan_files()]

    def _deletes(self, table: Any) -> Iterator[Any]:
        for task in table.scan().plan_files():
            yield from task.delete_files

    def _file(self, one: Any, bounds: "_Bounds") -> DataFile:
        return DataFile(
            name=self._name(one.file_path),
            rows=one.record_count,
            size=one.file_size_in_bytes,
            partition={"": str(one.partition)},
            spans=bounds.spans(one),
        )

    def _path(self, name: str) -> str:
        return f"{_url(self.place)}/{name}"

    def _name(self, path: str) -> str:
        base = _url(self.place)
        if path.startswith(base):
            return path[len(base) :].lstrip("/")
        plain = unquote(urlsplit(path).path) if path.startswith("file:") else path
        root = self.place.url
        if not plain.startswith(root):
            raise LakeError(f"{self.name} has the file {path}, which is not below {root}")
        return plain[len(root) :].lstrip("/")


def _finest(partitioning: Partitioning) -> Partitioning:
    """Iceberg computes partitions itself, and takes the hour alone to have the day."""
    hours = {one.source for one in partitioning if one.transform == "hour"}
    return tuple(one for one in partitioning if not (one.transform == "day" and one.source in hours))


def _level_name(one: PartitionField) -> str:
    return _LEVELS.get(one.transform, f"{one.source}_partition" if one.is_derived else one.name)


def _partitioning(table: Any) -> Partitioning:
    fields = []
    for one in table.spec().fields:
        transform, source = str(one.transform), table.schema().find_column_name(one.source_id)
        if transform not in ("identity", "day", "hour"):
            raise LakeError(
                f"{'.'.join(table.name())} is partitioned by {transform}({source}), which cannot be written here: "
                "identity, day and hour can"
            )
        if transform == "hour":
            fields.append(PartitionField(name="_day", source=source, transform="day"))
        fields.append(PartitionField(name=_LEVELS.get(transform, source), source=source, transform=transform))
    return tuple(fields)


class _Bounds:
    """What files tell of the offsets that they have."""

    def __init__(self, schema: Any) -> None:
        fields = {one.name: one for one in schema.fields}
        self._fields = [fields[name] for name in _SPAN if name in fields]

    def spans(self, one: Any) -> dict[int, tuple[int, int]]:
        """The offsets of each partition of the topic; those of a file of several are the same for all."""
        low, high = self._values(one.lower_bounds), self._values(one.upper_bounds)
        if low is None or high is None or high[0] - low[0] > _MOST_PARTITIONS:
            return {}
        return dict.fromkeys(range(low[0], high[0] + 1), (low[1], high[1]))

    def _values(self, bounds: Mapping[int, bytes] | None) -> tuple[int, int] | None:
        conversions = needed("pyiceberg.conversions", "an Iceberg table")
        found = [
            int(conversions.from_bytes(field.field_type, bounds[field.field_id]))
            for field in self._fields
            if bounds and field.field_id in bounds
        ]
        return (found[0], found[1]) if len(found) == len(_SPAN) else None
