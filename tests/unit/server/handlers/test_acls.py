"""The APIs for ACLs, in every version."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from headrace.cluster.entries import EntryKind
from headrace.protocol.acl import ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.security.authorizer import Authorizer
from headrace.server.context import Context
from headrace.server.handlers import acls
from headrace.server.handlers.authorized import EVERYTHING, NOT_ASKED
from tests.support.handlers import Harness, versions

ANYTHING = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


@pytest.fixture
def secured() -> Iterator[Harness]:
    harness = Harness()
    authorizer = Authorizer(harness.image, super_users=frozenset({"User:ANONYMOUS"}))
    harness.context = replace_authorizer(harness, authorizer)
    yield harness
    harness.close()


def replace_authorizer(harness: Harness, authorizer: Authorizer) -> Context:
    return replace(harness.context, authorizer=authorizer)


def creation(name: str = "orders", **values: Any) -> dict[str, Any]:
    return {
        "resource_type": 2,
        "resource_name": name,
        "resource_pattern_type": 3,
        "principal": "User:alice",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
        **values,
    }


def create(harness: Harness, *creations: dict[str, Any], version: int = 3) -> list[Any]:
    return list(harness.ask(ApiKey.CREATE_ACLS, version, creations=creations).results)


def describe(harness: Harness, version: int = 3, **values: Any) -> dict[tuple[str, int], list[tuple[str, int]]]:
    answer = harness.ask(ApiKey.DESCRIBE_ACLS, version, **{**ANYTHING, **values})
    assert answer.error_code is ErrorCode.none
    return {
        (resource.resource_name, resource.pattern_type): [(each.principal, each.operation) for each in resource.acls]
        for resource in answer.resources
    }


def delete(harness: Harness, *filters: dict[str, Any], version: int = 3) -> list[Any]:
    asked = [{**ANYTHING, **each} for each in filters]
    return list(harness.ask(ApiKey.DELETE_ACLS, version, filters=asked).filter_results)


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_ACLS))
def test_acls_are_made_described_and_deleted_in_every_version(secured: Harness, version: int) -> None:
    made = create(secured, creation(), creation("ord", resource_pattern_type=4), version=version)
    assert [each.error_code for each in made] == [ErrorCode.none] * 2
    assert describe(secured, version) == {("orders", 3): [("User:alice", 3)], ("ord", 4): [("User:alice", 3)]}
    (gone,) = delete(secured, {"pattern_type_filter": 4}, version=version)
    (match,) = gone.matching_acls
    assert (match.resource_name, match.pattern_type, match.principal, match.error_code) == (
        "ord",
        4,
        "User:alice",
        ErrorCode.none,
    )
    assert describe(secured, version) == {("orders", 3): [("User:alice", 3)]}


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_ACLS))
def test_without_an_authorizer_security_is_disabled(broker: Harness, version: int) -> None:
    answer = broker.ask(ApiKey.CREATE_ACLS, version, creations=[creation(), creation("b")])
    assert [each.error_code for each in answer.results] == [ErrorCode.security_disabled] * 2
    answer = broker.ask(ApiKey.DELETE_ACLS, version, filters=[ANYTHING])
    assert [each.error_code for each in answer.filter_results] == [ErrorCode.security_disabled]
    with pytest.raises(CodedError) as refused:
        broker.ask(ApiKey.DESCRIBE_ACLS, version, **ANYTHING)
    assert refused.value.code is ErrorCode.security_disabled


def test_each_creation_has_its_own_answer_and_what_is_there_already_is_no_error(secured: Harness) -> None:
    made = create(
        secured,
        creation(),
        creation(),
        creation(""),
        creation("kafka", resource_type=4),
        creation(operation=99),
        creation(resource_pattern_type=2),
        creation("payments", principal="alice"),
        creation("payments"),
    )
    refused = ErrorCode.invalid_request
    assert [each.error_code for each in made] == [ErrorCode.none] * 2 + [refused] * 5 + [ErrorCode.none]
    assert "kafka-cluster" in made[3].error_message
    assert create(secured, creation())[0].error_code is ErrorCode.none
    assert describe(secured) == {("orders", 3): [("User:alice", 3)], ("payments", 3): [("User:alice", 3)]}


def test_what_several_filters_take_stands_in_each_and_is_gone_once(secured: Harness) -> None:
    create(secured, creation(), creation(principal="User:bob"), creation("payments"))
    exact = {"resource_type_filter": 2, "resource_name_filter": "orders", "pattern_type_filter": 3}
    found = delete(
        secured,
        {"principal_filter": "User:alice"},
        exact,
        {"resource_name_filter": "none"},
        {"operation": 99},
    )
    names = [sorted((each.resource_name, each.principal) for each in result.matching_acls) for result in found]
    assert names == [
        [("orders", "User:alice"), ("payments", "User:alice")],
        [("orders", "User:alice"), ("orders", "User:bob")],
        [],
        [],
    ]
    assert [each.error_code for each in found] == [ErrorCode.none] * 3 + [ErrorCode.invalid_request]
    assert describe(secured) == {}
    assert not secured.image.entries[EntryKind.ACL]


def test_a_resource_takes_so_many_acls_and_the_cluster_so_many(
    secured: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acls, "MOST_OF_RESOURCE", 3)
    monkeypatch.setattr(acls, "MOST_ACLS", 5)
    made = create(secured, *(creation(principal=f"User:{n}") for n in range(5)))
    assert [each.error_code is ErrorCode.none for each in made] == [True] * 3 + [False] * 2
    assert "can have 3" in made[3].error_message
    made = create(secured, *(creation("b", principal=f"User:{n}") for n in range(3)), creation(principal="User:1"))
    assert [each.error_code is ErrorCode.none for each in made] == [True, True, False, True]
    assert "can be 5" in made[2].error_message


def test_too_much_at_once_changes_nothing(secured: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acls, "MOST_AT_ONCE", 2)
    monkeypatch.setattr(acls, "MOST_BROAD", 1)
    made = create(secured, *(creation(f"t{n}") for n in range(3)))
    assert {each.error_code for each in made} == {ErrorCode.policy_violation}
    assert describe(secured) == {}
    assert {each.error_code for each in delete(secured, {}, {"operation": 3})} == {ErrorCode.policy_violation}
    assert delete(secured, {})[0].error_code is ErrorCode.none


def test_as_many_acls_as_a_resource_takes_are_kept_in_one_piece(secured: Harness) -> None:
    """With principals that are long; the longest possible are told that they are too much."""
    creations = [creation("t" * 249, principal=f"User:{n:0100d}") for n in range(acls.MOST_OF_RESOURCE)]
    assert {each.error_code for each in create(secured, *creations)} == {ErrorCode.none}
    longest = [creation("u", principal=f"User:{n:01000d}") for n in range(acls.MOST_OF_RESOURCE)]
    (code,) = {each.error_code for each in create(secured, *longest)}
    assert code is ErrorCode.invalid_request


def test_a_store_that_cannot_be_written_is_told_with_every_acl(
    secured: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_args: object, **_options: object) -> None:
        raise CodedError(ErrorCode.not_controller, "another is")

    monkeypatch.setattr(secured.controller, "change_entries", fail)
    made = create(secured, creation(), creation(""))
    assert [each.error_code for each in made] == [ErrorCode.not_controller, ErrorCode.invalid_request]


def test_what_may_be_done_is_told_by_the_acls(secured: Harness) -> None:
    secured.topic("orders")
    asked = {"topics": [{"name": "orders"}], "include_topic_authorized_operations": True}
    answer = secured.ask(ApiKey.METADATA, 8, **asked, include_cluster_authorized_operations=True)
    assert answer.topics[0].topic_authorized_operations == EVERYTHING[ResourceType.TOPIC]
    assert answer.cluster_authorized_operations == EVERYTHING[ResourceType.CLUSTER]
    limited = Authorizer(secured.image)
    create(secured, creation(principal="User:ANONYMOUS"))
    secured.context = replace_authorizer(secured, limited)
    answer = secured.ask(ApiKey.METADATA, 8, **asked, include_cluster_authorized_operations=True)
    assert answer.topics[0].topic_authorized_operations == 1 << 3 | 1 << 8
    assert answer.cluster_authorized_operations == 0
    create_none = secured.ask(ApiKey.METADATA, 8, topics=[{"name": "orders"}])
    assert create_none.topics[0].topic_authorized_operations == NOT_ASKED
