"""`headrace up --secure`: what a secured cluster on this machine needs, made once and used again.

In the data directory, for its owner alone:

    secrets/ca.pem, ca.key             the authority that brokers and clients trust
    secrets/broker.keystore.pem        the certificate of the brokers, for the names of this machine
    secrets/gateway.pem, gateway.key   the gateway's, for HTTPS
    secrets/admin.password             of the first user, who may do everything; gateway.password of the gateway's own
    secrets/push.keys                  what the gateway encrypts push subscriptions and their secrets with
    secrets/zookeeper.password         of the brokers, at a ZooKeeper that is started for them
    secrets/admin.properties           a client file for `headrace -F`, kcat and librdkafka
    secrets/admin-java.properties      the same for Kafka's own tools

Certificates are renewed at a start when they are about to end, or are for other names; passwords stay.
"""

import base64
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .certificates import (
    Authority,
    authority_path,
    is_fresh,
    issue,
    load_authority,
    make_authority,
    make_private_directory,
    write_secret,
)
from .console import bad_input
from .up import SECRETS, SECURE_LISTENER

ADMIN: Final = "admin"
GATEWAY: Final = "gateway"
MECHANISM: Final = "SCRAM-SHA-512"
ADD_SCRAM: Final = "HEADRACE_ADD_SCRAM"
ZOOKEEPER_AUTH: Final = "HEADRACE_ZOOKEEPER_AUTH"
"""Variables that hand the first users, and the brokers' own password, to brokers: no list of processes shows them."""
_BROKER: Final = "broker"
_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
_DAYS_LEFT: Final = 30
_PASSWORD_BYTES: Final = 24
_PUSH_KEYS: Final = "push.keys"
_KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Secrets:
    """The files of a secured cluster, and what they come to."""

    directory: Path
    passwords: Mapping[str, str]
    """Of the first users."""
    store_password: str
    """Of the brokers."""

    def __repr__(self) -> str:
        return f"Secrets({self.directory})"

    @property
    def ca(self) -> Path:
        return authority_path(self.directory)

    @property
    def client_file(self) -> Path:
        return self.file(f"{ADMIN}.properties")

    def file(self, name: str) -> Path:
        return self.directory / name

    @property
    def broker_settings(self) -> dict[str, str]:
        """What each broker is told, beside its address; nothing of it is secret."""
        users = ";".join(f"User:{name}" for name in self.passwords)
        return {
            "sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256",
            "ssl.keystore.location": str(self.file(f"{_BROKER}.keystore.pem")),
            "ssl.keystore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
            "ssl.truststore.type": "PEM",
            "inter.broker.listener.name": SECURE_LISTENER,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": users,
            "headrace.audit": "topic",
        }

    @property
    def environment(self) -> dict[str, str]:
        """The first users, for brokers whose cluster has none."""
        users = (f'{MECHANISM}=[name={name},password="{password}"]' for name, password in self.passwords.items())
        return {ADD_SCRAM: ";".join(users), ZOOKEEPER_AUTH: f"brokers:{self.store_password}"}

    @property
    def gateway_arguments(self) -> tuple[str, ...]:
        """HTTPS for callers, whose names and passwords the brokers check."""
        return (
            *("--tls-cert", str(self.file(f"{GATEWAY}.pem")), "--tls-key", str(self.file(f"{GATEWAY}.key"))),
            *("--sasl-mechanism", MECHANISM, "--broker-ca", str(self.ca)),
            *("--user", GATEWAY, "--password-file", str(self.file(f"{GATEWAY}.password"))),
            *("--push-keys", str(self.file(_PUSH_KEYS))),
        )

    def write_client_files(self, bootstrap: str) -> None:
        """How the first user connects, as the clients of both worlds read it."""
        password = self.passwords[ADMIN]
        common = {"bootstrap.servers": bootstrap, "security.protocol": SECURE_LISTENER, "sasl.mechanism": MECHANISM}
        librdkafka = {"sasl.username": ADMIN, "sasl.password": password, "ssl.ca.location": str(self.ca)}
        login = "org.apache.kafka.common.security.scram.ScramLoginModule"
        java = {
            "sasl.jaas.config": f'{login} required username="{ADMIN}" password="{password}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
        }
        write_secret(self.client_file, _properties({**common, **librdkafka}))
        write_secret(self.file(f"{ADMIN}-java.properties"), _properties({**common, **java}))

    def advice(self, bootstrap: str, http: str) -> list[str]:
        """Lines to copy and paste."""
        file, java = self.client_file, self.file(f"{ADMIN}-java.properties")
        password = self.file(f"{ADMIN}.password")
        settings = {
            "bootstrap.servers": f"'{bootstrap}'",
            "security.protocol": f"'{SECURE_LISTENER}'",
            "sasl.mechanism": f"'{MECHANISM}'",
            "sasl.username": f"'{ADMIN}'",
            "sasl.password": f"open('{password}').read()",
            "ssl.ca.location": f"'{self.ca}'",
        }
        python = ", ".join(f"'{name}': {value}" for name, value in settings.items())
        return [
            f"TLS, {MECHANISM} and ACLs are on; user {ADMIN} may do everything; its files are in {self.directory}",
            f"  headrace topic list -F {file}",
            f"  headrace profile set local --from {file}",
            f"  kcat -F {file} -L",
            f"  kafka-topics.sh --bootstrap-server {bootstrap} --command-config {java} --list",
            f"  Producer({{{python}}})",
            f'  curl --cacert {self.ca} --user "{ADMIN}:$(cat {password})" {http}/api/v1/topics',
            f"Give others users of their own: headrace tenant create shop -F {file}",
        ]


def prepare(data: Path) -> Secrets:
    """Everything that is missing is made; what is there is used."""
    directory = (data / SECRETS).absolute()
    if any(character in str(directory) for character in " \t,;=#\"'\\"):
        raise bad_input(f"--data {data}: its path stands in files of settings; choose one without spaces and signs")
    make_private_directory(directory)
    directory.chmod(0o700)
    authority = _authority(directory)
    for name in (_BROKER, GATEWAY):
        if not is_fresh(directory / f"{name}.pem", authority, _HOSTS, _DAYS_LEFT):
            issue(directory, name, authority, hosts=_HOSTS)
    passwords = {name: _password(directory / f"{name}.password") for name in (ADMIN, GATEWAY)}
    if not (directory / _PUSH_KEYS).exists():
        write_secret(directory / _PUSH_KEYS, base64.b64encode(secrets.token_bytes(_KEY_BYTES)) + b"\n")
    return Secrets(directory, passwords, _password(directory / "zookeeper.password"))


def _authority(directory: Path) -> Authority:
    if authority_path(directory).exists():
        return load_authority(directory)
    return make_authority(directory, "Headrace CA of this machine")


def _password(path: Path) -> str:
    try:
        found = path.read_text("utf-8").strip()
    except FileNotFoundError:
        found = secrets.token_urlsafe(_PASSWORD_BYTES)
        write_secret(path, found.encode())
    return found


def _properties(values: Mapping[str, str]) -> bytes:
    return "".join(f"{name}={value}\n" for name, value in values.items()).encode()
