"""Runners on several hosts with one checkpoint, that each has a lock file of its own: as on an object store.

The file system is Hadoop's `viewfs`, mounted on a local directory: a scheme that is not this machine's.
"""

import os
import signal
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from headrace.spark.pipeline.files import committed_files
from headrace.spark.pipeline.lease import TOPIC
from headrace.testing import Broker
from tests.support.faults.view import View
from tests.support.process import ClusterProcesses
from tests.support.spark.pipelines import Event, PipelineProcess
from tests.support.spark.topics import Topics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.long]

COPY = """
name: copy
trigger: 1 second
sources: {{orders: {{topic: {topic}, startingOffsets: earliest}}}}
sinks: {{copies: {{from: orders, parquet: {out}}}}}
"""
CHECKPOINT = "viewfs://shared/state/copy"


class Hosts:
    """PipelinePaths that share the checkpoint and nothing else."""

    def __init__(self, directory: Path, topics: Topics) -> None:
        self._directory = directory
        self._topics = topics
        self._topic = topics.create()
        self._sent: list[bytes] = []
        self.send(b"one")
        (directory / "state").mkdir()

    def send(self, value: bytes) -> None:
        self._topics.fill(self._topic, [value])
        self._sent.append(value)

    def have_read_all(self, event: Event) -> bool:
        """Whether all that was sent is in the files, each once."""
        if event["event"] != "progress":
            return False
        files = committed_files(self._directory / "out")
        written = pq.read_table(files).column("value").to_pylist() if files else []
        assert Counter(written) <= Counter(self._sent)
        return len(written) == len(self._sent)

    def run(self, name: str) -> PipelineProcess:
        home = self._directory / name
        home.mkdir(exist_ok=True)
        file = home / "pipeline.yaml"
        file.write_text(COPY.format(topic=self._topic, out=self._directory / "out"))
        mount = f"spark.hadoop.fs.viewfs.mounttable.shared.link./state=file://{self._directory / 'state'}"
        return PipelineProcess(file, "--bootstrap", self._topics.bootstrap, "--checkpoint", CHECKPOINT, "--conf", mount)


def test_one_runner_on_all_hosts_the_next_when_it_is_dead_and_who_slept_stops(
    broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    hosts = Hosts(tmp_path, topics)
    with hosts.run("a") as first:
        first.event("started")
        with hosts.run("b") as second:
            assert second.ended() == 1
        assert f"runs already (process {first.pid} on {os.uname().nodename}, since " in second.errors
        first.kill()
        with hosts.run("b") as third:
            assert str(first.pid) in third.until(lambda event: event.get("phase", "").startswith("waiting"))["phase"]
            third.event("started")
            os.kill(third.pid, signal.SIGSTOP)
            with hosts.run("a") as fourth:
                fourth.event("started")
                os.kill(third.pid, signal.SIGCONT)
                assert third.ended() == 1
                assert "another runner has taken over" in third.errors
                assert f"(process {fourth.pid} on " in third.errors
                assert fourth.stop() == 0


def test_one_runner_on_all_hosts_while_brokers_die_that_lead_the_lease(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path / "cluster", 3) as cluster:
        hosts, lease = Hosts(tmp_path, Topics(cluster.bootstrap, "lease")), View(cluster.bootstrap, TOPIC)
        with hosts.run("a") as first:
            first.event("started")
            for number in range(3):
                lease.wait_until_in_sync()
                leader = lease.known_leader()
                cluster[leader].kill()
                with hosts.run("b") as second:
                    assert second.ended() == 1
                assert f"runs already (process {first.pid} on {os.uname().nodename}, since " in second.errors
                hosts.send(b"%d" % number)
                first.until(hosts.have_read_all)
                assert lease.known_leader() != leader
                cluster[leader].start()
            lease.wait_until_in_sync()
            cluster[lease.known_leader()].kill()
            first.kill()
        with hosts.run("b") as third:
            third.event("started")
            with hosts.run("a") as fourth:
                assert fourth.ended() == 1
            assert f"runs already (process {third.pid} on " in fourth.errors
            hosts.send(b"last")
            third.until(hosts.have_read_all)
            assert third.stop() == 0
