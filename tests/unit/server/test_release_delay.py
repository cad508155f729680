"""The delay of what a request of a share group releases: a tagged field that other brokers pass over."""

from collections.abc import Generator
from typing import Any

import pytest

from headrace.protocol.encode import encode_request
from headrace.protocol.share_fetch import delay_releases, release_delay
from headrace.protocol.stepwise import decode_request_in_steps
from headrace.server.dispatch import decode_body

FETCH, ACKNOWLEDGE = 78, 79


def request(api_key: int, version: int, batches: int) -> bytearray:
    said = [{"first_offset": n, "last_offset": n, "acknowledge_types": (2,)} for n in range(batches)]
    partition = {"partition_index": 0, "acknowledgement_batches": said}
    more = {"max_wait": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 1, "batch_size": 1, "share_acquire_mode": 0}
    return encode_request(
        api_key,
        version,
        {
            "group_id": "g",
            "member_id": "m",
            "share_session_epoch": 1,
            "topics": ({"topic_id": None, "partitions": (partition,)},),
            "is_renew_ack": False,
            "forgotten_topics_data": (),
            **more,
        },
    )


@pytest.mark.parametrize("api_key", [FETCH, ACKNOWLEDGE])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("batches", [1, 2_000])
@pytest.mark.parametrize("milliseconds", [0, 1, 86_400_000, -1])
def test_a_delay_ends_a_request_that_is_read_without_it(
    api_key: int, version: int, batches: int, milliseconds: int
) -> None:
    plain = request(api_key, version, batches)
    body = bytearray(plain)
    assert release_delay(body) is None
    delay_releases(body, milliseconds)
    assert release_delay(memoryview(body)) == milliseconds
    expected = decode_body(api_key, version, memoryview(plain))
    assert decode_body(api_key, version, memoryview(body)) == expected
    assert read_in_steps(api_key, version, body) == expected


def read_in_steps(api_key: int, version: int, body: bytearray) -> Any:
    def read() -> Generator[None, None, None]:
        found.append((yield from decode_request_in_steps(api_key, version, memoryview(body))))

    found: list[Any] = []
    assert not any(read())
    return found[0]


@pytest.mark.parametrize("body", [b"", b"\0", b"\x68", b"\x01\xc8\xa4\xa9\x03\x05\0\0\0\x01\0", b"x" * 30])
def test_what_is_none_is_none(body: bytes) -> None:
    assert release_delay(body) is None
