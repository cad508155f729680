"""Six versions of one schema in each of three types, what is written with them, and what a reader ought to get.

The changes: a field added, one removed, all in another order, one renamed (by alias, in Avro; by number, in Protobuf),
two widened. In JSON Schema a renamed field is another one.
"""

import json
from collections.abc import Callable
from typing import Any, ClassVar

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

VERSIONS = 6
BAD = "bad"
"""Instead of a value that cannot be read."""

Row = dict[str, Any]
_NAMES: list[list[str]] = [
    ["id", "name", "amount"],
    ["id", "name", "amount", "note"],
    ["id", "amount", "note"],
    ["note", "amount", "id"],
    ["note", "total", "id"],
    ["note", "total", "id"],
]
"""The fields of each version, in their order."""


def row(version: int, number: int) -> Row:
    """What is written with a version, from 1 on; the last one's numbers need their width."""
    wide = version == VERSIONS
    values: Row = {"id": number + (2**40 if wide else 0), "name": f"n{number}", "note": f"note {number}"}
    values["amount"] = values["total"] = number * 3
    return {name: values[name] for name in _NAMES[version - 1]}


class Avro:
    """Versions of an Avro record. The name has a default, so that a reader can do without."""

    name = "avro"
    _TYPES: ClassVar[dict[str, Row]] = {
        "id": {"type": "int"},
        "name": {"type": "string", "default": "unknown"},
        "amount": {"type": "int"},
        "note": {"type": "string", "default": "none"},
        "total": {"type": "int", "aliases": ["amount"]},
    }

    def serializer(self, client: SchemaRegistryClient, version: int) -> Callable[[Row, Any], bytes]:
        fields = [{"name": name, **self._TYPES[name]} for name in _NAMES[version - 1]]
        if version == VERSIONS:
            fields = [{**one, "type": {"id": "long", "total": "double"}.get(one["name"], "string")} for one in fields]
        return AvroSerializer(client, json.dumps({"type": "record", "name": "Order", "fields": fields}))  # type: ignore[no-any-return]

    def expected(self, reader: int, writer: int, written: Row) -> Any:
        """What a reader of a version gets."""
        if writer == VERSIONS > reader:
            return BAD  # a long is no int
        given = dict(written)
        if reader >= 5 and "amount" in given:
            given["total"] = given.pop("amount")
        defaults = {"name": "unknown", "note": "none"}
        found = {name: given.get(name, defaults.get(name)) for name in _NAMES[reader - 1]}
        return BAD if None in found.values() else found


class Json:
    """Versions of a JSON Schema. No field is required."""

    name = "json-schema"

    def serializer(self, client: SchemaRegistryClient, version: int) -> Callable[[Row, Any], bytes]:
        kinds = {"name": "string", "note": "string"}
        number = "number" if version == VERSIONS else "integer"
        properties = {name: {"type": kinds.get(name, number)} for name in _NAMES[version - 1]}
        schema = {"title": "Order", "type": "object", "properties": properties}
        serialize = JSONSerializer(json.dumps(schema), client)

        def widened(value: Row, context: Any) -> bytes:
            return serialize({**value, "id": value["id"] + 0.5} if version == VERSIONS else value, context)  # type: ignore[no-any-return]

        return widened

    def expected(self, reader: int, writer: int, written: Row) -> Any:
        """What a reader of a version gets."""
        if writer == VERSIONS > reader:
            return BAD  # half a number is no integer
        given = {**written, "id": written["id"] + 0.5} if writer == VERSIONS else written
        return {name: given[name] for name in _NAMES[reader - 1] if name in given}


class Protobuf:
    """Versions of a Protobuf message."""

    name = "protobuf"
    _NUMBERS: ClassVar[dict[str, int]] = {"id": 1, "name": 2, "amount": 3, "total": 3, "note": 4}

    def serializer(self, client: SchemaRegistryClient, version: int) -> Callable[[Row, Any], bytes]:
        file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
        message = file.message_type.add(name="Order")
        integer = 3 if version == VERSIONS else 5
        for name in _NAMES[version - 1]:
            kind = 9 if name in ("name", "note") else integer
            message.field.add(name=name, number=self._NUMBERS[name], type=kind, label=1, json_name=name)
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        made = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
        serialize = ProtobufSerializer(made, client)
        return lambda value, context: serialize(made(**value), context)

    def expected(self, reader: int, writer: int, written: Row) -> Any:
        """What a reader of a version gets; zeros and empty texts are not written."""
        if writer == VERSIONS > reader:
            return BAD  # an int64 may not fit into an int32
        by_number = {self._NUMBERS[name]: value for name, value in written.items()}
        found = {name: by_number.get(self._NUMBERS[name]) for name in _NAMES[reader - 1]}
        return {name: value for name, value in found.items() if value}


TYPES = (Avro(), Json(), Protobuf())
Versions = Avro | Json | Protobuf


class Writers:
    """Serializers of one type's versions for one topic."""

    def __init__(self, versions: Versions, client: SchemaRegistryClient, topic: str) -> None:
        self._versions = versions
        self._client = client
        self._context = SerializationContext(topic, MessageField.VALUE)
        self._made: dict[int, Callable[[Row, Any], bytes]] = {}

    def write(self, version: int, number: int) -> bytes:
        """A value; the version is registered with the first of them."""
        if version not in self._made:
            self._made[version] = self._versions.serializer(self._client, version)
        return bytes(self._made[version](row(version, number), self._context))
