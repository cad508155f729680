"""Fetches that wait while something happens to what they wait for."""

import datetime
from collections.abc import Iterator
from typing import Any

import pytest
from kio.index import load_payload_module
from kio.static.constants import EntityType

from headrace.protocol.errors import ErrorCode
from headrace.testing import Broker
from tests.support.wire import Wire, batch_of, produce_request
from tests.unit.server.test_connection import fetch_request


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def delete_records_request(topic: str, offset: int) -> Any:
    module: Any = load_payload_module(21, 1, EntityType.request)
    partition = module.DeleteRecordsPartition(partition_index=0, offset=offset)
    return module.DeleteRecordsRequest(
        topics=(module.DeleteRecordsTopic(name=topic, partitions=(partition,)),), timeout=datetime.timedelta(seconds=60)
    )


@pytest.mark.parametrize("flush_messages", [1, 1_000_000])
def test_a_waiting_reader_whose_records_are_deleted_is_told_and_producers_are_answered(
    broker: Broker, flush_messages: int
) -> None:
    topic = broker.create_topic(f"deleted-{flush_messages}", 1, **{"flush.messages": flush_messages})
    other = broker.create_topic(f"other-{flush_messages}")
    with Wire(broker.bootstrap) as writer, Wire(broker.bootstrap) as reader:
        writer.ask(0, 9, produce_request(topic, batch_of(b"a")))
        reader.send(1, 11, fetch_request(topic, wait_ms=60_000, min_bytes=100_000))
        writer.ask(21, 1, delete_records_request(topic, 1))
        for name in (topic, other):
            writer.send(0, 9, produce_request(name, batch_of(b"b")))
        for _ in range(2):
            answer = writer.receive(0, 9).responses[0].partition_responses[0]
            assert answer.error_code is ErrorCode.none
        told = reader.receive(1, 11).responses[0].partitions[0]
        assert told.error_code is ErrorCode.offset_out_of_range
