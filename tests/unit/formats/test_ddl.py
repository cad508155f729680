"""Schemas in Spark's words, read without Spark."""

import pytest
from hypothesis import given

from headrace.formats import types as t
from headrace.formats.ddl import parse_schema
from headrace.formats.errors import OptionError
from tests.support.spark.documents import structs


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id BIGINT, name STRING", "struct<id:bigint,name:string>"),
        ("id: bigint, name: string", "struct<id:bigint,name:string>"),
        ("struct<id: int, at: timestamp>", "struct<id:int,at:timestamp>"),
        ("STRUCT<id INT NOT NULL COMMENT 'the \\' key', x FLOAT>", "struct<id:int,x:float>"),
        ("a array<map<string,struct<b:array<int>>>>", "struct<a:array<map<string,struct<b:array<int>>>>>"),
        ("`odd, ``name``` double", "struct<odd, `name`:double>"),
        ("a decimal, b DECIMAL(5), c numeric(38, 10)", "struct<a:decimal(10,0),b:decimal(5,0),c:decimal(38,10)>"),
        (
            "a tinyint, b byte, c smallint, d short, e integer, f long, g real",
            "struct<a:tinyint,b:tinyint,c:smallint,d:smallint,e:int,f:bigint,g:float>",
        ),
        ("a boolean, b binary, c date, d timestamp_ntz", "struct<a:boolean,b:binary,c:date,d:timestamp_ntz>"),
        ("date date, struct struct<array: string>", "struct<date:date,struct:struct<array:string>>"),
        ("\n id\tint ,\n b int\n", "struct<id:int,b:int>"),
    ],
)
def test_ddl_is_read_as_spark_reads_it(text: str, expected: str) -> None:
    assert parse_schema(text).simple_string() == expected


def test_not_null_is_kept() -> None:
    assert [field.nullable for field in parse_schema("a int not null, b int").fields] == [False, True]


@given(structs())
def test_a_schema_is_what_its_json_says(spark_type: t.StructType) -> None:
    assert parse_schema(spark_type.json()) == spark_type


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id", "expected a type at the end"),
        ("id bigint,", "expected a field's name at the end"),
        ("id bigint name string", "expected the end but found 'name' at character 11"),
        ("id varchar", "found 'varchar' at character 4"),
        ("a array<int", "expected '>' at the end"),
        ("a map<string>", "expected ',' but found '>'"),
        ("a decimal(39)", "decimal(39,0) cannot be"),
        ("a decimal(5,6)", "decimal(5,6) cannot be"),
        ("a decimal(x)", "expected a number but found 'x'"),
        ("a int, a string", "the field 'a' is there twice"),
        ("a struct<b int, b int>", "the field 'b' is there twice"),
        ("a-b int", "found '-'"),
        ("struct<>", "at least one field"),
        ("a " + "array<" * 200, "more than 100 deep"),
        ('{"type": "map"}', "not a Spark schema in JSON"),
        ("{", "not a Spark schema in JSON"),
        ('{"type": "struct", "fields": []}', "at least one field"),
    ],
)
def test_what_is_no_schema_is_refused_with_the_place(text: str, said: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_schema(text)
    assert said in str(caught.value)
    assert str(caught.value).startswith("schema: ")
