"""What a topic's settings mean to its logs."""

import uuid

import pytest

from headrace.cluster.image import Topic
from headrace.cluster.log_settings import log_settings
from headrace.config import BrokerConfig


@pytest.mark.parametrize(("policy", "segment_ms"), [("compact", 5_000), ("compact,delete", 5_000), ("delete", 60_000)])
def test_the_longest_compaction_lag_ends_segments_of_compacted_topics(policy: str, segment_ms: int) -> None:
    configs = {"cleanup.policy": policy, "segment.ms": "60000", "max.compaction.lag.ms": "5000"}
    topic = Topic(id=uuid.uuid4(), name="t", partitions=(), configs=configs)
    assert log_settings(topic, BrokerConfig.parse({})).segment_ms == segment_ms
