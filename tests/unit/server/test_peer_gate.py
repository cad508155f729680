"""What only brokers may ask, nobody else gets: not on a plain listener, not on one with SASL, not half-way through."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from struct import pack
from typing import Any, cast

import pytest

from headrace.net.network import Link, LinkClosed
from headrace.protocol.api import PEERS_ONLY, SUPPORTED, ApiKey
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import CodedError, ErrorCode, ProtocolViolation
from headrace.protocol.peer import InternalApi, PeerMessage, checked, decode_message, encode_message
from headrace.security.hello import Greeting, Role
from headrace.server.clustered.peers import PeerIdentity, greet
from headrace.server.context import Context, RequestInfo
from headrace.server.handlers.api_versions import handle_api_versions
from headrace.testing import Broker
from headrace.testing.client import SimulatedClient
from headrace.testing.loop import run_virtual
from headrace.testing.network import SimulatedNetwork
from tests.support.nodes import CLUSTER, SECRET, Cluster, Node, topics_request
from tests.support.wire import Wire

FOR_CLIENTS = {InternalApi.DESCRIBE_HEALTH, InternalApi.DESCRIBE_RIGHTS, InternalApi.UPDATE_LEVEL}
OPENING: dict[str, Any] = {"cluster": CLUSTER, "from": 1, "to": 2, "epoch": 7, "nonce": "ab"}
Play = Callable[[Node, Link], Awaitable[None]]


def played(play: Play, users: dict[str, str] | None = None) -> None:
    """Run a test between a broker, number 2, and a stranger's link to it."""

    async def main() -> None:
        network = SimulatedNetwork()
        node = Node(Cluster(), network.host("b2"), 2, host="b2", users=users)
        await node.start(9092)
        link = await network.host("stranger").connect("b2", 9092, 5)
        await play(node, link)
        link.close()
        await node.stop()

    run_virtual(main)


async def say(link: Link, values: dict[str, Any], api: int = InternalApi.HELLO) -> PeerMessage:
    answer = await link.ask([pack(">hhih", api, 0, 5, -1), *encode_message(PeerMessage(values))])
    assert answer[:4] == pack(">i", 5)
    return decode_message(answer[4:])


async def is_closed_by(link: Link, api: int, body: bytes = b"\0\0\0\2{}") -> bool:
    try:
        await link.ask([pack(">hhih", api, 0, 5, -1), body])
    except LinkClosed:
        return True
    return False


def proof_for(answer: PeerMessage, secret: bytes = SECRET) -> dict[str, Any]:
    greeting = Greeting(
        cluster_id=CLUSTER,
        asker=1,
        answerer=2,
        asker_epoch=7,
        answerer_epoch=answer.values["epoch"],
        asker_nonce="ab",
        answerer_nonce=answer.values["nonce"],
    )
    return {"proof": greeting.proof(secret, Role.ASKER)}


@pytest.mark.parametrize("users", [None, {"alice": "s3cret"}], ids=["plain", "sasl"])
@pytest.mark.parametrize("api", [InternalApi.FEED, InternalApi.FORWARD, 20_999, 32_767])
def test_strangers_are_closed_out_of_what_brokers_ask(api: int, users: dict[str, str] | None) -> None:
    async def play(node: Node, link: Link) -> None:
        assert await is_closed_by(link, api)
        assert node.told == []

    played(play, users)


@pytest.mark.parametrize("users", [None, {"alice": "s3cret"}], ids=["plain", "sasl"])
def test_half_a_greeting_opens_nothing(users: dict[str, str] | None) -> None:
    async def play(node: Node, link: Link) -> None:
        await say(link, OPENING)
        (connection,) = node.listener.connections
        assert connection.peer_broker is None
        assert connection.is_known is (users is None)
        assert await is_closed_by(link, InternalApi.FEED)

    played(play, users)


@pytest.mark.parametrize("users", [None, {"alice": "s3cret"}], ids=["plain", "sasl"])
def test_a_wrong_proof_is_told_so_and_the_connection_closed(users: dict[str, str] | None) -> None:
    async def play(node: Node, link: Link) -> None:
        opened = await say(link, OPENING)
        answer = await say(link, proof_for(opened, b"guessed"))
        with pytest.raises(CodedError) as raised:
            checked(answer)
        assert raised.value.code is ErrorCode.cluster_authorization_failed
        assert await is_closed_by(link, InternalApi.HELLO)

    played(play, users)


def test_the_answerers_own_proof_sent_back_is_wrong() -> None:
    async def play(node: Node, link: Link) -> None:
        opened = await say(link, OPENING)
        with pytest.raises(CodedError):
            checked(await say(link, {"proof": opened.values["proof"]}))

    played(play)


def test_a_proof_of_an_earlier_connection_is_wrong() -> None:
    async def play(node: Node, link: Link) -> None:
        proof = proof_for(await say(link, OPENING))
        checked(await say(link, proof))
        again = await node.network.connect("b2", 9092, 5)
        await say(again, OPENING)
        with pytest.raises(CodedError):
            checked(await say(again, proof))
        again.close()

    played(play)


@pytest.mark.parametrize(
    "values",
    [
        {**OPENING, "nonce": 5},
        {**OPENING, "from": "1"},
        {**OPENING, "epoch": None},
        {key: value for key, value in OPENING.items() if key != "nonce"},
    ],
)
def test_a_greeting_that_is_not_whole_closes_the_connection(values: dict[str, Any]) -> None:
    async def play(node: Node, link: Link) -> None:
        with pytest.raises(LinkClosed):
            await say(link, values)

    played(play)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\0",
        b"\xff\xff\xff\xff{}",
        b"\x7f\xff\xff\xff{}",
        b"\0\0\0\2[]",
        b"\0\0\0\3{]}",
        b"\0\0\0\2\xff\xff",
        b"\0\0\x0f\0" + b"[" * 0x0F00,
        b"\0\0\0\2{}" + bytes(5000),
    ],
    ids=["nothing", "no length", "negative", "long", "a list", "no json", "no text", "deep", "large"],
)
def test_a_greeting_that_is_none_closes_the_connection(body: bytes) -> None:
    async def play(node: Node, link: Link) -> None:
        assert await is_closed_by(link, InternalApi.HELLO, body)

    played(play)


def test_a_connection_is_greeted_once() -> None:
    async def play(node: Node, link: Link) -> None:
        me = PeerIdentity(broker_id=1, cluster_id=CLUSTER, secret=SECRET, epoch=lambda: 7)
        await greet(link, me, 2, Random(1))
        assert (await say(link, {"a": 1}, InternalApi.FEED)).values == {"from": 2, "a": 1}
        assert await is_closed_by(link, InternalApi.HELLO)

    played(play)


def test_what_brokers_ask_must_be_sound_too() -> None:
    async def play(node: Node, link: Link) -> None:
        me = PeerIdentity(broker_id=1, cluster_id=CLUSTER, secret=SECRET, epoch=lambda: 7)
        await greet(link, me, 2, Random(1))
        assert await is_closed_by(link, InternalApi.FEED, b"\0\0\0\3nul")

    played(play)


def test_an_impostor_is_found_out_by_who_asks() -> None:
    async def play(node: Node, link: Link) -> None:
        me = PeerIdentity(broker_id=1, cluster_id=CLUSTER, secret=b"the real one", epoch=lambda: 7)
        with pytest.raises(ProtocolViolation, match="secret"):
            await greet(link, me, 2, Random(1))

    played(play)


def test_an_authenticated_user_is_no_broker() -> None:
    async def main() -> None:
        network = SimulatedNetwork()
        node = Node(Cluster(), network.host("b2"), 2, host="b2", users={"alice": "s3cret"})
        await node.start(9092)
        client = SimulatedClient(network.host("c"))
        await client.ask(node.address, ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        token = {"auth_bytes": b"\0alice\0s3cret"}
        answer = await client.ask(node.address, ApiKey.SASL_AUTHENTICATE, 2, token)
        assert answer.error_code is ErrorCode.none
        (connection,) = node.listener.connections
        assert connection.principal == "User:alice"
        (link,) = client._links.values()
        assert await is_closed_by(link, InternalApi.HELLO)
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("version", [2, 3])
def test_a_client_that_asks_for_what_is_the_brokers_is_refused_and_goes_on(version: int) -> None:
    async def main() -> None:
        network = SimulatedNetwork()
        cluster = Cluster()
        cluster.controller = 2
        node = Node(cluster, network.host("b2"), 2, host="b2")
        await node.start(9092)
        client = SimulatedClient(network.host("c"))
        values = {"broker_id": 1, "broker_epoch": 7, "topics": ()}
        answer = await client.ask(node.address, ApiKey.ALTER_PARTITION, version, values)
        assert answer.error_code is ErrorCode.cluster_authorization_failed
        created = await client.ask(node.address, ApiKey.CREATE_TOPICS, 7, topics_request("t"))
        assert created.topics[0].error_code is ErrorCode.none
        client.close()
        await node.stop()

    run_virtual(main)


def test_what_is_the_brokers_is_not_told_to_clients() -> None:
    info = RequestInfo(ApiKey.API_VERSIONS, 0, None, "User:ANONYMOUS", "127.0.0.1")
    answer = asyncio.run(handle_api_versions(cast(Context, None), None, info))
    told = {entry["api_key"] for entry in answer["api_keys"]}
    assert not told & {*map(int, PEERS_ONLY), *map(int, InternalApi)}
    assert told == {*map(int, SUPPORTED)}


@pytest.mark.parametrize("version", [11, 14, 15, 17])
def test_a_client_that_says_it_is_a_replica_is_refused(headrace_broker: Broker, version: int) -> None:
    values = {"max_wait": 0, "min_bytes": 1, "topics": (), "forgotten_topics_data": (), "rack_id": ""}
    replica = {"replica_id": 2, "replica_state": {"replica_id": 2, "replica_epoch": 1}}
    with Wire(headrace_broker.bootstrap) as wire:
        wire.send_body(ApiKey.FETCH, version, bytes(encode_request(ApiKey.FETCH, version, values | replica)))
        assert wire.receive(ApiKey.FETCH, version).error_code is ErrorCode.cluster_authorization_failed


def test_a_lone_broker_closes_what_is_meant_for_a_cluster(headrace_broker: Broker) -> None:
    for api in set(InternalApi) - FOR_CLIENTS:
        with Wire(headrace_broker.bootstrap) as wire:
            wire.send_frame(pack(">hhih", api, 0, 5, -1) + b"\0\0\0\2{}")
            assert wire.is_closed()
