"""Users and tokens in a cluster: made at one broker, known at all, kept over restarts; the first ones made once."""

from collections.abc import Awaitable, Callable
from typing import Any

from headrace.client.core.errors import AuthenticationRefused
from headrace.client.core.sasl import ScramClient
from headrace.cluster.entries import EntryKind
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.protocol.scram import SCRAM_MECHANISMS, encoded, salt_password
from headrace.testing.client import SimulatedClient
from headrace.testing.cluster import PORT, Machine, SimulatedCluster
from headrace.testing.loop import run_virtual

MECHANISM = "SCRAM-SHA-256"
SETTINGS = {"sasl.enabled.mechanisms": MECHANISM, "delegation.token.secret.key": "the key of all tokens"}
FOR_ONESELF = {"owner_principal_type": None, "owner_principal_name": None, "renewers": (), "max_lifetime": -1}
_ITERATIONS = 4096


def told(story: Callable[[SimulatedCluster], Awaitable[None]]) -> None:
    async def main() -> None:
        cluster = SimulatedCluster(brokers=3, seed=5, settings=SETTINGS)
        for number, machine in enumerate(cluster):
            machine.settings["listeners"] = f"SASL_PLAINTEXT://{machine.name}:{PORT}"
            machine.settings["headrace.add.scram"] = f"{MECHANISM}=[name=admin,password=of broker {number}]"
        await cluster.start()
        await story(cluster)
        await cluster.stop()

    run_virtual(main, 5, longest=3600)


class TokenScram(ScramClient):
    """Shows a delegation token."""

    def __init__(self, mechanism: str, token_id: str, password: str) -> None:
        super().__init__(mechanism, token_id, password)
        self._first_bare += ",tokenauth=true"


async def login(
    cluster: SimulatedCluster, machine: Machine, user: str, password: str, scram: type[ScramClient] = ScramClient
) -> SimulatedClient | None:
    """A client that has logged in at a broker; None where it was refused."""
    client = SimulatedClient(cluster.network.host(f"host of {user}"))
    await client.ask(machine.address, ApiKey.SASL_HANDSHAKE, 1, {"mechanism": MECHANISM})
    exchange = scram(MECHANISM, user, password)
    token = exchange.first()
    while not exchange.is_done:
        answer = await client.ask(machine.address, ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": token})
        if answer.error_code is not ErrorCode.none:
            client.close()
            return None
        try:
            token = exchange.answer(answer.auth_bytes)
        except AuthenticationRefused:
            client.close()
            return None
    return client


async def admin_of(cluster: SimulatedCluster, machine: Machine) -> tuple[SimulatedClient, str]:
    """The first user, and the password that won."""
    for number in range(3):
        client = await login(cluster, machine, "admin", f"of broker {number}")
        if client is not None:
            return client, f"of broker {number}"
    raise AssertionError("nobody can log in")


def upsertion(user: str, password: str) -> dict[str, Any]:
    salted = salt_password(SCRAM_MECHANISMS[MECHANISM], password, b"salt", _ITERATIONS)
    given = {"mechanism": 1, "iterations": _ITERATIONS, "salt": b"salt", "salted_password": salted}
    return {"name": user, **given}


def others(cluster: SimulatedCluster) -> list[Machine]:
    """The brokers that are not the controller."""
    return [machine for machine in cluster if machine is not cluster.controller()]


def test_the_first_user_is_made_once_whichever_broker_is_first() -> None:
    async def story(cluster: SimulatedCluster) -> None:
        passwords = set()
        for machine in cluster:
            client, password = await admin_of(cluster, machine)
            client.close()
            passwords.add(password)
        assert len(passwords) == 1
        for machine in cluster:
            await machine.stop()
            await machine.start()
            client, password = await admin_of(cluster, machine)
            client.close()
            assert passwords == {password}

    told(story)


def test_a_user_that_is_changed_at_one_broker_is_changed_at_all_once_that_is_answered() -> None:
    async def story(cluster: SimulatedCluster) -> None:
        asked = others(cluster)[0]
        admin, _ = await admin_of(cluster, asked)
        for password in ("first", "second"):
            request = {"deletions": (), "upsertions": [upsertion("bob", password)]}
            answer = await admin.ask(asked.address, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, request)
            assert [result.error_code for result in answer.results] == [ErrorCode.none]
            for machine in cluster:
                client = await login(cluster, machine, "bob", password)
                assert client is not None
                client.close()
        for machine in cluster:
            assert await login(cluster, machine, "bob", "first") is None
        for _ in cluster:
            described = await admin.ask(asked.address, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": None})
            assert {result.user for result in described.results} == {"admin", "bob"}
        admin.close()

    told(story)


def test_a_token_that_is_made_at_one_broker_lets_in_at_all_until_it_is_ended() -> None:
    async def story(cluster: SimulatedCluster) -> None:
        first, second = others(cluster)
        admin, _ = await admin_of(cluster, first)
        made = await admin.ask(first.address, ApiKey.CREATE_DELEGATION_TOKEN, 3, FOR_ONESELF)
        assert made.error_code is ErrorCode.none
        password = encoded(bytes(made.hmac))
        for machine in cluster:
            client = await login(cluster, machine, made.token_id, password, TokenScram)
            assert client is not None
            again = await client.ask(machine.address, ApiKey.CREATE_DELEGATION_TOKEN, 3, FOR_ONESELF)
            assert again.error_code is ErrorCode.delegation_token_request_not_allowed
            client.close()
            assert await login(cluster, machine, made.token_id, password) is None, "it is no user"
        assert await login(cluster, second, "admin", password, TokenScram) is None
        ended = {"hmac": made.hmac, "expiry_time_period": -1}
        answer = await admin.ask(first.address, ApiKey.EXPIRE_DELEGATION_TOKEN, 2, ended)
        assert answer.error_code is ErrorCode.none
        for machine in cluster:
            assert await login(cluster, machine, made.token_id, password, TokenScram) is None
            assert not machine.broker._image.entries[EntryKind.TOKEN]
        admin.close()

    told(story)
