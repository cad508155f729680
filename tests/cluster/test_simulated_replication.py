"""Leaders and followers on links that take their time, with nothing wrong, or with one thing wrong, in virtual time."""

import asyncio
import errno
from functools import partial
from random import Random

import pytest

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.protocol.records import Record, encode_batch
from headrace.server.broker import Broker
from headrace.testing.loop import VirtualClock, run_virtual
from tests.support.simulation.runs import TOPIC, Plan, Run, different_replicas


def slow_links(run: Run, seconds: float) -> None:
    """Let everything between brokers take so much longer, each way."""
    names = [machine.name for machine in run.cluster]
    for source in names:
        for target in names:
            if source != target:
                run.cluster.network.delay(source, target, seconds)


@pytest.mark.parametrize(("delay", "partitions"), [(0.02, 40), (0.3, 10)])
def test_the_isr_of_idle_partitions_stays_whole_on_slow_links(delay: float, partitions: int) -> None:
    """Each partition gets a record now and then, after a silence that is longer than `replica.lag.time.max.ms`."""

    async def main() -> None:
        run = Run(Plan(seed=1, settings={"replica.lag.time.max.ms": "30000"}))
        cluster = run.cluster
        await cluster.start()
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]] * partitions)
        slow_links(run, delay)
        rng = Random(5)

        async def write_seldom(partition: int) -> None:
            for number in range(10):
                await asyncio.sleep(rng.uniform(35, 60))
                assert await run.write(f"{partition} {number}", partition=partition) is ErrorCode.none

        await asyncio.gather(*(write_seldom(partition) for partition in range(partitions)))
        epochs = [cluster.state(TOPIC, partition).partition_epoch for partition in range(partitions)]
        assert epochs == [0] * partitions, "a healthy ISR was changed"
        await run.end()

    run_virtual(main, 1, longest=3600)


async def write_batch(run: Run, count: int) -> None:
    """One batch of several records."""
    now = VirtualClock(asyncio.get_running_loop()).now_ms()
    batch = bytes(encode_batch([Record(number, now, None, b"%d" % number) for number in range(count)]))
    data = {"name": TOPIC, "partition_data": [{"index": 0, "records": batch}]}
    values = {"transactional_id": None, "acks": -1, "timeout": 5_000, "topic_data": [data]}
    answer = await run.client.ask(await run.client.leader(TOPIC, 0), ApiKey.PRODUCE, 9, values)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.none


def test_a_replica_is_added_to_a_log_that_begins_inside_a_batch() -> None:
    async def main() -> None:
        run = Run(Plan(seed=1, partitions=1))
        cluster = run.cluster
        await cluster.start()
        await run.client.create_topic(TOPIC, assignments=[[0, 1]], configs={"min.insync.replicas": "1"})
        await write_batch(run, 10)
        await run.delete_records(TOPIC, 0, 5)
        assert await run.client.reassign(TOPIC, 0, [0, 1, 2]) is ErrorCode.none
        await cluster.until(lambda: set(cluster.state(TOPIC).isr) == {0, 1, 2}, "the new replica is in sync")
        log = cluster[2].broker.replicas.partition(TOPIC, 0).log
        assert (log.log_start_offset, log.log_end_offset) == (5, 10)
        assert not different_replicas(cluster)
        await run.end()

    run_virtual(main, 1, longest=600)


def test_deleted_records_do_not_come_back_with_the_next_leader() -> None:
    """While followers are cut off a deletion is not answered; once it is, the leader may die."""

    async def main() -> None:
        run = Run(Plan(seed=1, partitions=1))
        cluster = run.cluster
        await cluster.start()
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]])
        await write_batch(run, 10)
        cluster.network.cut("b0", "b1")
        cluster.network.cut("b0", "b2")
        deleting = asyncio.ensure_future(run.delete_records(TOPIC, 0, 8))
        await asyncio.sleep(2)
        assert not deleting.done()
        cluster.network.heal()
        await deleting
        cluster[0].kill()
        await cluster.until(lambda: cluster.state(TOPIC).leader in (1, 2), "another one leads")
        assert cluster.leader(TOPIC).broker.replicas.partition(TOPIC, 0).log.log_start_offset == 8
        await run.end()

    run_virtual(main, 1, longest=600)


def test_a_deletion_that_followers_do_not_hear_of_is_answered_when_its_time_is_over() -> None:
    async def main() -> None:
        run = Run(Plan(seed=1, partitions=1))
        cluster = run.cluster
        await cluster.start()
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]])
        await write_batch(run, 10)
        cluster.network.cut("b0", "b1")
        values = {"topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "offset": 8}]}], "timeout": 1_000}
        answer = await run.client.ask(cluster[0].address, ApiKey.DELETE_RECORDS, 2, values)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.request_timed_out
        cluster.network.heal()
        await run.end()

    run_virtual(main, 1, longest=600)


def test_one_failed_checkpoint_on_a_follower_does_not_end_replication() -> None:
    async def main() -> None:
        run = Run(Plan(seed=1, partitions=1))
        cluster = run.cluster
        await cluster.start()
        for topic in (TOPIC, "other"):
            await run.client.create_topic(topic, assignments=[[0, 1]])
        await write_batch(run, 10)
        cluster[1].disk.fail(errno.ENOSPC, kind="append", path="log-start-offset-checkpoint", times=1)
        await run.delete_records(TOPIC, 0, 3)
        for topic in (TOPIC, "other"):
            leader = await run.client.leader(topic, 0)
            code, _ = await run.client.produce(leader, topic, 0, b"after", acks=-1, timeout_ms=5_000)
            assert code is ErrorCode.none
        await run.end()

    run_virtual(main, 1, longest=600)


def has_committed(broker: Broker, topic: str) -> bool:
    return broker.replicas.partition(topic, 0).high_watermark > 0


@pytest.mark.parametrize("seed", range(3))
def test_what_is_written_to_a_new_topic_is_readable_at_once(seed: int) -> None:
    """Whoever hears first of the topic, its followers or its leader: nobody has to wait for a poll to end."""

    async def main() -> None:
        run = Run(Plan(seed=seed))
        cluster, loop = run.cluster, asyncio.get_running_loop()
        await cluster.start()
        for number in range(30):
            topic, replicas = f"t{number}", [(number + replica) % 3 for replica in range(3)]
            await run.client.create_topic(topic, assignments=[replicas])
            leader = await run.client.leader(topic, 0)
            code, _ = await run.client.produce(leader, topic, 0, b"first", acks=1, timeout_ms=5_000)
            assert code is ErrorCode.none
            written = loop.time()
            await cluster.until(partial(has_committed, cluster[replicas[0]].broker, topic), "it is readable")
            assert loop.time() - written < 0.1, "in virtual time nothing takes long but waiting"
        await run.end()

    run_virtual(main, seed, longest=600)


def test_records_of_a_new_topic_survive_when_it_is_left_to_one_of_its_followers() -> None:
    """Written with acks=1 they are promised nothing, but on healthy links a follower has them in no time."""

    async def main() -> None:
        run = Run(Plan(seed=1))
        cluster = run.cluster
        await cluster.start()
        for number in range(20):
            topic, replicas = f"t{number}", [(number + replica) % 3 for replica in range(3)]
            await run.client.create_topic(topic, assignments=[replicas])
            leader = await run.client.leader(topic, 0)
            for _ in range(10):
                code, _ = await run.client.produce(leader, topic, 0, b"a", acks=1, timeout_ms=5_000)
                assert code is ErrorCode.none
            await asyncio.sleep(0.1)
            assert await run.client.reassign(topic, 0, replicas[1:2]) is ErrorCode.none
            await cluster.until(cluster.is_whole, "it is moved")
            assert cluster.leader(topic).broker.replicas.partition(topic, 0).log.log_end_offset == 10
        await run.end()

    run_virtual(main, 1, longest=600)
