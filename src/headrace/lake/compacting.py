"""Small files put together: the same rows in fewer, larger files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from .errors import CommitConflict
from .files import FILE_BYTES, DataFile
from .tables.model import Change, LakeTable, Snapshot, new_files

_TRIES: Final = 5
_AT_LEAST: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What became of a table's files."""

    before: int = 0
    after: int = 0
    bytes: int = 0

    def plus(self, other: "Compacted") -> "Compacted":
        """Both together."""
        return Compacted(
            before=self.before + other.before, after=self.after + other.after, bytes=self.bytes + other.bytes
        )


def compact(table: LakeTable, *, file_bytes: int = FILE_BYTES) -> Compacted:
    """Put files that are smaller than half of `file_bytes` together, those of a partition with each other."""
    total = Compacted()
    snapshot = table.snapshot()
    if snapshot is None:
        return total
    for group in list(small_files(snapshot.files(), file_bytes)):
        done = _rewritten(table, group, file_bytes)
        if done is not None:
            total = total.plus(done)
    return total


def small_files(files: Sequence[DataFile], file_bytes: int) -> Iterator[list[DataFile]]:
    """Files to be put together, as many as make a file of a good size."""
    by_partition: dict[tuple[object, ...], list[DataFile]] = {}
    for one in files:
        if one.size < file_bytes // 2:
            by_partition.setdefault(tuple(one.partition.items()), []).append(one)
    for small in by_partition.values():
        group: list[DataFile] = []
        for one in sorted(small, key=lambda file: (sorted(file.spans.items()), file.name)):
            group.append(one)
            if sum(file.size for file in group) >= file_bytes:
                yield group
                group = []
        if len(group) >= _AT_LEAST:
            yield group


def _rewritten(table: LakeTable, group: Sequence[DataFile], file_bytes: int) -> Compacted | None:
    """The files in one; None if others changed the table too often, or replaced one of them."""
    names = {one.name for one in group}
    added: list[DataFile] | None = None
    for _ in range(_TRIES):
        snapshot = table.snapshot()
        if snapshot is None or not names <= {one.name for one in snapshot.files()}:
            break
        if added is None:
            added = _written(table, snapshot, group, file_bytes)
        try:
            table.commit(snapshot, Change(state=snapshot.state, add=added, remove=group, is_rewrite=True))
        except CommitConflict:
            continue
        return Compacted(before=len(group), after=len(added), bytes=sum(one.size for one in added))
    for one in added or ():
        table.place.remove(one.name)
    return None


def _written(table: LakeTable, snapshot: Snapshot, group: Sequence[DataFile], file_bytes: int) -> list[DataFile]:
    writer = new_files(table, snapshot.columns, snapshot.partitioning, file_bytes=max(file_bytes, 1))
    for batch in table.read(snapshot, group, snapshot.columns.names):
        writer.write(batch)
    return writer.finish()
