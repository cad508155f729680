"""REST Proxy's v2 against a broker: what it takes, what it answers, and how it refuses."""

import json
from base64 import b64encode
from typing import Any

import pytest

from headrace.gateway.schemas import mount_registry
from tests.support.asgi import Asker, Reply, conversation

AVRO = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "total", "type": "long"}]})
OTHER_AVRO = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "count", "type": "string"}]})
JSON_SCHEMA = json.dumps({"type": "object", "properties": {"total": {"type": "number"}}, "required": ["total"]})
PROTOBUF = 'syntax = "proto3"; message Order { int64 total = 1; }'


def media(form: str = "") -> str:
    return f"application/vnd.kafka{'.' if form else ''}{form}.v2+json"


async def make(ask: Asker, name: str, partitions: int = 1) -> None:
    reply = await ask("POST", "/api/v1/topics", {"name": name, "partitions": partitions})
    assert reply.status == 201, reply.body


async def produce(ask: Asker, path: str, form: str, body: Any) -> Reply:
    text = body if isinstance(body, str | bytes) else json.dumps(body)
    return await ask("POST", f"/topics/{path}", text, {"content-type": media(form)})


async def values(ask: Asker, topic: str, form: str = "base64") -> list[Any]:
    reply = await ask("GET", f"/api/v1/topics/{topic}/partitions/0/messages?format={form}")
    return [each["value"] for each in reply.json["messages"]]


def refusal(reply: Reply) -> tuple[int, int]:
    assert reply.headers["content-type"] == media(), reply.body
    assert set(reply.json) == {"error_code", "message"}
    return reply.status, reply.json["error_code"]


def test_binary_and_json_records_are_written_as_they_are(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "plain", 2)
        exact = '{"records":[{"key":"k","value":{"b":1,  "a":7.50}},{"value":null,"partition":1}]}'
        reply = await produce(ask, "plain", "json", exact)
        assert reply.status == 200, reply.body
        assert reply.headers["content-type"] == media()
        assert reply.json["offsets"][1] == {"partition": 1, "offset": 0, "error_code": None, "error": None}
        assert (reply.json["key_schema_id"], reply.json["value_schema_id"]) == (None, None)
        written = reply.json["offsets"][0]["partition"]
        read = await ask("GET", f"/api/v1/topics/plain/partitions/{written}/messages?format=text")
        assert b'{\\"b\\":1,  \\"a\\":7.50}' in read.body
        told = await produce(ask, "plain/partitions/1/", "binary", {"records": [{"value": "AP8="}]})
        assert told.json["offsets"] == [{"partition": 1, "offset": 1, "error_code": None, "error": None}]

    conversation(bootstrap, talk)


def test_json_that_begins_with_records_is_binary_as_in_rest_proxy(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "untyped")
        json_type = {"content-type": "application/json"}
        told = await ask("POST", "/topics/untyped", ' { "records": [{"value": "AP8="}]}', json_type)
        assert told.json["offsets"] == [{"partition": 0, "offset": 0, "error_code": None, "error": None}]
        assert await values(ask, "untyped") == ["AP8="]
        assert refusal(await ask("POST", "/topics/untyped", '{"records": [{"value": 1}]}', json_type)) == (422, 422)
        assert (await ask("POST", "/api/v1/topics/untyped/messages", '{"records": []}', json_type)).status == 400

    conversation(bootstrap, talk)


@pytest.mark.parametrize(
    ("form", "schema", "good", "bad"),
    [
        ("avro", AVRO, {"total": 3}, {"total": "three"}),
        ("jsonschema", JSON_SCHEMA, {"total": 3}, {"total": "three"}),
        ("protobuf", PROTOBUF, {"total": "3"}, {"totals": 3}),
    ],
)
def test_records_with_a_schema_are_framed_and_held_to_it(
    bootstrap: str, form: str, schema: str, good: Any, bad: Any
) -> None:
    async def talk(ask: Asker) -> None:
        topic = f"framed-{form}"
        await make(ask, topic)
        first = await produce(ask, topic, form, {"value_schema": schema, "records": [{"value": good}, {"value": None}]})
        assert first.status == 200, first.body
        schema_id = first.json["value_schema_id"]
        second = await produce(ask, topic, form, {"value_schema_id": str(schema_id), "records": [{"value": good}]})
        assert second.json["value_schema_id"] == schema_id
        one, none, other = await values(ask, topic)
        assert one == other
        assert none is None
        kind = {"avro": "AVRO", "jsonschema": "JSON", "protobuf": "PROTOBUF"}[form]
        registered = (await ask("GET", f"/subjects/{topic}-value/versions/latest")).json
        assert (registered["id"], registered.get("schemaType", "AVRO")) == (schema_id, kind)
        refused = await produce(ask, topic, form, {"value_schema_id": schema_id, "records": [{"value": bad}]})
        assert refusal(refused) == (422, 42203)
        assert "record 0" in refused.json["message"]
        assert len(await values(ask, topic)) == 3

    conversation(bootstrap, talk, [mount_registry])


def test_json_of_a_schema_is_kept_as_it_was_written(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "exact-schema")
        raw = '{"total":  7.50000000000000000000000000001}'
        body = json.dumps({"value_schema": JSON_SCHEMA})[:-1] + f', "records": [{{"value": {raw}}}]}}'
        schema_id = (await produce(ask, "exact-schema", "jsonschema", body)).json["value_schema_id"]
        (value,) = await values(ask, "exact-schema")
        assert value == b64encode(b"\0" + schema_id.to_bytes(4, "big") + raw.encode()).decode()

    conversation(bootstrap, talk, [mount_registry])


def test_schemas_that_cannot_be_used_have_confluents_numbers(bootstrap: str) -> None:
    record = [{"value": {"total": 1}}]
    cases: list[tuple[str, Any, tuple[int, int]]] = [
        ("avro", {"records": record}, (422, 42202)),
        ("avro", {"records": [{"key": 1}]}, (422, 42201)),
        ("avro", {"value_schema": "{", "records": record}, (422, 42205)),
        ("avro", {"value_schema": OTHER_AVRO, "records": [{"value": {"count": "1"}}]}, (408, 40801)),
        ("avro", {"value_schema_id": 99999, "records": record}, (422, 42207)),
    ]

    async def talk(ask: Asker) -> None:
        await make(ask, "schemas")
        await produce(ask, "schemas", "avro", {"value_schema": AVRO, "records": record})
        for form, body, expected in cases:
            assert refusal(await produce(ask, "schemas", form, body)) == expected, body
        elsewhere = {"schema": '"string"'}
        other = (await ask("POST", "/subjects/another-value/versions", elsewhere)).json["id"]
        foreign = await produce(ask, "schemas", "avro", {"value_schema_id": other, "records": [{"value": "x"}]})
        assert refusal(foreign) == (422, 42207)

    conversation(bootstrap, talk, [mount_registry])


def test_without_a_registry_formats_with_schemas_say_so(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "unregistered")
        reply = await produce(ask, "unregistered", "avro", {"value_schema": AVRO, "records": [{"value": {"total": 1}}]})
        assert refusal(reply) == (422, 42207)
        assert "no schema registry" in reply.json["message"]

    conversation(bootstrap, talk)


@pytest.mark.parametrize(
    ("method", "target", "content_type", "body", "expected"),
    [
        ("POST", "/topics/nowhere", media("json"), '{"records":[{"value":1}]}', (404, 40401)),
        ("POST", "/topics/bad/partitions/7", media("json"), '{"records":[{"value":1}]}', (404, 40402)),
        ("POST", "/topics/bad/partitions/x", media("json"), '{"records":[{"value":1}]}', (404, 404)),
        ("POST", "/topics/bad/partitions/0", media("json"), '{"records":[{"value":1,"partition":0}]}', (422, 422)),
        ("POST", "/topics/bad", media("json"), '{"records":[]}', (422, 422)),
        ("POST", "/topics/bad", media("json"), '{"foo":"bar"}', (422, 422)),
        ("POST", "/topics/bad", media("json"), '{"records":[{"valur":1}]}', (422, 422)),
        ("POST", "/topics/bad", media("json"), '{"records":', (400, 400)),
        ("POST", "/topics/bad", media("binary"), '{"records":[{"value":"not base64"}]}', (422, 422)),
        ("POST", "/topics/bad", media("binary"), '{"records":[{"value":{"a":1}}]}', (422, 422)),
        ("POST", "/topics/bad", "application/vnd.kafka.thrift.v2+json", "{}", (415, 415)),
        ("POST", "/topics/bad", "application/vnd.kafka.json.v3+json", "{}", (415, 415)),
        ("POST", "/topics/bad/partitions/0", "text/xml", "<a/>", (415, 415)),
        ("GET", "/topics/nowhere", "", None, (404, 40401)),
        ("GET", "/topics/nowhere/partitions", "", None, (404, 40401)),
        ("GET", "/topics/bad/partitions/9", "", None, (404, 40402)),
        ("GET", "/topics/bad/partitions/9/offsets", "", None, (404, 40402)),
        ("GET", "/topics/bad/partitions/foo/offsets", "", None, (404, 404)),
    ],
)
def test_bad_input_has_confluents_numbers(
    bootstrap: str, method: str, target: str, content_type: str, body: str | None, expected: tuple[int, int]
) -> None:
    async def talk(ask: Asker) -> None:
        await ask("POST", "/api/v1/topics", {"name": "bad"})
        assert refusal(await ask(method, target, body, {"content-type": content_type})) == expected

    conversation(bootstrap, talk)


def test_topics_partitions_and_brokers_are_described(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "described", 2)
        await produce(ask, "described/partitions/1", "json", {"records": [{"value": 1}, {"value": 2}]})
        assert "described" in (await ask("GET", "/topics/")).json
        (broker,) = (await ask("GET", "/brokers")).json["brokers"]
        replica = {"broker": broker, "leader": True, "in_sync": True}
        partitions = [{"partition": index, "leader": broker, "replicas": [replica]} for index in range(2)]
        topic = (await ask("GET", "/topics/described")).json
        assert topic["partitions"] == partitions
        assert topic["configs"]["cleanup.policy"] == "delete"
        assert (await ask("GET", "/topics/described/partitions")).json == partitions
        assert (await ask("GET", "/topics/described/partitions/1")).json == partitions[1]
        ends = (await ask("GET", "/topics/described/partitions/1/offsets")).json
        assert ends == {"beginning_offset": 0, "end_offset": 2}

    conversation(bootstrap, talk)


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", media()),
        ("*/*", media()),
        ("application/json", "application/json"),
        ("application/vnd.kafka.json.v2+json, application/json;q=0.5", media("json")),
        ("text/html, application/json;q=0.5, application/vnd.kafka.v2+json;q=0.9", media()),
        ("text/html", None),
        ("application/json;q=0", None),
        ("application/vnd.kafka.v3+json", None),
    ],
)
def test_the_type_of_an_answer_is_one_that_is_taken(bootstrap: str, accept: str, content_type: str | None) -> None:
    async def talk(ask: Asker) -> None:
        reply = await ask("GET", "/brokers", headers={"accept": accept})
        if content_type is None:
            assert refusal(reply) == (406, 406)
        else:
            assert (reply.status, reply.headers["content-type"]) == (200, content_type)

    conversation(bootstrap, talk)
