"""A queue of 100,000 jobs on a share group of twenty workers, while the brokers that lead it are killed."""

import time
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.support.faults.queue import Workers
from tests.support.faults.view import View
from tests.support.process import ClusterProcesses, wait_for

JOBS = 100_000
WORKERS = 20
PARTITIONS = 3
KILLS = 4
LOCK_SECONDS = 15.0


def begin_with_the_first_job(view: View, group: str) -> None:
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    view.admin.incremental_alter_configs([resource])[resource].result(60)


def produce(bootstrap: str, topic: str) -> list[bytes]:
    jobs = [b"%d" % number for number in range(JOBS)]
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for job in jobs:
        producer.produce(topic, job)
        producer.poll(0)
    assert producer.flush(60) == 0
    return jobs


@pytest.mark.long
@pytest.mark.timeout(600)
def test_each_job_is_done_once_while_leaders_are_killed(tmp_path: Path) -> None:
    settings = {"group.share.record.lock.duration.ms": str(int(LOCK_SECONDS * 1000))}
    with ClusterProcesses(tmp_path, 3, settings=settings) as cluster:
        view = View(cluster.bootstrap, "jobs")
        view.create([(1, 2, 3), (2, 3, 1), (3, 1, 2)], min_insync_replicas="2")
        begin_with_the_first_job(view, "workers")
        jobs = produce(cluster.bootstrap, "jobs")
        kills: list[float] = []
        rng = Random(7)
        with Workers(cluster.bootstrap, "jobs", "workers", WORKERS, seconds=0.5) as workers:
            for number in range(KILLS):
                share = JOBS * (number + 1) // (KILLS + 1)
                wait_for(f"{share} jobs", lambda share=share: workers.settled >= share)  # type: ignore[misc]
                broker = cluster[view.known_leader(rng.randrange(PARTITIONS))]
                kills.append(time.monotonic())
                broker.kill()
                broker.start()
                view.wait_until_in_sync()
                kills.append(time.monotonic())  # the broker may be made the leader again until then
            wait_for("all jobs", lambda: workers.settled >= JOBS)
        again = len(workers.deliveries) - JOBS
        print(f"{len(workers.accepted)} accepted, {len(workers.uncertain)} uncertain, {again} delivered again")  # noqa: T201 - `pytest -s` shows it
        assert workers.problems(jobs, kills, LOCK_SECONDS)[:10] == []
        assert len(workers.accepted) > JOBS * 9 // 10
