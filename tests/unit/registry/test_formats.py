"""Values with a schema in a registry, as producers and consumers have them; read by Confluent's deserializers too."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from headrace.client import Consumer, Producer, Undecodable, Unencodable
from headrace.registry.formats import Avro, JsonSchema, Protobuf
from headrace.testing import Broker

pytestmark = pytest.mark.slow


@dataclass
class Order:
    id: int
    name: str


FORMATS: list[tuple[Any, str]] = [
    (
        Avro,
        '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},{"name":"name","type":"string"}]}',
    ),
    (
        JsonSchema,
        '{"type":"object","properties":{"id":{"type":"integer"},"name":{"type":"string"}},"required":["id","name"]}',
    ),
    (Protobuf, 'syntax = "proto3"; message Order { int64 id = 1; string name = 2; }'),
]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(topics=[kind.__name__ for kind, _ in FORMATS], registry=True) as running:
        yield running


@pytest.mark.parametrize(("kind", "schema"), FORMATS)
def test_a_value_with_a_schema_comes_back_also_by_the_latest_that_is_registered(
    broker: Broker, kind: Any, schema: str
) -> None:
    topic = kind.__name__
    with Producer(broker.bootstrap, value=kind(Order, broker.registry_url, schema)) as producer:
        producer.deliver(topic, Order(1, "a"))
    with Producer(broker.bootstrap, value=kind(Order, broker.registry_url)) as producer:
        producer.deliver(topic, Order(2, "b"))
        with pytest.raises(Unencodable, match="does not fit"):
            producer.send(topic, {"id": "no number", "name": 1})
        with pytest.raises(Unencodable):
            producer.send(topic, object())
    with Producer(broker.bootstrap) as producer:
        producer.deliver(topic, "no schema before it")
    with Consumer(topic, group="g", value=kind(Order, broker.registry_url), bootstrap=broker.bootstrap) as consumer:
        first, second, third = (consumer.receive(10) for _ in range(3))
        assert first is not None
        assert second is not None
        assert third is not None
        assert (first.value, second.value) == (Order(1, "a"), Order(2, "b"))
        with pytest.raises(Undecodable, match="schema"):
            _ = third.value


def test_confluents_deserializer_reads_what_was_written(broker: Broker) -> None:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    kind, schema = FORMATS[0]
    data = kind(Order, broker.registry_url, schema).encode(Order(7, "c"), "Avro")
    deserialize = AvroDeserializer(SchemaRegistryClient({"url": broker.registry_url}))
    assert deserialize(data, SerializationContext("Avro", MessageField.VALUE)) == {"id": 7, "name": "c"}
