"""Metadata, rules and settings that are laid over schemas, as Confluent's registry has them."""

import json
from typing import Any

import pytest

from tests.unit.registry.test_api import INT, LONG, TEXT, Ask, code, conversation

RULE = {"name": "positive", "kind": "CONDITION", "mode": "WRITE", "type": "CEL", "expr": "message > 0"}


def test_a_schema_without_a_text_takes_the_latest_ones_with_other_metadata() -> None:
    async def talk(ask: Ask) -> None:
        await ask("POST", "/subjects/a/versions", INT)
        _, answer = await ask("POST", "/subjects/a/versions", {"metadata": {"properties": {"owner": "shop", "n": 7}}})
        assert (answer["version"], answer["schema"]) == (2, '"int"')
        assert answer["metadata"] == {"properties": {"n": "7", "owner": "shop"}}
        _, answer = await ask("POST", "/subjects/a/versions", {**LONG})
        assert answer["metadata"]["properties"]["owner"] == "shop"
        assert (await ask("GET", "/subjects/a/metadata?key=n&value=7"))[1]["version"] == 3

    conversation(talk)


def test_default_and_override_metadata_are_laid_over_schemas() -> None:
    async def talk(ask: Ask) -> None:
        settings = {
            "defaultMetadata": {"properties": {"owner": "nobody", "team": "x"}},
            "overrideMetadata": {"properties": {"region": "eu"}, "sensitive": ["owner"]},
            "overrideRuleSet": {"domainRules": [RULE]},
        }
        assert (await ask("PUT", "/config/a", settings))[0] == 200
        _, answer = await ask("POST", "/subjects/a/versions", {**INT, "metadata": {"properties": {"owner": "shop"}}})
        assert answer["metadata"]["properties"] == {"owner": "shop", "region": "eu", "team": "x"}
        assert answer["metadata"]["sensitive"] == ["owner"]
        assert [rule["name"] for rule in answer["ruleSet"]["domainRules"]] == ["positive"]
        assert (await ask("POST", "/subjects/a/versions", {**INT, "metadata": {"properties": {"owner": "shop"}}}))[1][
            "version"
        ] == 1
        assert (await ask("POST", "/subjects/a", INT))[1]["version"] == 1
        assert [e["subject"] for e in (await ask("GET", "/schemas?ruleType=CEL"))[1]] == ["a"]
        assert (await ask("GET", "/schemas?ruleType=ENCRYPT"))[1] == []

    conversation(talk)


def test_a_schema_notes_its_version_where_it_is_asked_to() -> None:
    async def talk(ask: Ask) -> None:
        for schema, version in ((INT, "1"), (LONG, "2")):
            _, answer = await ask("POST", "/subjects/a/versions", {**schema, "version": -1})
            assert answer["metadata"] == {"properties": {"confluent:version": version}}
        assert (await ask("POST", "/subjects/a", LONG))[1]["version"] == 2

    conversation(talk)


@pytest.mark.parametrize(
    "rule",
    [
        {**RULE, "kind": "WISH"},
        {**RULE, "mode": "SOMETIMES"},
        {**RULE, "mode": "UPGRADE"},
        {**RULE, "type": None},
        {**RULE, "name": "1st"},
        {**RULE, "name": "x" * 300},
        {**RULE, "onFailure": "DLQ,NONE"},
        {**RULE, "expresion": "message > 0"},
        {**RULE, "params": {"deep": {"er": 1}}},
    ],
)
def test_a_rule_that_no_client_could_carry_out_is_refused(rule: dict[str, Any]) -> None:
    async def talk(ask: Ask) -> None:
        rules = {"domainRules": [rule]}
        assert (await ask("POST", "/subjects/a/versions", {**INT, "ruleSet": rules}))[0] == 422
        assert (await ask("PUT", "/config", {"defaultRuleSet": rules}))[0] == 422
        assert await ask("GET", "/subjects") == (200, [])

    conversation(talk)


def test_two_rules_of_a_name_are_refused() -> None:
    async def talk(ask: Ask) -> None:
        rules = {"domainRules": [RULE, RULE]}
        assert code(await ask("POST", "/subjects/a/versions", {**INT, "ruleSet": rules})) == (422, 42210)

    conversation(talk)


@pytest.mark.parametrize(
    "settings",
    [
        {"compatibilty": "FULL"},
        {"validateRules": False},
        {"compatibilityPolicy": "LOGICAL"},
        {"normalize": "yes"},
        {"defaultMetadata": {"props": {}}},
        {"defaultMetadata": {"properties": {"a": [1]}}},
    ],
)
def test_a_setting_that_would_be_ignored_is_refused(settings: dict[str, Any]) -> None:
    async def talk(ask: Ask) -> None:
        assert (await ask("PUT", "/config", settings))[0] == 422
        assert (await ask("GET", "/config"))[1] == {"compatibilityLevel": "BACKWARD"}

    conversation(talk)


def test_an_alias_stands_for_its_subject() -> None:
    async def talk(ask: Ask) -> None:
        await ask("POST", "/subjects/a/versions", INT)
        await ask("PUT", "/config/b", {"alias": "a"})
        assert (await ask("GET", "/subjects/b/versions/latest"))[1]["subject"] == "a"
        assert (await ask("POST", "/subjects/b/versions", LONG))[1]["version"] == 2
        assert (await ask("GET", "/schemas/ids/2?subject=b"))[1]["subject"] == "a"
        _, listed = await ask("GET", "/schemas?subjectPrefix=b&aliases=true&latestOnly=true")
        assert [(each["subject"], each["aliases"]) for each in listed] == [("a", ["b"])]

    conversation(talk)


def test_reserved_fields_are_kept_free_where_that_is_asked_for() -> None:
    async def talk(ask: Ask) -> None:
        schema = '{"type":"record","name":"R","fields":[{"name":"ssn","type":"int"}]}'
        await ask("PUT", "/config", {"validateFields": True})
        reserved = {"schema": schema, "metadata": {"properties": {"confluent:reserved": "ssn"}}}
        assert code(await ask("POST", "/subjects/a/versions", reserved)) == (409, 409)
        reserved["metadata"] = {"properties": {"confluent:reserved": "pin"}}
        assert (await ask("POST", "/subjects/a/versions", reserved))[0] == 200
        freed = {"schema": schema, "metadata": {"properties": {"owner": "x"}}}
        assert code(await ask("POST", "/subjects/a/versions", freed)) == (409, 409)

    conversation(talk)


def test_the_lenient_policy_lets_an_open_model_be_narrowed() -> None:
    async def talk(ask: Ask) -> None:
        one = {"schemaType": "JSON", "schema": '{"type":"object","properties":{"a":{"type":"string"}}}'}
        more = '{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"integer"}}}'
        await ask("POST", "/subjects/a/versions", one)
        assert code(await ask("POST", "/subjects/a/versions", {**one, "schema": more})) == (409, 409)
        await ask("PUT", "/config", {"compatibilityPolicy": "lenient"})
        assert (await ask("POST", "/subjects/a/versions", {**one, "schema": more}))[1]["version"] == 2
        wrong = '{"type":"object","properties":{"a":{"type":"integer"}}}'
        assert code(await ask("POST", "/subjects/a/versions", {**one, "schema": wrong})) == (409, 409)

    conversation(talk)


def test_a_schema_with_references_is_found_with_them_written_out() -> None:
    async def talk(ask: Ask) -> None:
        inner = {"type": "enum", "name": "n.E", "symbols": ["A"]}
        await ask("POST", "/subjects/e/versions", {"schema": '{"type":"enum","name":"n.E","symbols":["A"]}'})
        outer = '{"type":"record","name":"R","fields":[{"name":"e","type":"n.E"}]}'
        references = [{"name": "n.E", "subject": "e", "version": -1}]
        _, answer = await ask("POST", "/subjects/a/versions", {"schema": outer, "references": references})
        assert answer["references"][0]["version"] == 1
        whole = outer.replace('"n.E"', json.dumps(inner))
        assert (await ask("POST", "/subjects/a", {"schema": whole}))[1]["id"] == answer["id"]
        await ask("POST", "/subjects/:.x:e/versions", {"schema": '{"type":"enum","name":"n.E","symbols":["A"]}'})
        await ask("POST", "/subjects/:.x:a/versions", {"schema": outer, "references": references})
        for path in ("/subjects/:.x:a/versions/1", "/schemas/ids/2"):
            _, found = await ask("GET", f"{path}?referenceFormat=qualified&subject=:.x:a")
            assert found["references"][0]["subject"] == ":.x:e"

    conversation(talk)


def test_ids_end_where_clients_cannot_read_them() -> None:
    async def talk(ask: Ask) -> None:
        await ask("PUT", "/mode/a", {"mode": "IMPORT"})
        assert (await ask("POST", "/subjects/a/versions", {**INT, "id": 2**31}))[0] == 422
        assert (await ask("POST", "/subjects/a/versions", {**INT, "id": 2**31 - 1}))[0] == 200
        assert code(await ask("POST", "/subjects/b/versions", TEXT)) == (422, 42205)
        assert code(await ask("GET", f"/schemas/ids/{2**31}")) == (404, 404)

    conversation(talk)
