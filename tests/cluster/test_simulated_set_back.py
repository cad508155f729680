"""A metadata store that is set back to an earlier state: nothing that was acknowledged is deleted or cut for it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from headrace.cluster import backup as backups
from headrace.cluster.backup import Backup, StoreKind
from headrace.cluster.identity import WrongCluster
from headrace.cluster.lineage import LINEAGE, MARK_SECONDS
from headrace.cluster.membership import IdInUse
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.testing.cluster import Machine
from headrace.testing.loop import run_virtual
from headrace.testing.tree import Tree
from tests.support.simulation.runs import TOPIC, Plan, Run

Story = Callable[[Run], Awaitable[None]]


def told(story: Story, *, seed: int = 1) -> None:
    async def main() -> None:
        run = Run(Plan(seed=seed, partitions=1))
        await run.cluster.start()
        await story(run)
        await run.end()

    run_virtual(main, seed, longest=3600)


def directories(run: Run, topic: str = TOPIC) -> list[list[str]]:
    """What is left of a topic's logs on each machine: the ends of names."""
    found = [[name for name in machine.disk.listdir("/data") if name.startswith(topic)] for machine in run.cluster]
    return [sorted(name.rpartition("-")[2] for name in names) for names in found]


def test_logs_of_topics_that_a_store_set_back_does_not_know_are_kept() -> None:
    async def story(run: Run) -> None:
        await asyncio.sleep(5)
        backup = run.cluster.ensemble.tree.snapshot()
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]])
        await run.write_until_acknowledged("a")
        await run.cluster.until(run.cluster.is_whole, "every partition is whole")
        run.cluster.ensemble.set_back(backup)
        await run.cluster.until(lambda: directories(run) == [["stray"]] * 3, "the logs are set aside")
        await asyncio.sleep(600)
        assert directories(run) == [["stray"]] * 3

    told(story)


async def whole_and_nothing_lost(run: Run) -> None:
    await run.write_until_acknowledged("z")
    await run.cluster.until(run.cluster.is_whole, "every partition is whole")
    found = await run.reckon()
    assert not found, "\n".join(found)


@pytest.mark.parametrize("renumber", [False, True])
@pytest.mark.parametrize("restart", [False, True])
def test_a_replica_that_only_an_old_store_takes_for_in_sync_does_not_lead(restart: bool, renumber: bool) -> None:
    async def story(run: Run) -> None:
        cluster = run.cluster
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]])
        await run.write_until_acknowledged("a")
        await cluster.until(cluster.is_whole, "every partition is whole")
        await asyncio.sleep(MARK_SECONDS / 2)
        backup = cluster.ensemble.tree.snapshot()
        cluster[0].kill()
        await asyncio.sleep(MARK_SECONDS)
        for value in "bcd":
            await run.write_until_acknowledged(value)
        cluster.ensemble.set_back(backup, renumber=renumber)
        assert 0 in cluster.state(TOPIC).isr
        if restart:
            cluster[1].kill()
            cluster[2].kill()
        await cluster[0].start()
        await asyncio.gather(*(machine.start() for machine in cluster if not machine.is_up))
        await whole_and_nothing_lost(run)

    told(story)


def test_leaders_after_a_set_back_have_epochs_that_no_log_has_seen() -> None:
    async def story(run: Run) -> None:
        cluster = run.cluster
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]])
        backup = cluster.ensemble.tree.snapshot()
        await asyncio.sleep(MARK_SECONDS + 1)
        for number in range(4):
            await run.write_until_acknowledged(f"{number}")
            await cluster.leader(TOPIC).stop()
            await asyncio.gather(*(machine.start() for machine in cluster if not machine.is_up))
            await cluster.until(cluster.is_whole, "every partition is whole")
        known = cluster.state(TOPIC).leader_epoch
        cluster.ensemble.set_back(backup)
        assert cluster.state(TOPIC).leader_epoch < known
        await cluster.until(lambda: cluster.state(TOPIC).leader_epoch > known, "a new leader epoch")
        await whole_and_nothing_lost(run)

    told(story)


def test_partitions_that_are_added_again_after_a_set_back_have_epochs_that_their_old_logs_have_not_seen() -> None:
    async def grow(run: Run) -> None:
        topic = {"name": TOPIC, "count": 2, "assignments": [{"broker_ids": [0, 1, 2]}]}
        request = {"topics": [topic], "timeout": 5_000, "validate_only": False}
        while len(run.cluster.topics()[TOPIC].partitions) != 2:
            with suppress(OSError):
                await run.client.ask_anyone(ApiKey.CREATE_PARTITIONS, 3, request)
            await run.client.pause()

    async def story(run: Run) -> None:
        cluster = run.cluster
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]])
        await asyncio.sleep(MARK_SECONDS + 1)
        backup = cluster.ensemble.tree.snapshot()
        await grow(run)
        for _ in range(4):
            await cluster.until(cluster.is_whole, "every partition is whole")
            await cluster.leader(TOPIC, 1).stop()
            await asyncio.gather(*(machine.start() for machine in cluster if not machine.is_up))
        await cluster.until(cluster.is_whole, "every partition is whole")
        known = cluster.state(TOPIC, 1).leader_epoch
        await asyncio.sleep(MARK_SECONDS + 1)
        cluster.ensemble.set_back(backup)
        await cluster.until(lambda: cluster.ensemble.tree.get(LINEAGE) is not None, "it was noticed")
        lone = cluster[2]
        lone.kill()
        await grow(run)
        await cluster.until(lambda: cluster.state(TOPIC, 1).leader_epoch > known, "an epoch that no log has seen")
        await lone.start()
        await cluster.until(cluster.is_whole, "every partition is whole")

    told(story)


def test_a_broker_that_does_not_notice_a_set_back_itself_hears_of_it() -> None:
    async def story(run: Run) -> None:
        cluster = run.cluster
        await run.client.create_topic(TOPIC, assignments=[[2, 1, 0]])
        await run.write_until_acknowledged("a")
        await cluster.until(cluster.is_whole, "every partition is whole")
        backup = cluster.ensemble.tree.snapshot()
        for number in (0, 2) * 3:  # these leave new marks; that of the one that stays is the same before and after
            cluster[number].kill()
            await cluster.until(lambda: not cluster.is_whole(), "it is missed")
            await cluster[number].start()
            await cluster.until(cluster.is_whole, "every partition is whole")
        assert cluster.state(TOPIC).partition_epoch > 10
        cluster.ensemble.set_back(backup)
        cluster[0].kill()
        cluster[2].kill()
        await asyncio.gather(cluster[0].start(), cluster[2].start())
        await whole_and_nothing_lost(run)

    told(story)


def test_a_broker_that_has_heard_of_later_controllers_notices_a_set_back_that_its_mark_does_not_show() -> None:
    """It never took up what a controller with an older epoch told, and asked again and again."""

    async def story(run: Run) -> None:
        cluster = run.cluster
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]])
        await run.write_until_acknowledged("a")
        await cluster.until(cluster.is_whole, "every partition is whole")
        steady = next(machine for machine in cluster if machine is not cluster.controller())
        others = [machine for machine in cluster if machine is not steady]
        backup = cluster.ensemble.tree.snapshot()
        for _ in range(3):
            controller = cluster.controller()
            if controller is not None and controller is not steady:
                controller.kill()
                await asyncio.sleep(10)
                await controller.start()
        for machine in others:
            machine.kill()
        cluster.ensemble.set_back(backup)
        await asyncio.sleep(20)
        for machine in others:
            await machine.start()
        await whole_and_nothing_lost(run)

    told(story)


async def producer_ids(run: Run) -> list[int]:
    values = {"transactional_id": None, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    found: list[int] = []
    while len(found) < 5:
        answer = await run.client.ask_anyone(ApiKey.INIT_PRODUCER_ID, 4, values)
        if answer.error_code == ErrorCode.none:
            found.append(answer.producer_id)
        else:
            await run.client.pause()
    return found


def test_no_producer_id_comes_twice_after_a_set_back() -> None:
    async def story(run: Run) -> None:
        cluster = run.cluster
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]])
        backup = cluster.ensemble.tree.snapshot()
        await asyncio.sleep(MARK_SECONDS + 1)
        known = await producer_ids(run)
        for _ in range(3):
            cluster.ensemble.set_back(backup)
            for machine in cluster:
                machine.kill()
            await asyncio.gather(*(machine.start() for machine in cluster))
            await cluster.until(cluster.is_whole, "every partition is whole")
            known += await producer_ids(run)
        assert len(set(known)) == len(known)

    told(story)


def test_brokers_wait_for_their_own_store_where_they_find_an_empty_one() -> None:
    async def story(run: Run) -> None:
        cluster = run.cluster
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]])
        await run.write_until_acknowledged("a")
        await cluster.until(cluster.is_whole, "every partition is whole")
        backup = cluster.ensemble.tree.snapshot()
        cluster.ensemble.set_back(Tree().snapshot())
        await asyncio.sleep(60)
        assert cluster.registered() == []
        assert directories(run) == [["0"]] * 3
        cluster.ensemble.set_back(backup)
        await whole_and_nothing_lost(run)

    told(story)


def test_a_broker_of_a_cluster_that_starts_with_an_empty_store_leaves_nothing_in_it() -> None:
    """Else the next would find the id of a cluster there that nobody is of, not a store that has lost everything."""

    async def story(run: Run) -> None:
        cluster = run.cluster
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]])
        await run.write_until_acknowledged("a")
        await cluster.until(cluster.is_whole, "every partition is whole")
        for machine in cluster:
            await machine.stop()
        backup = cluster.ensemble.tree.snapshot()
        cluster.ensemble.set_back(Tree().snapshot())
        for machine in cluster:
            with pytest.raises(WrongCluster, match="it has lost everything"):
                await machine.start()
        assert cluster.ensemble.tree.list("/") == []
        cluster.ensemble.set_back(backup)
        for machine in cluster:
            await machine.start()
        await whole_and_nothing_lost(run)

    told(story)


def put_back(machine: Machine) -> None:
    """What an operator does with the one log of a topic that was made anew."""
    disk, path = machine.disk, f"/data/{TOPIC}-0"
    (stray,) = (name for name in disk.listdir("/data") if name.startswith(TOPIC) and name.endswith("-stray"))
    disk.rmtree(path)
    disk.rename(f"/data/{stray}", path)
    disk.unlink(f"{path}/partition.metadata")


def test_a_cluster_whose_store_is_lost_for_good_begins_anew_with_its_records() -> None:
    async def story(run: Run) -> None:
        cluster = run.cluster
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]])
        await run.write_until_acknowledged("a")
        known = await producer_ids(run)
        await cluster.until(cluster.is_whole, "every partition is whole")
        await asyncio.gather(*(machine.stop() for machine in cluster))
        cluster.ensemble.set_back(Tree().snapshot())
        for machine in cluster:
            lines = machine.disk.read("/data/meta.properties").splitlines(keepends=True)
            others = [line for line in lines if not line.startswith(b"cluster.id=")]
            machine.disk.write("/data/meta.properties", b"".join(others))
        await asyncio.gather(*(machine.start() for machine in cluster))
        await cluster.until(lambda: directories(run) == [["stray"]] * 3, "the logs are set aside")
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]])
        await cluster.until(lambda: directories(run) == [["0", "stray"]] * 3, "the topic is made anew")
        await asyncio.gather(*(machine.stop() for machine in cluster))
        for machine in cluster:
            put_back(machine)
        await asyncio.gather(*(machine.start() for machine in cluster))
        run.client.forget(TOPIC, 0)
        await whole_and_nothing_lost(run)
        assert not set(known) & set(await producer_ids(run))

    told(story)


def test_a_broker_with_a_copy_of_a_live_ones_directory_does_not_take_its_place() -> None:
    async def story(run: Run) -> None:
        cluster = run.cluster
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]])
        epoch = cluster.epoch_of(1)
        copy = Machine(cluster, 1, name="copy")
        copy.disk = cluster[1].disk.copy()
        with pytest.raises(IdInUse, match="a copy of this data directory"):
            await copy.start()
        assert cluster.epoch_of(1) == epoch
        await whole_and_nothing_lost(run)

    told(story)


def test_a_directory_that_is_older_than_what_the_cluster_has_seen_of_it_is_not_counted_on() -> None:
    async def story(run: Run) -> None:
        cluster = run.cluster
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]])
        await run.write_until_acknowledged("a")
        await cluster.until(cluster.is_whole, "every partition is whole")
        await cluster[2].stop()
        snapshot = cluster[2].disk.copy()
        await cluster[2].start()
        await cluster.until(cluster.is_whole, "every partition is whole")
        await run.write_until_acknowledged("b")
        for machine in cluster:
            await machine.stop()
        cluster[2].disk = snapshot
        await asyncio.gather(*(machine.start() for machine in cluster))
        await whole_and_nothing_lost(run)

    told(story)


def test_a_broker_that_was_down_when_a_topic_was_deleted_deletes_it_when_it_is_back() -> None:
    async def story(run: Run) -> None:
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]])
        await run.cluster[2].stop()
        topics = [{"name": TOPIC, "topic_id": None}]
        values = {"topics": topics, "timeout": 5_000}
        answer = await run.client.ask(run.cluster[0].address, ApiKey.DELETE_TOPICS, 6, values, seconds=30)
        assert answer.responses[0].error_code == ErrorCode.none
        await run.cluster[2].start()
        await run.cluster.until(lambda: directories(run) == [[]] * 3, "the logs are deleted", seconds=600)

    told(story)


async def restored(run: Run, backup: Backup) -> None:
    """Everything in the store is lost, and comes back from a backup once nobody is registered."""
    cluster = run.cluster
    cluster.ensemble.set_back(Tree().snapshot())
    store = cluster.ensemble.session()
    target = await backups.look(store)
    backups.refuse(backup, StoreKind.ZOOKEEPER, target, newest_level=1, force=False)
    await backups.restore(store, backups.restoration(backup, run.cluster.rng), target)
    await store.close()


async def taken(run: Run) -> Backup:
    store = run.cluster.ensemble.session()
    backup = await backups.take(store, StoreKind.ZOOKEEPER, now_ms=0, version="")
    await store.close()
    return backups.decode(backups.encode(backup))


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_cluster_restored_from_a_backup_has_what_was_acknowledged_since(seed: int, restart: bool) -> None:
    async def story(run: Run) -> None:
        cluster = run.cluster
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]])
        await run.write_until_acknowledged("a")
        await cluster.until(cluster.is_whole, "every partition is whole")
        backup = await taken(run)
        cluster[0].kill()
        for value in "bcd":
            await run.write_until_acknowledged(value)
        if restart:
            cluster[1].kill()
            cluster[2].kill()
        await restored(run, backup)
        await cluster[0].start()
        await asyncio.gather(*(machine.start() for machine in cluster if not machine.is_up))
        await whole_and_nothing_lost(run)

    told(story, seed=seed)
