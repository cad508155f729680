# ruff: noqa: E501 - a table has long rows
"""Attacks and bad input over the whole gateway: what each gets, and that nobody else waits or pays for it.

While a request is answered a task of the same event loop wakes every few milliseconds. Where it was kept waiting, the
lesser of the time that passed and the CPU time that this process took is how long the loop stood still: a busy machine
does not count. Memory is the highest that the process had meanwhile, above what it had before.
"""

import asyncio
import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headrace.gateway.schemas import mount_registry
from tests.support.asgi import Asker, Reply, conversation

MOST_STALL: float = 0.1
MOST_MEMORY: int = 64 << 20
TRIES = 3
"""The brokers of other tests take the processor, too; what the attack does it does each time."""
V1 = "/api/v1/topics/attacked/messages"
V2_JSON = "application/vnd.kafka.json.v2+json"
V2_AVRO = "application/vnd.kafka.avro.v2+json"
V2_SCHEMA = "application/vnd.kafka.jsonschema.v2+json"
V2_PROTO = "application/vnd.kafka.protobuf.v2+json"
V2 = "application/vnd.kafka.v2+json"
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


class Attack(NamedTuple):
    """A request, and the statuses that are right for it. `{cluster}` and `{instance}` stand for what there is."""

    name: str
    method: str
    target: str
    status: int
    body: Callable[[], bytes | str] = lambda: b""
    content_type: str = ""
    headers: tuple[tuple[str, str], ...] = ()


def nested(opening: str, closing: str, depth: int = 100_000) -> Callable[[], str]:
    return lambda: opening * depth + closing * depth


def packed(data: bytes, times: int) -> Callable[[], bytes]:
    return lambda: gzip.compress(data * times, 1)


def value_of(text: str) -> Callable[[], str]:
    return lambda: text


def described(value: Any) -> Callable[[], str]:
    return lambda: json.dumps(value)


def avro_of(schema: Any, value: Any) -> Callable[[], str]:
    return lambda: json.dumps({"value_schema": json.dumps(schema), "records": [{"value": value}]})


def unions(depth: int) -> tuple[Any, Any]:
    """Two records that hold each other's union, and a value that fits neither at the deepest place."""
    fields = [{"name": "x", "type": ["null", "long", "A", "B"]}]
    schema = [{"type": "record", "name": "A", "fields": [{"name": "x", "type": ["null", "long", "A"]}]}]
    schema = [
        {
            "type": "record",
            "name": "A",
            "fields": [{"name": "x", "type": ["null", "long", "A", {"type": "record", "name": "B", "fields": fields}]}],
        },
    ]
    value: Any = {"x": "wrong"}
    for _ in range(depth):
        value = {"x": value}
    return schema[0], value


UNION_SCHEMA, UNION_VALUE = unions(40)
REDOS = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
GZIP = (("content-encoding", "gzip"),)
RECORDS = "{cluster}/topics/attacked/records"

ATTACKS = [
    # paths and queries
    Attack("a dot as a topic", "POST", "/topics/..", 400),
    Attack("a line break in a path", "POST", "/topics/a%0d%0aSet-Cookie:x", 400),
    Attack("a slash in a name", "GET", "/topics/a%2Fb", 404),
    Attack("no UTF-8 in a path", "GET", "/topics/%ff", 404),
    Attack("a zero byte in a group", "GET", "/api/v1/consumer-groups/%00", 400),
    Attack("a long path", "GET", "/topics/" + "a" * 60_000, 404),
    Attack("many segments", "GET", "/a" * 20_000, 404),
    Attack("a method that is none", "BREW", "/topics", 405),
    Attack("many parameters", "GET", "/api/v1/topics?" + "&".join(f"a{i}=1" for i in range(10_000)), 400),
    Attack("a huge number", "GET", f"{V1.replace('/messages', '/partitions/0/messages')}?offset={'9' * 5000}", 400),
    Attack("an unknown parameter", "GET", "/api/v1/topics?topcis=1", 400),
    Attack("a cursor that is none", "GET", "/api/v1/topics?cursor=%00%00", 400),
    Attack("a long list of partitions", "GET", "/api/v1/topics/attacked/messages?cursor=" + ",".join(["0:1"] * 9000), 200),
    # JSON
    Attack("deep arrays", "POST", V1, 400, nested("[", "]"), JSON),
    Attack("deep objects", "POST", V1, 400, nested('{"value":', "}"), JSON),
    Attack("half of a surrogate pair", "POST", V1, 400, value_of('{"value":"\\ud800","value_encoding":"text"}'), JSON),
    Attack("NaN", "POST", V1, 400, value_of('{"value":NaN}'), JSON),
    Attack("two values", "POST", V1, 400, value_of('{"value":1} {"value":2}'), JSON),
    Attack("no UTF-8", "POST", V1, 400, lambda: b'{"value":"\xff"}', JSON),
    Attack("a form that is an envelope", "POST", V1, 415, value_of('{"messages":[]}'), FORM),
    Attack("a million empty messages", "POST", V1, 400, lambda: '{"messages":[' + "{}," * 999_999 + "{}]}", JSON),
    Attack("a million members", "POST", V1, 400, lambda: "{" + ",".join(f'"{i}":1' for i in range(500_000)) + "}", JSON),
    Attack("many headers of a record", "POST", V1, 200, lambda: json.dumps({"value": 1, "headers": {str(i): "x" for i in range(20_000)}}), JSON),
    # bodies
    Attack("17 MB", "POST", V1, 413, lambda: bytes(17 << 20), "text/plain"),
    Attack("a length that is a lie", "POST", V1, 413, headers=(("content-length", "9" * 14),)),
    Attack("a bomb", "POST", V1, 413, packed(bytes(1 << 20), 200), "text/plain", GZIP),
    Attack("gzip of many empty objects", "POST", V1, 400, packed(b"{},", 3_000_000), JSON, GZIP),
    Attack("gzip that is cut", "POST", V1, 400, lambda: gzip.compress(b"x" * 1000)[:-9], "text/plain", GZIP),
    Attack("no gzip", "POST", V1, 400, value_of("x"), "text/plain", GZIP),
    Attack("another encoding", "POST", V1, 415, value_of("x"), "text/plain", (("content-encoding", "br"),)),
    # who asks
    Attack("a page of another site", "POST", V1, 403, value_of("x"), "text/plain", (("origin", "https://evil.example"),)),
    Attack("an origin that is none", "POST", V1, 403, value_of("x"), "text/plain", (("origin", "https://[::1"),)),
    # administration
    Attack("a topic of a million partitions", "POST", "/api/v1/topics", 400, described({"name": "x", "partitions": 1_000_000}), JSON),
    Attack("a topic with a wrong name", "POST", "{cluster}/topics", 400, described({"topic_name": "a/b"}), JSON),
    Attack("replicas nowhere", "POST", "{cluster}/topics", 400, described({"topic_name": "x", "replicas_assignments": {"0": [77]}}), JSON),
    Attack("a setting that is none", "PUT", "{cluster}/topics/attacked/configs/a", 400, described({"value": "1"}), JSON),
    Attack("another cluster", "GET", "/v3/clusters/other/topics", 404),
    Attack("a callback into this machine", "POST", "/api/v1/subscriptions", 400, described({"topic": "attacked", "callback_url": "http://127.0.0.1:1/"}), JSON),
    Attack("a callback of a special range", "POST", "/api/v1/subscriptions", 400, described({"topic": "attacked", "callback_url": "http://192.0.0.8/"}), JSON),
    Attack("a callback by another scheme", "POST", "/api/v1/subscriptions", 400, described({"topic": "attacked", "callback_url": "file:///etc/passwd"}), JSON),
    Attack("a million messages in gzip", "POST", V1, 400, lambda: gzip.compress(b'{"messages":[' + b"{}," * 4_000_000 + b"{}]}", 1), JSON, GZIP),
    # v2
    Attack("a million records", "POST", "/topics/attacked", 422, lambda: '{"records":[' + "{}," * 1_000_000 + "{}]}", V2_JSON),
    Attack("v1's type", "POST", "/topics/attacked", 415, value_of("{}"), "application/vnd.kafka.json.v1+json"),
    Attack("no records", "POST", "/topics/attacked", 422, value_of('{"records":[]}'), V2_JSON),
    Attack("too many records", "POST", "/topics/attacked", 422, lambda: '{"records":[' + "{}," * 10_000 + "{}]}", V2_JSON),
    Attack("a long Accept", "GET", "/brokers", 406, headers=(("accept", "a/b," * 10_000),)),
    Attack("no schema", "POST", "/topics/attacked", 422, value_of('{"records":[{"value":1}]}'), V2_AVRO),
    Attack("a schema id above int32", "POST", "/topics/attacked", 422, value_of('{"value_schema_id":4294967296,"records":[{"value":1}]}'), V2_AVRO),
    Attack("a schema that is none", "POST", "/topics/attacked", 422, avro_of({"type": "fly"}, 1), V2_AVRO),
    Attack("unions in unions", "POST", "/topics/attacked-unions", 422, avro_of(UNION_SCHEMA, UNION_VALUE), V2_AVRO),
    Attack("a deep value", "POST", "/topics/attacked-deep", 422, lambda: json.dumps({"value_schema": '"long"'})[:-1] + ',"records":[{"value":' + "[" * 900 + "]" * 900 + "}]}", V2_AVRO),
    Attack("a pattern without end", "POST", "/topics/attacked-redos", 422, avro_of(REDOS, {"a": "a" * 40 + "!"}), V2_SCHEMA),
    Attack("a deep Protobuf value", "POST", "/topics/attacked-proto", 422, lambda: json.dumps({"value_schema": 'syntax = "proto3"; message A { A a = 1; }'})[:-1] + ',"records":[{"value":' + '{"a":' * 800 + "1" + "}" * 800 + "}]}", V2_PROTO),
    Attack("an empty topic pattern's cousin", "POST", "{instance}/subscription", 422, described({"topic_pattern": "(a{50}){50}"}), V2),
    Attack("a pattern that backtracks", "POST", "{instance}/subscription", 204, described({"topic_pattern": "(a+)+$"}), V2),
    Attack("ten thousand partitions", "POST", "{instance}/positions", 409, lambda: json.dumps({"offsets": [{"topic": "attacked", "partition": i, "offset": 0} for i in range(10_000)]}), V2),
    Attack("an offset above int64", "POST", "{instance}/offsets", 422, lambda: '{"offsets":[{"topic":"attacked","partition":0,"offset":9223372036854775807}]}', V2),
    Attack("another's consumer", "GET", "/consumers/attackers/instances/other/records", 404),
    Attack("a time before all times", "POST", "{instance}/positions", 409, described({"timestamps": [{"topic": "attacked", "partition": 0, "timestamp": "0001-01-01T00:00:00+14:00"}]}), V2),
    # v3's stream
    Attack("brackets without end", "POST", RECORDS, 400, lambda: "[" * 1_000_000, JSON),
    Attack("an object without end", "POST", RECORDS, 400, lambda: '{"a":' * 400_000, JSON),
    Attack("a text without end", "POST", RECORDS, 400, lambda: '{"a":"' + "\\\\" * 4_000_000, JSON),
    Attack("a record of 20 MB", "POST", RECORDS, 400, lambda: '{"a":"' + "x" * (20 << 20) + '"}', JSON),
    Attack("a bomb of records", "POST", RECORDS, 422, packed(b" " * (1 << 20), 60), JSON, GZIP),
    Attack("many bad records", "POST", RECORDS, 200, lambda: "{1}" * 20_000, JSON),
    Attack("nothing", "POST", RECORDS, 422, content_type=JSON),
    # the registry
    Attack("a schema of 2 MB", "POST", "/subjects/s/versions", 422, lambda: json.dumps({"schema": json.dumps({"type": "string", "doc": "x" * (2 << 20)})}), JSON),
    Attack("a deep schema", "POST", "/subjects/s/versions", 422, lambda: json.dumps({"schema": '{"type":"array","items":' * 2000 + '"int"' + "}" * 2000}), JSON),
    Attack("a subject that is none", "POST", "/subjects/%00/versions", 422, described({"schema": '"int"'}), JSON),
]  # fmt: skip


class Watch:
    """How long the event loop stood still, and how much memory was taken, while a block runs."""

    def __init__(self) -> None:
        self.stall = 0.0
        self.memory = 0

    async def __aenter__(self) -> "Watch":
        Path("/proc/self/clear_refs").write_text("5")
        self._before = _memory("VmRSS")
        self._task = asyncio.ensure_future(self._beat())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0.01)
        self._task.cancel()
        self.memory = _memory("VmHWM") - self._before

    async def _beat(self) -> None:
        wall, cpu = time.monotonic(), time.process_time()
        while True:
            await asyncio.sleep(0.005)
            now, used = time.monotonic(), time.process_time()
            self.stall = max(self.stall, min(now - wall, used - cpu))
            wall, cpu = now, used


def _memory(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(name)


async def prepared(ask: Asker) -> dict[str, str]:
    """What the paths of attacks stand for."""
    for topic in ("attacked", "attacked-unions", "attacked-deep", "attacked-redos", "attacked-proto"):
        await ask("POST", "/api/v1/topics", {"name": topic})
    (cluster,) = (await ask("GET", "/v3/clusters")).json["data"]
    made = await ask("POST", "/consumers/attackers", "{}", {"content-type": V2})
    return {
        "cluster": f"/v3/clusters/{cluster['cluster_id']}",
        "instance": str(made.json["base_uri"]).removeprefix("http://localhost"),
    }


async def attacked(ask: Asker, attack: Attack, known: dict[str, str]) -> tuple[Reply, Watch]:
    body = attack.body()
    data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    target = attack.target.replace("{cluster}", known["cluster"]).replace("{instance}", known["instance"])
    headers = dict(attack.headers) | ({"content-type": attack.content_type} if attack.content_type else {})
    async with Watch() as watch:
        reply = await ask(attack.method, target, data, headers)
    return reply, watch


@pytest.mark.long
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_an_attack_is_answered_and_harms_nobody(bootstrap: str, attack: Attack) -> None:
    async def talk(ask: Asker) -> None:
        known = await prepared(ask)
        reply, watch = await attacked(ask, attack, known)
        assert reply.status == attack.status, reply.body[:500]
        assert b"Traceback" not in reply.body
        if reply.status >= 400:
            assert reply.json.get("detail") or reply.json.get("message")
            assert len(reply.body) < 4096
        stalls = [watch.stall]
        while min(stalls) > MOST_STALL and len(stalls) < TRIES:
            stalls.append((await attacked(ask, attack, known))[1].stall)
        assert min(stalls) <= MOST_STALL
        assert watch.memory <= MOST_MEMORY

    conversation(bootstrap, talk, [mount_registry])


def test_there_are_sixty_of_them() -> None:
    assert len(ATTACKS) >= 60
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
