"""Schemas that are written to take for ever, and the processes that judge them."""

import asyncio
import gzip
import json
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.registry.api.bodies import MOST_BODY
from headrace.registry.api.routes import Api
from headrace.registry.errors import InvalidSchemaError
from headrace.registry.judging import Workers
from headrace.registry.log import MemoryLog
from headrace.registry.parsing import Comparison, Source
from headrace.registry.schemas.model import Dependency
from headrace.registry.service import Registry
from headrace.web.application import Application
from tests.unit.registry.test_api import INT, Ask, call, conversation

FINE = Source("AVRO", '"int"')
WITH_REFERENCE = Source(
    "AVRO", '{"type":"array","items":"E"}', (Dependency(name="E", text='{"type":"enum","name":"E","symbols":["A"]}'),)
)


def nested_unions(depth: int, last: str) -> str:
    """Records whose fields are unions of two records each, which differ at the very end only."""
    schema: Any = last
    for level in range(depth):
        record = {"type": "record", "name": f"R{level}", "fields": [{"name": "f", "type": schema}]}
        other = {
            "type": "record",
            "name": f"S{level}",
            "fields": [{"name": "f", "type": f"R{level - 1}" if level else last}],
        }
        schema = [record, other]
    return json.dumps({"type": "record", "name": "Top", "fields": [{"name": "f", "type": schema}]})


def nested_not(depth: int, last: str) -> str:
    schema: Any = {"type": last}
    for _ in range(depth):
        schema = {"not": {"anyOf": [schema, {"type": "null"}]}}
    return json.dumps(schema)


def nested_any(depth: int, last: str) -> str:
    schema: Any = {"type": last}
    for level in range(depth):
        schema = {"anyOf": [{"type": "object", "properties": {f"p{i}{level}": schema}} for i in range(3)]}
    return json.dumps(schema)


def evil_patterns(kind: str) -> str:
    names = {f"{'a' * 40}{i}": {"type": kind} for i in range(50)}
    patterns = {"^(a+)+$": {"type": "string"}, "(a|aa)+$": {"type": "string"}, "(.*)*.*x": {"type": kind}}
    return json.dumps(
        {"type": "object", "properties": names, "patternProperties": patterns, "additionalProperties": False}
    )


def many_parts(least: int) -> str:
    return json.dumps({"allOf": [{"properties": {f"p{i}": {"minLength": least + i}}} for i in range(300)]})


def running(talk: Callable[[Workers], Awaitable[None]], **more: Any) -> None:
    async def main() -> None:
        async with Workers(**more).running() as judge:
            await talk(judge)

    asyncio.run(main())


ATTACKS = {
    "unions": ("AVRO", nested_unions(60, "int"), nested_unions(60, "string")),
    "not": ("JSON", nested_not(60, "string"), nested_not(60, "integer")),
    "anyOf": ("JSON", nested_any(4, "string"), nested_any(4, "integer")),
    "patterns": ("JSON", evil_patterns("string"), evil_patterns("integer")),
    "wide": (
        "JSON",
        json.dumps({"anyOf": [{"minLength": i} for i in range(60)]}),
        json.dumps({"anyOf": [{"maxLength": i} for i in range(60)]}),
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_schemas_made_to_be_compared_for_ever_are_compared_or_given_up(attack: str) -> None:
    kind, new, old = ATTACKS[attack]

    async def talk(ask: Ask) -> None:
        for text, codes in ((old, {200}), (new, {409, 42201})):
            status, answer = await ask("POST", "/subjects/a/versions", {"schemaType": kind, "schema": text})
            assert answer.get("error_code", status) in codes

    conversation(talk)


@pytest.mark.parametrize(
    "body",
    [
        b'{"schema":"\\"int\\"","metadata":' + b'{"tags":' * 5000 + b"1" + b"}" * 5001,
        b'{"schema":"\\"int\\"","ruleSet":{"domainRules":[' + b"{}," * 100_000 + b"{}]}}",
        b'{"schema":"\\"int\\"","nothing":[' + b"{}," * 1_000_000 + b"{}]}",
        b'{"schema":"' + b"[" * 300_000 + b'"}',
        b'{"schema":"' + b'{\\"type\\":\\"array\\",\\"items\\":' * 20_000 + b'\\"int\\"' + b"}" * 20_000 + b'"}',
        b'{"schemaType":"JSON","schema":"' + b'{\\"not\\":' * 20_000 + b"true" + b"}" * 20_000 + b'"}',
        b'{"schemaType":"PROTOBUF","schema":"' + b"message M {" * 20_000 + b'"}',
        b"[" * 1_000_000,
    ],
    ids=["metadata", "rules", "unknown", "brackets", "avro", "json", "protobuf", "body"],
)
def test_a_body_that_is_nested_or_repeated_is_refused_or_read(body: bytes) -> None:
    async def talk(ask: Ask) -> None:
        status, _ = await ask("POST", "/subjects/a/versions", body)
        assert status in (200, 400, 413, 422)

    conversation(talk)


def test_a_body_that_unpacks_to_too_much_is_refused() -> None:
    async def main() -> None:
        registry = Registry(MemoryLog())
        application = Application([Api(registry).routes()])
        bomb = gzip.compress(b'{"schema":"\\"int\\"","x":[' + b"{}," * 3_500_000 + b"{}]}", 1)
        async with registry.running():
            headers = [(b"content-encoding", b"gzip")]
            status, answer, _ = await call(application, "POST", "/subjects/a/versions", bomb, headers)
            assert (status, json.loads(answer)["error_code"]) == (413, 413)
            small = gzip.compress(json.dumps(INT).encode())
            assert (await call(application, "POST", "/subjects/a/versions", small, headers))[0] == 200

    assert MOST_BODY < 10_000_000
    asyncio.run(main())


@pytest.mark.slow
def test_other_processes_judge_as_this_one_does() -> None:
    async def talk(judge: Workers) -> None:
        prepared = await judge.prepare(Source("JSON", '{ "type": "object", "properties": {"a": {}} }'), normalize=True)
        assert (prepared.text, prepared.fields) == ('{"properties":{"a":{}},"type":"object"}', ("a",))
        assert await judge.meaning(FINE) == (await judge.prepare(FINE, normalize=False)).meaning
        assert '"symbols":["A"]' in await judge.shown(WITH_REFERENCE, "resolved")
        assert await judge.objections(Comparison(Source("AVRO", '"string"'), FINE, backward=True, forward=False))
        assert not await judge.objections(Comparison(Source("AVRO", '"long"'), FINE, backward=True, forward=False))
        with pytest.raises(InvalidSchemaError, match="not JSON"):
            await judge.prepare(Source("AVRO", "{"), normalize=False)

    running(talk)


@pytest.mark.slow
def test_nobody_waits_for_a_schema_that_takes_for_ever() -> None:
    new, old = (Source("JSON", many_parts(least)) for least in (1, 0))
    endless = Comparison(new, old, backward=True, forward=True)

    async def talk(judge: Workers) -> None:
        await judge.prepare(FINE, normalize=False)
        hostile = asyncio.create_task(judge.objections(endless))
        await asyncio.sleep(0)
        for _ in range(5):
            await judge.prepare(FINE, normalize=False)
        assert not hostile.done()
        with pytest.raises(InvalidSchemaError, match="too complex"):
            await hostile
        assert (await judge.prepare(FINE, normalize=False)).text == '"int"'

    running(talk, processor_seconds=0.5)


@pytest.mark.slow
def test_a_process_that_is_killed_or_does_not_answer_is_replaced() -> None:
    async def talk(judge: Workers) -> None:
        await judge.prepare(FINE, normalize=False)
        worker = judge._idle[0]._process.pid
        os.kill(worker, signal.SIGSTOP)
        judge._answer_seconds = 0.1  # for this one alone: others may take long to start
        with pytest.raises(InvalidSchemaError, match="given up"):
            await judge.prepare(FINE, normalize=False)
        judge._answer_seconds = 120.0
        await judge.prepare(FINE, normalize=False)
        os.kill(judge._idle[0]._process.pid, signal.SIGKILL)
        with pytest.raises(InvalidSchemaError):
            await judge.prepare(FINE, normalize=False)
        assert (await judge.prepare(FINE, normalize=False)).text == '"int"'

    running(talk, answer_seconds=120.0)
