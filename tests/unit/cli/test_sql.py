"""`headrace sql`: what is asked, how it is answered, what is refused."""

import json
from pathlib import Path

import pytest

from headrace.cli.sql_shell import Shell
from headrace.sql.engine import Engine, EngineOptions
from headrace.testing import Broker
from tests.support.cli import Headrace

pytest.importorskip("duckdb")


@pytest.fixture
def orders(cluster: Broker, headrace: Headrace) -> str:
    name = "sql-orders"
    if headrace("topic", "describe", name).returncode:
        headrace("topic", "create", name)
        headrace("produce", name, stdin=b'{"id": 1, "who": "a"}\n{"id": 2, "who": "b"}\n')
    return name


def test_an_answer_is_a_table_json_csv_or_a_file(headrace: Headrace, orders: str, tmp_path: Path) -> None:
    query = 'SELECT id, who FROM "sql-orders" ORDER BY id'
    assert headrace("sql", query).stdout == b"id  who\n--  ---\n 1  a\n 2  b\n"
    assert headrace("sql", query, "--json").stdout == b'{"id":1,"who":"a"}\n{"id":2,"who":"b"}\n'
    done = headrace("sql", query, "--output", str(tmp_path / "a.csv"))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert (tmp_path / "a.csv").read_text() == "id,who\n1,a\n2,b\n"
    assert headrace("sql", stdin=b"SELECT 1 AS one;\n").stdout.split() == [b"one", b"---", b"1"]


def test_fields_are_declared_and_reading_begins_where_it_is_said(headrace: Headrace, orders: str) -> None:
    query = "SELECT * EXCLUDE (_timestamp) FROM sql_orders"
    found = headrace("sql", query, "--schema", "sql-orders=who STRING", "--from", "-1", "--json").stdout
    assert json.loads(found) == {
        "who": "b",
        "_key": None,
        "_topic": "sql-orders",
        "_partition": 0,
        "_offset": 1,
        "_headers": None,
        "_tombstone": False,
        "_error": None,
    }
    raw = headrace("sql", "SELECT value FROM sql_orders", "--read", "sql-orders:format=raw", "--json").stdout
    assert json.loads(raw.splitlines()[0]) == {"value": '{"id": 1, "who": "a"}'}


def test_records_that_cannot_be_decoded_are_told_on_stderr(headrace: Headrace, orders: str) -> None:
    declared = ["--schema", "sql-orders=who BIGINT"]
    done = headrace("sql", "SELECT count(*) AS n, count(_error) AS bad FROM sql_orders", "--json", *declared)
    assert done.stdout == b'{"n":2,"bad":2}\n'
    assert done.stderr.startswith(b"headrace: sql-orders: 2 records could not be decoded")
    failed = headrace("sql", "SELECT who FROM sql_orders", "--bad-records", "fail", *declared)
    assert failed.returncode == 1
    assert b"sql-orders-0 offset 0" in failed.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["SELECT * FROM sql_order"], 1, "did you mean sql-orders?"),
        (["DROP TABLE x"], 1, "only queries"),
        (["SELECT * FROM '/etc/passwd'"], 1, "--files"),
        (["SELECT count(*) FROM sql_orders", "--follow"], 1, "an aggregate cannot be followed"),
        (["SELECT 1", "--follow", "--format", "parquet"], 2, "--output"),
        (["SELECT 1", "--format", "xml"], 1, "table, json, csv, parquet"),
        (["SELECT 1", "--schema", "orders"], 2, "TOPIC=SCHEMA"),
        (["SELECT 1", "--read", "orders.format=avro"], 2, "TOPIC:NAME=VALUE"),
        (["SELECT 1", "--bad-records", "lose"], 1, "keep, skip, fail"),
        (["SELECT 1", "--files", "/nowhere"], 2, "no such directory"),
        (["SELECT 1", "--memory", "much"], 1, "emory"),
        (["SELECT 1", "--on", "flink"], 2, "duckdb or spark"),
        (["SELECT 1", "--output", "/nowhere/a.csv"], 1, "no directory"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(
    headrace: Headrace, orders: str, arguments: list[str], code: int, message: str
) -> None:
    done = headrace("sql", *arguments)
    assert message in done.stderr.decode()
    assert done.returncode == code
    assert len(done.stderr.splitlines()) == 1


def test_the_prompt_takes_lines_until_a_semicolon_and_survives_errors(
    cluster: Broker, orders: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def answer(text: str) -> None:
        asked.append(text)
        if "fail" in text:
            raise ValueError("told")

    with Engine(EngineOptions(client={"bootstrap.servers": cluster.bootstrap})) as engine:
        shell = Shell(engine, answer)
        assert shell.take(["SELECT 1"]) == ["SELECT 1"]
        assert shell.take(["SELECT 1", ", 2;"]) == []
        assert shell.take(["fail;"]) == []
        assert shell.take([";"]) == []
        assert shell.take([r"\d"]) == []
        assert shell.take([r"\d sql-orders"]) == []
        assert shell.take([r"\d nothing"]) == []
        assert shell.take([r"\?"]) == []
    assert asked == ["SELECT 1\n, 2;", "fail;"]
    out, err = capsys.readouterr()
    assert "sql-orders\n" in out
    assert "who" in out
    assert "JSON, as 2 values look" in err
    assert "told" in err
