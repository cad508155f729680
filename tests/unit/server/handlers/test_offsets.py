from typing import Any

import pytest

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from tests.support.handlers import FakePartition, Harness, versions

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = range(-1, -7, -1)


@pytest.fixture
def partition(broker: Harness) -> FakePartition:
    """Offsets 0 to 3 in epoch 0 and 4 to 5 in epoch 3; 0 is deleted, 5 is in an open transaction."""
    broker.topic("t")
    found = broker.replicas.partition("t", 0)
    found.append(100, 300, 200, 400)
    found.leader_epoch = 3
    found.append(350, 500)
    found.last_stable_offset = 5
    found.log.log_start_offset = 1
    return found


def find(broker: Harness, timestamp: int, version: int = 11, **values: Any) -> Any:
    asked = {"partition_index": 0, "timestamp": timestamp, **values}
    options = {key: asked.pop(key) for key in ("isolation_level", "replica_id") if key in asked}
    answer = broker.ask(
        ApiKey.LIST_OFFSETS,
        version,
        topics=[{"name": "t", "partitions": [asked]}],
        **{"replica_id": -1, **options},
    )
    ((found,),) = (topic.partitions for topic in answer.topics)
    return found


def found(result: Any) -> tuple[int, int, int]:
    assert result.error_code is ErrorCode.none
    return result.offset, result.timestamp, getattr(result, "leader_epoch", -1)


@pytest.mark.parametrize("version", versions(ApiKey.LIST_OFFSETS))
@pytest.mark.usefixtures("partition")
def test_offsets_are_found_in_every_version(broker: Harness, version: int) -> None:
    def expect(timestamp: int, offset: int, time: int, epoch: int) -> None:
        result = find(broker, timestamp, version)
        assert found(result) == (offset, time, epoch if version >= 4 else -1)

    expect(LATEST, 6, -1, 3)
    expect(EARLIEST, 1, -1, 0)
    expect(0, 1, 300, 0)
    expect(301, 3, 400, 0)
    expect(401, 5, 500, 3)
    expect(501, -1, -1, -1)
    for place, since, expected in (
        (MAX_TIMESTAMP, 7, (5, 500, 3)),
        (EARLIEST_LOCAL, 8, (1, -1, 0)),
        (LATEST_TIERED, 9, (-1, -1, -1)),
        (PENDING_UPLOAD, 11, (-1, -1, -1)),
    ):
        if version >= since:
            expect(place, *expected)
        else:
            assert find(broker, place, version).error_code is ErrorCode.unsupported_version
    assert find(broker, -7, version).error_code is ErrorCode.unsupported_version


@pytest.mark.usefixtures("partition")
def test_read_committed_sees_nothing_of_an_open_transaction(broker: Harness) -> None:
    assert found(find(broker, LATEST, isolation_level=1)) == (5, -1, 3)
    assert found(find(broker, 450, isolation_level=1)) == (-1, -1, -1)
    assert found(find(broker, MAX_TIMESTAMP, isolation_level=1)) == (3, 400, 0)


def test_nothing_beyond_the_high_watermark_is_found(broker: Harness, partition: FakePartition) -> None:
    partition.high_watermark = 3
    assert found(find(broker, LATEST)) == (3, -1, 3)
    assert found(find(broker, 301)) == (-1, -1, -1)


@pytest.mark.parametrize("version", versions(ApiKey.LIST_OFFSETS, since=4))
@pytest.mark.usefixtures("partition")
def test_stale_and_future_leader_epochs_are_fenced(broker: Harness, version: int) -> None:
    assert find(broker, LATEST, version, current_leader_epoch=2).error_code is ErrorCode.fenced_leader_epoch
    assert find(broker, LATEST, version, current_leader_epoch=4).error_code is ErrorCode.unknown_leader_epoch
    assert found(find(broker, LATEST, version, current_leader_epoch=3)) == (6, -1, 3)


@pytest.mark.usefixtures("partition")
def test_offsets_that_cannot_be_listed_get_their_codes(broker: Harness) -> None:
    assert find(broker, LATEST, partition_index=1).error_code is ErrorCode.unknown_topic_or_partition
    assert find(broker, LATEST, partition_index=-1).error_code is ErrorCode.unknown_topic_or_partition
    twice = [{"partition_index": 0, "timestamp": LATEST}] * 2
    answer = broker.ask(ApiKey.LIST_OFFSETS, 7, replica_id=-1, topics=[{"name": "t", "partitions": twice}])
    assert [p.error_code for p in answer.topics[0].partitions] == [ErrorCode.invalid_request] * 2


def epoch_end(broker: Harness, version: int, epoch: int, current: int = -1, index: int = 0) -> tuple[Any, int, int]:
    asked = {"partition": index, "current_leader_epoch": current, "leader_epoch": epoch}
    answer = broker.ask(
        ApiKey.OFFSET_FOR_LEADER_EPOCH, version, replica_id=-1, topics=[{"topic": "t", "partitions": [asked]}]
    )
    ((result,),) = (topic.partitions for topic in answer.topics)
    assert result.partition == index
    return result.error_code, result.leader_epoch, result.end_offset


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FOR_LEADER_EPOCH))
@pytest.mark.usefixtures("partition")
def test_the_end_of_an_epoch_is_told_in_every_version(broker: Harness, version: int) -> None:
    assert epoch_end(broker, version, 0) == (ErrorCode.none, 0, 4)
    assert epoch_end(broker, version, 2) == (ErrorCode.none, 0, 4)
    assert epoch_end(broker, version, 3, current=3) == (ErrorCode.none, 3, 6)
    assert epoch_end(broker, version, -5) == (ErrorCode.none, -1, -1)
    assert epoch_end(broker, version, 0, current=2) == (ErrorCode.fenced_leader_epoch, -1, -1)
    assert epoch_end(broker, version, 0, current=4) == (ErrorCode.unknown_leader_epoch, -1, -1)
    assert epoch_end(broker, version, 0, index=9) == (ErrorCode.unknown_topic_or_partition, -1, -1)


@pytest.mark.usefixtures("partition")
def test_clients_that_name_a_replica_are_answered_like_consumers(broker: Harness) -> None:
    assert found(find(broker, LATEST, replica_id=0)) == found(find(broker, LATEST)) == (6, -1, 3)
    topics = [{"topic": "t", "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]}]
    (topic,) = broker.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 3, replica_id=5, topics=topics).topics
    assert (topic.partitions[0].error_code, topic.partitions[0].end_offset) == (ErrorCode.none, 4)


def delete(broker: Harness, offset: int, version: int = 2, topic: str = "t", index: int = 0) -> tuple[Any, int]:
    partitions = [{"partition_index": index, "offset": offset}]
    answer = broker.ask(ApiKey.DELETE_RECORDS, version, topics=[{"name": topic, "partitions": partitions}])
    ((result,),) = (each.partitions for each in answer.topics)
    return result.error_code, result.low_watermark


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_RECORDS))
@pytest.mark.usefixtures("partition")
def test_records_are_deleted_in_every_version(broker: Harness, version: int) -> None:
    assert delete(broker, 3, version) == (ErrorCode.none, 3)
    assert delete(broker, 2, version) == (ErrorCode.none, 3)
    assert delete(broker, 7, version) == (ErrorCode.offset_out_of_range, -1)
    assert delete(broker, -2, version) == (ErrorCode.offset_out_of_range, -1)
    assert delete(broker, -1, version) == (ErrorCode.none, 6)


def test_records_that_may_not_be_deleted(broker: Harness, partition: FakePartition) -> None:
    broker.topic("compacted", cleanup_policy="compact")
    broker.topic("both", cleanup_policy="compact,delete")
    broker.topic("__consumer_offsets")
    assert delete(broker, 0, topic="compacted") == (ErrorCode.policy_violation, -1)
    assert delete(broker, 0, topic="both") == (ErrorCode.none, 0)
    assert delete(broker, 0, topic="__consumer_offsets") == (ErrorCode.invalid_topic_exception, -1)
    assert delete(broker, 0, topic="missing") == (ErrorCode.unknown_topic_or_partition, -1)
    assert delete(broker, 0, index=4) == (ErrorCode.unknown_topic_or_partition, -1)
    assert partition.log.log_start_offset == 1


def test_only_the_leader_knows_offsets_and_deletes_records(broker: Harness, partition: FakePartition) -> None:
    partition.is_leader = False
    assert find(broker, LATEST).error_code is ErrorCode.not_leader_or_follower
    assert delete(broker, 3) == (ErrorCode.not_leader_or_follower, -1)
    assert partition.log.log_start_offset == 1


def test_a_new_leader_that_does_not_know_the_end_yet_says_so(broker: Harness, partition: FakePartition) -> None:
    partition.knows_high_watermark = False
    assert find(broker, LATEST, 4).error_code is ErrorCode.leader_not_available
    assert find(broker, LATEST, 5).error_code is ErrorCode.offset_not_available
    assert found(find(broker, EARLIEST)) == (1, -1, 0)


def test_a_new_leader_knows_what_is_below_its_high_watermark_and_of_what_is_above_says_that_it_does_not(
    broker: Harness, partition: FakePartition
) -> None:
    partition.high_watermark = 3
    partition.knows_high_watermark = False
    assert found(find(broker, 0)) == (1, 300, 0)
    assert find(broker, 301).error_code is ErrorCode.offset_not_available
    assert find(broker, 301, 4).error_code is ErrorCode.leader_not_available
    assert found(find(broker, 501)) == (-1, -1, -1)
