"""Doors in the middle of Spark's tasks: a task says that it has come so far, and stands there until it may go on."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.process import wait_for

_PATIENCE = 400.0
_TICK = 0.02


@dataclass(frozen=True)
class Gate:
    """A door that tasks reach after so many rows, by way of files: tasks run in other processes."""

    place: Path
    rows: int

    def through(self, frame: Any) -> Any:
        """The same rows, from tasks that wait at the door."""
        return frame.mapInArrow(self.passing, frame.schema)

    @contextmanager
    def meanwhile(self, act: Callable[[], None]) -> Iterator[None]:
        """Do something while tasks of the block's job stand at the door, and then let them through."""
        is_over = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            acting = pool.submit(self._act, act, is_over)
            try:
                yield
            finally:
                is_over.set()
            acting.result()

    def _act(self, act: Callable[[], None], is_over: threading.Event) -> None:
        try:
            wait_for("a task at the gate", lambda: is_over.is_set() or self._is_reached(), _PATIENCE)
            assert self._is_reached(), "nobody came to the gate"
            act()
        finally:
            (self.place / "open").touch()

    def _is_reached(self) -> bool:
        return any(self.place.glob("reached-*"))

    def passing(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches, of a task that comes to the door once it has given enough of them away."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        given = 0
        for rows in batches:
            yield rows
            given += rows.num_rows
            if given >= self.rows:
                self.stand(context.partitionId())

    def stand(self, task: int) -> None:
        """Say that a task is here, and return when the door is open."""
        if (self.place / "open").exists():
            return
        (self.place / f"reached-{task}").touch()
        deadline = time.monotonic() + _PATIENCE
        while not (self.place / "open").exists() and time.monotonic() < deadline:
            time.sleep(_TICK)
