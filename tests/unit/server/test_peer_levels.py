"""The feature level in which two brokers speak: the cluster's, as far as both know it."""

from collections.abc import Awaitable, Callable

import pytest

from headrace.net.peers import PeerUnreachable
from headrace.protocol.levels import LevelRange
from headrace.protocol.peer import InternalApi
from headrace.testing.loop import run_virtual
from headrace.testing.network import SimulatedNetwork
from tests.support.nodes import Cluster, Node

ONE, BOTH = LevelRange(1, 1), LevelRange(1, 2)
Play = Callable[[Node, Node, Cluster], Awaitable[None]]


def between(asker: LevelRange, answerer: LevelRange, play: Play) -> None:
    async def main() -> None:
        network, cluster = SimulatedNetwork(), Cluster()
        nodes = [
            Node(cluster, network.host(f"b{number}"), number, host=f"b{number}", levels=levels)
            for number, levels in ((1, asker), (2, answerer))
        ]
        for node in nodes:
            await node.start(9092)
        await play(nodes[0], nodes[1], cluster)
        for node in nodes:
            await node.stop()

    run_virtual(main)


def test_a_raise_is_heeded_on_links_that_are_there_already() -> None:
    async def play(asker: Node, answerer: Node, cluster: Cluster) -> None:
        await asker.peers.tell(2, InternalApi.FEED, {})
        cluster.level = 2
        await asker.peers.tell(2, InternalApi.FEED, {})
        assert answerer.versions == [0, 1]

    between(BOTH, BOTH, play)


@pytest.mark.parametrize(("asker", "answerer"), [(ONE, BOTH), (BOTH, ONE)])
def test_a_broker_that_does_not_speak_the_level_gets_no_link(asker: LevelRange, answerer: LevelRange) -> None:
    async def play(one: Node, other: Node, cluster: Cluster) -> None:
        cluster.level = 2
        with pytest.raises(PeerUnreachable, match="speaks feature level 1, and the cluster's is 2"):
            await one.peers.tell(2, InternalApi.FEED, {}, timeout=2)
        assert other.versions == []

    between(asker, answerer, play)


def test_an_older_broker_is_spoken_to_in_its_level() -> None:
    async def play(asker: Node, answerer: Node, cluster: Cluster) -> None:
        await asker.peers.tell(2, InternalApi.FEED, {})
        cluster.level = 2  # as when the other end was put in the place of a later release, and has no new link yet
        await asker.peers.tell(2, InternalApi.FEED, {})
        assert answerer.versions == [0, 0]

    between(BOTH, ONE, play)
