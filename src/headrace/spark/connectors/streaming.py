"""A `SourceConnector` as a streaming source of Spark's: positions are offsets, and Spark's checkpoint keeps them."""

import time
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from .base import Given, Position, SourceConnector


def frame_of(spark: Any, connector: SourceConnector) -> Any:
    """A streaming DataFrame of a connector's rows.

    The class made here holds the connector's class and options, and travels by value: options with passwords do not
    become options of Spark, which shows those.
    """
    kind, given, schema = type(connector), dict(connector.given), connector.schema()
    connector.close()

    class OfConnector(ConnectorDataSource):
        made_of = (kind, given, schema)

        @classmethod
        def name(cls) -> str:
            return f"headrace_connector_{kind.__name__}".lower()

    spark.dataSource.register(OfConnector)
    return spark.readStream.format(OfConnector.name()).load()


class ConnectorDataSource(DataSource):
    """Spark's view of a connector."""

    made_of: tuple[type[SourceConnector], Given, str]

    def schema(self) -> str:
        return self.made_of[2]

    def streamReader(self, schema: Any) -> "ConnectorReader":  # noqa: N802, ARG002 - Spark's name
        return ConnectorReader(self.made_of[0], self.made_of[1])


class _Between(InputPartition):
    def __init__(self, start: Position, end: Position) -> None:
        self.start = start
        self.end = end


class ConnectorReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Asks a connector of its own in each process that it is pickled to."""

    def __init__(self, kind: type[SourceConnector], given: Given) -> None:
        self._kind = kind
        self._given = given
        self._connector: SourceConnector | None = None
        self._looked = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connector": None}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Batches go on until a connector has nothing new."""

    def initialOffset(self) -> Position:  # noqa: N802 - Spark's name
        return self._opened().initial()

    def latestOffset(self, start: Position, limit: ReadLimit) -> Position:  # noqa: N802, ARG002 - Spark's name
        """All before `start` is written, which the connector hears of; asked again only after a while."""
        connector = self._opened()
        if time.monotonic() - self._looked < connector.poll_seconds:
            return start
        connector.done(start)
        latest = connector.latest(start)
        if latest == start:
            self._looked = time.monotonic()
        return latest

    def partitions(self, start: Position, end: Position) -> list[InputPartition]:
        return [] if start == end else [_Between(start, end)]

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        assert isinstance(partition, _Between)
        connector = self._kind(self._given)
        try:
            yield from connector.read(partition.start, partition.end)
        finally:
            connector.close()

    def commit(self, end: Position) -> None:
        """Nothing to do: what is done shows in the next `latestOffset`."""

    def stop(self) -> None:
        if self._connector is not None:
            self._connector.close()

    def _opened(self) -> SourceConnector:
        if self._connector is None:
            self._connector = self._kind(self._given)
        return self._connector
