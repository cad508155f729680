"""Large requests are read some elements at a time, to the same entities, and refused for the same reasons."""

from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

import pytest

from headrace.protocol.api import SUPPORTED
from headrace.protocol.encode import encode_request, write_uvarint
from headrace.protocol.errors import ProtocolViolation
from headrace.protocol.guard import MAX_ELEMENTS, MOST_TAGS, check_request, skip_tags
from headrace.protocol.schema import WireField, WireStruct, request_shape
from headrace.protocol.stepwise import STEP, decode_request_in_steps, discard_in_steps
from headrace.server.dispatch import decode_body

SERVED = [(int(key), version) for key, v in SUPPORTED.items() for version in range(v.min, v.max + 1)]


def value(field: WireField, random: Random) -> Any:
    if field.struct is not None:
        return struct(field.struct, random)
    if field.kafka_type == "string":
        return "é" * random.randrange(4)
    if field.kafka_type in ("bytes", "records"):
        return random.randbytes(random.randrange(4))
    if field.kafka_type == "uuid":
        return UUID(int=random.randrange(1, 1 << 128))
    return bool(random.randrange(2)) if field.kafka_type == "bool" else random.randrange(100)


def struct(shape: WireStruct, random: Random) -> dict[str, Any]:
    values = {}
    for field in (*shape.fields, *shape.tagged):
        count = random.choice((0, 1, 2, 70)) if field.is_array else 0
        values[field.name] = [value(field, random) for _ in range(count)] if field.is_array else value(field, random)
    return values


def in_steps(api_key: int, version: int, body: bytes) -> tuple[Any, int]:
    steps, taken = decode_request_in_steps(api_key, version, memoryview(body)), 0
    while True:
        try:
            next(steps)
            taken += 1
        except StopIteration as end:
            return end.value, taken


def entity_in_steps(api_key: int, version: int, data: memoryview) -> Any:
    return in_steps(api_key, version, bytes(data))[0]


def outcome(read: Callable[[int, int, memoryview], Any], key: int, version: int, body: bytes) -> Any:
    try:
        return read(key, version, memoryview(body))
    except ProtocolViolation:
        return "refused"


@pytest.mark.parametrize(("key", "version"), SERVED)
def test_a_request_read_in_steps_is_the_same_request(key: int, version: int) -> None:
    random = Random(key * 100 + version)
    body = bytes(encode_request(key, version, struct(request_shape(key, version), random)))
    assert in_steps(key, version, body)[0] == decode_body(key, version, memoryview(body))
    for _ in range(20 if body else 0):
        damaged = bytearray(body)
        for _ in range(random.randrange(1, 3)):
            damaged[random.randrange(min(len(body), 200))] = random.randrange(256)
        said = [outcome(read, key, version, bytes(damaged)) for read in (entity_in_steps, decode_body)]
        assert said[0] == said[1]


@pytest.mark.parametrize(("topics", "partitions"), [(20_000, 1), (1, 20_000), (100, 200)])
def test_others_have_their_turns_whatever_array_is_large(topics: int, partitions: int) -> None:
    offsets = [
        {"partition_index": index, "committed_offset": 1, "committed_metadata": None} for index in range(partitions)
    ]
    values = {
        "group_id": "g",
        "generation_id_or_member_epoch": 1,
        "member_id": "",
        "topics": [{"name": f"t{number}", "partitions": offsets} for number in range(topics)],
    }
    body = bytes(encode_request(8, 8, values))
    entity, steps = in_steps(8, 8, body)
    assert entity == decode_body(8, 8, memoryview(body))
    assert steps >= 20_000 // STEP


def test_the_garbage_collector_looks_at_a_thousand_elements_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr("headrace.protocol.stepwise.gc.collect", looks.append)
    in_steps(3, 4, many_names(20_000))
    assert looks == [0] * 20


def many_names(count: int) -> bytes:
    return bytes(encode_request(3, 4, {"topics": [{"name": f"t{number}"} for number in range(count)]}))


def test_what_nobody_keeps_is_let_go_in_steps() -> None:
    steps = decode_request_in_steps(3, 4, memoryview(many_names(2_000)), in_lists=True)
    entity: Any = None
    while entity is None:
        try:
            next(steps)
        except StopIteration as end:
            entity = end.value
    sizes = [len(entity.topics) for _ in discard_in_steps(entity)]
    assert sizes == list(range(2_000 - STEP, -1, -STEP))


def unknown_tags(count: int) -> bytes:
    tags = bytearray()
    write_uvarint(tags, count)
    for tag in range(count):
        write_uvarint(tags, 10_000 + tag)
        tags += b"\1x"
    return bytes(tags)


def test_unknown_tags_are_cut_out_of_each_element() -> None:
    topic = b"\0" * 16 + b"\2t" + unknown_tags(2)
    body = b"\xac\2" + topic * 299 + b"\1\0" + unknown_tags(3)
    entity, _ = in_steps(3, 12, body)
    assert entity == decode_body(3, 12, memoryview(body))
    assert len(entity.topics) == 299


def test_more_tagged_fields_than_anybody_has_are_refused() -> None:
    tags = unknown_tags(MOST_TAGS + 1)
    with pytest.raises(ProtocolViolation, match="tagged"):
        skip_tags(memoryview(tags), 0)
    with pytest.raises(ProtocolViolation, match="tagged"):
        check_request(3, 12, memoryview(b"\0\0\0" + tags))


def test_a_tagged_field_stands_once() -> None:
    cluster = b"\0\2\2x"
    body = bytes(encode_request(1, 12, struct(request_shape(1, 12), Random(0)) | {"cluster_id": None}))
    assert body.endswith(b"\0")
    with pytest.raises(ProtocolViolation, match="order"):
        check_request(1, 12, memoryview(body[:-1] + b"\2" + cluster * 2))


def test_more_elements_than_kafka_takes_are_refused() -> None:
    count = MAX_ELEMENTS + 1
    body = count.to_bytes(4, "big") + bytes(2 * count)
    for read in (decode_body, entity_in_steps):
        with pytest.raises(ProtocolViolation, match="elements"):
            read(3, 1, memoryview(body))
