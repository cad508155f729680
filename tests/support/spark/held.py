"""The source with a door in its tasks, between two fetches, and the sink with one in its driver, between decision and
commit.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.spark.data_source import HeadraceSource
from headrace.spark.sink.commit import Command, End
from headrace.spark.sink.driver import SinkDriver
from headrace.spark.sink.writer import SinkWriter
from headrace.spark.source.batch import BatchReader
from headrace.spark.source.reading import Rows

from .gates import Gate


def held_source(place: Path) -> type[HeadraceSource]:
    """`format("held")`, which stands at a gate at this place."""

    class HeldSource(HeadraceSource):
        @classmethod
        def name(cls) -> str:
            return "held"

        def reader(self, schema: Any) -> BatchReader:
            return HeldReader(self._rows(self._options().for_batch(), schema), Gate(place, rows=500))

        def writer(self, schema: Any, overwrite: bool) -> SinkWriter:
            plain = super().writer(schema, overwrite)
            return HeldWriter(plain._target, plain._job, place)

    return HeldSource


class HeldReader(BatchReader):
    def __init__(self, rows: Rows, gate: Gate) -> None:
        super().__init__(rows)
        self._gate = gate

    def read(self, partition: Any) -> Iterator[Any]:
        return self._gate.passing(super().read(partition))


class HeldWriter(SinkWriter):
    def __init__(self, target: Any, job: str, place: Path) -> None:
        super().__init__(target, job)
        self._place = place

    def _driver(self) -> SinkDriver:
        plain = super()._driver()
        return HeldDriver(plain._cluster, plain._query, plain._journal, Gate(self._place, rows=0))


class HeldDriver(SinkDriver):
    def __init__(self, cluster: Any, query: str, journal: Any, gate: Gate) -> None:
        super().__init__(cluster, query, journal)
        self._gate = gate

    def _do(self, command: Command) -> Any:
        if isinstance(command, End) and command.commit:
            self._gate.stand(0)
        return super()._do(command)
