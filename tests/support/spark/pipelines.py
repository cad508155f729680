"""Running pipelines in tests: as a process, followed by the JSON lines it prints, or in the session of the tests."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from types import TracebackType
from typing import Any, Self

from headrace.spark.pipeline.model import Declaration
from headrace.spark.pipeline.paths import PipelinePaths
from headrace.spark.pipeline.progress import SinkProgress
from headrace.spark.pipeline.session import DEFAULTS, SparkTarget

SILENT_SECONDS = 240.0
"""A first run on a machine compiles its loops, which takes two busy cores a minute."""
Event = dict[str, Any]
RunPipeline = Callable[..., list[SinkProgress]]
"""Runs a pipeline, given as text, over what is there now; see the fixture `run` of tests/spark."""


class Silent:
    """Somebody who does not want to know how a run goes."""

    def phase(self, words: str) -> None: ...
    def started(self, declaration: Declaration, paths: PipelinePaths, spark: SparkTarget) -> None: ...
    def progress(self, sinks: Sequence[SinkProgress]) -> None: ...


@contextmanager
def pipeline_settings(spark: Any) -> Iterator[None]:
    """Within the block, the session of the tests is set as that of a pipeline."""
    before = {name: spark.conf.get(name, None) for name in DEFAULTS}
    for name, value in DEFAULTS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)


class PipelineProcess:
    """One run of a pipeline, or of an archive of a topic, killed at the end of the block if it still runs."""

    def __init__(
        self,
        file: Path | str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        command: str = "run",
    ) -> None:
        words = [sys.executable, "-m", "headrace.cli", "pipeline", command, str(file), "--json", *arguments]
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **(environment or {})},
        )
        self._events: Queue[Event | None] = Queue()
        self._heard = 0
        """How many events it has told of."""
        self._errors: list[str] = []
        self._readers = [threading.Thread(target=self._read_events), threading.Thread(target=self._read_errors)]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def errors(self) -> str:
        """What was printed to stderr so far."""
        return "".join(self._errors)

    def until(self, holds: Callable[[Event], bool]) -> Event:
        """The next event for which this holds."""
        while True:
            try:
                event = self._events.get(timeout=SILENT_SECONDS)
            except Empty:
                raise AssertionError(f"nothing was said for {SILENT_SECONDS} s; stderr: {self.errors}") from None
            if event is None:
                raise AssertionError(f"it ended with {self._process.wait()}; stderr: {self.errors}")
            if holds(event):
                return event

    def event(self, name: str) -> Event:
        """The next event of this name."""
        return self.until(lambda event: event["event"] == name)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop; its exit code."""
        self._process.send_signal(number)
        return self.ended()

    def kill(self) -> None:
        """End it at once, with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def ended(self) -> int:
        """Wait for its end, however long that takes while it says something now and then; its exit code."""
        while self._process.poll() is None:
            heard = self._heard
            try:
                self._process.wait(SILENT_SECONDS)
            except subprocess.TimeoutExpired:
                assert self._heard > heard, f"nothing was said for {SILENT_SECONDS} s; stderr: {self.errors}"
        for reader in self._readers:
            reader.join()
        return self._process.wait()

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._events.put(json.loads(line))
            self._heard += 1
        self._events.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)
