"""A Spark standalone cluster and a Spark Connect server, from what pip installs, as processes on free ports."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Empty, Queue

import pyspark

from tests.support.process import free_port

HOME = Path(pyspark.__file__).parent
LEAN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that lives for seconds: start fast rather than run fast."""

START_SECONDS = 120.0


Environment = Mapping[str, str]
"""Of a process; instead of that of the tests, with their Python."""


@contextmanager
def standalone(directory: Path, workers: int = 2, environment: Environment | None = None) -> Iterator[str]:
    """A master and its workers, each with one core, on hosts of their own as far as Spark can tell; the master's
    address.
    """
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    with ExitStack() as stack:
        master = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(free_port()))
        stack.enter_context(_jvm("New state: ALIVE", "spark-class", f"{deploy}.master.Master", *master, home=directory))
        for number in range(workers):
            host = f"127.0.0.{number + 1}"
            options = ("--cores", "1", "--memory", "1g", "--host", host, "--webui-port", str(free_port()))
            work = ("--work-dir", str(directory / f"worker-{number}"), address)
            stack.enter_context(
                _jvm(
                    "Successfully registered with master",
                    "spark-class",
                    f"{deploy}.worker.Worker",
                    *options,
                    *work,
                    home=directory,
                    host=host,
                    environment=environment,
                )
            )
        yield address


@contextmanager
def connect_server(
    directory: Path,
    master: str = "local[2]",
    declared: Mapping[str, str] | None = None,
    environment: Environment | None = None,
) -> Iterator[str]:
    """A Spark Connect server with two local cores, or with executors of a cluster; its address."""
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        **(declared or {}),
    }
    arguments = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    server = ("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", master)
    command = ("spark-submit", *server, *arguments)
    with _jvm("Spark Connect server started", *command, home=directory, memory="1g", environment=environment):
        yield f"sc://127.0.0.1:{port}"


@contextmanager
def _jvm(
    ready: str,
    *command: str,
    home: Path,
    memory: str = "256m",
    host: str = "127.0.0.1",
    environment: Environment | None = None,
) -> Iterator[None]:
    """One of Spark's programs, from when it says that it is ready until the end of the block."""
    given = {**os.environ, "PYSPARK_PYTHON": sys.executable} if environment is None else environment
    environment = {
        **given,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": host,
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": memory,
        "SPARK_DAEMON_JAVA_OPTS": LEAN,
    }
    process = subprocess.Popen(
        [str(HOME / "bin" / command[0]), *command[1:]],
        cwd=home,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    lines: list[str] = []
    said: Queue[bool] = Queue()
    reader = threading.Thread(target=_follow, args=(process, ready, lines, said))
    reader.start()
    try:
        _await(said, lines)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reader.join()
        assert process.stdout is not None
        process.stdout.close()


def _follow(process: "subprocess.Popen[str]", ready: str, lines: list[str], said: "Queue[bool]") -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if ready in line:
            said.put(True)
    said.put(False)


def _await(said: "Queue[bool]", lines: list[str]) -> None:
    try:
        ready = said.get(timeout=START_SECONDS)
    except Empty:
        ready = False
    assert ready, "it did not get ready:\n" + "".join(lines[-40:])
