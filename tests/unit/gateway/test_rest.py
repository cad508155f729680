"""REST against a broker, without a server in between."""

import gzip
import json
from base64 import b64encode
from random import Random
from typing import Any

import pytest

from headrace.testing import Broker
from tests.support.asgi import Asker, conversation
from tests.support.unreadable import END, READABLE, planted

MESSAGES = "/api/v1/topics/{}/messages"
PARTITION = "/api/v1/topics/{}/partitions/{}/messages?format=auto"


async def make(ask: Asker, name: str, partitions: int = 1) -> None:
    reply = await ask("POST", "/api/v1/topics", {"name": name, "partitions": partitions})
    assert reply.status == 201, reply.body


def test_a_raw_body_is_published_with_its_key_time_and_headers(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "raw", 3)
        headers = {"X-Partition-Key": "alice", "X-Header-Source": "web", "X-Timestamp": "1700000000000"}
        told = (await ask("POST", MESSAGES.format("raw"), b'{"total": 3}', headers)).json
        assert told == {"topic": "raw", "partition": 0, "offset": 0, "timestamp": 1700000000000}
        (record,) = (await ask("GET", PARTITION.format("raw", told["partition"]))).json["messages"]
        assert record["key"] == "alice"
        assert record["value"] == {"total": 3}
        assert record["headers"] == {"source": "web"}

    conversation(bootstrap, talk)


def test_json_values_are_kept_as_they_were_written(bootstrap: str) -> None:
    exact = '{"b":1,  "a":12345678901234567890.12345678901234567890e400, "c":' + "9" * 5000 + "}"

    async def talk(ask: Asker) -> None:
        await make(ask, "exact")
        body = f'{{"messages":[{{"key":"k","value":{exact}}}, {{"value":null}} ]}}'
        reply = await ask("POST", MESSAGES.format("exact"), body, {"content-type": "application/json"})
        assert reply.status == 200, reply.body
        read = await ask("GET", PARTITION.format("exact", 0))
        assert exact.encode() in read.body
        shown = await ask("GET", PARTITION.format("exact", 0) + "&format=text&limit=1")
        assert shown.json["messages"][0]["value"] == exact
        assert shown.json["next_offset"] == 1

    conversation(bootstrap, talk)


def test_what_is_read_can_be_published_again(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "again")
        messages = [
            {"key": "k", "value": {"a": [1, None, "x"]}, "headers": {"h": [{"base64": "/w=="}, "twice", None]}},
            {
                "key": "/w==",
                "key_encoding": "base64",
                "value": "AP8=",
                "value_encoding": "base64",
                "headers": {"h": "v", "n": None},
            },
            {"value": "plain", "value_encoding": "text"},
        ]
        told = await ask("POST", MESSAGES.format("again"), {"messages": messages})
        assert [each["offset"] for each in told.json["messages"]] == [0, 1, 2]
        first = (await ask("GET", PARTITION.format("again", 0))).json["messages"]
        strip = ("offset",)
        again = [{name: value for name, value in each.items() if name not in strip} for each in first]
        await ask("POST", MESSAGES.format("again"), {"messages": again})
        second = (await ask("GET", PARTITION.format("again", 0) + "&offset=3")).json["messages"]
        assert [{**each, "offset": each["offset"] - 3} for each in second] == first

    conversation(bootstrap, talk)


def test_an_idempotency_key_writes_once_and_refuses_another_body(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "once", 4)
        key = {"Idempotency-Key": "order-17"}
        offsets = {(await ask("POST", MESSAGES.format("once"), "body", key)).json["offset"] for _ in range(3)}
        assert offsets == {0}
        other = await ask("POST", MESSAGES.format("once"), "another", key)
        assert (other.status, other.json["code"]) == (422, "idempotency-key-reused")
        many = {"messages": [{"key": f"k{i}", "value": i} for i in range(20)]}
        first = await ask("POST", MESSAGES.format("once"), many, {"Idempotency-Key": "many"})
        second = await ask("POST", MESSAGES.format("once"), many, {"Idempotency-Key": "many"})
        places = [[(r["partition"], r["offset"]) for r in reply.json["messages"]] for reply in (first, second)]
        assert places[0] == places[1]
        described = (await ask("GET", "/api/v1/topics/once")).json["partitions"]
        assert sum(each["end_offset"] for each in described) == 21

    conversation(bootstrap, talk)


def test_two_gateways_agree_on_an_idempotency_key(bootstrap: str) -> None:
    offsets: list[tuple[int, int]] = []

    async def talk(ask: Asker) -> None:
        if not offsets:
            await make(ask, "agree", 8)
        reply = await ask("POST", MESSAGES.format("agree"), "body", {"Idempotency-Key": "k"})
        offsets.append((reply.json["partition"], reply.json["offset"]))

    conversation(bootstrap, talk)
    conversation(bootstrap, talk)
    assert offsets[0] == offsets[1]


def test_a_message_of_10_mb_goes_through_as_it_is_and_in_base64(bootstrap: str) -> None:
    value = Random(10).randbytes(10 << 20)
    text = b64encode(value).decode()

    async def talk(ask: Asker) -> None:
        await make(ask, "large")
        raw = await ask("POST", MESSAGES.format("large"), value, {"X-Partition-Key": "k"})
        described = await ask("POST", MESSAGES.format("large"), {"value": text, "value_encoding": "base64"})
        assert [raw.json.get("offset"), described.json.get("offset")] == [0, 1]
        for offset in range(2):
            (read,) = (await ask("GET", f"{PARTITION.format('large', 0)}&offset={offset}&limit=1")).json["messages"]
            assert read["value"] == text

    conversation(bootstrap, talk)


def test_reading_by_time_and_from_the_ends(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "times")
        for second in range(3):
            headers = {"X-Timestamp": str(1_700_000_000_000 + second * 1000)}
            await ask("POST", MESSAGES.format("times"), str(second), headers)
        path = PARTITION.format("times", 0)
        for query, expected in {
            "&timestamp=1700000001000": [1, 2],
            "&timestamp=2023-11-14T22:13:22Z": [2],
            "&timestamp=1900000000000": [],
            "&offset=latest": [],
            "&offset=earliest&limit=2": [0, 1],
        }.items():
            found = (await ask("GET", path + query)).json
            assert [each["offset"] for each in found["messages"]] == expected, query
        beyond = await ask("GET", path + "&offset=9")
        assert (beyond.status, beyond.json["log_start_offset"], beyond.json["high_watermark"]) == (416, 0, 3)

    conversation(bootstrap, talk)


def test_a_long_poll_ends_with_the_first_record(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        import asyncio

        await make(ask, "poll")
        waiting = asyncio.ensure_future(ask("GET", PARTITION.format("poll", 0) + "&wait_ms=30000"))
        await asyncio.sleep(0)
        await ask("POST", MESSAGES.format("poll"), "news")
        assert [each["value"] for each in (await waiting).json["messages"]] == ["news"]

    conversation(bootstrap, talk)


def test_groups_commit_show_lag_move_and_go(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "lagging", 2)
        await ask("POST", MESSAGES.format("lagging"), {"messages": [{"value": i, "partition": 0} for i in range(5)]})
        path = "/api/v1/consumer-groups/team%2Fone"
        entry = {"topic": "lagging", "partition": 0, "offset": 2, "metadata": "note"}
        assert (await ask("POST", f"{path}/offsets", {"offsets": [entry]})).json == {"committed": True}
        shown = (await ask("GET", f"{path}/offsets")).json
        assert (shown["group"], shown["lag"]) == ("team/one", 3)
        assert shown["offsets"][0]["metadata"] == "note"
        moved = await ask("POST", f"{path}/reset", {"topic": "lagging", "to": "shift", "shift": -1, "partitions": [0]})
        assert moved.json["offsets"] == [{"topic": "lagging", "partition": 0, "offset": 1}]
        assert (await ask("DELETE", path)).status == 204
        assert (await ask("GET", path)).status == 404
        unknown = {"offsets": [{"topic": "nowhere", "partition": 0, "offset": 2}]}
        assert (await ask("POST", f"{path}/offsets", unknown)).status == 404

    conversation(bootstrap, talk)


def test_topics_are_made_grown_configured_and_removed(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "mine")
        assert (await ask("POST", "/api/v1/topics", {"name": "mine"})).status == 409
        grown = await ask("PATCH", "/api/v1/topics/mine", {"partitions": 3})
        assert len(grown.json["partitions"]) == 3
        assert (await ask("PATCH", "/api/v1/topics/mine/configs", {"retention.ms": "60000"})).status == 204
        configs = (await ask("GET", "/api/v1/topics/mine/configs")).json["configs"]
        assert [(c["name"], c["value"]) for c in configs if c["is_own"]] == [("retention.ms", "60000")]
        assert (await ask("PATCH", "/api/v1/topics/mine/configs", {"no.such": "1"})).status == 400
        assert (await ask("DELETE", "/api/v1/topics/mine")).status == 204
        assert (await ask("GET", "/api/v1/topics/mine")).status == 404
        dry = {"name": "never", "validate_only": True}
        assert (await ask("POST", "/api/v1/topics", dry)).json == {"valid": True}
        assert (await ask("GET", "/api/v1/topics/never")).status == 404

    conversation(bootstrap, talk)


def test_gzip_goes_both_ways_and_bombs_are_refused(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "packed")
        body = gzip.compress(json.dumps({"messages": [{"value": "x" * 5000}]}).encode())
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        assert (await ask("POST", MESSAGES.format("packed"), body, headers)).status == 200
        read = await ask("GET", PARTITION.format("packed", 0), headers={"accept-encoding": "gzip"})
        assert read.headers["content-encoding"] == "gzip"
        assert json.loads(gzip.decompress(read.body))["messages"][0]["value"] == "x" * 5000
        bomb = gzip.compress(bytes(64 << 20))
        assert (await ask("POST", MESSAGES.format("packed"), bomb, headers)).status == 413
        cut = await ask("POST", MESSAGES.format("packed"), body[:-9], headers)
        assert (cut.status, "cut short" in cut.json["detail"]) == (400, True)

    conversation(bootstrap, talk)


@pytest.mark.parametrize(
    ("method", "target", "body", "status", "says"),
    [
        ("POST", "/topics/..", "x", 400, "topic's name"),
        ("POST", "/topics/a%0d%0ab", "x", 400, "topic's name"),
        ("POST", "/topics/a%2Fb", "x", 400, "topic's name"),
        ("POST", "/topics/" + "a" * 250, "x", 400, "topic's name"),
        ("POST", "/topics/nowhere", "x", 404, "unknown topic"),
        ("GET", "/api/v1/topics/t/partitions/x/messages", None, 400, "whole number"),
        ("GET", "/api/v1/topics/t/partitions/0/messages?ofset=1", None, 400, "no parameter 'ofset'"),
        ("GET", "/api/v1/topics/t/partitions/0/messages?limit=0", None, 400, "limit must be"),
        ("GET", "/api/v1/topics/t/partitions/0/messages?offset=-1", None, 400, "an offset"),
        ("PUT", "/api/v1/topics", None, 405, "GET, POST is"),
        ("GET", "/nowhere", None, 404, "/docs"),
        ("POST", "/api/v1/topics", b"\xff", 400, "JSON"),
        ("POST", "/api/v1/topics", b"[" * 100_000, 400, "JSON"),
        ("POST", "/api/v1/topics", b'{"name": NaN}', 400, "JSON"),
        ("POST", "/api/v1/topics", {"name": "x", "color": "red"}, 400, "no member 'color'"),
    ],
)
def test_bad_input_gets_a_problem_that_says_why(
    bootstrap: str, method: str, target: str, body: str, status: int, says: str
) -> None:
    async def talk(ask: Asker) -> None:
        reply = await ask(method, target, body)
        assert reply.status == status, reply.body
        assert reply.headers["content-type"] == "application/problem+json"
        assert says in reply.json["detail"]
        assert reply.json["status"] == status

    conversation(bootstrap, talk)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"{}",
        b'{"messages":[]}',
        b'{"messages":{}}',
        b'{"messages":[1]}',
        b'{"messages":[{"value":}]}',
        b'{"value":1} x',
        b'{"value":1,"value_encoding":"text"}',
        b'{"value":"!","value_encoding":"base64"}',
        b'{"key":[5],"value":1}',
        b'{"key":true,"value":1}',
        b'{"key":5,"key_encoding":"base64"}',
        b'{"messages":[{"value":1}],"value":2}',
        b'{"value":1,"partition":-1}',
        b'{"value":1,"headers":{"a":1}}',
        b'{"value":' + b"[" * 100_000,
        b'{"value":Infinity}',
        b'{"value":"\\ud800","value_encoding":"text"}',
        b'{"value":"\xff"}',
        b'"text"',
    ],
)
def test_a_body_that_describes_no_record_is_refused(bootstrap: str, body: bytes) -> None:
    async def talk(ask: Asker) -> None:
        reply = await ask("POST", "/topics/nowhere", body, {"content-type": "application/json"})
        assert reply.status == 400, reply.body

    conversation(bootstrap, talk)


def test_confluents_own_types_are_taken_and_answered(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "confluent")
        json_type = {"content-type": "application/vnd.kafka.json.v2+json"}
        body = '{"records":[{"key":"k","value":{"a": 1}},{"value":null,"partition":0}]}'
        reply = await ask("POST", "/topics/confluent", body, json_type)
        assert [each["offset"] for each in reply.json["offsets"]] == [0, 1]
        assert reply.headers["content-type"] == "application/vnd.kafka.v2+json"
        binary = {"content-type": "application/vnd.kafka.binary.v2+json"}
        await ask("POST", "/topics/confluent", '{"records":[{"value":"AP8="}]}', binary)
        shown = (await ask("GET", PARTITION.format("confluent", 0))).json["messages"]
        assert [each["value"] for each in shown] == [{"a": 1}, None, "AP8="]

    conversation(bootstrap, talk)


def test_without_a_cluster_requests_say_so_and_probes_tell() -> None:
    async def talk(ask: Asker) -> None:
        assert (await ask("GET", "/healthz")).status == 200
        assert (await ask("GET", "/readyz")).status == 503
        reply = await ask("POST", "/topics/x", "y")
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")

    conversation("127.0.0.1:1", talk, patience=0.1)


async def join(ask: Asker, group: str, topic: str, **more: Any) -> str:
    wanted = {"topics": [topic], "auto_offset_reset": "earliest", **more}
    reply = await ask("POST", f"/api/v1/consumer-groups/{group}/members", wanted)
    assert reply.status == 201, reply.body
    return str(reply.json["base_uri"]).removeprefix("http://localhost")


def test_a_member_polls_commits_and_goes_and_the_next_goes_on(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "shared", 2)
        await ask("POST", MESSAGES.format("shared"), {"messages": [{"value": i, "partition": i % 2} for i in range(6)]})
        member = await join(ask, "readers", "shared")
        first = (await ask("GET", f"{member}/messages?format=auto&limit=4&wait_ms=10000")).json["messages"]
        assert len(first) == 4
        assert (await ask("POST", f"{member}/offsets")).status == 204
        second = (await ask("GET", f"{member}/messages?format=auto&wait_ms=10000")).json["messages"]
        assert len(second) == 2
        assert (await ask("DELETE", member)).status == 204
        assert (await ask("GET", f"{member}/messages")).status == 404
        other = await join(ask, "readers", "shared")
        again = (await ask("GET", f"{other}/messages?format=auto&wait_ms=10000")).json["messages"]
        assert {r["value"] for r in again} == {r["value"] for r in second}
        assert {r["value"] for r in [*first, *second]} == set(range(6))
        await ask("POST", f"{other}/positions", {"offsets": [{"topic": "shared", "partition": 1, "offset": 0}]})
        assert (await ask("GET", f"{other}/messages?format=auto&wait_ms=10000&limit=1")).json["messages"][0][
            "value"
        ] == 1

    conversation(bootstrap, talk)


@pytest.mark.slow
def test_two_members_share_a_topic_and_one_gone_leaves_it_to_the_other(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "halves", 2)
        one = await join(ask, "pair", "halves")
        two = await join(ask, "pair", "halves")
        shared: dict[str, int] = {}
        while sorted(shared.values()) != [1, 1]:
            for member in (one, two):
                await ask("GET", f"{member}/messages?wait_ms=500")
                shared[member] = len((await ask("GET", member)).json["assignment"])
        await ask("DELETE", one)
        while len((await ask("GET", two)).json["assignment"]) != 2:
            await ask("GET", f"{two}/messages?wait_ms=500")

    conversation(bootstrap, talk)


def test_reading_goes_on_behind_batches_that_nobody_can_read() -> None:
    async def talk(ask: Asker) -> None:
        page = (await ask("GET", PARTITION.format("unreadable", 0) + "&format=text")).json
        assert {each["offset"]: each["value"].encode() for each in page["messages"]} == READABLE
        assert page["next_offset"] == END
        page = (await ask("GET", PARTITION.format("unreadable", 0) + "&offset=4&max_bytes=1&limit=1")).json
        assert (page["messages"], page["next_offset"]) == ([], END - 1)

    with Broker() as broker:
        planted(broker, "unreadable")
        conversation(broker.bootstrap, talk)
