"""Which partitions need a marker: all but those that are known to be deleted."""

from uuid import UUID

import pytest

from headrace.cluster.image import ClusterImage, PartitionState, Topic
from headrace.coordinator.transactions.markers import is_gone

ID, OTHER = UUID(int=1), UUID(int=2)


def image(*topics: Topic, whole: bool = True) -> ClusterImage:
    made = ClusterImage(cluster_id="c", controller_id=0)
    for each in topics:
        made.put_topic(each)
    made.is_whole = whole
    return made


def topic(topic_id: UUID, partitions: int) -> Topic:
    state = PartitionState(replicas=(0,), isr=(0,), leader=0)
    return Topic(name="t", id=topic_id, partitions=(state,) * partitions)


@pytest.mark.parametrize("topic_id", [ID, None], ids=["with its id", "of a record without ids"])
def test_a_topic_that_is_not_known_is_deleted_only_for_who_knows_all_topics(topic_id: UUID | None) -> None:
    assert not is_gone(image(whole=False), ("t", 0), topic_id)
    assert is_gone(image(), ("t", 0), topic_id)


def test_a_partition_that_is_not_known_of_a_topic_that_is_comes_yet() -> None:
    assert not is_gone(image(topic(ID, 1)), ("t", 1), ID)


def test_a_topic_that_was_made_anew_with_fewer_partitions_is_another_one() -> None:
    assert is_gone(image(topic(OTHER, 1)), ("t", 1), ID)
    assert not is_gone(image(topic(OTHER, 1), whole=False), ("t", 1), ID)


def test_a_topic_that_was_made_anew_gets_the_marker_as_its_leader_may_have_been_ahead() -> None:
    assert not is_gone(image(topic(OTHER, 1)), ("t", 0), ID)
