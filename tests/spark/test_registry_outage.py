"""A schema registry that is away while streams need it: they wait or fail in plain words, and go on where they stopped.
An outage makes no record bad, and none is guessed or lost.
"""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from headrace.testing import Broker
from tests.support.gateways import GatewayProcess
from tests.support.process import free_port
from tests.support.spark.pipelines import PipelineProcess
from tests.support.spark.queries import started
from tests.support.spark.records import records, values, wait_until_decided
from tests.support.spark.stories import UNKNOWN, WAIT_SECONDS, Rows, Story, check, stream
from tests.support.spark.topics import Topics
from tests.support.spark.versions import BAD, Avro


class Registry:
    """A gateway at one address, and what answers there while it is away."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.gateway = GatewayProcess(bootstrap, directory / "gateway.log", port=self.port)

    @contextmanager
    def away(self) -> Iterator[threading.Event]:
        """Within the block a proxy says that the registry is down; the event tells that somebody has asked for it."""
        asked = threading.Event()

        class Down(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_error(503)
                asked.set()

            do_POST = do_GET  # noqa: N815

            def log_message(self, *_: Any) -> None: ...

        self.gateway.kill()
        with ThreadingHTTPServer(("127.0.0.1", self.port), Down) as proxy:
            thread = threading.Thread(target=proxy.serve_forever)
            thread.start()
            try:
                yield asked
            finally:
                proxy.shutdown()
                thread.join()
        self.gateway.start()


@pytest.fixture
def own_registry(broker: Broker, tmp_path: Path) -> Iterator[Registry]:
    registry = Registry(broker.bootstrap, tmp_path)
    with registry.gateway:
        yield registry


def test_a_stream_waits_for_a_registry_that_is_away(
    spark: Any, topics: Topics, own_registry: Registry, tmp_path: Path
) -> None:
    story, rows = Story(Avro(), topics, own_registry.url), Rows()
    story.go_on(1)
    frame = stream(spark, topics, story, own_registry.url)
    story.register(2)
    writing = frame.writeStream.foreachBatch(rows.take).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = started(writing.start, lambda query: rows.wait_for(len(story.written), query))
    before = len(story.written)
    try:
        with own_registry.away() as asked:
            story.go_on(2)
            assert asked.wait(WAIT_SECONDS)
            assert query.isActive
            assert len(rows.found) == before
        rows.wait_for(len(story.written), query)
    finally:
        query.stop()
    check(story, rows, dict.fromkeys(range(len(story.written)), 1))


@pytest.mark.long
def test_a_stream_that_fails_for_its_registry_goes_on_with_every_record(
    spark: Any, topics: Topics, own_registry: Registry, tmp_path: Path
) -> None:
    story, dead, found = Story(Avro(), topics, own_registry.url), topics.create(), {}
    story.go_on(1)
    options = {"schema.registry.timeout.ms": "1000", "deadLetterTopic": dead}
    frame = stream(spark, topics, story, own_registry.url, **options)
    story.register(2)

    def take(batch: Any, _number: int) -> None:
        found.update(
            {
                row.offset: json.loads(row.value)
                for row in batch.selectExpr("offset", "to_json(value) AS value").collect()
            }
        )

    writing = frame.writeStream.foreachBatch(take).trigger(availableNow=True)
    writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint"))
    started(writing.start, lambda query: query.awaitTermination())
    assert len(values(topics.bootstrap, dead)) == 1
    before = len(found)
    with own_registry.away():
        story.go_on(2)
        with pytest.raises(Exception, match=rf"the schema registry at {own_registry.url} does not answer: 503"):
            started(writing.start, lambda query: query.awaitTermination())
        with pytest.raises(Exception, match=rf"the schema registry at {own_registry.url} does not answer: 503"):
            stream(spark, topics, story, own_registry.url, **options)
        assert len(found) == before
        assert len(values(topics.bootstrap, dead)) == 1
    started(writing.start, lambda query: query.awaitTermination())
    expected = {offset: story.expected(offset, 1) for offset in range(len(story.written))}
    assert found == {offset: value for offset, value in expected.items() if value != BAD}
    letters = records(topics.bootstrap, dead)
    assert [letter["value"] for letter in letters] == [UNKNOWN] * 2
    assert {offset_of(letter) for letter in letters} == {offset for offset, value in expected.items() if value == BAD}


def offset_of(letter: dict[str, Any]) -> int:
    return next(int(one["value"]) for one in letter["headers"] if one["key"] == "headrace.offset")


PIPELINE = """
name: outage
restart: {{delay: 1 second, maxDelay: 2 seconds}}
sources:
  orders:
    topic: {source}
    startingOffsets: earliest
    format: avro
    schema.registry.url: {registry}
    schema.registry.timeout.ms: 2000
    deadLetterTopic: {dead}
sinks:
  copies:
    from: orders
    topic: {target}
    format: avro
    schema.registry.url: {registry}
    schema.registry.timeout.ms: 2000
"""


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_pipeline_outlives_its_registry(topics: Topics, own_registry: Registry, tmp_path: Path) -> None:
    story, dead, target = Story(Avro(), topics, own_registry.url), topics.create(), topics.create()
    story.go_on(1)
    file = tmp_path / "pipeline.yaml"
    file.write_text(PIPELINE.format(source=story.topic, dead=dead, target=target, registry=own_registry.url))

    with PipelineProcess(file, "--bootstrap", topics.bootstrap) as run:
        run.until(has_read(story))
        story.register(2)
        with own_registry.away():
            story.go_on(2)
            gone = run.until(lambda event: event.get("state") == "restarting")
            assert f"the schema registry at {own_registry.url} does not answer" in gone["problem"]
        again = run.until(has_read(story))
        assert (again["state"], again["problem"], again["bad_records"]) == ("running", None, 2)
        assert run.stop() == 0
    expected = [story.expected(offset, 1) for offset in range(len(story.written))]
    assert [row["value"] for row in records(topics.bootstrap, dead, read_committed=True)] == [UNKNOWN] * 2
    wait_until_decided(topics.bootstrap, target)
    read = AvroDeserializer(SchemaRegistryClient({"url": own_registry.url}))
    context = SerializationContext(target, MessageField.VALUE)
    written = [read(value, context) for value in values(topics.bootstrap, target, read_committed=True)]
    assert Counter(map(str, written)) == Counter(str(value) for value in expected if value != BAD)


def has_read(story: Story) -> Any:
    return lambda event: event["event"] == "progress" and event["rows_in"] >= len(story.written)
