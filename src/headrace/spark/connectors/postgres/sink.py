"""Rows into a table of PostgreSQL: upserted and deleted by key, or added, each batch once.

A batch is one transaction: its rows are copied to a temporary table, of each key the last row counts, and the number of
the batch is noted in a table of the same database (`headrace_batches`), where a batch that is run again finds it.
"""

import json
from typing import Any, ClassVar, Final

from ..base import Batch, ConnectorError, Given, Option, SinkConnector
from .names import DSN, connect, identifier, table_name, translated

_STAGE: Final = "headrace_stage"
_SEQUENCE, _DELETED = "headrace_seq", "headrace_deleted"
UPSERT, APPEND = "upsert", "append"


class PostgresSink(SinkConnector):
    """Columns of the rows are columns of the table, by name."""

    options: ClassVar = {
        "dsn": DSN,
        "table": Option("the table, as schema.table", required=True),
        "key": Option("of upsert: the columns of the table's primary key, or of a unique index", is_list=True),
        "write": Option("what becomes of rows", default=UPSERT, choices=(UPSERT, APPEND)),
        "delete": Option("of upsert: a column of the rows that is true for keys to delete; it is not written"),
        "order": Option("of upsert: a column of the rows by which the last of a key is told, such as an offset"),
        "batches": Option("the table in which batches are noted", default="public.headrace_batches"),
    }

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self._table = table_name(self.text("table"))
        self._batches = table_name(self.text("batches"))
        self._keys = self.texts("key")
        self._is_upsert = self.text("write") == UPSERT
        self._delete, self._order = self.text("delete"), self.text("order")
        if self._is_upsert and not self._keys:
            raise ConnectorError("it needs 'key', the columns by which rows are found; or `write: append`", "key")
        if not self._is_upsert and (self._keys or self._delete or self._order):
            raise ConnectorError("'key', 'delete' and 'order' belong to `write: upsert`", "write")

    def check(self, columns: list[str]) -> None:
        for name in (*self._keys, self._delete, self._order):
            if name and name not in columns:
                raise ConnectorError(f"the rows have no column '{name}'; they have {', '.join(columns)}", "key")
        if self._delete in self._keys:
            raise ConnectorError(f"'{self._delete}' cannot tell what is deleted and be a key", "delete")
        if not self._written(columns):
            raise ConnectorError("the rows have no columns to write", "table")

    def write(self, rows: Any, batch: Batch) -> None:
        self.check(rows.columns)
        with connect(self.text("dsn"), options="-c timezone=UTC -c datestyle=ISO") as connection, translated():
            if self._begin(connection, batch):
                self._copy(connection, rows)
                self._merge(connection, rows.columns)

    def _written(self, columns: list[str]) -> list[str]:
        own = {self._delete, self._order} - set(self._keys) - {""}
        return [name for name in columns if name not in own]

    def _begin(self, connection: Any, batch: Batch) -> bool:
        """Whether the batch is not written yet; nobody else writes one of the query until the transaction ends."""
        from psycopg import sql

        batches = identifier(*self._batches)
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", ("headrace_batches",))
        connection.execute(
            sql.SQL("CREATE TABLE IF NOT EXISTS {} (query text PRIMARY KEY, batch bigint NOT NULL)").format(batches)
        )
        noted = connection.execute(
            sql.SQL(
                "INSERT INTO {0} AS known (query, batch) VALUES (%s, %s) ON CONFLICT (query) "
                "DO UPDATE SET batch = excluded.batch WHERE known.batch < excluded.batch RETURNING batch"
            ).format(batches),
            (batch.query, batch.number),
        )
        return noted.fetchone() is not None

    def _copy(self, connection: Any, rows: Any) -> None:
        from psycopg import sql

        names = self._written(rows.columns)
        columns = sql.SQL(", ").join(map(identifier, names))
        stage, target = identifier(_STAGE), identifier(*self._table)
        connection.execute(
            sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA").format(
                stage, columns, target
            )
        )
        connection.execute(
            sql.SQL("ALTER TABLE {} ADD {} bigserial, ADD {} boolean").format(
                stage, identifier(_SEQUENCE), identifier(_DELETED)
            )
        )
        copied = sql.SQL("COPY {} ({}, {}) FROM STDIN").format(stage, columns, identifier(_DELETED))
        with connection.cursor() as cursor, cursor.copy(copied) as copy:
            for row in self._ordered(rows).toLocalIterator(prefetchPartitions=True):
                deleted = bool(row[self._delete]) if self._delete else False
                copy.write_row([*(_value(row[name]) for name in names), deleted])

    def _ordered(self, rows: Any) -> Any:
        return rows.orderBy(rows[f"`{self._order}`"].asc_nulls_first()) if self._order else rows

    def _merge(self, connection: Any, columns: list[str]) -> None:
        from psycopg import sql

        names = self._written(columns)
        listed = sql.SQL(", ").join(map(identifier, names))
        stage, target = identifier(_STAGE), identifier(*self._table)
        insert = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {}").format(target, listed, listed, stage)
        if not self._is_upsert:
            connection.execute(insert + sql.SQL(" ORDER BY {}").format(identifier(_SEQUENCE)))
            return
        keys = sql.SQL(", ").join(map(identifier, self._keys))
        self._require_keys(connection)
        connection.execute(
            sql.SQL("DELETE FROM {0} WHERE {1} NOT IN (SELECT max({1}) FROM {0} GROUP BY {2})").format(
                stage, identifier(_SEQUENCE), keys
            )
        )
        same = sql.SQL(" AND ").join(
            sql.SQL("{}.{} = {}.{}").format(target, identifier(key), stage, identifier(key)) for key in self._keys
        )
        connection.execute(
            sql.SQL("DELETE FROM {0} USING {1} WHERE {1}.{2} AND {3}").format(target, stage, identifier(_DELETED), same)
        )
        others = [name for name in names if name not in self._keys]
        update = sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(identifier(name)) for name in others)
        action = sql.SQL("DO UPDATE SET {}").format(update) if others else sql.SQL("DO NOTHING")
        connection.execute(
            insert + sql.SQL(" WHERE NOT {} ON CONFLICT ({}) {}").format(identifier(_DELETED), keys, action)
        )

    def _require_keys(self, connection: Any) -> None:
        from psycopg import sql

        lacking = sql.SQL(" OR ").join(sql.SQL("{} IS NULL").format(identifier(key)) for key in self._keys)
        query = sql.SQL("SELECT count(*) FROM {} WHERE {}").format(identifier(_STAGE), lacking)
        ((count,),) = connection.execute(query).fetchall()
        if count:
            raise ConnectorError(
                f"{count} rows of a batch lack a value in the key ({', '.join(self._keys)}); leave them out in a step",
                "key",
            )


def _value(value: Any) -> Any:
    """A value of Spark's as COPY takes it; structs, maps and lists of those as JSON."""
    if isinstance(value, bytearray):
        return bytes(value)
    if hasattr(value, "asDict"):
        return json.dumps(value.asDict(recursive=True), default=str)
    if isinstance(value, dict):
        return json.dumps(value, default=str)
    if isinstance(value, list) and any(hasattr(one, "asDict") or isinstance(one, (dict, list)) for one in value):
        return json.dumps([json.loads(_value(one)) for one in value], default=str)
    return value
