"""The guard lets through what the decoder can take, and the encoder writes what kio reads."""

import io
from contextlib import suppress
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

from headrace.protocol.api import SUPPORTED
from headrace.protocol.encode import blank_response, encode_response, write_uvarint
from headrace.protocol.errors import ProtocolViolation
from headrace.protocol.guard import MAX_ELEMENTS, check_request

EVERY_VERSION = [(key, version) for key, name in api_key_map.items() for version in schema_name_map[name]]
SERVED = [(int(key), version) for key, v in SUPPORTED.items() for version in range(v.min, v.max + 1)]


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION)
def test_a_blank_response_of_every_api_and_version_is_read_back_by_kio(key: int, version: int) -> None:
    body = bytes(encode_response(key, version, blank_response(key, version, 35)))
    schema: type[Any] = load_response_schema(key, version)
    entity, size = entity_reader(schema)(body, 0)
    assert size == len(body)
    written = io.BytesIO()
    entity_writer(schema)(written, entity)
    assert written.getvalue() == body
    if any(field.name == "error_code" for field in fields(entity)):
        assert entity.error_code.value == 35


@pytest.mark.slow
@given(st.sampled_from(SERVED), st.binary(max_size=120))
@settings(max_examples=1500)
def test_no_bytes_end_the_process(api: tuple[int, int], body: bytes) -> None:
    try:
        checked = check_request(*api, memoryview(body))
    except ProtocolViolation:
        return
    with suppress(SerialError, ValueError):
        entity_reader(load_request_schema(*api))(checked, 0)


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [
        (3, 1, b"\x7f\xff\xff\xff"),
        (3, 9, b"\xff\xff\xff\xff\x0f"),
        (3, 9, b"\xff\xff\xff\xff\xff\xff"),
        (19, 7, b"\xff\xff\xff\xff\x07" + bytes(40)),
        (3, 9, b"\x00\x00\x00\x00\xff\xff\xff\x0f"),
        (3, 1, b"\x00\x00\x00\x01\x7f\xff"),
    ],
    ids=["array", "compact array", "endless varint", "create topics", "tags", "string"],
)
def test_a_count_larger_than_the_frame_is_a_violation(key: int, version: int, body: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        check_request(key, version, memoryview(body))


def test_more_elements_than_any_client_sends_are_a_violation() -> None:
    count = MAX_ELEMENTS + 1
    with pytest.raises(ProtocolViolation, match="elements"):
        check_request(3, 1, memoryview(count.to_bytes(4, "big") + b"\0\0" * count))


def test_the_offsets_of_a_hundred_thousand_topics_are_committed_at_once() -> None:
    partition = bytes(4) + bytes(8) + bytes(4) + b"\0\0"
    topic = b"\2t" + b"\2" + partition + b"\0"
    count = bytearray()
    write_uvarint(count, 100_001)
    body = b"\2g" + bytes(4) + b"\1" + b"\0" + count + topic * 100_000 + b"\0"
    assert len(check_request(8, 9, memoryview(body))) == len(body)


def test_tagged_fields_that_the_decoder_does_not_know_are_cut_out_wherever_they_stand() -> None:
    state = b"\x00\x00\x00\x05" + bytes(8)
    nested = state + b"\x01\x09\x03abc"
    body = (
        bytes(12)
        + b"\x00"
        + bytes(8)
        + b"\x01\x01\x01"
        + b"\x02"
        + b"\x01"
        + bytes([len(nested)])
        + nested
        + b"\x1f\x04wxyz"
    )
    clean = check_request(1, 15, memoryview(body))
    entity: Any
    entity, size = entity_reader(load_request_schema(1, 15))(clean, 0)
    assert size == len(clean)
    assert entity.replica_state.replica_id == 5
