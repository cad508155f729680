"""The process that has the Spark session, as the benchmark sees it."""

import atexit
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from threading import Timer
from typing import IO, Any, Final

from .. import machine
from ..model import BenchError
from . import jars

_ANSWER_SECONDS: Final = 240.0
"""For a task of the driver, or its start: on a new machine loops are compiled meanwhile."""


class Driver:
    """A process of `bench.spark.driver`."""

    def __init__(self, jar_files: list[Path]) -> None:
        self._seconds: dict[tuple[int, float], float] = {}
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        with machine.on_all_cores():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.spark.driver", *map(str, jar_files)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment,
            )
        self._answer()

    def run(self, **task: Any) -> dict[str, Any]:
        """What a task of the driver answers."""
        print(json.dumps(task), file=self._pipe(self._process.stdin), flush=True)
        return self._answer()

    def cpu_seconds(self) -> float:
        """Processor time of Spark so far: the JVM, the Python workers, and those that idled until they ended."""
        self._seconds |= machine.tree_cpu_seconds(self._process.pid)
        return sum(self._seconds.values())

    def close(self) -> None:
        self._pipe(self._process.stdin).close()
        self._process.wait(60)

    def _answer(self) -> dict[str, Any]:
        too_late = Timer(_ANSWER_SECONDS, self._process.kill)
        too_late.start()
        try:
            line = next((line for line in self._pipe(self._process.stdout) if line.startswith("{")), None)
        finally:
            too_late.cancel()
        if line is None:
            raise BenchError("Spark ended, or took too long; run `python -m bench.spark.driver` to see why")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise BenchError(f"Spark: {answer['error']}")
        return answer

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


@cache
def driver() -> Driver:
    """One session for all works: it takes seconds to start."""
    started = Driver(jars.fetched())
    atexit.register(started.close)
    return started
