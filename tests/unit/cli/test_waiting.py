"""Commands that get no answer: they say why, and soon."""

import socket
from collections.abc import Iterator

import pytest

from headrace.client import probe
from headrace.config import PLAIN_USERS
from headrace.testing import Broker
from tests.support.cli import Run

pytestmark = pytest.mark.slow

USERS = 'PlainLoginModule required user_alice="s3cret";'
SASL = ["-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanism=PLAIN", "-X", "sasl.username=alice"]
COMMANDS = [
    ["topic", "list"],
    ["topic", "create", "orders"],
    ["group", "list"],
    ["cluster", "describe"],
    ["txn", "list"],
    ["consume", "orders"],
    ["produce", "orders"],
    ["top", "--once"],
]
ids = [" ".join(command[:2]) for command in COMMANDS]


@pytest.fixture(scope="module")
def guarded() -> Iterator[Broker]:
    with Broker({"listeners": "SASL_PLAINTEXT://127.0.0.1:0", PLAIN_USERS: USERS}) as running:
        yield running


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a broker that takes connections, and has stopped."""
    monkeypatch.setattr(probe, "ANSWER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("command", COMMANDS, ids=ids)
def test_a_wrong_password_is_told_with_its_cause(run: Run, guarded: Broker, command: list[str]) -> None:
    result = run(*command, "-b", guarded.bootstrap, *SASL, "-X", "sasl.password=wrong", stdin="")
    assert result.exit_code == 1
    assert f"not let in by {guarded.bootstrap}: Authentication failed: Invalid username or password" in result.stderr
    assert "Check sasl.username and sasl.password" in result.stderr


def test_a_wrong_password_is_no_mere_warning_of_the_doctor(run: Run, guarded: Broker) -> None:
    result = run("doctor", "-b", guarded.bootstrap, *SASL, "-X", "sasl.password=wrong")
    assert result.exit_code == 3
    assert "Invalid username or password" in result.stdout
    assert "sasl.password" in result.stdout


def test_top_and_doctor_are_let_in_with_the_right_password(run: Run, guarded: Broker) -> None:
    password = "sasl.password=s3cret"
    assert "all replicas are in sync" in run("top", "--once", "-b", guarded.bootstrap, *SASL, "-X", password).stdout
    result = run("doctor", "-b", guarded.bootstrap, *SASL, "-X", password, "--check", "brokers")
    assert (result.exit_code, "1 of 1 answer" in result.stdout) == (0, True)


def test_the_right_password_is_let_in(run: Run, guarded: Broker) -> None:
    result = run("topic", "list", "-b", guarded.bootstrap, *SASL, "-X", "sasl.password=s3cret")
    assert (result.exit_code, result.stderr) == (0, "no topics yet; make one with `headrace topic create NAME`\n")


@pytest.mark.parametrize("command", [["topic", "list"], ["top", "--once"]], ids=["topic list", "top"])
def test_a_client_without_a_password_is_told_why_it_is_not_let_in(
    run: Run, guarded: Broker, command: list[str]
) -> None:
    result = run(*command, "-b", guarded.bootstrap)
    assert result.exit_code == 3
    assert "security.protocol" in result.stderr


@pytest.mark.parametrize("command", COMMANDS[::2], ids=ids[::2])
def test_a_broker_that_does_not_answer_is_not_waited_for(run: Run, silent: str, command: list[str]) -> None:
    result = run(*command, "-b", silent, stdin="")
    assert result.exit_code == 3
    assert f"no broker answers at {silent} (takes connections, but does not answer)" in result.stderr


def test_every_address_is_named_with_its_reason(run: Run, silent: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        free = f"127.0.0.1:{closed.getsockname()[1]}"
    result = run("topic", "list", "-b", f"{free},{silent}")
    assert result.exit_code == 3
    assert f"{free} (connection refused), {silent} (takes connections, but does not answer)" in result.stderr
