import ast
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace import __version__
from tests.support.cli import Run
from tests.support.process import free_port

COMMANDS = [
    ("up",),
    ("broker",),
    ("gateway",),
    ("zookeeper",),
    ("topic", "create"),
    ("topic", "list"),
    ("topic", "describe"),
    ("topic", "alter"),
    ("topic", "delete"),
    ("produce",),
    ("consume",),
    ("group", "list"),
    ("group", "describe"),
    ("config", "describe"),
    ("config", "set"),
    ("config", "unset"),
    ("log", "dump"),
    ("log", "verify"),
    ("schema", "list"),
    ("schema", "show"),
    ("schema", "register"),
    ("schema", "check"),
    ("schema", "delete"),
    ("schema", "compatibility"),
    ("profile", "list"),
    ("profile", "show"),
    ("profile", "use"),
    ("profile", "set"),
    ("profile", "delete"),
    ("txn", "abort"),
    ("pipeline", "run"),
    ("pipeline", "check"),
    ("pipeline", "new"),
    ("acl", "list"),
    ("acl", "add"),
    ("acl", "remove"),
    ("user", "list"),
    ("user", "create"),
    ("user", "passwd"),
    ("user", "delete"),
    ("quota", "list"),
    ("quota", "set"),
    ("quota", "remove"),
    ("tenant", "create"),
    ("tenant", "list"),
    ("tenant", "delete"),
    ("token", "create"),
    ("token", "list"),
    ("token", "renew"),
    ("token", "expire"),
    ("cert", "ca"),
    ("cert", "issue"),
    ("audit",),
    ("top",),
    ("doctor",),
]


@pytest.fixture
def closed_port() -> int:
    return free_port()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example_and_json(run: Run, command: tuple[str, ...]) -> None:
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert f"headrace {' '.join(command)}" in result.output.partition("Examples:")[2]
    assert "--json" in result.output


def test_version(run: Run) -> None:
    assert run("--version").output == f"headrace {__version__}\n"


def test_no_arguments_show_the_commands(run: Run) -> None:
    assert "produce" in run().output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["up", "--brokers", "0"], "greater than or equal to 1"),
        (["up", "--brokers", "3", "--set", "node.id=4"], "use --brokers"),
        (["up", "--kafka-port", "9000", "--http-port", "9000"], "both 9000"),
        (["up", "--brokers", "2", "--set", "headrace.metrics.listener=0.0.0.0:9644"], "cannot share an address"),
        (["broker", "--metrics", "9644"], "an address like 127.0.0.1:9644"),
        (["up", "--set", "log.dirs=/x"], "use --data"),
        (["broker", "--listen", "nowhere"], "'nowhere' is not HOST:PORT"),
        (["broker", "--listen", "127.0.0.1:99999"], "not a port between 0 and 65535"),
        (["broker", "--set", "no.such.setting=1"], "no.such.setting"),
        (["broker", "--set", "num.partitions"], "--set 'num.partitions' is not NAME=VALUE"),
        (["broker", "--set", "num.partitions=many"], "num.partitions"),
        (["broker", "--config", "/no/such/file"], "/no/such/file"),
        (["broker", "--listen", "0.0.0.0:0"], "advertised.listeners"),
        (["broker", "--listen", "10.0.0.1:9092"], "--allow-anonymous"),
        (["broker", "--listen", "SSL://10.0.0.1:9092"], "ssl.client.auth=required"),
        (["broker", "--listen", "127.0.0.1:1", "--listen", "127.0.0.1:2"], "more than one listener PLAINTEXT"),
        (["broker", "--listen", "127.0.0.1:1", "--listen", "SSL://127.0.0.1:1"], "must have a different port than 1"),
        (["broker", "--listen", "TLS://127.0.0.1:1"], "what the listener TLS speaks is not known"),
        (["node", "--listen", "10.0.0.1:9092", "--store", "zookeeper://z:1"], "--allow-anonymous"),
        (["gateway", "--http", "0.0.0.0:8080"], "--allow-anonymous"),
        (["gateway", "--http", "[::]:8080", "--client-ca", __file__], "--allow-anonymous"),
        (["gateway", "--http", "::1:80"], "write an IPv6 address as [::1]:9092"),
        (["gateway", "--bootstrap", ","], "no address given"),
        (["topic", "create", "x", "--config", "=1"], "--config '=1' is not NAME=VALUE"),
        (["topic", "create", "x", "--partitions", "0"], "--partitions"),
        (["topic", "create"], "See `headrace topic create --help`"),
        (["topic", "crate"], "No such command 'crate'. Did you mean 'create', 'alter'? See `headrace topic --help`."),
        (["--no-such-option"], "No such option"),
        (["produce", "x", "--acks", "7"], "--acks"),
        (["topic", "alter", "x"], "nothing to change"),
        (["topic", "alter", "x", "-c", "a=1", "--delete-config", "a"], "'a' is in both"),
        (["topic", "delete", "x"], "needs --yes"),
        (["produce", "x", "/no/such/file"], "'/no/such/file' does not exist"),
        (["produce", "x", "/tmp"], "is a directory"),
        (["produce", "x", "--key", "a", "--key-separator", ":"], "exclude each other"),
        (["produce", "x", "--idempotent", "--acks", "1"], "--idempotent needs --acks all"),
        (["produce", "x", "--timestamp", "yesterday"], "'yesterday' is not a time"),
        (["produce", "x", "--delimiter", ""], "--delimiter is empty"),
        (["consume", "x", "--from", "noon"], "'noon' is not a position"),
        (["consume", "x", "--format", "xml"], "'xml' is not known"),
        (["consume", "x", "--format", "{valeu}"], "{valeu}"),
        (["consume", "x", "--follow", "--until", "end"], "--follow has no end"),
        (["pipeline", "run", "/no/such/file"], "there is no file /no/such/file"),
        (["pipeline", "check", "/tmp"], "/tmp is a directory"),
        (["pipeline", "run", "x.yaml", "--master", "local", "--remote", "sc://h"], "--master and --remote"),
        (["pipeline", "run", "x.yaml", "--conf", "spark.x"], "--conf 'spark.x' is not NAME=VALUE"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_value_is_named_in_one_line(run: Run, arguments: list[str], expected: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert result.stderr.startswith("headrace: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize("arguments", [["topic", "list"], ["consume", "x"], ["produce", "x"]], ids=" ".join)
def test_an_absent_broker_has_its_own_exit_code(run: Run, arguments: list[str], closed_port: int) -> None:
    result = run(*arguments, "--bootstrap", f"127.0.0.1:{closed_port}")
    assert result.exit_code == 3
    assert f"127.0.0.1:{closed_port} (connection refused)" in result.stderr
    assert "headrace up" in result.stderr


def test_unknown_client_property_is_a_failure_in_one_line(run: Run) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        result = run("topic", "list", "-b", address, "-X", "no.such=1")
    assert result.exit_code == 2
    assert 'No such configuration property: "no.such"' in result.stderr


def test_start_up_imports_nothing_heavy() -> None:
    code = "import sys, headrace.cli.main; print(sorted(m for m in sys.modules if '.' not in m))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded = set(ast.literal_eval(output))
    assert not loaded & {
        "confluent_kafka",
        "kio",
        "uvloop",
        "structlog",
        "rich",
        "cramjam",
        "numpy",
        "pyspark",
        "yaml",
        "pyarrow",
    }


def test_no_command_file_is_long() -> None:
    files = list((Path(headrace.__file__).parent / "cli").rglob("*.py"))
    assert max(len(file.read_text().splitlines()) for file in files) < 500
