"""Bad input gets a coded error or a closed connection, costs nothing, and the next good client is served."""

from collections.abc import Iterator
from struct import pack, pack_into
from typing import Any

import psutil
import pytest
from kio.schema.create_topics.v7.request import CreatableTopic

from headrace.protocol.api import PEERS_ONLY, SUPPORTED, ApiKey
from headrace.protocol.batch import HEADER_SIZE, replace_records, seal
from headrace.protocol.compression import GZIP, LZ4, SNAPPY, ZSTD, compress
from headrace.protocol.errors import ErrorCode
from headrace.testing import Broker
from tests.support.wire import Wire, batch_of, produce_request, request

MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        running.create_topic("orders")
        running.create_topic("packed", 1, **_packed("lz4"))
        yield running
        assert_serves(running)


def _packed(codec: str) -> dict[str, str]:
    return {"compression.type": codec, "max.message.bytes": str(64 * MEBIBYTE)}


def assert_serves(broker: Broker) -> None:
    with Wire(broker.bootstrap) as wire:
        answer = wire.ask(18, 0, request(18, 0))
        assert answer.error_code is ErrorCode.none


def produced(broker: Broker, batch: bytes, topic: str = "orders", **options: Any) -> Any:
    with Wire(broker.bootstrap) as wire:
        version = options.get("version", 9)
        answer = wire.ask(0, version, produce_request(topic, batch, **options))
        return answer.responses[0].partition_responses[0]


@pytest.mark.parametrize("length", [-1, 0, 2**31 - 1, -(2**31)])
def test_an_impossible_length_closes_the_connection(broker: Broker, length: int) -> None:
    with Wire(broker.bootstrap) as wire:
        wire.send_bytes(pack(">i", length))
        assert wire.is_closed()
    assert_serves(broker)


def test_withheld_bytes_take_no_memory(broker: Broker) -> None:
    before = psutil.Process().memory_info().rss
    wires = [Wire(broker.bootstrap) for _ in range(50)]
    try:
        for wire in wires:
            wire.send_bytes(pack(">i", 90 * MEBIBYTE) + bytes(100))
        assert_serves(broker)
        assert psutil.Process().memory_info().rss - before < 32 * MEBIBYTE
    finally:
        for wire in wires:
            wire.socket.close()


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [
        (3, 1, b"\x7f\xff\xff\xff"),
        (3, 9, b"\xff\xff\xff\xff\x0f"),
        (19, 7, b"\xff\xff\xff\xff\x07" + bytes(40)),
        (1, 12, b"\xff" * 60),
        (0, 9, b"\x00\xff\xff\x00\x00\x00\x00\xff\xff\xff\xff\x0f"),
        (0, 3, b"\xff\xff\xff\xff\x00\x00\x00\x00\x7f\xff\xff\xff"),
        (3, 9, b"\x01\x00\x00\x00\x01\x00\xff\xff\x03"),
        (18, 3, b"\xff\xff\xff\xff\xff"),
    ],
    ids=["array", "compact array", "create topics", "fetch", "produce flexible", "produce", "tag size", "varint"],
)
def test_a_count_beyond_the_frame_closes_the_connection(broker: Broker, key: int, version: int, body: bytes) -> None:
    with Wire(broker.bootstrap) as wire:
        wire.send_body(key, version, body)
        assert wire.is_closed()
    assert_serves(broker)


def test_a_client_id_beyond_the_frame_closes_the_connection(broker: Broker) -> None:
    with Wire(broker.bootstrap) as wire:
        wire.send_frame(pack(">hhih", 3, 1, 1, 30_000) + b"short")
        assert wire.is_closed()


def test_unknown_tagged_fields_are_skipped(broker: Broker) -> None:
    with Wire(broker.bootstrap) as wire:
        wire.send_body(60, 0, b"\x00" + b"\x02" + b"\x05\x03abc" + b"\x7f\x00")
        assert wire.receive(60, 0).error_code is ErrorCode.none


def damaged(position: int) -> bytes:
    batch = bytearray(batch_of(b"value"))
    batch[position] ^= 0xFF
    return bytes(batch)


def counting(records: int) -> bytes:
    """A sound batch but for the number of records it claims."""
    batch = memoryview(bytearray(batch_of(b"value")))
    pack_into(">i", batch, 23, records - 1)
    pack_into(">i", batch, 57, records)
    seal(batch)
    return bytes(batch)


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (damaged(HEADER_SIZE + 3), ErrorCode.corrupt_message),
        (damaged(18), ErrorCode.corrupt_message),
        (damaged(16), ErrorCode.invalid_record),
        (batch_of(b"value")[:-1], ErrorCode.invalid_record),
        (batch_of(b"value")[:20], ErrorCode.invalid_record),
        (b"", ErrorCode.invalid_record),
        (batch_of(b"a") + batch_of(b"b"), ErrorCode.invalid_record),
        (batch_of(b"a", control=True), ErrorCode.invalid_record),
        (batch_of(b"a", timestamp=2**60), ErrorCode.invalid_timestamp),
        (batch_of(b"a", producer_id=5, producer_epoch=0, base_sequence=-1), ErrorCode.invalid_record),
        (counting(2**31 - 1), ErrorCode.invalid_record),
    ],
    ids=[
        "value",
        "crc",
        "magic",
        "cut",
        "cut in its head",
        "empty",
        "two batches",
        "control",
        "far future",
        "producer without a sequence",
        "count",
    ],
)
def test_a_damaged_batch_is_refused_with_its_code(broker: Broker, batch: bytes, code: ErrorCode) -> None:
    answer = produced(broker, batch)
    assert answer.error_code is code
    assert answer.base_offset == -1


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_acks_that_do_not_exist_are_refused(broker: Broker, acks: int) -> None:
    assert produced(broker, batch_of(b"a"), acks=acks).error_code is ErrorCode.invalid_required_acks


def test_a_bad_batch_without_acks_closes_the_connection(broker: Broker) -> None:
    with Wire(broker.bootstrap) as wire:
        wire.send(0, 9, produce_request("orders", damaged(18), acks=0))
        assert wire.is_closed()


def test_an_old_produce_version_cannot_hold_zstd(broker: Broker) -> None:
    answer = produced(broker, batch_of(b"a", codec=ZSTD), version=6)
    assert answer.error_code is ErrorCode.unsupported_compression_type


@pytest.mark.slow
@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD], ids=["gzip", "snappy", "lz4", "zstd"])
def test_a_compressed_bomb_is_refused_and_takes_little_memory(broker: Broker, codec: int) -> None:
    topic = "packed" if codec != LZ4 else "packed-zstd"
    if codec == LZ4:
        broker.create_topic(topic, 1, **_packed("zstd"))
    bomb = compress(codec, bytes(512 * MEBIBYTE))
    batch = replace_records(memoryview(batch_of(b"a")), bomb, codec)
    before = psutil.Process().memory_info().rss
    answer = produced(broker, bytes(batch), topic=topic)
    assert answer.error_code is ErrorCode.invalid_record
    assert psutil.Process().memory_info().rss - before < 64 * MEBIBYTE + 2 * len(bomb)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0b", "x" * 250, "é", "a b", "../../etc"])
def test_a_topic_name_that_could_be_a_path_is_refused(broker: Broker, name: str) -> None:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=(), configs=())  # type: ignore[arg-type]
    with Wire(broker.bootstrap) as wire:
        answer = wire.ask(19, 7, request(19, 7, topics=(topic,)))
        assert answer.topics[0].error_code is ErrorCode.invalid_topic_exception
        asked = wire.ask(3, 4, request(3, 4, topics=(_metadata_topic(name),), allow_auto_topic_creation=True))
        assert asked.topics[0].error_code is ErrorCode.invalid_topic_exception


def _metadata_topic(name: str) -> Any:
    from kio.schema.metadata.v4.request import MetadataRequestTopic

    return MetadataRequestTopic(name=name)  # type: ignore[arg-type]


@pytest.mark.parametrize(("key", "version"), [(3, 99), (0, 99), (1, 2), (999, 0), (-1, 0), (0, 0), (19, 1)])
def test_an_unsupported_version_is_told_so_and_the_connection_goes_on(broker: Broker, key: int, version: int) -> None:
    with Wire(broker.bootstrap) as wire:
        wire.send_body(key, version, b"")
        assert wire.receive_frame()[4:] == pack(">h", ErrorCode.unsupported_version.value)
        assert wire.ask(18, 0, request(18, 0)).error_code is ErrorCode.none


@pytest.mark.parametrize(("key", "version"), [(52, 1), (53, 1)])  # of KRaft: never here
def test_an_api_that_is_not_there_answers_in_its_own_layout(broker: Broker, key: int, version: int) -> None:
    with Wire(broker.bootstrap) as wire:
        wire.send_body(key, version, b"")
        assert wire.receive(key, version).error_code is ErrorCode.unsupported_version
        assert wire.ask(18, 0, request(18, 0)).error_code is ErrorCode.none


def test_every_api_that_is_not_there_can_be_refused_and_no_refusal_looks_like_success(broker: Broker) -> None:
    absent = [(key, version) for key in set(range(120)) - set(PEERS_ONLY) for version in range(20)]
    absent = [(key, version) for key, version in absent if not is_supported(key, version)]
    with Wire(broker.bootstrap) as wire:
        for key, version in absent:
            wire.send_body(key, version, b"")
            assert pack(">h", ErrorCode.unsupported_version.value) in wire.receive_frame()[4:], (key, version)


def is_supported(key: int, version: int) -> bool:
    versions = SUPPORTED.get(ApiKey(key)) if key in set(ApiKey) else None
    return versions is not None and versions.min <= version <= versions.peers_max


@pytest.mark.parametrize(("key", "version"), [(89, 0), (89, 1)])
def test_a_layout_without_a_code_is_not_used_to_refuse(broker: Broker, key: int, version: int) -> None:
    with Wire(broker.bootstrap) as wire:
        wire.send_body(key, version, b"")
        assert wire.receive_frame()[4:] == pack(">h", ErrorCode.unsupported_version.value)


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(broker: Broker) -> None:
    with Wire(broker.bootstrap) as wire:
        wire.send_body(18, 99, b"")
        answer = wire.receive(18, 0)
        assert answer.error_code is ErrorCode.unsupported_version
        assert [key.api_key for key in answer.api_keys] == [18]
        assert wire.ask(18, 0, request(18, 0)).error_code is ErrorCode.none


def test_requests_of_a_closed_connection_leave_nothing(broker: Broker) -> None:
    with Wire(broker.bootstrap) as wire:
        wire.send(0, 9, produce_request("orders", batch_of(b"a")))
        wire.send_bytes(pack(">i", -1))
        while not wire.is_closed():
            pass
    assert_serves(broker)


def test_clients_cannot_write_to_internal_topics(broker: Broker) -> None:
    with Wire(broker.bootstrap) as wire:
        found = wire.ask(10, 2, request(10, 2, key="some-group", key_type=0))
        assert found.error_code is ErrorCode.none
    assert produced(broker, batch_of(b"a"), topic="__consumer_offsets").error_code is ErrorCode.invalid_topic_exception
