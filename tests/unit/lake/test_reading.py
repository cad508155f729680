"""A topic and its table as one log, and a table back into a topic."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as DeletedBefore
from confluent_kafka.admin import AdminClient

import headrace.lake as lake_api
from headrace.client.admin import Admin
from headrace.client.columnar import Cluster, read_arrow
from headrace.client.columnar.model import LATEST, Range, TopicPartition
from headrace.client.columnar.reader import read_ranges
from headrace.lake.archiving import Archive, ArchiveOptions, TopicBatch
from headrace.lake.errors import LakeError, OffsetsMissing
from headrace.lake.opening import FORMATS, Lake
from headrace.lake.reading import ArchivedTopic, Part, parts_of
from headrace.lake.replaying import replay
from headrace.lake.reprocessing import reprocess
from headrace.lake.values import decoder_for_topic
from headrace.lake.writing import LakeWriter
from headrace.testing import Broker
from tests.support.process import wait_for

JSON = {"format": "json", "schema": "n BIGINT"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"log.retention.ms": -1}) as broker:
        yield broker


@pytest.fixture(scope="module")
def cluster(broker: Broker) -> Iterator[Cluster]:
    with Cluster({"bootstrap.servers": broker.bootstrap}) as cluster:
        yield cluster


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    name = "".join(one if one.isalnum() else "-" for one in request.node.name)
    assert Admin(broker.bootstrap).create_topics([name], 2)[name] is None
    return name


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(path=str(tmp_path / "lake"), format=request.param)


def fill(broker: Broker, topic: str, numbers: Sequence[int]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for n in numbers:
        producer.produce(
            topic,
            key=b"k%d" % (n % 5) if n % 6 else None,
            value=b"bad" if n % 10 == 3 else b'{"n":%d}' % n,
            partition=n % 2,
            headers=[("n", b"%d" % n)] if n % 3 else None,
            timestamp=1_700_000_000_000 + n * 1_000_000,
        )
    assert producer.flush(30) == 0


def archive_up_to(lake: Lake, cluster: Cluster, topic: str, ends: dict[int, int]) -> None:
    """What Spark does, in this process."""
    snapshot = lake.table(topic).snapshot()
    starts = {number: (snapshot.state.end(number) if snapshot else None) or 0 for number in ends}
    ranges = [Range(topic, number, starts[number], end) for number, end in ends.items() if end > starts[number]]

    def execute(tasks: Any) -> list[Any]:
        writer = LakeWriter(tasks)
        for batch in read_ranges(cluster, ranges, with_headers=True):
            writer.write(batch)
        return writer.finish()

    batch = TopicBatch(topic=topic, ranges={one.partition: (one.start, one.end) for one in ranges})
    Archive(options=ArchiveOptions(lake=lake), decoders=lambda name: decoder_for_topic(name, JSON)).add(
        [batch], execute
    )


def delete_before(broker: Broker, topic: str, offsets: dict[int, int]) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    wanted = [DeletedBefore(topic, number, offset) for number, offset in offsets.items()]
    for future in admin.delete_records(wanted).values():
        future.result(30)


def committed(cluster: Cluster, broker: Broker, topic: str) -> pa.Table:
    """What readers of committed records see, once the markers of the last transaction are written."""
    where = [TopicPartition(topic, number) for number in (0, 1)]

    def is_settled() -> bool:
        ends = [cluster.offsets(dict.fromkeys(where, LATEST), read_committed=one) for one in (False, True)]
        return ends[0] == ends[1]

    wait_for("markers of the last transaction", is_settled)
    return read_arrow(topic, bootstrap=broker.bootstrap, headers=True, isolation_level="read_committed")


def rows(table: pa.Table, *columns: str) -> list[tuple[Any, ...]]:
    names = columns or ("partition", "offset", "key", "value", "timestamp", "headers")
    return sorted((tuple(row[name] for name in names) for row in table.to_pylist()), key=lambda row: row[:2])


def test_old_offsets_come_from_the_table_and_new_ones_from_the_brokers(
    lake: Lake, broker: Broker, cluster: Cluster, topic: str
) -> None:
    fill(broker, topic, range(60))
    whole = rows(read_arrow(topic, bootstrap=broker.bootstrap, headers=True))
    archive_up_to(lake, cluster, topic, {0: 20, 1: 15})
    assert rows(lake_api.read(topic, archive=lake.path, bootstrap=broker.bootstrap, headers=True)) == whole
    delete_before(broker, topic, {0: 10, 1: 15})
    assert rows(lake_api.read(topic, archive=lake.path, bootstrap=broker.bootstrap, headers=True)) == whole
    some = lake_api.read(topic, archive=lake.path, bootstrap=broker.bootstrap, start=5, end=25, headers=True)
    assert rows(some) == [row for row in whole if 5 <= row[1] < 25]


def test_offsets_that_nobody_has_are_named(lake: Lake, broker: Broker, cluster: Cluster, topic: str) -> None:
    fill(broker, topic, range(60))
    archive_up_to(lake, cluster, topic, {0: 10, 1: 10})
    delete_before(broker, topic, {0: 25})
    with pytest.raises(OffsetsMissing, match=f"offsets 10 up to 25 of {topic}-0 are lost"):
        lake_api.read(topic, archive=lake.path, bootstrap=broker.bootstrap)


def test_a_read_goes_on_in_the_table_when_retention_deletes_before_it(
    lake: Lake, broker: Broker, cluster: Cluster, topic: str
) -> None:
    fill(broker, topic, range(60))
    whole = rows(read_arrow(topic, bootstrap=broker.bootstrap, headers=True))
    archive_up_to(lake, cluster, topic, {0: 10, 1: 10})
    log = ArchivedTopic(lake, topic, cluster)
    parts = log.plan("earliest", "latest")
    archive_up_to(lake, cluster, topic, {0: 28, 1: 28})
    delete_before(broker, topic, {0: 27, 1: 28})
    assert rows(pa.Table.from_batches(log.read(parts, with_headers=True))) == whole


def test_a_table_is_replayed_as_it_was_and_once(lake: Lake, broker: Broker, cluster: Cluster, topic: str) -> None:
    fill(broker, topic, range(60))
    columns = ("partition", "offset", "key", "value", "timestamp", "headers")
    archive_up_to(lake, cluster, topic, {0: 20, 1: 30})
    to = f"{topic}-again"
    assert Admin(broker.bootstrap).create_topics([to], 2)[to] is None
    assert sum(done.records for done in replay(lake, topic, cluster, to)) == 50
    assert list(replay(lake, topic, cluster, to)) == []
    archive_up_to(lake, cluster, topic, {0: 30, 1: 30})
    assert sum(done.records for done in replay(lake, topic, cluster, to)) == 10
    again = committed(cluster, broker, to)
    for partition in (0, 1):
        one, other = (
            [row[2:] for row in rows(table, *columns) if row[0] == partition]
            for table in (read_arrow(topic, bootstrap=broker.bootstrap, headers=True), again)
        )
        assert one == other


def test_a_topic_that_was_made_anew_is_replayed_into_from_the_beginning(
    tmp_path: Path, broker: Broker, cluster: Cluster, topic: str
) -> None:
    lake = Lake(path=str(tmp_path), format="parquet")
    fill(broker, topic, range(20))
    archive_up_to(lake, cluster, topic, {0: 10, 1: 10})
    to = f"{topic}-again"
    admin = Admin(broker.bootstrap)
    for _ in range(2):
        assert admin.create_topics([to], 2)[to] is None
        assert sum(done.records for done in replay(lake, topic, cluster, to)) == 20
        assert list(replay(lake, topic, cluster, to)) == []
        assert admin.delete_topics([to])[to] is None


def test_a_replay_that_is_killed_goes_on_where_its_last_transaction_ended(
    tmp_path: Path, broker: Broker, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(path=str(tmp_path), format="parquet")
    for end in range(10, 60, 10):
        fill(broker, topic, range(end - 10, end))
        archive_up_to(lake, cluster, topic, {0: end // 2, 1: end // 2})
    to = f"{topic}-again"
    assert Admin(broker.bootstrap).create_topics([to], 2)[to] is None
    monkeypatch.setattr("headrace.lake.replaying._BATCH_BYTES", 1)
    for _ in range(50):
        killed = replay(lake, topic, cluster, to)
        if next(killed, None) is None:
            break
        killed.close()
    again = committed(cluster, broker, to)
    source = read_arrow(topic, bootstrap=broker.bootstrap)
    for partition in (0, 1):
        values = [
            [row["value"] for row in table.to_pylist() if row["partition"] == partition] for table in (source, again)
        ]
        assert values[0] == values[1]


def test_a_topic_that_was_made_anew_is_not_read_on(
    tmp_path: Path, broker: Broker, cluster: Cluster, topic: str
) -> None:
    lake = Lake(path=str(tmp_path), format="parquet")
    fill(broker, topic, range(10))
    batch = TopicBatch(topic=topic, ranges={0: (0, 5)}, topic_id="00" * 16)
    Archive(options=ArchiveOptions(lake=lake)).add([batch], lambda _tasks: [])
    with pytest.raises(LakeError, match="made anew"):
        lake_api.read(topic, archive=lake.path, bootstrap=broker.bootstrap)


def test_bad_records_that_can_be_decoded_by_now_go_to_their_table(
    lake: Lake, broker: Broker, cluster: Cluster, topic: str
) -> None:
    fill(broker, topic, range(40))
    archive_up_to(lake, cluster, topic, {0: 20, 1: 20})
    assert reprocess(lake, topic, decoder_for_topic(topic, JSON)).left == 4
    before = lake.bad_table(topic).snapshot()
    done = reprocess(lake, topic, decoder_for_topic(topic, {"format": "string"}))
    assert (done.good, done.left) == (4, 0)
    assert before is not None
    table = lake.table(topic)
    snapshot = table.snapshot()
    assert snapshot is not None
    names = ["_partition", "_offset", "n", "value"]
    found = [row for batch in table.read(snapshot, snapshot.files(), names) for row in batch.to_pylist()]
    assert len({(row["_partition"], row["_offset"]) for row in found}) == len(found) == 40
    assert sorted(row["value"] for row in found if row["value"]) == ["bad"] * 4
    assert reprocess(lake, topic, None).good == 0


@pytest.mark.parametrize(
    ("covered", "expected"),
    [
        ((), [(0, 10, False)]),
        (((0, 10),), [(0, 10, True)]),
        (((2, 4), (6, 20)), [(0, 2, False), (2, 4, True), (4, 6, False), (6, 10, True)]),
    ],
)
def test_a_range_is_cut_where_the_table_begins_and_ends(covered: Any, expected: list[tuple[int, int, bool]]) -> None:
    assert parts_of((0, 10), 3, covered) == [Part(3, *one) for one in expected]


def test_no_offset_is_cut_twice_or_left_out() -> None:
    parts = parts_of((3, 50), 0, ((0, 5), (9, 12), (40, 60)))
    assert sum(part.end - part.start for part in parts) == 47
