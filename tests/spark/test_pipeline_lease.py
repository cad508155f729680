"""Runners on several hosts with one checkpoint, that each has a lock file of its own: as on an object store.

The file system is Hadoop's `viewfs`, mounted on a local directory: a scheme that is not this machine's.
"""

import os
import signal
from pathlib import Path

import pytest

from headrace.testing import Broker

from .pipelines import PipelineProcess
from .topics import Topics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.long]

COPY = """
name: copy
trigger: 1 second
sources: {{orders: {{topic: {topic}, startingOffsets: earliest}}}}
sinks: {{copies: {{from: orders, parquet: {out}}}}}
"""
CHECKPOINT = "viewfs://shared/state/copy"


class Hosts:
    """Places that share the checkpoint and nothing else."""

    def __init__(self, directory: Path, topics: Topics) -> None:
        self._directory = directory
        self._bootstrap = topics.bootstrap
        self._topic = topics.create()
        topics.fill(self._topic, [b"one"])
        (directory / "state").mkdir()

    def run(self, name: str) -> PipelineProcess:
        home = self._directory / name
        home.mkdir(exist_ok=True)
        file = home / "pipeline.yaml"
        file.write_text(COPY.format(topic=self._topic, out=self._directory / "out"))
        mount = f"spark.hadoop.fs.viewfs.mounttable.shared.link./state=file://{self._directory / 'state'}"
        return PipelineProcess(file, "--bootstrap", self._bootstrap, "--checkpoint", CHECKPOINT, "--conf", mount)


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
