"""REST Proxy's v3 against a broker: records in a stream of JSON documents."""

import gzip
import json
import socket
from base64 import b64encode
from typing import Any
from urllib.parse import urlsplit

import pytest

from headrace.gateway.rest_proxy.v3.documents import DocumentSplitter, NoDocumentError
from headrace.gateway.schemas import mount_registry
from headrace.testing.gateway import Gateway
from tests.support.asgi import Asker, Reply, conversation
from tests.unit.gateway.test_rest_proxy_v2 import AVRO, JSON_SCHEMA, OTHER_AVRO, PROTOBUF, make
from tests.unit.gateway.test_rest_proxy_v3 import cluster, refusal

JSON = {"content-type": "application/json"}


async def produce(ask: Asker, topic: str, *records: Any, headers: dict[str, str] | None = None) -> Reply:
    path = f"{await cluster(ask)}/topics/{topic}/records"
    body = "".join(each if isinstance(each, str) else json.dumps(each) for each in records)
    return await ask("POST", path, body, {**JSON, **(headers or {})})


def reports(reply: Reply) -> list[Any]:
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"] == "application/json"
    return [json.loads(line) for line in reply.body.splitlines()]


async def read(ask: Asker, topic: str, form: str = "base64") -> list[Any]:
    found: list[Any] = (await ask("GET", f"/api/v1/topics/{topic}/partitions/0/messages?format={form}")).json[
        "messages"
    ]
    return found


def test_each_document_is_a_record_with_a_report_in_order(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "v3-stream")
        first = {
            "partition_id": 0,
            "key": {"type": "STRING", "data": "alice"},
            "value": {"type": "JSON", "data": {"total": 3}},
            "headers": [{"name": "source", "value": "d2Vi"}, {"name": "none"}],
            "timestamp": "2026-01-31T12:00:00Z",
        }
        exact = '{"value": {"type": "JSON", "data": {"b":1,  "a":7.50}}}'
        reply = await produce(
            ask, "v3-stream", first, exact, "\n \n", {"value": {"type": "BINARY", "data": "AP8="}}, {}
        )
        told = reports(reply)
        assert told[0] == {
            "error_code": 200,
            "cluster_id": (await cluster(ask)).rpartition("/")[2],
            "topic_name": "v3-stream",
            "partition_id": 0,
            "offset": 0,
            "timestamp": "2026-01-31T12:00:00.000Z",
            "key": {"type": "STRING", "size": 5},
            "value": {"type": "JSON", "size": 12},
        }
        assert [each["offset"] for each in told] == [0, 1, 2, 3]
        one, two, three, four = await read(ask, "v3-stream", "auto")
        assert (one["key"], one["value"], one["headers"]) == ("alice", {"total": 3}, {"source": "web", "none": None})
        assert (two["value"], three["value"], four["value"]) == ({"b": 1, "a": 7.5}, "AP8=", None)
        shown = await ask("GET", "/api/v1/topics/v3-stream/partitions/0/messages?format=text&offset=1&limit=1")
        assert shown.json["messages"][0]["value"] == '{"b":1,  "a":7.50}'

    conversation(bootstrap, talk)


def test_a_record_that_fails_leaves_those_around_it(bootstrap: str) -> None:
    value = {"type": "JSON", "data": 1}
    bad: list[tuple[Any, int]] = [
        ({"value": {"type": "BINARY", "data": "no base64"}}, 422),
        ({"value": {"type": "STRING", "data": 1}}, 422),
        ({"value": {"type": "THRIFT", "data": 1}}, 400),
        ({"values": value}, 400),
        ({"partition_id": 9, "value": value}, 40403),
        ({"headers": [{"name": "a", "value": "!"}]}, 400),
        ({"timestamp": "soon", "value": value}, 400),
        ({"value": {"schema": AVRO, "data": 1}}, 400),
        ({"value": {"type": "JSON", "schema_id": 1, "data": 1}}, 400),
        ({"value": {"type": "AVRO", "schema_id": 99999, "data": 1}}, 42207),
        ('{"value": {"type": "JSON", "data": nul}}', 400),
        ('{"a"]', 400),
    ]

    async def talk(ask: Asker) -> None:
        await make(ask, "v3-bad-records")
        mixed = [each for record, _ in bad for each in (record, {"value": value})]
        told = reports(await produce(ask, "v3-bad-records", *mixed))
        assert [each["error_code"] for each in told[::2]] == [number for _, number in bad]
        assert [each["offset"] for each in told[1::2]] == list(range(len(bad)))

    conversation(bootstrap, talk, [mount_registry])


def test_what_cannot_be_told_apart_ends_the_stream(bootstrap: str) -> None:
    good = {"value": {"type": "JSON", "data": 1}}

    async def talk(ask: Asker) -> None:
        await make(ask, "v3-ends")
        for tail in ("[1]", "1", "]", '{"value"', "\x00"):
            told = reports(await produce(ask, "v3-ends", good, tail, good if tail != '{"value"' else ""))
            assert [each["error_code"] for each in told] == [200, 400], tail
            assert refusal(await produce(ask, "v3-ends", tail)) == (400, 400)
        assert refusal(await produce(ask, "v3-ends", " \n")) == (422, 422)
        assert refusal(await produce(ask, "nowhere", good)) == (404, 40403)
        assert refusal(await produce(ask, "v3-ends", "<a/>", headers={"content-type": "text/xml"})) == (415, 415)

    conversation(bootstrap, talk)


@pytest.mark.parametrize(
    ("kind", "schema", "value", "shown"),
    [
        ("AVRO", AVRO, {"total": 3}, "Order"),
        ("JSONSCHEMA", JSON_SCHEMA[:-1] + ', "title": "Order"}', {"total": 3}, "Order"),
        ("PROTOBUF", PROTOBUF, {"total": "3"}, "Order"),
    ],
)
def test_records_are_written_by_schemas_however_these_are_named(
    bootstrap: str, kind: str, schema: str, value: Any, shown: str
) -> None:
    async def talk(ask: Asker) -> None:
        topic = f"v3-{kind.lower()}"
        await make(ask, topic)
        data = {"type": kind, "data": value}
        (first,) = reports(await produce(ask, topic, {"value": {**data, "schema": schema}}))
        assert first["error_code"] == 200, first
        schema_id = first["value"]["schema_id"]
        assert (first["value"]["subject"], first["value"]["schema_version"]) == (f"{topic}-value", 1)
        named = {"subject_name_strategy": "TOPIC_RECORD_NAME", "schema": schema}
        told = reports(
            await produce(
                ask,
                topic,
                {"value": {**data, "schema_id": schema_id}},
                {"value": {"subject": f"{topic}-value", "schema_version": 1, "data": value}},
                {"value": {"subject": f"{topic}-value", "schema_version": "latest", "data": value}},
                {"value": data},
                {"value": {**data, **named}},
            )
        )
        assert [each["error_code"] for each in told] == [200] * 5, told
        assert told[4]["value"]["subject"] == f"{topic}-{shown}"
        assert len({each["value"] for each in (await read(ask, topic))[:5]}) == 1
        (refused,) = reports(await produce(ask, topic, {"value": {**data, "schema_id": schema_id, "data": []}}))
        assert refused["error_code"] == 42203
        (incompatible,) = reports(
            await produce(ask, topic, {"value": {"type": "AVRO", "schema": OTHER_AVRO, "data": {}}})
        )
        assert incompatible["error_code"] == 40801

    conversation(bootstrap, talk, [mount_registry])


def test_a_batch_tells_what_became_of_each_entry(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "v3-batch")
        path = f"{await cluster(ask)}/topics/v3-batch/records:batch"
        value = {"type": "STRING", "data": "x"}
        entries = [
            {"id": "a", "value": value},
            {"id": "b", "value": {"type": "BINARY", "data": "!"}},
            {"id": "c", "value": value},
        ]
        reply = await ask("POST", path, {"entries": entries})
        assert reply.status == 207
        assert [(each["id"], each["offset"]) for each in reply.json["successes"]] == [("a", 0), ("c", 1)]
        assert [(each["id"], each["error_code"]) for each in reply.json["failures"]] == [("b", 422)]
        assert refusal(await ask("POST", path, {"entries": [{"id": "a"}, {"id": "a"}]})) == (422, 42208)

    conversation(bootstrap, talk)


def test_a_gzipped_stream_is_unpacked_and_what_is_none_refused(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "v3-gzip")
        path = f"{await cluster(ask)}/topics/v3-gzip/records"
        packed = gzip.compress(b'{"value": {"type": "JSON", "data": 1}}' * 3)
        headers = {**JSON, "content-encoding": "gzip"}
        assert [each["offset"] for each in reports(await ask("POST", path, packed, headers))] == [0, 1, 2]
        assert (await ask("POST", path, b"no gzip", headers)).status == 400
        cut = reports(await ask("POST", path, packed[:-4], headers))
        assert [each["error_code"] for each in cut] == [200, 200, 200, 400]
        more = reports(await ask("POST", path, packed + b"more", headers))
        assert more[-1]["error_code"] == 400
        bomb = gzip.compress(b'{"value": "' + b" " * (20 << 20))
        assert refusal(await ask("POST", path, bomb, headers)) == (400, 400)

    conversation(bootstrap, talk)


def test_reports_come_while_the_stream_goes_on(bootstrap: str) -> None:
    with Gateway(bootstrap) as gateway:
        place = urlsplit(gateway.url)
        with socket.create_connection((place.hostname, place.port), timeout=30) as link, link.makefile("rb") as answers:

            def send(data: bytes) -> None:
                link.sendall(b"%x\r\n%s\r\n" % (len(data), data))

            def chunk() -> bytes:
                size = int(answers.readline(), 16)
                return answers.read(size + 2)[:-2]

            link.sendall(b"GET /v3/clusters HTTP/1.1\r\nHost: localhost\r\n\r\n")
            length = 0
            while (line := answers.readline()) != b"\r\n":
                length = int(line.split(b":")[1]) if line.startswith(b"content-length") else length
            (found,) = json.loads(answers.read(length))["data"]
            topic = json.dumps({"topic_name": "v3-live"}).encode()
            path = f"/v3/clusters/{found['cluster_id']}/topics".encode()
            head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            link.sendall(head % path + b"Content-Length: %d\r\n\r\n" % len(topic) + topic)
            while (line := answers.readline()) != b"\r\n":
                length = int(line.split(b":")[1]) if line.startswith(b"content-length") else length
            answers.read(length)
            link.sendall(head % (path + b"/v3-live/records") + b"Transfer-Encoding: chunked\r\n\r\n")
            record = b'{"value": {"type": "STRING", "data": "live"}}'
            send(record[:10])
            send(record[10:])
            assert answers.readline().startswith(b"HTTP/1.1 200")
            while answers.readline() != b"\r\n":
                pass
            assert json.loads(chunk())["offset"] == 0
            send(record * 2)
            got = chunk()
            while got.count(b"\n") < 2:
                got += chunk()
            assert [json.loads(each)["offset"] for each in got.splitlines()] == [1, 2]
            link.sendall(b"0\r\n\r\n")
            assert chunk() == b""


# Documents


DOCUMENTS = [
    {},
    {"a": 1},
    {"text": '} ] { [ " \\ \\"', "list": [[], {"b": [{}]}]},
    {"\\": "\\\\", '"': '"', "ü": "ü\u0000"},
    {"long": "x" * 100},
]


@pytest.mark.parametrize("space", ["", " ", "\r\n\t"])
@pytest.mark.parametrize("size", range(1, 40))
def test_documents_are_told_apart_however_the_stream_is_cut(space: str, size: int) -> None:
    texts = [json.dumps(each, ensure_ascii=False).encode() for each in DOCUMENTS]
    stream = space.encode().join([b"", *texts, b""])
    splitter = DocumentSplitter(1 << 20)
    found = [each for start in range(0, len(stream), size) for each in splitter.feed(stream[start : start + size])]
    assert found == texts
    assert splitter.held == 0


def test_a_document_is_bounded() -> None:
    splitter = DocumentSplitter(100)
    with pytest.raises(NoDocumentError):
        list(splitter.feed(b'{"a": "' + b64encode(bytes(100))))
