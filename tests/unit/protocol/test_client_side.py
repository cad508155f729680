"""What a client writes is what a broker reads, and the other way round, in every version."""

from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema
from kio.serial import entity_reader

from headrace.client.core.versions import SPOKEN
from headrace.protocol import fetch, produce
from headrace.protocol.decode import decode_response
from headrace.protocol.encode import blank_response, encode_request, encode_response
from headrace.protocol.errors import ErrorCode, ProtocolViolation
from headrace.protocol.fetched import parse_fetch
from headrace.protocol.produce_request import produce_parts

from .test_produce_and_fetch import Bytes

TOPIC_ID = UUID(int=77)
EVERY_SPOKEN = [(int(key), version) for key, (low, high) in SPOKEN.items() for version in range(low, high + 1)]


def fetch_response(version: int) -> bytes:
    partitions = [
        fetch.FetchedPartition(3, 0, 50, 49, 7, Bytes(b"records"), ((5, 6), (7, 8)), preferred_read_replica=2),
        fetch.FetchedPartition(4, ErrorCode.offset_out_of_range.value),
        fetch.FetchedPartition(5, 0, 50, 49, 7, diverging=fetch.EpochEnd(2, 30)),
    ]
    response = fetch.Response(b"")
    topics = [fetch.FetchedTopic("orders", TOPIC_ID, partitions), fetch.FetchedTopic("empty", UUID(int=1), [])]
    fetch.write_response(response, version, topics, session_id=12, throttle_ms=9)
    return b"".join(part for part in response.finish() if isinstance(part, bytearray))


@pytest.mark.parametrize("version", range(4, 18))
def test_a_fetch_response_of_every_version_is_parsed(version: int) -> None:
    answer = parse_fetch(memoryview(fetch_response(version)), version)
    assert (answer.throttle_ms, answer.code) == (9, 0)
    first, second, third = answer.partitions
    assert first.topic == (TOPIC_ID.bytes if version >= 13 else "orders")
    assert (first.partition, first.code, first.high_watermark, first.last_stable_offset) == (3, 0, 50, 49)
    assert first.log_start_offset == (7 if version >= 5 else -1)
    assert first.aborted == ((5, 6), (7, 8))
    assert first.preferred_read_replica == (2 if version >= 11 else -1)
    assert bytes(first.records) == b"records"
    assert (second.code, second.aborted, bytes(second.records)) == (ErrorCode.offset_out_of_range.value, (), b"")
    assert third.partition == 5


@pytest.mark.parametrize("version", range(4, 18))
@given(data=st.data())
def test_a_damaged_fetch_response_is_a_violation_or_parses(version: int, data: st.DataObject) -> None:
    body = bytearray(fetch_response(version))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ProtocolViolation):
        parse_fetch(memoryview(body[: data.draw(st.integers(0, len(body)))]), version)


@pytest.mark.parametrize("version", range(*SPOKEN[0]))
@pytest.mark.parametrize("transactional_id", [None, "t"])
def test_the_parts_of_a_produce_request_are_what_a_broker_parses(version: int, transactional_id: str | None) -> None:
    topics: dict[str, list[tuple[int, bytes]]] = {"orders": [(3, b"abc"), (4, b"x" * 300)], "other": [(0, b"y")]}
    parts = produce_parts(version, topics, acks=-1, timeout_ms=1500, transactional_id=transactional_id)
    parsed = produce.parse_request(memoryview(b"".join(parts)), 0, version)
    assert (parsed.transactional_id, parsed.acks, parsed.timeout_ms) == (transactional_id, -1, 1500)
    found = {t.name: [(index, bytes(data or b"")) for index, data in t.partitions] for t in parsed.topics}
    assert found == topics


@pytest.mark.parametrize("transactional_id", [None, "a transaction"])
def test_a_batch_is_sent_from_where_it_is(transactional_id: str | None) -> None:
    batch = bytearray(b"a batch")
    parts = produce_parts(9, {"t": [(0, batch)]}, acks=1, timeout_ms=1, transactional_id=transactional_id)
    assert any(part is batch for part in parts)


def plain() -> dict[str, Any]:
    return {
        "groups": (),
        "member_epoch": 0,
        "share_session_epoch": 0,
        "max_records": 1,
        "batch_size": 1,
        "replica_id": -1,
        "isolation_level": 0,
        "topics": (),
        "max_wait": 5,
        "min_bytes": 1,
        "forgotten_topics_data": (),
        "rack_id": "",
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
        "group_id": "g",
        "member_id": "",
        "generation_id_or_member_epoch": -1,
        "generation_id": -1,
        "retention_time": -1,
        "key": "k",
        "mechanism": "PLAIN",
        "client_software_name": "a",
        "client_software_version": "1",
        "transactional_id": "t",
        "transaction_timeout": 1,
        "v3_and_below_transactional_id": "t",
        "v3_and_below_producer_id": 1,
        "v3_and_below_producer_epoch": 1,
        "v3_and_below_topics": (),
        "producer_id": 1,
        "producer_epoch": 1,
        "committed": True,
        "auth_bytes": b"x",
        "acks": 1,
        "timeout": 1,
        "topic_data": (),
        "resources": (),
        "election_type": 0,
        "topic_partitions": None,
        "validate_only": False,
        "session_timeout": 1,
        "rebalance_timeout": 1,
        "protocol_type": "consumer",
        "protocols": (),
        "assignments": (),
        "members": (),
        "include_authorized_operations": False,
        "markers": (),
        "dirs": (),
        "components": (),
        "strict": False,
        "entries": (),
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
        "creations": (),
        "filters": (),
        "users": (),
        "deletions": (),
        "upsertions": (),
        "owner_principal_type": None,
        "owner_principal_name": None,
        "renewers": (),
        "max_lifetime": 1,
        "hmac": b"x",
        "renew_period": 1,
        "expiry_time_period": 1,
        "owners": (),
    }


@pytest.mark.parametrize(("key", "version"), EVERY_SPOKEN)
def test_a_request_of_every_version_that_is_spoken_is_read_by_kio(key: int, version: int) -> None:
    body = bytes(encode_request(key, version, plain()))
    _, size = entity_reader(load_request_schema(key, version))(body, 0)
    assert size == len(body)


@pytest.mark.parametrize(("key", "version"), EVERY_SPOKEN)
@given(body=st.binary(max_size=100))
def test_no_answer_ends_the_process(key: int, version: int, body: bytes) -> None:
    blank = bytes(encode_response(key, version, blank_response(key, version, 0)))
    decode_response(key, version, memoryview(blank))
    with suppress(ProtocolViolation):
        decode_response(key, version, memoryview(body))


def test_tagged_fields_of_a_newer_broker_are_skipped() -> None:
    body = bytes(encode_response(18, 3, {"error_code": 0, "api_keys": (), "throttle_time": 0}))
    assert body.endswith(b"\0")
    answer = decode_response(18, 3, memoryview(bytearray(body[:-1] + b"\x01\x63\x03abc")))
    assert answer.error_code is ErrorCode.none
