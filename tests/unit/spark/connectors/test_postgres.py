"""The PostgreSQL connector against a server, without Spark."""

import random
from collections.abc import Iterator
from itertools import count
from typing import Any

import psycopg
import pytest

from headrace.spark.connectors.base import Batch, ConnectorError, Position
from headrace.spark.connectors.postgres.names import connect
from headrace.spark.connectors.postgres.sink import PostgresSink
from headrace.spark.connectors.postgres.source import PostgresSource
from headrace.spark.errors import Unreachable
from tests.support.postgres import Postgres, postgres

pytestmark = pytest.mark.slow
ODD = 'odd "name"; DROP TABLE x; --'
QUOTED = '"' + ODD.replace('"', '""') + '"'


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as one:
        yield one


@pytest.fixture
def table(server: Postgres) -> Iterator[str]:
    server.run("CREATE TABLE orders (id bigint PRIMARY KEY, name text, cents numeric(10,2), big text)")
    yield "public.orders"
    for (slot,) in server.run("SELECT slot_name FROM pg_replication_slots"):
        server.run("SELECT pg_drop_replication_slot(%s)", slot)
    for (name,) in server.run("SELECT pubname FROM pg_publication"):
        server.run(f'DROP PUBLICATION "{name}"')
    server.run("DROP TABLE orders")


def source(server: Postgres, **options: Any) -> PostgresSource:
    return PostgresSource({"dsn": server.dsn, "table": "orders", **options})


def between(found: PostgresSource, start: Position, end: Position) -> list[tuple[object, ...]]:
    return list(found.read(start, end))


class Copy:
    """What somebody has who applies changes by key."""

    def __init__(self) -> None:
        self.rows: dict[object, tuple[object, ...]] = {}

    def apply(self, changes: list[tuple[object, ...]]) -> None:
        for *row, op, _lsn, _seq, _time in changes:
            if op == "d":
                self.rows.pop(row[0], None)
            else:
                self.rows[row[0]] = tuple(row)


def test_a_snapshot_and_changes_make_the_table_whatever_is_read_twice(server: Postgres, table: str) -> None:
    """Ends of batches are taken now and then, batches are read again, and the reader is made anew."""
    chance, fresh = random.Random(7), count()
    server.run("INSERT INTO orders SELECT n, 'first', n / 3.0, repeat('x', 5) FROM generate_series(1, 20) AS n")
    copy, found = Copy(), source(server, maxRowsPerBatch="7")
    position = found.initial()
    for turn in range(40):
        with psycopg.connect(server.dsn) as connection:
            for _ in range(chance.randint(1, 6)):
                number = chance.randint(1, 40)
                connection.execute(
                    "INSERT INTO orders VALUES (%s, %s, %s, %s) ON CONFLICT (id) DO UPDATE SET name = excluded.name",
                    (number, f"turn {turn}", turn, "y"),
                )
                connection.execute("DELETE FROM orders WHERE id = %s", (chance.randint(1, 40),))
                if chance.random() < 0.3:
                    new = 1000 + next(fresh)
                    connection.execute("UPDATE orders SET id = %s WHERE id = %s", (new, chance.randint(1, 40)))
        if turn == 20:
            found.close()
            found = source(server, maxRowsPerBatch="7")
        end = found.latest(position)
        rows = between(found, position, end)
        assert between(found, position, end) == rows or "snapshot" in position
        copy.apply(rows)
        found.done(position)
        position = end
    while (end := found.latest(position)) != position:
        copy.apply(between(found, position, end))
        found.done(end)
        position = end
    assert copy.rows == {row[0]: row for row in server.run("SELECT * FROM orders")}
    found.close()


def test_what_is_not_done_is_kept_and_what_is_done_is_not(server: Postgres, table: str) -> None:
    found = source(server, snapshot=False)
    start = found.initial()
    server.run("INSERT INTO orders VALUES (1, 'a', 1, '')")
    first = found.latest(start)
    server.run("INSERT INTO orders VALUES (2, 'b', 1, '')")
    second = found.latest(first)
    assert [row[0] for row in between(found, start, first)] == [1]
    assert [row[0] for row in between(found, first, second)] == [2]
    assert [row[0] for row in between(found, start, second)] == [1, 2]
    found.done(first)
    assert [row[0] for row in between(found, first, second)] == [2]
    with pytest.raises(ConnectorError, match="changes in between are gone"):
        found.latest(start)
    server.run("SELECT pg_drop_replication_slot('headrace_public_orders')")
    with pytest.raises(ConnectorError, match="there is no replication slot headrace_public_orders"):
        found.latest(second)
    found.close()


def test_a_transaction_comes_whole_and_one_that_is_rolled_back_never(server: Postgres, table: str) -> None:
    found = source(server, snapshot=False, maxRowsPerBatch="2")
    start = found.initial()
    with psycopg.connect(server.dsn) as connection:
        connection.execute("INSERT INTO orders SELECT n, 'x', 1, '' FROM generate_series(1, 50) AS n")
    with psycopg.connect(server.dsn) as connection:
        connection.execute("INSERT INTO orders VALUES (99, 'never', 1, '')")
        connection.rollback()
    end = found.latest(start)
    rows = between(found, start, end)
    assert [row[0] for row in rows] == list(range(1, 51))
    assert len({row[-3] for row in rows}) == 1
    assert found.latest(end) == end
    found.close()


def test_large_values_that_an_update_did_not_send_are_never_taken_for_null(server: Postgres, table: str) -> None:
    server.run("ALTER TABLE orders ALTER big SET STORAGE EXTERNAL")
    found = source(server, snapshot=False)
    start = found.initial()
    server.run("INSERT INTO orders VALUES (1, 'a', 1, repeat('x', 100000))")
    position = found.latest(start)
    server.run("UPDATE orders SET name = 'b'")
    with pytest.raises(ConnectorError, match="REPLICA IDENTITY FULL"):
        between(found, position, found.latest(position))
    without = source(server, snapshot=False, columns=["id", "name"])
    assert [row[:3] for row in between(without, position, found.latest(position))] == [(1, "b", "u")]
    server.run("ALTER TABLE orders REPLICA IDENTITY FULL")
    position = found.latest(position)
    server.run("UPDATE orders SET name = 'c'")
    ((_, name, _, big, op, *_),) = between(found, position, found.latest(position))
    assert (name, len(str(big)), op) == ("c", 100_000, "u")
    for one in (found, without):
        one.close()


def test_a_truncated_table_is_no_silence(server: Postgres, table: str) -> None:
    found = source(server, snapshot=False)
    start = found.initial()
    server.run("TRUNCATE orders")
    with pytest.raises(ConnectorError, match="was truncated, which tells no rows"):
        between(found, start, found.latest(start))
    ignoring = source(server, snapshot=False, truncate="ignore")
    assert between(ignoring, start, found.latest(start)) == []
    for one in (found, ignoring):
        one.close()


def test_new_rows_by_a_column_in_parts(server: Postgres, table: str) -> None:
    found = source(server, mode="incremental", column="id", maxRowsPerBatch="3")
    position = found.initial()
    assert found.latest(position) == position
    server.run("INSERT INTO orders SELECT n, 'x', 1, '' FROM generate_series(1, 7) AS n")
    seen = []
    while (end := found.latest(position)) != position:
        seen.append([row[0] for row in between(found, position, end)])
        position = end
    assert seen == [[1, 2, 3], [4, 5, 6], [7]]
    found.close()


def test_every_type_comes_through_or_is_refused_by_name(server: Postgres) -> None:
    server.run(
        "CREATE TABLE kinds (id int PRIMARY KEY, a smallint, b numeric(12,3), c numeric, d float8, e boolean, f date,"
        " g timestamp, h timestamptz, i bytea, j jsonb, k int[], l uuid)"
    )
    server.run(
        "INSERT INTO kinds VALUES (1, 2, 3.5, 1e30, 'NaN', true, '2026-01-31', '2026-01-31 12:00', "
        "'2026-01-31 12:00+02', '\\x00ff', '{\"a\": 1}', '{1,2}', '00000000-0000-0000-0000-000000000001')"
    )
    try:
        found = PostgresSource({"dsn": server.dsn, "table": "kinds", "mode": "snapshot"})
        assert "`b` DECIMAL(12,3), `c` STRING, `d` DOUBLE" in found.schema()
        (row,) = between(found, found.initial(), found.latest(found.initial()))
        assert str(row[2]) == "3.500"
        assert row[5] is True
        assert row[9] == b"\x00\xff"
        assert row[10:] == ('{"a": 1}', "{1,2}", "00000000-0000-0000-0000-000000000001")
        server.run("UPDATE kinds SET f = 'infinity'")
        with pytest.raises(ConnectorError, match=r"column 'f' \(date\) has the value 'infinity'"):
            between(found, found.initial(), {"done": True})
        found.close()
    finally:
        server.run("DROP TABLE kinds")


class Rows:
    """What a sink uses of a DataFrame."""

    def __init__(self, columns: list[str], rows: list[tuple[object, ...]]) -> None:
        self.columns = columns
        self._rows = rows

    def toLocalIterator(self, prefetchPartitions: bool) -> Iterator[dict[str, object]]:  # noqa: N802, N803
        return (dict(zip(self.columns, row, strict=True)) for row in self._rows)


def sink(server: Postgres, **options: Any) -> PostgresSink:
    return PostgresSink({"dsn": server.dsn, "table": "orders", "key": ["id"], **options})


def test_a_batch_is_upserted_and_deleted_once_and_the_last_row_of_a_key_counts(server: Postgres, table: str) -> None:
    found = sink(server, delete="gone")
    columns = ["id", "name", "gone"]
    first = Rows(columns, [(1, "a", False), (2, "b", None), (1, "c", False), (3, "d", False), (3, None, True)])
    found.write(first, Batch(query="q", number=0))
    assert server.run("SELECT id, name FROM orders ORDER BY id") == [(1, "c"), (2, "b")]
    server.run("UPDATE orders SET name = 'changed since'")
    found.write(first, Batch(query="q", number=0))
    assert server.run("SELECT DISTINCT name FROM orders") == [("changed since",)]
    found.write(Rows(columns, [(2, None, True), (2, "again", False)]), Batch(query="q", number=1))
    assert server.run("SELECT name FROM orders WHERE id = 2") == [("again",)]
    found.write(Rows(columns, [(2, None, True)]), Batch(query="other", number=0))
    assert server.run("SELECT count(*) FROM orders WHERE id = 2") == [(0,)]


def test_a_batch_that_fails_leaves_nothing_and_can_be_written_again(server: Postgres, table: str) -> None:
    found = sink(server)
    batch = Batch(query="failing", number=0)
    with pytest.raises(ConnectorError, match="PostgreSQL: numeric field overflow"):
        found.write(Rows(["id", "cents"], [(1, 5), (2, 10**9)]), batch)
    assert server.run("SELECT count(*) FROM orders") == [(0,)]
    with pytest.raises(ConnectorError, match=r"1 rows of a batch lack a value in the key \(id\)"):
        found.write(Rows(["id", "cents"], [(None, 5)]), batch)
    found.write(Rows(["id", "cents"], [(1, 5)]), batch)
    assert server.run("SELECT id FROM orders") == [(1,)]


def test_names_are_quoted_and_values_bound(server: Postgres) -> None:
    server.run(f"CREATE TABLE {QUOTED} ({QUOTED} text PRIMARY KEY, v text)")
    hostile = "'); DROP TABLE x; --\\\t\n"
    try:
        written = PostgresSink({"dsn": server.dsn, "table": QUOTED, "key": [ODD]})
        written.write(Rows([ODD, "v"], [(hostile, "\\N"), ("k", None)]), Batch(query=hostile, number=0))
        found = PostgresSource({"dsn": server.dsn, "table": QUOTED, "mode": "incremental", "column": ODD})
        position = found.initial()
        end = found.latest(position)
        assert sorted(between(found, position, end)) == sorted([(hostile, "\\N"), ("k", None)], key=lambda row: row[0])
        assert found.latest(end) == end
        changes = PostgresSource({"dsn": server.dsn, "table": QUOTED, "publication": ODD, "slot": "odd"})
        assert changes.initial() == {"snapshot": True}
        assert isinstance(changes.latest({"snapshot": True})["lsn"], int)
        for one in (found, changes):
            one.close()
    finally:
        server.run("SELECT pg_drop_replication_slot('odd')")
        server.run(f"DROP PUBLICATION {QUOTED}")
        server.run(f"DROP TABLE {QUOTED}")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"table": "a.b.c"}, "is not the name of a table"),
        ({"mode": "chnages"}, "did you mean changes"),
        ({"modus": "changes"}, "did you mean mode"),
        ({"column": "id"}, "belongs to mode incremental"),
        ({"slot": "Bad Slot"}, "cannot be a slot"),
        ({"maxRowsPerBatch": "0"}, "a whole number above 0"),
        ({"snapshot": "maybe"}, "must be true or false"),
        ({"dsn": ["a", "b"]}, "a single value"),
    ],
)
def test_options_that_cannot_be_are_told_by_name(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConnectorError, match=words):
        PostgresSource({"dsn": "x", "table": "orders", **options})


def test_a_server_that_is_away_passes_by_itself_and_no_password_is_told() -> None:
    found = PostgresSource({"dsn": "postgresql://me:geheim@127.0.0.1:1/db", "table": "orders"})
    with pytest.raises(Unreachable) as told:
        found.schema()
    assert "geheim" not in str(told.value)
    with pytest.raises(ConnectorError) as wrong:
        PostgresSource({"dsn": "password=geheim nonsense", "table": "orders"}).schema()
    assert "geheim" not in str(wrong.value)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://u:SEC RET@127.0.0.1:1/db",
        "postgresql://u:SEC%ZZRET@127.0.0.1:1/db",
        "postgresql://u:SEC@RET@127.0.0.1:1/db",
        "host=127.0.0.1 port=1 password=SEC RET",
    ],
)
def test_a_dsn_that_cannot_be_read_is_refused_without_a_piece_of_its_password(dsn: str) -> None:
    with pytest.raises(ConnectorError, match="the dsn cannot be read") as raised:
        connect(dsn)
    assert "SEC" not in str(raised.value)
    assert "RET" not in str(raised.value)
