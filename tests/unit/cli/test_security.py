"""`headrace user`, `quota`, `token` and `tenant` against a broker whose clients log in."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from typer.testing import Result

from headrace.testing import Broker
from tests.support.cli import Run

pytestmark = pytest.mark.slow

SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
    "headrace.add.scram": "SCRAM-SHA-512=[name=root,password=root-secret]",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:root",
    "delegation.token.secret.key": "sesame",
    "headrace.audit": "topic",
    "headrace.audit.level": "all",
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Broker]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.security.failed_logins.LONGEST_DELAY", 0.05)
        with Broker(SETTINGS) as running:
            yield running


def client_of(broker: Broker, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


@pytest.fixture
def headrace(run: Run, guarded: Broker, tmp_path: Path) -> Callable[..., Result]:
    """The command as the first user."""
    file = tmp_path / "root.properties"
    settings = client_of(guarded, "root", "root-secret")
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    file.chmod(0o600)

    def call(*arguments: str, stdin: str | bytes | None = None) -> Result:
        return run(*arguments, "-F", str(file), stdin=stdin)

    return call


def document(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def may_log_in(broker: Broker, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> bool:
    failures: list[str] = []
    settings = client_of(broker, user, password, mechanism) | {"error_cb": lambda error: failures.append(error.name())}
    client = AdminClient(settings | {"log_level": 0})
    for _ in range(100):
        try:
            client.list_topics(timeout=0.2)
            return True
        except KafkaException:
            client.poll(0)
            if "_AUTHENTICATION" in failures:
                return False
    raise AssertionError(failures)


# Users


def test_a_user_that_was_made_logs_in_until_it_is_deleted(headrace: Run, guarded: Broker) -> None:
    made = document(headrace("user", "create", "alice", "--generate", "--json"))
    assert may_log_in(guarded, "alice", made["password"])
    assert {"user": "alice", "mechanisms": {"SCRAM-SHA-512": 8192}} in document(headrace("user", "list", "--json"))
    assert headrace("user", "delete", "alice", "--yes").exit_code == 0
    assert not may_log_in(guarded, "alice", made["password"])


def test_a_password_comes_from_standard_input_or_a_file_and_never_from_the_command_line(
    headrace: Run, guarded: Broker, tmp_path: Path
) -> None:
    assert headrace("user", "create", "bob", "--mechanism", "SCRAM-SHA-256", stdin="first secret\n").exit_code == 0
    assert may_log_in(guarded, "bob", "first secret", "SCRAM-SHA-256")
    file = tmp_path / "password"
    file.write_text("second secret\nnot this")
    file.chmod(0o600)
    assert headrace("user", "passwd", "bob", "--password-file", str(file)).exit_code == 0
    assert may_log_in(guarded, "bob", "second secret", "SCRAM-SHA-256")
    assert not may_log_in(guarded, "bob", "first secret", "SCRAM-SHA-256")
    assert "secret" not in headrace("user", "create", "--help").stdout.partition("Examples")[2].replace("password", "")


def test_one_user_can_have_both_mechanisms_and_lose_one(headrace: Run) -> None:
    both = ["--mechanism", "SCRAM-SHA-256", "--mechanism", "scram-sha-512"]
    headrace("user", "create", "carol", *both, "--generate")
    headrace("user", "delete", "carol", "--mechanism", "SCRAM-SHA-256", "--yes")
    (carol,) = [each for each in document(headrace("user", "list", "--json")) if each["user"] == "carol"]
    assert list(carol["mechanisms"]) == ["SCRAM-SHA-512"]


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "expected"),
    [
        (["user", "create", "root", "--generate"], "", 1, "`headrace user passwd root`"),
        (["user", "passwd", "nobody", "--generate"], "", 1, "there is no user 'nobody'"),
        (["user", "delete", "nobody", "--yes"], "", 1, "there is no user 'nobody'"),
        (["user", "create", "dave"], "", 2, "there is no password in standard input"),
        (["user", "create", "dave", "--password-file", "/nowhere"], "", 2, "/nowhere cannot be read"),
        (["user", "create", "dave", "--mechanism", "PLAIN"], "", 2, "--mechanism 'PLAIN' is not one of"),
        (["user", "create", "User:dave", "--generate"], "", 2, "leave out User:"),
        (["user", "create", "a\x1bb", "--generate"], "", 2, "visible characters"),
        (["user", "delete", "root"], "", 2, "needs --yes"),
        (["quota", "set", "produce=10MB"], "", 2, "whose quota?"),
        (["quota", "set", "--user", "a", "nothing=1"], "", 2, "'nothing' is no quota; there are produce"),
        (["quota", "set", "--user", "a", "produce=fast"], "", 2, "is not a number of bytes"),
        (["quota", "set", "--user", "a", "request=-5%"], "", 2, "is not a number above 0"),
        (["quota", "set", "--user", "a", "--ip", "10.0.0.1", "produce=1MB"], "", 2, "leave out the others"),
        (["quota", "set", "--user", "a", "--default-user", "produce=1MB"], "", 2, "give one of them"),
        (["quota", "set", "--ip", "not an address", "connections=5"], "", 1, "not a valid IP"),
        (["tenant", "create", "a b"], "", 2, "names of topics have letters"),
        (["tenant", "create", "shop", "--prefix", "shop"], "", 2, "end it with a dot"),
        (["tenant", "create", "x", "--prefix", "__x."], "", 2, "the brokers' own"),
        (["tenant", "create", "x", "--quota", "connections=5"], "", 2, "headrace quota set --ip"),
        (["tenant", "delete", "nobody", "--yes"], "", 1, "nobody has rights on prefix 'nobody.'"),
        (["token", "create", "--max-lifetime", "soon"], "", 2, "is not a time"),
        (["token", "renew", "none"], "", 1, "there is no token 'none'"),
    ],
)
def test_what_is_wrong_is_told_with_what_to_do(
    headrace: Run, arguments: list[str], stdin: str, code: int, expected: str
) -> None:
    result = headrace(*arguments, stdin=stdin)
    assert (result.exit_code, expected in result.stderr) == (code, True), result.stderr


# Quotas


def test_quotas_are_set_listed_and_removed(headrace: Run) -> None:
    headrace("quota", "set", "--user", "alice", "produce=10MB", "consume=20MiB", "request=50%")
    headrace("quota", "set", "--default-user", "mutations=5")
    headrace("quota", "set", "--user", "alice", "--client-id", "etl", "producer_byte_rate=1MB")
    headrace("quota", "set", "--default-ip", "connections=20")
    headrace("quota", "set", "--topic-prefix", "shop.", "storage=1GiB")
    assert document(headrace("quota", "list", "--json")) == [
        {"entity": {"ip": None}, "quotas": {"connection_creation_rate": 20}},
        {"entity": {"topic-prefix": "shop."}, "quotas": {"storage_bytes": 1 << 30}},
        {"entity": {"user": None}, "quotas": {"controller_mutation_rate": 5}},
        {
            "entity": {"user": "alice"},
            "quotas": {"consumer_byte_rate": 20 << 20, "producer_byte_rate": 10_000_000, "request_percentage": 50},
        },
        {"entity": {"user": "alice", "client-id": "etl"}, "quotas": {"producer_byte_rate": 1_000_000}},
    ]
    headrace("quota", "remove", "--user", "alice", "produce")
    assert "consume  20971520 (20.0 MiB/s)" in headrace("quota", "list", "--user", "alice").stdout
    headrace("quota", "remove", "--user", "alice")
    left = document(headrace("quota", "list", "--user", "alice", "--json"))
    assert [each["entity"] for each in left] == [{"user": "alice", "client-id": "etl"}]
    for of in (
        ["--user", "alice", "--client-id", "etl"],
        ["--default-user"],
        ["--default-ip"],
        ["--topic-prefix", "shop."],
    ):
        headrace("quota", "remove", *of)
    assert document(headrace("quota", "list", "--json")) == []


def test_a_dry_run_of_a_quota_changes_nothing(headrace: Run) -> None:
    assert "would be" in headrace("quota", "set", "--user", "alice", "produce=10MB", "--dry-run").stdout
    assert document(headrace("quota", "list", "--json")) == []


# Tokens


def test_a_token_stands_for_its_owner_until_it_expires(headrace: Run, guarded: Broker) -> None:
    made = document(headrace("token", "create", "--max-lifetime", "1d", "--renewer", "ops", "--json"))
    assert (made["owner"], made["requester"]) == ("User:root", "User:root")
    listed = headrace("token", "list", "--json")
    assert [each["token"] for each in document(listed)] == [made["token"]]
    assert made["hmac"] not in listed.stdout
    assert document(headrace("token", "renew", made["token"], "--period", "1h", "--json"))["state"] == "renewed"
    assert document(headrace("token", "expire", made["token"], "--json"))["state"] == "expired"
    assert document(headrace("token", "list", "--json")) == []


# Tenants


def test_a_tenant_may_do_everything_below_its_prefix_and_nothing_else(headrace: Run, guarded: Broker) -> None:
    made = document(headrace("tenant", "create", "shop", "--quota", "produce=50MB", "--quota", "storage=1GB", "--json"))
    (user,) = made["users"]
    settings = client_of(guarded, user["user"], user["password"])
    refusals: list[str] = []
    producer = Producer(settings)
    for topic in ("shop.orders", "other.orders"):
        producer.produce(topic, b"x", on_delivery=lambda error, _: refusals.append(error.name() if error else ""))
        producer.flush(10)
    assert refusals == ["", "TOPIC_AUTHORIZATION_FAILED"]
    consumer = Consumer(settings | {"group.id": "shop.billing", "auto.offset.reset": "earliest"})
    consumer.subscribe(["shop.orders"])
    message = next(m for m in (consumer.poll(1) for _ in range(30)) if m is not None)
    assert (message.error(), message.value()) == (None, b"x")
    consumer.close()
    stranger = Consumer(settings | {"group.id": "other.billing"})
    stranger.subscribe(["shop.orders"])
    found = next(m for m in (stranger.poll(1) for _ in range(30)) if m is not None and m.error())
    error = found.error()
    assert error is not None
    assert error.name() == "GROUP_AUTHORIZATION_FAILED"
    stranger.close()


def test_a_tenant_is_made_once_however_often_it_is_said(headrace: Run) -> None:
    first = document(headrace("tenant", "create", "twice", "--user", "t-web", "--user", "t-etl", "--json"))
    assert [each["state"] for each in first["users"]] == ["created", "created"]
    before = document(headrace("acl", "list", "--json"))
    again = document(headrace("tenant", "create", "twice", "--user", "t-web", "--user", "t-etl", "--json"))
    assert again["users"] == [{"user": "t-web", "state": "kept"}, {"user": "t-etl", "state": "kept"}]
    assert document(headrace("acl", "list", "--json")) == before
    (tenant,) = [each for each in document(headrace("tenant", "list", "--json")) if each["tenant"] == "twice"]
    assert (tenant["prefix"], tenant["users"]) == ("twice.", ["t-etl", "t-web"])


def test_a_tenant_reaches_into_no_other(headrace: Run) -> None:
    headrace("tenant", "create", "wide")
    result = headrace("tenant", "create", "narrow", "--prefix", "wide.narrow.")
    assert (result.exit_code, "reach into each other" in result.stderr) == (1, True)
    assert headrace("tenant", "create", "wider", "--json").exit_code == 0


def test_a_tenant_goes_with_its_users_quotas_and_rights(headrace: Run) -> None:
    headrace("tenant", "create", "gone", "--quota", "produce=1MB", "--quota", "storage=1GB")
    headrace("topic", "create", "gone.orders", "gone.payments")
    assert document(headrace("tenant", "delete", "gone", "--dry-run", "--json"))["users"] == ["gone"]
    deleted = document(headrace("tenant", "delete", "gone", "--topics", "--yes", "--json"))
    assert (deleted["users"], deleted["topics"]) == (["gone"], ["gone.orders", "gone.payments"])
    assert "gone" not in headrace("user", "list", "--json").stdout
    assert "gone" not in headrace("quota", "list", "--json").stdout
    assert "gone" not in headrace("acl", "list", "--json").stdout
    assert "gone.orders" not in headrace("topic", "list").stdout


def test_a_user_with_rights_elsewhere_outlives_its_tenant(headrace: Run) -> None:
    headrace("tenant", "create", "left", "--user", "guest")
    headrace("acl", "add", "--allow-principal", "guest", "--operation", "read", "--topic", "public")
    assert document(headrace("tenant", "delete", "left", "--yes", "--json"))["users"] == []
    assert "guest" in headrace("user", "list", "--json").stdout


# What the audit log says of it


def test_logins_and_refusals_are_in_the_audit_log_and_no_password_is(headrace: Run, guarded: Broker) -> None:
    headrace("user", "create", "eve", stdin="eves-own-secret\n")
    assert not may_log_in(guarded, "eve", "a-wrong-guess")
    assert may_log_in(guarded, "eve", "eves-own-secret")
    refused: list[str] = []
    producer = Producer(client_of(guarded, "eve", "eves-own-secret"))
    producer.produce("shop.orders", b"x", on_delivery=lambda error, _: refused.append(error.name() if error else ""))
    producer.flush(10)
    assert refused == ["TOPIC_AUTHORIZATION_FAILED"]
    events: list[dict[str, Any]] = []
    text = ""
    for _ in range(50):
        text = headrace("audit", "--json").stdout
        events = [json.loads(line) for line in text.splitlines()]
        if any(e["principal"] == "User:eve" and e["kind"] == "denial" for e in events):
            break
    of_eve = [(e["kind"], e["operation"], e["outcome"]) for e in events if e["principal"] == "User:eve"]
    assert ("login", "SCRAM-SHA-512", "denied") in of_eve
    assert ("login", "SCRAM-SHA-512", "succeeded") in of_eve
    assert any(kind == "denial" and outcome == "denied" for kind, _, outcome in of_eve)
    made = next(e for e in events if any(each["name"] == "eve" for each in e.get("resources", [])))
    assert (made["operation"], made["principal"]) == ("AlterUserScramCredentials", "User:root")
    for secret in ("eves-own-secret", "a-wrong-guess", "root-secret"):
        assert secret not in text
