"""The gateway's own document: valid, with examples that are what they describe, and anchors for every problem."""

import ast
import asyncio
import re
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import jsonschema
from openapi_spec_validator import validate

import headrace
from headrace.gateway.app import make_application
from headrace.gateway.problems import CODES
from headrace.gateway.schemas import mount_registry
from headrace.gateway.settings import Settings
from headrace.gateway.translate import STATUS
from tests.support.asgi import Asker, Reply

SOURCES = Path(headrace.__file__).parent


def asked(target: str) -> Reply:
    application = make_application(Settings(bootstrap=()), mounts=[mount_registry])
    return asyncio.run(Asker(application)("GET", target))


def test_the_document_is_valid() -> None:
    validate(asked("/openapi.json").json)


def exampled(operation: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """All of an operation that has an example: parameters, bodies and answers that are no problems."""
    for parameter in operation["parameters"]:
        yield parameter["name"], parameter
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f"body {media}", content
    for status, reply in operation["responses"].items():
        for media, content in reply.get("content", {}).items():
            if media != "application/problem+json":
                yield f"{status} {media}", content


def test_each_operation_is_described_and_its_examples_are_what_it_says() -> None:
    spec = asked("/openapi.json").json
    names = set()
    for path, methods in spec["paths"].items():
        for method, operation in methods.items():
            where = f"{method} {path}"
            names.add(operation["operationId"])
            assert operation["summary"], where
            assert operation["description"], where
            for what, content in exampled(operation):
                assert "example" in content, (where, what)
                schema = {**content.get("schema", {}), "components": spec["components"]}
                jsonschema.Draft202012Validator(schema).validate(content["example"])
    assert len(names) == sum(len(methods) for methods in spec["paths"].values())


def codes_in(source: str) -> Iterator[str]:
    """Codes that a module gives to problems."""
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        name = getattr(call.func, "id", "")
        given = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
        if name == "bad_request":
            given += call.args[1:2]
        if name in ("Problem", "bad_request"):
            yield from (str(value.value) for value in given if isinstance(value, ast.Constant))


def test_each_code_that_a_problem_can_have_is_told_on_the_page() -> None:
    sources = [path.read_text() for part in ("web", "gateway") for path in (SOURCES / part).rglob("*.py")]
    raised = {code for source in sources for code in codes_in(source)} | {code for _, code in STATUS.values()}
    assert raised >= {"unknown-topic", "rate-limited", "invalid-json", "wrong-host", "callback-refused"}
    page = asked("/docs").body.decode()
    anchors = set(re.findall(r"id='problem-([a-z-]+)'", page))
    assert raised - anchors == set()
    assert anchors == set(CODES)
    assert "<script" not in page
    assert {HTTPStatus(408).phrase.lower().replace(" ", "-"), "not-found"} <= anchors
