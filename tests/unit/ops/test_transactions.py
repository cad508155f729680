"""What those who run a cluster ask about transactions, while its brokers are not ready to tell."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer

from headrace.client.columnar.channel import Channel
from headrace.coordinator.transactions import markers
from headrace.ops.transactions import TransactionOperations
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.testing import Broker

pytestmark = pytest.mark.slow

PATIENCE = 60.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"transaction.state.log.num.partitions": 3}) as broker:
        yield broker


def open_transaction(broker: Broker, topic: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    producer.produce(topic, "x")
    producer.flush(PATIENCE)
    return producer


def refuse_once(monkeypatch: pytest.MonkeyPatch, api: ApiKey, *path: str, code: ErrorCode) -> list[ErrorCode]:
    """Put a code into the next answer to an API, at the first entry of each array of `path`; those put, as a list."""
    put: list[ErrorCode] = []
    asked = Channel.ask

    def ask(self: Channel, api_key: int, *args: Any, **settings: Any) -> Any:
        answer = asked(self, api_key, *args, **settings)
        if api_key != api or put:
            return answer
        put.append(code)
        return _with_code(answer, path, code)

    monkeypatch.setattr(Channel, "ask", ask)
    return put


def _with_code(entity: Any, path: tuple[str, ...], code: ErrorCode) -> Any:
    if not path:
        return replace(entity, error_code=code)
    first, *rest = getattr(entity, path[0])
    return replace(entity, **{path[0]: (_with_code(first, path[1:], code), *rest)})


def test_a_listing_waits_for_a_coordinator_that_still_reads_its_log(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = open_transaction(broker, broker.create_topic("listed"), "listed")
    put = refuse_once(monkeypatch, ApiKey.LIST_TRANSACTIONS, code=ErrorCode.coordinator_load_in_progress)
    with TransactionOperations(broker.bootstrap) as operations:
        (found,) = operations.list_transactions(pattern="listed")
    assert put
    assert (found.id, found.state) == ("listed", "Ongoing")
    holder.abort_transaction(PATIENCE)


def test_producers_are_asked_for_again_where_the_leader_has_moved(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.create_topic("produced")
    holder = open_transaction(broker, topic, "produced")
    moved = ErrorCode.not_leader_or_follower
    put = refuse_once(monkeypatch, ApiKey.DESCRIBE_PRODUCERS, "topics", "partitions", code=moved)
    with TransactionOperations(broker.bootstrap) as operations:
        (found,) = operations.producers(topic, 0)
    assert put
    assert found.start_offset == 0
    holder.abort_transaction(PATIENCE)


def test_a_hanging_transaction_is_aborted_where_the_leader_has_moved(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.create_topic("hanging")
    holder = open_transaction(broker, topic, "hanging")
    with monkeypatch.context() as no_marker_comes:
        no_marker_comes.setattr(markers, "is_gone", lambda *_: True)
        holder.abort_transaction(PATIENCE)
    moved = ErrorCode.not_leader_or_follower
    put = refuse_once(monkeypatch, ApiKey.WRITE_TXN_MARKERS, "markers", "topics", "partitions", code=moved)
    with TransactionOperations(broker.bootstrap) as operations:
        operations.abort_hanging(topic, 0, 0)
        (found,) = operations.producers(topic, 0)
    assert put
    assert found.start_offset is None
