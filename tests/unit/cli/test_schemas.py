"""`headrace schema`, and `produce` and `consume` with schemas and with CSV, against a broker with a registry."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from typer.testing import Result

from headrace.testing import Broker
from tests.support.cli import Run

pytestmark = pytest.mark.slow

FIELDS = [{"name": "id", "type": "long"}, {"name": "total", "type": "double"}]
ORDER = {"type": "record", "name": "Order", "fields": FIELDS}
WIDER = {**ORDER, "fields": [*FIELDS, {"name": "note", "type": ["null", "string"], "default": None}]}
BROKEN = {**ORDER, "fields": [*FIELDS, {"name": "must", "type": "string"}]}
PROTO = 'syntax = "proto3"; message Order { int64 id = 1; } message Other { string name = 1; }'
JSON_SCHEMA = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "required": ["id"]}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(registry=True) as running:
        yield running


@pytest.fixture
def call(run: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command, with the broker and its registry."""
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", broker.bootstrap)
    monkeypatch.setenv("HEADRACE_REGISTRY", broker.registry_url)
    return run


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    return broker.create_topic(f"schemas.{abs(hash(request.node.nodeid)) % 10**12}")


def written(path: Path, schema: object) -> str:
    path.write_text(schema if isinstance(schema, str) else json.dumps(schema))
    return str(path)


def lines(result: Result) -> list[str]:
    assert result.exit_code == 0, result.stderr
    return result.stdout.splitlines()


def test_schemas_are_registered_listed_shown_and_deleted(call: Run, tmp_path: Path) -> None:
    first, second = written(tmp_path / "a.avsc", ORDER), written(tmp_path / "b.avsc", WIDER)
    registered = json.loads(call("schema", "register", "life-value", first, "--json").stdout)
    assert registered["latest_version"] == 1
    assert call("schema", "register", "life-value", second).stdout.endswith("latest version 2\n")
    assert json.loads(call("schema", "list", "--prefix", "life", "--json").stdout) == [
        {"subject": "life-value", "versions": [1, 2]}
    ]
    shown = call("schema", "show", "life-value", "--version", "1")
    assert json.loads(shown.stdout) == ORDER
    assert f"life-value version 1, id {registered['id']}, AVRO" in shown.stderr
    by_id = json.loads(call("schema", "show", "--id", str(registered["id"]), "--json").stdout)
    assert json.loads(by_id["schema"]) == ORDER
    assert call("schema", "delete", "life-value", "--version", "1", "--yes").stdout == "life-value: version 1 deleted\n"
    assert json.loads(call("schema", "delete", "life-value", "--yes", "--json").stdout)["deleted"] == [2]
    assert call("schema", "delete", "life-value", "--permanent", "--yes").exit_code == 0
    assert json.loads(call("schema", "list", "--prefix", "life", "--deleted", "--json").stdout) == []


def test_a_schema_that_is_not_compatible_is_refused_with_the_reason(call: Run, tmp_path: Path) -> None:
    good, broken = written(tmp_path / "a.avsc", ORDER), written(tmp_path / "b.avsc", BROKEN)
    call("schema", "register", "strict-value", good)
    assert call("schema", "check", "strict-value", good).stdout == "strict-value: compatible (BACKWARD)\n"
    checked = call("schema", "check", "strict-value", broken, "--json")
    found = json.loads(checked.stdout)
    assert (checked.exit_code, found["compatible"]) == (1, False)
    assert "must" in found["reasons"][0]
    refused = call("schema", "register", "strict-value", broken)
    assert (refused.exit_code, "`headrace schema check` says why" in refused.stderr) == (1, True)
    assert call("schema", "compatibility", "strict-value", "--set", "none").stdout == "strict-value: NONE\n"
    assert call("schema", "register", "strict-value", broken).exit_code == 0
    assert call("schema", "compatibility", "strict-value", "--unset").stdout == "strict-value: BACKWARD\n"
    assert json.loads(call("schema", "compatibility", "--json").stdout) == {"subject": None, "level": "BACKWARD"}


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["show", "no-such"], 1, "`headrace schema list` shows what there is"),
        (["show", "--id", "4711"], 1, "has no schema 4711"),
        (["show"], 2, "either SUBJECT or --id"),
        (["register", "s", "/no/such.avsc"], 2, "/no/such.avsc: No such file"),
        (["compatibility", "--set", "SOME"], 2, "there are NONE, BACKWARD"),
        (["delete", "s"], 2, "needs --yes"),
        (["list", "--registry", "nowhere"], 2, "nowhere"),
        (["list", "--registry", "http://127.0.0.1:1"], 3, "the schema registry at http://127.0.0.1:1 does not answer"),
    ],
)
def test_mistakes_are_told(call: Run, arguments: list[str], code: int, expected: str) -> None:
    result = call("schema", *arguments)
    assert (result.exit_code, expected in result.stderr) == (code, True), result.stderr


def test_without_a_registry_it_is_said_how_to_name_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.registries._GATEWAY_PORT", 1)
    result = run("schema", "list")
    assert (result.exit_code, "name it with --registry URL" in result.stderr) == (1, True)


def test_json_is_sent_as_avro_and_shown_as_json(call: Run, broker: Broker, topic: str, tmp_path: Path) -> None:
    schema = written(tmp_path / "order.avsc", ORDER)
    sent = call(
        "produce", topic, "--value-schema", f"@{schema}", stdin='{"id": 7, "total": 3}\n{"id": 8, "total": 1.5}\n'
    )
    assert sent.exit_code == 0, sent.stderr
    assert lines(call("consume", topic)) == ['{"id":7,"total":3.0}', '{"id":8,"total":1.5}']
    found = [json.loads(line) for line in lines(call("consume", topic, "--json"))]
    assert found[1]["value"] == {"id": 8, "total": 1.5}
    raw = call("consume", topic, "--format", "raw", "--count", "1").stdout_bytes
    read = AvroDeserializer(SchemaRegistryClient({"url": broker.registry_url}))
    assert read(raw, SerializationContext(topic, MessageField.VALUE)) == {"id": 7, "total": 3.0}
    assert found[0]["value_schema_id"] == int.from_bytes(raw[1:5], "big")
    hidden = json.loads(lines(call("consume", topic, "--registry", "none", "--count", "1", "--json"))[0])
    assert hidden["value"] not in ({"id": 7, "total": 3.0}, None)


@pytest.mark.parametrize(
    ("name", "schema", "which", "value"),
    [
        ("order.proto", PROTO, "", '{"id":"7"}'),
        ("order.proto", PROTO, "#Other", '{"name":"x"}'),
        ("order.json", JSON_SCHEMA, "", '{"id":7}'),
    ],
)
def test_protobuf_and_json_schema_go_through(
    call: Run, topic: str, tmp_path: Path, name: str, schema: object, which: str, value: str
) -> None:
    file = written(tmp_path / name, schema)
    assert call("produce", topic, "--value-schema", f"@{file}{which}", stdin=value).exit_code == 0
    assert lines(call("consume", topic)) == [value]


def test_keys_have_schemas_too_and_texts_need_no_quotes(call: Run, topic: str, tmp_path: Path) -> None:
    schema = written(tmp_path / "key.avsc", '"string"')
    sent = call("produce", topic, "-K", ":", "--key-schema", f"@{schema}", stdin="user-7:hello\n42:there\n")
    assert sent.exit_code == 0, sent.stderr
    assert lines(call("consume", topic, "--format", "key-value", "-K", "=")) == ['"user-7"=hello', '"42"=there']


def test_a_value_that_does_not_fit_is_told_with_its_number(call: Run, topic: str, tmp_path: Path) -> None:
    schema = written(tmp_path / "order.avsc", ORDER)
    call("schema", "register", f"{topic}-value", schema)
    result = call(
        "produce", topic, "--value-schema", "latest", stdin='{"id": 7, "total": 3}\n{"id": "x", "total": 1}\n'
    )
    assert (result.exit_code, 'record 2 of standard input: id: "x" is not long' in result.stderr) == (2, True)
    result = call("produce", topic, "--value-schema", f"{topic}-value:9", stdin="{}")
    assert (result.exit_code, "`headrace schema list`" in result.stderr) == (1, True)


def test_rows_of_csv_become_json_with_a_key(call: Run, topic: str) -> None:
    table = 'id,name\n1,"a, b"\n2,"two\nlines"\n'
    assert call("produce", topic, "--format", "csv", "--key-column", "id", stdin=table).exit_code == 0
    found = [json.loads(line) for line in lines(call("consume", topic, "--json"))]
    assert [one["key"] for one in found] == ["1", "2"]
    assert [json.loads(one["value"]) for one in found] == [
        {"id": "1", "name": "a, b"},
        {"id": "2", "name": "two\nlines"},
    ]
    assert call("consume", topic, "--format", "csv").stdout == table


def test_cells_of_csv_become_what_the_schema_says(call: Run, topic: str, tmp_path: Path) -> None:
    schema = written(tmp_path / "order.avsc", WIDER)
    options = ["--format", "csv", "--columns", "id,total,note", "--value-schema", f"@{schema}"]
    assert call("produce", topic, *options, stdin="7,3.5,\n8,4,hi\n").exit_code == 0
    assert lines(call("consume", topic)) == ['{"id":7,"total":3.5,"note":null}', '{"id":8,"total":4.0,"note":"hi"}']
    table = call("consume", topic, "--format", "csv", "--columns", "_offset,id,note").stdout
    assert table == "_offset,id,note\n0,7,\n1,8,hi\n"


@pytest.mark.parametrize(
    ("table", "options", "expected"),
    [
        ("a,b\n1\n", [], "row 1 of standard input has 1 cells, and there are 2 columns"),
        ("a,a\n1,2\n", [], "has two columns 'a'"),
        ("a,b\n1,2\n", ["--key-column", "c"], "has the columns a, b"),
        ('a,b\n1,"x\n', [], "is not CSV"),
        ("a\n1\n", ["--key-column", "a", "--key", "k"], "exclude each other"),
    ],
)
def test_csv_that_cannot_be_sent_is_told(call: Run, topic: str, table: str, options: list[str], expected: str) -> None:
    result = call("produce", topic, "--format", "csv", *options, stdin=table)
    assert (result.exit_code, expected in result.stderr) == (2, True), result.stderr


def test_what_consume_prints_as_json_produce_takes_back(call: Run, broker: Broker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"\xff\0", b"k", timestamp=1_700_000_000_000, headers=[("h", b"\xfe"), ("h", b"2")])
    producer.produce(topic, None, b"gone")
    assert producer.flush(30) == 0
    shown = call("consume", topic, "--json").stdout
    copy = broker.create_topic(f"{topic}.copy")
    assert call("produce", copy, "--format", "json", stdin=shown).exit_code == 0
    assert call("consume", copy, "--json").stdout.replace(copy, topic) == shown


def test_a_copy_by_way_of_json_has_the_schemas_of_the_original(
    call: Run, broker: Broker, topic: str, tmp_path: Path
) -> None:
    keys, order = written(tmp_path / "key.avsc", '"string"'), written(tmp_path / "order.avsc", ORDER)
    proto = written(tmp_path / "order.proto", PROTO)
    for schema, line in [
        (f"{order}", 'a:{"id": 7, "total": 3}'),
        (f"{proto}#Other", 'b:{"name": "x"}'),
        (f"{proto}", 'c:{"id": 1}'),
    ]:
        call("schema", "compatibility", f"{topic}-value", "--set", "none")
        sent = call("produce", topic, "-K", ":", "--key-schema", f"@{keys}", "--value-schema", f"@{schema}", stdin=line)
        assert sent.exit_code == 0, sent.stderr
    assert call("produce", topic, stdin="plain").exit_code == 0
    shown = call("consume", topic, "--json").stdout
    assert json.loads(shown.splitlines()[1])["value_message"] == "Other"
    copy = broker.create_topic(f"{topic}.copy")
    assert call("produce", copy, "--format", "json", stdin=shown).exit_code == 0
    for part in ("{key}", "{value}"):
        as_bytes = [
            call("consume", name, "--registry", "none", "--format", part).stdout_bytes for name in (topic, copy)
        ]
        assert as_bytes[0] == as_bytes[1]
    assert call("consume", copy, "--json").stdout.replace(copy, topic) == shown


def test_a_schema_id_that_no_registry_has_is_told_and_may_be_left_aside(call: Run, topic: str) -> None:
    line = '{"value": {"id": 7}, "value_schema_id": 4711}'
    refused = call("produce", topic, "--format", "json", stdin=line)
    assert (refused.exit_code, "value_schema_id id:4711: the registry has no such schema" in refused.stderr) == (
        2,
        True,
    )
    assert call("produce", topic, "--format", "json", "--registry", "none", stdin=line).exit_code == 0
    assert lines(call("consume", topic)) == ['{"id": 7}']


def test_records_of_json_keep_their_partitions_and_null_headers(call: Run, broker: Broker, topic: str) -> None:
    wide, copy = broker.create_topic(f"{topic}.wide", 3), broker.create_topic(f"{topic}.copy", 3)
    given = [{"value": str(p), "partition": p, "headers": [["h", None], ["h", ""]]} for p in (2, 0, 1)]
    call("produce", wide, "--format", "json", stdin="".join(f"{json.dumps(one)}\n" for one in given))
    shown = call("consume", wide, "--json").stdout
    found = sorted((json.loads(line) for line in shown.splitlines()), key=lambda one: one["partition"])
    assert [(one["value"], one["headers"]) for one in found] == [(v, [["h", None], ["h", ""]]) for v in "012"]
    assert call("produce", copy, "--format", "json", "--partition", "1", stdin=shown).exit_code == 0
    copied = [json.loads(line)["partition"] for line in lines(call("consume", copy, "--json"))]
    assert copied == [1, 1, 1]
    narrow = call("produce", topic, "--format", "json", stdin=json.dumps({"value": "x", "partition": 2}))
    assert (narrow.exit_code, "partition 2: the topic has 1, from 0 to 0" in narrow.stderr) == (2, True)


def test_a_terminal_is_never_sent_garbage(
    call: Run, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"\x1b[31mred\xff\x00 \xc3\xa9")
    assert producer.flush(30) == 0
    assert call("consume", topic).stdout_bytes == b"\x1b[31mred\xff\x00 \xc3\xa9\n"
    monkeypatch.setattr("headrace.cli.consume.is_terminal", lambda: True)
    assert call("consume", topic).stdout_bytes == "\\x1b[31mred\\xff\\x00 é\n".encode()
    assert call("consume", topic, "--format", "raw").stdout_bytes == b"\x1b[31mred\xff\x00 \xc3\xa9"


def test_the_registry_of_a_gateway_beside_the_broker_is_found(
    run: Run, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.cli.registries._GATEWAY_PORT", int(broker.registry_url.rpartition(":")[2]))
    options = ["-b", broker.bootstrap]
    with_schema = ["--value-schema", "found-value"]
    run("schema", "register", "found-value", "-", "--type", "AVRO", *options, stdin=json.dumps(ORDER))
    assert run("produce", topic, *with_schema, *options, stdin='{"id": 1, "total": 2}').exit_code == 0
    assert run("consume", topic, *options).stdout == '{"id":1,"total":2.0}\n'
    with Broker(topics=["other"]) as other:
        framed = run("consume", topic, *options, "--format", "raw").stdout_bytes
        run("produce", "other", "-b", other.bootstrap, stdin=framed)
        result = run("consume", "other", "-b", other.bootstrap)
    assert "name it with --registry URL" in result.stderr
    assert result.stdout_bytes == framed + b"\n"
