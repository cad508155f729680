"""Requests that name very many things: others are served meanwhile, and no answer grows without bound."""

import asyncio
from itertools import pairwise
from typing import Any, cast

import pytest

from headrace.protocol.api import ApiKey
from headrace.protocol.encode import encode_response
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.server import dispatch
from headrace.server.context import RequestInfo
from headrace.server.handlers import HANDLERS
from tests.support.handlers import Harness, through_the_wire

COUNT = 3_000
NAMES = [f"{number}/" for number in range(COUNT)]
INDEXES = list(range(COUNT))
REQUESTS: dict[str, tuple[ApiKey, int, dict[str, Any]]] = {
    "names": (ApiKey.METADATA, 1, {"topics": [{"name": name} for name in NAMES]}),
    "described topics": (ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": [{"name": name} for name in NAMES]}),
    "new topics": (ApiKey.CREATE_TOPICS, 7, {"topics": [{"name": name} for name in NAMES]}),
    "deleted topics": (ApiKey.DELETE_TOPICS, 5, {"topic_names": NAMES}),
    "grown topics": (ApiKey.CREATE_PARTITIONS, 3, {"topics": [{"name": name, "count": 2} for name in NAMES]}),
    "resources": (ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [{"resource_type": 2, "resource_name": n} for n in NAMES]}),
    "changes": (
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        {"resources": [{"resource_type": 2, "resource_name": name} for name in NAMES]},
    ),
    "offsets": (
        ApiKey.LIST_OFFSETS,
        7,
        {"topics": [{"name": "t", "partitions": [{"partition_index": index} for index in INDEXES]}]},
    ),
    "epochs": (
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        4,
        {"topics": [{"topic": "t", "partitions": [{"partition": index} for index in INDEXES]}]},
    ),
    "deleted records": (
        ApiKey.DELETE_RECORDS,
        2,
        {"topics": [{"name": "t", "partitions": [{"partition_index": index} for index in INDEXES]}]},
    ),
    "elections": (ApiKey.ELECT_LEADERS, 2, {"topic_partitions": [{"topic": "t", "partitions": INDEXES}]}),
    "moves": (
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        1,
        {"topics": [{"name": "t", "partitions": [{"partition_index": index} for index in INDEXES]}]},
    ),
    "producers": (ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": [{"name": "t", "partition_indexes": INDEXES}]}),
    "commits": (
        ApiKey.OFFSET_COMMIT,
        8,
        {"group_id": "g", "topics": [{"name": "t", "partitions": [{"partition_index": index} for index in INDEXES]}]},
    ),
    "transactional commits": (
        ApiKey.TXN_OFFSET_COMMIT,
        3,
        {"topics": [{"name": "t", "partitions": [{"partition_index": index} for index in INDEXES]}]},
    ),
}


def turns_of_others(broker: Harness, api_key: ApiKey, version: int, values: dict[str, Any]) -> int:
    """How often another task had its turn until the request was answered."""
    entity = through_the_wire(api_key, version, values)
    info = RequestInfo(api_key, version, "tests", "User:ANONYMOUS", "127.0.0.1")

    async def serve() -> int:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        ticking = asyncio.create_task(other())
        try:
            await cast(Any, HANDLERS[api_key](broker.context, entity, info))
        except CodedError:
            pass
        ticking.cancel()
        return turns

    return broker.run(serve())


@pytest.mark.parametrize("what", REQUESTS)
def test_others_are_served_while_a_large_request_is(broker: Harness, what: str) -> None:
    assert turns_of_others(broker, *REQUESTS[what]) >= COUNT // 1_500


def test_a_resource_is_described_once_however_often_it_is_named(broker: Harness) -> None:
    broker.topic("t")
    resources = [{"resource_type": kind, "resource_name": name} for kind, name in [(4, "1"), (2, "t")] * 100]
    results = broker.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=resources).results
    assert [(result.resource_type, result.resource_name) for result in results] == [(4, "1"), (2, "t")]


def test_topics_with_the_same_settings_share_a_description(broker: Harness) -> None:
    for name in "abc":
        broker.topic(name)
    broker.topic("d", retention_ms="7")
    resources = [{"resource_type": 2, "resource_name": name} for name in "abcd"]
    entity = through_the_wire(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": resources})
    info = RequestInfo(ApiKey.DESCRIBE_CONFIGS, 4, "tests", "User:ANONYMOUS", "127.0.0.1")
    answer = broker.run(cast(Any, HANDLERS[ApiKey.DESCRIBE_CONFIGS](broker.context, entity, info)))
    a, b, c, d = (result["configs"] for result in answer["results"])
    assert all(one is other for one, other in pairwise((a, b, c)))
    assert d != a
    assert encode_response(ApiKey.DESCRIBE_CONFIGS, 4, answer)


def test_an_answer_that_would_be_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MOST_ANSWERED", 10_000)
    groups = [{"group_id": f"g{n}", "protocol_type": "", "group_state": "", "group_type": ""} for n in range(5_000)]

    async def work() -> dict[str, Any]:
        return {"throttle_time": 0, "error_code": ErrorCode.none, "groups": groups}

    info = RequestInfo(ApiKey.LIST_GROUPS, 5, "tests", "User:ANONYMOUS", "127.0.0.1")
    body = asyncio.run(dispatch.encoded_answer(info, work))
    assert int.from_bytes(body[4:6], "big") == ErrorCode.invalid_request.value
