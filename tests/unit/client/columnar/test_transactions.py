"""Transactions are all or nothing, and a writer that was replaced can do no more."""

import os
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from headrace.client.admin import Admin
from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.model import LATEST, Range, TopicPartition
from headrace.client.columnar.reader import read_ranges
from headrace.client.columnar.transaction import TRANSITIONS, WriterEvent, WriterState, finish_transaction
from headrace.client.columnar.writer import Writer
from headrace.client.errors import ClientError, ClusterUnreachable
from headrace.protocol.api import ApiKey
from headrace.protocol.batch import read_header
from headrace.protocol.errors import ErrorCode
from tests.support.columnar.scripted_cluster import TOPIC, ScriptedCluster, ScriptedLog
from tests.support.scripted import Asked, Reply

from .test_writer_scripted import expected, rows_for

KAFKA = os.environ.get("HEADRACE_TEST_KAFKA")


@pytest.fixture
def scripted() -> Iterator[ScriptedCluster]:
    with ScriptedCluster({0: ScriptedLog(), 1: ScriptedLog()}) as running:
        yield running


@pytest.fixture
def writer(scripted: ScriptedCluster) -> Iterator[Writer]:
    with Cluster({**scripted.settings, "batch.size": "150"}) as cluster:
        made = Writer(cluster, transactional_id="t")
        yield made
        made.close()


def sequence_of(scripted: ScriptedCluster, *keys: ApiKey) -> list[ApiKey]:
    """The requests of these kinds, repetitions in a row once."""
    found: list[ApiKey] = []
    for asked in scripted.asked:
        key = ApiKey(asked.api_key)
        if key in keys and found[-1:] != [key]:
            found.append(key)
    return found


def test_partitions_are_added_before_records_are_sent_and_the_end_comes_last(
    scripted: ScriptedCluster, writer: Writer
) -> None:
    writer.begin()
    writer.write(rows_for(range(30)), TOPIC)
    writer.write(rows_for(range(30), 1), TOPIC)
    writer.commit()
    steps = (ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.PRODUCE, ApiKey.END_TXN)
    asked = sequence_of(scripted, *steps)
    assert asked[0] is ApiKey.INIT_PRODUCER_ID
    assert asked[1] is ApiKey.ADD_PARTITIONS_TO_TXN
    assert asked[-2:] == [ApiKey.PRODUCE, ApiKey.END_TXN]
    assert sorted(scripted.added) == [0, 1]
    assert scripted.ended == [True]
    for log in scripted.logs.values():
        assert log.values == expected(30)
        headers = [read_header(batch) for batch in log.batches]
        assert all(header.is_transactional and header.producer_id == 7 for header in headers)


def test_sequence_numbers_go_on_from_one_transaction_to_the_next(scripted: ScriptedCluster, writer: Writer) -> None:
    for start in (0, 20):
        writer.begin()
        writer.write(rows_for(range(start, start + 20)), TOPIC)
        writer.commit()
    assert scripted.logs[0].values == expected(40)
    assert scripted.count(ApiKey.INIT_PRODUCER_ID) == 1
    assert scripted.ended == [True, True]


def test_an_aborted_transaction_is_followed_by_a_new_epoch(scripted: ScriptedCluster, writer: Writer) -> None:
    writer.begin()
    writer.write(rows_for(range(20)), TOPIC)
    writer.flush()
    writer.write(rows_for(range(500)), TOPIC)
    writer.abort()
    assert scripted.ended == [False]
    writer.begin()
    writer.write(rows_for(range(5)), TOPIC)
    writer.commit()
    assert scripted.ended == [False, True]
    assert read_header(scripted.logs[0].batches[-1]).producer_epoch == 2
    assert scripted.logs[0].values[-5:] == expected(5)


def test_a_transaction_without_records_ends_without_a_word(scripted: ScriptedCluster, writer: Writer) -> None:
    writer.begin()
    writer.commit()
    writer.begin()
    writer.abort()
    assert scripted.ended == []


def test_a_failed_transaction_can_only_be_aborted_and_the_next_one_works(
    scripted: ScriptedCluster, writer: Writer
) -> None:
    writer.begin()
    scripted.logs[0].errors = [ErrorCode.invalid_record]
    writer.write(rows_for(range(20)), TOPIC)
    for call in (writer.flush, writer.flush):
        with pytest.raises(ClientError, match="invalid record"):
            call()
    for forbidden in (writer.commit, writer.begin):
        with pytest.raises(ClientError, match="failed and can only be aborted"):
            forbidden()
    writer.abort()
    writer.begin()
    writer.write(rows_for(range(20)), TOPIC)
    writer.commit()
    assert scripted.ended == [False, True]


def test_a_writer_that_was_replaced_is_fenced_for_good(scripted: ScriptedCluster, writer: Writer) -> None:
    writer.begin()
    writer.write(rows_for(range(20)), TOPIC)
    writer.flush()
    scripted.epoch += 1
    for call in (writer.commit, writer.abort, writer.begin):
        with pytest.raises(ClientError, match="another writer has taken") as failure:
            call()
        assert failure.value.code == "PRODUCER_FENCED"


def test_a_transaction_that_was_open_for_too_long_says_which_setting_to_change(
    scripted: ScriptedCluster, writer: Writer
) -> None:
    writer.begin()
    scripted.logs[0].errors = [ErrorCode.invalid_producer_epoch]
    writer.write(rows_for(range(20)), TOPIC)
    with pytest.raises(ClientError, match=r"open for longer than transaction\.timeout\.ms") as failure:
        writer.flush()
    assert failure.value.code == "PRODUCER_FENCED"


def test_a_prepared_transaction_is_ended_by_another(scripted: ScriptedCluster, writer: Writer) -> None:
    writer.begin()
    writer.write(rows_for(range(20)), TOPIC)
    prepared = writer.prepare()
    writer.close()
    assert scripted.ended == []
    assert scripted.logs[0].values == expected(20)
    with Cluster(scripted.settings) as other:
        finish_transaction(other, prepared, commit=True)
    assert scripted.ended == [True]


def test_an_open_transaction_is_aborted_by_closing(scripted: ScriptedCluster, writer: Writer) -> None:
    writer.begin()
    writer.write(rows_for(range(20)), TOPIC)
    writer.flush()
    writer.close()
    assert scripted.ended == [False]


@pytest.mark.parametrize(("error", "ended"), [(ValueError("mine"), [False]), (ClusterUnreachable("gone"), [])])
def test_a_block_that_fails_aborts_its_transaction_unless_nobody_answers(
    scripted: ScriptedCluster, error: Exception, ended: list[bool]
) -> None:
    def block(cluster: Cluster) -> None:
        with Writer(cluster, transactional_id="t") as writer:
            writer.begin()
            writer.write(rows_for(range(20)), TOPIC)
            writer.flush()
            raise error

    with Cluster(scripted.settings) as cluster, pytest.raises(type(error), match=str(error)):
        block(cluster)
    assert scripted.ended == ended


@pytest.mark.parametrize(
    ("key", "code"),
    [
        (ApiKey.INIT_PRODUCER_ID, ErrorCode.concurrent_transactions),
        (ApiKey.INIT_PRODUCER_ID, ErrorCode.coordinator_load_in_progress),
        (ApiKey.END_TXN, ErrorCode.not_coordinator),
        (ApiKey.END_TXN, ErrorCode.concurrent_transactions),
    ],
)
def test_a_coordinator_that_is_busy_or_moved_is_asked_again(
    scripted: ScriptedCluster, writer: Writer, key: ApiKey, code: ErrorCode
) -> None:
    refusals: list[dict[str, Any]] = [
        {"throttle_time": 0, "error_code": code, "producer_id": -1, "producer_epoch": -1} for _ in range(2)
    ]

    def refuse(_node: int, asked: Asked) -> Reply | bool:
        return refusals.pop() if asked.api_key == key and refusals else False

    scripted.before = refuse
    writer.begin()
    writer.write(rows_for(range(20)), TOPIC)
    writer.commit()
    assert scripted.ended == [True]
    assert not refusals


def test_an_end_whose_answer_is_lost_is_said_again(scripted: ScriptedCluster, writer: Writer) -> None:
    lost = [ApiKey.END_TXN]

    def lose(_node: int, asked: Asked, reply: Reply) -> Reply:
        if asked.api_key in lost:
            lost.clear()
            return None
        return reply

    scripted.after = lose
    writer.begin()
    writer.write(rows_for(range(20)), TOPIC)
    writer.commit()
    assert scripted.ended == [True, True]


def test_nothing_is_written_outside_a_transaction(scripted: ScriptedCluster, writer: Writer) -> None:
    with pytest.raises(ClientError, match="no transaction has begun"):
        writer.write(rows_for(range(20)), TOPIC)
    for call in (writer.commit, writer.abort, writer.prepare):
        with pytest.raises(ClientError, match="no transaction has begun"):
            call()
    writer.begin()
    with pytest.raises(ClientError, match="open already"):
        writer.begin()


def test_a_fenced_writer_never_comes_back() -> None:
    assert {after for (state, _), after in TRANSITIONS.items() if state is WriterState.FENCED} == {WriterState.FENCED}
    assert all((state, WriterEvent.FENCE) in TRANSITIONS for state in WriterState)


@pytest.mark.skipif(KAFKA is None, reason="HEADRACE_TEST_KAFKA names no cluster with transactions")
def test_a_cluster_with_transactions_shows_what_was_committed_and_nothing_else() -> None:
    assert KAFKA is not None
    topic = f"headrace-{uuid.uuid4()}"
    assert Admin(KAFKA).create_topics([topic], 2, 1) == {topic: None}
    rows = pa.table({"value": [str(n) for n in range(1000)]})
    with Cluster({"bootstrap.servers": KAFKA}) as cluster:
        writer = Writer(cluster, transactional_id=topic)
        for commits in (True, False, True):
            writer.begin()
            writer.write(rows, topic)
            writer.flush()
            writer.commit() if commits else writer.abort()
        writer.begin()
        writer.write(rows, topic)
        finish_transaction(cluster, writer.prepare(), commit=True)
        places = [TopicPartition(topic, n) for n in range(2)]
        ends = cluster.offsets(dict.fromkeys(places, LATEST))
        ranges = [Range(*where, 0, end or 0) for where, end in ends.items()]
        # The markers may come a moment after the answer: a reader of what is committed waits for them.
        found = pa.Table.from_batches(read_ranges(cluster, ranges, read_committed=True))
        everything = pa.Table.from_batches(read_ranges(cluster, ranges))
    assert (found.num_rows, everything.num_rows) == (3000, 4000)
