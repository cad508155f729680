"""Apache Kafka itself gives every client of the table the answer that ours gives."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.protocol.api import SUPPORTED
from headrace.testing import Broker
from tests.support.acls import ALLOWED, CLIENTS, ROWS, SETTINGS, USERS, Row, expected, login, outcomes, prepare
from tests.support.apache_kafka import WITH_SHARE_GROUPS, ApacheKafka
from tests.support.maven import Unavailable
from tests.support.process import free_port
from tests.support.wire import Wire

pytestmark = [pytest.mark.long, pytest.mark.kafka]
Wires = Mapping[str, Wire]
_ITSELF = 'username="super" password="super-secret"'
"""As whom the broker speaks to itself."""


def _kafka(directory: Path) -> ApacheKafka:
    port, controller = free_port(), free_port()
    listeners = f"SASL_PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}"
    kafka = ApacheKafka(
        directory,
        {
            "listeners": listeners,
            "advertised.listeners": listeners,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{USERS[:-1]} {_ITSELF};",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:super;User:ANONYMOUS",
            "delegation.token.secret.key": "a secret of this test",
            "group.coordinator.rebalance.protocols": "classic,consumer,share",
        },
        client={
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "super",
            "sasl.password": "super-secret",
        },
        version=WITH_SHARE_GROUPS,
    )
    kafka.bootstrap = f"127.0.0.1:{port}"
    return kafka


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Wires, Wires]]:
    with ExitStack() as stack:
        try:
            theirs = stack.enter_context(_kafka(tmp_path_factory.mktemp("kafka")))
        except Unavailable as reason:
            pytest.skip(str(reason))
        ours = stack.enter_context(Broker(SETTINGS))
        clients = [
            {name: stack.enter_context(login(bootstrap, name)) for name in CLIENTS}
            for bootstrap in (ours.bootstrap, theirs.bootstrap)
        ]
        for wires in clients:
            prepare(wires["super"])
        yield clients[0], clients[1]


@pytest.mark.parametrize("row", [row for row in ROWS if row.api in SUPPORTED], ids=str)
def test_apache_kafka_answers_the_same(row: Row, both: tuple[Wires, Wires]) -> None:
    ours, theirs = (outcomes(row, wires) for wires in both)
    assert expected(row, theirs), theirs
    if row.kafka:
        ours, theirs = ({name: found[name] for name in CLIENTS if name not in ALLOWED} for found in (ours, theirs))
    assert ours == theirs
