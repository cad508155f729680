"""Where a command connects, and as whom: options, files, the environment, profiles; and `headrace profile`."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.profiles import Profiles, config_path
from headrace.config import PLAIN_USERS
from headrace.testing import Broker
from tests.support.cli import Run

pytestmark = pytest.mark.slow

USERS = 'PlainLoginModule required user_alice="s3cret";'
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
JAAS = f'sasl.jaas.config={PLAIN} required username="alice" password="s3cret";'
SASL = ["security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN"]
COMMANDS = [
    ["topic", "list"],
    ["topic", "describe", "orders"],
    ["group", "list"],
    ["cluster", "describe"],
    ["txn", "list"],
    ["consume", "orders"],
    ["produce", "orders"],
]


@pytest.fixture(scope="module")
def guarded() -> Iterator[Broker]:
    with Broker({"listeners": "SASL_PLAINTEXT://127.0.0.1:0", PLAIN_USERS: USERS}) as running:
        yield running


@pytest.fixture
def client_file(tmp_path: Path, guarded: Broker) -> Path:
    path = tmp_path / "client.properties"
    path.touch(0o600)
    path.write_text("\n".join([f"bootstrap.servers={guarded.bootstrap}", *SASL, JAAS, "group.id=app", "acks=1", ""]))
    return path


def test_every_command_takes_kafkas_command_config(run: Run, client_file: Path) -> None:
    assert run("topic", "create", "orders", "--if-not-exists", "-F", str(client_file)).exit_code == 0
    for command in COMMANDS:
        result = run(*command, "--command-config", str(client_file), stdin="")
        assert (result.exit_code, result.exception) == (0, None), (command, result.stderr)


def test_a_profile_in_use_needs_no_option(run: Run, guarded: Broker) -> None:
    settings = [f"bootstrap={guarded.bootstrap}", *SASL, "sasl.username=alice", "sasl.password"]
    assert run("profile", "set", "prod", *settings, stdin="s3cret\n").stdout == "prod: created, and in use\n"
    assert run("cluster", "describe").exit_code == 0
    assert run("topic", "list").exit_code == 0
    assert run("group", "list", "--profile", "prod").exit_code == 0


def test_what_is_nearer_to_the_command_counts(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each address is one at which nobody listens, so that the error tells which one counts."""

    def target(*options: str) -> str:
        return run("topic", "list", *options).stderr.partition("answers at ")[2].partition(" ")[0]

    file, other = tmp_path / "a.properties", tmp_path / "b.properties"
    file.write_text("bootstrap.servers=127.0.0.1:2\n")
    other.write_text("bootstrap.servers=127.0.0.1:4\n")
    assert target() == "127.0.0.1:9092" or not target()
    run("profile", "set", "used", "bootstrap=127.0.0.1:6")
    run("profile", "set", "named", "bootstrap=127.0.0.1:3")
    assert target() == "127.0.0.1:6"
    monkeypatch.setenv("HEADRACE_PROFILE", "named")
    assert target() == "127.0.0.1:3"
    monkeypatch.setenv("HEADRACE_PROFILE", "used")
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", "127.0.0.1:5")
    assert target() == "127.0.0.1:5"
    monkeypatch.setenv("HEADRACE_CONFIG", str(other))
    assert target() == "127.0.0.1:4"
    assert target("--profile", "named") == "127.0.0.1:3"
    assert target("--profile", "named", "-F", str(file)) == "127.0.0.1:2"
    assert target("--profile", "named", "-F", str(file), "-b", "127.0.0.1:1") == "127.0.0.1:1"


def test_the_password_of_the_profile_in_use_goes_to_no_other_brokers(run: Run, guarded: Broker) -> None:
    run(
        "profile",
        "set",
        "prod",
        "bootstrap=127.0.0.1:6",
        *SASL,
        "sasl.username=alice",
        "sasl.password",
        stdin="s3cret\n",
    )
    assert run("topic", "list", "-b", guarded.bootstrap).exit_code == 3
    assert run("topic", "list", "-b", guarded.bootstrap, "--profile", "prod").exit_code == 0


def test_credentials_may_come_from_the_environment(run: Run, guarded: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_SECURITY_PROTOCOL", "SASL_PLAINTEXT")
    monkeypatch.setenv("HEADRACE_SASL_MECHANISM", "PLAIN")
    monkeypatch.setenv("HEADRACE_SASL_USERNAME", "alice")
    monkeypatch.setenv("HEADRACE_SASL_PASSWORD", "s3cret")
    assert run("topic", "list", "-b", guarded.bootstrap).exit_code == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "security.protocl=SSL\n",
            "line 1: no client has the setting security.protocl; did you mean",
        ),
        ("\nsecurity.protocol=SASL\n", "line 2: "),
        ("bootstrap.servers=nowhere\n", "line 1: 'nowhere' is not HOST:PORT"),
    ],
)
@pytest.mark.parametrize("command", [["topic", "list"], ["cluster", "describe"]], ids=" ".join)
def test_a_wrong_line_is_named(
    run: Run, guarded: Broker, tmp_path: Path, command: list[str], text: str, expected: str
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(text)
    brokers = [] if "bootstrap" in text else ["-b", guarded.bootstrap]
    result = run(*command, "-F", str(file), *brokers)
    assert result.exit_code == 2
    assert f"{file} {expected}" in result.stderr


def test_a_file_that_others_may_read_is_warned_of(run: Run, client_file: Path) -> None:
    assert "chmod 600" not in run("topic", "list", "-F", str(client_file)).stderr
    client_file.chmod(0o644)
    assert f"chmod 600 {client_file}" in run("topic", "list", "-F", str(client_file)).stderr


def test_a_client_file_that_is_not_there_is_named(run: Run, tmp_path: Path) -> None:
    result = run("topic", "list", "-F", str(tmp_path / "none"))
    assert (result.exit_code, "none cannot be read: No such file" in result.stderr) == (2, True)


def test_profiles_are_listed_shown_used_and_deleted(run: Run) -> None:
    assert "no profiles in" in run("profile", "list").stderr
    run("profile", "set", "local", "bootstrap=127.0.0.1:9092")
    run("profile", "set", "prod", "bootstrap=b1:9092", "sasl.password", stdin="s3cret\n")
    assert [p["profile"] for p in json.loads(run("profile", "list", "--json").stdout) if p["in_use"]] == ["local"]
    assert run("profile", "use", "prod").exit_code == 0
    shown = json.loads(run("profile", "show", "--json").stdout)
    assert shown["settings"] == {"bootstrap.servers": "b1:9092", "sasl.password": "********"}
    assert "s3cret" not in run("profile", "show", "prod").output
    assert run("profile", "delete", "prod").exit_code == 0
    assert (Profiles().names, Profiles().default) == (["local"], None)


def test_the_file_of_profiles_is_for_its_owner_and_keeps_comments(run: Run) -> None:
    path = config_path()
    path.parent.mkdir(parents=True)
    path.write_text('# mine\n[profile.a]\nsasl.username = "x" # me\n# note\n[profile.b]\n"client.id" = "c"\n')
    assert run("profile", "set", "a", "bootstrap=h:1", "client.id=7").exit_code == 0
    assert run("profile", "use", "b").exit_code == 0
    assert path.stat().st_mode & 0o777 == 0o600
    text = path.read_text()
    assert all(comment in text for comment in ("# mine", "# me", "# note"))
    assert {k: v.value for k, v in Profiles().settings("a").items()} == {
        "sasl.username": "x",
        "bootstrap.servers": "h:1",
        "client.id": "7",
    }
    assert {k: v.value for k, v in Profiles().settings("b").items()} == {"client.id": "c"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["set", "prod", "sasl.password=s3cret"], "would be seen by everybody"),
        (["set", "prod", "sasl.pasword=s3cret"], "did you mean sasl.password?"),
        (["set", "prod", "bootstrap=nowhere"], "is not HOST:PORT"),
        (["set", "pr od", "bootstrap=h:1"], "a name has letters"),
        (["set", "prod"], "nothing to set"),
        (["use", "prod"], "there is no profile 'prod'"),
        (["show"], "no profile is in use"),
    ],
)
def test_mistakes_are_told(run: Run, arguments: list[str], expected: str) -> None:
    result = run("profile", *arguments)
    assert (result.exit_code, expected in result.stderr) == (2, True), result.stderr


def test_a_file_that_is_no_toml_is_told_with_its_line(run: Run) -> None:
    config_path().parent.mkdir(parents=True)
    config_path().write_text('default = "x"\n[profile.x\n')
    result = run("topic", "list")
    assert (result.exit_code, "config.toml: Expected" in result.stderr, "line 2" in result.stderr) == (2, True, True)


def test_a_password_on_the_command_line_is_not_seen_by_ps() -> None:
    code = (
        "from headrace.cli.arguments import hide_secrets; hide_secrets();"
        "print(open('/proc/self/cmdline').read().replace(chr(0), ' '))"
    )
    arguments = [sys.executable, "-c", code, "-X", "sasl.password=hunter2", "-X", "client.id=me"]
    shown = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
    assert "hunter2" not in shown
    assert "-X sasl.password=******* -X client.id=me" in shown
