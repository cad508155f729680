"""Feature levels: brokers of two releases in one cluster, which speak the older's formats until an operator raises it.

Level 2 is made up: it has the formats of level 1, so that what is seen of it is the version of requests alone.
"""

import asyncio
from collections.abc import Awaitable, Callable
from struct import pack
from typing import Any

import pytest

from headrace.cluster.feature_level import LEVEL, UnsupportedLevel
from headrace.cluster.image import BrokerNode
from headrace.cluster.registration import Registration, encode_registration, registration_key
from headrace.cluster.store import ANY_VERSION, Create, Put
from headrace.protocol.levels import LevelRange
from headrace.protocol.peer import InternalApi, PeerMessage, decode_message, encode_message
from headrace.server.broker import BrokerFailed
from headrace.server.clustered.node import PeerService
from headrace.testing.cluster import PORT, Machine
from headrace.testing.loop import run_virtual
from tests.support.simulation.runs import TOPIC, Plan, Run

ONE, BOTH = LevelRange(1, 1), LevelRange(1, 2)
Story = Callable[[Run], Awaitable[None]]


@pytest.fixture
def spoken(monkeypatch: pytest.MonkeyPatch) -> set[tuple[int, int]]:
    """The APIs and versions in which brokers have asked each other."""
    seen: set[tuple[int, int]] = set()
    serve = PeerService.serve

    def noting(self: PeerService, connection: Any, api_key: int, version: int, *rest: Any) -> Any:
        if connection.peer_broker is not None:
            seen.add((api_key, version))
        return serve(self, connection, api_key, version, *rest)

    monkeypatch.setattr(PeerService, "serve", noting)
    return seen


def told(story: Story, *levels: LevelRange) -> None:
    async def main() -> None:
        run = Run(Plan(seed=1, partitions=1))
        for machine, spoken in zip(run.cluster, levels, strict=True):
            machine.levels = spoken
            await machine.start()  # the first makes the cluster
        await story(run)
        await run.end()

    run_virtual(main, 1, longest=3600)


async def upgrade(run: Run, at: Machine, **values: Any) -> dict[str, Any]:
    """Ask a broker to have the level raised; what it answers."""
    link = await run.cluster.network.host("operator").connect(at.name, PORT, 5)
    question = PeerMessage({"to": None, "dry_run": False, **values})
    answer = await link.ask([pack(">hhih", InternalApi.UPDATE_LEVEL, 0, 5, -1), *encode_message(question)])
    link.close()
    return dict(decode_message(answer[4:]).values)


def stored_level(run: Run) -> bytes:
    stored = run.cluster.ensemble.tree.get(LEVEL)
    assert stored is not None
    return stored.value


async def replaced(run: Run, machine: Machine, levels: LevelRange) -> None:
    await machine.stop()
    machine.levels = levels
    await machine.start()
    await run.cluster.until(run.cluster.is_whole, "every partition is whole")


async def load(run: Run, value: str) -> None:
    await run.write_until_acknowledged(value)
    await run.cluster.until(run.cluster.is_whole, "every partition is whole")


def test_a_mixed_cluster_speaks_the_older_level_and_switches_once_it_is_raised(spoken: set[tuple[int, int]]) -> None:
    async def story(run: Run) -> None:
        cluster = run.cluster
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]])
        await load(run, "a")
        assert {version for _, version in spoken} == {0}
        refused = await upgrade(run, cluster[1], to=2)
        assert (refused["error"], "broker 0" in refused["message"]) == ("feature_update_failed", True)
        await replaced(run, cluster[0], BOTH)
        await load(run, "b")
        assert {version for _, version in spoken} == {0}, "nobody speaks the newer level before it is raised"
        planned = await upgrade(run, cluster[2], dry_run=True)
        assert (planned["before"], planned["after"], stored_level(run)) == (1, 2, b"1")
        assert (await upgrade(run, cluster[0]))["after"] == 2
        spoken.clear()
        await cluster.until(lambda: (InternalApi.REPLICATE, 1) in spoken, "replication in the newer level")
        await cluster.until(lambda: (InternalApi.FEED, 1) in spoken, "the feed in the newer level")
        spoken.clear()
        await load(run, "c")
        assert {version for _, version in spoken} == {1}
        found = await run.reckon()
        assert not found, "\n".join(found)

    told(story, ONE, BOTH, BOTH)


def test_a_broker_can_be_replaced_by_the_older_release_until_the_level_is_raised_and_not_after() -> None:
    async def story(run: Run) -> None:
        cluster = run.cluster
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]])
        await load(run, "a")
        await replaced(run, cluster[2], ONE)
        await load(run, "b")
        for machine in (cluster[0], cluster[2]):
            await replaced(run, machine, BOTH)
        assert (await upgrade(run, cluster[2]))["after"] == 2
        await cluster[1].stop()
        cluster[1].levels = ONE
        with pytest.raises(UnsupportedLevel, match="feature level is 2, and this broker speaks 1"):
            await cluster[1].start()
        cluster[1].levels = BOTH
        await cluster[1].start()
        await load(run, "c")
        found = await run.reckon()
        assert not found, "\n".join(found)

    told(story, ONE, BOTH, BOTH)


def test_a_broker_that_finds_a_level_raised_that_it_does_not_speak_ends() -> None:
    async def story(run: Run) -> None:
        cluster = run.cluster
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]])
        await load(run, "a")
        store = cluster.ensemble.session()
        await store.commit([Put(LEVEL, b"2", ANY_VERSION)])
        await store.close()
        for machine in cluster:
            machine.expire()
        with pytest.raises(BrokerFailed, match="feature level is 2, and this broker speaks 1"):
            await asyncio.wait_for(cluster[0].broker.failed(), 60)
        cluster[0].kill()
        cluster[0].levels = BOTH
        await cluster[0].start()
        await load(run, "b")
        found = await run.reckon()
        assert not found, "\n".join(found)

    told(story, ONE, BOTH, BOTH)


def test_a_new_cluster_begins_with_the_newest_level() -> None:
    async def story(run: Run) -> None:
        assert stored_level(run) == b"2"

    told(story, BOTH, BOTH, BOTH)


def test_a_broker_of_before_levels_is_no_member_of_a_cluster_that_was_raised() -> None:
    async def story(run: Run) -> None:
        cluster = run.cluster
        node = BrokerNode(id=7, host="b7", port=PORT)
        old = encode_registration(Registration(node=node, directory="old"))
        without = old.replace(b',"levels":[1,1],"version":""', b"")
        assert without != old
        session = cluster.ensemble.session()
        await session.commit([Create(registration_key(7), without, ephemeral=True)])
        await asyncio.sleep(5)
        controller = cluster.controller()
        assert controller is not None
        clustered = controller.broker._clustered
        assert clustered is not None
        active = clustered.member.active_controller
        assert active is not None
        assert sorted(active.image.brokers) == [0, 1, 2]
        await session.close()

    told(story, BOTH, BOTH, BOTH)
