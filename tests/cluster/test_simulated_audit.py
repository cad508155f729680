"""What is done at any broker of a cluster is found in one audit topic, also when the broker that leads it dies."""

import asyncio
import json

from headrace.client.core.topics import create_topic_request
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.security.audit import TOPIC
from headrace.testing.client import SimulatedClient
from headrace.testing.cluster import SimulatedCluster
from headrace.testing.loop import run_virtual

SETTINGS = {
    "headrace.audit": "topic",
    "offsets.topic.replication.factor": "3",
    "min.insync.replicas": "2",
    "auto.create.topics.enable": "false",
}


async def create(cluster: SimulatedCluster, client: SimulatedClient, at: int, name: str) -> None:
    values = create_topic_request(name, timeout_ms=10_000, partitions=1, replication_factor=1)
    answer = await client.ask(cluster[at].address, ApiKey.CREATE_TOPICS, 5, values)
    assert answer.topics[0].error_code is ErrorCode.none


async def recorded(cluster: SimulatedCluster, client: SimulatedClient) -> list[tuple[int, str]]:
    """The brokers that have recorded the topics, in the order of the log."""
    _, values = await client.fetch(cluster.leader(TOPIC).address, TOPIC)
    events = {event["id"]: event for event in (json.loads(value or b"{}") for value in values)}
    return [
        (event["broker"], each["name"])
        for event in events.values()
        for each in event["resources"]
        if event["operation"] == "CreateTopics"
    ]


async def until_recorded(cluster: SimulatedCluster, client: SimulatedClient, *expected: tuple[int, str]) -> None:
    async with asyncio.timeout(60):
        while True:
            if TOPIC in cluster.topics() and set(expected) <= set(await recorded(cluster, client)):
                return
            await asyncio.sleep(0.1)


def test_every_broker_records_in_one_topic_also_after_its_leader_has_died() -> None:
    async def main() -> None:
        cluster = SimulatedCluster(settings=SETTINGS)
        client = SimulatedClient(cluster.network.host("client"))
        await cluster.start()
        for at in range(3):
            await create(cluster, client, at, f"made-at-{at}")
        await until_recorded(cluster, client, *((at, f"made-at-{at}") for at in range(3)))
        leader = cluster.leader(TOPIC)
        leader.kill()
        others = [at for at in range(3) if at != leader.id]
        await cluster.until(lambda: cluster.state(TOPIC).leader in others, "another broker leads the topic")
        await cluster.until(lambda: cluster.controller() is not None, "there is a controller")
        for at in others:
            await create(cluster, client, at, f"later-at-{at}")
        await until_recorded(
            cluster, client, *((at, f"made-at-{at}") for at in range(3)), *((at, f"later-at-{at}") for at in others)
        )
        client.close()
        await cluster.stop()

    run_virtual(main)
