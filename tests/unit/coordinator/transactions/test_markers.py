"""Which partitions need a marker: all but those that are known to be deleted."""

from uuid import UUID

from headrace.cluster.image import ClusterImage, PartitionState, Topic
from headrace.coordinator.transactions.markers import is_gone
from headrace.protocol.topic_partition import TopicPartition

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


def test_a_topic_that_is_not_known_is_gone_only_if_it_is_known_to_have_been_deleted() -> None:
    for whole in (False, True):
        known = image(whole=whole)
        assert not is_gone(known, TopicPartition("t", 0), ID)
        known.note_deleted(ID)
        assert is_gone(known, TopicPartition("t", 0), ID)


def test_a_record_without_ids_waits_for_the_whole_image() -> None:
    assert not is_gone(image(whole=False), TopicPartition("t", 0), None)
    assert is_gone(image(), TopicPartition("t", 0), None)


def test_a_partition_that_is_not_known_of_a_topic_that_is_comes_yet() -> None:
    assert not is_gone(image(topic(ID, 1)), TopicPartition("t", 1), ID)


def test_a_topic_that_was_made_anew_is_another_one() -> None:
    for index in (0, 1):
        assert is_gone(image(topic(OTHER, 1)), TopicPartition("t", index), ID)


def test_while_the_image_is_not_whole_a_topic_of_the_name_may_be_an_older_one() -> None:
    for index in (0, 1):
        known = image(topic(OTHER, 1), whole=False)
        assert not is_gone(known, TopicPartition("t", index), ID)
        known.note_deleted(ID)
        assert is_gone(known, TopicPartition("t", index), ID)
