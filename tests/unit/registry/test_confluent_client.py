"""Confluent's own client and serializers, unchanged, against this registry."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import (
    AssociationCreateOrUpdateInfo,
    AssociationCreateOrUpdateRequest,
    ConfigCompatibilityLevel,
    Metadata,
    MetadataProperties,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    SchemaRegistryError,
    ServerConfig,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from tests.support.registry.serving import in_memory, serving

pytestmark = pytest.mark.slow
USER = '{"type":"record","name":"User","namespace":"shop","fields":[{"name":"name","type":"string"}]}'
USER_2 = (
    '{"type":"record","name":"User","namespace":"shop","fields":[{"name":"name","type":"string"},'
    '{"name":"age","type":"int","default":0}]}'
)
USER_BAD = (
    '{"type":"record","name":"User","namespace":"shop","fields":[{"name":"name","type":"string"},'
    '{"name":"age","type":"int"}]}'
)
PERSON_JSON = '{"title":"Person","type":"object","properties":{"name":{"type":"string"}},"required":["name"]}'
VALUE = SerializationContext("people", MessageField.VALUE)


@pytest.fixture
def url() -> Iterator[str]:
    with serving(in_memory) as url:
        yield url


@pytest.fixture
def client(url: str) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": url, "timeout": 60})


def fresh(client: SchemaRegistryClient) -> SchemaRegistryClient:
    """Without anything in its caches."""
    client.clear_caches()
    return client


def code_of(call: Any, *arguments: Any, **named: Any) -> int:
    with pytest.raises(SchemaRegistryError) as refused:
        call(*arguments, **named)
    return int(refused.value.error_code)


def test_avro_values_go_there_and_back(client: SchemaRegistryClient) -> None:
    data = AvroSerializer(client, USER)({"name": "Ann"}, VALUE)
    assert data[:5] == b"\x00\x00\x00\x00\x01"
    assert AvroDeserializer(fresh(client))(data, VALUE) == {"name": "Ann"}
    assert client.get_subjects() == ["people-value"]


def test_avro_values_are_read_with_a_newer_schema(client: SchemaRegistryClient) -> None:
    data = AvroSerializer(client, USER)({"name": "Ann"}, VALUE)
    client.register_schema("people-value", Schema(USER_2, "AVRO"))
    assert AvroDeserializer(fresh(client), USER_2)(data, VALUE) == {"name": "Ann", "age": 0}


def test_avro_values_with_references_go_there_and_back(client: SchemaRegistryClient) -> None:
    client.register_schema("user", Schema(USER, "AVRO"))
    order = '{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"by","type":"shop.User"}]}'
    schema = Schema(order, "AVRO", [SchemaReference("shop.User", "user", 1)])
    data = AvroSerializer(client, schema)({"by": {"name": "Ann"}}, VALUE)
    assert AvroDeserializer(fresh(client), schema)(data, VALUE) == {"by": {"name": "Ann"}}


def test_json_values_go_there_and_back(client: SchemaRegistryClient) -> None:
    data = JSONSerializer(PERSON_JSON, client)({"name": "Ann"}, VALUE)
    assert JSONDeserializer(PERSON_JSON, schema_registry_client=fresh(client))(data, VALUE) == {"name": "Ann"}


def message_class() -> Any:
    """A class with a nested message, a map and a well-known type, as protoc would make it."""
    file = descriptor_pb2.FileDescriptorProto(name="person.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    person = file.message_type.add(name="Person")
    person.field.add(name="name", number=1, type=9, label=1, json_name="name")
    person.field.add(name="born", number=2, type=11, type_name=".google.protobuf.Timestamp", label=1, json_name="born")
    entry = person.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1, json_name="key")
    entry.field.add(name="value", number=2, type=5, label=1, json_name="value")
    person.field.add(name="tags", number=3, type=11, type_name=".shop.Person.TagsEntry", label=3, json_name="tags")
    pool = descriptor_pool.DescriptorPool()
    known = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(known)
    pool.Add(known)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Person"))


def test_protobuf_values_go_there_and_back(client: SchemaRegistryClient) -> None:
    person = message_class()
    ann = person(name="Ann", tags={"a": 1})
    ann.born.seconds = 5
    data = ProtobufSerializer(person, client)(ann, VALUE)
    found = ProtobufDeserializer(person, {}, fresh(client))(data, VALUE)
    assert (found.name, found.born.seconds, dict(found.tags)) == ("Ann", 5, {"a": 1})
    text = fresh(client).get_schema(1).schema_str
    assert "message Person {" in text
    assert "map<string, int32> tags = 3;" in text


def test_registering_and_reading_by_every_way(client: SchemaRegistryClient) -> None:
    first = client.register_schema("s", Schema(USER, "AVRO"))
    second = client.register_schema_full_response("s", Schema(USER_2, "AVRO"))
    assert (first, second.schema_id, second.version) == (1, 2, 2)
    fresh(client)
    assert client.get_schema(1).schema_str == USER
    assert client.get_schema_by_guid(second.guid).schema_str == USER_2
    assert client.lookup_schema("s", Schema(USER, "AVRO")).version == 1
    assert client.get_latest_version("s").version == 2
    assert client.get_version("s", 1).schema_id == 1
    assert client.get_versions("s") == [1, 2]
    assert client.get_subjects_by_schema_id(1) == ["s"]
    assert [(v.subject, v.version) for v in client.get_schema_versions(2)] == [("s", 2)]
    assert sorted(client.get_schema_types()) == ["AVRO", "JSON", "PROTOBUF"]
    assert client.get_contexts() == ["."]


def test_missing_things_have_their_codes(client: SchemaRegistryClient) -> None:
    assert code_of(client.get_versions, "none") == 40401
    assert code_of(client.get_schema, 77) == 40403
    client.register_schema("s", Schema(USER, "AVRO"))
    assert code_of(client.get_version, "s", 9) == 40402
    assert code_of(client.lookup_schema, "s", Schema(USER_2, "AVRO")) == 40403
    assert code_of(client.register_schema, "s", Schema('{"type":"nothing"}', "AVRO")) == 42201
    assert code_of(client.register_schema, "s", Schema(USER_BAD, "AVRO")) == 409
    assert code_of(client.set_compatibility, "s", "SIDEWAYS") == 42203
    assert code_of(client.update_mode, "s", "SIDEWAYS") == 42204
    assert code_of(client.delete_version, "s", 1, permanent=True) == 40407
    assert code_of(client.delete_subject, "s", permanent=True) == 40405
    assert code_of(client.get_mode, "s") == 40409
    assert code_of(client.get_config, "s") == 40408


def test_deleting_softly_and_for_good(client: SchemaRegistryClient) -> None:
    client.register_schema("s", Schema(USER, "AVRO"))
    client.register_schema("s", Schema(USER_2, "AVRO"))
    assert client.delete_version("s", 1) == 1
    assert client.get_versions("s") == [2]
    assert client.get_versions("s", deleted=True) == [1, 2]
    assert fresh(client).get_schema(1).schema_str == USER
    assert client.delete_version("s", 1, permanent=True) == 1
    assert code_of(fresh(client).get_schema, 1) == 40403
    assert client.delete_subject("s") == [2]
    assert client.get_subjects() == []
    assert client.get_subjects(deleted=True) == ["s"]
    assert client.delete_subject("s", permanent=True) == [2]
    assert client.get_subjects(deleted=True) == []
    assert client.register_schema("s", Schema(USER, "AVRO")) == 3


def test_what_is_referred_to_cannot_be_deleted(client: SchemaRegistryClient) -> None:
    client.register_schema("user", Schema(USER, "AVRO"))
    order = '{"type":"record","name":"Order","fields":[{"name":"by","type":"shop.User"}]}'
    client.register_schema("order", Schema(order, "AVRO", [SchemaReference("shop.User", "user", 1)]))
    assert client.get_referenced_by("user", 1) == [2]
    assert code_of(client.delete_version, "user", 1) == 42206
    client.delete_subject("order")
    assert client.delete_version("user", 1) == 1


def test_settings_and_modes(client: SchemaRegistryClient) -> None:
    assert client.get_compatibility() == "BACKWARD"
    client.set_compatibility("s", "NONE")
    assert client.get_compatibility("s") == "NONE"
    client.register_schema("s", Schema(USER, "AVRO"))
    client.register_schema("s", Schema(USER_BAD, "AVRO"))
    client.set_config("s", ServerConfig(compatibility_level=ConfigCompatibilityLevel.FULL, compatibility_group="major"))
    assert client.get_config("s").compatibility_group == "major"
    client.delete_config("s")
    assert code_of(client.get_config, "s") == 40408
    assert client.get_global_mode() == "READWRITE"
    assert client.update_mode("s", "READONLY") == "READONLY"
    assert code_of(client.register_schema, "s", Schema('"int"', "AVRO")) == 42205
    assert client.get_mode("s") == "READONLY"
    assert client.delete_mode("s") == "READONLY"
    assert code_of(client.update_global_mode, "IMPORT") == 42205
    assert client.update_global_mode("IMPORT", force=True) == "IMPORT"


def test_compatibility_can_be_asked_before_registering(client: SchemaRegistryClient) -> None:
    assert client.test_compatibility("s", Schema(USER, "AVRO"))
    client.register_schema("s", Schema(USER, "AVRO"))
    assert client.test_compatibility("s", Schema(USER_2, "AVRO"))
    assert not client.test_compatibility("s", Schema(USER_BAD, "AVRO"))
    assert not client.test_compatibility_all_versions("s", Schema(USER_BAD, "AVRO"))


def test_a_version_is_found_by_its_metadata(client: SchemaRegistryClient) -> None:
    for major, text in (("1", USER), ("2", USER_2)):
        metadata = Metadata(None, MetadataProperties({"major": major}), None)
        client.register_schema("s", Schema(text, "AVRO", metadata=metadata))
    assert client.get_latest_with_metadata("s", {"major": "1"}).version == 1
    assert code_of(client.get_latest_with_metadata, "s", {"major": "3"}) == 40403


def test_contexts_have_ids_of_their_own(client: SchemaRegistryClient) -> None:
    assert client.register_schema("s", Schema(USER, "AVRO")) == 1
    assert client.register_schema(":.other:s", Schema(USER_2, "AVRO")) == 1
    fresh(client)
    assert client.get_schema(1, ":.other:s").schema_str == USER_2
    assert client.get_schema(1).schema_str == USER
    assert client.get_contexts() == [".", ".other"]
    assert client.get_subjects() == [":.other:s", "s"]


def test_subjects_belong_to_topics(client: SchemaRegistryClient) -> None:
    link = AssociationCreateOrUpdateInfo("orders", "value", "WEAK", False, Schema(USER, "AVRO"), False)
    request = AssociationCreateOrUpdateRequest("topic-a", "cluster", "id-1", "topic", [link])
    assert [a.subject for a in client.create_association(request).associations] == ["orders"]
    assert client.get_subjects() == ["orders"]
    found = client.get_associations_by_resource_name("topic-a", "-", "topic", ["key", "value"])
    assert [(a.subject, a.resource_id) for a in found] == [("orders", "id-1")]
    client.delete_associations("id-1", "topic", ["value"])
    assert client.get_associations_by_resource_name("topic-a", "cluster") == []


def test_the_strategy_names_subjects_by_topic() -> None:
    assert topic_subject_name_strategy(VALUE, "User") == "people-value"
