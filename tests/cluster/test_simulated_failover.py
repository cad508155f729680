"""Leaders that die, sleep, or are cut off, step by step, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headrace.net.address import Address
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.testing.cluster import SESSION_SECONDS
from headrace.testing.loop import run_virtual
from headrace.testing.store import NEVER
from tests.support.simulation.clients import METADATA_VERSION, ClusterClient
from tests.support.simulation.runs import TOPIC, Plan, Run, different_replicas

Story = Callable[[Run], Awaitable[None]]


def told(story: Story, *, brokers: int = 3, seed: int = 1, settings: dict[str, str] | None = None) -> None:
    """Lets a story happen to a cluster whose topic has one partition, led by broker 0; it ends whole and consistent."""

    async def main() -> None:
        run = Run(Plan(seed=seed, brokers=brokers, partitions=1, settings=settings or {}))
        await run.cluster.start()
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]])
        await story(run)
        await run.end_whole()

    run_virtual(main, seed, longest=600)


async def led_by(run: Run, *brokers: int) -> None:
    await run.cluster.until(lambda: run.cluster.state(TOPIC).leader in brokers, f"{brokers} lead")


def in_isr(run: Run) -> set[int]:
    return set(run.cluster.state(TOPIC).isr)


async def acknowledged(run: Run, *values: str) -> None:
    """Has values acknowledged, however often they have to be sent."""
    for value in values:
        await run.write_until_acknowledged(value)


def test_two_failovers_with_tails_that_nobody_followed_leave_one_history() -> None:
    async def story(run: Run) -> None:
        network, cluster = run.cluster.network, run.cluster
        await acknowledged(run, "a", "b")
        network.cut("b0", "b1")
        network.cut("b0", "b2")
        assert await run.write("tail of b0", acks=1, to=0) is ErrorCode.none
        cluster[0].kill()
        await led_by(run, 1, 2)
        second = cluster.state(TOPIC).leader
        third = 3 - second
        await acknowledged(run, "c")
        network.cut("b1", "b2")
        assert await run.write(f"tail of b{second}", acks=1, to=second) is ErrorCode.none
        cluster[second].kill()
        network.heal()
        await cluster[0].start()
        await led_by(run, third)
        await acknowledged(run, "d")
        await cluster[second].start()

    told(story)


def test_an_answer_of_an_earlier_epoch_of_the_same_leader_changes_nothing() -> None:
    """Two elections within one fetch round trip: b2's fetch is answered by b0 of epoch 0 when b0 leads in epoch 2."""

    async def story(run: Run) -> None:
        await acknowledged(run, "a")
        run.cluster.network.delay("b0", "b2", 3.0)
        sending = [asyncio.ensure_future(run.write(f"epoch 0, {n}", acks=1, to=0)) for n in range(5)]
        await asyncio.gather(*sending)
        await run.elect(TOPIC, [1, 0, 2])
        await acknowledged(run, "epoch 1")
        await run.elect(TOPIC, [0, 1, 2])
        await acknowledged(run, "epoch 2")
        run.cluster.network.delay("b0", "b2", 0.0)
        assert run.cluster.state(TOPIC).leader_epoch == 2

    told(story)


def test_the_last_replica_standing_loses_power_and_nothing_is_missing() -> None:
    async def story(run: Run) -> None:
        cluster = run.cluster
        await acknowledged(run, *"abcde")
        cluster.network.isolate("b0")
        cluster[0].cut_from_store()
        await led_by(run, 1, 2)
        first = cluster.state(TOPIC).leader
        last = 3 - first
        await acknowledged(run, *"fgh")
        cluster.network.isolate(f"b{first}")
        cluster[first].cut_from_store()
        await led_by(run, last)
        await cluster.until(lambda: cluster[last].broker.replicas.partition(TOPIC, 0).is_leader, f"{last} knows it")
        cluster.network.heal(f"b{last}", "admin")
        cluster.network.heal("writer", f"b{last}")
        partition = cluster[last].broker.replicas.partition(TOPIC, 0)
        await cluster.until(lambda: partition.is_leader, "it knows that it leads")
        for value in ("alone 1", "alone 2"):
            assert await run.write(value, acks=1, to=last) is ErrorCode.none
        cluster[last].lose_power()
        await asyncio.sleep(2 * SESSION_SECONDS)
        cluster.network.heal()
        cluster[0].heal_store()
        cluster[first].heal_store()
        await cluster[last].start()
        await acknowledged(run, "i")

    told(story)


def test_a_leader_that_slept_past_its_session_is_fenced_and_its_tail_is_cut() -> None:
    async def story(run: Run) -> None:
        cluster = run.cluster
        await acknowledged(run, "a", "b")
        cluster.network.cut("b0", "b1")
        cluster.network.cut("b0", "b2")
        reader = ClusterClient(cluster, "reader")
        seen: list[bytes] = []
        reading = asyncio.ensure_future(_read_from(reader, seen))
        await cluster.until(lambda: len(seen) == 2, "the reader has caught up")
        assert await run.write("ghost", acks=1, to=0) is ErrorCode.none
        cluster[0].pause()
        await led_by(run, 1, 2)
        await acknowledged(run, "c")
        cluster.network.heal()
        cluster[0].resume()
        assert await run.write("too late", to=0) is not ErrorCode.none
        await cluster.until(lambda: 0 in in_isr(run), "b0 is in sync again")
        reading.cancel()
        await asyncio.wait([reading])
        reader.close()
        assert b"ghost" not in seen
        assert seen[:2] == [b"a", b"b"]

    told(story)


async def _read_from(reader: ClusterClient, seen: list[bytes]) -> None:
    """Reads from broker 0, and from it alone, whatever the metadata says."""
    reader.believe(TOPIC, 0, Address("b0", 9092))
    while True:
        try:
            _, records = await reader.fetch(TOPIC, 0, len(seen))
        except Exception:
            await reader.pause()
            reader.believe(TOPIC, 0, Address("b0", 9092))
        else:
            seen += [record.value or b"" for record in records]


@pytest.mark.parametrize("is_cut_from_store", [True, False])
@pytest.mark.parametrize("way", ["to the others", "from the others", "both ways"])
def test_a_leader_in_the_minority_acknowledges_nothing(way: str, is_cut_from_store: bool) -> None:
    async def story(run: Run) -> None:
        cluster = run.cluster
        await acknowledged(run, "a")
        for other in ("b1", "b2"):
            if way != "from the others":
                cluster.network.cut("b0", other, both_ways=False)
            if way != "to the others":
                cluster.network.cut(other, "b0", both_ways=False)
        if is_cut_from_store:
            cluster[0].cut_from_store(unnoticed=1.0)
        for number in range(5):
            assert await run.write(f"minority {number}", to=0) is not ErrorCode.none
            await asyncio.sleep(0.5)
        if is_cut_from_store:
            await acknowledged(run, "majority")
        cluster.network.heal()
        if is_cut_from_store:
            cluster[0].heal_store()
        await acknowledged(run, "b")

    told(story)


def test_without_enough_replicas_nothing_is_acknowledged_or_shown_and_with_them_it_goes_on() -> None:
    async def story(run: Run) -> None:
        cluster = run.cluster
        await acknowledged(run, "a")
        cluster[1].kill()
        cluster[2].kill()
        assert await run.write("pending", to=0) is ErrorCode.not_enough_replicas_after_append
        assert await run.write("refused", to=0) is ErrorCode.not_enough_replicas
        assert await run.write("written only here", acks=1, to=0) is ErrorCode.none
        assert list((await run.client.read_all(TOPIC, 0)).values()) == [b"a"]
        await cluster[1].start()
        await acknowledged(run, "b")
        await cluster[2].start()

    told(story)


def test_a_broker_that_loses_its_session_steps_down_registers_anew_and_comes_back_into_the_isr() -> None:
    async def story(run: Run) -> None:
        cluster = run.cluster
        await acknowledged(run, "a")
        before = cluster.epoch_of(0)
        cluster[0].expire()
        await led_by(run, 1, 2)
        await acknowledged(run, "b")
        await cluster.until(lambda: 0 in in_isr(run), "b0 is in sync again")
        assert cluster.epoch_of(0) > before

    told(story)


def test_a_broker_that_restarts_before_its_session_has_ended_does_not_count_as_in_sync_meanwhile() -> None:
    async def story(run: Run) -> None:
        cluster = run.cluster
        await acknowledged(run, "a")
        before = cluster.state(TOPIC)
        cluster[0].kill()
        began = asyncio.get_running_loop().time()
        await cluster[0].start()
        assert asyncio.get_running_loop().time() - began < SESSION_SECONDS, "it need not wait for its former session"
        await acknowledged(run, "b")
        assert cluster.state(TOPIC).leader_epoch > before.leader_epoch

    told(story)


def test_a_broker_that_lost_its_page_cache_does_not_lead_before_it_has_fetched_again() -> None:
    async def story(run: Run) -> None:
        cluster = run.cluster
        await acknowledged(run, *"abcdefgh")
        cluster[1].kill()
        cluster[2].kill()
        await cluster.until(lambda: in_isr(run) == {0}, "b0 is alone")
        cluster[0].lose_power()
        await asyncio.sleep(2 * SESSION_SECONDS)
        await cluster[0].start()
        assert cluster.state(TOPIC).leader == -1, "it may have lost what was acknowledged"
        await cluster[1].start()
        await led_by(run, 1)
        await acknowledged(run, "i")
        await cluster[2].start()

    told(story)


def test_what_was_lost_is_remembered_when_the_first_start_after_it_does_not_get_far() -> None:
    async def story(run: Run) -> None:
        cluster = run.cluster
        await acknowledged(run, *"abcdefgh")
        cluster[1].kill()
        cluster[2].kill()
        await cluster.until(lambda: in_isr(run) == {0}, "b0 is alone")
        cluster[0].lose_power()
        await asyncio.sleep(2 * SESSION_SECONDS)
        starting = asyncio.ensure_future(cluster[0].start())
        await asyncio.sleep(0.001)
        cluster[0].kill()
        await asyncio.wait([starting])
        assert starting.exception() is not None
        await cluster[0].start()
        assert cluster.state(TOPIC).leader == -1, "it may have lost what was acknowledged"
        await cluster[1].start()
        await cluster[2].start()

    told(story)


def test_a_topic_that_syncs_before_it_acknowledges_survives_when_all_lose_power_at_once() -> None:
    async def main() -> None:
        run = Run(Plan(seed=3, partitions=1))
        await run.cluster.start()
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]], configs={"flush.messages": "1"})
        await acknowledged(run, *"abcdefgh")
        for machine in run.cluster:
            machine.lose_power()
        await asyncio.sleep(2 * SESSION_SECONDS)
        await run.cluster.start()
        await acknowledged(run, "i")
        await run.cluster.until(run.cluster.is_whole, "every partition is whole")
        assert not await run.reckon()
        await run.end()

    run_virtual(main, 3, longest=600)


@pytest.mark.parametrize("kind", ["append", "datasync"])
def test_a_leader_whose_disk_fails_hands_its_partition_over(kind: str) -> None:
    async def story(run: Run) -> None:
        cluster = run.cluster
        await acknowledged(run, "a")
        cluster[0].disk.fail(kind=kind, path=f"{TOPIC}-0/", times=1_000_000)
        await run.write("fails", to=0)
        await run.flush(0)
        await led_by(run, 1, 2)
        await acknowledged(run, "b")
        epoch = cluster.state(TOPIC).leader_epoch
        await asyncio.sleep(5)
        assert cluster.state(TOPIC).leader_epoch == epoch, "it is not given back to the broken disk"
        cluster[0].disk.heal()
        cluster[0].kill()
        await cluster[0].start()

    told(story)


def test_deleted_records_are_gone_on_followers_too() -> None:
    async def story(run: Run) -> None:
        await acknowledged(run, *"abcd")
        await run.delete_records(TOPIC, 0, 2)
        replicas = [machine.broker.replicas.partition(TOPIC, 0) for machine in run.cluster]
        await run.cluster.until(lambda: all(p.log.log_start_offset == 2 for p in replicas), "all begin at 2", 2)

    told(story)


def test_replicas_that_differ_would_be_found() -> None:
    async def main() -> list[str]:
        run = Run(Plan(seed=1, partitions=1))
        await run.start()
        await acknowledged(run, "a", "b")
        await asyncio.sleep(2)
        (path,) = [path for path in run.cluster[1].disk.paths() if path.endswith(".log") and TOPIC in path]
        run.cluster[1].disk.damage(path, 70, b"x")
        found = different_replicas(run.cluster)
        await run.end()
        return found

    assert any("replicas differ" in problem for problem in run_virtual(main, 1))


@pytest.mark.parametrize("unnoticed", [0.0, SESSION_SECONDS / 2, SESSION_SECONDS * 0.9, NEVER])
def test_a_leader_that_is_cut_from_the_store_steps_down_by_the_end_of_its_session(unnoticed: float) -> None:
    async def story(run: Run) -> None:
        await acknowledged(run, "a")
        run.cluster[0].cut_from_store(unnoticed=unnoticed)
        await asyncio.sleep(SESSION_SECONDS + 0.1)
        assert await run.write("too late", acks=1, to=0) is ErrorCode.not_leader_or_follower
        run.cluster[0].heal_store()
        await acknowledged(run, "b")

    told(story)


def test_a_broker_that_has_lost_its_cluster_answers_who_leads_and_sends_the_client_away() -> None:
    async def story(run: Run) -> None:
        address, values = run.cluster.addresses[0], {"topics": [{"name": TOPIC}], "allow_auto_topic_creation": False}

        async def ask() -> None:
            await run.client.ask(address, ApiKey.METADATA, METADATA_VERSION, values)

        await ask()
        await ask()
        run.cluster[0].cut_from_store()
        await led_by(run, 1, 2)
        await asyncio.sleep(SESSION_SECONDS)
        await ask()
        await run.cluster.until(lambda: not run.client.is_connected(address), "the client is sent away", 1)
        run.cluster[0].heal_store()
        await acknowledged(run, "a")

    told(story)
