from typing import Any
from uuid import UUID

import pytest

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.storage.disk import StorageError
from tests.support.handlers import Harness, versions


def wanted(name: str, **values: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": -1, "replication_factor": -1, **values}


def create(broker: Harness, *topics: dict[str, Any], version: int = 7, validate_only: bool = False) -> dict[str, Any]:
    answer = broker.ask(ApiKey.CREATE_TOPICS, version, topics=topics, validate_only=validate_only)
    return {topic.name: topic for topic in answer.topics}


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_TOPICS))
def test_topics_are_created_in_every_version(broker: Harness, version: int) -> None:
    created = create(
        broker,
        wanted("a", num_partitions=3, replication_factor=1, configs=[{"name": "retention.ms", "value": "5000"}]),
        wanted("b", assignments=[{"partition_index": 1, "broker_ids": [1]}, {"partition_index": 0, "broker_ids": [1]}]),
        version=version,
    )
    assert {name: topic.error_code for name, topic in created.items()} == {"a": ErrorCode.none, "b": ErrorCode.none}
    topic = broker.image.topic("a")
    assert topic is not None
    assert (len(topic.partitions), topic.configs) == (3, {"retention.ms": "5000"})
    assert len(broker.replicas.topics["b"]) == 2
    if version >= 5:
        a = created["a"]
        assert (a.num_partitions, a.replication_factor) == (3, 1)
        configs = {config.name: config for config in a.configs}
        assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("5000", 1)
        assert (configs["segment.bytes"].value, configs["segment.bytes"].config_source) == ("1073741824", 5)
        assert "message.format.version" not in configs
    if version >= 7:
        assert created["a"].topic_id == topic.id


def test_defaults_come_from_the_broker() -> None:
    broker = Harness({"num.partitions": "6"})
    assert create(broker, wanted("a"))["a"].num_partitions == 6
    broker.close()


@pytest.mark.parametrize(
    ("topic", "code", "words"),
    [
        (wanted(""), ErrorCode.invalid_topic_exception, "empty"),
        (wanted("."), ErrorCode.invalid_topic_exception, "'.'"),
        (wanted("a/b"), ErrorCode.invalid_topic_exception, "ASCII letters"),
        (wanted("nul\0"), ErrorCode.invalid_topic_exception, "ASCII letters"),
        (wanted("line\n"), ErrorCode.invalid_topic_exception, "ASCII letters"),
        (wanted("x" * 250), ErrorCode.invalid_topic_exception, "250 characters, more than 249"),
        (wanted("taken"), ErrorCode.topic_already_exists, "already exists"),
        (wanted("da.sh"), ErrorCode.invalid_topic_exception, "collides with existing topics: da_sh"),
        (wanted("p", num_partitions=0), ErrorCode.invalid_partitions, "1 to 100000"),
        (wanted("p", num_partitions=-2), ErrorCode.invalid_partitions, "1 to 100000"),
        (wanted("p", num_partitions=2**31 - 1), ErrorCode.invalid_partitions, "1 to 100000"),
        (wanted("r", replication_factor=2), ErrorCode.invalid_replication_factor, "there are 1 broker(s)"),
        (wanted("r", replication_factor=0), ErrorCode.invalid_replication_factor, "ask for 1 to 1"),
        (wanted("r", replication_factor=-2), ErrorCode.invalid_replication_factor, "ask for 1 to 1"),
        (
            wanted("s", configs=[{"name": "retention.msec", "value": "1"}]),
            ErrorCode.invalid_config,
            "did you mean retention.ms?",
        ),
        (wanted("s", configs=[{"name": "retention.ms", "value": "week"}]), ErrorCode.invalid_config, "whole number"),
        (wanted("s", configs=[{"name": "retention.ms", "value": "-2"}]), ErrorCode.invalid_config, "at least -1"),
        (wanted("s", configs=[{"name": "retention.ms", "value": None}]), ErrorCode.invalid_config, "Null value"),
    ],
)
def test_what_cannot_be_created_says_why(broker: Harness, topic: dict[str, Any], code: ErrorCode, words: str) -> None:
    broker.topic("taken")
    broker.topic("da_sh")
    (answer,) = create(broker, topic).values()
    assert (answer.error_code, answer.configs, answer.topic_id) == (code, (), None)
    assert words in answer.error_message
    assert len(broker.image) == 2


HUGE = "\x00é" * 10_000
"""As large as a text of the older versions can be, and larger when it is quoted."""


def test_huge_texts_make_short_messages(broker: Harness) -> None:
    broker.topic("t")
    for config in ({"name": HUGE, "value": "1"}, {"name": "retention.ms", "value": HUGE}):
        assert create(broker, wanted("x", configs=[config]), version=4)["x"].error_code is ErrorCode.invalid_config
    assert create(broker, wanted(HUGE), version=4)[HUGE].error_code is ErrorCode.invalid_topic_exception
    (result,) = broker.ask(ApiKey.CREATE_PARTITIONS, 0, topics=[{"name": HUGE, "count": 2}]).results
    assert (result.error_code, len(result.error_message) < 1000) == (ErrorCode.unknown_topic_or_partition, True)
    configs = [{"name": HUGE, "config_operation": 9, "value": None}]
    for kind, name in ((2, "t"), (4, "1"), (4, HUGE), (2, HUGE)):
        resources = [{"resource_type": kind, "resource_name": name, "configs": configs}]
        for api in (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.DESCRIBE_CONFIGS):
            answer = broker.ask(api, 1 if api == ApiKey.DESCRIBE_CONFIGS else 0, resources=resources)
            (found,) = answer.results if api == ApiKey.DESCRIBE_CONFIGS else answer.responses
            assert len(found.error_message or "") < 1000


@pytest.mark.parametrize(
    ("assignments", "words"),
    [
        ({0: [1, 1]}, "twice"),
        ({0: []}, "no replicas"),
        ({0: [7]}, "there are [1]"),
        ({1: [1]}, "consecutive 0-based"),
        ({0: [1], 2: [1]}, "consecutive 0-based"),
        ({0: [1], 1: []}, "no replicas"),
    ],
)
def test_bad_assignments_say_why(broker: Harness, assignments: dict[int, list[int]], words: str) -> None:
    given = [{"partition_index": index, "broker_ids": ids} for index, ids in assignments.items()]
    answer = create(broker, wanted("t", assignments=given))["t"]
    assert answer.error_code is ErrorCode.invalid_replica_assignment
    assert words in answer.error_message


def test_a_partition_assigned_twice_is_refused(broker: Harness) -> None:
    given = [{"partition_index": 0, "broker_ids": [1]}] * 2
    answer = create(broker, wanted("t", assignments=given))["t"]
    assert answer.error_code is ErrorCode.invalid_replica_assignment


def test_numbers_and_assignments_exclude_each_other(broker: Harness) -> None:
    given = [{"partition_index": 0, "broker_ids": [1]}]
    answer = create(broker, wanted("t", num_partitions=1, assignments=given))["t"]
    assert answer.error_code is ErrorCode.invalid_request


def test_a_name_that_stands_twice_is_not_created(broker: Harness) -> None:
    answers = create(broker, wanted("a"), wanted("b"), wanted("a"))
    assert (answers["a"].error_code, answers["b"].error_code) == (ErrorCode.invalid_request, ErrorCode.none)
    assert [topic.name for topic in broker.image.topics()] == ["b"]


def test_two_new_topics_that_collide_do_not_both_appear(broker: Harness) -> None:
    codes = [topic.error_code for topic in create(broker, wanted("a.b"), wanted("a_b")).values()]
    assert codes == [ErrorCode.none, ErrorCode.invalid_topic_exception]


def test_validate_only_creates_nothing(broker: Harness) -> None:
    answer = create(broker, wanted("a", num_partitions=2), validate_only=True)["a"]
    assert (answer.error_code, answer.num_partitions, answer.topic_id) == (ErrorCode.none, 2, None)
    assert len(broker.image) == 0
    assert broker.run(broker.store.list("/topics/")) == []


def test_a_full_disk_is_answered_and_leaves_no_topic(broker: Harness) -> None:
    broker.replicas.failure = StorageError("/data/a-0", 28, "No space left on device")
    answer = create(broker, wanted("a"))["a"]
    assert answer.error_code is ErrorCode.kafka_storage_error
    assert "No space left" in answer.error_message
    assert broker.run(broker.store.list("/topics/")) == []
    broker.replicas.failure = None
    assert create(broker, wanted("a"))["a"].error_code is ErrorCode.none


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_TOPICS))
def test_topics_are_deleted_by_name_in_every_version(broker: Harness, version: int) -> None:
    broker.topic("a")
    names = ("a", "missing")
    answer = broker.ask(
        ApiKey.DELETE_TOPICS, version, topic_names=names, topics=[{"name": n, "topic_id": None} for n in names]
    )
    assert [(r.name, r.error_code) for r in answer.responses] == [
        ("a", ErrorCode.none),
        ("missing", ErrorCode.unknown_topic_or_partition),
    ]
    if version >= 5:
        assert answer.responses[1].error_message == "There is no topic 'missing'"
    assert broker.replicas.topics == {}
    assert len(broker.image) == 0


def test_topics_are_deleted_by_id(broker: Harness) -> None:
    topic = broker.topic("a")
    unknown = UUID(int=5)
    answer = broker.ask(
        ApiKey.DELETE_TOPICS,
        6,
        topics=[
            {"name": None, "topic_id": topic.id},
            {"name": None, "topic_id": unknown},
            {"name": "x", "topic_id": unknown},
            {"name": None, "topic_id": None},
        ],
    )
    assert [(r.name, r.topic_id, r.error_code) for r in answer.responses] == [
        ("a", topic.id, ErrorCode.none),
        (None, unknown, ErrorCode.unknown_topic_id),
        ("x", unknown, ErrorCode.invalid_request),
        (None, None, ErrorCode.invalid_request),
    ]


def test_a_name_that_stands_twice_is_not_deleted(broker: Harness) -> None:
    broker.topic("a")
    (response,) = broker.ask(ApiKey.DELETE_TOPICS, 5, topic_names=("a", "a")).responses
    assert response.error_code is ErrorCode.invalid_request
    assert len(broker.image) == 1


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_TOPICS))
def test_deletion_can_be_turned_off(version: int) -> None:
    broker = Harness({"delete.topic.enable": "false"})
    broker.topic("a")
    values = {"topic_names": ("a",), "topics": [{"name": "a", "topic_id": None}]}
    (response,) = broker.ask(ApiKey.DELETE_TOPICS, version, **values).responses
    assert response.error_code is (ErrorCode.topic_deletion_disabled if version >= 3 else ErrorCode.invalid_request)
    broker.close()


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_PARTITIONS))
def test_partitions_are_added_in_every_version(broker: Harness, version: int) -> None:
    broker.topic("a")
    broker.topic("b", 2)
    answer = broker.ask(
        ApiKey.CREATE_PARTITIONS,
        version,
        topics=[
            {"name": "a", "count": 3, "assignments": None},
            {"name": "b", "count": 3, "assignments": [{"broker_ids": [1]}]},
        ],
    )
    assert [(r.name, r.error_code) for r in answer.results] == [("a", ErrorCode.none), ("b", ErrorCode.none)]
    assert [len(broker.replicas.topics[name]) for name in "ab"] == [3, 3]
    assert [len(topic.partitions) for topic in broker.image.topics()] == [3, 3]


@pytest.mark.parametrize(
    ("topic", "code", "words"),
    [
        ({"name": "a", "count": 2}, ErrorCode.invalid_partitions, "already has 2 partition(s)"),
        ({"name": "a", "count": 1}, ErrorCode.invalid_partitions, "would not be an increase"),
        ({"name": "a", "count": -5}, ErrorCode.invalid_partitions, "would not be an increase"),
        ({"name": "a", "count": 2**31 - 1}, ErrorCode.invalid_partitions, "1 to 100000"),
        ({"name": "no", "count": 3}, ErrorCode.unknown_topic_or_partition, "no topic 'no'"),
        (
            {"name": "a", "count": 4, "assignments": [{"broker_ids": [1]}]},
            ErrorCode.invalid_replica_assignment,
            "1 assignment(s) for 2 new",
        ),
        (
            {"name": "a", "count": 3, "assignments": []},
            ErrorCode.invalid_replica_assignment,
            "0 assignment(s) for 1 new",
        ),
        (
            {"name": "a", "count": 3, "assignments": [{"broker_ids": [1, 2]}]},
            ErrorCode.invalid_replica_assignment,
            "2 replicas where 1",
        ),
        (
            {"name": "a", "count": 3, "assignments": [{"broker_ids": [9]}]},
            ErrorCode.invalid_replica_assignment,
            "there are [1]",
        ),
    ],
)
def test_what_cannot_be_added_says_why(broker: Harness, topic: dict[str, Any], code: ErrorCode, words: str) -> None:
    broker.topic("a", 2)
    (result,) = broker.ask(ApiKey.CREATE_PARTITIONS, 3, topics=[topic]).results
    assert result.error_code is code
    assert words in result.error_message


def test_validate_only_adds_nothing_and_repeats_are_refused(broker: Harness) -> None:
    broker.topic("a")
    grown = {"name": "a", "count": 3, "assignments": None}
    (result,) = broker.ask(ApiKey.CREATE_PARTITIONS, 3, topics=[grown], validate_only=True).results
    assert result.error_code is ErrorCode.none
    (result,) = broker.ask(ApiKey.CREATE_PARTITIONS, 3, topics=[grown, grown]).results
    assert result.error_code is ErrorCode.invalid_request
    assert len(broker.replicas.topics["a"]) == 1
