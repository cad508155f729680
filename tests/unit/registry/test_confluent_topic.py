"""Registries moved by the records of Confluent's topic."""

import json
from typing import Any

import pytest

from headrace.client.registry import RegistrySettings, SchemaRegistry
from headrace.registry.confluent_topic import TopicContents, read_lines, read_topic, topic_records, written_line
from headrace.registry.moving import held_by, move_into
from tests.support.registry.serving import in_memory, serving

RECORD = '{"type":"record","name":"R","fields":[{"name":"e","type":"E"}]}'
ENUM = '{"type":"enum","name":"E","symbols":["A"]}'
QUIRKY = '{"type":"record","name":"Q","fields":[{"name":"n","type":"int","default":"none"}]}'


def record(kind: str, subject: str | None, value: Any, **more: Any) -> str:
    key = {"keytype": kind, "subject": subject, **more}
    return f"{json.dumps(key)}\t{json.dumps(value) if value is not None else 'null'}"


def schema(subject: str, version: int, id_: int, text: str, **more: Any) -> str:
    value = {"subject": subject, "version": version, "id": id_, "schema": text, "deleted": False, **more}
    return record("SCHEMA", subject, value, version=version, magic=1)


REFERENCE = {"name": "E", "subject": "e-value", "version": 1}
TOPIC = [
    '{"keytype":"NOOP","magic":0}\tnull',
    record("CONFIG", None, {"compatibilityLevel": "NONE"}, magic=0),
    record("CONTEXT", None, {"context": ".x"}),
    schema("r-value", 1, 3, RECORD, references=[REFERENCE], md5="bm90aGluZw=="),
    schema("e-value", 1, 7, ENUM),
    schema("e-value", 2, 8, '"int"'),
    schema("quirky", 4, 40, QUIRKY),
    schema("gone", 1, 9, '"long"'),
    schema("gone", 1, 9, '"long"', deleted=True),
    schema("never", 1, 10, '"float"'),
    record("SCHEMA", "never", None, version=1, magic=1),
    schema("old", 1, 11, '"float"'),
    schema("old", 2, 12, '"double"'),
    record("DELETE_SUBJECT", "old", {"subject": "old", "version": 1}, magic=0),
    schema(":.x:a", 1, 5, '{"type":"object"}', schemaType="JSON", metadata={"properties": {"owner": "x"}}),
    record("CONFIG", "e-value", {"subject": "e-value", "compatibilityLevel": "FULL", "aliasForDeks": "d"}, magic=0),
    record("MODE", "r-value", {"subject": "r-value", "mode": "READONLY"}, magic=0),
    record("MODE", "gone", {"mode": "READONLY"}, magic=0),
    record("MODE", "gone", None, magic=0),
    "nonsense\tnull",
    record("SURPRISE", "x", {}),
]


def client(url: str) -> SchemaRegistry:
    return SchemaRegistry(RegistrySettings(urls=(url,), seconds=60))


def written(contents: TopicContents) -> list[str]:
    return [written_line(key, value) for key, value in topic_records(contents)]


def test_a_topic_amounts_to_its_last_records() -> None:
    contents = read_topic(read_lines(TOPIC))
    gone, old = [("gone", 1)], [("old", 1), ("old", 2)]
    others = [(":.x:a", 1), ("e-value", 1), ("e-value", 2), ("quirky", 4), ("r-value", 1)]
    assert sorted(contents.versions) == sorted([*gone, *old, *others])
    assert [place for place, entry in contents.versions.items() if entry["deleted"]] == [("gone", 1), ("old", 1)]
    assert contents.in_order().index(("e-value", 1)) < contents.in_order().index(("r-value", 1))
    assert contents.modes == {"r-value": "READONLY"}
    assert [reason.partition(":")[0] for reason in contents.passed_over] == ["record 20", "record 21"]
    assert read_topic(read_lines(written(contents))).in_order() == contents.in_order()


@pytest.mark.parametrize(
    "line",
    [
        "[1]\t{}",
        "{}\t{}",
        '{"keytype":7}\t{}',
        "not JSON\t{}",
        record("SCHEMA", "x", [], version=1),
        record("SCHEMA", "x", {"id": 1}, version=1),
        record("SCHEMA", "x", {"id": "q", "schema": "{}"}, version=1),
        record("SCHEMA", "x", {"id": 1, "schema": "{}"}, version="first"),
        record("SCHEMA", "x", {"id": 1, "schema": "{}", "references": 7}, version=1),
        record("SCHEMA", "x", {"id": 1, "schema": "{}", "references": [{"subject": "e"}]}, version=1),
        record("CONFIG", "x", [7]),
        record("MODE", "x", {"moda": "IMPORT"}),
        record("DELETE_SUBJECT", "x", {"version": "all"}),
        "[" * 100_000,
    ],
)
def test_a_record_that_is_not_understood_is_told_about(line: str) -> None:
    contents = read_topic(read_lines([line, TOPIC[4]]))
    assert len(contents.passed_over) == 1
    assert list(contents.versions) == [("e-value", 1)]


@pytest.mark.slow
def test_a_registry_of_confluents_format_is_read_in_served_and_written_again() -> None:
    with serving(in_memory) as url, serving(in_memory) as other:
        registry, contents = client(url), read_topic(read_lines(TOPIC))
        for _ in range(2):
            assert move_into(registry, contents) == ["settings of e-value: there is no aliasForDeks"]
        assert registry.version("e-value", 2).id == 8
        assert registry.version("quirky").version == 4
        assert registry.call("GET", "/schemas/ids/3")["references"] == [REFERENCE]
        assert registry.call("GET", "/subjects?deletedOnly=true") == ["gone"]
        assert registry.versions("old") == [2]
        assert registry.schema(5, ":.x:a") is not None
        assert registry.compatibility() == "NONE"
        assert registry.call("GET", "/mode/r-value") == {"mode": "READONLY"}
        assert registry.call("POST", "/subjects/next/versions", {"schema": '"bytes"'})["id"] == 41
        registry.call("DELETE", "/subjects/next")
        registry.call("DELETE", "/subjects/next?permanent=true")
        held = held_by(registry)
        assert move_into(client(other), held) == []
        assert written(held_by(client(other))) == written(held)
