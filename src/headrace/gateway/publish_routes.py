"""POST …/messages: one record as it is, or one or many described in JSON."""

import json
from collections.abc import Sequence
from typing import Any, Final

from headrace.protocol.records import Headers, Record
from headrace.web.messages import Answer, Request, json_answer
from headrace.web.problem import Problem, bad_request
from headrace.web.routes import Body, Query, Reply, Routes
from headrace.web.shapes import Array, Boolean, Choice, Integer, Nullable, Object, Shape, Text

from .credentials import Clients
from .names import PARTITION, TIMESTAMP, TOPIC
from .publishing import ACKS, Publisher, PublishOutcome, RecordToPublish, now_ms, require_sane_key
from .rawjson import envelope
from .records import RAW_MEMBERS, RECORD, decode_base64, record_of

MOST_RECORDS: Final = 10_000
CONFLUENT_JSON: Final = "application/vnd.kafka.json.v2+json"
CONFLUENT_BINARY: Final = "application/vnd.kafka.binary.v2+json"
_LISTS: Final = frozenset({"records"})
_CONFLUENT_RAW: Final = frozenset({"value", "key"})
_HEADER_PREFIX: Final = b"x-header-"
_MANY: Final = Object({"records": Array(RECORD, least=1, most=MOST_RECORDS)}, required=("records",))


class _OneOrMany:
    """The schema of a JSON body; it is read by hand, so that values stay as they are written."""

    def read(self, value: Any, path: str) -> Any:  # noqa: ARG002
        return value

    parse = read

    def schema(self) -> dict[str, Any]:
        one = RECORD.schema() | {"minProperties": 1}
        return {"anyOf": [_MANY.schema(), one]}


_PLACE: Final[dict[str, Shape]] = {
    "topic": Text(),
    "partition": Integer(),
    "offset": Integer(),
    "timestamp": Integer(),
}
_PUBLISHED: Final = Object(_PLACE, required=tuple(_PLACE))
_PUBLISHED_MANY: Final = Object(
    {"records": Array(Object({**_PLACE, "error": Object({}, open=True)}, required=("topic", "partition")))}
)


class _EitherAnswer:
    def read(self, value: Any, path: str) -> Any:  # noqa: ARG002
        return value

    parse = read

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [_PUBLISHED.schema(), _PUBLISHED_MANY.schema()]}


_WRITE_PROBLEMS: Final = {
    401: Reply("Credentials are missing, or the brokers do not take them."),
    403: Reply("Not allowed to write here."),
    404: Reply("There is no such topic or partition."),
    413: Reply("The body has more than 16 MiB, or a record is larger than its topic takes."),
    422: Reply("The Idempotency-Key was used for another body."),
    502: Reply("The brokers refused for a reason that has no status of its own."),
    503: Reply("The cluster does not answer; a write may have happened."),
}
RAW_HEADERS: Final = {
    "X-Partition-Key": Query(Text(most=8192), None, "The key of a raw body: decides its partition."),
    "X-Partition": Query(PARTITION, None, "The partition of a raw body."),
    "X-Timestamp": Query(TIMESTAMP, None, "The time of a raw body, milliseconds since 1970."),
    "X-Header-*": Query(Text(most=8192), None, "Headers of a raw body, by what follows the prefix, in lower case."),
}
_HEADERS: Final = {
    **RAW_HEADERS,
    "Idempotency-Key": Query(
        Text(least=1, most=255), None, "A body sent again with the same key, to any gateway, is in the log once."
    ),
}
_QUERY: Final = {
    "acks": Query(Choice(*ACKS), "all", "Whose word to wait for."),
    "raw": Query(Boolean(), False, "The body is the value, whatever its Content-Type."),
}
_BODY: Final = Body(
    "The value as it is, or records in JSON.",
    {
        "application/json": _OneOrMany(),
        "application/octet-stream": None,
        "text/plain": None,
    },
)


def publish_routes(clients: Clients, publisher: Publisher) -> Routes:
    """The routes that write."""
    routes = Routes(tag="Publish", about="Records into topics.")

    async def publish(request: Request) -> Answer:
        topic = request.params["topic"]
        key = request.header(b"idempotency-key")
        if key is not None:
            require_sane_key(key)
        acks = ACKS[request.query["acks"]]
        if key is not None and acks != -1:
            raise bad_request("an Idempotency-Key needs acks=all")
        client = clients.of(request)
        if request.query["raw"] or request.media_type != "application/json":
            wanted = _raw(request, await request.body())
            outcome = await publisher.one(client, topic, wanted, acks, key)
            return _told(topic, outcome)
        read = envelope(await request.body(), RAW_MEMBERS, _LISTS)
        if "records" not in read:
            outcome = await publisher.one(client, topic, _single(read), acks, key)
            return _told(topic, outcome)
        outcomes = await publisher.many(client, topic, _many(read), acks, key)
        return _told_many(topic, outcomes)

    async def publish_short(request: Request) -> Answer:
        if request.media_type in (CONFLUENT_JSON, CONFLUENT_BINARY):
            return await _publish_confluent(request, clients, publisher)
        return await publish(request)

    common: dict[str, Any] = {
        "answers": {
            200: Reply("Written, and where.", _EitherAnswer()),
            207: Reply("Some records were written, some not; each tells.", _PUBLISHED_MANY),
            **_WRITE_PROBLEMS,
        },
        "params": {"topic": TOPIC},
        "headers": _HEADERS,
        "query": _QUERY,
        "body": _BODY,
    }
    about = (
        "A body of any type is the value of one record; its key, partition, time and headers are HTTP headers. A body "
        "of application/json describes one record, or many under `records`; `value` is JSON and is kept as it is "
        "written, `value_text` and `value_base64` are the other ways to give it. A JSON document that is itself the "
        "message is sent with another Content-Type, or with raw=true."
    )
    routes.add("POST", "/api/v1/topics/{topic}/messages", "Publish.", publish, about=about, **common)
    short = "The short form; also takes and answers what Confluent's REST Proxy does with its v2 JSON and binary types."
    routes.add("POST", "/topics/{topic}", "Publish.", publish_short, about=short, **common)
    return routes


async def single_from(request: Request) -> RecordToPublish:
    """The one record that a request brings, as it is or described."""
    if request.query["raw"] or request.media_type != "application/json":
        return _raw(request, await request.body())
    return _single(envelope(await request.body(), RAW_MEMBERS))


def _raw(request: Request, body: bytes) -> RecordToPublish:
    headers = request.headers
    timestamp = now_ms()
    partition = None
    if b"x-timestamp" in headers:
        timestamp = TIMESTAMP.parse(headers[b"x-timestamp"].decode("latin-1"), "X-Timestamp")
    if b"x-partition" in headers:
        partition = PARTITION.parse(headers[b"x-partition"].decode("latin-1"), "X-Partition")
    key = headers.get(b"x-partition-key")
    return RecordToPublish(Record(0, timestamp, key, body, _record_headers(request)), partition)


def _record_headers(request: Request) -> Headers:
    found = [(name, value) for name, value in request.scope["headers"] if name.startswith(_HEADER_PREFIX)]
    if not found:
        return ()
    return tuple((name[len(_HEADER_PREFIX) :].decode("latin-1"), value) for name, value in found)


def _single(read: Any) -> RecordToPublish:
    if not read:
        raise bad_request("an empty object describes no record; give at least a value, or null")
    record, partition = record_of(read, now_ms(), "the record")
    return RecordToPublish(record, partition)


def _many(read: Any) -> list[RecordToPublish]:
    others = set(read) - {"records"}
    if others:
        raise bad_request(f"beside 'records' there is no '{min(others)[:80]}'", "unknown-member")
    records = read["records"]
    if not isinstance(records, list) or not 0 < len(records) <= MOST_RECORDS:
        raise bad_request(f"'records' must be a list of 1 to {MOST_RECORDS} records")
    now = now_ms()
    return [RecordToPublish(*record_of(each, now, f"records[{i}]")) for i, each in enumerate(records)]


def _told(topic: str, outcome: PublishOutcome) -> Answer:
    # A topic's name needs no escaping: its shape allows letters, digits and . _ - only.
    partition, offset, timestamp, _ = outcome
    body = f'{{"topic":"{topic}","partition":{partition},"offset":{offset},"timestamp":{timestamp}}}'
    return Answer(200, body.encode())


def _told_many(topic: str, outcomes: Sequence[PublishOutcome]) -> Answer:
    problems = [outcome.problem for outcome in outcomes if outcome.problem is not None]
    if len(problems) == len(outcomes):
        raise problems[0]
    records = [
        {"topic": topic, "partition": o.partition, "offset": o.offset, "timestamp": o.timestamp}
        if o.problem is None
        else {
            "topic": topic,
            "partition": o.partition,
            "error": {"status": o.problem.status, "code": o.problem.code, "detail": o.problem.detail},
        }
        for o in outcomes
    ]
    return json_answer({"records": records}, 207 if problems else 200)


# Confluent's REST Proxy, v2


async def _publish_confluent(request: Request, clients: Clients, publisher: Publisher) -> Answer:
    is_binary = request.media_type == CONFLUENT_BINARY
    read = envelope(await request.body(), frozenset() if is_binary else _CONFLUENT_RAW, _LISTS)
    records = read.get("records")
    if not isinstance(records, list) or not 0 < len(records) <= MOST_RECORDS:
        raise Problem(422, f"'records' must be a list of 1 to {MOST_RECORDS} records", code="invalid-request")
    wanted = [_confluent_record(each, is_binary, f"records[{i}]") for i, each in enumerate(records)]
    topic = request.params["topic"]
    outcomes = await publisher.many(clients.of(request), topic, wanted, -1, None)
    told = [
        {"partition": o.partition, "offset": o.offset, "error_code": None, "error": None}
        if o.problem is None
        else {"partition": None, "offset": None, "error_code": _confluent_code(o.problem), "error": o.problem.detail}
        for o in outcomes
    ]
    body = {"offsets": told, "key_schema_id": None, "value_schema_id": None}
    return Answer(200, json.dumps(body).encode(), b"application/vnd.kafka.v2+json")


def _confluent_code(problem: Problem) -> int:
    """1 for what will not pass, 2 for what may."""
    return 2 if problem.status == 503 else 1


_CONFLUENT: Final = Object(
    {"key": Nullable(Text(most=16 << 20)), "value": Nullable(Text(most=16 << 20)), "partition": Nullable(PARTITION)}
)


def _confluent_record(entry: Any, is_binary: bool, path: str) -> RecordToPublish:
    read = _CONFLUENT.read(entry, path)
    key, value = (_confluent_bytes(read.get(name), is_binary, f"{path}.{name}") for name in ("key", "value"))
    return RecordToPublish(Record(0, now_ms(), key, value), read.get("partition"))


def _confluent_bytes(content: str | None, is_binary: bool, path: str) -> bytes | None:
    if content is None or (not is_binary and content == "null"):
        return None
    return decode_base64(content, path) if is_binary else content.encode()
