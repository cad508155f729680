"""Every row is written once and in order, or the writer says which are not."""

import datetime
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from headrace.client.admin import Admin
from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.model import LATEST, Range, TopicPartition, UnknownTopic
from headrace.client.columnar.reader import read_ranges
from headrace.client.columnar.writer import Writer
from headrace.client.errors import ClientError
from headrace.protocol.partitioner import partition_for
from headrace.testing import Broker
from tests.support.columnar.scripted_cluster import FAST, TOPIC, ScriptedCluster, ScriptedLog
from tests.support.lacking import hide_transactions

PARTITIONS = 4


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    with Cluster({"bootstrap.servers": broker.bootstrap, **FAST}) as made:
        yield made


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    return broker.create_topic(f"topic-{abs(hash(request.node.name))}", PARTITIONS)


def read(cluster: Cluster, topic: str) -> pa.Table:
    """All of a topic, sorted by partition and offset."""
    places = [TopicPartition(topic, n) for n in range(cluster.partitions([topic])[topic])]
    ends = cluster.offsets(dict.fromkeys(places, LATEST))
    ranges = [Range(*where, 0, end or 0) for where, end in ends.items()]
    batches = list(read_ranges(cluster, ranges, with_headers=True))
    if not batches:
        return pa.table({"value": pa.array([], pa.binary())})
    return pa.Table.from_batches(batches).sort_by([("partition", "ascending"), ("offset", "ascending")])


def write(cluster: Cluster, rows: Any, topic: str | None, **settings: Any) -> Writer:
    with Writer(cluster, **settings) as writer:
        writer.write(rows, topic)
    return writer


def numbered(count: int, start: int = 0) -> pa.Table:
    numbers = range(start, start + count)
    return pa.table({"key": [b"k%d" % (n % 50) for n in numbers], "value": [b"%d" % n for n in numbers]})


def test_rows_land_in_the_partitions_of_their_keys_in_their_order(cluster: Cluster, topic: str) -> None:
    writer = write(cluster, numbered(5000), topic)
    found = read(cluster, topic).to_pylist()
    assert len(found) == sum(writer.written.values()) == 5000
    for row in found:
        assert row["partition"] == partition_for(row["key"], PARTITIONS)
    for number in range(PARTITIONS):
        values = [int(row["value"]) for row in found if row["partition"] == number]
        assert values == sorted(values)
        assert writer.written.get(TopicPartition(topic, number), 0) == len(values)


def test_a_partition_that_a_row_names_comes_before_its_key(cluster: Cluster, topic: str) -> None:
    rows = pa.table({"key": ["a"] * 6, "value": list("012345"), "partition": [3, None, 0, -1, 1, 2]})
    write(cluster, rows, topic)
    write(cluster, pa.table({"value": ["6"], "partition": pa.array([3], pa.uint64())}), topic)
    found = {row["value"]: row["partition"] for row in read(cluster, topic).to_pylist()}
    of_key = partition_for(b"a", PARTITIONS)
    assert found == {b"0": 3, b"1": of_key, b"2": 0, b"3": of_key, b"4": 1, b"5": 2, b"6": 3}


def test_rows_without_keys_fill_one_partition_after_the_other_alike(cluster: Cluster, topic: str) -> None:
    rows = pa.table({"key": pa.nulls(4000, pa.binary()), "value": [b"x" * 100] * 4000})
    with Cluster({**cluster.settings.given, "batch.size": "10000"}) as small:
        writer = write(small, rows, topic)
    assert len(writer.written) == PARTITIONS
    assert max(writer.written.values()) - min(writer.written.values()) < 200


def test_what_was_read_can_be_written_as_it_is(broker: Broker, cluster: Cluster, topic: str) -> None:
    at = datetime.datetime(2024, 5, 6, 7, 8, 9, 123000, datetime.UTC)
    headers = [[{"key": "a", "value": b"1"}, {"key": "b", "value": None}], None]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = pa.table(
        {
            "key": pa.array([b"k", None], pa.binary()),
            "value": pa.array([None, b"v"], pa.binary()),
            "timestamp": pa.array([at, at + datetime.timedelta(seconds=1)], pa.timestamp("us", "UTC")),
            "headers": pa.array(headers, kind),
            "partition": pa.array([1, 1], pa.int32()),
        }
    )
    write(cluster, rows, topic)
    found = read(cluster, topic)
    assert found["timestamp"].to_pylist() == rows["timestamp"].to_pylist()
    assert found["value"].to_pylist() == [None, b"v"]
    copy = broker.create_topic(f"{topic}-copy", PARTITIONS)
    write(cluster, found, copy)
    again = read(cluster, copy)
    assert again.drop_columns(["topic"]).equals(found.drop_columns(["topic"]))


def test_each_row_goes_to_the_topic_it_names(broker: Broker, cluster: Cluster, topic: str) -> None:
    other = broker.create_topic(f"{topic}-other", 1)
    rows = pa.table({"value": [b"%d" % n for n in range(10)], "topic": [topic, other] * 5})
    write(cluster, rows, None)
    assert sorted(read(cluster, topic)["value"].to_pylist()) == [b"0", b"2", b"4", b"6", b"8"]
    assert read(cluster, other)["value"].to_pylist() == [b"1", b"3", b"5", b"7", b"9"]
    write(cluster, rows, other)
    assert read(cluster, other).num_rows == 15
    categories = rows["topic"].combine_chunks().dictionary_encode()
    write(cluster, pa.table({"value": rows["value"], "topic": categories}), None)
    assert read(cluster, other).num_rows == 20


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression_is_written(cluster: Cluster, topic: str, compression: str) -> None:
    write(cluster, numbered(2000), topic, compression=compression)
    assert sorted(int(value) for value in read(cluster, topic)["value"].to_pylist()) == list(range(2000))


@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_every_kind_of_acknowledgement_writes(cluster: Cluster, topic: str, acks: str) -> None:
    write(cluster, numbered(2000), topic, acks=acks)
    deadline = time.monotonic() + 60
    # Nobody says when a batch that is not acknowledged is there.
    while acks == "0" and read(cluster, topic).num_rows < 2000 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sorted(int(value) for value in read(cluster, topic)["value"].to_pylist()) == list(range(2000))


def test_many_small_writes_become_few_batches(cluster: Cluster, broker: Broker) -> None:
    single = broker.create_topic("few", 1)
    with Writer(cluster) as writer:
        for number in range(1000):
            writer.write(pa.record_batch({"value": [b"%d" % number]}), single)
        assert writer.written == {}
        writer.flush()
        assert sum(writer.written.values()) == 1000
    batches = list(read_ranges(cluster, [Range(single, 0, 0, 1000)]))
    assert [int(v) for rows in batches for v in rows["value"].to_pylist()] == list(range(1000))
    logs = next((broker.data / "few-0").glob("*.log"))
    assert logs.stat().st_size < 30_000


def test_a_large_table_goes_through_little_memory(cluster: Cluster, broker: Broker) -> None:
    single = broker.create_topic("much", 2)
    value = b"x" * 1000
    with Cluster({**cluster.settings.given, "buffer.memory": "1000000"}) as small, Writer(small) as writer:
        writer.write(pa.table({"value": [value] * 20_000}), single)
        assert sum(writer.written.values()) > 10_000
    assert sum(writer.written.values()) == 20_000


def test_rows_of_many_topics_go_through_little_memory(cluster: Cluster, broker: Broker) -> None:
    topics = [broker.create_topic(f"many-{n}") for n in range(30)]
    rows = pa.table({"value": [b"x" * 100_000] * 450, "topic": topics * 15})
    with Writer(cluster) as writer:
        writer.write(rows)
        assert sum(writer.written.values()) > 100  # of 45 MB, though no topic has more than 1.5 MB
    assert sum(writer.written.values()) == 450


def test_a_message_of_a_megabyte_is_a_batch_of_its_own(cluster: Cluster, topic: str) -> None:
    rows = pa.table({"value": [b"a", b"x" * 1_000_000, b"b"], "partition": [0, 0, 0]})
    write(cluster, rows, topic)
    assert [len(value) for value in read(cluster, topic)["value"].to_pylist()] == [1, 1_000_000, 1]


def test_dataframes_readers_and_streams_are_taken(cluster: Cluster, topic: str) -> None:
    import pandas as pd

    class Stream:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return pa.table({"value": ["stream"]}).__arrow_c_stream__(requested_schema)

    table = pa.table({"value": pa.array(["reader"], pa.large_string())})
    with Writer(cluster) as writer:
        writer.write(pd.DataFrame({"value": ["pandas"], "key": ["k"]}), topic)
        writer.write(table.to_reader(), topic)
        writer.write(Stream(), topic)
        writer.write(table.to_batches()[0], topic)
    found = sorted(read(cluster, topic)["value"].to_pylist())
    assert found == [b"pandas", b"reader", b"reader", b"stream"]


def test_every_type_that_holds_text_or_bytes_is_taken(cluster: Cluster, topic: str) -> None:
    kinds = [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.dictionary(pa.int32(), pa.string()),
    ]
    pair = pa.large_list(pa.struct([("key", pa.string_view()), ("value", pa.binary_view())]))
    with Writer(cluster) as writer:
        for kind in kinds:
            texts = pa.array([str(kind), "b"]) if pa.types.is_dictionary(kind) else pa.array([str(kind), "b"], kind)
            column = texts.cast(kind) if pa.types.is_dictionary(kind) else texts
            headers = pa.array([[{"key": "h", "value": b"v"}], []], pair)
            names = pa.array([topic, topic], pa.string_view())
            writer.write(pa.record_batch({"key": column, "value": column, "topic": names, "headers": headers}))
    found = read(cluster, topic)
    assert sorted(found["value"].to_pylist()) == sorted([str(kind).encode() for kind in kinds] + [b"b"] * len(kinds))
    assert found["key"].to_pylist() == found["value"].to_pylist()
    assert found["headers"].to_pylist().count([{"key": "h", "value": b"v"}]) == len(kinds)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (pa.table({"valu": ["a"]}), "column 'valu' means nothing to a topic, .*; did you mean value"),
        (pa.table({"key": ["a"]}), "rows need a column 'value'"),
        (pa.table({"value": [1]}), "column 'value' must hold binary or strings, not int64"),
        (pa.table({"value": ["a"], "partition": [4]}), "has 4 partitions; there is no partition 4"),
        (pa.table({"value": ["a"], "partition": ["1"]}), "column 'partition' must hold whole numbers"),
        (pa.table({"value": ["a"], "partition": [2**40]}), "a number that no partition can have"),
        (pa.table({"value": ["a"], "partition": [-2]}), "'partition' has -2, which no partition can be"),
        ([{"value": "a"}], "rows of type list cannot be written"),
    ],
)
def test_rows_that_cannot_be_written_are_refused_in_words(cluster: Cluster, topic: str, rows: Any, words: str) -> None:
    with pytest.raises(ClientError, match=words):
        write(cluster, rows, topic)
    assert read(cluster, topic).num_rows == 0


def test_topics_that_are_missing_are_named(cluster: Cluster) -> None:
    rows = pa.table({"value": ["a"]})
    with pytest.raises(ClientError, match="rows need a topic"):
        write(cluster, rows, None)
    with pytest.raises(ClientError, match="a row has no topic"):
        write(cluster, rows.append_column("topic", pa.array([None], pa.string())), None)
    with pytest.raises(UnknownTopic, match="'nope'"):
        write(cluster, rows, "nope")
    assert "nope" not in cluster.topics()


def test_a_partition_that_was_added_meanwhile_can_be_written_to(broker: Broker, cluster: Cluster) -> None:
    grows = broker.create_topic("grows", 1)
    write(cluster, pa.table({"value": ["a"]}), grows)
    Admin(broker.bootstrap).create_partitions(grows, 2)
    writer = write(cluster, pa.table({"value": ["b"], "partition": [1]}), grows)
    assert writer.written == {TopicPartition(grows, 1): 1}


def test_a_topic_made_anew_with_fewer_partitions_can_be_written_to() -> None:
    with ScriptedCluster({n: ScriptedLog() for n in range(4)}) as scripted, Cluster(scripted.settings) as cluster:
        write(cluster, numbered(100), TOPIC)
        for number in range(1, 4):
            del scripted.logs[number]
        known = cluster._metadata._topics
        known.update({name: (image, at - 60.0) for name, (image, at) in known.items()})  # a minute later
        write(cluster, numbered(100), TOPIC)
        assert len(scripted.logs[0].values) > 100


def test_a_batch_that_is_too_large_says_which_setting_to_change(broker: Broker, cluster: Cluster) -> None:
    small = broker.create_topic("small", 1, max_message_bytes=1000)
    with pytest.raises(ClientError, match=r"more than max\.message\.bytes lets in; set batch\.size") as failure:
        write(cluster, pa.table({"value": ["x" * 100] * 100}), small)
    assert failure.value.code == "MESSAGE_TOO_LARGE"
    with pytest.raises(ClientError, match=r"raise max\.message\.bytes of the topic"):
        write(cluster, pa.table({"value": ["x" * 5000]}), small)


def test_a_writer_that_failed_or_closed_takes_nothing_more(broker: Broker, cluster: Cluster) -> None:
    small = broker.create_topic("tiny", 1, max_message_bytes=1000)
    writer = Writer(cluster)
    writer.write(pa.table({"value": ["x" * 5000]}), small)
    for call in (writer.flush, writer.flush, lambda: writer.write(pa.table({"value": ["a"]}), small)):
        with pytest.raises(ClientError, match=r"max\.message\.bytes"):
            call()
    writer.close()
    with pytest.raises(ClientError, match="closed"):
        writer.flush()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"acks": "2"}, "acks must be one of"),
        ({"acks": "1", "idempotent": True}, "set acks=all, not 1"),
        ({"acks": "0", "transactional_id": "t"}, "set acks=all, not 0"),
        ({"idempotent": False, "transactional_id": "t"}, "enable.idempotence=true"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    cluster: Cluster, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ClientError, match=words):
        Writer(cluster, **settings)


def test_transactions_are_refused_where_there_are_none(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_transactions(monkeypatch)
    with pytest.raises(ClientError, match="this cluster has no transactions yet"):
        Writer(cluster, transactional_id="t").begin()
    with pytest.raises(ClientError, match="has no transactional id"):
        Writer(cluster).begin()


def test_a_restarted_broker_is_written_on_to(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Broker(data=tmp_path_factory.mktemp("data")) as broker:
        broker.create_topic("t", 2)
        with Cluster({"bootstrap.servers": broker.bootstrap, **FAST}) as cluster:
            with Writer(cluster) as writer:
                writer.write(numbered(1000), "t")
                writer.flush()
                broker.restart()
                writer.write(numbered(1000, 1000), "t")
            assert sorted(int(v) for v in read(cluster, "t")["value"].to_pylist()) == list(range(2000))
