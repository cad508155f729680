"""Apache Kafka itself answers every request for quotas as ours does."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from headrace.client.core.quotas import (
    ANY,
    DEFAULT,
    EXACT,
    Entity,
    Match,
    alter_quotas_request,
    describe_quotas_request,
    read_altered_quotas,
    read_quotas,
)
from headrace.client.core.topics import create_topic_request
from headrace.protocol.api import ApiKey
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import ErrorCode
from headrace.testing import Broker
from tests.support.apache_kafka import ApacheKafka
from tests.support.maven import Unavailable
from tests.support.wire import Wire

pytestmark = [pytest.mark.long, pytest.mark.kafka]

Change = tuple[Entity, Mapping[str, float | None]]
PAIR: Entity = {"user": "alice", "client-id": None}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Wire, Wire]]:
    try:
        with (
            ApacheKafka(tmp_path_factory.mktemp("kafka")) as theirs,
            Broker() as ours,
            Wire(ours.bootstrap) as first,
            Wire(theirs.bootstrap) as second,
        ):
            yield first, second
    except Unavailable as reason:
        pytest.skip(str(reason))


def ask(wire: Wire, api_key: ApiKey, version: int, values: Mapping[str, Any]) -> Any:
    wire.send_body(api_key, version, bytes(encode_request(api_key, version, values)))
    return wire.receive(api_key, version)


CHANGES: list[Change] = [
    ({"user": "alice"}, {"producer_byte_rate": 1e6, "request_percentage": 12.5}),
    ({"user": None}, {"consumer_byte_rate": 5.0}),
    (PAIR, {"controller_mutation_rate": 0.5}),
    ({"client-id": "a,b=c"}, {"producer_byte_rate": 7.0}),
    ({"ip": "10.0.0.1"}, {"connection_creation_rate": 3.0}),
    ({"ip": None}, {"connection_creation_rate": 30.0}),
    ({"user": "alice"}, {"request_percentage": None, "no_such_quota": None}),
    ({"user": "alice"}, {"no_such_quota": 1.0}),
    ({"user": "alice"}, {"connection_creation_rate": 1.0}),
    ({"ip": "10.0.0.1"}, {"producer_byte_rate": 1.0}),
    ({"user": "bob"}, {"producer_byte_rate": 0.0}),
    ({"user": "bob"}, {"producer_byte_rate": -1.0}),
    ({"user": "bob"}, {"producer_byte_rate": 1.5}),
    ({"user": "bob"}, {"producer_byte_rate": 1e19}),
    ({"ip": "10.0.0.2"}, {"connection_creation_rate": 3e9}),
    ({"user": ""}, {"producer_byte_rate": 1.0}),
    ({"planet": "mars"}, {"producer_byte_rate": 1.0}),
    ({"user": "bob", "ip": "10.0.0.1"}, {"producer_byte_rate": 1.0}),
    ({}, {"producer_byte_rate": 1.0}),
]
FILTERS: list[tuple[list[Match], bool]] = [
    ([], False),
    ([], True),
    ([Match("user", EXACT, "alice")], False),
    ([Match("user", EXACT, "alice")], True),
    ([Match("user", DEFAULT)], False),
    ([Match("user", ANY), Match("client-id", ANY)], True),
    ([Match("client-id", ANY)], False),
    ([Match("ip", ANY)], True),
    ([Match("ip", DEFAULT)], True),
    ([Match("user", EXACT, None)], False),
    ([Match("user", DEFAULT, "alice")], False),
    ([Match("user", ANY, "alice")], False),
    ([Match("user", 7)], False),
    ([Match("", ANY)], False),
    ([Match("planet", ANY)], False),
    ([Match("user", ANY), Match("user", ANY)], False),
    ([Match("user", ANY), Match("ip", ANY)], False),
]


@pytest.mark.parametrize("version", [0, 1])
def test_every_request_for_quotas_gets_the_same_answer(both: tuple[Wire, Wire], version: int) -> None:
    for change in CHANGES:
        request = alter_quotas_request([change])
        ours, theirs = (read_altered_quotas(ask(wire, ApiKey.ALTER_CLIENT_QUOTAS, version, request)) for wire in both)
        assert ours == theirs, change
    for matches, strict in FILTERS:
        values = describe_quotas_request(matches, strict=strict)
        answers = [ask(wire, ApiKey.DESCRIBE_CLIENT_QUOTAS, version, values) for wire in both]
        assert len({(answer.error_code, answer.error_message) for answer in answers}) == 1, matches
        assert len({answer.entries is None for answer in answers}) == 1, matches
        assert len({frozenset(_plain(read_quotas(answer))) for answer in answers}) == 1, matches


def _plain(described: list[Any]) -> set[tuple[frozenset[Any], frozenset[Any]]]:
    return {(frozenset(each.entity.items()), frozenset(each.quotas.items())) for each in described}


def test_partitions_made_too_fast_are_refused_alike(both: tuple[Wire, Wire]) -> None:
    change: Change = ({"client-id": "test"}, {"controller_mutation_rate": 0.1})
    outcomes = []
    for wire in both:
        ask(wire, ApiKey.ALTER_CLIENT_QUOTAS, 1, alter_quotas_request([change]))
        codes: list[ErrorCode] = []
        for number in range(4):
            values = create_topic_request(f"q{number}", partitions=2, replication_factor=1, timeout_ms=10_000)
            wire.send_body(19, 7, bytes(encode_request(19, 7, values)))
            answer = wire.receive(19, 7)
            codes.append(answer.topics[0].error_code)
            if codes[-1] is not ErrorCode.none:
                assert answer.throttle_time
                break
        outcomes.append(codes)
    ours, theirs = outcomes
    assert ours == theirs
