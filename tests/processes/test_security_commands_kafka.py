"""`headrace acl`, `user`, `quota` and `tenant` administer Apache Kafka itself: what they say is Kafka's own."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.support.apache_kafka import ApacheKafka
from tests.support.cli import command, environment
from tests.support.maven import Unavailable

pytestmark = [pytest.mark.long, pytest.mark.kafka]

SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
Command = Callable[..., Any]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    try:
        running = ApacheKafka(tmp_path_factory.mktemp("kafka"), SETTINGS)
    except Unavailable as reason:
        pytest.skip(str(reason))
    with running:
        yield running


@pytest.fixture
def headrace(kafka: ApacheKafka, tmp_path: Path) -> Command:
    """A command's answer, which is JSON."""

    def call(*arguments: str) -> Any:
        given = command(*arguments, "--json")
        variables = {**environment(kafka.bootstrap), "XDG_CONFIG_HOME": str(tmp_path)}
        done = subprocess.run(given, check=False, capture_output=True, text=True, timeout=60, env=variables)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return call


def test_acls_are_what_another_client_sees(kafka: ApacheKafka, headrace: Command) -> None:
    headrace("acl", "add", "--allow-principal", "alice", "--producer", "--topic", "orders")
    headrace(
        "acl",
        "add",
        "--deny-principal",
        "eve",
        "--operation",
        "all",
        "--group",
        "g.",
        "--resource-pattern-type",
        "prefixed",
    )
    everything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    client = AdminClient({"bootstrap.servers": kafka.bootstrap})
    found = {(each.principal, each.operation.name, each.name) for each in client.describe_acls(everything).result(20)}
    assert found == {
        ("User:alice", "WRITE", "orders"),
        ("User:alice", "CREATE", "orders"),
        ("User:alice", "DESCRIBE", "orders"),
        ("User:eve", "ALL", "g."),
    }
    assert len(headrace("acl", "remove", "--topic", "orders", "--yes")["acls"]) == 3
    assert [each["principal"] for each in headrace("acl", "list", "--group", "g.one")] == ["User:eve"]
    headrace("acl", "remove", "--deny-principal", "eve", "--yes")
    assert headrace("acl", "list") == []


def test_users_and_quotas_are_kept(headrace: Command) -> None:
    headrace("user", "create", "bob", "--mechanism", "SCRAM-SHA-256", "--mechanism", "SCRAM-SHA-512", "--generate")
    headrace("user", "passwd", "bob", "--generate")
    (bob,) = headrace("user", "list")
    assert bob == {"user": "bob", "mechanisms": {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 8192}}
    headrace("quota", "set", "--user", "bob", "produce=10MB", "request=50%")
    headrace("quota", "set", "--default-user", "--client-id", "etl", "consume=1MiB")
    assert headrace("quota", "list") == [
        {"entity": {"user": None, "client-id": "etl"}, "quotas": {"consumer_byte_rate": 1 << 20}},
        {"entity": {"user": "bob"}, "quotas": {"producer_byte_rate": 10_000_000, "request_percentage": 50}},
    ]
    headrace("quota", "remove", "--user", "bob", "produce", "request")
    headrace("quota", "remove", "--default-user", "--client-id", "etl", "consume")
    headrace("user", "delete", "bob", "--yes")
    assert headrace("user", "list") == headrace("quota", "list") == []


def test_a_tenant_comes_and_goes(headrace: Command) -> None:
    for _ in range(2):
        headrace("tenant", "create", "shop", "--user", "web", "--quota", "produce=10MB")
    assert [(each["prefix"], each["users"]) for each in headrace("tenant", "list")] == [("shop.", ["web"])]
    assert headrace("tenant", "delete", "shop", "--yes")["users"] == ["web"]
    assert headrace("acl", "list") == headrace("user", "list") == headrace("quota", "list") == []
