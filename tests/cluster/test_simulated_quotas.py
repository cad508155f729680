"""Clients that are limited, in virtual time: who asks for too much gets its quota, the others what they ask."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.client.core.quotas import Entity, alter_quotas_request
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.server.connection import Connection
from headrace.testing.client import SimulatedClient
from headrace.testing.cluster import SimulatedCluster
from headrace.testing.loop import run_virtual
from tests.support.simulation.runs import TOPIC, Plan, Run

MEGABYTE = 1_000_000
SECONDS = 20.0
VALUE = bytes(100_000)
PAUSE = 0.03
"""Between two requests of a client: it asks for some 3 MB/s."""

Work = Callable[[SimulatedCluster, SimulatedClient], Awaitable[int]]


async def set_quota(cluster: SimulatedCluster, entity: Entity, **quotas: float | None) -> None:
    """Asked of a broker that is not the controller, and known to all brokers afterwards."""
    controller = cluster.controller()
    other = next(machine for machine in cluster if machine is not controller)
    client = SimulatedClient(cluster.network.host("operator"))
    try:
        request = alter_quotas_request([(entity, quotas)])
        answer = await client.ask(other.address, ApiKey.ALTER_CLIENT_QUOTAS, 1, request)
        assert [entry.error_code for entry in answer.entries] == [ErrorCode.none]
        await asyncio.sleep(1.0)
    finally:
        client.close()


async def write(cluster: SimulatedCluster, client: SimulatedClient) -> int:
    """One request; the bytes that were acknowledged."""
    answer = await client.produce(cluster.leader(TOPIC).address, TOPIC, VALUE)
    assert answer.error_code is ErrorCode.none
    return len(VALUE)


async def read(cluster: SimulatedCluster, client: SimulatedClient) -> int:
    """One fetch from the beginning; the bytes of values that came."""
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 100_000, "current_leader_epoch": -1}
    request = {
        "replica_id": -1,
        "max_wait": 100,
        "min_bytes": 1,
        "max_bytes": 100_000,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": TOPIC, "partitions": [partition]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    answer: Any = await client.ask(cluster.leader(TOPIC).address, ApiKey.FETCH, 11, request)
    return sum(len(p.records or b"") for topic in answer.responses for p in topic.partitions)


async def rates(work: Work, *, limited: bool, key: str) -> tuple[float, float]:
    """The bytes a second that a client with a quota of 1 MB/s gets through, and another one without, beside it."""
    run = Run(Plan(seed=7, partitions=1))
    await run.start()
    cluster = run.cluster
    for _ in range(4):
        await write(cluster, SimulatedClient(cluster.network.host("first")))
    if limited:
        await set_quota(cluster, {"client-id": "greedy"}, **{key: float(MEGABYTE)})
    done = {"greedy": 0, "good": 0}
    end = asyncio.get_running_loop().time() + SECONDS

    async def ask_on(name: str) -> None:
        client = SimulatedClient(cluster.network.host(name))
        try:
            while asyncio.get_running_loop().time() < end:
                done[name] += await work(cluster, client)
                await asyncio.sleep(PAUSE)
        finally:
            client.close()

    await asyncio.gather(ask_on("greedy"), ask_on("good"))
    await run.end()
    return done["greedy"] / SECONDS, done["good"] / SECONDS


def measured(work: Work, key: str, *, limited: bool = True) -> tuple[float, float]:
    result: list[tuple[float, float]] = []

    async def main() -> None:
        result.append(await rates(work, limited=limited, key=key))

    run_virtual(main, 7, longest=900)
    return result[0]


@pytest.mark.parametrize(("work", "key"), [(write, "producer_byte_rate"), (read, "consumer_byte_rate")])
def test_a_limited_client_stays_within_a_tenth_of_its_quota_and_another_keeps_its_rate(work: Work, key: str) -> None:
    greedy, good = measured(work, key)
    without, beside = measured(work, key, limited=False)
    assert without > 2 * MEGABYTE, "or there was nothing to limit"
    assert abs(greedy - MEGABYTE) <= 0.1 * MEGABYTE
    assert good >= 0.9 * beside


def test_without_muting_nobody_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "mute", lambda *_: None)
    greedy, _ = measured(write, "producer_byte_rate")
    assert greedy > 2 * MEGABYTE
