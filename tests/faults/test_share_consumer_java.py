"""Kafka's Java client as the workers of a queue: both acquire modes, renewed locks, and a leader that is killed."""

import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from headrace.testing import Broker
from tests.faults.test_share_groups_kill import begin_with_the_first_job
from tests.support.apache_kafka import WITH_SHARE_GROUPS, java_with_kafka
from tests.support.faults.view import View
from tests.support.maven import Unavailable
from tests.support.process import ClusterProcesses, wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.long]

WORKERS = 4
PARTITIONS = 3
ENOUGH_SECONDS = 120
PROGRAM = """
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.serialization.*;

/** Accepts each job once: one in ten it releases first, and one in ten it renews. Says what it was told of each. */
public class Workers {
    static final Set<String> settled = ConcurrentHashMap.newKeySet();
    static final Set<String> renewed = ConcurrentHashMap.newKeySet();

    public static void main(String[] args) throws Exception {
        int jobs = Integer.parseInt(args[3]);
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < Integer.parseInt(args[4]); i++) {
            Thread thread = new Thread(() -> work(args[0], args[1], args[2], jobs));
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) thread.join();
    }

    static void work(String bootstrap, String topic, String mode, int jobs) {
        Properties settings = new Properties();
        settings.putAll(Map.of("bootstrap.servers", bootstrap, "group.id", "workers", "max.poll.records", "50",
            "share.acknowledgement.mode", "explicit", "share.acquire.mode", mode));
        var reader = new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        try (reader) {
            reader.subscribe(List.of(topic));
            while (settled.size() < jobs) {
                Map<Integer, List<String>> taken = new HashMap<>();
                for (var job : reader.poll(Duration.ofMillis(500))) {
                    String place = job.partition() + " " + job.offset();
                    if (job.deliveryCount().get() == 1 && job.offset() % 10 == 7) {
                        reader.acknowledge(job, AcknowledgeType.RELEASE);
                    } else if (job.offset() % 10 == 8 && renewed.add(place)) {
                        reader.acknowledge(job, AcknowledgeType.RENEW);
                    } else {
                        reader.acknowledge(job, AcknowledgeType.ACCEPT);
                        taken.computeIfAbsent(job.partition(), any -> new ArrayList<>()).add(place);
                    }
                }
                Map<Integer, Boolean> told = new HashMap<>();
                reader.commitSync().forEach((where, error) -> told.put(where.partition(), error.isEmpty()));
                taken.forEach((partition, places) -> {
                    String word = told.getOrDefault(partition, false) ? "accepted " : "uncertain ";
                    places.forEach(place -> System.out.println(word + place));
                    settled.addAll(places);
                });
            }
        }
    }
}
"""


class Run:
    """The workers as a process, and what they said."""

    def __init__(self, process: "subprocess.Popen[bytes]", said: Path, errors: Path) -> None:
        self._process = process
        self._said = said
        self._errors = errors

    @property
    def said(self) -> Counter[str]:
        return Counter(self._said.read_text().splitlines())

    def wait_for_lines(self, count: int) -> None:
        """Until so many jobs were spoken of."""
        wait_for(f"{count} jobs", lambda: self.said.total() >= count)

    def finish(self, jobs: int) -> None:
        """Wait for the end; each job is done once, unless its worker was told nothing of it."""
        code = self._process.wait(ENOUGH_SECONDS)
        errors = self._errors.read_text()
        assert code == 0, errors[-3_000:]
        said = self.said
        assert [line for line, count in said.items() if line.startswith("accepted") and count > 1] == []
        assert len({line.partition(" ")[2] for line in said}) == jobs
        assert "Exception in thread" not in errors, errors[-3_000:]


@contextmanager
def workers(directory: Path, bootstrap: str, mode: str, jobs: int) -> Iterator[Run]:
    source = directory / "Workers.java"
    source.write_text(PROGRAM)
    command = [*java_with_kafka(WITH_SHARE_GROUPS), str(source), bootstrap, "jobs", mode, str(jobs), str(WORKERS)]
    said, errors = directory / "said", directory / "errors"
    with said.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err)
    try:
        yield Run(process, said, errors)
    finally:
        process.kill()
        process.wait()


def prepare(bootstrap: str, replicas: Sequence[Sequence[int]], jobs: int) -> View:
    view = View(bootstrap, "jobs")
    view.create(replicas)
    begin_with_the_first_job(view, "workers")
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(jobs):
        producer.produce("jobs", b"%d" % number)
    assert producer.flush(60) == 0
    return view


@pytest.fixture(autouse=True)
def _java() -> None:
    try:
        java_with_kafka(WITH_SHARE_GROUPS)
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("mode", ["batch_optimized", "record_limit"])
def test_jobs_are_released_renewed_and_accepted_once(tmp_path: Path, mode: str) -> None:
    with Broker() as broker:
        prepare(broker.bootstrap, [(1,)] * PARTITIONS, 5_000)
        with workers(tmp_path, broker.bootstrap, mode, 5_000) as run:
            run.finish(5_000)
    assert not any(line.startswith("uncertain") for line in run.said)


def test_jobs_are_accepted_once_as_a_leader_is_killed(tmp_path: Path) -> None:
    settings = {"group.share.record.lock.duration.ms": "15000"}
    with ClusterProcesses(tmp_path, 3, settings=settings) as cluster:
        view = prepare(cluster.bootstrap, [(1, 2, 3), (2, 3, 1), (3, 1, 2)], 20_000)
        with workers(tmp_path, cluster.bootstrap, "batch_optimized", 20_000) as run:
            run.wait_for_lines(3_000)
            leader = cluster[view.known_leader()]
            leader.kill()
            leader.start()
            run.finish(20_000)
