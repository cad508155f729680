"""Batches into tables: each offset once, however often a batch is tried and wherever it is cut off."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.client.columnar.model import SCHEMA_WITH_HEADERS
from headrace.lake.archiving import UPSERT, Archive, ArchiveOptions, Execute, TopicBatch
from headrace.lake.compacting import compact
from headrace.lake.errors import LakeError
from headrace.lake.opening import FORMATS, Lake, topics_in
from headrace.lake.values import decoder_for_topic
from headrace.lake.writing import LakeWriter, TableTask, TopicResult

Record = tuple[int, int, bytes | None, bytes | None]
"""Partition, offset, key and value."""


def records(rows: Sequence[Record], topic: str = "orders") -> pa.RecordBatch:
    columns = {
        "key": [key for _, _, key, _ in rows],
        "value": [value for _, _, _, value in rows],
        "topic": [topic] * len(rows),
        "partition": [partition for partition, _, _, _ in rows],
        "offset": [offset for _, offset, _, _ in rows],
        "timestamp": [offset * 3_600_000_000 for _, offset, _, _ in rows],
        "timestampType": [0] * len(rows),
        "headers": [[{"key": "n", "value": str(offset).encode()}] for _, offset, _, _ in rows],
    }
    return pa.record_batch(
        [pa.array(columns[one.name], one.type) for one in SCHEMA_WITH_HEADERS], schema=SCHEMA_WITH_HEADERS
    )


def by_workers(*parts: Sequence[Record]) -> Execute:
    """Has each part written by a worker of its own."""

    def execute(tasks: Mapping[str, TableTask]) -> list[TopicResult]:
        results: list[TopicResult] = []
        for part in parts:
            writer = LakeWriter(tasks)
            writer.write(records(part))
            results += writer.finish()
        return results

    return execute


def batch_of(*parts: Sequence[Record], topic_id: str = "") -> TopicBatch:
    ranges: dict[int, tuple[int, int]] = {}
    for partition, offset, _, _ in (row for part in parts for row in part):
        start, end = ranges.get(partition, (offset, offset + 1))
        ranges[partition] = (min(start, offset), max(end, offset + 1))
    return TopicBatch(topic="orders", ranges=ranges, topic_id=topic_id)


def content(lake: Lake, columns: Sequence[str] = ("_partition", "_offset", "_value"), bad: bool = False) -> list[Any]:
    table = lake.bad_table("orders") if bad else lake.table("orders")
    snapshot = table.snapshot()
    if snapshot is None:
        return []
    return sorted(
        tuple(row[name] for name in columns)
        for batch in table.read(snapshot, snapshot.files(), columns)
        for row in batch.to_pylist()
    )


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(path=str(tmp_path / "lake"), format=request.param)


def simple(partition: int, start: int, end: int) -> list[Record]:
    return [(partition, offset, f"k{offset}".encode(), f"v{offset}".encode()) for offset in range(start, end)]


def test_a_batch_that_is_tried_again_adds_nothing(lake: Lake) -> None:
    archive = Archive(options=ArchiveOptions(lake=lake))
    parts = simple(0, 0, 30), simple(1, 5, 9)
    (added,) = archive.add([batch_of(*parts)], by_workers(*parts))
    assert (added.rows, added.bad) == (34, 0)
    assert archive.add([batch_of(*parts)], by_workers(*parts)) == []
    again = Archive(options=ArchiveOptions(lake=lake))
    wider = simple(0, 10, 40), simple(1, 0, 12)
    again.add([batch_of(*wider)], by_workers(*wider))
    expected = [*simple(0, 0, 40), *simple(1, 0, 12)]
    assert content(lake) == sorted((partition, offset, value) for partition, offset, _, value in expected)


def test_a_batch_that_would_leave_offsets_out_is_refused(lake: Lake) -> None:
    archive = Archive(options=ArchiveOptions(lake=lake))
    archive.add([batch_of(simple(0, 0, 10))], by_workers(simple(0, 0, 10)))
    with pytest.raises(LakeError, match="up to offset 10, and the next batch begins at 20"):
        archive.add([batch_of(simple(0, 20, 30))], by_workers(simple(0, 20, 30)))
    assert len(content(lake)) == 10


def test_a_topic_that_was_made_anew_is_not_taken_for_the_old_one(lake: Lake) -> None:
    archive = Archive(options=ArchiveOptions(lake=lake))
    archive.add([batch_of(simple(0, 0, 10), topic_id="a")], by_workers(simple(0, 0, 10)))
    with pytest.raises(LakeError, match="deleted and made anew"):
        archive.add([batch_of(simple(0, 0, 20), topic_id="b")], by_workers(simple(0, 0, 20)))


class Cut(Exception):
    """The process ends here."""


def cut_somewhere(archive: Archive, monkeypatch: pytest.MonkeyPatch, chance: random.Random) -> None:
    """Let the archive be killed before or after some commit."""
    for table in archive._open("orders"):
        kind = type(table)
        commit: Callable[..., Any] = kind.commit
        when = chance.choice(["before", "after", "never"])

        def cut(self: Any, base: Any, change: Any, commit: Any = commit, when: str = when) -> Any:
            if when == "before":
                raise Cut
            done = commit(self, base, change)
            if when == "after":
                raise Cut
            return done

        monkeypatch.setattr(kind, "commit", cut)


def test_rows_are_in_the_table_once_wherever_an_archive_is_killed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(7)
    values = {"format": "json", "schema": "n BIGINT"}
    everything: list[Record] = [
        (0, offset, b"k", b"nonsense" if offset % 7 == 0 else json.dumps({"n": offset}).encode())
        for offset in range(60)
    ]
    end = 0
    for _ in range(60):
        begin, stop = end, min(60, end + chance.randint(1, 15))
        archive = Archive(options=ArchiveOptions(lake=lake), decoders=lambda topic: decoder_for_topic(topic, values))
        part = everything[begin:stop]
        with monkeypatch.context() as patch:
            cut_somewhere(archive, patch, chance)
            try:
                archive.add([batch_of(part)], by_workers(part[: len(part) // 2], part[len(part) // 2 :]))
                end = stop
            except Cut:
                continue
        if end == 60:
            break
    assert end == 60
    good = [(0, offset, offset) for offset in range(60) if offset % 7]
    assert content(lake, ("_partition", "_offset", "n")) == good
    bad = content(lake, ("_offset", "_value", "_error"), bad=True)
    assert [row[:2] for row in bad] == [(offset, b"nonsense") for offset in range(0, 60, 7)]
    assert all(row[2] for row in bad)


def test_the_last_record_of_a_key_is_its_row_and_one_without_a_value_deletes_it(lake: Lake) -> None:
    chance = random.Random(3)
    model: dict[bytes, bytes] = {}
    archive = Archive(options=ArchiveOptions(lake=lake, mode=UPSERT, compact_every=4))
    offset = 0
    for _ in range(12):
        part: list[Record] = []
        for _ in range(chance.randint(1, 40)):
            key = f"k{chance.randint(0, 30)}".encode()
            value = None if chance.random() < 0.3 else f"v{offset}".encode()
            part.append((0, offset, key, value))
            model.pop(key, None)
            if value is not None:
                model[key] = value
            offset += 1
        middle = chance.randint(0, len(part))
        archive.add([batch_of(part)], by_workers(part[:middle], part[middle:]))
        archive.add([batch_of(part)], by_workers(part))
        assert content(lake, ("_key", "_value")) == sorted(model.items())


def test_a_record_without_a_key_is_bad_where_rows_are_kept_by_key(lake: Lake) -> None:
    archive = Archive(options=ArchiveOptions(lake=lake, mode=UPSERT))
    part: list[Record] = [(0, 0, b"a", b"1"), (0, 1, None, b"2")]
    (added,) = archive.add([batch_of(part)], by_workers(part))
    assert (added.rows, added.bad) == (1, 1)
    assert "no key" in content(lake, ("_error",), bad=True)[0][0]


def test_small_files_become_one_and_the_rows_stay(lake: Lake) -> None:
    archive = Archive(options=ArchiveOptions(lake=lake, partition="none"))
    for start in range(0, 50, 10):
        archive.add([batch_of(simple(0, start, start + 10))], by_workers(simple(0, start, start + 10)))
    before = content(lake)
    done = compact(lake.table("orders"))
    assert (done.before, done.after) == (5, 1)
    assert content(lake) == before
    archive.add([batch_of(simple(0, 50, 60))], by_workers(simple(0, 50, 60)))
    assert len(content(lake)) == 60
    snapshot = lake.table("orders").snapshot()
    assert snapshot is not None
    assert snapshot.state.covered(0) == ((0, 60),)


def test_a_topic_may_have_any_name_but_that_of_the_bad_records(lake: Lake) -> None:
    name = "a.b-c_D"
    archive = Archive(options=ArchiveOptions(lake=lake))

    def execute(tasks: Mapping[str, TableTask]) -> list[TopicResult]:
        writer = LakeWriter(tasks)
        writer.write(records(simple(0, 0, 3), name))
        return writer.finish()

    archive.add([TopicBatch(topic=name, ranges={0: (0, 3)})], execute)
    assert topics_in(lake.path) == [name]
    snapshot = lake.table(name).snapshot()
    assert snapshot is not None
    assert sum(one.rows for one in snapshot.files()) == 3
    with pytest.raises(LakeError, match="cannot be archived"):
        lake.table("_bad")


def test_secrets_are_not_shown() -> None:
    lake = Lake(path="s3://b", format="delta", options={"aws_secret_access_key": "hidden"}, catalog={"token": "hidden"})
    assert "hidden" not in repr(ArchiveOptions(lake=lake))
