"""Several listeners in a cluster: one for brokers, others for clients, and changes of them under load."""

import asyncio
from collections.abc import Awaitable, Callable
from struct import pack
from typing import Any

import pytest

from headrace.cluster.identity import CLUSTER_ID
from headrace.cluster.image import BrokerNode, Endpoint
from headrace.cluster.registration import SECRET
from headrace.net.address import Address
from headrace.net.network import LinkClosed
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.protocol.peer import InternalApi, PeerMessage, encode_message
from headrace.server.clustered.peers import PeerIdentity, greet
from headrace.testing.client import SimulatedClient
from headrace.testing.cluster import PORT, Machine
from headrace.testing.loop import run_virtual
from tests.support.simulation.runs import TOPIC, Plan, Run

INSIDE = 9091
OUTSIDE = 9093
SOON = 3.0
Story = Callable[[Run], Awaitable[None]]


def told(story: Story) -> None:
    async def main() -> None:
        run = Run(Plan(seed=1))
        await story(run)
        await run.end()

    run_virtual(main, 1, longest=3600)


def with_inside(machine: Machine, *, for_brokers: bool) -> dict[str, str]:
    """Settings of a broker with a second listener."""
    return {
        "listeners": f"INSIDE://{machine.name}:{INSIDE},PLAINTEXT://{machine.name}:{PORT}",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        **({"inter.broker.listener.name": "INSIDE"} if for_brokers else {}),
    }


def links(run: Run) -> set[str]:
    """The listeners on which brokers are linked to each other."""
    return {
        connection.listener_name
        for machine in run.cluster
        for connection in machine.broker.connections
        if connection.peer_broker is not None
    }


async def restarted(run: Run, machine: Machine, settings: dict[str, str]) -> None:
    await machine.stop()
    machine.settings = settings
    await machine.start()
    await run.cluster.until(run.cluster.is_whole, "every partition is whole")
    await asyncio.sleep(1)


@pytest.mark.parametrize("at_once", [False, True], ids=["in two rounds", "in one"])
def test_brokers_move_to_a_listener_of_their_own_while_clients_go_on(at_once: bool) -> None:
    async def story(run: Run) -> None:
        cluster = run.cluster
        await run.start()
        run.employ()
        await asyncio.sleep(1)
        for for_brokers in (True,) if at_once else (False, True):
            for machine in cluster:
                await restarted(run, machine, with_inside(machine, for_brokers=for_brokers))
                assert run.longest_silence() < SOON
        assert links(run) == {"INSIDE"}
        for machine in cluster:  # and back
            await restarted(run, machine, {})
        assert links(run) == {"PLAINTEXT"}
        assert run.longest_silence() < SOON
        await run.require_health()
        await run.dismiss()
        found = await run.reckon()
        assert not found, "\n".join(found)

    told(story)


def on_two(run: Run, *, but: int = -1) -> None:
    """Each broker inside and outside, but for one that is inside only."""
    for machine in run.cluster:
        outside = "" if machine.id == but else f",OUTSIDE://{machine.name}:{OUTSIDE}"
        machine.settings = {
            "listeners": f"PLAINTEXT://{machine.name}:{PORT}{outside}",
            "advertised.listeners": f"PLAINTEXT://{machine.name}:{PORT}{outside.replace('//b', '//public-b')}",
            "listener.security.protocol.map": "OUTSIDE:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
        }


def test_who_asks_on_a_listener_is_told_the_addresses_of_that_name() -> None:
    async def story(run: Run) -> None:
        cluster = run.cluster
        on_two(run)
        await run.start()
        client = SimulatedClient(cluster.network.host("c"))
        for port, prefix in ((PORT, ""), (OUTSIDE, "public-")):
            for machine in cluster:
                at = Address(machine.name, port)
                expected = {m.id: (f"{prefix}{m.name}", port) for m in cluster}
                metadata = await client.ask(at, ApiKey.METADATA, 12, ALL)
                assert {b.node_id: (b.host, b.port) for b in metadata.brokers} == expected
                described = await client.ask(at, ApiKey.DESCRIBE_CLUSTER, 1, DESCRIBE)
                assert {b.broker_id: (b.host, b.port) for b in described.brokers} == expected
                found = await coordinator(client, at)
                assert (found.host, found.port) == expected[found.node_id]
        client.close()

    told(story)


ALL = {
    "topics": None,
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": False,
    "include_cluster_authorized_operations": False,
}
DESCRIBE = {"include_cluster_authorized_operations": False, "endpoint_type": 1, "include_fenced_brokers": False}


async def coordinator(client: SimulatedClient, at: Address, key: str = "g") -> Any:
    async with asyncio.timeout(30):
        while True:
            answer = await client.ask(at, ApiKey.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [key]})
            (found,) = answer.coordinators
            if found.error_code is ErrorCode.none or "listener" in (found.error_message or ""):
                return found
            await asyncio.sleep(0.1)


def test_a_broker_without_the_listener_is_left_out_of_answers_on_it() -> None:
    async def story(run: Run) -> None:
        cluster = run.cluster
        on_two(run, but=1)
        await cluster.start()
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2], [1, 2, 0]])
        client = SimulatedClient(cluster.network.host("c"))
        outside, inside = Address("b0", OUTSIDE), Address("b0", PORT)
        for version, code in ((12, ErrorCode.listener_not_found), (5, ErrorCode.leader_not_available)):
            metadata = await client.ask(outside, ApiKey.METADATA, version, ALL)
            assert {b.node_id for b in metadata.brokers} == {0, 2}
            (topic,) = [t for t in metadata.topics if t.name == TOPIC]
            first, second = sorted(topic.partitions, key=lambda p: p.partition_index)
            assert (first.error_code, first.leader_id, list(first.offline_replicas)) == (ErrorCode.none, 0, [1])
            assert (second.error_code, second.leader_id) == (code, -1)
            metadata = await client.ask(inside, ApiKey.METADATA, version, ALL)  # the same topics, as bytes, to others
            (topic,) = [t for t in metadata.topics if t.name == TOPIC]
            assert {(p.error_code, p.leader_id) for p in topic.partitions} == {(0, 0), (0, 1)}
        described = await client.ask(outside, ApiKey.DESCRIBE_CLUSTER, 1, DESCRIBE)
        assert {b.broker_id for b in described.brokers} == {0, 2}
        assert {metadata.controller_id, described.controller_id} <= {0, 1, 2}
        assert described.controller_id != 1, "a controller that cannot be reached there"
        paged = {"topics": [{"name": TOPIC}], "response_partition_limit": 10, "cursor": None}
        pages = await client.ask(outside, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, paged)
        assert [p.error_code for p in pages.topics[0].partitions] == [0, ErrorCode.listener_not_found]
        found = [(await coordinator(client, outside, str(key))) for key in range(20)]
        assert {f.node_id for f in found if f.error_code is ErrorCode.none} <= {0, 2}
        lacking = [f for f in found if f.error_code is not ErrorCode.none]
        assert {(f.error_code, f.node_id, f.port) for f in lacking} <= {(ErrorCode.coordinator_not_available, -1, -1)}
        client.close()

    told(story)


def test_a_greeting_with_the_clusters_secret_is_taken_on_the_listener_for_brokers_alone() -> None:
    async def story(run: Run) -> None:
        cluster = run.cluster
        on_two(run)
        await run.start()
        secret = cluster.ensemble.tree.get(SECRET)
        assert secret is not None
        me = PeerIdentity(broker_id=9, cluster_id=cluster_id(run), secret=secret.value, epoch=lambda: 1)
        host = cluster.network.host("thief")
        link = await host.connect("b0", OUTSIDE, 5)
        with pytest.raises(LinkClosed):
            await greet(link, me, 0, cluster.rng)
        for api in (InternalApi.FEED, InternalApi.REPLICATE, InternalApi.FORWARD):
            link = await host.connect("b0", OUTSIDE, 5)
            with pytest.raises(LinkClosed):
                await link.ask([pack(">hhih", api, 0, 5, -1), *encode_message(PeerMessage({}))])
        link = await host.connect("b0", PORT, 5)
        await greet(link, me, 0, cluster.rng)
        link.close()

    told(story)


def cluster_id(run: Run) -> str:
    stored = run.cluster.ensemble.tree.get(CLUSTER_ID)
    assert stored is not None
    return stored.value.decode()


def test_a_broker_of_a_release_with_one_listener_is_found_where_it_says() -> None:
    old = BrokerNode(id=1, host="h", port=9092)
    assert old.endpoint("ANY") == Endpoint("ANY", "", "h", 9092)
    assert old.for_brokers == Endpoint("", "", "h", 9092)
