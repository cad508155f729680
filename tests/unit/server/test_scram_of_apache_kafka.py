"""Apache Kafka itself answers requests about SCRAM users and delegation tokens as ours does."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from kio.index import load_request_schema

from headrace.protocol.api import ApiKey
from headrace.testing import Broker
from tests.support.apache_kafka import ApacheKafka
from tests.support.handlers import build
from tests.support.maven import Unavailable
from tests.support.wire import Wire

pytestmark = [pytest.mark.long, pytest.mark.kafka]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Wire, Wire]]:
    key = {"delegation.token.secret.key": "a key"}
    with ExitStack() as stack:
        try:
            theirs = stack.enter_context(ApacheKafka(tmp_path_factory.mktemp("kafka"), key))
        except Unavailable as reason:
            pytest.skip(str(reason))
        ours = stack.enter_context(Broker(key))
        wires = [stack.enter_context(Wire(each.bootstrap)) for each in (ours, theirs)]
        yield wires[0], wires[1]


def asked(wire: Wire, api_key: ApiKey, version: int, **values: Any) -> Any:
    return wire.ask(api_key, version, build(load_request_schema(api_key, version), values))


def upsertion(name: str, mechanism: int = 1, iterations: int = 4096, salt: bytes = b"salt") -> dict[str, Any]:
    given = {"mechanism": mechanism, "iterations": iterations, "salt": salt, "salted_password": b"salted password"}
    return {"name": name, **given}


def deletion(name: str, mechanism: int = 1) -> dict[str, Any]:
    return {"name": name, "mechanism": mechanism}


ALTERATIONS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "new": ([], [upsertion("a"), upsertion("b", 2, 16_384)]),
    "changed": ([], [upsertion("a", 1, 8192)]),
    "the same twice": ([], [upsertion("c"), upsertion("c"), upsertion("d")]),
    "deleted and set": ([deletion("a")], [upsertion("a")]),
    "nobody": ([deletion("nobody")], []),
    "another mechanism": ([deletion("a", 2)], []),
    "no name": ([deletion("")], [upsertion("")]),
    "no mechanism": ([deletion("a", 0)], [upsertion("b", 3)]),
    "too few": ([], [upsertion("e", 1, 4095)]),
    "too many": ([], [upsertion("e", 1, 16_385)]),
    "deleted": ([deletion("a")], []),
    "deleted again": ([deletion("a")], []),
}


def test_apache_kafka_answers_changes_of_users_the_same(both: tuple[Wire, Wire]) -> None:
    for name, (deletions, upsertions) in ALTERATIONS.items():
        answers = []
        for wire in both:
            answer = asked(wire, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=deletions, upsertions=upsertions)
            answers.append(sorted((result.user, result.error_code.name) for result in answer.results))
        assert answers[0] == answers[1], name
        for users in (None, ["a"], ["b", "b"], ["nobody", "d"]):
            described = [_described(wire, users) for wire in both]
            assert described[0] == described[1], (name, users)


def _described(wire: Wire, users: list[str] | None) -> list[Any]:
    names = None if users is None else [{"name": user} for user in users]
    answer = asked(wire, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=names)
    return sorted(
        (
            result.user,
            result.error_code.name,
            sorted((info.mechanism, info.iterations) for info in result.credential_infos),
        )
        for result in answer.results
    )


@pytest.mark.parametrize("version", [1, 2])
def test_apache_kafka_gives_no_tokens_to_who_is_nobody_either(both: tuple[Wire, Wire], version: int) -> None:
    hour = timedelta(hours=1)
    requests: list[tuple[ApiKey, dict[str, Any]]] = [
        (ApiKey.RENEW_DELEGATION_TOKEN, {"hmac": b"x", "renew_period": hour}),
        (ApiKey.EXPIRE_DELEGATION_TOKEN, {"hmac": b"x", "expiry_time_period": hour}),
        (ApiKey.DESCRIBE_DELEGATION_TOKEN, {"owners": None}),
    ]
    for key, values in requests:
        codes = []
        for wire in both:
            wire.send(key, version, build(load_request_schema(key, version), values))
            frame = wire.receive_frame()
            start = 4 if version == 1 else 5
            codes.append(int.from_bytes(frame[start : start + 2], "big"))
        assert codes[0] == codes[1], key.name
