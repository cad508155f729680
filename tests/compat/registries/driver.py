"""Confluent's client and serializers against a registry: what each scenario came to, as JSON, one line each."""

import json
import sys
from collections.abc import Callable
from typing import Any

from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.struct_pb2 import Value

URL, PREFIX = sys.argv[1], sys.argv[2]
CLIENT = SchemaRegistryClient({"url": URL})
FIELDS: list[dict[str, Any]] = [{"name": "id", "type": "long"}, {"name": "note", "type": "string"}]
ORDER = json.dumps({"type": "record", "name": "Order", "fields": FIELDS})
VALUE = {"id": 7, "note": "x"}


def place(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


def equal(found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"{found!r} is not {wanted!r}")


def avro() -> None:
    data = AvroSerializer(CLIENT, ORDER)(VALUE, place(f"{PREFIX}-avro"))
    equal(AvroDeserializer(SchemaRegistryClient({"url": URL}))(data, place(f"{PREFIX}-avro")), VALUE)


def as_json() -> None:
    schema = json.dumps({"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}})
    data = JSONSerializer(schema, CLIENT)(VALUE, place(f"{PREFIX}-json"))
    equal(JSONDeserializer(schema)(data, place(f"{PREFIX}-json")), VALUE)


def protobuf() -> None:
    value = Value(string_value="x")
    data = ProtobufSerializer(Value, CLIENT)(value, place(f"{PREFIX}-protobuf"))
    equal(ProtobufDeserializer(Value)(data, place(f"{PREFIX}-protobuf")), value)


def references() -> None:
    subject = f"{PREFIX}-kind"
    CLIENT.register_schema(subject, Schema('{"type":"enum","name":"Kind","symbols":["A","B"]}', "AVRO"))
    text = '{"type":"record","name":"Kinded","fields":[{"name":"kind","type":"Kind"}]}'
    schema = Schema(text, "AVRO", [SchemaReference("Kind", subject, 1)])
    data = AvroSerializer(CLIENT, schema)({"kind": "B"}, place(f"{PREFIX}-kinded"))
    equal(AvroDeserializer(SchemaRegistryClient({"url": URL}))(data, place(f"{PREFIX}-kinded")), {"kind": "B"})


def refusal(call: Callable[[], object]) -> int:
    try:
        call()
    except SchemaRegistryError as error:
        return int(error.error_code)
    raise AssertionError("it was taken")


def incompatible() -> None:
    subject = f"{PREFIX}-strict"
    CLIENT.register_schema(subject, Schema(ORDER, "AVRO"))
    fields = [*FIELDS, {"name": "must", "type": "string"}]
    bad = Schema(json.dumps({"type": "record", "name": "Order", "fields": fields}), "AVRO")
    equal(CLIENT.test_compatibility(subject, bad), False)
    equal(refusal(lambda: CLIENT.register_schema(subject, bad)), 409)


def deletions() -> None:
    subject = f"{PREFIX}-gone"
    CLIENT.register_schema(subject, Schema(ORDER, "AVRO"))
    equal(CLIENT.delete_subject(subject), [1])
    equal(CLIENT.delete_subject(subject, permanent=True), [1])
    equal(refusal(lambda: CLIENT.get_versions(subject)), 40401)


def context() -> None:
    client = SchemaRegistryClient({"url": f"{URL}/contexts/:.{PREFIX}:"})
    equal(client.register_schema("orders", Schema(ORDER, "AVRO")), 1)
    equal(client.get_latest_version("orders").schema_id, 1)


SCENARIOS: dict[str, Callable[[], None]] = {
    "avro": avro,
    "json": as_json,
    "protobuf": protobuf,
    "references": references,
    "incompatible": incompatible,
    "deletions": deletions,
    "context": context,
}


def main() -> None:
    for name, scenario in SCENARIOS.items():
        error = ""
        try:
            scenario()
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        print(json.dumps({"name": name, "error": error}))
    data = AvroSerializer(CLIENT, ORDER)(VALUE, place("shared"))
    assert data is not None
    print(json.dumps({"name": "shared", "data": data.hex()}))


if __name__ == "__main__":
    main()
