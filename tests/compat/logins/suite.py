"""Every client through every way to log in, over TLS, and with what must not let anybody in."""

import json
import os
import shutil
import ssl
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient, NewTopic

from headrace.cli.certificates import authority_path, issue, load_authority, make_authority
from headrace.net.ports import free_ports
from headrace.ops.security import SecurityOperations
from headrace.protocol.scram import SCRAM_MECHANISMS
from tests.support.logins import AUDIENCE, ISSUER, Issuer

from ..broker import OwnBroker
from ..model import NotOffered
from ..provision import Unavailable, go_program, java_command, node_with_kafkajs
from ..runner import Outcome, Status, attempt

ADMIN: Final = "admin"
PASSWORD: Final = "s3cret, and=more"
WRONG: Final = "guessed"
ATTEMPT_SECONDS: Final = 90.0
RENEWED_SECONDS: Final = 30.0
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_SCRAM: Final = "SCRAM-SHA-512"
_HERE: Final = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """What a client is told on stdin."""

    bootstrap: str
    ca: str
    topic: str
    group: str
    protocol: str = "SASL_SSL"
    mechanism: str = ""
    user: str = ""
    secret: str = field(default="", repr=False)
    is_token: bool = False
    certificate: str = ""
    key: str = ""
    keystore: str = ""
    count: int = 3
    pause_ms: int = 0
    timeout_s: float = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginClient:
    """A program that logs in as it is told; `no_tokens` tells why it cannot use delegation tokens."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    no_tokens: str = ""

    def start(self, login: Login) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [*self.command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, **self.environment},
            text=True,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(login)))
        process.stdin.close()
        process.stdin = None
        return process


@dataclass(slots=True, kw_only=True)
class LoginResult:
    """What was seen of one client."""

    name: str
    unavailable: str = ""
    outcomes: dict[str, Outcome] = field(default_factory=dict)


class Scene:
    """A broker on two listeners, its authority, its users, and the issuer of its tokens."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.secrets = directory / "secrets"
        self.issuer = Issuer(directory)
        other = directory / "other"
        other.mkdir(exist_ok=True)
        self.other_issuer = Issuer(other)
        make_authority(self.secrets, "Compat CA")
        self.renew()
        self.alice = issue(self.secrets, "alice", load_authority(self.secrets), is_client=True)
        self.address, self.by_certificate = (f"127.0.0.1:{port}" for port in free_ports(2))
        self._broker = OwnBroker(directory / "broker", self._settings(), self.address)
        self._number = 0

    def _settings(self) -> dict[str, str]:
        users = ";".join(f'{each}=[name={ADMIN},password="{PASSWORD}"]' for each in SCRAM_MECHANISMS)
        return {
            "listeners": f"SASL_SSL://{self.address},SSL://{self.by_certificate}",
            "listener.name.ssl.ssl.client.auth": "required",
            "ssl.keystore.location": str(self.secrets / "broker.keystore.pem"),
            "ssl.truststore.location": str(authority_path(self.secrets)),
            "sasl.enabled.mechanisms": ",".join(_MECHANISMS),
            "listener.name.sasl_ssl.plain.sasl.jaas.config": f'PlainLoginModule required user_{ADMIN}="{PASSWORD}";',
            "sasl.oauthbearer.jwks.endpoint.url": self.issuer.file.as_uri(),
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "delegation.token.secret.key": "the key of all tokens",
            "headrace.add.scram": users,
        }

    def renew(self) -> None:
        """Another certificate for the broker, in the place of the last one."""
        issue(self.secrets, "broker", load_authority(self.secrets), hosts=["127.0.0.1", "localhost"])

    @contextmanager
    def running(self) -> Iterator["Scene"]:
        with self._broker:
            yield self

    @property
    def admin_settings(self) -> dict[str, str]:
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": _SCRAM,
            "sasl.username": ADMIN,
            "sasl.password": PASSWORD,
            "ssl.ca.location": str(authority_path(self.secrets)),
        }

    def operations(self) -> SecurityOperations:
        return SecurityOperations(self.address, self.admin_settings)

    def login(self, mechanism: str, secret: str, user: str = ADMIN, **more: Any) -> Login:
        """One with a topic and a group of its own."""
        self._number += 1
        name = f"logins-{self._number}"
        admin = AdminClient({**self.admin_settings, "log_level": 0})  # it must outlive what it was asked
        admin.create_topics([NewTopic(name, 1)])[name].result(30)
        made = Login(
            bootstrap=self.address,
            ca=str(authority_path(self.secrets)),
            topic=name,
            group=name,
            mechanism=mechanism,
            user=user,
            secret=secret,
        )
        return replace(made, **more)

    def served_certificate(self) -> str:
        host, _, port = self.address.rpartition(":")
        return ssl.get_server_certificate((host, int(port))).strip()


def let_in(client: LoginClient, login: Login) -> None:
    """The client writes and reads what it wrote."""
    problem = _ended(client.start(login))
    assert not problem, problem


def kept_out(client: LoginClient, login: Login) -> None:
    """The client comes to nothing, and says so by itself."""
    problem = _ended(client.start(replace(login, timeout_s=5.0, count=1)))
    assert problem, "it was let in"


def _ended(process: "subprocess.Popen[str]") -> str:
    """Why a program failed; empty where it did not."""
    try:
        _, errors = process.communicate(timeout=ATTEMPT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise AssertionError("it neither works nor gives up") from None
    lines = errors.strip().splitlines()
    return "" if not process.returncode else (lines[-1] if lines else f"code {process.returncode}")


# Scenarios


def _mechanism(mechanism: str, scene: Scene, client: LoginClient) -> None:
    secret = scene.issuer.token(ADMIN) if mechanism == "OAUTHBEARER" else PASSWORD
    let_in(client, scene.login(mechanism, secret))


def _certificate(scene: Scene, client: LoginClient) -> None:
    own = {"certificate": scene.alice.certificate, "key": scene.alice.key, "keystore": scene.alice.keystore}
    more = {name: str(path) for name, path in own.items()}
    let_in(client, scene.login("", "", protocol="SSL", bootstrap=scene.by_certificate, **more))


def _no_certificate(scene: Scene, client: LoginClient) -> None:
    kept_out(client, scene.login("", "", protocol="SSL", bootstrap=scene.by_certificate))


def _token(scene: Scene, client: LoginClient) -> None:
    if client.no_tokens:
        raise NotOffered(client.no_tokens)
    with scene.operations() as operations:
        token = operations.create_token()
        login = scene.login(_SCRAM, b64encode(token.hmac).decode(), token.id, is_token=True)
        let_in(client, login)
        operations.expire_token(token)
    kept_out(client, login)


def _wrong_password(scene: Scene, client: LoginClient) -> None:
    for mechanism in ("PLAIN", *SCRAM_MECHANISMS):
        kept_out(client, scene.login(mechanism, WRONG))


def _expired(scene: Scene, client: LoginClient) -> None:
    kept_out(client, scene.login("OAUTHBEARER", scene.issuer.token(ADMIN, seconds=-120)))


def _of_another(scene: Scene, client: LoginClient) -> None:
    kept_out(client, scene.login("OAUTHBEARER", scene.other_issuer.token(ADMIN)))


def _changed(scene: Scene, client: LoginClient) -> None:
    user = f"changing-{client.name}"
    with scene.operations() as operations:
        for password in ("first", "second"):
            operations.set_password(user, [SCRAM_MECHANISMS[_SCRAM]], password)
            let_in(client, scene.login(_SCRAM, password, user))
        kept_out(client, scene.login(_SCRAM, "first", user))
        operations.delete_credentials(user, [SCRAM_MECHANISMS[_SCRAM]])
    kept_out(client, scene.login(_SCRAM, "second", user))


def _renewed(scene: Scene, client: LoginClient) -> None:
    process = client.start(scene.login(_SCRAM, PASSWORD, count=60, pause_ms=100))
    try:
        for _ in range(3):
            time.sleep(1.5)
            scene.renew()
    finally:
        problem = _ended(process)
    assert not problem, problem
    expected = (scene.secrets / "broker.pem").read_text()
    deadline = time.monotonic() + RENEWED_SECONDS
    while scene.served_certificate() not in expected:
        assert time.monotonic() < deadline, "the broker still shows an old certificate"
        time.sleep(0.5)
    let_in(client, scene.login(_SCRAM, PASSWORD))


SCENARIOS: Final[Mapping[str, Callable[[Scene, LoginClient], None]]] = {
    **{f"{mechanism} over TLS": partial(_mechanism, mechanism) for mechanism in _MECHANISMS},
    "a delegation token, until it is expired": _token,
    "a client certificate (mutual TLS)": _certificate,
    "without a certificate where one is required: kept out": _no_certificate,
    "a wrong password (PLAIN, SCRAM): kept out": _wrong_password,
    "a token that has expired: kept out": _expired,
    "a token of another issuer: kept out": _of_another,
    "a password that is changed, and a user deleted": _changed,
    "the broker's certificate renewed three times while it writes": _renewed,
}


# Clients


def _python(name: str, _cache: Path) -> LoginClient:
    module = "tests.compat.logins.python_client"
    return LoginClient(
        name=name,
        command=(sys.executable, "-W", "ignore", "-m", module, name),
        no_tokens=f"{name} sends no tokenauth=true, which says that it is a token",
    )


def _kafkajs(cache: Path) -> LoginClient:
    node, environment = node_with_kafkajs(cache)
    return LoginClient(
        name="kafkajs",
        command=(node, str(_HERE / "node" / "login.js")),
        environment=environment,
        no_tokens="kafkajs sends no tokenauth=true, which says that it is a token",
    )


def _java(label: str, wheel_version: str, cache: Path) -> LoginClient:
    return LoginClient(name=label, command=(*java_command(wheel_version, cache), "Login"))


def _franz_go(cache: Path) -> LoginClient:
    return LoginClient(name="franz-go", command=(str(go_program(cache)),))


CLIENTS: Final[Mapping[str, Callable[[Path], LoginClient]]] = {
    **{name: partial(_python, name) for name in ("confluent-kafka", "kafka-python", "aiokafka")},
    "kafkajs": _kafkajs,
    "franz-go": _franz_go,
    "java-3.9": partial(_java, "java-3.9", "3.0.7.0"),
    "java-4.3": partial(_java, "java-4.3", "3.6.3.0"),
}


def run_logins(work: Path, cache: Path, say: Callable[[str], None], only: Sequence[str] = ()) -> list[LoginResult]:
    """Every client through every scenario, on a broker of our own; `say` is told what happens."""
    results: list[LoginResult] = []
    directory = work / "logins"
    with ExitStack() as held:
        scene = held.enter_context(Scene(directory).running())
        for name, prepare in CLIENTS.items():
            if only and name not in only:
                continue
            result = LoginResult(name=name)
            results.append(result)
            try:
                client = prepare(cache)
            except Unavailable as reason:
                result.unavailable = str(reason)
                say(f"logins of {name}: not run: {reason}")
                continue
            began = time.monotonic()
            for title, scenario in SCENARIOS.items():
                outcome = attempt(partial(scenario, scene, client))
                result.outcomes[title] = outcome
                if outcome.status is Status.FAILED:
                    say(f"logins of {name}: {title}: {outcome.status.value}: {outcome.note}")
            passed = sum(one.status is Status.PASSED for one in result.outcomes.values())
            say(f"logins of {name}: {passed} of {len(SCENARIOS)} in {time.monotonic() - began:.0f} s")
    shutil.rmtree(directory, ignore_errors=True)
    return results
