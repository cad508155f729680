"""`headrace up --secure`: closed from its first second, and the same at every later start."""

import base64
import json
import ssl
import stat
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from headrace.config.properties import parse_properties
from tests.support.cli import command

pytestmark = pytest.mark.slow


class Up:
    """The command, and what it has said."""

    def __init__(self, ready: dict[str, str], errors: Path) -> None:
        self.kafka, self.http = ready["kafka"], ready["http"]
        self.client_file, self.ca = Path(ready["client_file"]), Path(ready["ca"])
        self.errors = errors

    @property
    def client(self) -> dict[str, Any]:
        return dict(parse_properties(self.client_file.read_text()))

    def headrace(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        line = command(*arguments, "-F", str(self.client_file))
        return subprocess.run(line, check=False, capture_output=True, text=True, timeout=60)

    def get(self, path: str, user: str = "") -> int:
        """The status of an answer over HTTPS."""
        request = urllib.request.Request(self.http + path)
        if user:
            request.add_header("Authorization", f"Basic {base64.b64encode(user.encode()).decode()}")
        try:
            with urllib.request.urlopen(request, context=ssl.create_default_context(cafile=str(self.ca))) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code


@contextmanager
def up(directory: Path, *more: str) -> Iterator[Up]:
    line = command(
        "up", "--secure", "--kafka-port", "0", "--http-port", "0", "--data", str(directory / "d"), "--json", *more
    )
    errors = directory / "errors"
    with errors.open("ab") as log:
        process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, cwd=directory)
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first, errors.read_text()
        yield Up(json.loads(first), errors)
    finally:
        process.terminate()
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()


def refusal(settings: dict[str, Any]) -> str:
    """What a client learns first; empty where it is let in."""
    errors: list[str] = []
    client = AdminClient({**settings, "error_cb": lambda error: errors.append(error.name()), "log_level": 0})
    for _ in range(50):
        try:
            client.list_topics(timeout=0.3)
            return ""
        except Exception:
            client.poll(0)
            known = [name for name in ("_AUTHENTICATION", "_SSL", "_ALL_BROKERS_DOWN") if name in errors]
            if known:
                return known[0]
    raise AssertionError(errors)


def test_a_secured_broker_is_closed_at_once_and_the_same_after_a_restart(tmp_path: Path) -> None:
    with up(tmp_path) as first:
        made = first.client
        assert refusal(made) == ""
        assert refusal({"bootstrap.servers": first.kafka}) == "_ALL_BROKERS_DOWN"
        assert refusal({**made, "sasl.password": "guess"}) == "_AUTHENTICATION"
        assert refusal({name: value for name, value in made.items() if name != "ssl.ca.location"}) == "_SSL"
        assert first.headrace("topic", "create", "orders").stdout == "orders: created\n"
        produce(made, b"kept")
        admin = f"admin:{made['sasl.password']}"
        assert [first.get("/api/v1/topics", user) for user in (admin, "admin:guess", "")] == [200, 401, 401]
        assert "__audit_log" in first.headrace("topic", "list", "--internal").stdout
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in first.client_file.parent.iterdir()}
    assert all(
        mode == 0o600 for name, mode in modes.items() if not name.endswith(("ca.pem", "broker.pem", "gateway.pem"))
    )
    assert stat.S_IMODE(first.client_file.parent.stat().st_mode) == 0o700
    assert made["sasl.password"] not in first.errors.read_text()
    authority = first.ca.read_bytes()
    with up(tmp_path) as again:
        assert {**again.client, "bootstrap.servers": ""} == {**made, "bootstrap.servers": ""}
        assert again.ca.read_bytes() == authority
        assert consumed(again.client) == b"kept"
        a_tenant_works_below_its_prefix_alone(again)


def a_tenant_works_below_its_prefix_alone(secured: Up) -> None:
    made = json.loads(secured.headrace("tenant", "create", "shop", "--json").stdout)
    assert made["connect"]["security.protocol"] == "SASL_SSL"
    (user,) = made["users"]
    tenant = {**secured.client, "sasl.username": user["user"], "sasl.password": user["password"]}
    errors: list[str] = []
    producer = Producer(tenant)
    for topic in ("shop.orders", "orders"):
        producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error.name() if error else ""))
        producer.flush(30)
    assert errors == ["", "TOPIC_AUTHORIZATION_FAILED"]


def produce(settings: dict[str, Any], value: bytes) -> None:
    errors: list[object] = []
    producer = Producer(settings)
    producer.produce("orders", value, on_delivery=lambda error, _: errors.append(error))
    assert (producer.flush(30), errors) == (0, [None])


def consumed(settings: dict[str, Any]) -> bytes | None:
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    message = next(m for m in (consumer.poll(1) for _ in range(60)) if m is not None)
    assert message.error() is None
    consumer.close()
    value: bytes | None = message.value()
    return value


def test_what_was_secured_is_never_opened_by_leaving_the_option_out(tmp_path: Path) -> None:
    (tmp_path / "d" / "secrets").mkdir(parents=True)
    line = command("up", "--data", str(tmp_path / "d"))
    result = subprocess.run(line, check=False, capture_output=True, text=True, timeout=60)
    assert (result.returncode, "would be open to all without it" in result.stderr) == (2, True)


@pytest.mark.parametrize("setting", ["super.users=User:eve", "authorizer.class.name=", "ssl.keystore.location=x"])
def test_a_setting_that_would_open_it_is_refused(tmp_path: Path, setting: str) -> None:
    line = command("up", "--secure", "--data", str(tmp_path / "d"), "--set", setting)
    result = subprocess.run(line, check=False, capture_output=True, text=True, timeout=60)
    assert (result.returncode, "is what --secure sets" in result.stderr) == (2, True)
