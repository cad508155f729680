"""What a client over its quota is told, and that nothing more of it is served until it has waited.

Quotas are so small that who is over them would wait for minutes: what is seen at all is seen at once, or never.
"""

import select
from collections.abc import Iterator
from dataclasses import replace
from struct import pack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.cluster.entries import EntryKind
from headrace.cluster.image import ClusterImage
from headrace.protocol.api import SUPPORTED, ApiKey
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import ErrorCode
from headrace.security.quotas.client_quotas import ClientQuotas
from headrace.server.connection import Connection
from headrace.server.throttling import Throttling
from headrace.testing import Broker
from tests.support.quotas import set_quotas
from tests.support.wire import Wire, batch_of, produce_request, request
from tests.unit.server.test_connection import fetch_request

pytestmark = pytest.mark.slow

LARGE = bytes(100_000)
SMALL = 100.0
"""Bytes a second."""
ME = {"client-id": "test"}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(topics=["t"]) as running:
        yield running


def is_answered(broker: Broker, wire: Wire) -> bool:
    """Whether there is an answer after others have been served, who came later."""
    with Wire(broker.bootstrap) as other:
        for _ in range(3):
            other.send_body(18, 0, b"", client_id=b"other")
            other.receive(18, 0)
    return bool(select.select([wire.socket], [], [], 0)[0])


def throttle_ms(answer: Any) -> float:
    return float(answer.throttle_time.total_seconds() * 1000)


def produce(wire: Wire, version: int = 9, acks: int = -1, value: bytes = LARGE) -> Any:
    wire.send(0, version, produce_request("t", batch_of(value), version=version, acks=acks))
    return wire.receive(0, version) if acks else None


@pytest.mark.parametrize("version", [3, 7, 8, 9, 12])
def test_who_produces_too_much_is_told_for_how_long_and_waits(broker: Broker, version: int) -> None:
    set_quotas(broker, ME, producer_byte_rate=SMALL)
    with Wire(broker.bootstrap) as wire:
        answer = produce(wire, version)
        assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none
        assert 500_000 < throttle_ms(answer) <= 600_000
        wire.send(18, 0, request(18, 0))
        assert not is_answered(broker, wire)
        set_quotas(broker, ME, producer_byte_rate=None)
        assert wire.receive(18, 0).error_code is ErrorCode.none, "a quota that is gone holds nobody"


def test_without_muting_the_limited_client_is_served_on(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "mute", lambda *_: None)
    set_quotas(broker, ME, producer_byte_rate=SMALL)
    with Wire(broker.bootstrap) as wire:
        for _ in range(5):
            assert throttle_ms(produce(wire))


def test_who_wants_no_acknowledgement_waits_as_well(broker: Broker) -> None:
    set_quotas(broker, ME, producer_byte_rate=SMALL)
    with Wire(broker.bootstrap) as wire:
        produce(wire, acks=0)
        wire.send(18, 0, request(18, 0))
        assert not is_answered(broker, wire)


def test_requests_sent_together_are_served_one_at_a_time(broker: Broker) -> None:
    set_quotas(broker, ME, producer_byte_rate=SMALL)
    with Wire(broker.bootstrap) as wire:
        for _ in range(3):
            wire.send(0, 9, produce_request("t", batch_of(LARGE)))
        assert throttle_ms(wire.receive(0, 9))
        assert not is_answered(broker, wire)


def test_others_are_not_held_back(broker: Broker) -> None:
    set_quotas(broker, ME, producer_byte_rate=SMALL)
    with Wire(broker.bootstrap) as greedy, Wire(broker.bootstrap) as good:
        produce(greedy)
        good.send_body(18, 0, b"", client_id=b"good")
        assert good.receive(18, 0).error_code is ErrorCode.none


def test_who_fetches_too_much_gets_it_and_then_nothing_until_it_has_waited(broker: Broker) -> None:
    with Wire(broker.bootstrap) as wire:
        produce(wire)
    set_quotas(broker, ME, consumer_byte_rate=SMALL)
    with Wire(broker.bootstrap) as wire:
        first = wire.ask(1, 11, fetch_request("t"))
        assert len(first.responses[0].partitions[0].records) > len(LARGE)
        assert throttle_ms(first) > 500_000
        wire.send(1, 11, fetch_request("t"))
        assert not is_answered(broker, wire)
        with Wire(broker.bootstrap) as another:
            empty = another.ask(1, 11, fetch_request("t"))
        assert (empty.error_code, empty.responses, empty.session_id) == (ErrorCode.none, (), 0)
        assert throttle_ms(empty) > 500_000


def test_a_session_goes_on_after_an_answer_without_records(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "mute", lambda *_: None)
    with Wire(broker.bootstrap) as wire:
        produce(wire)
        first = fetch_request("t")
        opened = wire.ask(1, 11, replace(first, session_epoch=0))
        assert opened.session_id
        set_quotas(broker, ME, consumer_byte_rate=SMALL)
        for epoch in (1, 2, 3):
            topics = first.topics if epoch == 1 else ()
            again = replace(first, session_id=opened.session_id, session_epoch=epoch, topics=topics)
            answer = wire.ask(1, 11, again)
            assert (answer.error_code, answer.session_id) == (ErrorCode.none, opened.session_id)
            assert throttle_ms(answer)
            assert bool(answer.responses) is (epoch == 1)


def test_a_fetch_that_waits_learns_that_others_have_used_up_its_bytes(broker: Broker) -> None:
    set_quotas(broker, ME, consumer_byte_rate=SMALL)
    with Wire(broker.bootstrap) as waiting, Wire(broker.bootstrap) as other, Wire(broker.bootstrap) as writer:
        writer.send(0, 9, produce_request("t", batch_of(LARGE)), client_id=b"writer")
        writer.receive(0, 9)
        waiting.send(1, 11, fetch_request("t", offset=1, wait_ms=60_000))
        assert throttle_ms(other.ask(1, 11, fetch_request("t")))
        writer.send(0, 9, produce_request("t", batch_of(LARGE)), client_id=b"writer")
        writer.receive(0, 9)
        answer = waiting.receive(1, 11)
        assert answer.responses == ()
        assert throttle_ms(answer)


@pytest.mark.parametrize(("api_key", "version"), [(3, 9), (18, 2), (10, 3)])
def test_who_takes_too_much_of_the_brokers_time_is_told_in_any_answer(
    broker: Broker, api_key: int, version: int
) -> None:
    set_quotas(broker, ME, request_percentage=0.0001)
    with Wire(broker.bootstrap) as wire:
        values: dict[str, Any] = {}
        if api_key == 10:
            values = {"key": "g", "key_type": 0}
        if api_key == 3:
            values = {
                "topics": None,
                "allow_auto_topic_creation": False,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": False,
            }
        answers = [wire.ask(api_key, version, request(api_key, version, **values)) for _ in range(2)]
    assert 0 < max(map(throttle_ms, answers)) <= 1000, "a second is the longest pause for time"


def test_produce_costs_time_as_well(broker: Broker) -> None:
    set_quotas(broker, ME, request_percentage=0.0001)
    with Wire(broker.bootstrap) as wire:
        assert 0 < max(throttle_ms(produce(wire, value=b"v")) for _ in range(2)) <= 1000


def test_who_makes_too_many_partitions_waits_on_its_connection(broker: Broker) -> None:
    set_quotas(broker, ME, controller_mutation_rate=0.01)
    topic = {"name": "many", "num_partitions": 50, "replication_factor": 1}
    with Wire(broker.bootstrap) as wire:
        values = {"topics": [{**topic, "assignments": [], "configs": []}], "timeout": 1000, "validate_only": False}
        wire.send_body(19, 5, bytes(encode_request(19, 5, values)))
        answer = wire.receive(19, 5)
        assert answer.topics[0].error_code is ErrorCode.none
        assert throttle_ms(answer)
        wire.send(18, 0, request(18, 0))
        assert not is_answered(broker, wire)


def test_a_request_that_is_refused_pays_no_debt(broker: Broker) -> None:
    set_quotas(broker, ME, controller_mutation_rate=0.01)

    def create(name: str, partitions: int, version: int) -> Any:
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": []}
        values = {"topics": [topic], "timeout": 1000, "validate_only": False}
        with Wire(broker.bootstrap) as wire:
            wire.send_body(19, version, bytes(encode_request(19, version, values)))
            return wire.receive(19, version).topics[0].error_code

    assert create("many", 5, 5) is ErrorCode.none
    assert create("too-many", 2**31 - 1, 5) is not ErrorCode.none
    assert create("another", 1, 6) is ErrorCode.throttling_quota_exceeded


def test_a_muted_connection_does_not_keep_a_broker_from_stopping(broker: Broker) -> None:
    set_quotas(broker, ME, producer_byte_rate=SMALL)
    with Wire(broker.bootstrap) as wire:
        produce(wire)
        broker.stop()
        assert wire.is_closed()


def test_quotas_survive_a_restart(broker: Broker) -> None:
    set_quotas(broker, ME, producer_byte_rate=SMALL)
    broker.restart()
    with Wire(broker.bootstrap) as wire:
        assert throttle_ms(produce(wire))


def test_the_quota_of_a_user_holds_whatever_the_client_calls_itself(broker: Broker) -> None:
    set_quotas(broker, {"user": "ANONYMOUS"}, producer_byte_rate=SMALL)
    with Wire(broker.bootstrap) as wire:
        wire.send(0, 9, produce_request("t", batch_of(LARGE)), client_id=b"\xff\xfe")
        assert throttle_ms(wire.receive(0, 9))


def test_both_apis_are_served_to_clients() -> None:
    assert SUPPORTED[ApiKey.DESCRIBE_CLIENT_QUOTAS][:2] == (0, 1)
    assert SUPPORTED[ApiKey.ALTER_CLIENT_QUOTAS][:2] == (0, 1)


def test_each_client_of_a_shared_connection_is_seen_in_the_end(broker: Broker) -> None:
    set_quotas(broker, {"client-id": "greedy"}, producer_byte_rate=SMALL)
    with Wire(broker.bootstrap) as wire:
        for number in range(64):
            client = b"greedy" if number else b"modest"
            wire.send(0, 9, produce_request("t", batch_of(b"v" * 1000)), client_id=client)
            if throttle_ms(wire.receive(0, 9)):
                return
    raise AssertionError("it was never limited")


def test_a_client_without_a_name_is_limited_as_its_user(broker: Broker) -> None:
    set_quotas(broker, {"user": None, "client-id": None}, producer_byte_rate=SMALL)
    with Wire(broker.bootstrap) as wire:
        head = pack(">hhih", 0, 3, 1, -1)
        body = encode_request(0, 3, _produce_values(LARGE))
        wire.send_frame(head + body)
        assert throttle_ms(wire.receive(0, 3))


def _produce_values(value: bytes) -> dict[str, Any]:
    data = {"name": "t", "partition_data": [{"index": 0, "records": batch_of(value)}]}
    return {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": [data]}


def test_links_of_brokers_are_never_limited() -> None:
    image = ClusterImage(cluster_id="c", controller_id=1)
    image.put_entry(EntryKind.QUOTA, "user", {"producer_byte_rate": "1.0"})
    quotas = ClientQuotas(lambda: 0.0)
    quotas.follow(image)
    throttling = Throttling(quotas, lambda: 0.0, lambda: 0)
    client = SimpleNamespace(
        principal="User:a", peer_broker=None, is_known=True, limits=None, limited_client=None, limited_size=-2
    )
    throttling.resolve(cast(Connection, client), memoryview(b"x"), 1)
    assert client.limits is not None
    client.peer_broker = 2
    throttling.resolve(cast(Connection, client), memoryview(b"x"), 1)
    assert client.limits is None
