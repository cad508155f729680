"""REST Proxy's v2 against a broker: consumers, from their creation to their end."""

import asyncio
import json
from base64 import b64decode
from typing import Any

import pytest

from headrace.gateway import consumers
from headrace.gateway.schemas import mount_registry
from tests.support.asgi import Asker, Reply, conversation
from tests.unit.gateway.test_rest_proxy_v2 import AVRO, make, media, produce, refusal


async def created(ask: Asker, group: str, **settings: Any) -> str:
    """The path of a new consumer; dots in the names of settings are underscores here."""
    body = {name.replace("_", "."): value for name, value in settings.items()}
    reply = await post(ask, f"/consumers/{group}", {"auto.offset.reset": "earliest", **body})
    assert reply.status == 200, reply.body
    path = str(reply.json["base_uri"]).removeprefix("http://localhost")
    assert path == f"/consumers/{group}/instances/{reply.json['instance_id']}"
    return path


async def post(ask: Asker, path: str, body: Any) -> Reply:
    return await ask("POST", path, json.dumps(body), {"content-type": media()})


async def records(ask: Asker, consumer: str, form: str = "json", query: str = "timeout=5000") -> list[Any]:
    reply = await ask("GET", f"{consumer}/records?{query}", headers={"accept": media(form)})
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"] == media(form)
    found: list[Any] = reply.json
    return found


def at(topic: str, partition: int = 0, **more: Any) -> dict[str, Any]:
    return {"topic": topic, "partition": partition, **more}


def test_a_subscriber_reads_commits_and_goes_and_the_next_goes_on(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "subscribed")
        await produce(ask, "subscribed", "json", {"records": [{"key": "k", "value": {"n": n}} for n in range(3)]})
        one = await created(ask, "subscribers", format="json", auto_commit_enable="false")
        assert (await ask("GET", f"{one}/subscription")).json == {"topics": []}
        assert (await post(ask, f"{one}/subscription", {"topics": ["subscribed"]})).status == 204
        assert (await ask("GET", f"{one}/subscription")).json == {"topics": ["subscribed"]}
        found = await records(ask, one)
        assert [each["value"] for each in found] == [{"n": 0}, {"n": 1}, {"n": 2}]
        first = {name: found[0][name] for name in ("topic", "partition", "offset", "key")}
        assert first == {"topic": "subscribed", "partition": 0, "offset": 0, "key": "k"}
        assert (await ask("GET", f"{one}/assignments")).json == {"partitions": [at("subscribed")]}
        done = {"offsets": [at("subscribed", offset=1)]}
        assert (await post(ask, f"{one}/offsets", done)).status == 200
        asked = json.dumps({"partitions": [at("subscribed")]})
        told = await ask("GET", f"{one}/offsets", asked, {"content-type": media()})
        assert told.json == {"offsets": [at("subscribed", offset=2, metadata="")]}
        assert (await ask("DELETE", one)).status == 204
        assert refusal(await ask("GET", f"{one}/records")) == (404, 40403)
        two = await created(ask, "subscribers", format="json")
        await post(ask, f"{two}/subscription", {"topics": ["subscribed"]})
        assert [each["offset"] for each in await records(ask, two)] == [2]
        assert (await ask("POST", f"{two}/offsets")).status == 200
        told = await ask("GET", f"{two}/offsets", asked, {"content-type": media()})
        assert told.json["offsets"][0]["offset"] == 3

    conversation(bootstrap, talk)


def test_partitions_that_a_consumer_names_are_read_and_moved_in(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "assigned", 2)
        await produce(ask, "assigned/partitions/1", "binary", {"records": [{"value": "AAAA"}] * 4})
        one = await created(ask, "assigners")
        partitions = {"partitions": [at("assigned", 1)]}
        assert (await post(ask, f"{one}/assignments", partitions)).status == 204
        assert (await ask("GET", f"{one}/assignments")).json == partitions
        found = await records(ask, one, "binary", "timeout=5000&max_bytes=6")
        assert [each["offset"] for each in found] == [0, 1]
        assert b64decode(found[0]["value"]) == bytes(3)
        assert [each["offset"] for each in await records(ask, one, "binary", "max_bytes=1")] == [2]
        assert (await post(ask, f"{one}/positions", {"offsets": [at("assigned", 1, offset=1)]})).status == 204
        assert len(await records(ask, one, "binary")) == 3
        assert (await post(ask, f"{one}/positions/beginning", partitions)).status == 204
        assert len(await records(ask, one, "binary")) == 4
        assert (await post(ask, f"{one}/positions/end", partitions)).status == 204
        assert await records(ask, one, "binary", "timeout=50") == []
        times = {"timestamps": [at("assigned", 1, timestamp="2020-01-01T00:00:00Z")]}
        assert (await post(ask, f"{one}/positions", times)).status == 204
        assert len(await records(ask, one, "binary")) == 4
        elsewhere = {"offsets": [at("assigned", 0, offset=0)]}
        assert refusal(await post(ask, f"{one}/positions", elsewhere)) == (409, 40903)
        assert refusal(await post(ask, f"{one}/subscription", {"topics": ["assigned"]})) == (409, 40903)
        assert (await post(ask, f"{one}/assignments", {"partitions": []})).status == 204
        assert (await post(ask, f"{one}/subscription", {"topics": ["assigned"]})).status == 204
        assert refusal(await post(ask, f"{one}/assignments", partitions)) == (409, 40903)

    conversation(bootstrap, talk)


def test_a_pattern_takes_topics_that_come_later(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        one = await created(ask, "patterns", format="json", topic_metadata_refresh_interval_ms=100)
        assert (await post(ask, f"{one}/subscription", {"topic_pattern": "late-.*"})).status == 204
        assert (await ask("GET", f"{one}/subscription")).json == {"topics": []}
        await make(ask, "late-1")
        await produce(ask, "late-1", "json", {"records": [{"value": 1}]})
        await asyncio.sleep(0.1)
        assert [each["value"] for each in await records(ask, one)] == [1]
        assert (await ask("GET", f"{one}/subscription")).json == {"topics": ["late-1"]}
        assert (await ask("DELETE", f"{one}/subscription")).status == 204
        assert (await ask("GET", f"{one}/subscription")).json == {"topics": []}
        for pattern in ("(", "x" * 2000, "(a{50}){50}"):
            refused = await post(ask, f"{one}/subscription", {"topic_pattern": pattern})
            assert refusal(refused) == (422, 422), pattern

    conversation(bootstrap, talk)


def test_records_with_a_schema_are_shown_by_it_and_others_are_not_passed_over(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "shown")
        written = {"value_schema": AVRO, "records": [{"value": {"total": 3}}, {"value": None}]}
        assert (await produce(ask, "shown", "avro", written)).status == 200
        await produce(ask, "shown", "binary", {"records": [{"key": "a2V5", "value": "AP8="}]})
        one = await created(ask, "schema-readers", format="avro")
        await post(ask, f"{one}/assignments", {"partitions": [at("shown")]})
        for _ in range(2):
            refused = await ask("GET", f"{one}/records?timeout=5000", headers={"accept": media("avro")})
            assert (refused.status, refused.json["error_code"]) == (422, 42203)
            assert "shown-0 at offset 2" in refused.json["message"]
        await post(ask, f"{one}/positions", {"offsets": [at("shown", offset=0)]})
        found = await records(ask, one, "avro", "timeout=5000&max_bytes=1")
        assert [each["value"] for each in found] == [{"total": 3}, None]
        other = await ask("GET", f"{one}/records", headers={"accept": media("json")})
        assert (other.status, other.json["error_code"]) == (406, 40601)

    conversation(bootstrap, talk, [mount_registry])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"format": "thrift"}, (422, 42204)),
        ({"auto.offset.reset": "somewhere"}, (422, 42204)),
        ({"auto.commit.enable": "maybe"}, (422, 42204)),
        ({"fetch.min.bytes": -10}, (422, 42204)),
        ({"consumer.request.timeout.ms": "soon"}, (422, 42204)),
        ({"name": "a\n"}, (422, 42204)),
        ({"unheard.of": 1}, (422, 42204)),
    ],
)
def test_settings_that_cannot_be_are_refused(bootstrap: str, body: Any, expected: tuple[int, int]) -> None:
    async def talk(ask: Asker) -> None:
        assert refusal(await post(ask, "/consumers/refused", body)) == expected

    conversation(bootstrap, talk)


def test_a_name_is_taken_once_in_a_group(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        one = await created(ask, "named", name="reader")
        assert one == "/consumers/named/instances/reader"
        assert refusal(await post(ask, "/consumers/named", {"name": "reader"})) == (409, 40902)
        await created(ask, "named-otherwise", name="reader")
        assert (await ask("DELETE", f"{one}/")).status == 204
        assert refusal(await ask("DELETE", one)) == (404, 40403)
        await created(ask, "named", name="reader")
        assert (await ask("POST", "/consumers/named")).status == 200

    conversation(bootstrap, talk)


def test_a_consumer_that_nobody_asks_is_given_up_and_there_are_only_so_many(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "MOST_MEMBERS", 2)

    async def talk(ask: Asker) -> None:
        idle = await created(ask, "idle", consumer_instance_timeout_ms=1000)
        await created(ask, "idle")
        assert refusal(await post(ask, "/consumers/idle", {})) == (503, 503)
        for _ in range(100):
            if (await post(ask, "/consumers/idle", {})).status == 200:
                break
            await asyncio.sleep(0.1)
        assert refusal(await ask("DELETE", idle)) == (404, 40403)

    conversation(bootstrap, talk)


def test_a_member_that_cannot_be_shown_a_message_is_given_it_again(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "given-back")
        await ask("POST", "/topics/given-back", b"no JSON", {"content-type": "text/plain"})
        wanted = {"topics": ["given-back"], "auto_offset_reset": "earliest"}
        member = (await ask("POST", "/api/v1/consumer-groups/given-back/members", wanted)).json["base_uri"]
        member = member.removeprefix("http://localhost")
        assert (await ask("GET", f"{member}/messages?format=json&wait_ms=5000")).status == 422
        again = await ask("GET", f"{member}/messages?format=text&wait_ms=5000")
        assert [each["value"] for each in again.json["messages"]] == ["no JSON"]

    conversation(bootstrap, talk)


@pytest.mark.parametrize(
    ("method", "part", "body", "expected"),
    [
        ("POST", "subscription", {}, (422, 422)),
        ("POST", "subscription", {"topics": "t"}, (422, 422)),
        ("POST", "subscription", {"topics": ["a"], "topic_pattern": "b"}, (409, 40903)),
        ("POST", "subscription", {"topics": ["../x"]}, (422, 422)),
        ("POST", "assignments", {"partitions": [{"topic": "nowhere", "partition": 0}]}, (404, 40401)),
        ("POST", "assignments", {"partitions": [{"topic": "there", "partition": 9}]}, (404, 40402)),
        ("POST", "positions", {"offsets": [{"topic": "there", "partition": 0, "offset": -1}]}, (422, 422)),
        ("POST", "positions", {"timestamps": [{"topic": "there", "partition": 0, "timestamp": "x"}]}, (422, 422)),
        ("POST", "offsets", {"offsets": [{"topic": "there", "partition": 0}]}, (422, 422)),
        ("POST", "offsets", {"offsets": [{"topic": "there", "partition": 9, "offset": 1}]}, (404, 40401)),
        ("GET", "offsets", None, (400, 400)),
        ("GET", "records", None, (409, 40903)),
        ("GET", "records?timeout=x", None, (404, 404)),
    ],
)
def test_bad_requests_to_a_consumer_have_confluents_numbers(
    bootstrap: str, method: str, part: str, body: Any, expected: tuple[int, int]
) -> None:
    async def talk(ask: Asker) -> None:
        await ask("POST", "/api/v1/topics", {"name": "there"})
        one = await created(ask, "mistaken")
        text = None if body is None else json.dumps(body)
        assert refusal(await ask(method, f"{one}/{part}", text, {"content-type": media()})) == expected

    conversation(bootstrap, talk)
