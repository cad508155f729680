"""Logs that fail, are lost, or find no space: who is counted on then, who leads, and how it all comes back."""

import asyncio
import errno
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from structlog.testing import capture_logs

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.protocol.peer import InternalApi
from headrace.replication.partition import Partition
from headrace.storage.condition import Health
from headrace.storage.disk import StorageError
from headrace.testing.disk import PLENTY
from headrace.testing.loop import run_virtual
from tests.support.simulation.runs import TOPIC, Plan, Run

Story = Callable[[Run], Awaitable[None]]
DIRECTORY = f"/data/{TOPIC}-0"
FIRST_SEGMENT = f"{DIRECTORY}/{0:020d}.log"
PATIENT = {"replica.lag.time.max.ms": "600000"}
"""With this nobody leaves an ISR because it lags."""


def told(
    story: Story, *, replicas: Sequence[int] = (0, 1, 2), least_isr: int = 2, settings: dict[str, str] | None = None
) -> None:
    """Lets a story happen to a cluster with one synced partition; it ends with all in sync and nothing lost."""

    async def main() -> None:
        run = Run(Plan(seed=1, partitions=1, settings=settings or {}))
        configs = {"flush.messages": "1", "min.insync.replicas": str(least_isr)}
        await run.start_with(replicas, configs, "a", "b", "c")
        await story(run)
        await run.write_until_acknowledged("z")
        await run.end_whole()

    run_virtual(main, 1, longest=3600)


def held(run: Run, broker: int) -> Partition:
    return run.cluster[broker].broker.replicas.partition(TOPIC, 0)


async def opened(run: Run, broker: int) -> Partition:
    """The partition on a broker that has just started, once its log is open."""
    held_by = run.cluster[broker].broker.replicas.hosted
    await run.cluster.until(lambda: any(p.topic == TOPIC for p in held_by()), f"{broker} has opened its log")
    return held(run, broker)


async def in_sync(run: Run, *brokers: int) -> None:
    await run.cluster.until(lambda: set(run.cluster.state(TOPIC).isr) == set(brokers), f"{brokers} are in sync")


async def led_by(run: Run, broker: int) -> None:
    await run.cluster.until(lambda: run.cluster.state(TOPIC).leader == broker, f"{broker} leads")


async def elect_uncleanly(run: Run) -> None:
    values = {"election_type": 1, "topic_partitions": [{"topic": TOPIC, "partitions": [0]}], "timeout": 5_000}
    await run.client.ask_anyone(ApiKey.ELECT_LEADERS, 2, values)


def damage(run: Run, broker: int) -> None:
    """Bit rot in what a stopped broker has synced, which its next start after a crash finds."""
    disk = run.cluster[broker].disk
    disk.damage(FIRST_SEGMENT, 20, b"\xff" * 40)
    disk.unlink("/data/.kafka_cleanshutdown")


def lose(run: Run, broker: int, *more: str) -> None:
    """What an operator removes from the disk of a stopped broker."""
    disk = run.cluster[broker].disk
    disk.rmtree(DIRECTORY)
    for name in more:
        disk.unlink(f"/data/{name}")


def test_a_damaged_log_is_never_in_sync_and_comes_back_when_it_is_removed() -> None:
    async def story(run: Run) -> None:
        machine = run.cluster[2]
        await machine.stop()
        damage(run, 2)
        await machine.start()
        assert (await opened(run, 2)).log.health is Health.FAILED
        for number in range(5):
            await run.write_until_acknowledged(f"without 2: {number}")
            await asyncio.sleep(5)
            assert 2 not in run.cluster.state(TOPIC).isr
        await machine.stop()
        lose(run, 2)
        await machine.start()
        await in_sync(run, 0, 1, 2)
        assert held(run, 2).log.health is Health.ONLINE

    told(story)


def test_a_leader_that_cannot_read_its_log_for_an_answer_hands_over() -> None:
    """To whom it was to be sent, a follower or a consumer, does not matter."""

    async def story(run: Run) -> None:
        assert run.cluster.state(TOPIC).leader == 0
        run.cluster[0].disk.fail(errno.EIO, kind="pread", path=FIRST_SEGMENT)
        await run.write_until_acknowledged("read by followers")
        await run.cluster.until(lambda: run.cluster.state(TOPIC).leader != 0, "another leads")
        assert held(run, 0).log.health is Health.FAILED
        await run.cluster[0].stop()
        await run.cluster[0].start()

    told(story)


def test_the_last_in_sync_replica_does_not_lead_with_a_damaged_log() -> None:
    """Nobody does, until it is elected uncleanly or the damage is undone; and it is not forgotten who is in sync."""

    async def story(run: Run) -> None:
        run.cluster[0].kill()
        await led_by(run, 2)
        await run.write_until_acknowledged("only on 2")
        await run.cluster[2].stop()
        good = run.cluster[2].disk.content(FIRST_SEGMENT)
        damage(run, 2)
        await run.cluster[2].start()
        await run.cluster[0].start()
        await run.cluster.until(lambda: run.cluster.state(TOPIC).leader == -1, "nobody leads")
        assert run.cluster.state(TOPIC).isr == (2,)
        assert not held(run, 2).is_leader
        await run.cluster[2].stop()
        run.cluster[2].disk.damage(FIRST_SEGMENT, 0, good)
        await run.cluster[2].start()
        await led_by(run, 2)

    told(story, replicas=(0, 2), least_isr=1)


def test_the_last_in_sync_replica_does_not_lead_when_its_directory_is_lost() -> None:
    async def story(run: Run) -> None:
        run.cluster[0].kill()
        await led_by(run, 2)
        await run.cluster[2].stop()
        lose(run, 2)
        sending = asyncio.ensure_future(run.write_until_acknowledged("while nobody can lead", seconds=600))
        await run.cluster[2].start()
        await run.cluster.until(lambda: run.cluster.state(TOPIC).leader == -1, "nobody leads")
        assert not held(run, 2).is_leader
        await run.cluster[0].start()
        await elect_uncleanly(run)
        await led_by(run, 0)
        await sending

    told(story, replicas=(0, 2), least_isr=1)


def test_a_lost_directory_is_noticed_although_the_checkpoints_are_lost_with_it() -> None:
    async def story(run: Run) -> None:
        run.cluster[0].kill()
        await led_by(run, 2)
        await run.cluster[2].stop()
        lose(run, 2, "recovery-point-offset-checkpoint", "replication-offset-checkpoint")
        await run.cluster[2].start()
        await run.cluster.until(lambda: run.cluster.state(TOPIC).leader == -1, "nobody leads")
        await run.cluster[0].start()
        await elect_uncleanly(run)
        await led_by(run, 0)

    told(story, replicas=(0, 2), least_isr=1)


def test_a_loss_is_remembered_until_the_controller_has_taken_account_of_it() -> None:
    """The broker dies, with an empty log, before it can report that it lost the full one."""

    async def story(run: Run) -> None:
        run.cluster[0].kill()
        await led_by(run, 2)
        await run.cluster[2].stop()
        lose(run, 2)
        run.cluster[1].pause()
        starting = asyncio.ensure_future(run.cluster[2].start())
        marker = f"{DIRECTORY}/refetching"
        await run.cluster.until(lambda: run.cluster[2].disk.exists(marker), "the loss is written down")
        run.cluster[2].kill()
        await asyncio.gather(starting, return_exceptions=True)
        run.cluster[1].resume()
        await run.cluster[2].start()
        await run.cluster.until(lambda: run.cluster.state(TOPIC).leader == -1, "nobody leads")
        assert not held(run, 2).is_leader
        await run.cluster[0].start()
        await elect_uncleanly(run)
        await led_by(run, 0)

    told(story, replicas=(0, 2), least_isr=1)


def test_who_becomes_the_only_replica_with_a_lost_directory_leads_when_an_operator_says_so() -> None:
    """It finds the loss while the partition is on its way to another broker, who would have to be fetched from; then
    the move is cancelled."""

    async def main() -> None:
        run = Run(Plan(seed=1, partitions=1))
        await run.start_with([2], {"flush.messages": "1"}, "a")
        await run.cluster[2].stop()
        assert await run.client.reassign(TOPIC, 0, [1]) is ErrorCode.none
        lose(run, 2)
        reports = run.cluster.network.hold(InternalApi.REPORT_LOGS, asker="b2")
        await run.cluster[2].start()
        assert (await opened(run, 2)).log.health is Health.REFETCHING
        assert await run.client.reassign(TOPIC, 0, None) is ErrorCode.none
        assert run.cluster.state(TOPIC).replicas == (2,)
        reports.release()
        await run.cluster.until(lambda: run.cluster.state(TOPIC).isr == (), "it is not counted on")
        assert run.cluster.state(TOPIC).leader == -1
        async with asyncio.timeout(60):
            while run.cluster.state(TOPIC).leader != 2:
                await elect_uncleanly(run)
                await run.client.pause()
        await run.write_until_acknowledged("b")
        assert held(run, 2).log.log_end_offset == 1
        await run.end()

    run_virtual(main, 1, longest=600)


def test_a_lost_directory_is_fetched_again_although_compaction_has_left_no_record() -> None:
    async def main() -> None:
        run = Run(Plan(seed=1, partitions=1, settings={"log.cleaner.backoff.ms": "1000"}))
        await run.start_with((0, 2), {"flush.messages": "1", "min.insync.replicas": "2"}, "a", "b", "c")
        configs = {"cleanup.policy": "compact", "max.compaction.lag.ms": "1000"}
        asked = [{"name": name, "config_operation": 0, "value": value} for name, value in configs.items()]
        resource = {"resource_type": 2, "resource_name": TOPIC, "configs": asked}
        values = {"resources": [resource], "validate_only": False}
        await run.client.ask_anyone(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, values)
        log = held(run, 0).log
        await run.cluster.until(lambda: log.first_dirty_offset == log.log_end_offset, "what has no key is gone")
        await run.cluster[2].stop()
        lose(run, 2)
        await run.cluster[2].start()
        await in_sync(run, 0, 2)
        assert held(run, 2).log.log_end_offset == log.log_end_offset
        await run.end()

    run_virtual(main, 1, longest=600)


def test_a_preferred_leader_that_lost_its_directory_fetches_it_when_all_start_anew() -> None:
    async def story(run: Run) -> None:
        await run.cluster.stop()
        lose(run, 0)
        await asyncio.gather(*(machine.start() for machine in run.cluster))
        await run.write_until_acknowledged("after")
        await in_sync(run, 0, 1, 2)

    told(story)


def test_a_followers_failed_log_leaves_the_isr_at_once_and_the_next_controller_knows_of_it() -> None:
    async def story(run: Run) -> None:
        cluster = run.cluster
        cluster[2].disk.fail(errno.EIO, kind="append", path=DIRECTORY)
        await run.write_until_acknowledged("d")
        await in_sync(run, 0, 1)
        controller = cluster.controller()
        assert controller is not None
        controller.expire()
        await cluster.until(lambda: cluster.controller() is not None, "there is a controller")
        for number in range(5):
            await run.write_until_acknowledged(f"without 2: {number}")
            await asyncio.sleep(5)
            assert 2 not in cluster.state(TOPIC).isr
        await cluster[2].stop()
        await cluster[2].start()

    told(story, settings=PATIENT)


def test_a_failed_leader_hands_over_and_follows_after_its_next_start() -> None:
    async def story(run: Run) -> None:
        run.cluster[0].disk.fail(errno.EIO, kind="datasync", path=DIRECTORY)
        await run.write_until_acknowledged("d")
        assert run.cluster.state(TOPIC).leader != 0
        await in_sync(run, 1, 2)
        await run.cluster[0].stop()
        await run.cluster[0].start()

    told(story, settings=PATIENT)


def fill(run: Run, *brokers: int) -> None:
    """Leave no space on these disks."""
    for broker in brokers:
        disk = run.cluster[broker].disk
        disk.capacity = disk.used_bytes()


def free(run: Run, *brokers: int) -> None:
    for broker in brokers:
        run.cluster[broker].disk.capacity = PLENTY


def test_a_leader_without_space_hands_over_and_returns_when_there_is_space() -> None:
    async def story(run: Run) -> None:
        fill(run, 0)
        for value in "defg":
            await run.write_until_acknowledged(value)
        assert run.cluster.state(TOPIC).leader in (1, 2)
        await in_sync(run, 1, 2)
        assert held(run, 0).log.health is Health.FULL
        free(run, 0)
        await in_sync(run, 0, 1, 2)

    told(story, settings=PATIENT)


def test_a_follower_without_space_leaves_the_isr_and_returns_when_there_is_space() -> None:
    async def story(run: Run) -> None:
        fill(run, 2)
        for value in "defg":
            await run.write_until_acknowledged(value)
        await in_sync(run, 0, 1)
        free(run, 2)
        await in_sync(run, 0, 1, 2)

    told(story, settings=PATIENT)


def test_a_log_is_told_to_be_well_again_although_the_answer_to_its_fault_was_lost() -> None:
    async def story(run: Run) -> None:
        clustered = run.cluster[2].broker._clustered
        assert clustered is not None
        member, report = clustered.member, clustered.member._report_logs

        async def lose_answer(number: int, faulty: Any) -> None:
            await report(number, faulty)
            raise OSError("the answer is lost")

        member._report_logs = lose_answer  # type: ignore[assignment,method-assign]
        fill(run, 2)
        for value in "defg":
            await run.write_until_acknowledged(value)
        await in_sync(run, 0, 1)
        free(run, 2)
        await run.cluster.until(lambda: held(run, 2).log.health is Health.ONLINE, "there is space again")
        member._report_logs = report  # type: ignore[method-assign]
        await in_sync(run, 0, 1, 2)

    told(story, settings=PATIENT)


def test_where_nobody_has_space_the_leader_stays_and_is_read() -> None:
    async def story(run: Run) -> None:
        fill(run, 0, 1, 2)
        for number in range(5):
            assert await run.write(f"refused {number}") is not ErrorCode.none
            await asyncio.sleep(2)
        assert run.cluster.state(TOPIC).leader >= 0
        assert len(await run.client.read_all(TOPIC, 0)) >= 3
        free(run, 0, 1, 2)

    told(story, settings=PATIENT)


def test_a_leader_without_space_is_relieved_by_one_that_comes_back_with_space() -> None:
    async def story(run: Run) -> None:
        cluster = run.cluster
        cluster[2].kill()
        cluster[1].kill()
        await in_sync(run, 0)
        fill(run, 0)
        sending = asyncio.ensure_future(run.write_until_acknowledged("refused at first", seconds=600))
        await cluster.until(lambda: held(run, 0).log.health is Health.FULL, "the leader is full")
        await cluster[1].start()
        await led_by(run, 1)
        await sending
        await cluster[2].start()
        free(run, 0)

    told(story, least_isr=1)


def test_a_broker_starts_on_a_full_disk_and_its_logs_come_back_with_the_space() -> None:
    async def story(run: Run) -> None:
        await run.cluster[1].stop()
        fill(run, 1)
        await run.cluster[1].start()
        await run.write_until_acknowledged("d")
        run.cluster[1].kill()
        fill(run, 1)
        run.cluster[1].disk.fail(errno.ENOSPC, kind="create", path=DIRECTORY, times=3)
        await run.cluster[1].start()
        await run.write_until_acknowledged("e")
        free(run, 1)
        await in_sync(run, 0, 1, 2)

    told(story)


def test_a_broker_starts_on_a_full_disk_any_number_of_times() -> None:
    async def story(run: Run) -> None:
        for number in range(5):
            run.cluster[1].kill()
            fill(run, 1)
            await run.cluster[1].start()
            await run.write_until_acknowledged(f"without 1: {number}")
            await asyncio.sleep(70)
        free(run, 1)
        await in_sync(run, 0, 1, 2)

    told(story)


def test_a_broker_whose_identity_is_damaged_starts_as_one_that_lost_everything() -> None:
    async def story(run: Run) -> None:
        await run.cluster[1].stop()
        run.cluster[1].disk.damage("/data/headrace.identity", 3, b"\xff")
        await asyncio.sleep(30)
        await run.cluster[1].start()
        await in_sync(run, 0, 1, 2)

    told(story)


def test_a_diverged_log_is_cut_once_the_disk_has_space_for_it() -> None:
    async def story(run: Run) -> None:
        cluster, network = run.cluster, run.cluster.network
        network.cut("b0", "b1")
        network.cut("b0", "b2")
        await run.write("only on b0", acks=1, to=0)
        cluster[0].kill()
        await cluster.until(lambda: cluster.state(TOPIC).leader in (1, 2), "another leads")
        await run.write_until_acknowledged("d")
        network.heal()
        fill(run, 0)
        await cluster[0].start()
        await run.write_until_acknowledged("e")
        await asyncio.sleep(30)
        assert 0 not in cluster.state(TOPIC).isr
        free(run, 0)
        await in_sync(run, 0, 1, 2)

    told(story)


def test_a_partition_that_could_not_be_opened_is_tried_again() -> None:
    async def story(run: Run) -> None:
        await run.cluster[1].stop()
        run.cluster[1].disk.fail(errno.EIO, kind="read", path=f"{DIRECTORY}/partition.metadata", times=3)
        await run.cluster[1].start()
        assert 1 not in run.cluster.state(TOPIC).isr
        await in_sync(run, 0, 1, 2)

    told(story)


async def refetch(run: Run, broker: int, path: str = "/data?refetch") -> ErrorCode:
    topics = [{"name": TOPIC, "partitions": [0]}]
    values = {"dirs": [{"path": path, "topics": topics}]}
    answer = await run.client.ask(run.cluster[broker].address, ApiKey.ALTER_REPLICA_LOG_DIRS, 2, values)
    code = answer.results[0].partitions[0].error_code
    assert isinstance(code, ErrorCode)
    return code


def set_aside(run: Run, broker: int) -> list[str]:
    return [path for path in run.cluster[broker].disk.paths("/data") if "-damaged/" in path and path.endswith(".log")]


def test_a_failed_log_is_set_aside_and_fetched_again_when_an_operator_asks() -> None:
    async def story(run: Run) -> None:
        assert await refetch(run, 2) is ErrorCode.invalid_request
        assert await refetch(run, 2, "/data") is ErrorCode.none  # as Kafka answers its own tools: it is there already
        await run.cluster[2].stop()
        damage(run, 2)
        await run.cluster[2].start()
        damaged = await opened(run, 2)
        assert f"headrace log refetch {TOPIC} --partition 0 --broker 2" in (damaged.log.offline or "")
        assert await refetch(run, 2, "/elsewhere?refetch") is ErrorCode.log_dir_not_found
        assert await refetch(run, 2, "/data") is ErrorCode.kafka_storage_error
        assert await refetch(run, 2) is ErrorCode.none
        await in_sync(run, 0, 1, 2)
        assert held(run, 2) is not damaged
        assert set_aside(run, 2)

    told(story)


def remove_while_running(run: Run, broker: int) -> None:
    """What an operator removes under a running broker, which then misses it."""
    run.cluster[broker].disk.rmtree(DIRECTORY)
    held(run, broker).log.fail(StorageError(DIRECTORY, errno.ENOENT, "No such file or directory"))


def test_a_directory_that_is_removed_under_a_running_broker_is_fetched_again() -> None:
    async def story(run: Run) -> None:
        for broker in (2, run.cluster.state(TOPIC).leader):
            failed = held(run, broker)
            remove_while_running(run, broker)
            await run.cluster.until(lambda: not frozenset(run.cluster.state(TOPIC).isr) >= {0, 1, 2}, "it is missed")
            await in_sync(run, 0, 1, 2)
            assert held(run, broker) is not failed
            assert held(run, broker).log.log_end_offset == failed.log.log_end_offset

    told(story)


def test_the_last_in_sync_replica_does_not_begin_anew_by_itself() -> None:
    async def story(run: Run) -> None:
        run.cluster[0].kill()
        await led_by(run, 2)
        failed = held(run, 2)
        remove_while_running(run, 2)
        await run.cluster.until(lambda: run.cluster.state(TOPIC).leader == -1, "nobody leads")
        await asyncio.sleep(30)
        assert held(run, 2) is failed
        assert await refetch(run, 2) is ErrorCode.not_enough_replicas
        assert await refetch(run, 2, "/data?start-empty") is ErrorCode.none
        await run.cluster[0].start()
        await run.cluster.until(lambda: run.cluster.state(TOPIC).isr == (), "nobody is taken to be in sync")
        await elect_uncleanly(run)
        await led_by(run, 0)

    told(story, replicas=(0, 2), least_isr=1)


def test_a_log_that_fails_while_it_runs_tells_the_command_to_run() -> None:
    async def story(run: Run) -> None:
        held(run, 2).log.fail("its disk gave an error")
        assert f"headrace log refetch {TOPIC} --partition 0 --broker 2" in (held(run, 2).log.offline or "")
        assert await refetch(run, 2) is ErrorCode.none

    told(story)


def test_a_log_that_could_not_be_set_aside_is_not_forgotten() -> None:
    async def story(run: Run) -> None:
        disk, replicas = run.cluster[2].disk, run.cluster[2].broker.replicas
        held(run, 2).log.fail("its disk gave an error")
        await in_sync(run, 0, 1)
        disk.fail(errno.EIO, kind="rename", path=DIRECTORY)
        assert await refetch(run, 2) is ErrorCode.kafka_storage_error
        await run.cluster.until(lambda: any(p.topic == TOPIC for p in replicas.hosted()), "it is opened again")
        await in_sync(run, 0, 1, 2)

    told(story)


def test_a_leaders_damaged_copy_is_told_of_once_and_fetched_again_when_it_is_moved_away() -> None:
    async def story(run: Run) -> None:
        await run.cluster[2].stop()
        lose(run, 2)
        run.cluster[0].disk.damage(FIRST_SEGMENT, 66, b"?")
        with capture_logs() as logged:
            await run.cluster[2].start()
            await asyncio.sleep(30)
        complaints = [entry for entry in logged if entry["event"] == "a replica cannot go on"]
        assert [entry["leader"] for entry in complaints] == [0]
        assert 2 not in run.cluster.state(TOPIC).isr
        await run.cluster[0].stop()
        run.cluster[0].disk.rename(DIRECTORY, "/elsewhere")
        await in_sync(run, 1, 2)
        await run.cluster[0].start()
        await in_sync(run, 0, 1, 2)

    told(story)


def test_a_damaged_offset_of_a_leaders_batch_is_not_taken_for_one() -> None:
    """No checksum covers it. A follower that took it went on behind it, in sync without what comes between."""

    async def story(run: Run, bit: bytes, at: int) -> None:
        await run.cluster[2].stop()
        lose(run, 2)
        second = len(run.cluster[0].disk.content(FIRST_SEGMENT)) // 3
        run.cluster[0].disk.damage(FIRST_SEGMENT, second + at, bit)
        await run.cluster[2].start()
        await asyncio.sleep(30)
        assert 2 not in run.cluster.state(TOPIC).isr
        await run.cluster[0].stop()
        run.cluster[0].disk.rename(DIRECTORY, "/elsewhere")
        await in_sync(run, 1, 2)
        await run.cluster[0].start()
        await in_sync(run, 0, 1, 2)

    told(partial(story, bit=b"?", at=1))
    told(partial(story, bit=b"\x09", at=7))


def test_the_only_log_that_holds_everything_is_given_up_only_by_force() -> None:
    async def story(run: Run) -> None:
        run.cluster[0].kill()
        await led_by(run, 2)
        await run.cluster[2].stop()
        damage(run, 2)
        await run.cluster[2].start()
        await run.cluster[0].start()
        await run.cluster.until(lambda: run.cluster.state(TOPIC).leader == -1, "nobody leads")
        assert await refetch(run, 2) is ErrorCode.not_enough_replicas
        assert await refetch(run, 2, "/data?start-empty") is ErrorCode.none
        assert set_aside(run, 2)
        await run.cluster.until(lambda: run.cluster.state(TOPIC).isr == (), "nobody is taken to be in sync")
        await elect_uncleanly(run)
        await led_by(run, 0)

    told(story, replicas=(0, 2), least_isr=1)


def test_the_only_replica_starts_empty_only_by_force() -> None:
    async def main() -> None:
        run = Run(Plan(seed=1, partitions=1))
        await run.cluster.start()
        await run.client.create_topic(TOPIC, assignments=[[2]], configs={"flush.messages": "1"})
        await run.write_until_acknowledged("a")
        await run.cluster[2].stop()
        damage(run, 2)
        await run.cluster[2].start()
        await run.cluster.until(lambda: run.cluster.state(TOPIC).leader == -1, "nobody leads")
        assert await refetch(run, 2) is ErrorCode.not_enough_replicas
        assert await refetch(run, 2, "/data?start-empty") is ErrorCode.none
        await run.write_until_acknowledged("b")
        assert held(run, 2).log.log_end_offset == 1
        await run.end()

    run_virtual(main, 1, longest=600)
