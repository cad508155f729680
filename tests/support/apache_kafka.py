"""Apache Kafka itself, one node that is broker and controller, to show that what we claim of clients holds there."""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka.admin import AdminClient

from .maven import Artifact, Unavailable, fetched
from .process import START_SECONDS, free_port, wait_for

VERSION = "4.1.0"
CACHE = Path(".venv") / "kafka"
WITH_SHARE_GROUPS = "4.2.0"
"""The first version that has them for good."""
_LOGGING = Artifact("org.slf4j", "slf4j-simple", "1.7.36")  # or its log is lost
_CLUSTER_ID = "headrace-apache-kafkaA"
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
QUICK_START = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For tests: starts soon, and is slow for good, as nothing is compiled well."""
AS_IN_PRODUCTION = ("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
"""What Kafka's own start script gives, for whoever measures."""
_ONE_NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}


class ApacheKafka:
    """A node of Apache Kafka on free ports of this machine, from the start to the end of the block.

    Made where its jars can be had, and Java; elsewhere `Unavailable` is raised.
    """

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        client: Mapping[str, str] | None = None,
        version: str = VERSION,
        jvm: Sequence[str] = QUICK_START,
    ) -> None:
        self._java = java_with_kafka(version, jvm)
        self._client = dict(client or {})
        """What else a client needs to say."""
        broker, controller = free_port(), free_port()
        self.bootstrap = f"127.0.0.1:{broker}"
        self._log = directory / "kafka.log"
        self._file = directory / "server.properties"
        listeners = f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{controller}"
        properties = {
            **_ONE_NODE,
            "listeners": listeners,
            "advertised.listeners": listeners,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "log.dirs": str(directory / "kafka"),
            **(settings or {}),
        }
        self._file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        arguments = ["format", "--standalone", "--cluster-id", _CLUSTER_ID, "--config", str(self._file)]
        command = [*self._java, "kafka.tools.StorageTool", *arguments]
        with open(self._log, "ab") as log:
            subprocess.run(command, stdout=log, stderr=log, check=True, timeout=START_SECONDS)
            command = [*self._java, "kafka.Kafka", str(self._file)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, text=True, start_new_session=True)
        try:
            wait_for("Apache Kafka answers", self._answers)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def process(self) -> "subprocess.Popen[str]":
        """It, while it runs."""
        assert self._process is not None
        return self._process

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"Apache Kafka ended: {self._log.read_text(errors='replace')[-3_000:]}"
        silent = {"bootstrap.servers": self.bootstrap, "log_level": 0, **self._client}
        try:
            return bool(AdminClient(silent).list_topics(timeout=5).brokers)
        except Exception:
            return False

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def java_with_kafka(version: str = VERSION, jvm: Sequence[str] = QUICK_START) -> list[str]:
    """The command that runs one of its programs, or one that is made of its classes."""
    java = shutil.which("java")
    if java is None:
        raise Unavailable("there is no Java on the path")
    artifacts = (Artifact("org.apache.kafka", "kafka_2.13", version), _LOGGING)
    return [java, *jvm, _QUIET, "-cp", f"{fetched(CACHE if version == VERSION else CACHE / version, artifacts)}/*"]
