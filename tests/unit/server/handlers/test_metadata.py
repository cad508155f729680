import asyncio
from typing import Any
from uuid import UUID

import pytest

from headrace.cluster.image import BrokerNode, PartitionState, Topic
from headrace.cluster.metadata_writer import TopicSpec
from headrace.protocol.acl import ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.server.context import RequestInfo
from headrace.server.handlers import HANDLERS
from headrace.server.handlers.authorized import EVERYTHING, NOT_ASKED
from tests.support.handlers import CLUSTER_ID, Harness, through_the_wire, versions

UNKNOWN_ID = UUID(int=99)
LED_BY_1 = PartitionState(replicas=(1,), isr=(1,), leader=1)


def asked(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "topic_id": None} for name in names]


@pytest.mark.parametrize("version", versions(ApiKey.METADATA))
def test_a_topic_is_described_in_every_version(broker: Harness, version: int) -> None:
    topic = broker.topic("orders", 3)
    answer = broker.ask(ApiKey.METADATA, version, topics=asked("orders"))
    (node,) = answer.brokers
    (found,) = answer.topics
    assert (node.node_id, node.host, node.port) == (1, "localhost", 9092)
    assert (found.name, found.error_code, len(found.partitions)) == ("orders", ErrorCode.none, 3)
    assert [(p.partition_index, p.leader_id, p.replica_nodes, p.isr_nodes) for p in found.partitions] == [
        (index, 1, (1,), (1,)) for index in range(3)
    ]
    if version >= 1:
        assert (node.rack, answer.controller_id, found.is_internal) == ("r1", 1, False)
    if version >= 2:
        assert answer.cluster_id == CLUSTER_ID
    if version >= 7:
        assert found.partitions[0].leader_epoch == 0
    if version >= 8:
        assert found.topic_authorized_operations == NOT_ASKED
    if version >= 10:
        assert found.topic_id == topic.id


@pytest.mark.parametrize("version", versions(ApiKey.METADATA))
def test_all_topics_and_none_are_told_apart(broker: Harness, version: int) -> None:
    for name in ("a", "b", "__consumer_offsets"):
        broker.topic(name)
    everything = broker.ask(ApiKey.METADATA, version, topics=() if version == 0 else None)
    assert {t.name for t in everything.topics} == {"a", "b", "__consumer_offsets"}
    if version >= 1:
        assert [t.name for t in everything.topics if t.is_internal] == ["__consumer_offsets"]
        assert broker.ask(ApiKey.METADATA, version, topics=()).topics == ()


@pytest.mark.parametrize("version", versions(ApiKey.METADATA))
def test_many_topics_come_back_whole(broker: Harness, version: int) -> None:
    expected = {f"topic-{n}" * (n % 3 + 1): n % 5 * 40 + 1 for n in range(30)}
    for name, partitions in expected.items():
        broker.topic(name, partitions)
    answer = broker.ask(ApiKey.METADATA, version, topics=() if version == 0 else None)
    assert {t.name: len(t.partitions) for t in answer.topics} == expected
    assert all([p.partition_index for p in t.partitions] == list(range(len(t.partitions))) for t in answer.topics)


def test_an_answer_with_thousands_of_topics_lets_others_run(broker: Harness) -> None:
    for number in range(2500):
        broker.image.put_topic(Topic(name=f"t{number}", id=UUID(int=number + 1), partitions=(LED_BY_1,)))
    request = through_the_wire(ApiKey.METADATA, 12, {"topics": None})
    info = RequestInfo(ApiKey.METADATA, 12, None, "", "")

    async def count_turns() -> int:
        answering = asyncio.ensure_future(HANDLERS[ApiKey.METADATA](broker.context, request, info))
        turns = 0
        while not answering.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert broker.run(count_turns()) >= 3
    assert len(broker.ask(ApiKey.METADATA, 12, topics=None).topics) == 2500


def test_a_kept_answer_follows_every_change(broker: Harness) -> None:
    def names_and_sizes() -> dict[str, int]:
        answer = broker.ask(ApiKey.METADATA, 13, topics=None)
        return {t.name: len(t.partitions) for t in answer.topics}

    broker.topic("a")
    broker.topic("b", 300)
    assert names_and_sizes() == {"a": 1, "b": 300}
    broker.run(broker.controller.create_partitions("a", 2))
    broker.run(broker.controller.delete_topic("b"))
    assert names_and_sizes() == {"a": 2}
    broker.topic("b")
    assert names_and_sizes() == {"a": 2, "b": 1}


def test_a_partition_whose_leader_is_gone_says_so(broker: Harness) -> None:
    broker.image.brokers[2] = BrokerNode(id=2, host="other", port=9093)
    broker.run(broker.controller.create_topic(TopicSpec(name="elsewhere", assignments={0: [2]})))
    assert broker.ask(ApiKey.METADATA, 12, topics=None).topics[0].partitions[0].leader_id == 2
    del broker.image.brokers[2]
    (partition,) = broker.ask(ApiKey.METADATA, 12, topics=None).topics[0].partitions
    assert partition.error_code is ErrorCode.leader_not_available
    assert (partition.leader_id, partition.offline_replicas) == (-1, (2,))


@pytest.mark.parametrize("version", versions(ApiKey.METADATA))
def test_missing_and_impossible_topics_get_their_codes(broker: Harness, version: int) -> None:
    answer = broker.ask(ApiKey.METADATA, version, topics=asked("missing", "..", "a/b", "x" * 250))
    assert [t.error_code for t in answer.topics] == [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_topic_exception,
        ErrorCode.invalid_topic_exception,
        ErrorCode.invalid_topic_exception,
    ]
    assert len(broker.image) == 0


@pytest.mark.parametrize("version", versions(ApiKey.METADATA))
def test_a_missing_topic_is_created_and_answered_at_once(version: int) -> None:
    broker = Harness({"auto.create.topics.enable": "true", "num.partitions": "4"})
    answer = broker.ask(ApiKey.METADATA, version, topics=asked("new"), allow_auto_topic_creation=True)
    assert [(t.error_code, len(t.partitions)) for t in answer.topics] == [(ErrorCode.none, 4)]
    refused = broker.ask(ApiKey.METADATA, version, topics=asked("other"), allow_auto_topic_creation=False)
    expected = ErrorCode.unknown_topic_or_partition if version >= 4 else ErrorCode.none
    assert refused.topics[0].error_code is expected
    internal = broker.ask(ApiKey.METADATA, version, topics=asked("__consumer_offsets"))
    assert internal.topics[0].error_code is ErrorCode.unknown_topic_or_partition
    broker.close()


def test_clients_that_ask_for_a_new_topic_together_all_get_it() -> None:
    broker = Harness({"auto.create.topics.enable": "true"})
    request = through_the_wire(ApiKey.METADATA, 12, {"topics": asked("new")})
    info = RequestInfo(ApiKey.METADATA, 12, None, "", "")

    async def all_at_once() -> list[Any]:
        handle = HANDLERS[ApiKey.METADATA]
        return await asyncio.gather(*(handle(broker.context, request, info) for _ in range(5)))

    answers = broker.run(all_at_once())
    assert len(set(map(bytes, answers))) == 1
    assert len(broker.image) == 1
    broker.close()


@pytest.mark.parametrize("version", versions(ApiKey.METADATA, since=10))
def test_topics_are_found_by_id(broker: Harness, version: int) -> None:
    topic = broker.topic("orders")
    name = "" if version < 12 else None
    answer = broker.ask(
        ApiKey.METADATA, version, topics=[{"topic_id": topic.id, "name": name}, {"topic_id": UNKNOWN_ID, "name": name}]
    )
    assert [(t.name, t.error_code) for t in answer.topics] == [
        ("orders", ErrorCode.none),
        (name or "", ErrorCode.unknown_topic_id),
    ]


def test_a_topic_asked_for_twice_is_answered_once(broker: Harness) -> None:
    broker.topic("orders")
    assert len(broker.ask(ApiKey.METADATA, 9, topics=asked("orders", "orders", "x", "x")).topics) == 2


def test_of_very_many_topics_that_cannot_be_each_is_answered_once(broker: Harness) -> None:
    names = [f"/{number}" for number in range(3_000)]
    topics = broker.ask(ApiKey.METADATA, 9, topics=asked(*names, *names)).topics
    assert [topic.name for topic in topics] == names
    assert {topic.error_code for topic in topics} == {ErrorCode.invalid_topic_exception}


def test_a_topic_without_name_and_id_is_refused(broker: Harness) -> None:
    (topic,) = broker.ask(ApiKey.METADATA, 12, topics=[{"topic_id": None, "name": None}]).topics
    assert topic.error_code is ErrorCode.invalid_request


@pytest.mark.parametrize("version", versions(ApiKey.METADATA, since=8))
def test_authorized_operations_are_told_when_asked_for(broker: Harness, version: int) -> None:
    broker.topic("orders")
    answer = broker.ask(
        ApiKey.METADATA,
        version,
        topics=None,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    assert answer.topics[0].topic_authorized_operations == EVERYTHING[ResourceType.TOPIC] == 0b1101_1111_1000
    if version <= 10:
        assert answer.cluster_authorized_operations == EVERYTHING[ResourceType.CLUSTER]
        plain = broker.ask(ApiKey.METADATA, version, topics=None)
        assert plain.cluster_authorized_operations == NOT_ASKED


def pages(broker: Harness, limit: int, names: tuple[str, ...] = ()) -> list[list[tuple[str, list[int]]]]:
    found, cursor = [], None
    while True:
        answer = broker.ask(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            0,
            topics=[{"name": name} for name in names],
            response_partition_limit=limit,
            cursor=cursor,
        )
        found.append([(t.name, [p.partition_index for p in t.partitions]) for t in answer.topics])
        if answer.next_cursor is None:
            return found
        cursor = {
            "topic_name": answer.next_cursor.topic_name,
            "partition_index": answer.next_cursor.partition_index,
        }


def test_partitions_are_described_page_by_page(broker: Harness) -> None:
    broker.topic("b", 3)
    broker.topic("a", 2)
    assert pages(broker, 100) == [[("a", [0, 1]), ("b", [0, 1, 2])]]
    assert pages(broker, 2) == [[("a", [0, 1])], [("b", [0, 1])], [("b", [2])]]
    assert pages(broker, 0) == [[("a", [0])], [("a", [1])], [("b", [0])], [("b", [1])], [("b", [2])]]
    assert pages(broker, 1, ("b",)) == [[("b", [0])], [("b", [1])], [("b", [2])]]


def test_a_described_partition_has_lists_and_no_nulls(broker: Harness) -> None:
    topic = broker.topic("a")
    (found,) = broker.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[{"name": "a"}], cursor=None).topics
    (partition,) = found.partitions
    assert (found.topic_id, found.topic_authorized_operations) == (topic.id, EVERYTHING[ResourceType.TOPIC])
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ((), ())


def test_describing_what_does_not_exist(broker: Harness) -> None:
    answer = broker.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[{"name": "missing"}, {"name": ".."}], cursor=None)
    assert {t.name: t.error_code for t in answer.topics} == {
        "..": ErrorCode.invalid_topic_exception,
        "missing": ErrorCode.unknown_topic_or_partition,
    }
    gone = {"topic_name": "gone", "partition_index": 5}
    assert broker.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, cursor=gone).topics == ()


def test_a_cursor_before_the_first_partition_is_refused(broker: Harness) -> None:
    cursor = {"topic_name": "a", "partition_index": -1}
    answer = broker.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[{"name": "a"}], cursor=cursor)
    assert [t.error_code for t in answer.topics] == [ErrorCode.invalid_request]
