"""The columns of documents that a JSON Schema describes."""

import json
from typing import Any

import pytest

from headrace.formats.errors import OptionError
from headrace.formats.json_schema import spark_type_of
from headrace.registry.schemas.model import Dependency


def columns(properties: dict[str, Any], **more: Any) -> str:
    return str(spark_type_of(json.dumps({"type": "object", "properties": properties, **more})).simple_string())


def test_types_are_those_of_the_values() -> None:
    properties = {
        "a": {"type": "string"},
        "b": {"type": "integer"},
        "c": {"type": "number"},
        "d": {"type": "boolean"},
        "e": {"type": "array", "items": {"type": "integer"}},
        "f": {"type": "object", "properties": {"x": {"type": "string"}}},
        "g": {"type": "object", "additionalProperties": {"type": "number"}},
    }
    assert columns(properties) == (
        "struct<a:string,b:bigint,c:double,d:boolean,e:array<bigint>,f:struct<x:string>,g:map<string,double>>"
    )


def test_null_makes_no_difference() -> None:
    null = {"type": "null"}
    assert columns({"a": {"type": ["null", "integer"]}, "b": {"oneOf": [null, {"type": "number"}]}}) == (
        "struct<a:bigint,b:double>"
    )


@pytest.mark.parametrize(
    "schema",
    [
        {},
        True,
        {"type": ["string", "integer"]},
        {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "object"},
        {"$ref": "#/missing"},
        {"enum": [1, "a"]},
    ],
)
def test_what_may_be_of_several_types_is_text(schema: Any) -> None:
    assert columns({"a": schema}) == "struct<a:string>"


def test_values_that_are_listed_tell_their_type() -> None:
    assert columns({"a": {"enum": ["x", "y", None]}, "b": {"const": 3}, "c": {"enum": [True]}}) == (
        "struct<a:string,b:bigint,c:boolean>"
    )


def test_references_are_followed_but_not_in_circles() -> None:
    definitions = {
        "line": {"type": "object", "properties": {"n": {"type": "integer"}, "more": {"$ref": "#/definitions/line"}}}
    }
    assert columns({"l": {"$ref": "#/definitions/line"}}, definitions=definitions) == (
        "struct<l:struct<n:bigint,more:string>>"
    )


def test_references_to_other_schemas_are_followed() -> None:
    user = Dependency(
        name="user.json",
        text='{"type": "object", "properties": {"name": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}}',
    )
    schema = {"properties": {"by": {"$ref": "user.json"}, "n": {"$ref": "user.json#/$defs/n"}}}
    assert spark_type_of(json.dumps(schema), [user]).simple_string() == "struct<by:struct<name:bigint>,n:bigint>"


def test_all_parts_of_an_object_are_its_fields() -> None:
    parts = [{"properties": {"b": {"type": "integer"}}}, {"required": ["a"]}]
    assert columns({"a": {"type": "string"}}, allOf=parts) == "struct<a:string,b:bigint>"


def test_what_is_no_object_cannot_become_columns() -> None:
    with pytest.raises(OptionError):
        spark_type_of('{"type": "string"}')
