"""Brokers know each other by the cluster's secret, find each other again, and never wait for ever."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import uvloop

from headrace.cluster.image import BrokerNode
from headrace.net.peers import PeerUnreachable, Purpose
from headrace.net.tcp import TcpNetwork
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.peer import InternalApi, PeerMessage
from headrace.security.hello import Greeting, Role
from headrace.testing.loop import run_virtual
from headrace.testing.network import SimulatedNetwork
from tests.support.nodes import Cluster, Node

ALTER_PARTITION = {"broker_id": 1, "broker_epoch": 7, "topics": ()}


class Pair:
    """Two brokers on a simulated network; the first asks the second."""

    def __init__(self, **second: Any) -> None:
        self.network = SimulatedNetwork(3)
        self.cluster = Cluster()
        self.one = Node(self.cluster, self.network.host("b1"), 1, host="b1")
        self.two = Node(self.cluster, self.network.host("b2"), 2, host="b2", **second)

    async def tell(self, timeout: float = 10.0, **values: Any) -> Any:
        return await self.one.peers.tell(2, InternalApi.FEED, values, timeout=timeout)


@asynccontextmanager
async def pair(**second: Any) -> AsyncIterator[Pair]:
    both = Pair(**second)
    await both.one.start(9092)
    await both.two.start(9092)
    try:
        yield both
    finally:
        await both.one.stop()
        await both.two.stop()


def test_a_broker_asks_another_and_is_known_to_it() -> None:
    async def main() -> None:
        async with pair() as both:
            assert await both.tell(number=5) == {"from": 2, "number": 5}
            assert both.two.told == [(1, {"number": 5})]
            (connection,) = both.two.listener.connections
            assert (connection.peer_broker, connection.principal) == (1, "Broker:1")

    run_virtual(main)


def test_the_same_over_real_sockets_with_a_large_attachment() -> None:
    async def main() -> None:
        cluster = Cluster()
        one, two = (Node(cluster, TcpNetwork(), number, host="127.0.0.1") for number in (1, 2))
        await one.start()
        await two.start()
        content = bytes(range(256)) * 3000
        answer = await one.peers.send(2, InternalApi.FEED, PeerMessage({"number": 5}, content))
        assert answer.values == {"from": 2, "number": 5}
        assert bytes(answer.attachment) == content[::-1]
        assert await two.peers.tell(1, InternalApi.FEED, {}) == {"from": 1}
        await one.stop()
        await two.stop()

    uvloop.run(main())


def test_kafkas_own_apis_are_asked_too() -> None:
    async def main() -> None:
        async with pair() as both:
            answer = await both.one.peers.ask(2, ApiKey.ALTER_PARTITION, 3, ALTER_PARTITION)
            assert answer.error_code is ErrorCode.stale_broker_epoch
            body = await both.one.peers.ask_bytes(2, ApiKey.ALTER_PARTITION, 2, [b"\0\0\0\1" + bytes(8), b"\1\0"])
            assert bytes(body) == b"\0\0\0\0" + b"\0\x4d" + b"\1\0"

    run_virtual(main)


def test_an_error_of_the_other_is_raised_here() -> None:
    async def main() -> None:
        async with pair() as both:
            with pytest.raises(CodedError, match="as was wished") as raised:
                await both.tell(fail=True)
            assert raised.value.code is ErrorCode.stale_broker_epoch
            with pytest.raises(CodedError) as raised:
                await both.tell(defect=True)
            assert raised.value.code is ErrorCode.unknown_server_error
            with pytest.raises(CodedError) as raised:
                await both.one.peers.tell(2, InternalApi.RESIGN, {})
            assert raised.value.code is ErrorCode.unsupported_version
            assert await both.tell() == {"from": 2}

    run_virtual(main)


@pytest.mark.parametrize(
    ("second", "reason"),
    [({"secret": b"another"}, "does not know the cluster's secret"), ({"cluster_id": "another"}, "of cluster another")],
    ids=["secret", "cluster"],
)
def test_a_broker_of_another_cluster_is_not_talked_to(second: dict[str, Any], reason: str) -> None:
    async def main() -> None:
        async with pair(**second) as both:
            with pytest.raises(PeerUnreachable, match=reason) as raised:
                await both.tell()
            assert not raised.value.was_sent
            with pytest.raises(PeerUnreachable):
                await both.two.peers.tell(1, InternalApi.FEED, {})
            assert both.one.told == both.two.told == []

    run_virtual(main)


def test_a_broker_is_not_taken_for_another_at_the_same_place() -> None:
    async def main() -> None:
        async with pair() as both:
            both.cluster.brokers[3] = replace(both.cluster.brokers[2], id=3)
            with pytest.raises(PeerUnreachable, match="this is broker 2"):
                await both.one.peers.tell(3, InternalApi.FEED, {})
            both.cluster.brokers[1] = replace(both.cluster.brokers[2], id=1)
            with pytest.raises(PeerUnreachable, match="cannot be reached"):
                await both.one.peers.tell(1, InternalApi.FEED, {})

    run_virtual(main)


GREETING = Greeting(
    cluster_id="c",
    asker=1,
    answerer=2,
    asker_epoch=3,
    answerer_epoch=4,
    asker_nonce="5",
    answerer_nonce="6",
)


def test_a_proof_is_good_for_nothing_else() -> None:
    proof = GREETING.proof(b"secret", Role.ASKER)
    assert GREETING.is_proved(b"secret", Role.ASKER, proof)
    others = [
        replace(GREETING, cluster_id="d"),
        replace(GREETING, asker=2, answerer=1),
        replace(GREETING, asker=12, answerer=2),
        replace(GREETING, asker_epoch=4),
        replace(GREETING, answerer_epoch=5),
        replace(GREETING, asker_nonce="56", answerer_nonce=""),
        replace(GREETING, answerer_nonce="7"),
    ]
    assert not any(other.is_proved(b"secret", Role.ASKER, proof) for other in others)
    assert not GREETING.is_proved(b"secret", Role.ANSWERER, proof)
    assert not GREETING.is_proved(b"other", Role.ASKER, proof)
    assert not GREETING.is_proved(b"secret", Role.ASKER, "\ud800")


def test_who_does_not_answer_in_time_is_given_up_and_found_again() -> None:
    async def main() -> None:
        async with pair() as both:
            await both.tell()
            both.network.cut("b1", "b2")
            others = asyncio.create_task(both.tell(timeout=100))
            began = asyncio.get_running_loop().time()
            with pytest.raises(PeerUnreachable, match="within 2 s") as raised:
                await both.tell(timeout=2)
            assert raised.value.was_sent
            assert asyncio.get_running_loop().time() - began == pytest.approx(2)
            with pytest.raises(PeerUnreachable):
                await others
            with pytest.raises(PeerUnreachable) as raised:
                await both.tell(timeout=5)
            assert not raised.value.was_sent
            both.network.heal()
            assert await both.tell() == {"from": 2}

    run_virtual(main)


def test_a_broker_that_was_restarted_is_found_again() -> None:
    async def main() -> None:
        async with pair() as both:
            await both.tell()
            both.two.listener.close()
            with pytest.raises(PeerUnreachable):
                await both.tell()
            both.two.listener.bind("b2", 9092)
            both.two.listener.start(both.two.dispatcher.serve)
            assert await both.tell() == {"from": 2}

    run_virtual(main)


def test_a_broker_that_has_moved_is_found_where_it_is_now() -> None:
    async def main() -> None:
        async with pair() as both:
            await both.tell()
            moved = Node(both.cluster, both.network.host("b9"), 2, host="b9")
            await moved.start(9000)
            assert await both.tell() == {"from": 2}
            assert len(both.two.told) == len(moved.told) == 1
            await asyncio.sleep(1)
            assert not both.two.listener.connections
            await moved.stop()

    run_virtual(main)


def test_a_broker_that_is_not_registered_is_told_at_once() -> None:
    async def main() -> None:
        async with pair() as both:
            with pytest.raises(PeerUnreachable, match="not registered"):
                await both.one.peers.tell(4, InternalApi.FEED, {})

    run_virtual(main)


def test_attempts_to_reach_who_is_not_there_become_rare() -> None:
    async def main() -> int:
        async with pair() as both:
            both.cluster.brokers[3] = BrokerNode(id=3, host="b3", port=9092)
            attempts, loop = 0, asyncio.get_running_loop()
            until = loop.time() + 60
            while loop.time() < until:
                with pytest.raises(PeerUnreachable):
                    await both.one.peers.tell(3, InternalApi.FEED, {})
                attempts += 1
            return attempts

    assert 60 <= run_virtual(main) <= 130


def test_many_who_ask_at_once_share_one_link() -> None:
    async def main() -> None:
        async with pair() as both:
            answers = await asyncio.gather(*(both.tell(number=number) for number in range(50)))
            assert [answer["number"] for answer in answers] == list(range(50))
            assert len(both.two.listener.connections) == 1

    run_virtual(main)


def test_purposes_do_not_wait_for_each_other() -> None:
    async def main() -> None:
        async with pair() as both:
            waiting = asyncio.create_task(both.one.peers.tell(2, InternalApi.FEED, {"wait": 5}, purpose=Purpose.FEED))
            await asyncio.sleep(1)
            await both.tell()
            assert not waiting.done()
            forward = [both.one.peers.tell(2, InternalApi.FEED, {"wait": 2}, purpose=Purpose.FORWARD) for _ in range(4)]
            began = asyncio.get_running_loop().time()
            await asyncio.gather(*forward)
            assert asyncio.get_running_loop().time() - began < 2.1
            await waiting
            assert len(both.two.listener.connections) == 6

    run_virtual(main)


def test_who_is_cancelled_takes_nobody_with_it() -> None:
    async def main() -> None:
        async with pair() as both:
            tasks = [asyncio.create_task(both.tell(number=number)) for number in range(3)]
            await asyncio.sleep(0)
            tasks[0].cancel()
            assert [answer["number"] for answer in await asyncio.gather(*tasks[1:])] == [1, 2]
            late = asyncio.create_task(both.tell(wait=5))
            await asyncio.sleep(1)
            late.cancel()
            assert await both.tell() == {"from": 2}

    run_virtual(main)


def test_who_waits_learns_that_the_links_were_given_up() -> None:
    async def main() -> None:
        async with pair() as both:
            dropped = asyncio.create_task(both.tell(wait=5))
            await asyncio.sleep(1)
            both.one.peers.drop(2)
            with pytest.raises(PeerUnreachable):
                await dropped
            both.network.cut("b1", "b2")
            connecting = asyncio.create_task(both.tell())
            await asyncio.sleep(1)
            await both.one.peers.close()
            with pytest.raises(PeerUnreachable, match="given up"):
                await connecting
            with pytest.raises(PeerUnreachable, match="stops"):
                await both.tell()

    run_virtual(main)


def test_a_silent_broker_keeps_its_connection() -> None:
    async def main() -> None:
        async with pair() as both:
            await both.tell()
            await asyncio.sleep(3600)
            both.two.listener.sweep(asyncio.get_running_loop().time())
            assert len(both.two.listener.connections) == 1
            both.two.listener.sweep(asyncio.get_running_loop().time())
            await both.tell()

    run_virtual(main)


def test_brokers_are_let_in_where_clients_must_authenticate() -> None:
    async def main() -> None:
        async with pair(users={"alice": "s3cret"}) as both:
            assert await both.tell() == {"from": 2}
            (connection,) = both.two.listener.connections
            assert connection.is_known
            assert connection.principal == "Broker:1"

    run_virtual(main)
