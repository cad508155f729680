"""Every request that a builder makes can be written in every version that clients speak, and read back."""

from collections.abc import Mapping
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.serial import entity_reader

from headrace.client.core.groups import (
    NOT_A_MEMBER,
    CommittedOffset,
    GroupMembership,
    commit_request,
    committed_request,
    find_coordinator_request,
    heartbeat_request,
    join_request,
    leave_request,
    sync_request,
)
from headrace.client.core.metadata import CoordinatorKind, metadata_request
from headrace.client.core.offsets import LATEST, READ_COMMITTED, OffsetQuery, list_offsets_request
from headrace.client.core.topics import (
    TOPIC,
    alter_configs_request,
    create_partitions_request,
    create_topic_request,
    delete_topic_request,
    describe_configs_request,
)
from headrace.client.core.transactions import (
    ProducerId,
    add_partitions_request,
    end_request,
    init_producer_request,
    list_transactions_request,
)
from headrace.client.core.versions import SPOKEN
from headrace.protocol.api import ApiKey
from headrace.protocol.encode import encode_request
from headrace.protocol.fetch_request import FetchPartition, fetch_request
from headrace.protocol.topic_partition import TopicPartition

ONE, TWO, OTHER = TopicPartition("a", 0), TopicPartition("a", 3), TopicPartition("b", 1)
MEMBER, PRODUCER = GroupMembership("m-1", 4), ProducerId(77, 2)
FETCHED = [FetchPartition(ONE, 5, 100), FetchPartition(OTHER, 6, 200, leader_epoch=3, topic_id=b"t" * 16)]
REQUESTS: list[tuple[ApiKey, Mapping[str, Any]]] = [
    (ApiKey.METADATA, metadata_request(None)),
    (ApiKey.METADATA, metadata_request(["a", "b"], create=True)),
    (ApiKey.FETCH, fetch_request(FETCHED, max_wait_ms=10, min_bytes=1, max_bytes=1000, isolation=1, rack="r")),
    (ApiKey.LIST_OFFSETS, list_offsets_request({ONE: OffsetQuery(LATEST), TWO: OffsetQuery(5, 9)}, isolation=1)),
    (ApiKey.CREATE_TOPICS, create_topic_request("a", timeout_ms=1, partitions=3, configs={"k": "v"})),
    (ApiKey.DELETE_TOPICS, delete_topic_request("a", timeout_ms=1)),
    (ApiKey.CREATE_PARTITIONS, create_partitions_request("a", 4, timeout_ms=1)),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, alter_configs_request(TOPIC, ["a", "b"], {"set": "1", "deleted": None})),
    (ApiKey.DESCRIBE_CONFIGS, describe_configs_request(TOPIC, ["a"], ["k"])),
    (ApiKey.FIND_COORDINATOR, find_coordinator_request(CoordinatorKind.TRANSACTION, "x")),
    (ApiKey.OFFSET_COMMIT, commit_request("g", {ONE: CommittedOffset(4), OTHER: CommittedOffset(5, "note")}, MEMBER)),
    (ApiKey.OFFSET_COMMIT, commit_request("g", {TWO: CommittedOffset(4)}, NOT_A_MEMBER)),
    (ApiKey.OFFSET_FETCH, committed_request("g", [ONE, TWO, OTHER], require_stable=True)),
    (
        ApiKey.JOIN_GROUP,
        join_request("g", MEMBER, topics=["a"], assignor="range", session_ms=10_000, rebalance_ms=20_000),
    ),
    (ApiKey.SYNC_GROUP, sync_request("g", MEMBER, "range", {"m-1": {"a": [0, 1]}})),
    (ApiKey.HEARTBEAT, heartbeat_request("g", MEMBER)),
    (ApiKey.LEAVE_GROUP, leave_request("g", MEMBER)),
    (ApiKey.INIT_PRODUCER_ID, init_producer_request("x", 60_000, PRODUCER)),
    (ApiKey.ADD_PARTITIONS_TO_TXN, add_partitions_request("x", PRODUCER, [ONE, TWO, OTHER])),
    (ApiKey.END_TXN, end_request("x", PRODUCER, commit=True)),
    (ApiKey.LIST_TRANSACTIONS, list_transactions_request(["Ongoing"], [77], 5, "x.*")),
]


@pytest.mark.parametrize(("api_key", "values"), REQUESTS, ids=lambda part: getattr(part, "name", ""))
def test_a_request_is_written_in_every_version_that_is_spoken(api_key: ApiKey, values: Mapping[str, Any]) -> None:
    low, high = SPOKEN[api_key]
    for version in range(low, high + 1):
        decoded(api_key, version, values)


def test_partitions_stand_under_their_topics() -> None:
    values = list_offsets_request({ONE: OffsetQuery(1), OTHER: OffsetQuery(2), TWO: OffsetQuery(3)}, isolation=1)
    entity = decoded(ApiKey.LIST_OFFSETS, 8, values)
    found = [(t.name, [(p.partition_index, p.timestamp) for p in t.partitions]) for t in entity.topics]
    assert found == [("a", [(0, 1), (3, 3)]), ("b", [(1, 2)])]
    assert entity.isolation_level == READ_COMMITTED


def test_a_fetch_names_topics_by_id_where_the_version_does() -> None:
    values = fetch_request(FETCHED, max_wait_ms=0, min_bytes=0, max_bytes=9)
    assert [t.topic for t in decoded(ApiKey.FETCH, 12, values).topics] == ["a", "b"]
    assert decoded(ApiKey.FETCH, 13, values).topics[1].topic_id.bytes == b"t" * 16


def decoded(api_key: ApiKey, version: int, values: Mapping[str, Any]) -> Any:
    data = bytes(encode_request(api_key, version, values))
    entity, size = entity_reader(load_request_schema(api_key, version))(data, 0)
    assert size == len(data)
    return entity
