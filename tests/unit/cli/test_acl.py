"""`headrace acl` against a broker with an authorizer."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AclBindingFilter, AclOperation, AclPermissionType, AdminClient, ResourcePatternType
from confluent_kafka.admin import ResourceType as KafkaType

from headrace.testing import Broker
from tests.support.cli import Run

pytestmark = pytest.mark.slow

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Broker]:
    with Broker(AUTHORIZER) as running:
        yield running


@pytest.fixture
def acl(run: Run, guarded: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """`headrace acl` at the broker; ACLs that a test has made are gone after it."""
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", guarded.bootstrap)

    def call(*arguments: str, stdin: str | bytes | None = None) -> Any:
        return run("acl", *arguments, stdin=stdin)

    yield call
    client = AdminClient({"bootstrap.servers": guarded.bootstrap})
    everything = AclBindingFilter(
        KafkaType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    for future in client.delete_acls([everything]).values():
        future.result(10)


def listed(acl: Run, *arguments: str) -> list[tuple[str, ...]]:
    result = acl("list", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return [
        (each["permission"], each["principal"], each["operation"], each["resource"], each["name"], each["pattern"])
        for each in json.loads(result.stdout)
    ]


def test_acls_are_added_listed_and_removed(acl: Run) -> None:
    added = acl("add", "--allow-principal", "alice", "--operation", "read", "--topic", "orders")
    assert (added.exit_code, "1 ACL(s) added" in added.stdout) == (0, True)
    assert listed(acl) == [("allow", "User:alice", "read", "topic", "orders", "literal")]
    assert acl("remove", "--topic", "orders", "--yes").exit_code == 0
    assert listed(acl) == []


def test_a_producer_and_a_consumer_get_what_kafkas_tool_gives_them(acl: Run) -> None:
    acl("add", "--allow-principal", "p", "--producer", "--topic", "t", "--transactional-id", "x", "--idempotent")
    acl("add", "--allow-principal", "c", "--consumer", "--topic", "t", "--group", "g")
    assert listed(acl, "--principal", "p") == [
        ("allow", "User:p", "write", "topic", "t", "literal"),
        ("allow", "User:p", "create", "topic", "t", "literal"),
        ("allow", "User:p", "describe", "topic", "t", "literal"),
        ("allow", "User:p", "idempotent-write", "cluster", "kafka-cluster", "literal"),
        ("allow", "User:p", "write", "transactional-id", "x", "literal"),
        ("allow", "User:p", "describe", "transactional-id", "x", "literal"),
    ]
    assert listed(acl, "--principal", "c") == [
        ("allow", "User:c", "read", "topic", "t", "literal"),
        ("allow", "User:c", "describe", "topic", "t", "literal"),
        ("allow", "User:c", "read", "group", "g", "literal"),
    ]


def test_a_name_is_listed_with_the_prefixes_and_wildcards_that_count_for_it(acl: Run) -> None:
    prefixed = ["--resource-pattern-type", "prefixed"]
    acl("add", "--allow-principal", "a", "--operation", "all", "--topic", "shop.", *prefixed)
    acl("add", "--allow-principal", "b", "--operation", "read", "--topic", "*")
    acl("add", "--allow-principal", "c", "--operation", "read", "--topic", "shop.orders")
    acl("add", "--allow-principal", "d", "--operation", "read", "--topic", "other")
    assert [each[1] for each in listed(acl, "--topic", "shop.orders")] == ["User:b", "User:a", "User:c"]
    literal = ["--resource-pattern-type", "literal"]
    assert [each[1] for each in listed(acl, "--topic", "shop.orders", *literal)] == ["User:c"]


def test_deny_and_hosts_are_kept(acl: Run) -> None:
    acl("add", "--deny-principal", "eve", "--deny-host", "10.0.0.9", "--operation", "describe-configs", "--topic", "t")
    (found,) = json.loads(acl("list", "--json").stdout)
    assert (found["permission"], found["host"], found["operation"]) == ("deny", "10.0.0.9", "describe-configs")


def test_an_operation_may_be_written_as_kafka_writes_it(acl: Run) -> None:
    for operation in ("DescribeConfigs", "describe_configs", "DESCRIBE_CONFIGS", "describe-configs"):
        assert acl("add", "--allow-principal", "a", "--operation", operation, "--topic", "t").exit_code == 0
    assert len(listed(acl)) == 1


def test_a_dry_run_changes_nothing(acl: Run) -> None:
    acl("add", "--allow-principal", "a", "--operation", "read", "--topic", "t", "--dry-run")
    assert listed(acl) == []
    acl("add", "--allow-principal", "a", "--operation", "read", "--topic", "t")
    assert "1 ACL(s) would be removed" in acl("remove", "--topic", "t", "--dry-run").stdout
    assert len(listed(acl)) == 1


def test_only_what_is_named_is_removed(acl: Run) -> None:
    for who in ("a", "b"):
        acl("add", "--allow-principal", who, "--operation", "read", "--operation", "write", "--topic", "t")
    acl("remove", "--allow-principal", "a", "--operation", "write", "--topic", "t", "--yes")
    assert [each[1:3] for each in listed(acl)] == [("User:a", "read"), ("User:b", "read"), ("User:b", "write")]
    acl("remove", "--allow-principal", "b", "--yes")
    assert [each[1:3] for each in listed(acl)] == [("User:a", "read")]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["add", "--operation", "read", "--topic", "t"], "who?"),
        (["add", "--allow-principal", "a", "--topic", "t"], "what may they do?"),
        (["add", "--allow-principal", "a", "--operation", "read"], "on what?"),
        (["add", "--allow-principal", "a", "--operation", "fly", "--topic", "t"], "--operation 'fly' is not one of"),
        (["add", "--allow-principal", "a", "--consumer", "--topic", "t"], "--consumer needs the group"),
        (["add", "--allow-principal", "a", "--producer", "--group", "g"], "name one with --topic"),
        (["add", "--allow-principal", "", "--operation", "read", "--topic", "t"], "has no kind"),
        (["add", "--allow-host", "10.0.0.1", "--operation", "read", "--topic", "t"], "--allow-principal says who"),
        (
            ["add", "--allow-principal", "a", "--operation", "read", "--topic", "t", "--resource-pattern-type", "any"],
            "is not one of literal, prefixed",
        ),
        (["remove", "--yes"], "would remove every ACL"),
        (["list", "--resource-pattern-type", "x"], "is not one of any, match, literal, prefixed"),
    ],
)
def test_what_is_wrong_is_told_with_what_to_write(acl: Run, arguments: list[str], expected: str) -> None:
    result = acl(*arguments)
    assert (result.exit_code, expected in result.stderr) == (2, True), result.stderr


def test_removing_asks_first(acl: Run) -> None:
    acl("add", "--allow-principal", "a", "--operation", "read", "--topic", "t")
    result = acl("remove", "--topic", "t")
    assert (result.exit_code, "needs --yes" in result.stderr) == (2, True)
    assert len(listed(acl)) == 1


def test_without_an_authorizer_it_says_so(run: Run, cluster: Broker) -> None:
    result = run("acl", "list", "--bootstrap", cluster.bootstrap)
    assert result.exit_code == 1
    assert "uthorizer" in result.stderr
