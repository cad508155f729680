"""The calls that this gateway was asked for, as they were asked for, and what must not go wrong silently."""

from base64 import b64encode
from typing import Any

import pytest

from tests.support.asgi import Asker, conversation
from tests.unit.gateway.test_streams import Line

OCTETS = {"Content-Type": "application/octet-stream"}


async def make(ask: Asker, name: str, partitions: int = 1) -> None:
    reply = await ask("POST", "/api/v1/topics", {"name": name, "partitions": partitions})
    assert reply.status == 201, reply.body


def test_the_three_calls_go_as_they_were_asked_for(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "orders")
        publish = "/api/v1/topics/orders/messages"
        headers = {**OCTETS, "X-Partition-Key": "alice", "X-Header-Source": "web", "X-Timestamp": "1700000000000"}
        for offset in range(3):
            told = await ask("POST", publish, b"\x00\xff", headers)
            assert told.json == {"topic": "orders", "partition": 0, "offset": offset, "timestamp": 1_700_000_000_000}
        read = "/api/v1/topics/orders/partitions/0/messages"
        page = (await ask("GET", f"{read}?offset=0&limit=2", headers={"X-Consumer-Group": "billing"})).json
        message = {"key": "alice", "value": "AP8=", "timestamp": 1_700_000_000_000, "headers": {"source": "web"}}
        assert page["messages"] == [{"offset": 0, **message}, {"offset": 1, **message}]
        assert page["next_offset"] == 2
        commit = {"topic": "orders", "partition": 0, "offset": page["next_offset"]}
        committed = await ask("POST", "/api/v1/consumer-groups/billing/offsets", commit)
        assert (committed.status, committed.json) == (200, {"committed": True})
        rest = (await ask("GET", read, headers={"X-Consumer-Group": "billing"})).json
        assert [each["offset"] for each in rest["messages"]] == [2]
        other = (await ask("GET", read, headers={"X-Consumer-Group": "another"})).json
        assert len(other["messages"]) == 3

    conversation(bootstrap, talk)


def test_keys_and_headers_that_are_no_text_and_names_that_come_twice_are_all_told(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "odd")
        headers = {"a": ["1", {"base64": "/w=="}, None], "b": {"base64": "/w=="}, "c": None}
        given: dict[str, Any] = {"key": "/w==", "key_encoding": "base64", "value": 1, "headers": headers}
        assert (await ask("POST", "/topics/odd", given)).status == 200
        (read,) = (await ask("GET", "/api/v1/topics/odd/partitions/0/messages")).json["messages"]
        assert (read["key"], read["key_encoding"], read["headers"]) == ("/w==", "base64", headers)

    conversation(bootstrap, talk)


def test_numbers_are_taken_as_keys_and_settings(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        settings = {"retention.ms": 60000, "min.cleanable.dirty.ratio": 0.25, "preallocate": False}
        made = await ask("POST", "/api/v1/topics", {"name": "numbers", "configs": settings})
        assert made.status == 201, made.body
        configs = (await ask("GET", "/api/v1/topics/numbers/configs")).json["configs"]
        own = {each["name"]: each["value"] for each in configs if each["is_own"]}
        assert own == {"retention.ms": "60000", "min.cleanable.dirty.ratio": "0.25", "preallocate": "false"}
        body = '{"messages":[{"key":7.50,"value":1},{"key":12345678901234567890,"value":1}]}'
        await ask("POST", "/topics/numbers", body, {"Content-Type": "application/json"})
        messages = (await ask("GET", "/api/v1/topics/numbers/partitions/0/messages")).json["messages"]
        assert [each["key"] for each in messages] == ["7.50", "12345678901234567890"]

    conversation(bootstrap, talk)


@pytest.mark.parametrize(
    ("media_type", "body", "status"),
    [
        ("application/vnd.kafka.avro.v2+json", '{"records":[]}', 415),
        ("application/vnd.kafka.v2+json", "{}", 415),
        ("application/x-www-form-urlencoded", '{"records": [{"value": 1}]}', 415),
        ("application/x-www-form-urlencoded", ' { "messages":[{"value":1}]}', 415),
        ("application/x-www-form-urlencoded", '{"value": 1}', 415),
        ("application/x-www-form-urlencoded", '{"total": 3}', 200),
        ("application/x-www-form-urlencoded", "a=b", 200),
    ],
)
def test_a_body_that_is_hardly_meant_as_it_is_sent_is_refused(
    bootstrap: str, media_type: str, body: str, status: int
) -> None:
    async def talk(ask: Asker) -> None:
        await ask("POST", "/api/v1/topics", {"name": "hints"})
        reply = await ask("POST", "/api/v1/topics/hints/messages", body, {"Content-Type": media_type})
        assert reply.status == status, reply.body
        raw = await ask("POST", "/api/v1/topics/hints/messages?raw=true", body, {"Content-Type": media_type})
        assert raw.status == 200

    conversation(bootstrap, talk)


def test_the_same_mistake_has_the_same_code_on_read_and_write(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "same", 2)
        for name, partition, expected in (
            ("nowhere", "0", (404, "unknown-topic")),
            ("same", "2", (404, "unknown-partition")),
            ("same", "x", (400, "invalid-request")),
            ("a%2Fb", "0", (400, "invalid-request")),
        ):
            write = await ask("POST", f"/api/v1/topics/{name}/messages", b"x", {"X-Partition": partition})
            read = await ask("GET", f"/api/v1/topics/{name}/partitions/{partition}/messages")
            assert (write.status, write.json["code"]) == (read.status, read.json["code"]) == expected

    conversation(bootstrap, talk)


def test_all_partitions_are_read_in_pages(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "wide", 3)
        messages = [{"value": i, "partition": i % 3, "timestamp": 1000 + i} for i in range(30)]
        await ask("POST", "/topics/wide", {"messages": messages})
        found: list[dict[str, Any]] = []
        cursor = ""
        while len(found) < 30:
            page = (await ask("GET", f"/api/v1/topics/wide/messages?format=json&limit=7&wait_ms=1000{cursor}")).json
            assert len(page["messages"]) <= 7
            found += page["messages"]
            cursor = f"&cursor={page['next']}"
        assert sorted(each["value"] for each in found) == list(range(30))
        for partition in range(3):
            values = [each["value"] for each in found if each["partition"] == partition]
            assert values == sorted(values)
        assert (await ask("GET", f"/api/v1/topics/wide/messages?limit=7{cursor}")).json["messages"] == []
        late = (await ask("GET", "/api/v1/topics/wide/messages?from=latest")).json
        assert (late["messages"], late["next"]) == ([], "0:10,1:10,2:10")
        assert (await ask("GET", "/api/v1/topics/wide/messages?cursor=x")).status == 400

    conversation(bootstrap, talk)


def test_lists_come_in_pages(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        for index in range(5):
            await make(ask, f"paged-{index}")
        found: list[str] = []
        target = "/api/v1/topics?limit=2"
        while True:
            page = (await ask("GET", target)).json
            found += [each["name"] for each in page["topics"]]
            if "next" not in page:
                break
            assert len(page["topics"]) == 2
            target = f"/api/v1/topics?limit=2&cursor={page['next']}"
        assert [name for name in found if name.startswith("paged-")] == [f"paged-{index}" for index in range(5)]
        assert found == sorted(set(found))
        assert (await ask("GET", "/api/v1/topics?cursor=%21")).status == 400
        assert (await ask("GET", "/api/v1/consumer-groups?limit=1")).status == 200

    conversation(bootstrap, talk)


def test_ten_megabytes_are_read_as_a_member_and_over_all_partitions(bootstrap: str) -> None:
    value = bytes(10 << 20)

    async def talk(ask: Asker) -> None:
        await make(ask, "heavy")
        assert (await ask("POST", "/topics/heavy", value, OCTETS)).status == 200
        (read,) = (await ask("GET", "/api/v1/topics/heavy/messages?wait_ms=5000")).json["messages"]
        assert read["value"] == b64encode(value).decode()

    conversation(bootstrap, talk)


def test_a_websocket_is_refused_with_the_problem(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        line = Line(ask, "/api/v1/topics/nowhere/stream", extensions={"websocket.http.response": {}})
        start, body = await line.next(), await line.next()
        assert (start["type"], start["status"]) == ("websocket.http.response.start", 404)
        assert b'"code":"unknown-topic"' in body["body"]
        await line.task
        plain = Line(ask, "/api/v1/topics/nowhere/stream")
        closed = await plain.next()
        assert (closed["type"], "unknown topic" in closed["reason"]) == ("websocket.close", True)
        await plain.task

    conversation(bootstrap, talk)
