from datetime import timedelta
from typing import Any

import pytest

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from tests.support.handlers import Harness, versions

Entity = dict[str, str | None]


def alter(broker: Harness, version: int, *changes: tuple[Entity, dict[str, float | None]], dry: bool = False) -> Any:
    entries = [
        {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
            "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops.items()],
        }
        for entity, ops in changes
    ]
    return broker.ask(ApiKey.ALTER_CLIENT_QUOTAS, version, entries=entries, validate_only=dry).entries


def describe(broker: Harness, version: int = 1, *components: tuple[str, int, str | None], strict: bool = False) -> Any:
    asked = [{"entity_type": kind, "match_type": how, "match": name} for kind, how, name in components]
    return broker.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, version, components=asked, strict=strict)


def described(answer: Any) -> list[tuple[Entity, dict[str, float]]]:
    assert answer.error_code is ErrorCode.none
    return [
        ({part.entity_type: part.entity_name for part in entry.entity}, {v.key: v.value for v in entry.values})
        for entry in answer.entries
    ]


@pytest.mark.parametrize("version", versions(ApiKey.ALTER_CLIENT_QUOTAS))
def test_quotas_are_set_described_and_removed_in_every_version(broker: Harness, version: int) -> None:
    pair: Entity = {"user": "alice", "client-id": None}
    (result,) = alter(broker, version, (pair, {"producer_byte_rate": 1e6, "request_percentage": 12.5}))
    assert (result.error_code, result.error_message) == (ErrorCode.none, None)
    assert {part.entity_type: part.entity_name for part in result.entity} == pair
    expected = [(pair, {"producer_byte_rate": 1e6, "request_percentage": 12.5})]
    assert described(describe(broker, version)) == expected
    assert described(describe(broker, version, ("user", 0, "alice"))) == expected
    assert described(describe(broker, version, ("user", 0, "alice"), strict=True)) == []
    alter(broker, version, (pair, {"producer_byte_rate": None, "consumer_byte_rate": None, "request_percentage": 5.0}))
    assert described(describe(broker, version)) == [(pair, {"request_percentage": 5.0})]
    alter(broker, version, (pair, {"request_percentage": None}))
    assert described(describe(broker, version)) == []


def test_each_entity_succeeds_or_fails_by_itself(broker: Harness) -> None:
    good, bad, worse = alter(
        broker,
        1,
        ({"user": "alice"}, {"producer_byte_rate": 10.0}),
        ({"user": "bob"}, {"producer_byte_rate": 10.5}),
        ({"planet": "mars"}, {"producer_byte_rate": 10.0}),
    )
    assert good.error_code is ErrorCode.none
    assert (bad.error_code, bad.error_message) == (
        ErrorCode.invalid_request,
        "producer_byte_rate cannot be a fractional value.",
    )
    assert worse.error_code is ErrorCode.invalid_request
    assert described(describe(broker)) == [({"user": "alice"}, {"producer_byte_rate": 10.0})]


def test_an_entity_that_stands_twice_is_left_alone(broker: Harness) -> None:
    (result,) = alter(
        broker, 1, ({"user": "alice"}, {"producer_byte_rate": 1.0}), ({"user": "alice"}, {"consumer_byte_rate": 1.0})
    )
    assert result.error_code is ErrorCode.invalid_request
    assert described(describe(broker)) == []


def test_what_is_only_validated_changes_nothing(broker: Harness) -> None:
    (result,) = alter(broker, 1, ({"user": None}, {"producer_byte_rate": 1.0}), dry=True)
    assert result.error_code is ErrorCode.none
    assert described(describe(broker)) == []


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_CLIENT_QUOTAS))
def test_a_filter_that_makes_no_sense_is_refused_in_every_version(broker: Harness, version: int) -> None:
    answer = describe(broker, version, ("user", 0, None))
    assert (answer.error_code, answer.entries) == (ErrorCode.invalid_request, None)
    assert describe(broker, version, ("planet", 2, None)).error_code is ErrorCode.unsupported_version


def create(broker: Harness, version: int, *topics: tuple[str, int]) -> Any:
    wanted = [{"name": name, "num_partitions": count, "replication_factor": 1} for name, count in topics]
    return broker.ask(ApiKey.CREATE_TOPICS, version, topics=wanted, timeout=timedelta(seconds=1))


@pytest.fixture
def limited(broker: Harness) -> Harness:
    """A broker with a client that has 5.5 partitions at once, and owes most of a minute's worth soon."""
    alter(broker, 1, ({"client-id": "tests"}, {"controller_mutation_rate": 0.5}))
    return broker


def test_who_owes_partitions_is_refused_topic_by_topic(limited: Harness) -> None:
    answer = create(limited, 7, ("a", 4), ("b", 40), ("c", 1))
    assert [topic.error_code for topic in answer.topics] == [
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.throttling_quota_exceeded,
    ]
    assert 60_000 < answer.throttle_time.total_seconds() * 1000 <= 77_000
    topics = [{"name": "b", "topic_id": None}]
    refused = limited.ask(ApiKey.DELETE_TOPICS, 6, topics=topics, timeout=timedelta(seconds=1))
    assert refused.responses[0].error_code is ErrorCode.throttling_quota_exceeded
    grown = limited.ask(
        ApiKey.CREATE_PARTITIONS,
        3,
        topics=[{"name": "a", "count": 5, "assignments": None}],
        timeout=timedelta(seconds=1),
    )
    assert grown.results[0].error_code is ErrorCode.throttling_quota_exceeded
    assert grown.throttle_time


def test_older_clients_wait_instead(limited: Harness) -> None:
    answer = create(limited, 5, ("a", 4), ("b", 40), ("c", 1))
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.none}
    assert answer.throttle_time


def test_what_failed_costs_nothing(limited: Harness) -> None:
    for _ in range(10):
        assert create(limited, 7, ("bad name", 4)).topics[0].error_code is ErrorCode.invalid_topic_exception
    assert create(limited, 7, ("a", 4)).topics[0].error_code is ErrorCode.none
    for _ in range(10):
        assert create(limited, 7, ("a", 4)).topics[0].error_code is ErrorCode.topic_already_exists
    assert create(limited, 7, ("b", 1)).topics[0].error_code is ErrorCode.none
