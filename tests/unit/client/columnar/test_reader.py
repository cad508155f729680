"""Every record of a range is read once and in order, whatever brokers do meanwhile."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from headrace.client.admin import Admin
from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.model import (
    SCHEMA,
    SCHEMA_WITH_HEADERS,
    OffsetsGone,
    Range,
    TopicReplaced,
    UnknownTopic,
)
from headrace.client.columnar.reader import read_ranges
from headrace.client.errors import ClientError, ClusterUnreachable
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.testing import Broker
from tests.support.columnar.batches import batch, record
from tests.support.columnar.scripted_cluster import FAST, TOPIC, ScriptedCluster, ScriptedLog
from tests.support.scripted import Asked, Reply
from tests.support.unreadable import END, READABLE, planted

ROWS = 3000
PARTITIONS = 3


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        fill(running, "t", PARTITIONS, ROWS)
        yield running


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    with Cluster({"bootstrap.servers": broker.bootstrap, **FAST}) as made:
        yield made


def fill(broker: Broker, topic: str, partitions: int, rows: int, **settings: Any) -> None:
    broker.create_topic(topic, partitions)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0, "linger.ms": 1, **settings})
    for offset in range(rows):
        for number in range(partitions):
            producer.produce(topic, b"%d:%d" % (number, offset), key=b"%d" % offset, partition=number)
        producer.poll(0)
    assert producer.flush(60) == 0


def values(batches: Sequence[pa.RecordBatch], number: int) -> list[bytes]:
    """The values of one partition in the order they came in, with the offsets checked on the way."""
    found = []
    for rows in batches:
        if rows["partition"][0].as_py() == number:
            assert set(rows["partition"].to_pylist()) == {number}
            found += rows["value"].to_pylist()
    return found


def expected(number: int, start: int, end: int) -> list[bytes]:
    return [b"%d:%d" % (number, offset) for offset in range(start, end)]


def test_ranges_of_several_partitions_are_read_whole_and_in_order(cluster: Cluster) -> None:
    ranges = [Range("t", 0, 0, ROWS), Range("t", 1, 17, 1234), Range("t", 2, 2999, 3000)]
    batches = list(read_ranges(cluster, ranges))
    for wanted in ranges:
        assert values(batches, wanted.partition) == expected(wanted.partition, wanted.start, wanted.end)
    assert all(rows.schema.equals(SCHEMA) for rows in batches)


def test_a_split_partition_gives_every_offset_once(cluster: Cluster) -> None:
    cuts = sorted(random.Random(5).sample(range(1, ROWS), 7))
    ranges = [Range("t", 0, start, end) for start, end in zip([0, *cuts], [*cuts, ROWS], strict=True)]
    assert values(list(read_ranges(cluster, ranges)), 0) == expected(0, 0, ROWS)


def test_small_fetches_bring_the_same(broker: Broker) -> None:
    small = {"fetch.max.bytes": "2000", "max.partition.fetch.bytes": "700"}
    with Cluster({"bootstrap.servers": broker.bootstrap, **FAST, **small}) as cluster:
        batches = list(read_ranges(cluster, [Range("t", n, 0, 500) for n in range(PARTITIONS)]))
    for number in range(PARTITIONS):
        assert values(batches, number) == expected(number, 0, 500)


def test_empty_ranges_ask_nobody() -> None:
    with Cluster({"bootstrap.servers": "127.0.0.1:1"}) as cluster:
        assert list(read_ranges(cluster, [Range("t", 0, 5, 5)])) == []
        assert list(read_ranges(cluster, [])) == []
        with pytest.raises(ValueError, match="later one"):
            read_ranges(cluster, [Range("t", 0, 5, 4)])


def test_headers_come_where_they_are_wanted(broker: Broker, cluster: Cluster) -> None:
    broker.create_topic("headed")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    producer.produce("headed", b"v", headers=[("a", b"1"), ("b", None)])
    assert producer.flush(60) == 0
    (rows,) = read_ranges(cluster, [Range("headed", 0, 0, 1)], with_headers=True)
    assert rows.schema.equals(SCHEMA_WITH_HEADERS)
    assert rows["headers"].to_pylist() == [[{"key": "a", "value": b"1"}, {"key": "b", "value": None}]]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_compression_is_read(broker: Broker, cluster: Cluster, codec: str) -> None:
    fill(broker, codec, 1, 500, **{"compression.type": codec})
    assert values(list(read_ranges(cluster, [Range(codec, 0, 10, 490)])), 0) == expected(0, 10, 490)


def test_a_message_larger_than_a_fetch_is_delivered(broker: Broker) -> None:
    broker.create_topic("large", 2)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for number in (0, 1):
        producer.produce("large", b"x" * 900_000, partition=number)
        producer.produce("large", b"y", partition=number)
    assert producer.flush(60) == 0
    small = {"fetch.max.bytes": "1000", "max.partition.fetch.bytes": "1000"}
    with Cluster({"bootstrap.servers": broker.bootstrap, **FAST, **small}) as cluster:
        batches = list(read_ranges(cluster, [Range("large", 0, 0, 2), Range("large", 1, 0, 2)]))
    assert [len(value) for number in (0, 1) for value in values(batches, number)] == [900_000, 1] * 2


def test_offsets_that_are_not_in_the_log_are_gone(broker: Broker, cluster: Cluster) -> None:
    for wanted, offset in (
        (Range("t", 0, 0, ROWS + 5), ROWS),
        (Range("t", 0, ROWS + 1, ROWS + 5), ROWS + 1),
    ):
        with pytest.raises(OffsetsGone) as gone:
            list(read_ranges(cluster, [wanted]))
        assert (gone.value.offset, gone.value.earliest, gone.value.latest) == (offset, 0, ROWS)


def test_deleted_offsets_are_gone(broker: Broker, cluster: Cluster) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    fill(broker, "deleted", 1, 100)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for future in admin.delete_records([TopicPartition("deleted", 0, 40)]).values():
        future.result(60)
    with pytest.raises(OffsetsGone) as gone:
        list(read_ranges(cluster, [Range("deleted", 0, 30, 100)]))
    assert (gone.value.offset, gone.value.earliest, gone.value.latest) == (30, 40, 100)
    assert values(list(read_ranges(cluster, [Range("deleted", 0, 40, 100)])), 0) == expected(0, 40, 100)


def test_unknown_topics_and_partitions_are_named(cluster: Cluster) -> None:
    with pytest.raises(UnknownTopic, match="'nope'"):
        list(read_ranges(cluster, [Range("nope", 0, 0, 5)]))
    with pytest.raises(ClientError, match="there is no partition 9"):
        list(read_ranges(cluster, [Range("t", 9, 0, 5)]))


def test_a_topic_made_anew_while_it_is_read_is_not_taken_for_the_old_one(broker: Broker) -> None:
    fill(broker, "reborn", 1, 2000, **{"batch.num.messages": 10})
    small = {"max.partition.fetch.bytes": "1000"}
    with Cluster({"bootstrap.servers": broker.bootstrap, **FAST, **small}) as cluster:
        batches = read_ranges(cluster, [Range("reborn", 0, 0, 2000)])
        next(batches)
        Admin(broker.bootstrap).delete_topics(["reborn"])
        fill(broker, "reborn", 1, 2000)
        with pytest.raises(OffsetsGone):
            list(batches)


def test_the_topic_of_an_id_is_read_and_no_other_of_its_name(broker: Broker) -> None:
    wanted = [Range("replaced", 0, 0, 10)]
    fill(broker, "replaced", 1, 10)
    with Cluster({"bootstrap.servers": broker.bootstrap, **FAST}) as cluster:
        old = cluster.describe(["replaced"])["replaced"].id
        assert old is not None
        assert values(list(read_ranges(cluster, wanted, topic_ids={"replaced": old})), 0) == expected(0, 0, 10)
        Admin(broker.bootstrap).delete_topics(["replaced"])
        fill(broker, "replaced", 1, 10)
        with Cluster({"bootstrap.servers": broker.bootstrap, **FAST}) as other:
            new = other.describe(["replaced"])["replaced"].id
            with pytest.raises(TopicReplaced, match="'replaced' was deleted and made anew"):
                list(read_ranges(other, wanted, topic_ids={"replaced": old}))
        assert new is not None
        assert cluster.describe(["replaced"])["replaced"].id == old, "it remembers the old one"
        assert values(list(read_ranges(cluster, wanted, topic_ids={"replaced": new})), 0) == expected(0, 0, 10)


def test_a_broker_that_restarts_is_read_on_from(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Broker(data=tmp_path_factory.mktemp("data")) as broker:
        fill(broker, "t", 1, ROWS)
        settings = {"bootstrap.servers": broker.bootstrap, **FAST}
        with Cluster({**settings, "max.partition.fetch.bytes": "10000"}) as cluster:
            batches = read_ranges(cluster, [Range("t", 0, 0, ROWS)])
            found = [next(batches)]
            broker.restart()
            found += batches
    assert values(found, 0) == expected(0, 0, ROWS)


def test_a_reader_that_stops_early_leaves_the_cluster_usable(cluster: Cluster) -> None:
    reading = read_ranges(cluster, [Range("t", 0, 0, ROWS)])
    next(reading)
    reading.close()  # type: ignore[attr-defined]
    assert values(list(read_ranges(cluster, [Range("t", 1, 0, 10)])), 1) == expected(1, 0, 10)


# With brokers of a script.


def log(*spans: tuple[int, int], **fields: Any) -> ScriptedLog:
    """A log with one batch per span of offsets."""
    return ScriptedLog([batch([record(offset) for offset in range(*span)]) for span in spans], **fields)


def read(
    scripted: ScriptedCluster, *ranges: tuple[int, int, int], patience_ms: int = 60_000, **more: Any
) -> list[tuple[int, int]]:
    """Partition and offset of everything read."""
    with Cluster({**scripted.settings, "default.api.timeout.ms": str(patience_ms)}) as cluster:
        found: list[tuple[int, int]] = []
        for rows in read_ranges(cluster, [Range(TOPIC, *wanted) for wanted in ranges], **more):
            found += zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True)
        return found


def of(number: int, *spans: tuple[int, int]) -> list[tuple[int, int]]:
    return [(number, offset) for span in spans for offset in range(*span)]


@pytest.mark.parametrize("fetch_versions", [(4, 4), (4, 6), (4, 11), (4, 12), (4, 17)])
def test_brokers_of_every_age_are_read(fetch_versions: tuple[int, int]) -> None:
    logs = {0: log((0, 5), (5, 9)), 1: log((0, 3))}
    with ScriptedCluster(logs, versions={ApiKey.FETCH: fetch_versions}) as scripted:
        assert sorted(read(scripted, (0, 1, 9), (1, 0, 3))) == of(0, (1, 9)) + of(1, (0, 3))
        (version,) = {asked.version for asked in scripted.asked if asked.api_key == ApiKey.FETCH}
        assert version == fetch_versions[1]


def test_holes_are_passed_over_and_do_not_end_a_range_early() -> None:
    with ScriptedCluster({0: log((3, 5), (20, 22), (40, 41))}) as scripted:
        assert read(scripted, (0, 0, 41)) == of(0, (3, 5), (20, 22), (40, 41))
        assert read(scripted, (0, 6, 15)) == []
        assert read(scripted, (0, 4, 21)) == of(0, (4, 5), (20, 21))


def test_a_range_that_ends_in_a_hole_at_the_end_of_the_log_ends() -> None:
    with ScriptedCluster({0: log((0, 5), high_watermark=9), 1: log(high_watermark=7)}) as scripted:
        assert read(scripted, (0, 2, 9), (1, 0, 7)) == of(0, (2, 5))
        waits = [asked.entity.max_wait.total_seconds() for asked in scripted.asked if asked.api_key == ApiKey.FETCH]
        assert waits[0] == 0
        assert waits[-1] == 0.5


def test_a_broker_that_gives_nothing_for_a_moment_does_not_end_a_range() -> None:
    with ScriptedCluster({0: log((0, 5), (5, 9))}) as scripted:
        kept, scripted.logs[0].batches = scripted.logs[0].batches, ()
        scripted.logs[0].high_watermark = 9

        def recover(_node: int, asked: Asked) -> Reply | bool:
            if scripted.fetches[0] == 2:
                scripted.logs[0].batches = kept
            return False

        scripted.before = recover
        assert read(scripted, (0, 0, 9)) == of(0, (0, 9))


def test_aborted_transactions_are_left_out_for_readers_of_what_is_committed() -> None:
    first = batch([record(n) for n in range(3)], producer_id=7, transactional=True)
    second = batch([record(n) for n in range(3, 6)])
    logs = {0: ScriptedLog([first, second], aborted=((7, 0),))}
    with ScriptedCluster(logs) as scripted:
        assert read(scripted, (0, 0, 6), read_committed=True) == of(0, (3, 6))


def test_a_reader_of_what_is_committed_waits_for_an_open_transaction_then_says_so() -> None:
    logs = {0: log((0, 5), (5, 9), last_stable_offset=5, high_watermark=9)}
    kept, logs[0].batches = logs[0].batches, logs[0].batches[:1]
    with ScriptedCluster(logs) as scripted:

        def finish(_node: int, asked: Asked) -> Reply | bool:
            if scripted.fetches[0] == 4:
                logs[0].batches, logs[0].last_stable_offset = kept, 9
            return False

        scripted.before = finish
        assert read(scripted, (0, 0, 9), read_committed=True) == of(0, (0, 9))
        scripted.before = lambda _node, _asked: False
        logs[0].batches, logs[0].last_stable_offset = kept[:1], 5
        with pytest.raises(ClientError, match="a transaction before the end of the range is still open"):
            read(scripted, (0, 0, 9), read_committed=True, patience_ms=50)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.kafka_storage_error,
        ErrorCode.offset_not_available,
    ],
)
def test_errors_that_pass_are_waited_out(code: ErrorCode) -> None:
    with ScriptedCluster({0: log((0, 5), errors=[code, code]), 1: log((0, 5))}) as scripted:
        assert sorted(read(scripted, (0, 0, 5), (1, 0, 5))) == of(0, (0, 5)) + of(1, (0, 5))


def test_errors_that_stay_are_raised() -> None:
    with (
        ScriptedCluster({0: log((0, 5), errors=[ErrorCode.topic_authorization_failed])}) as scripted,
        pytest.raises(ClientError, match="'orders' partition 0: topic authorization failed"),
    ):
        read(scripted, (0, 0, 5))


def test_partitions_of_several_leaders_are_read_and_a_leader_that_moves_is_followed() -> None:
    logs = {n: log(*((start, start + 10) for start in range(0, 200, 10)), leader=n % 2) for n in range(4)}
    with ScriptedCluster(logs, brokers=2) as scripted:
        scripted_limit = {"max.partition.fetch.bytes": "500"}

        def move(_node: int, asked: Asked) -> Reply | bool:
            if scripted.fetches[1] == 3:
                logs[1].leader, logs[1].epoch = 0, 6
            return False

        scripted.before = move
        with Cluster({**scripted.settings, **scripted_limit}) as cluster:
            found: dict[int, list[int]] = {n: [] for n in logs}
            for rows in read_ranges(cluster, [Range(TOPIC, n, 0, 200) for n in logs]):
                found[rows["partition"][0].as_py()] += rows["offset"].to_pylist()
        assert found == {n: list(range(200)) for n in logs}
        assert min(scripted.fetches.values()) > 3


def test_a_connection_cut_in_the_middle_is_read_on_from() -> None:
    with ScriptedCluster({0: log(*((start, start + 10) for start in range(0, 100, 10)))}) as scripted:
        cuts = [2, 4]

        def cut(_node: int, asked: Asked) -> Reply | bool:
            if asked.api_key == ApiKey.FETCH and scripted.fetches[0] in cuts:
                cuts.remove(scripted.fetches[0])
                return None
            return False

        scripted.before = cut
        with Cluster({**scripted.settings, "max.partition.fetch.bytes": "150"}) as cluster:
            rows = pa.Table.from_batches(read_ranges(cluster, [Range(TOPIC, 0, 0, 100)]))
        assert rows["offset"].to_pylist() == list(range(100))
        assert not cuts


@pytest.mark.parametrize("body", [b"", b"\xff" * 40, b"\0" * 6 + b"\x7f\xff\xff\xff"])
def test_an_answer_that_cannot_be_read_is_a_lost_connection(body: bytes) -> None:
    with ScriptedCluster({0: log((0, 5))}) as scripted:
        bad = [body]

        def garble(_node: int, asked: Asked) -> Reply | bool:
            return bad.pop() if asked.api_key == ApiKey.FETCH and bad else False

        scripted.before = garble
        assert read(scripted, (0, 0, 5)) == of(0, (0, 5))
        scripted.before = lambda _node, asked: body if asked.api_key == ApiKey.FETCH else False
        with pytest.raises(ClusterUnreachable):
            read(scripted, (0, 0, 5), patience_ms=50)


@pytest.mark.parametrize("damage", [16, 40], ids=["magic", "a byte of the records"])
def test_a_damaged_batch_is_an_error_that_says_where(damage: int) -> None:
    damaged = batch([record(offset) for offset in range(5, 9)])
    damaged[damage] ^= 0x55
    logs = {0: ScriptedLog([batch([record(offset) for offset in range(5)]), damaged], high_watermark=9)}
    with ScriptedCluster(logs) as scripted:
        for start in (0, 5):
            with pytest.raises(ClientError, match="'orders' partition 0 cannot be read at offset 5") as failure:
                read(scripted, (0, start, 9))
            assert failure.value.code == "CORRUPT_MESSAGE"


def test_a_batch_that_never_comes_whole_is_given_up() -> None:
    class Cut(ScriptedLog):
        def read(self, offset: int, limit: int) -> bytes:
            return super().read(offset, limit)[:-1]

    logs: dict[int, ScriptedLog] = {0: Cut([batch([record(offset) for offset in range(5)])])}
    with ScriptedCluster(logs) as scripted, pytest.raises(ClientError, match="no whole batch was sent"):
        read(scripted, (0, 0, 5), patience_ms=50)


def test_a_reader_that_is_held_back_by_a_quota_asks_again() -> None:
    with ScriptedCluster({0: log((0, 5))}) as scripted:
        throttled = [{"throttle_time": 20, "error_code": 0, "responses": ()} for _ in range(2)]

        def throttle(_node: int, asked: Asked) -> Reply | bool:
            return throttled.pop() if asked.api_key == ApiKey.FETCH and throttled else False

        scripted.before = throttle
        assert read(scripted, (0, 0, 5)) == of(0, (0, 5))


def test_a_replica_nearby_is_read_from_and_left_when_it_fails() -> None:
    with ScriptedCluster({0: log((0, 5), (5, 9), preferred=1)}, brokers=2) as scripted:
        assert read(scripted, (0, 0, 9)) == of(0, (0, 9))
        assert scripted.fetches == {0: 1, 1: 1}

        def fail(node: int, asked: Asked) -> Reply | bool:
            if node == 1:
                scripted.logs[0].preferred = -1
                return None
            return False

        scripted.before = fail
        assert read(scripted, (0, 0, 9)) == of(0, (0, 9))


def test_the_next_fetch_is_sent_before_the_last_is_decoded() -> None:
    with (
        ScriptedCluster({0: log(*((start, start + 10) for start in range(0, 100, 10)))}) as scripted,
        Cluster({**scripted.settings, "max.partition.fetch.bytes": "500"}) as cluster,
    ):
        reading = read_ranges(cluster, [Range(TOPIC, 0, 0, 100)])
        first = next(reading)
        assert first["offset"][0].as_py() == 0
        second = next(reading)
        assert second["offset"][0].as_py() == first["offset"][-1].as_py() + 1
        assert scripted.count(ApiKey.FETCH) >= 2
        reading.close()  # type: ignore[attr-defined]


def test_readings_one_after_the_other_share_a_connection() -> None:
    with ScriptedCluster({0: log((0, 5)), 1: log((0, 5))}) as scripted, Cluster(scripted.settings) as cluster:
        for _ in range(5):
            rows = list(read_ranges(cluster, [Range(TOPIC, 0, 0, 5), Range(TOPIC, 1, 0, 5)]))
            assert len(rows) == 2
        assert scripted.brokers[0].connections == 1


def test_a_short_range_of_a_long_log_asks_for_little() -> None:
    logs = {0: log(*((start, start + 10) for start in range(0, 1000, 10)))}
    with ScriptedCluster(logs) as scripted:
        assert read(scripted, (0, 500, 520)) == of(0, (500, 520))
        (fetch,) = [asked.entity for asked in scripted.asked if asked.api_key == ApiKey.FETCH]
        assert fetch.topics[0].partitions[0].partition_max_bytes < 100_000


def test_a_batch_that_nobody_can_read_is_an_error_that_tells_how_to_go_on_or_is_skipped(broker: Broker) -> None:
    planted(broker, "unreadable")
    given = {"bootstrap.servers": broker.bootstrap, **FAST}
    everything = [Range("unreadable", 0, 0, END)]
    with Cluster(given) as cluster, pytest.raises(ClientError, match=r"at offset \d: .*; go on at offset \d") as error:
        list(read_ranges(cluster, everything))
    assert error.value.code == "CORRUPT_MESSAGE"
    with Cluster({**given, "unreadable.batches": "skip"}) as cluster:
        for with_headers in (False, True):
            rows = pa.Table.from_batches(read_ranges(cluster, everything, with_headers=with_headers))
            assert dict(zip(rows["offset"].to_pylist(), rows["value"].to_pylist(), strict=True)) == READABLE
