"""Programs in other languages log in: Go, Java and JavaScript, with what is right, wrong, rotated and handed on."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from headrace.testing import Broker
from tests.compat.provision import Unavailable as NotInstalled
from tests.compat.provision import node_with_kafkajs
from tests.support.logins import ALICE, MECHANISMS, PASSWORD, SCRAM, Issuer, login_settings
from tests.support.maven import Artifact, Unavailable, fetched

pytestmark = pytest.mark.long
CACHE: Final = Path(sys.prefix) / "compat"
KAFKA: Final = "4.1.0"
FRANZ_GO: Final = "github.com/twmb/franz-go/pkg/kgo@v1.22.2"
_SECONDS: Final = 900
_JVM: Final = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
)
_TOKENS: Final = "org.apache.kafka.tools.DelegationTokenCommand"
_CONFIGS: Final = "kafka.admin.ConfigCommand"
_PRODUCER: Final = "org.apache.kafka.tools.ConsoleProducer"
_CONSUMER: Final = "org.apache.kafka.tools.consumer.ConsoleConsumer"

JAVASCRIPT: Final = """
const { Kafka, logLevel } = require("kafkajs");
const { bootstrap, mechanism, username, password, token } = JSON.parse(process.argv[1]);
const sasl = mechanism === "OAUTHBEARER"
  ? { mechanism: "oauthbearer", oauthBearerProvider: async () => ({ value: token }) }
  : { mechanism: mechanism.toLowerCase(), username, password };
const kafka = new Kafka({ brokers: [bootstrap], sasl, ssl: false, logLevel: logLevel.NOTHING, retry: { retries: 0 } });
(async () => {
  const producer = kafka.producer();
  try {
    await producer.connect();
    for (let i = 0; i < 4; i++) {
      await producer.send({ topic: "letters", messages: [{ value: "hello" }] });
      await new Promise((done) => setTimeout(done, 1000));
    }
    console.log("sent");
  } catch (error) {
    console.log(error.name + " " + error.message);
  } finally {
    await producer.disconnect();
  }
})();
"""


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def broker(issuer: Issuer) -> Iterator[Broker]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.security.failed_logins.LONGEST_DELAY", 0.05)
        settings = login_settings(issuer, connections_max_reauth_ms="12000")
        settings["listeners"] = "SASL_PLAINTEXT://127.0.0.1:0"
        with Broker(settings) as running:
            yield running


def executed(*command: str, given: str = "", environment: Mapping[str, str] | None = None) -> str:
    """What a program has printed; it may have failed."""
    done = subprocess.run(
        command,
        input=given,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("bits", [256, 512])
def test_franz_gos_own_tests_of_scram_pass(broker: Broker, tmp_path: Path, bits: int) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("there is no Go")
    (tmp_path / "go.mod").write_text("module headrace\ngo 1.26\n")
    environment = {
        "KGO_TEST_SCRAM_SEEDS": broker.bootstrap,
        "KGO_TEST_SCRAM": f"{ALICE}:{PASSWORD}:{bits}",
        "KGO_SEEDS": broker.bootstrap,
        "KGO_TEST_RF": "1",
    }
    fetching = subprocess.run(
        [go, "get", "-C", str(tmp_path), "-t", FRANZ_GO], capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if fetching.returncode:
        pytest.skip(f"franz-go cannot be fetched: {fetching.stderr[-300:]}")
    package = FRANZ_GO.partition("@")[0]
    said = executed(
        go, "test", "-C", str(tmp_path), package, "-run", "^TestSCRAM", "-count=1", "-v", environment=environment
    )
    assert "--- PASS: TestSCRAMAuth " in said, said
    assert "--- PASS: TestSCRAMAuthBadCredentials " in said, said


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafkajs_logs_in_and_goes_on_when_sessions_end(broker: Broker, issuer: Issuer, mechanism: str) -> None:
    try:
        node, environment = node_with_kafkajs(CACHE)
    except NotInstalled as reason:
        pytest.skip(str(reason))

    def said(password: str, token: str) -> str:
        login = {"bootstrap": broker.bootstrap, "mechanism": mechanism, "username": ALICE}
        words = json.dumps({**login, "password": password, "token": token})
        return executed(node, "-e", JAVASCRIPT, words, environment=environment).strip()

    assert said(PASSWORD, issuer.token()) == "sent"
    assert "KafkaJSSASLAuthenticationError" in said("wrong", issuer.token(seconds=-60))


class KafkasTools:
    """Programs of Apache Kafka, as somebody who has logged in."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        java = shutil.which("java")
        if java is None:
            pytest.skip("there is no Java")
        wanted = (
            Artifact("org.apache.kafka", "kafka_2.13", KAFKA),
            Artifact("org.apache.kafka", "kafka-tools", KAFKA),
            Artifact("org.slf4j", "slf4j-simple", "1.7.36"),
        )
        try:
            jars = fetched(CACHE / f"kafka-tools-{KAFKA}", wanted)
        except Unavailable as reason:
            pytest.skip(str(reason))
        self._java = (java, *_JVM, "-cp", f"{jars}/*")
        self._bootstrap = bootstrap
        self._directory = directory

    def login(self, mechanism: str, user: str, password: str, more: str = "") -> str:
        """A file with a client's settings."""
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        secret = password.replace("\\", "\\\\").replace('"', '\\"')
        file = self._directory / f"{mechanism}-{user}.properties"
        file.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config="
            f'org.apache.kafka.common.security.{module} required username="{user}" password="{secret}"{more};\n'
            "request.timeout.ms=8000\ndefault.api.timeout.ms=9000\n"
        )
        return str(file)

    def run(self, program: str, *arguments: str, given: str = "") -> str:
        return executed(*self._java, program, "--bootstrap-server", self._bootstrap, *arguments, given=given)

    def users(self, login: str) -> str:
        """What is told of all users."""
        return self.run(_CONFIGS, "--describe", "--entity-type", "users", "--command-config", login)

    def sends(self, login: str) -> bool:
        """Whether a message gets through, and back."""
        said = self.run(_PRODUCER, "--topic", "letters", "--producer.config", login, "--sync", given="hello\n")
        wanted = ("--topic", "letters", "--from-beginning", "--max-messages", "1", "--timeout-ms", "8000")
        read = self.run(_CONSUMER, *wanted, "--consumer.config", login)
        assert "ERROR" not in said, said
        assert "hello" in read, read
        return True


@pytest.fixture
def tools(broker: Broker, tmp_path: Path) -> KafkasTools:
    return KafkasTools(broker.bootstrap, tmp_path)


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM])
def test_java_logs_in(tools: KafkasTools, mechanism: str) -> None:
    assert tools.sends(tools.login(mechanism, ALICE, PASSWORD))
    refused = tools.run(
        _CONFIGS, "--describe", "--entity-type", "users", "--command-config", tools.login(mechanism, ALICE, "no")
    )
    assert "SaslAuthenticationException" in refused


def test_kafkas_own_tool_makes_changes_and_deletes_users(tools: KafkasTools) -> None:
    admin = ("--command-config", tools.login("SCRAM-SHA-512", ALICE, PASSWORD))
    bob = ("--entity-type", "users", "--entity-name", "bob")
    for password in ("first", "second"):
        both = f"SCRAM-SHA-256=[iterations=8192,password={password}],SCRAM-SHA-512=[password={password}]"
        assert "Completed updating config for user bob" in tools.run(
            _CONFIGS, *admin, "--alter", *bob, "--add-config", both
        )
    described = tools.run(_CONFIGS, *admin, "--describe", *bob)
    assert "SCRAM-SHA-256=iterations=8192, SCRAM-SHA-512=iterations=4096" in described
    assert tools.sends(tools.login("SCRAM-SHA-256", "bob", "second"))
    assert "SaslAuthenticationException" in tools.run(
        _CONFIGS, "--describe", *bob, "--command-config", tools.login("SCRAM-SHA-256", "bob", "first")
    )
    assert "Completed" in tools.run(_CONFIGS, *admin, "--alter", *bob, "--delete-config", "SCRAM-SHA-256")
    assert "SCRAM-SHA-512=iterations=4096" in tools.run(_CONFIGS, *admin, "--describe", *bob)


def test_a_delegation_token_is_made_used_renewed_and_ended_by_kafkas_own_tool(tools: KafkasTools) -> None:
    admin = ("--command-config", tools.login("SCRAM-SHA-512", ALICE, PASSWORD))
    made = tools.run(_TOKENS, *admin, "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    line = next(line for line in made.splitlines() if "User:alice" in line)
    token_id, hmac = line.split()[:2]
    by_token = tools.login("SCRAM-SHA-256", token_id, hmac, ' tokenauth="true"')
    assert tools.sends(by_token)
    assert "DelegationTokenDisabled" not in made
    again = tools.run(_TOKENS, "--command-config", by_token, "--create", "--max-life-time-period", "-1")
    assert "UnsupportedByAuthenticationException" in again
    assert token_id in tools.run(_TOKENS, *admin, "--describe", "--owner-principal", "User:alice")
    assert "Completed renew operation" in tools.run(
        _TOKENS, *admin, "--renew", "--renew-time-period", "-1", "--hmac", hmac
    )
    assert "Completed expire operation" in tools.run(
        _TOKENS, *admin, "--expire", "--expiry-time-period", "-1", "--hmac", hmac
    )
    assert "SaslAuthenticationException" in tools.run(
        _CONFIGS, "--describe", "--entity-type", "users", "--command-config", by_token
    )
