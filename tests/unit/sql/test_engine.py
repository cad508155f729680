"""Topics as tables of DuckDB."""

import datetime
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import headrace.sql
from headrace.client import Admin
from headrace.client.columnar import write_arrow
from headrace.protocol.fetched import parse_fetch
from headrace.sql import SqlError, UnionTable
from headrace.sql.engine import Engine, EngineOptions
from headrace.sql.follow import follow
from headrace.testing import Broker

pytest.importorskip("duckdb")
NOON = datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.UTC)
PARTITIONS, EACH = 3, 400


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"log.retention.ms": -1}) as running:
        running.create_topic("orders", PARTITIONS)
        numbers = range(PARTITIONS * EACH)
        for start in range(0, len(numbers), 150):  # in several batches, so that there is something not to fetch
            some = numbers[start : start + 150]
            fill(
                running,
                "orders",
                [json.dumps({"id": n, "total": n / 4, "note": "x" * 800, "who": {"city": f"c{n % 7}"}}) for n in some],
                partition=[n % PARTITIONS for n in some],
                timestamp=[NOON + datetime.timedelta(minutes=n) for n in some],
            )
        running.create_topic("mixed-up.topic")
        fill(running, "mixed-up.topic", [*['{"n": 1}'] * 20, "oops", None])
        running.create_topic("words")
        fill(running, "words", ["wörld", "hello"])
        yield running


def fill(broker: Broker, topic: str, values: Sequence[str | None], **columns: Any) -> None:
    arrays: dict[str, Any] = {"key": ["k"] * len(values), "value": values}
    if "partition" in columns:
        arrays["partition"] = pa.array(columns["partition"], pa.int32())
    if "timestamp" in columns:
        arrays["timestamp"] = pa.array(columns["timestamp"], pa.timestamp("ms", "UTC"))
    write_arrow(pa.table(arrays), topic, bootstrap=broker.bootstrap)


@pytest.fixture
def ask(broker: Broker) -> Callable[..., Any]:
    def rows(sql: str, **more: Any) -> Any:
        found = headrace.sql.query(sql, bootstrap=broker.bootstrap, **more)
        return [tuple(row.values()) for row in found.to_pylist()]

    return rows


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes of records brokers send."""
    sizes: list[int] = []

    def counted(body: Any, version: int) -> Any:
        answer = parse_fetch(body, version)
        sizes.extend(len(one.records) for one in answer.partitions)
        return answer

    monkeypatch.setattr("headrace.client.columnar.reader.parse_fetch", counted)
    return sizes


def test_a_topic_is_a_table_of_the_fields_of_its_values(ask: Callable[..., Any]) -> None:
    assert ask("SELECT count(*), sum(total), max(who.city) FROM orders") == [(1200, 1199 * 1200 / 8, "c6")]
    assert ask('SELECT id, _partition, _offset, _key, _timestamp FROM headrace."orders" WHERE id = 7') == [
        (7, 1, 2, "k", NOON + datetime.timedelta(minutes=7))
    ]
    assert ask("SELECT value, _offset FROM words ORDER BY 1") == [("hello", 1), ("wörld", 0)]


def test_queries_join_nest_and_name_tables_of_their_own(ask: Callable[..., Any]) -> None:
    assert ask("WITH late AS (FROM orders WHERE id > 1190) SELECT count(*) FROM late JOIN orders USING (id)") == [(9,)]
    assert ask("SELECT (SELECT max(id) FROM orders) - (SELECT count(*) FROM words)") == [(1197,)]
    assert ask("SELECT n FROM mixed_up_topic WHERE _offset < 5 LIMIT 1") == [(1,)]
    assert ask("DESCRIBE words")[0][:2] == ("value", "VARCHAR")


NARROW = [
    "_offset = 5",
    "_offset >= 390 AND _partition = 2",
    "_offset IN (3, 5) AND _partition IN (0, 1)",
    "_partition = 7",
    "_offset BETWEEN 10 AND 20 AND total > 8",
    "_timestamp >= TIMESTAMPTZ '2024-01-02 07:00:00+00'",
    "_timestamp > TIMESTAMPTZ '2024-01-02 07:00:00+00' AND _partition = 1",
    "_timestamp = TIMESTAMPTZ '2024-01-02 07:30:00+00'",
    "_partition = 0 AND (_offset < 3 OR _offset = 9)",
]
WIDE = [
    "NOT (_offset < 100)",
    "_timestamp < TIMESTAMPTZ '2024-01-01 13:00:00+00'",
    "_offset < 5 OR id = 1100",
    "_offset % 100 = 7",
    "_offset + 0 < 3",
    "total IN (1, 2, 'NaN'::DOUBLE) OR who.city = 'c1'",
    "note IS NULL OR _tombstone",
    "_offset <> 5",
    "_partition::VARCHAR = '1'",
]


@pytest.fixture(scope="module")
def engines(broker: Broker) -> Iterator[tuple[Engine, Engine]]:
    """One to which conditions are handed over, and one that fetches everything."""
    client = {"bootstrap.servers": broker.bootstrap}
    with Engine(EngineOptions(client=client)) as pushing, Engine(EngineOptions(client=client, pushes=False)) as plain:
        yield pushing, plain


@pytest.mark.parametrize("condition", [*NARROW, *WIDE])
def test_pushed_conditions_never_change_an_answer_and_bring_fewer_bytes_from_brokers(
    engines: tuple[Engine, Engine], sent: list[int], condition: str
) -> None:
    answers, sizes = [], []
    for engine in engines:
        engine.definition("orders")
        sent.clear()
        answers.append(engine.query(f"SELECT id FROM orders WHERE {condition} ORDER BY 1").read_all())
        sizes.append(sum(sent))
    assert answers[0].equals(answers[1])
    assert sizes[1] > 900_000
    assert condition in WIDE or sizes[0] < sizes[1] / 2


def test_all_scans_of_a_query_see_the_same_rows(broker: Broker) -> None:
    topic = broker.create_topic("growing")
    fill(broker, topic, ['{"n": 1}'])
    with Engine(EngineOptions(client={"bootstrap.servers": broker.bootstrap})) as engine:
        statement = engine.prepare("SELECT (SELECT count(*) FROM growing), (SELECT count(*) FROM growing b)")
        fill(broker, topic, ['{"n": 2}'])
        assert list(engine.run(statement).read_all().to_pylist()[0].values()) == [1, 1]
        assert list(engine.query(statement).read_all().to_pylist()[0].values()) == [2, 2]


def test_bad_records_are_kept_told_skipped_or_fatal(broker: Broker, ask: Callable[..., Any]) -> None:
    topic = '"mixed-up.topic"'
    with pytest.warns(UserWarning, match=r"mixed-up.topic: 1 record could not be decoded.*offset 20: value: not JSON"):
        assert ask(f"SELECT count(*), count(n), count(_error) FROM {topic}") == [(22, 20, 1)]
    with pytest.warns(UserWarning, match="left out"):
        assert ask(f"SELECT count(*), count(*) FILTER (_tombstone) FROM {topic}", bad_records="skip") == [(21, 1)]
    with pytest.raises(SqlError, match="offset 20"):
        ask(f"SELECT count(*) FROM {topic}", bad_records="fail")
    assert ask(f"SELECT count(*) FROM {topic}") == [(22,)]


def test_a_declared_schema_counts_before_what_values_look_like(ask: Callable[..., Any]) -> None:
    read = {"orders": {"schema": "total DECIMAL(10,2), missing STRING"}}
    columns = ["total", "missing", "_key", "_topic", "_partition", "_offset", "_timestamp", "_headers"]
    assert [row[0] for row in ask("DESCRIBE orders", read=read)][:8] == columns
    assert ask("SELECT value FROM orders LIMIT 0", read={"orders": {"format": "raw"}}) == []


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('{outside}')",
        "SELECT * FROM '{outside}'",
        "SELECT * FROM read_text('{inside}/../secret.csv')",
        "SELECT * FROM read_blob('{outside}')",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM parquet_metadata('{outside}')",
        "SELECT * FROM read_csv('https://example.org/a.csv')",
        "COPY (SELECT 1) TO '{inside}/out.csv'",
        "ATTACH '{inside}/a.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "PRAGMA enable_profiling",
        "CREATE TABLE t AS SELECT 1",
        "EXPORT DATABASE '{inside}/x'",
        "SELECT 1; SELECT 2",
        "CALL pragma_version()",
        "SELECT * FROM SECRET_FRAME",
        "WITH a AS (COPY (SELECT 1) TO '{inside}/out.csv') SELECT 1",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{inside}/out.csv'",
        "EXPLAIN (ANALYZE) COPY (SELECT 1) TO '{inside}/out.csv'",
        "EXPLAIN ANALYZE WITH a AS (COPY (SELECT 1) TO '{inside}/out.csv') SELECT 1",
        "EXPLAIN ANALYZE /* a /* b */ SELECT 1 -- */ */ COPY (SELECT 1) TO '{inside}/out.csv'",
        "SELECT * FROM query('FROM json_execute_serialized_sql(json_serialize_sql("
        "''WITH a AS (COPY (SELECT 1) TO ''''{inside}/out.csv'''') SELECT 1''))')",
        "EXPLAIN ANALYZE SELECT * FROM json_execute_serialized_sql(json_serialize_sql("
        "'WITH a AS (COPY (SELECT 1) TO ''{inside}/out.csv'') SELECT 1'))",
    ],
)
def test_a_query_opens_nothing_beside_topics(tmp_path: Path, ask: Callable[..., Any], sql: str) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "secret.csv").write_text("a\n1\n")
    SECRET_FRAME = pa.table({"a": [1]})  # noqa: N806, F841 - a name that DuckDB would find by itself
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SqlError):
        ask(sql.format(outside=tmp_path / "secret.csv", inside=tmp_path / "inside"), files=[tmp_path / "inside"])
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("words", ["EXPLAIN", "-- a\nexplain", "EXPLAIN ANALYZE", "EXPLAIN (FORMAT JSON)"])
def test_a_query_over_topics_is_explained(broker: Broker, words: str) -> None:
    with Engine(EngineOptions(client={"bootstrap.servers": broker.bootstrap})) as engine:
        (row,) = engine.query(f"{words} SELECT value FROM words WHERE _offset > 0").read_all().to_pylist()
    assert "scan" in row["explain_value"].lower()


def test_what_is_explained_is_what_was_looked_at(tmp_path: Path, ask: Callable[..., Any]) -> None:
    ask(f"EXPLAIN ANALYZE /* a /* b */ SELECT 1 -- */ COPY (SELECT 1) TO '{tmp_path}/out.csv'", files=[tmp_path])
    assert not list(tmp_path.iterdir())


def test_files_of_directories_that_are_named_can_be_joined(tmp_path: Path, ask: Callable[..., Any]) -> None:
    (tmp_path / "cities.csv").write_text("city,country\nc1,X\nc2,Y\n")
    joined = f"orders JOIN '{tmp_path}/cities.csv' c ON c.city = who.city"
    query = f"SELECT country, count(*) FROM {joined} GROUP BY country ORDER BY 1"
    assert ask(query, files=[tmp_path]) == [("X", 172), ("Y", 172)]
    with pytest.raises(SqlError, match="--files"):
        ask(f"SELECT * FROM read_csv('{tmp_path}/cities.csv')")


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT * FROM order", "syntax error"),
        ("SELECT * FROM headrace.ordres", "there is no topic ordres; did you mean orders?"),
        ("SELECT * FROM ordres", "there is no topic ordres; did you mean orders?"),
        ("SELECT nothing FROM orders", 'column "nothing" not found'),
        ("", "there is no query"),
        ("DELETE FROM orders", "only queries"),
    ],
)
def test_errors_are_one_line_that_says_what_to_do(ask: Callable[..., Any], sql: str, message: str) -> None:
    with pytest.raises(SqlError, match=message) as raised:
        ask(sql)
    assert "\n" not in raised.value.message


def test_names_that_may_be_several_topics_are_refused(broker: Broker, ask: Callable[..., Any]) -> None:
    for name in ("a.twin", "a-twin"):
        broker.create_topic(name)
        fill(broker, name, [name])
    assert ask('SELECT value FROM "a-twin"') == [("a-twin",)]
    with pytest.raises(SqlError, match=r"may be any of the topics a-twin, a\.twin"):
        ask("SELECT * FROM a_twin")


def test_a_union_is_an_archive_and_what_came_after_it(broker: Broker, ask: Callable[..., Any]) -> None:
    archived = headrace.sql.query('SELECT * FROM "mixed-up.topic" WHERE _offset < 15', bootstrap=broker.bootstrap)
    live = headrace.sql.table("mixed-up.topic", bootstrap=broker.bootstrap, start={0: 15}, bad_records="skip")
    for archive in (archived, ds.dataset(archived), archived.drop_columns("_headers")):
        whole = UnionTable([archived, live]) if archive is archived else UnionTable([live, archive])
        counts = ask(
            "SELECT count(*), min(_offset), max(_offset) FROM whole WHERE n = 1 OR _tombstone", tables={"whole": whole}
        )
        assert counts == [(21, 0, 21)]


def test_answers_come_before_topics_are_read_whole(broker: Broker, sent: list[int]) -> None:
    topic = broker.create_topic("large")
    for _ in range(40):
        fill(broker, topic, ["x" * 1000] * 200)
    with headrace.sql.stream(
        "SELECT value FROM large",
        bootstrap=broker.bootstrap,
        fetch_max_bytes=100_000,
        max_partition_fetch_bytes=100_000,
    ) as batches:
        sent.clear()
        assert len(batches.read_next_batch())
        assert sum(sent) < 6_000_000  # of 8


def test_what_is_new_is_followed_each_row_once(broker: Broker) -> None:
    topic = broker.create_topic("followed", 2)
    fill(broker, topic, ['{"n": 0}', '{"n": 1}'])
    seen: list[int] = []
    waits = 0

    def wait(_: float) -> None:
        nonlocal waits
        waits += 1
        fill(broker, topic, [json.dumps({"n": 2 * waits}), json.dumps({"n": 2 * waits + 1})])

    with Engine(EngineOptions(client={"bootstrap.servers": broker.bootstrap})) as engine:
        schema, batches = follow(engine, "SELECT n FROM followed WHERE n % 2 = 0", wait)
        assert schema.names == ["n"]
        for batch in batches:
            seen += batch.column("n").to_pylist()
            if len(seen) >= 5:
                break
    assert sorted(seen) == [0, 2, 4, 6, 8]


def test_a_topic_that_is_made_anew_is_not_followed_on_as_if_it_were_the_same(broker: Broker) -> None:
    topic = broker.create_topic("again")
    fill(broker, topic, ['{"n": 0}', '{"n": 1}'])

    def made_anew(_: float) -> None:
        Admin(broker.bootstrap).delete_topics([topic])
        broker.create_topic(topic)
        fill(broker, topic, ['{"n": 10}', '{"n": 11}', '{"n": 12}'])

    with Engine(EngineOptions(client={"bootstrap.servers": broker.bootstrap})) as engine:
        _, batches = follow(engine, "SELECT n FROM again", made_anew)
        assert [next(batches).num_rows, next(batches).num_rows] == [2, 0]
        with pytest.raises(SqlError, match="again was deleted and made anew"):
            next(batches)


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("SELECT count(*) FROM words", "an aggregate"),
        ("SELECT DISTINCT value FROM words", "DISTINCT"),
        ("SELECT value FROM words ORDER BY 1", "ORDER BY"),
        ("SELECT value FROM words LIMIT 3", "LIMIT"),
        ("SELECT a.value FROM words a JOIN words b USING (value)", "a join"),
        ("SELECT row_number() OVER () FROM words", "a window function"),
        ("SELECT value FROM words UNION SELECT value FROM words", "DISTINCT"),
        ("SELECT value FROM words WHERE _offset = (SELECT max(_offset) FROM words)", "cannot be followed"),
        ("SELECT 1", "reads no topic"),
    ],
)
def test_answers_that_change_with_every_record_are_not_followed(
    engines: tuple[Engine, Engine], sql: str, what: str
) -> None:
    with pytest.raises(SqlError, match=what):
        follow(engines[0], sql)
