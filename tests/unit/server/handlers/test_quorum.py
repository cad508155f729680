import pytest

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from tests.support.handlers import Harness, versions


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_QUORUM))
def test_a_lone_broker_is_its_own_quorum_in_every_version(broker: Harness, version: int) -> None:
    broker.topic("t")
    asked = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
    answer = broker.ask(ApiKey.DESCRIBE_QUORUM, version, topics=[asked])
    assert answer.error_code is ErrorCode.none
    ((partition,),) = (topic.partitions for topic in answer.topics)
    assert (partition.error_code, partition.leader_id, partition.observers) == (ErrorCode.none, 1, ())
    assert partition.high_watermark == broker.image.version > 0
    (voter,) = partition.current_voters
    assert (voter.replica_id, voter.log_end_offset) == (1, partition.high_watermark)
    if version >= 1:
        assert voter.last_caught_up_timestamp > 0
    if version >= 2:
        ((listener,),) = (node.listeners for node in answer.nodes)
        assert (listener.host, listener.port) == ("localhost", 9092)


def test_other_partitions_are_unknown(broker: Harness) -> None:
    for topic, index in (("orders", 0), ("__cluster_metadata", 1)):
        asked = {"topic_name": topic, "partitions": [{"partition_index": index}]}
        answer = broker.ask(ApiKey.DESCRIBE_QUORUM, 2, topics=[asked])
        ((partition,),) = (found.partitions for found in answer.topics)
        assert (partition.error_code, partition.leader_id) == (ErrorCode.unknown_topic_or_partition, -1)
