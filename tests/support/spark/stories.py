"""Topics whose schema changes, written as a story: what each row ought to be, and what a query made of it."""

import json
import threading
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient

from .topics import Topics
from .versions import BAD, Versions, Writers, row

EACH = 20
WAIT_SECONDS = 240
UNKNOWN = b"\0\0\x98\x96\x7f\2"


class Story:
    """What was written to a topic, and what each row ought to be to the reader of its time."""

    def __init__(self, versions: Versions, topics: Topics, registry: str) -> None:
        self.versions = versions
        self.topic = topics.create()
        self.written: list[tuple[int, int]] = []
        self._topics = topics
        client = SchemaRegistryClient({"url": registry, "timeout": 60})
        client.set_compatibility(f"{self.topic}-value", "NONE")
        self._writers = Writers(versions, client, self.topic)

    def register(self, version: int) -> None:
        """Have a version registered, so that it can be written while the registry is away."""
        self._writers.write(version, 0)

    def go_on(self, version: int) -> None:
        """Write with a version and, in turn, with the one before; and a record with an id that nobody knows."""
        values = []
        for _ in range(EACH):
            number = len(self.written) + 1
            by = version if number % 2 or version == 1 else version - 1
            values.append(self._writers.write(by, number))
            self.written.append((by, number))
        self.written.append((0, 0))
        self._topics.fill(self.topic, [*values, UNKNOWN])

    def expected(self, offset: int, reader: int) -> Any:
        version, number = self.written[offset]
        return self.versions.expected(reader, version, row(version, number)) if version else BAD


class Rows:
    """The rows that a query has given, by their offsets."""

    def __init__(self) -> None:
        self.found: dict[int, Any] = {}
        self.errors: dict[int, str] = {}
        self._changed = threading.Condition()

    def take(self, frame: Any, _batch: int) -> None:
        """What `foreachBatch` calls."""
        rows = frame.selectExpr("offset", "to_json(value) AS value", "bad.error AS error").collect()
        with self._changed:
            for one in rows:
                self.found[one.offset] = BAD if one.error is not None else json.loads(one.value)
                if one.error is not None:
                    self.errors[one.offset] = one.error
            self._changed.notify_all()

    def wait_for(self, count: int, query: Any) -> None:
        with self._changed:
            while len(self.found) < count and query.isActive:
                assert self._changed.wait(WAIT_SECONDS), f"{len(self.found)} rows of {count}"
        assert query.exception() is None


def stream(spark: Any, topics: Topics, story: Story, registry: str, **options: str) -> Any:
    reading = spark.readStream.format("headrace").option("kafka.bootstrap.servers", topics.bootstrap)
    reading = reading.options(subscribe=story.topic, startingOffsets="earliest", format=story.versions.name)
    return reading.option("schema.registry.url", registry).options(**options).load()


def check(story: Story, rows: Rows, reader_of: dict[int, int]) -> None:
    """`reader_of` tells the version of the reader by offset."""
    assert sorted(rows.found) == list(range(len(story.written)))
    for offset, value in sorted(rows.found.items()):
        assert value == story.expected(offset, reader_of[offset]), (offset, story.written[offset], rows.errors)
    assert BAD in rows.found.values()
    assert any(value != BAD for value in rows.found.values())
