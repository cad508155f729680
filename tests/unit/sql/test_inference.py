"""What values are, judged by some of them."""

import json
from typing import Any

import pytest

from headrace.formats.ddl import parse_schema
from headrace.sql.inference import inferred


def schema(*documents: Any) -> str:
    found = inferred([], [json.dumps(one).encode() for one in documents])
    assert found.format == "json"
    return parse_schema(found.schema).simple_string().removeprefix("struct<").removesuffix(">")


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ([{"a": 1}, {"a": 2, "b": "x"}], "a:bigint,b:string"),
        ([{"a": 1}, {"a": 1.5}], "a:double"),
        ([{"a": 1}, {"a": 2**63}], "a:decimal(38,0)"),
        ([{"a": 10**40}], "a:double"),
        ([{"a": None}], "a:string"),
        ([{"a": None}, {"a": True}], "a:boolean"),
        ([{"a": 1}, {"a": "x"}], "a:string"),
        ([{"a": [1, 2.5]}, {"a": []}], "a:array<double>"),
        ([{"a": []}], "a:array<string>"),
        ([{"a": {}}], "a:string"),
        (
            [{"a": {"b": 1}}, {"a": {"c": [{"d": 1}, {"e": "x"}]}}],
            "a:struct<b:bigint,c:array<struct<d:bigint,e:string>>>",
        ),
        ([{"a": {"b": 1, "B": 2}}], "a:string"),
        ([{"a": {"": 1}}], "a:string"),
        ([{"a": {str(n): n for n in range(200)}}], "a:map<string,bigint>"),
        ([{"a": "2024-01-01T00:00:00Z"}], "a:string"),
    ],
)
def test_documents_have_the_fields_that_all_of_them_have(documents: list[Any], expected: str) -> None:
    assert schema(*documents) == expected


def test_a_few_values_that_are_none_do_not_hide_that_the_others_are_documents() -> None:
    values = [b'{"a": 1}'] * 19 + [b"oops"]
    assert inferred([], values).format == "json"
    assert inferred([], [b'{"a": 1}', b"oops"]).format == "string"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([b"text", "wörld".encode()], "string"),
        ([b"\xff"], "raw"),
        ([b"\x00\x00\x00\x2a"], "raw"),
        ([], "raw"),
        ([None], "raw"),
        ([b"1", b"2"], "string"),
        ([b"[1]"], "string"),
        ([b"{}"], "string"),
    ],
)
def test_other_values_are_text_or_bytes(values: list[bytes | None], expected: str) -> None:
    assert inferred([], values).format == expected


def test_keys_are_text_only_where_none_is_a_number_that_looks_so() -> None:
    assert inferred([b"a", None], []).key_format == "string"
    assert inferred([b"\x00\x00\x00\x00\x00\x00\x00\x07"], []).key_format == "raw"
    assert inferred([None], []).key_format == "raw"


def test_values_with_the_ids_of_schemas_are_told_from_others() -> None:
    assert inferred([], [b"\x00\x00\x00\x00\x01\x02"]).is_framed
    assert not inferred([], [b"\x00\x00", b"\x00\x00\x00\x00\x01\x02"]).is_framed
