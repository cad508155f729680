"""ACLs as Kafka matches, checks and keeps them."""

from dataclasses import replace

import pytest

from headrace.protocol.acl import (
    CLUSTER_NAME,
    AclBinding,
    AclEntry,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.security.acl import OPERATIONS, acl_of, check_binding, entry_key, entry_name, member, resource_of, taken

ENTRY = AclEntry(principal="User:alice", host="*", operation=AclOperation.READ, permission=PermissionType.ALLOW)


def topics(name: str, pattern: PatternType = PatternType.LITERAL) -> ResourcePattern:
    return ResourcePattern(type=ResourceType.TOPIC, pattern=pattern, name=name)


def prefix(name: str) -> ResourcePattern:
    return topics(name, PatternType.PREFIXED)


def test_a_literal_covers_its_name_a_prefix_what_begins_with_it_and_a_star_everything() -> None:
    assert topics("orders").covers("orders")
    assert not topics("orders").covers("orders-2")
    assert prefix("ord").covers("orders")
    assert not prefix("ord").covers("or")
    assert topics("*").covers("orders")


def test_a_star_is_no_wildcard_in_a_prefix_nor_inside_of_a_name() -> None:
    assert not prefix("*").covers("orders")
    assert prefix("*").covers("*orders")
    assert not topics("ord*").covers("orders")


@pytest.mark.parametrize(
    ("pattern", "name", "taken"),
    [
        (PatternType.ANY, None, {"orders", "ord", "*", "pay"}),
        (PatternType.LITERAL, None, {"orders", "*"}),
        (PatternType.PREFIXED, None, {"ord", "pay"}),
        (PatternType.ANY, "orders", {"orders"}),
        (PatternType.ANY, "*", {"*"}),
        (PatternType.LITERAL, "ord", set()),
        (PatternType.PREFIXED, "ord", {"ord"}),
        (PatternType.MATCH, "orders", {"orders", "ord", "*"}),
        (PatternType.MATCH, "payments", {"pay", "*"}),
        (PatternType.MATCH, "*", {"*"}),
        (PatternType.MATCH, None, {"orders", "ord", "*", "pay"}),
    ],
)
def test_a_filter_takes_what_kafkas_takes(pattern: PatternType, name: str | None, taken: set[str]) -> None:
    there = [topics("orders"), topics("*"), prefix("ord"), prefix("pay")]
    asked = AclFilter(type=ResourceType.TOPIC, pattern=pattern, name=name)
    assert {resource.name for resource in there if asked.takes_resource(resource)} == taken


def test_of_what_is_kept_a_filter_takes_entries_by_their_resources() -> None:
    values = {entry_key(ENTRY): "", entry_key(replace(ENTRY, principal="User:bob")): "", "of a later release": ""}
    asked = AclFilter(pattern=PatternType.MATCH, name="orders", principal="User:alice")
    for resource in (topics("orders"), topics("*"), prefix("ord")):
        assert taken(asked, entry_name(resource), values) == (resource, [ENTRY])
    assert taken(asked, entry_name(prefix("pay")), values) is None
    assert taken(AclFilter(principal="User:carol"), entry_name(topics("orders")), values) is None
    assert taken(AclFilter(), "GALAXY:LITERAL:a", values) is None


def test_a_filter_looks_at_every_part_of_an_acl() -> None:
    binding = AclBinding(resource=topics("orders"), entry=ENTRY)
    assert AclFilter().takes(binding)
    assert AclFilter(principal="User:alice", host="*", operation=AclOperation.READ).takes(binding)
    for asked in (
        AclFilter(type=ResourceType.GROUP),
        AclFilter(principal="User:bob"),
        AclFilter(host="10.0.0.1"),
        AclFilter(operation=AclOperation.WRITE),
        AclFilter(operation=AclOperation.ALL),
        AclFilter(permission=PermissionType.DENY),
    ):
        assert not asked.takes(binding)


@pytest.mark.parametrize("operation", [AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER])
def test_what_is_allowed_lets_describe_and_what_is_denied_implies_nothing(operation: AclOperation) -> None:
    allowed = replace(ENTRY, operation=operation)
    assert allowed.decides(AclOperation.DESCRIBE)
    assert not allowed.decides(AclOperation.DESCRIBE_CONFIGS)
    assert not replace(allowed, permission=PermissionType.DENY).decides(AclOperation.DESCRIBE)


def test_to_alter_settings_lets_describe_them_and_no_more() -> None:
    allowed = replace(ENTRY, operation=AclOperation.ALTER_CONFIGS)
    assert allowed.decides(AclOperation.DESCRIBE_CONFIGS)
    assert not allowed.decides(AclOperation.DESCRIBE)


def test_all_is_every_operation_allowed_or_denied() -> None:
    for permission in (PermissionType.ALLOW, PermissionType.DENY):
        entry = replace(ENTRY, operation=AclOperation.ALL, permission=permission)
        assert all(entry.decides(operation) for operations in OPERATIONS.values() for operation in operations)


@pytest.mark.parametrize(
    ("resource", "entry", "words"),
    [
        (topics(""), ENTRY, "empty resource name"),
        (replace(topics("a"), type=ResourceType.ANY), ENTRY, "resourceType ANY"),
        (topics("a", PatternType.ANY), ENTRY, "patternType ANY"),
        (topics("a", PatternType.MATCH), ENTRY, "patternType MATCH"),
        (topics("a"), replace(ENTRY, operation=AclOperation.ANY), "operation ANY"),
        (topics("a"), replace(ENTRY, permission=PermissionType.ANY), "permissionType ANY"),
        (replace(topics("other"), type=ResourceType.CLUSTER), ENTRY, CLUSTER_NAME),
        (topics("a"), replace(ENTRY, principal="alice"), "principalType:principalName"),
        (topics("a"), replace(ENTRY, principal="User:"), "principalType:principalName"),
        (topics("a"), replace(ENTRY, host=""), "empty host"),
        (topics("a" * 1025), ENTRY, "1025 characters"),
        (topics("a"), replace(ENTRY, principal="User:" + "a" * 1024), "principal of 1029 characters"),
        (topics("a"), replace(ENTRY, host="a" * 257), "host of 257 characters"),
    ],
)
def test_what_cannot_be_an_acl_is_refused_in_words(resource: ResourcePattern, entry: AclEntry, words: str) -> None:
    with pytest.raises(CodedError) as refused:
        check_binding(AclBinding(resource=resource, entry=entry))
    assert refused.value.code is ErrorCode.invalid_request
    assert words in refused.value.message


def test_a_number_that_kafka_does_not_have_is_refused() -> None:
    with pytest.raises(CodedError) as refused:
        member(AclOperation, 99, "operation")
    assert "Unknown operation 99" in refused.value.message
    assert member(AclOperation, 3, "operation") is AclOperation.READ


@pytest.mark.parametrize("name", ["orders", "*", "a:b:c", "  ", "naïve", "x" * 300])
def test_a_resource_pattern_is_found_again_by_its_name(name: str) -> None:
    for resource in (topics(name), prefix(name)):
        check_binding(AclBinding(resource=resource, entry=ENTRY))
        assert resource_of(entry_name(resource)) == resource


@pytest.mark.parametrize("principal", ["User:alice", "User:*", "User:CN=a b, O=c d", "Group:x:y", "User: "])
@pytest.mark.parametrize("host", ["*", "10.0.0.1", "::1", "a b%20c"])
def test_an_acl_is_found_again_by_what_stands_for_it(principal: str, host: str) -> None:
    entry = replace(ENTRY, principal=principal, host=host)
    assert acl_of(entry_key(entry)) == entry


@pytest.mark.parametrize("key", ["", "ALLOW", "PERHAPS READ * User:a", "ALLOW FLY * User:a"])
def test_what_a_later_release_has_written_is_passed_over(key: str) -> None:
    assert acl_of(key) is None
    assert resource_of("GALAXY:LITERAL:a") is None
    assert resource_of("TOPIC:REGEX:a") is None
