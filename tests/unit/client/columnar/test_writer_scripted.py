"""Rows to brokers of a script: lost answers, errors that pass and others, brokers of every age."""

import random
from typing import Any

import pyarrow as pa
import pytest

from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.writer import Writer
from headrace.client.errors import ClientError, ClusterUnreachable
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from tests.support.columnar.scripted_cluster import TOPIC, ScriptedCluster, ScriptedLog
from tests.support.scripted import Asked, Reply

PARTITIONS = 4


def write(cluster: Cluster, rows: Any, topic: str | None, **settings: Any) -> Writer:
    with Writer(cluster, **settings) as writer:
        writer.write(rows, topic)
    return writer


def rows_for(numbers: range, partition: int = 0) -> pa.RecordBatch:
    values = [b"%d" % n for n in numbers]
    return pa.record_batch({"value": values, "partition": pa.array([partition] * len(values), pa.int32())})


def in_small_batches(scripted: ScriptedCluster, **settings: str) -> Cluster:
    return Cluster({**scripted.settings, "batch.size": "150", **settings})


def expected(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def drop_replies(scripted: ScriptedCluster, numbers: set[int]) -> None:
    """The n-th produce requests are carried out, and never answered."""
    seen = 0

    def drop(_node: int, asked: Asked, reply: Reply) -> Reply:
        nonlocal seen
        seen += asked.api_key == ApiKey.PRODUCE
        return None if asked.api_key == ApiKey.PRODUCE and seen in numbers else reply

    scripted.after = drop


@pytest.mark.parametrize("produce_versions", [(3, 3), (3, 7), (3, 8), (3, 9), (3, 12)])
def test_brokers_of_every_age_are_written_to(produce_versions: tuple[int, int]) -> None:
    logs = {0: ScriptedLog()}
    with (
        ScriptedCluster(logs, versions={ApiKey.PRODUCE: produce_versions}) as scripted,
        in_small_batches(scripted) as cluster,
    ):
        write(cluster, rows_for(range(50)), TOPIC)
    assert logs[0].values == expected(50)


def test_answers_that_never_come_double_nothing() -> None:
    logs = {0: ScriptedLog()}
    with ScriptedCluster(logs) as scripted, in_small_batches(scripted) as cluster:
        drop_replies(scripted, {1, 3, 4, 9, 15})
        writer = write(cluster, rows_for(range(200)), TOPIC)
    assert logs[0].values == expected(200)
    assert sum(writer.written.values()) == 200


def test_a_writer_without_sequence_numbers_may_double_but_loses_nothing() -> None:
    logs = {0: ScriptedLog()}
    with ScriptedCluster(logs) as scripted, in_small_batches(scripted) as cluster:
        drop_replies(scripted, {3})
        write(cluster, rows_for(range(200)), TOPIC, acks="1")
    assert set(logs[0].values) == set(expected(200))
    assert len(logs[0].values) > 200


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.request_timed_out,
        ErrorCode.kafka_storage_error,
        ErrorCode.corrupt_message,
    ],
)
def test_errors_that_pass_are_waited_out_and_order_is_kept(code: ErrorCode) -> None:
    logs = {0: ScriptedLog(), 1: ScriptedLog(errors=[code, code])}
    with ScriptedCluster(logs) as scripted, in_small_batches(scripted) as cluster, Writer(cluster) as writer:
        for number in (0, 1):
            writer.write(rows_for(range(100), number), TOPIC)
    assert logs[0].values == logs[1].values == expected(100)


@pytest.mark.parametrize("seed", range(12))
def test_no_schedule_of_faults_loses_doubles_or_reorders(seed: int) -> None:
    chance = random.Random(seed)
    logs = {n: ScriptedLog(leader=n % 2) for n in range(3)}

    def fail_before(_node: int, asked: Asked) -> Reply | bool:
        if asked.api_key != ApiKey.PRODUCE or chance.random() > 0.3:
            return False
        log = logs[chance.randrange(3)]
        fault = chance.randrange(3)
        if fault == 0:
            return None
        if fault == 1:
            log.leader, log.epoch = 1 - log.leader, log.epoch + 1
        else:
            log.errors = [chance.choice([ErrorCode.not_enough_replicas, ErrorCode.request_timed_out])]
        return False

    def fail_after(_node: int, asked: Asked, reply: Reply) -> Reply:
        return None if asked.api_key == ApiKey.PRODUCE and chance.random() < 0.15 else reply

    with ScriptedCluster(logs, brokers=2) as scripted:
        scripted.before, scripted.after = fail_before, fail_after
        with in_small_batches(scripted) as cluster, Writer(cluster) as writer:
            for start in range(0, 100, 10):
                for number in logs:
                    writer.write(rows_for(range(start, start + 10), number), TOPIC)
                if chance.random() < 0.3:
                    writer.flush()
    assert [log.values for log in logs.values()] == [expected(100)] * 3


def test_a_broker_that_forgot_the_producer_gets_the_batch_from_a_new_one() -> None:
    logs = {0: ScriptedLog()}
    with ScriptedCluster(logs) as scripted, in_small_batches(scripted) as cluster, Writer(cluster) as writer:
        writer.write(rows_for(range(20)), TOPIC)
        writer.flush()
        logs[0].errors = [ErrorCode.unknown_producer_id]
        writer.write(rows_for(range(20, 60)), TOPIC)
        writer.flush()
        assert scripted.next_producer == 102
    assert logs[0].values == expected(60)


@pytest.mark.parametrize("code", [ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id])
def test_a_log_that_lost_what_it_acknowledged_is_an_error_that_says_what_is_uncertain(code: ErrorCode) -> None:
    logs = {0: ScriptedLog(errors=[ErrorCode.request_timed_out, code])}
    with ScriptedCluster(logs) as scripted, Cluster(scripted.settings) as cluster:
        with pytest.raises(ClientError, match="20 records were sent and may be in the log or not") as failure:
            write(cluster, rows_for(range(20)), TOPIC)
        assert failure.value.code == code.name.upper()


def test_what_is_not_written_in_time_is_an_error_that_says_what_is_uncertain() -> None:
    logs = {0: ScriptedLog(errors=[ErrorCode.not_enough_replicas] * 10_000)}
    with ScriptedCluster(logs) as scripted:
        hasty = {"delivery.timeout.ms": "60", "max.in.flight": "1"}
        with in_small_batches(scripted, **hasty) as cluster, pytest.raises(ClientError) as failure:
            write(cluster, rows_for(range(40)), TOPIC)
    assert failure.value.code == "NOT_ENOUGH_REPLICAS"
    assert "not written within delivery.timeout.ms=60" in str(failure.value)
    assert "records were sent and may be in the log or not" in str(failure.value)
    assert "more were not sent" in str(failure.value)


def test_a_broker_that_stays_away_is_an_error_that_names_it() -> None:
    with ScriptedCluster({0: ScriptedLog()}) as scripted:
        scripted.before = lambda _node, asked: None if asked.api_key == ApiKey.PRODUCE else False
        with (
            Cluster({**scripted.settings, "delivery.timeout.ms": "60"}) as cluster,
            pytest.raises(ClusterUnreachable, match=f"no broker answers at {scripted.brokers[0].bootstrap}"),
        ):
            write(cluster, rows_for(range(20)), TOPIC)


def test_at_most_five_requests_are_under_way() -> None:
    logs = {0: ScriptedLog()}
    with ScriptedCluster(logs) as scripted, in_small_batches(scripted) as cluster:
        from headrace.client.columnar.sender import _Leg

        deepest = 0
        with Writer(cluster) as writer:
            send = writer._sender._send_on

            def watch(leg: _Leg, topics: Any) -> None:
                nonlocal deepest
                deepest = max(deepest, len(leg.requests))
                send(leg, topics)

            writer._sender._send_on = watch  # type: ignore[method-assign]
            writer.write(rows_for(range(500)), TOPIC)
        assert deepest == 5


def test_one_request_has_a_batch_of_each_partition() -> None:
    logs = {n: ScriptedLog() for n in range(3)}
    with ScriptedCluster(logs) as scripted, Cluster(scripted.settings) as cluster, Writer(cluster) as writer:
        rows = pa.table({"value": list("abcdef"), "partition": [0, 1, 2] * 2})
        writer.write(rows, TOPIC)
        writer.flush()
        assert scripted.count(ApiKey.PRODUCE) <= 3
    assert [log.values for log in logs.values()] == [[b"a", b"d"], [b"b", b"e"], [b"c", b"f"]]
