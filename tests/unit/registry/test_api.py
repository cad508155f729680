"""The registry's answers, status by status, without a network."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import pytest

from headrace.registry.api import routes
from headrace.registry.api.media import MEDIA
from headrace.registry.api.routes import Api
from headrace.registry.decisions import MOST_SCHEMA
from headrace.registry.log import LogEntry, LogUnavailableError, MemoryLog
from headrace.registry.service import Registry
from headrace.schema_log.records import FORMAT
from headrace.web.application import Application
from headrace.web.openapi import documented

Ask = Callable[..., Awaitable[tuple[int, Any]]]
INT, LONG, TEXT = {"schema": '"int"'}, {"schema": '"long"'}, {"schema": '"string"'}


def record(*names: str) -> dict[str, str]:
    fields = [{"name": name, "type": "int", "default": 0} for name in names]
    return {"schema": json.dumps({"type": "record", "name": "R", "fields": fields})}


async def call(
    application: Application, method: str, target: str, body: Any = None, headers: Any = ()
) -> tuple[int, Any, bytes]:
    path, _, query = target.partition("?")
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(b"host", b"registry"), *headers],
    }
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": raw}

    async def send(message: Any) -> None:
        sent.append(message)

    await application(scope, receive, send)
    kinds = dict(sent[0]["headers"])
    return sent[0]["status"], sent[1]["body"], kinds.get(b"content-type", b"")


def conversation(talk: Callable[[Ask], Awaitable[None]], log: MemoryLog | None = None) -> None:
    async def main() -> None:
        registry = Registry(log or MemoryLog(), patience=5)
        application = Application([Api(registry).routes()])

        async def ask(method: str, target: str, body: Any = None) -> tuple[int, Any]:
            status, answer, kind = await call(application, method, target, body)
            assert kind == MEDIA
            try:
                return status, json.loads(answer)
            except ValueError:
                return status, answer.decode()

        async with registry.running():
            await talk(ask)

    asyncio.run(main())


def code(answer: tuple[int, Any]) -> tuple[int, int]:
    return answer[0], answer[1]["error_code"]


def test_a_schema_keeps_its_id_in_every_subject_and_gets_versions_in_each() -> None:
    async def talk(ask: Ask) -> None:
        for subject, schema, expected in (
            ("a", INT, (1, 1)),
            ("b", INT, (1, 1)),
            ("b", LONG, (2, 2)),
            ("a", INT, (1, 1)),
        ):
            status, answer = await ask("POST", f"/subjects/{subject}/versions", schema)
            assert (status, answer["id"], answer["version"]) == (200, *expected)
        assert await ask("GET", "/schemas/ids/1/subjects") == (200, ["a", "b"])
        assert await ask("GET", "/schemas/ids/1/versions?limit=1") == (200, [{"subject": "a", "version": 1}])
        assert await ask("GET", "/schemas/ids/2/schema") == (200, "long")
        assert await ask("GET", "/subjects/b/versions/latest/schema") == (200, "long")
        assert (await ask("GET", "/subjects/b/versions/-1"))[1]["id"] == 2
        assert [e["id"] for e in (await ask("GET", "/schemas?latestOnly=true"))[1]] == [1, 2]

    conversation(talk)


def test_avro_has_no_type_in_answers_and_others_have() -> None:
    async def talk(ask: Ask) -> None:
        await ask("POST", "/subjects/a/versions", INT)
        await ask("POST", "/subjects/j/versions", {"schema": '{ "type": "string" }', "schemaType": "JSON"})
        assert "schemaType" not in (await ask("GET", "/schemas/ids/1"))[1]
        _, answer = await ask("GET", "/schemas/ids/2")
        assert (answer["schemaType"], answer["schema"]) == ("JSON", '{"type":"string"}')

    conversation(talk)


@pytest.mark.parametrize(
    ("method", "target", "body", "expected"),
    [
        ("GET", "/subjects/none/versions", None, (404, 40401)),
        ("GET", "/subjects/a/versions/9", None, (404, 40402)),
        ("GET", "/subjects/none/versions/1", None, (404, 40401)),
        ("GET", "/subjects/a/versions/0", None, (422, 42202)),
        ("GET", "/subjects/a/versions/first", None, (422, 42202)),
        ("GET", "/schemas/ids/99", None, (404, 40403)),
        ("GET", "/schemas/ids/x", None, (404, 404)),
        ("GET", "/config/a", None, (404, 40408)),
        ("GET", "/mode/a", None, (404, 40409)),
        ("DELETE", "/config/a", None, (404, 40401)),
        ("POST", "/subjects/a", LONG, (404, 40403)),
        ("POST", "/subjects/none", LONG, (404, 40401)),
        ("POST", "/subjects/a/versions", TEXT, (409, 409)),
        ("POST", "/subjects/a/versions", {"schema": "{"}, (422, 42201)),
        *(
            ("POST", "/subjects/a/versions", {"schema": f'{{"type":"int","x":{x}}}'}, (422, 42201))
            for x in ("NaN", "Infinity", "-Infinity", "1e999", '"\\ud800"')
        ),
        ("POST", "/subjects/none/versions", {"schema": ""}, (422, 42201)),
        ("POST", "/subjects/none/versions", {}, (422, 42201)),
        ("POST", "/subjects/a", {}, (422, 42201)),
        ("POST", "/subjects/a/versions", {"schema": '"int"', "schemaType": "XML"}, (422, 42201)),
        ("POST", "/subjects/a/versions", {"schema": '"int"', "references": [1]}, (422, 422)),
        ("POST", "/subjects/a/versions", b"nonsense", (400, 400)),
        ("POST", "/subjects/a/versions", [1], (422, 422)),
        ("POST", "/subjects/a/versions", {**LONG, "id": 7}, (422, 42205)),
        ("POST", "/subjects/a/versions", {**LONG, "version": 7}, (422, 42201)),
        ("POST", "/subjects/a/versions", {"schema": '"' + "x" * MOST_SCHEMA + '"'}, (422, 42209)),
        ("POST", f"/subjects/{quote(chr(7))}/versions", INT, (422, 42208)),
        ("PUT", "/config", {"compatibility": "SIDEWAYS"}, (422, 42203)),
        ("PUT", "/config", {"compatibility": {"level": "FULL"}}, (422, 42203)),
        ("PUT", "/mode", {"mode": "SIDEWAYS"}, (422, 42204)),
        ("PUT", "/mode", {"mode": "IMPORT"}, (422, 42205)),
        ("DELETE", "/subjects/none", None, (404, 40401)),
        ("DELETE", "/subjects/a/versions/9", None, (404, 40402)),
        ("DELETE", "/subjects/a?permanent=true", None, (404, 40405)),
        ("DELETE", "/subjects/a/versions/1?permanent=true", None, (404, 40407)),
        ("POST", "/compatibility/subjects/a/versions/9", LONG, (404, 40402)),
        ("POST", "/compatibility/subjects/none/versions/9", LONG, (404, 40402)),
        ("POST", "/compatibility/subjects/a/versions/1", {"schema": "{"}, (422, 42201)),
    ],
)
def test_a_refusal_has_confluents_code(method: str, target: str, body: Any, expected: tuple[int, int]) -> None:
    async def talk(ask: Ask) -> None:
        await ask("POST", "/subjects/a/versions", INT)
        assert code(await ask(method, target, body)) == expected
        assert (await ask("GET", "/subjects/a/versions")) == (200, [1])

    conversation(talk)


def test_deleting_twice_is_told_apart_from_deleting_what_never_was() -> None:
    async def talk(ask: Ask) -> None:
        await ask("POST", "/subjects/a/versions", INT)
        await ask("POST", "/subjects/a/versions", LONG)
        assert await ask("DELETE", "/subjects/a/versions/1") == (200, 1)
        assert code(await ask("DELETE", "/subjects/a/versions/1")) == (404, 40406)
        assert await ask("DELETE", "/subjects/a") == (200, [2])
        assert code(await ask("DELETE", "/subjects/a")) == (404, 40404)
        assert await ask("GET", "/subjects?deletedOnly=true") == (200, ["a"])
        assert await ask("GET", "/subjects/a/versions?deletedAsNegative=true&deleted=true") == (200, [-1, -2])

    conversation(talk)


def test_what_was_deleted_softly_comes_back_with_its_id_and_a_new_version() -> None:
    async def talk(ask: Ask) -> None:
        await ask("POST", "/subjects/a/versions", INT)
        await ask("DELETE", "/subjects/a")
        _, answer = await ask("POST", "/subjects/a/versions", INT)
        assert (answer["id"], answer["version"]) == (1, 2)

    conversation(talk)


def test_imports_keep_ids_and_versions() -> None:
    async def talk(ask: Ask) -> None:
        assert await ask("PUT", "/mode/a", {"mode": "IMPORT"}) == (200, {"mode": "IMPORT"})
        _, answer = await ask("POST", "/subjects/a/versions", {**INT, "id": 50, "version": 3})
        assert (answer["id"], answer["version"]) == (50, 3)
        assert code(await ask("POST", "/subjects/a/versions", {**TEXT, "id": 50, "version": 4})) == (422, 42207)
        assert code(await ask("POST", "/subjects/a/versions", TEXT)) == (422, 42205)
        await ask("DELETE", "/mode/a")
        _, answer = await ask("POST", "/subjects/b/versions", TEXT)
        assert answer["id"] == 51

    conversation(talk)


def test_settings_come_from_the_nearest_scope() -> None:
    async def talk(ask: Ask) -> None:
        assert await ask("GET", "/config") == (200, {"compatibilityLevel": "BACKWARD"})
        assert await ask("PUT", "/config", {"compatibility": "full"}) == (200, {"compatibility": "FULL"})
        assert await ask("PUT", "/config/:.x:", {"compatibility": "NONE"}) == (200, {"compatibility": "NONE"})
        assert (await ask("GET", "/config/a?defaultToGlobal=true"))[1] == {"compatibilityLevel": "FULL"}
        assert (await ask("GET", "/config/:.x:a?defaultToGlobal=true"))[1] == {"compatibilityLevel": "NONE"}
        await ask("PUT", "/config/a", {"compatibilityGroup": "major", "normalize": True})
        assert (await ask("PUT", "/config/a", {"normalize": None}))[1] == {"compatibilityGroup": "major"}
        assert await ask("DELETE", "/config") == (200, {"compatibilityLevel": "FULL"})
        assert (await ask("GET", "/config"))[1] == {"compatibilityLevel": "BACKWARD"}
        assert await ask("PUT", "/mode", {"mode": "READONLY_OVERRIDE"}) == (200, {"mode": "READONLY_OVERRIDE"})
        assert code(await ask("POST", "/subjects/:.x:a/versions", INT)) == (422, 42205)

    conversation(talk)


def test_a_compatibility_group_separates_versions() -> None:
    async def talk(ask: Ask) -> None:
        await ask("PUT", "/config", {"compatibilityGroup": "major"})
        for major, schema in (("1", INT), ("2", TEXT), ("1", LONG)):
            status, _ = await ask(
                "POST", "/subjects/a/versions", {**schema, "metadata": {"properties": {"major": major}}}
            )
            assert status == 200

    conversation(talk)


def test_normalizing_finds_what_is_only_written_differently() -> None:
    async def talk(ask: Ask) -> None:
        one = {"schemaType": "JSON", "schema": '{"type":"object","title":"x"}'}
        other = {"schemaType": "JSON", "schema": '{"title":"x","type":"object"}'}
        await ask("POST", "/subjects/j/versions?normalize=true", one)
        assert (await ask("POST", "/subjects/j?normalize=true", other))[1]["version"] == 1
        assert (await ask("POST", "/subjects/j", one))[1]["version"] == 1
        other["schema"] = '{"title":"y","type":"object"}'
        assert code(await ask("POST", "/subjects/j", other)) == (404, 40403)

    conversation(talk)


def test_reasons_are_told_when_asked_for() -> None:
    async def talk(ask: Ask) -> None:
        await ask("POST", "/subjects/a/versions", record("x"))
        bad = {"schema": '{"type":"record","name":"R","fields":[{"name":"y","type":"int"}]}'}
        _, answer = await ask("POST", "/compatibility/subjects/a/versions/latest?verbose=true", bad)
        assert not answer["is_compatible"]
        assert "READER_FIELD_MISSING_DEFAULT_VALUE" in answer["messages"][0]
        assert await ask("POST", "/compatibility/subjects/a/versions", bad) == (200, {"is_compatible": False})
        assert await ask("POST", "/compatibility/subjects/none/versions", bad) == (200, {"is_compatible": True})
        _, answer = await ask("POST", "/compatibility/subjects/a/versions/1?verbose=true", {"schema": "{"})
        assert not answer["is_compatible"]

    conversation(talk)


def test_references_of_every_type_are_followed() -> None:
    async def talk(ask: Ask) -> None:
        pieces = [
            ("AVRO", '{"type":"enum","name":"n.E","symbols":["A"]}', "n.E",
             '{"type":"record","name":"R","fields":[{"name":"e","type":"n.E"}]}'),
            ("JSON", '{"type":"string"}', "name.json",
             '{"type":"object","properties":{"n":{"$ref":"name.json"}}}'),
            ("PROTOBUF", 'syntax="proto3"; package n; message N { int32 a = 1; }', "n.proto",
             'syntax="proto3"; import "n.proto"; message M { n.N n = 1; }'),
        ]  # fmt: skip
        for kind, inner, name, outer in pieces:
            reference = {"name": name, "subject": f"{kind}-inner", "version": 1}
            assert (
                code(await ask("POST", f"/subjects/{kind}/versions", {"schema": outer, "schemaType": kind}))[1] == 42201
            )
            missing = {"schema": outer, "schemaType": kind, "references": [reference]}
            assert code(await ask("POST", f"/subjects/{kind}/versions", missing))[1] == 42201
            await ask("POST", f"/subjects/{kind}-inner/versions", {"schema": inner, "schemaType": kind})
            status, answer = await ask("POST", f"/subjects/{kind}/versions", missing)
            assert (status, answer["references"]) == (200, [reference])
            assert await ask("GET", f"/subjects/{kind}-inner/versions/1/referencedby") == (200, [answer["id"]])
            assert code(await ask("DELETE", f"/subjects/{kind}-inner")) == (422, 42206)
        _, resolved = await ask("GET", "/subjects/AVRO/versions/1?format=resolved")
        assert '"symbols":["A"]' in resolved["schema"]

    conversation(talk)


def test_an_answer_given_before_a_change_is_not_given_after_it() -> None:
    async def talk(ask: Ask) -> None:
        await ask("POST", "/subjects/a/versions", INT)
        for _ in range(2):
            assert (await ask("GET", "/subjects/a/versions/latest"))[1]["id"] == 1
        await ask("POST", "/subjects/a/versions", LONG)
        assert (await ask("GET", "/subjects/a/versions/latest"))[1]["id"] == 2
        await ask("DELETE", "/subjects/a")
        await ask("DELETE", "/subjects/a?permanent=true")
        assert code(await ask("GET", "/schemas/ids/1")) == (404, 40403)

    conversation(talk)


def test_what_is_answered_from_memory_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "_MOST_KEPT", 20_000)

    async def talk() -> None:
        registry = Registry(MemoryLog(), patience=5)
        api = Api(registry)
        application = Application([api.routes()])
        async with registry.running():
            schema = json.dumps({"type": "record", "name": "R", "doc": "x" * 5000, "fields": []})
            await call(application, "POST", "/subjects/a/versions", {"schema": schema})
            _, once, _ = await call(application, "GET", "/schemas/ids/1")
            for asked in range(20):
                assert (await call(application, "GET", f"/schemas/ids/1?asked={asked}"))[1] == once
                await call(application, "GET", "/schemas/types")
        kept = [question[0] for question in api._known]
        assert kept.count(b"/schemas/ids/1") == 3
        assert b"/schemas/types" in kept

    asyncio.run(talk())


def test_another_gateways_schema_is_found_at_once() -> None:
    async def main() -> None:
        log = MemoryLog()
        one, other = Registry(log), Registry(log)
        applications = [Application([Api(each).routes()]) for each in (one, other)]
        async with one.running(), other.running():
            for number in range(20):
                status, body, _ = await call(
                    applications[0], "POST", f"/subjects/s{number}/versions", record(f"f{number}")
                )
                assert status == 200
                status, _, _ = await call(applications[1], "GET", f"/schemas/ids/{json.loads(body)['id']}")
                assert status == 200

    asyncio.run(main())


class BrokenLog(MemoryLog):
    async def append(self, key: bytes, value: bytes) -> None:
        raise LogUnavailableError("the disk is full")


def test_a_log_that_cannot_be_written_is_a_coded_error() -> None:
    async def talk(ask: Ask) -> None:
        assert code(await ask("POST", "/subjects/a/versions", INT)) == (500, 50001)
        assert await ask("GET", "/subjects") == (200, [])

    conversation(talk, BrokenLog())


def test_a_log_of_a_newer_version_stops_the_registry_rather_than_being_guessed_at() -> None:
    async def talk(ask: Ask) -> None:
        assert code(await ask("POST", "/subjects/a/versions", INT)) == (500, 50001)

    log = MemoryLog()
    newer = json.dumps({"v": FORMAT + 1, "basis": 0, "reads": [], "kind": "other"}).encode()
    log.entries.append(LogEntry(offset=0, key=b"", value=newer))
    conversation(talk, log)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("application/json", "application/json"),
        ("application/vnd.schemaregistry+json; q=0.9, application/vnd.schemaregistry.v2+json", None),
        ("text/html, image/gif, *; q=.2, */*; q=.2", MEDIA.decode()),
        ("application/json;q=0.5, application/vnd.schemaregistry.v1+json", MEDIA.decode()),
        ("application/*", MEDIA.decode()),
        ("text/*", "406"),
        ("application/octet-stream", "406"),
    ],
)
def test_the_media_type_is_the_one_that_is_asked_for(accept: str, expected: str | None) -> None:
    async def main() -> None:
        registry = Registry(MemoryLog())
        application = Application([Api(registry).routes()])
        async with registry.running():
            headers = [(b"accept", accept.encode())]
            status, _, kind = await call(application, "GET", "/subjects", None, headers)
            missing = await call(application, "GET", "/subjects/none/versions", None, headers)
            if expected == "406":
                assert (status, missing[0]) == (406, 406)
            else:
                wanted = (expected or "application/vnd.schemaregistry+json").encode()
                assert (status, kind, missing[2]) == (200, wanted, wanted)
            form = [(b"content-type", b"application/x-www-form-urlencoded")]
            assert (await call(application, "PUT", "/config", {"compatibility": "FULL"}, form))[0] == 415

    asyncio.run(main())


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [("GET", "/subjects/a/nothing/here", 404), ("PATCH", "/subjects", 405), ("GET", "/config/a?defaultToGlobal", 404)],
)
def test_every_refusal_has_the_registrys_form(method: str, target: str, status: int) -> None:
    async def talk(ask: Ask) -> None:
        answer = await ask(method, target)
        assert answer[0] == status
        assert answer[1].keys() == {"error_code", "message"}

    conversation(talk)


@pytest.mark.parametrize("context", [":.x:", ".x", "x", quote(":.x:")])
def test_a_client_that_is_given_a_base_path_stays_in_its_context(context: str) -> None:
    async def talk(ask: Ask) -> None:
        base = f"/contexts/{context}"
        await ask("POST", "/subjects/a/versions", TEXT)
        assert (await ask("POST", f"{base}/subjects/a/versions", INT))[1]["id"] == 1
        assert await ask("GET", f"{base}/subjects") == (200, [":.x:a"])
        assert await ask("GET", f"{base}/subjects/a/versions") == (200, [1])
        assert (await ask("GET", f"{base}/subjects/{quote(':.x:a')}/versions/1"))[1]["schema"] == '"int"'
        assert (await ask("GET", f"{base}/schemas/ids/1"))[1]["schema"] == '"int"'
        assert (await ask("GET", f"{base}/schemas/ids/1?subject=a"))[1]["subject"] == ":.x:a"
        assert [each["subject"] for each in (await ask("GET", f"{base}/schemas"))[1]] == [":.x:a"]
        assert (await ask("PUT", f"{base}/config", {"compatibility": "NONE"}))[0] == 200
        assert (await ask("GET", "/config"))[1] == {"compatibilityLevel": "BACKWARD"}
        assert (await ask("GET", "/config/:.x:"))[1] == {"compatibilityLevel": "NONE"}
        assert (await ask("PUT", f"{base}/mode/a", {"mode": "READONLY"}))[0] == 200
        assert (await ask("GET", "/mode/:.x:a"))[1] == {"mode": "READONLY"}
        assert (await ask("POST", f"{base}/compatibility/subjects/a/versions/1", LONG))[1] == {"is_compatible": True}
        assert await ask("GET", f"{base}/schemas/types") == (200, ["JSON", "PROTOBUF", "AVRO"])
        assert code(await ask("GET", base))[0] == 404
        assert await ask("GET", "/contexts") == (200, [".", ".x"])

    conversation(talk)


def test_every_operation_is_documented() -> None:
    shown = documented([Api(Registry(MemoryLog())).routes()], title="x", version="1", about="")
    assert shown.operations
