"""`headrace pipeline service` as a process, to be killed, and what it deploys."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from headrace.client.columnar.cluster import Cluster
from headrace.spark.service.client import Deployments, View

PATIENCE_SECONDS = 400.0
"""A busy machine takes minutes until Spark runs, and as long again until each of its steps is done."""


class Patience:
    """Waits as long as something happens, and so much longer."""

    def __init__(self) -> None:
        self._seen: object = None
        self._deadline = 0.0

    def is_over(self, seen: object) -> bool:
        """Whether what is seen has been the same for too long."""
        now = time.monotonic()
        if seen != self._seen:
            self._seen, self._deadline = seen, now + PATIENCE_SECONDS
        return now > self._deadline


class ServiceProcess:
    """A service, killed at the end of the block if it still runs; what it says goes to a file."""

    def __init__(
        self, bootstrap: str, data: Path, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> None:
        data.mkdir(parents=True, exist_ok=True)
        self.log = data / f"said-{len(list(data.glob('said-*')))}"
        self._output = self.log.open("wb")
        command = ["-m", "headrace.cli", "pipeline", "service", "-b", bootstrap, "--data", str(data), *arguments]
        self._process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **(environment or {})},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        everything = self.descendants()
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(90)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._output.close()
        for one in everything:
            if one.is_running():
                one.kill()

    def descendants(self) -> list[psutil.Process]:
        """Everything that it has started and that lives."""
        try:
            return psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def drivers(self) -> list[int]:
        """The runners that live, by their process ids."""
        return [one.pid for one in self.descendants() if "run-deployed" in arguments_of(one)]

    def kill(self) -> None:
        """End it at once, as when its machine dies; what it has started is left to itself."""
        self._process.kill()
        self._process.wait()

    def kill_driver(self) -> None:
        """End its only runner at once."""
        (driver,) = self.drivers()
        os.kill(driver, signal.SIGKILL)


def arguments_of(process: psutil.Process) -> list[str]:
    """The command line of a process; nothing of one that is gone."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def until(bootstrap: str, name: str, holds: Callable[[View], bool]) -> View:
    """A deployed pipeline as soon as this holds."""
    with Cluster({"bootstrap.servers": bootstrap}) as cluster:
        deployments = Deployments(cluster)
        patience = Patience()
        while True:
            found = next((view for view in deployments.views() if view.name == name), None)
            if found is not None and holds(found):
                return found
            lines = [line.text for line in deployments.logs(name, 0, follow=False)]
            if patience.is_over(len(lines)):
                raise AssertionError(f"{found}\n" + "\n".join(lines[-60:]))
            time.sleep(0.3)


def sinks_of(view: View) -> list[dict[str, Any]]:
    """The progress of its sinks."""
    return [] if view.status is None else [dict(sink) for sink in view.status.sinks]
