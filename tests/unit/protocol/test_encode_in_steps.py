"""Large responses are encoded some entries at a time, to the same bytes."""

from typing import Any

import pytest

from headrace.protocol.api import ApiKey
from headrace.protocol.encode import LARGE, STEP, encode_in_steps, encode_response, is_large
from headrace.protocol.errors import ErrorCode


def listed(count: int) -> dict[str, Any]:
    groups = [
        {"group_id": f"g{n}", "protocol_type": "consumer", "group_state": "Stable", "group_type": "Classic"}
        for n in range(count)
    ]
    return {"throttle_time": 0, "error_code": ErrorCode.none, "groups": groups}


def fetched(topics: int, partitions: int) -> dict[str, Any]:
    found = [
        {
            "partition_index": index,
            "committed_offset": index,
            "committed_leader_epoch": -1,
            "metadata": "",
            "error_code": ErrorCode.none,
        }
        for index in range(partitions)
    ]
    entries = [{"name": f"t{n}", "partitions": found} for n in range(topics)]
    group = {"group_id": "g", "error_code": ErrorCode.none, "topics": entries}
    return {"throttle_time": 0, "error_code": ErrorCode.none, "topics": entries, "groups": [group]}


@pytest.mark.parametrize(
    ("api_key", "version", "values", "entries"),
    [
        (ApiKey.LIST_GROUPS, 0, listed(5_000), 5_000),
        (ApiKey.LIST_GROUPS, 5, listed(5_000), 5_000),
        (ApiKey.OFFSET_FETCH, 5, fetched(3, 2_000), 6_000),
        (ApiKey.OFFSET_FETCH, 8, fetched(3, 2_000), 6_000),
        (ApiKey.OFFSET_FETCH, 8, fetched(3_000, 2), 6_000),
        (ApiKey.LIST_GROUPS, 5, listed(0), 0),
    ],
)
def test_a_response_in_steps_is_the_same_response(
    api_key: ApiKey, version: int, values: dict[str, Any], entries: int
) -> None:
    out = bytearray()
    steps = sum(1 for _ in encode_in_steps(api_key, version, values, out))
    assert out == encode_response(api_key, version, values)
    assert is_large(api_key, version, values) == (entries >= LARGE)
    assert steps >= entries // STEP // 3
