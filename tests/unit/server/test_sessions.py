"""Logins that end (KIP-368), logins of several steps, and logins that have to wait for something."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from headrace.client.core.sasl import ScramClient
from headrace.cluster.entries import EntryKind
from headrace.cluster.image import ClusterImage
from headrace.net.network import LinkClosed
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.protocol.scram import ScramMechanism
from headrace.security.sasl.credentials import ScramCredential, ScramUsers
from headrace.security.sasl.exchange import AuthenticationFailed, Challenge, Done, Wait, once_ready
from headrace.security.sasl.scram import FoundUser, scram
from headrace.testing.client import SimulatedClient
from headrace.testing.loop import run_virtual
from headrace.testing.network import SimulatedNetwork
from tests.support.nodes import Cluster, Node, topics_request

USERS: Final = {"alice": "s3cret", "bob": "hunter2"}
ALICE: Final = b"\0alice\0s3cret"
BOB: Final = b"\0bob\0hunter2"
MINUTE: Final = 60_000


class Site:
    """A broker whose sessions last a minute, and a client."""

    def __init__(self, node: Node, client: SimulatedClient) -> None:
        self.node = node
        self.client = client

    async def handshake(self, mechanism: str = "PLAIN", version: int = 1) -> Any:
        return await self.client.ask(self.node.address, ApiKey.SASL_HANDSHAKE, version, {"mechanism": mechanism})

    async def authenticate(self, token: bytes, version: int = 2) -> Any:
        return await self.client.ask(self.node.address, ApiKey.SASL_AUTHENTICATE, version, {"auth_bytes": token})

    async def log_in(self, token: bytes = ALICE, mechanism: str = "PLAIN") -> Any:
        await self.handshake(mechanism)
        return await self.authenticate(token)

    async def is_served(self) -> bool:
        """Whether another request on the same connection is answered."""
        assert self.client.is_connected(self.node.address)
        try:
            answer = await self.client.ask(self.node.address, ApiKey.CREATE_TOPICS, 7, topics_request("t"))
        except LinkClosed:
            return False
        return bool(answer.topics[0].error_code is ErrorCode.none)

    @property
    def connection(self) -> Any:
        (connection,) = self.node.listener.connections
        return connection


def played(play: Callable[[Site], Awaitable[None]], session_ms: int = MINUTE, **options: Any) -> None:
    async def main() -> None:
        network, cluster = SimulatedNetwork(), Cluster()
        cluster.controller = 2
        node = Node(cluster, network.host("b2"), 2, host="b2", users=USERS, session_ms=session_ms, **options)
        await node.start(9092)
        client = SimulatedClient(network.host("c"))
        await play(Site(node, client))
        client.close()
        await node.stop()

    run_virtual(main)


def test_a_client_is_told_how_long_its_session_lasts() -> None:
    async def play(site: Site) -> None:
        answer = await site.log_in()
        assert (answer.error_code, answer.session_lifetime.total_seconds()) == (ErrorCode.none, 60)

    played(play)


def test_a_session_without_an_end_is_told_as_none() -> None:
    async def play(site: Site) -> None:
        answer = await site.log_in()
        assert answer.session_lifetime.total_seconds() == 0
        await asyncio.sleep(3600)
        assert await site.is_served()
        with pytest.raises(LinkClosed):
            await site.handshake()

    played(play, session_ms=0)


def test_who_authenticates_again_in_time_goes_on_for_as_long_as_it_does() -> None:
    async def play(site: Site) -> None:
        for _ in range(20):
            assert (await site.log_in()).error_code is ErrorCode.none
            assert await site.is_served()
            await asyncio.sleep(55)
        assert site.node.authenticator is not None
        counts = site.node.authenticator.counts
        assert (counts.succeeded, counts.repeated, counts.expired) == (20, 19, 0)

    played(play)


def test_what_is_asked_after_the_session_has_ended_closes_the_connection_and_is_counted() -> None:
    async def play(site: Site) -> None:
        await site.log_in()
        await asyncio.sleep(59)
        assert await site.is_served()
        await asyncio.sleep(2)
        assert not await site.is_served()
        assert site.node.authenticator is not None
        assert site.node.authenticator.counts.expired == 1

    played(play)


def test_who_is_late_may_still_authenticate_again() -> None:
    """A client that had nothing to ask is not closed by the time alone."""

    async def play(site: Site) -> None:
        await site.log_in()
        await asyncio.sleep(300)
        site.node.listener.sweep(asyncio.get_running_loop().time())
        assert (await site.log_in()).error_code is ErrorCode.none
        assert await site.is_served()

    played(play)


def test_nothing_else_is_served_while_a_client_authenticates_again() -> None:
    async def play(site: Site) -> None:
        await site.log_in()
        await asyncio.sleep(2)
        await site.handshake()
        assert not await site.is_served()

    played(play)


def test_a_client_stays_who_it_was() -> None:
    async def play(site: Site) -> None:
        await site.log_in()
        await asyncio.sleep(2)
        answer = await site.log_in(BOB)
        assert answer.error_code is ErrorCode.sasl_authentication_failed
        assert answer.error_message == ("Cannot change principals during re-authentication from User:alice: User:bob")
        assert not site.node.listener.connections

    played(play)


def test_a_wrong_password_the_second_time_ends_the_session() -> None:
    async def play(site: Site) -> None:
        await site.log_in()
        await asyncio.sleep(2)
        answer = await site.log_in(b"\0alice\0wrong")
        assert answer.error_code is ErrorCode.sasl_authentication_failed
        assert not site.node.listener.connections

    played(play)


@pytest.mark.parametrize(("mechanism", "version", "after"), [("OTHER", 1, 2), ("PLAIN", 0, 2), ("PLAIN", 1, 0.1)])
def test_the_mechanism_stays_and_is_not_asked_for_again_and_again(mechanism: str, version: int, after: float) -> None:
    async def play(site: Site) -> None:
        await site.log_in()
        if after < 1:
            await asyncio.sleep(2)
            await site.log_in()
        await asyncio.sleep(after)
        with pytest.raises(LinkClosed):
            await site.handshake(mechanism, version)

    played(play)


class Ending:
    """A mechanism whose clients have shown something that ends."""

    def step(self, token: bytes) -> Done:
        return Done(principal="User:alice", expires_at_ms=int(token))


@pytest.mark.parametrize(
    ("session_ms", "left", "seconds"), [(0, 30_000, 30), (MINUTE, 30_000, 30), (MINUTE, 90_000, 60)]
)
def test_a_session_ends_with_what_was_shown_if_that_is_sooner(
    monkeypatch: pytest.MonkeyPatch, session_ms: int, left: int, seconds: int
) -> None:
    monkeypatch.setattr("headrace.net.clock.SystemClock.now_ms", lambda _: 1_000_000)

    async def play(site: Site) -> None:
        answer = await site.log_in(str(1_000_000 + left).encode(), "ENDING")
        assert answer.session_lifetime.total_seconds() == seconds
        await asyncio.sleep(seconds + 1)
        assert not await site.is_served()

    played(play, session_ms, mechanisms={"ENDING": Ending})


class Patient:
    """A mechanism that has to find something out first."""

    waits: Callable[[], Awaitable[object]]

    def __init__(self) -> None:
        self.steps = 0

    def step(self, token: bytes) -> Done | Wait:
        self.steps += 1
        if self.steps == 1:
            return Wait(Patient.waits)
        if token != b"right":
            raise AuthenticationFailed("wrong")
        return Done(principal="User:alice")


@pytest.mark.parametrize("seconds", [1, 1000])
@pytest.mark.parametrize("token", [b"right", b"wrong"])
def test_a_login_can_wait_but_not_for_ever(token: bytes, seconds: int) -> None:
    async def play(site: Site) -> None:
        Patient.waits = lambda: asyncio.sleep(seconds)
        began = asyncio.get_running_loop().time()
        answer = await site.log_in(token, "PATIENT")
        expected = ErrorCode.none if token == b"right" else ErrorCode.sasl_authentication_failed
        assert answer.error_code is expected
        assert asyncio.get_running_loop().time() - began < 30

    played(play, mechanisms={"PATIENT": Patient})


class Broken:
    """A mechanism with a defect."""

    def step(self, token: bytes) -> Challenge:
        raise RuntimeError("a defect")


def test_a_defect_of_a_mechanism_is_a_refusal() -> None:
    async def play(site: Site) -> None:
        answer = await site.log_in(b"x", "BROKEN")
        assert answer.error_code is ErrorCode.sasl_authentication_failed
        assert "defect" not in answer.error_message

    played(play, mechanisms={"BROKEN": Broken})


def scram_users() -> ScramUsers:
    image = ClusterImage(cluster_id="c", controller_id=2)
    credential = ScramCredential.of_password(ScramMechanism.SHA_512, "s3cret")
    image.put_entry(EntryKind.USER, "alice", {"SCRAM-SHA-512": credential.to_text()})
    return ScramUsers(image, b"secret")


def no_tokens(mechanism: ScramMechanism, token_id: str) -> FoundUser:
    raise AssertionError("nobody asked for a token")


@pytest.mark.parametrize("password", ["s3cret", "wrong"])
def test_scram_takes_two_steps_each_time(password: str) -> None:
    async def play(site: Site) -> None:
        for turn in range(2):
            exchange = ScramClient("SCRAM-SHA-512", "alice", password)
            assert (await site.handshake("SCRAM-SHA-512")).mechanisms == ("SCRAM-SHA-512",)
            challenge = await site.authenticate(exchange.first())
            assert (challenge.error_code, challenge.session_lifetime.total_seconds()) == (ErrorCode.none, 0)
            assert turn or not site.connection.is_known
            answer = await site.authenticate(exchange.answer(challenge.auth_bytes))
            if password == "wrong":
                assert answer.error_code is ErrorCode.sasl_authentication_failed
                assert not site.node.listener.connections
                return
            exchange.answer(answer.auth_bytes)
            assert answer.session_lifetime.total_seconds() == 60
            assert await site.is_served()
            await asyncio.sleep(50)

    mechanism = scram(ScramMechanism.SHA_512, scram_users().find, no_tokens)
    played(play, mechanisms={"SCRAM-SHA-512": mechanism})


@pytest.mark.parametrize("seconds", [1, 100])
def test_who_comes_before_the_users_are_known_waits_and_is_not_told_of_a_wrong_password(seconds: int) -> None:
    async def play(site: Site) -> None:
        asyncio.get_running_loop().call_later(seconds, known.set)
        exchange = ScramClient("SCRAM-SHA-512", "alice", "s3cret")
        await site.handshake("SCRAM-SHA-512")
        if seconds > 15:
            with pytest.raises(LinkClosed):
                await site.authenticate(exchange.first())
            return
        challenge = await site.authenticate(exchange.first())
        answer = await site.authenticate(exchange.answer(challenge.auth_bytes))
        assert answer.error_code is ErrorCode.none
        assert await site.is_served()

    known = asyncio.Event()
    inner = scram(ScramMechanism.SHA_512, scram_users().find, no_tokens)
    played(play, mechanisms={"SCRAM-SHA-512": once_ready(inner, known.is_set, known.wait)})


def test_nothing_else_is_served_between_the_steps() -> None:
    async def play(site: Site) -> None:
        await site.handshake("SCRAM-SHA-512")
        await site.authenticate(ScramClient("SCRAM-SHA-512", "alice", "s3cret").first())
        assert not await site.is_served()

    mechanism = scram(ScramMechanism.SHA_512, scram_users().find, no_tokens)
    played(play, mechanisms={"SCRAM-SHA-512": mechanism})


def test_a_connection_that_is_closed_leaves_nothing_behind() -> None:
    async def play(site: Site) -> None:
        await site.log_in()
        site.client.close()
        await asyncio.sleep(1)
        assert site.node.authenticator is not None
        assert not site.node.authenticator._progress

    played(play)
