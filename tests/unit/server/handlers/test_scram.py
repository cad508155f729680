from collections.abc import Iterator
from typing import Any, Final

import pytest

from headrace.cluster.entries import EntryKind
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.protocol.scram import ScramMechanism, salt_password
from headrace.security.sasl.credentials import ScramCredential
from headrace.server.context import RequestInfo
from tests.support.handlers import Harness

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
SALT: Final = b"salt of alice"


@pytest.fixture
def broker() -> Iterator[Harness]:
    harness = Harness()
    yield harness
    harness.close()


def upsertion(name: str = "alice", mechanism: int = SHA_256, iterations: int = 4096, **other: bytes) -> dict[str, Any]:
    salted = salt_password(SHA_256, "s3cret", SALT, 4096)
    given = {"name": name, "mechanism": mechanism, "iterations": iterations, "salt": SALT, "salted_password": salted}
    return {**given, **other}


def deletion(name: str = "alice", mechanism: int = SHA_256) -> dict[str, Any]:
    return {"name": name, "mechanism": mechanism}


def alter(
    broker: Harness, *upsertions: dict[str, Any], deletions: tuple[dict[str, Any], ...] = ()
) -> dict[str, ErrorCode]:
    answer = broker.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=deletions, upsertions=upsertions)
    return {result.user: result.error_code for result in answer.results}


def describe(broker: Harness, *users: str) -> dict[str, Any]:
    names = [{"name": user} for user in users] or None
    answer = broker.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=names)
    assert answer.error_code is ErrorCode.none
    return {
        result.user: [(info.mechanism, info.iterations) for info in result.credential_infos]
        if result.error_code is ErrorCode.none
        else result.error_code
        for result in answer.results
    }


def test_a_user_has_a_credential_for_each_mechanism_and_is_described_without_keys(broker: Harness) -> None:
    assert alter(broker, upsertion(iterations=8192), upsertion("bob", SHA_512)) == {
        "alice": ErrorCode.none,
        "bob": ErrorCode.none,
    }
    assert alter(broker, upsertion(mechanism=SHA_512)) == {"alice": ErrorCode.none}
    assert describe(broker) == {"alice": [(1, 8192), (2, 4096)], "bob": [(2, 4096)]}


def test_what_is_kept_is_what_a_server_needs_and_no_password(broker: Harness) -> None:
    alter(broker, upsertion())
    kept = broker.image.entries[EntryKind.USER]["alice"]
    assert kept == {"SCRAM-SHA-256": ScramCredential.of_password(SHA_256, "s3cret", 4096, SALT).to_text()}


def test_both_credentials_of_a_user_can_be_changed_in_one_request(broker: Harness) -> None:
    assert alter(broker, upsertion(), upsertion(mechanism=SHA_512)) == {"alice": ErrorCode.none}
    assert alter(broker, upsertion(iterations=5000), deletions=(deletion(mechanism=SHA_512),)) == {
        "alice": ErrorCode.none
    }
    assert describe(broker) == {"alice": [(1, 5000)]}


def test_a_user_without_credentials_is_gone(broker: Harness) -> None:
    alter(broker, upsertion())
    assert alter(broker, deletions=(deletion(),)) == {"alice": ErrorCode.none}
    assert describe(broker) == {}
    assert alter(broker, deletions=(deletion(),)) == {"alice": ErrorCode.resource_not_found}


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (upsertion(""), ErrorCode.unacceptable_credential),
        (upsertion("x" * 1001), ErrorCode.unacceptable_credential),
        (upsertion("a\0b"), ErrorCode.unacceptable_credential),
        (upsertion(mechanism=0), ErrorCode.unsupported_sasl_mechanism),
        (upsertion(mechanism=3), ErrorCode.unsupported_sasl_mechanism),
        (upsertion(iterations=4095), ErrorCode.unacceptable_credential),
        (upsertion(iterations=16_385), ErrorCode.unacceptable_credential),
        (upsertion(salt=b""), ErrorCode.unacceptable_credential),
        (upsertion(salted_password=b""), ErrorCode.unacceptable_credential),
        (upsertion(salt=bytes(1025)), ErrorCode.unacceptable_credential),
    ],
)
def test_a_credential_that_cannot_be_is_refused_and_others_are_not(
    broker: Harness, wrong: dict[str, Any], code: ErrorCode
) -> None:
    assert alter(broker, wrong, upsertion("bob")) == {wrong["name"]: code, "bob": ErrorCode.none}
    assert describe(broker) == {"bob": [(1, 4096)]}


def test_what_is_asked_for_twice_is_not_done_once(broker: Harness) -> None:
    assert alter(broker, upsertion(), upsertion(), upsertion("bob")) == {
        "alice": ErrorCode.duplicate_resource,
        "bob": ErrorCode.none,
    }
    assert alter(broker, upsertion("bob"), deletions=(deletion("bob"),)) == {"bob": ErrorCode.duplicate_resource}
    assert describe(broker) == {"bob": [(1, 4096)]}


def test_a_user_of_whom_one_credential_cannot_be_changed_keeps_all(broker: Harness) -> None:
    alter(broker, upsertion())
    assert alter(broker, upsertion(iterations=5000), deletions=(deletion(mechanism=SHA_512),)) == {
        "alice": ErrorCode.resource_not_found
    }
    assert describe(broker) == {"alice": [(1, 4096)]}


def test_users_are_described_by_name(broker: Harness) -> None:
    alter(broker, upsertion(), upsertion("bob"))
    assert describe(broker, "alice", "mallory") == {"alice": [(1, 4096)], "mallory": ErrorCode.resource_not_found}
    assert describe(broker, "alice", "alice", "bob") == {"alice": ErrorCode.duplicate_resource, "bob": [(1, 4096)]}


def test_what_a_broker_asks_for_itself_makes_the_first_users_only(broker: Harness) -> None:
    info = RequestInfo(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, None, "Broker:1", "", peer_broker=1)
    broker.ask_as(info, deletions=(), upsertions=[upsertion("admin"), upsertion("other")])
    assert describe(broker) == {"admin": [(1, 4096)], "other": [(1, 4096)]}
    broker.ask_as(info, deletions=(), upsertions=[upsertion("admin", iterations=5000), upsertion("late")])
    assert describe(broker) == {"admin": [(1, 4096)], "other": [(1, 4096)]}
